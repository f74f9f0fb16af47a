"""Creates a detached actor, a normal one, one that cannot be placed, and a pending task; prints "ready" and keeps
running."""

from __future__ import annotations

import os
import sys
from typing import Any

import ray

import stead
from stead import actor_affinity, affinity, label_in


class _Actor:
    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def pid(self) -> int:
        return os.getpid()


def main(address: str) -> None:
    stead.init(address, namespace="failures", log_to_driver=False, logging_level="error")
    actor: Any = ray.remote(_Actor)
    never: Any = ray.remote(lambda: None)
    near = actor_affinity(affinity(ray.get_actor("target")))
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": near}
    left = actor.options(name="left", lifetime="detached", **options).remote()
    taken = actor.options(**options).remote()
    nowhere = actor_affinity(label_in("role", ["nobody"]))
    kept = [actor.options(num_cpus=0, scheduling_strategy=nowhere).remote()]
    kept.append(never.options(num_cpus=0, scheduling_strategy=nowhere).remote())
    ray.get([left.where.remote(), taken.where.remote()])
    stead.nodes()  # after this answer, the controller knows all earlier submissions
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
