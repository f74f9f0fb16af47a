"""The REST API and the web pages of a cluster's desk.

Rule: uses only the `Desk`, so that the same API and pages work on Ray and on a simulation. Closed by default (see
`guard`): loopback only, a token for every change, no code and no asset from another site.
"""
