"""The autoscaler: real nodes behind the planner. It asks a desk what is pending, and a provider for nodes."""
