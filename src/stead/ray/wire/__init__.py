"""Stead's access to Ray's internals: its tables, its control store, its raylets, its session folder.

Rule: only this package reads Ray's tables, calls its control store and raylets directly, and creates folders on a node.
"""
