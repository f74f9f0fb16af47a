"""Questions about a cluster and changes to it, without a network."""
