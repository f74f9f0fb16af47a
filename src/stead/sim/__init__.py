"""Cluster no. 3: a cluster in virtual time, made from a YAML file.

Rule: the engine, the controller and the journal under it are the real ones; only the nodes are not. The
same file gives the same run, byte for byte.
"""
