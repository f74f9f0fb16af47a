"""Waits until a drained node is empty.

Rule: only asks questions. An evicted task that runs elsewhere still counts while its result comes through the node, so
an empty node can be shut down without losing anything.
"""

from __future__ import annotations

import time

from stead.operate.desk import Desk
from stead.operate.snapshot import PAGE_MAX, Query, every
from stead.operate.views import holds_results

LOOK_S = 0.5
STAYS = ("DaemonSet/", "Node/")
"""On Kubernetes: the owners of pods that a drain does not evict, daemon sets and nodes (which own static pods)."""

EMPTY_S = 3.0
"""A node must stay empty for this long: on Ray, lists of tasks are up to a second old."""


def left_on(desk: Desk, node: str, timeout_s: float | None) -> int:
    """Wait until the node is empty or the timeout ends. Returns how many pieces of work are left: 0 if it is empty."""
    busy_at = began = time.monotonic()
    left_in = _pods_left if desk.summary().kind == "kubernetes" else _left
    while True:
        left, now = left_in(desk, node), time.monotonic()
        if left:
            busy_at = now
        if now - busy_at >= EMPTY_S:
            return 0
        if timeout_s is not None and now - began >= timeout_s:
            return left or 1
        time.sleep(LOOK_S)


def _pods_left(desk: Desk, node: str) -> int:
    pods = every(desk.work, Query((f"node={desk.node(node).id}",), limit=PAGE_MAX))
    return sum(not pod.owner.partition("/")[2].startswith(STAYS) for pod in pods)


def _left(desk: Desk, node: str) -> int:
    view = desk.node(node)
    work = {name: amount for name, amount in view.total.items() if not holds_results(name)}
    is_in_use = any(view.available.get(name, 0.0) < amount for name, amount in work.items())
    return max(view.runs, int(is_in_use))
