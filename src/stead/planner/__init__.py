"""The planner: which new nodes pending work needs, and which nodes are not needed any more.

Rule: pure, like the engine, and without a placement rule of its own. It forks the engine, adds or removes hypothetical
nodes and lets the engine decide, so it never promises what the engine would not place.
"""
