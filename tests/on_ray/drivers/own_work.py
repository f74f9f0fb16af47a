"""Plain work of a driver with its own hooks: prints what a worker sees, and on which nodes unrestricted work ran.

Arguments: the address, then "named" or "function" for the form of the worker setup hook, or "none". "init" connects
with `stead.init`, the others with `ray.init`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import own_hooks  # type: ignore[import-not-found]  # a script finds what is beside it
import ray

import stead


def main(address: str, setup: str) -> None:
    hooks: dict[str, dict[str, Any]] = {
        "named": {"worker_process_setup_hook": "own_hooks.set_up_worker"},
        "function": {"worker_process_setup_hook": own_hooks.set_up_worker},
        "none": {},
        "init": {},
    }
    hook = hooks[setup]
    env = {**hook, "env_vars": {"PYTHONPATH": os.path.dirname(__file__)}} if hook else None
    attach = stead.init if setup == "init" else ray.init
    attach(address, logging_level="error", log_to_driver=False, runtime_env=env)

    @ray.remote(num_cpus=0, scheduling_strategy="SPREAD")  # type: ignore[untyped-decorator]
    def found() -> tuple[str, str | None, str | None]:
        return ray.get_runtime_context().get_node_id(), os.environ.get("OWN_SETUP"), os.environ.get("OWN_HOOK")

    @ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
    def nested() -> Any:
        return ray.get([found.remote() for _ in range(3)])

    answers = ray.get([found.remote() for _ in range(3)]) + ray.get(nested.remote())
    sys.stdout.write("\n" + json.dumps([sorted({row[i] for row in answers}, key=str) for i in range(3)]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
