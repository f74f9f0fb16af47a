"""Kubernetes as a place where work runs.

Rule: what Kubernetes means is translated in `podspec` and nowhere else; the engine never hears of a pod.
"""
