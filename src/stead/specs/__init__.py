"""Work, nodes and changes that people write in YAML and JSON.

Rule: a spec becomes facts with their times, and durations; nothing else.
"""
