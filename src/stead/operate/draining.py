"""Waiting until nothing runs on a drained node any more.

Rule: only asks. A task that was evicted and runs elsewhere counts as long as its result still comes by way of the node,
so an empty node can be shut down without a loss.
"""

from __future__ import annotations

import time

from stead.operate.desk import Desk
from stead.operate.views import NodeView

LOOK_S = 0.5
EMPTY_S = 3.0
"""A node is empty when it was so for this long: on Ray, lists of tasks are a second old."""


def left_on(desk: Desk, node: str, timeout_s: float | None) -> int:
    """How many pieces of work are still on the node when it is empty (0) or when the time is up."""
    busy_at = began = time.monotonic()
    while True:
        left, now = _left(desk.node(node)), time.monotonic()
        if left:
            busy_at = now
        if now - busy_at >= EMPTY_S:
            return 0
        if timeout_s is not None and now - began >= timeout_s:
            return left or 1
        time.sleep(LOOK_S)


def _left(view: NodeView) -> int:
    work = {name: amount for name, amount in view.total.items() if name != "object_store_memory"}
    is_in_use = any(view.available.get(name, 0.0) < amount for name, amount in work.items())
    return max(view.runs, int(is_in_use))
