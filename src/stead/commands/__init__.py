"""The commands of `stead` for a cluster that runs.

Rule: a command understands its words before it attaches, so that a slip costs nothing; then it asks a desk and prints.
Every one works on Ray, on a service (`--address http://...`) and so on whatever that serves. What a command needs is
imported when it runs, so that `stead --help` answers at once.
"""
