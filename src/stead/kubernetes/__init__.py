"""Kubernetes as a cluster.

Rule: only `podspec` translates Kubernetes' objects; the engine knows nothing about pods.
"""
