"""The desk of a Kubernetes cluster: questions about pods of all schedulers, and changes of nodes.

Rule: it needs only the rights of the user who asks, installs nothing, and binds no pod.
"""
