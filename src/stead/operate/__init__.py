"""The questions that operators ask about a cluster and the changes they make, for every kind of cluster.

Rule: a cluster (Ray, the simulator) provides a `Desk`, and the command line, the REST API and the pages use only that.
No placement rule is here: every answer about placement comes from the engine, on a fork.
"""
