"""What an autoscaler can decide. `stead.planner.scaler` decides; the types are here so that events have one vocabulary."""
