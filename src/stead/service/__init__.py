"""The REST API and the web pages: a process of its own that talks to a cluster's desk.

Rule: knows only the `Desk`, so that the same API and pages work on Ray, Kubernetes and a simulation. Closed by default
(see `guard`): loopback, a token for every change, no code and no asset from elsewhere.
"""
