"""How to choose among the nodes that no rule refuses.

Rule: a ranking never refuses a node.
"""
