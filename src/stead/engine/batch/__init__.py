"""The flow policies: work that is decided together.

Rule: a batch uses the same rules as all other placements. It only adds the choice of nodes for all its asks at once.
"""
