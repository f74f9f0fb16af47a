"""What people who run a cluster ask and change, for every kind of cluster alike.

Rule: only questions and changes in the engine's own words. A cluster (Ray, the simulator) keeps a `Desk`; the command
line, the REST API and the pages know nothing else of it. No rule of placement is here: every answer about places is
the engine's, asked of a fork.
"""
