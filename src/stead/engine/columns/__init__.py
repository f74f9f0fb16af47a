"""How an engine stores its state: columns over all nodes, logs of changes, and tables that forks share.

Rule: these are tables. Nothing here refuses a node, places work or decides.
"""
