"""The simulator: a cluster in virtual time, defined by a YAML file.

Rule: engine, controller and journal are the real ones; only the nodes are simulated. The same file gives the same run,
byte for byte.
"""
