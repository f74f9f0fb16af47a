"""Code for drivers and workers: it turns options into passes and adds the passes to Ray's own calls.

Rule: this package places nothing. It asks the controller, or reads what the controller published.
"""
