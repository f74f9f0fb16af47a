"""Kubernetes: translates pods and nodes, and schedules pods.

Rule: translating needs no client library; only `api` talks to the API server.
"""
