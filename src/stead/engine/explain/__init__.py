"""Why work is pending or where it is, as values and as text.

Rule: nothing here decides about a node. Refusals come from the deciding rules, so an explanation cannot contradict a
decision.
"""
