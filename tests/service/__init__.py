"""The service: the guard, the API and what it answers."""
