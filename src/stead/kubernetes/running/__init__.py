"""Submitted work on Kubernetes: `stead submit --to kubernetes`.

Rule: one pod for each piece, created and read under the rights of the user who submits. No scheduling happens here.
"""
