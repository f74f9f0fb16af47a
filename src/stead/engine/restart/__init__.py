"""How an engine is restored after a restart: from a checkpoint, or from the facts and decisions of a journal.

Rule: a restored engine makes the same later decisions as the original would.
"""
