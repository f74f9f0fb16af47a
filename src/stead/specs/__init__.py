"""Work, nodes and changes that people write in YAML and JSON.

Rule: a spec becomes facts with their times, and the durations of work; nothing else.
"""
