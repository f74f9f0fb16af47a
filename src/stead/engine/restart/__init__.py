"""How an engine comes back after a restart: from a checkpoint, or from the facts and decisions of a journal.

Rule: an engine that came back makes the same later decisions as the original would.
"""
