"""Everything that talks to the Kubernetes API server. No scheduling rule is in here."""
