"""The service: the guard, the API and the pages."""
