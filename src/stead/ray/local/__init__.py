"""Ray clusters that stead starts itself: several nodes on one machine, `stead start`, and the demo."""
