"""What happens because of time alone: deadlines, evictions, taints that expire, nodes reserved for late work.

Rule: every time rule of the engine is here. Time arrives as a fact; nothing here reads a clock.
"""
