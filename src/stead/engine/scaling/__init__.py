"""What an autoscaler can decide: `stead.planner.scaler` decides it, and the types are here, because they are events."""
