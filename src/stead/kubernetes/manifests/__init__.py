"""What to apply to a Kubernetes cluster so that the scheduler runs in it.

Rule: `scheduler.yaml` is what an administrator reads and applies; the code fills in names and numbers, nothing else.
"""
