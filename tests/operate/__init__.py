"""What people ask of a cluster and change on it, without a network."""
