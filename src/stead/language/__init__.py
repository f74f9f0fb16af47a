"""The types that describe work and nodes: labels, taints, resources, nodes and asks.

Rule: plain values and their text forms. Nothing here depends on a cluster or decides where work runs.
"""
