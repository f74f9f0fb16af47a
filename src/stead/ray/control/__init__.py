"""Code for the controller's process: it turns Ray's tables into facts, and the engine's decisions into grants.

Rule: runs only in the controller actor. Only the engine decides where work may go.
"""
