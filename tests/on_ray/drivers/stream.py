"""Streams short tasks of one shape until its input ends; prints when each was submitted, and where and when it ran.

Prints "ready" when the stream runs on every node in its arguments.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import ray

AHEAD = 150
"""How many tasks are pending or running at any time."""

RUN_S = 0.005


def stream(
    lane: str, nodes: set[str], ready: threading.Event, until: threading.Event
) -> list[tuple[float, str, float]]:
    """(submitted at, node, started at) of every task; raises if one failed.

    A stream holds its leases while it runs, so each stream has its own lane (a resource) on every node.
    """

    @ray.remote(num_cpus=0, resources={lane: 1}, max_retries=0)  # type: ignore[untyped-decorator]
    def stamp(seconds: float) -> tuple[str, float]:
        at = time.time()
        threading.Event().wait(seconds)
        return ray.get_runtime_context().get_node_id(), at

    done: list[tuple[float, str, float]] = []
    waiting: dict[Any, float] = {}
    while waiting or not until.is_set():
        while len(waiting) < AHEAD and not until.is_set():
            at = time.time()
            waiting[stamp.remote(RUN_S)] = at
        finished, _ = ray.wait(list(waiting), num_returns=min(20, len(waiting)))
        for ref, (node, started) in zip(finished, ray.get(finished), strict=True):
            done.append((waiting.pop(ref), node, started))
        if nodes <= {node for _, node, _ in done[-AHEAD:]}:
            ready.set()
    return done


def main(address: str, lane: str, nodes: set[str]) -> None:
    ray.init(address, logging_level="error", log_to_driver=False)
    until, ready = threading.Event(), threading.Event()

    def listen() -> None:
        ready.wait()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
        until.set()

    threading.Thread(target=listen, daemon=True).start()
    sys.stdout.write(json.dumps(stream(lane, nodes, ready, until)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], set(sys.argv[3:]))
