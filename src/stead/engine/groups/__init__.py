"""Groups of asks that are placed together or not at all.

Rule: `lifecycle` follows a group from its submission to its end, and `search` finds the nodes.
"""
