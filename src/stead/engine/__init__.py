"""The engine: decides where work runs. `engine.Engine` is the object that everything else uses.

Rule: everything here is pure: no clock, no I/O, no logging, no threads, no unseeded randomness. Time arrives as a fact,
and equal facts give byte-equal decisions. Clusters, the simulator and the planner use the engine: where work may run
is decided only here.
"""
