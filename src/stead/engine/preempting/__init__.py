"""Preemption: work of a lower priority is evicted, so that work of a higher priority fits.

Rule: only what no node takes may preempt, and nothing is evicted that would not make it fit.
"""
