"""Benchmarks: how fast the engine is, as ratios against a reference measured in the same run.

Rule: absolute times mean little on a noisy machine, so every row has a reference next to it (mostly the
oracle of the tests doing the same work), and no test ever fails because of a time.
"""
