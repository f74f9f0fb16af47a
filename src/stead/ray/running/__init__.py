"""Submitted commands on Ray: `stead submit --to ray`.

Rule: one detached actor owns all that one command submitted, so that it can continue without the command and end as a
whole. Every piece is an actor that runs its command in a process of its own.
"""
