"""Tainted and labelled nodes are obeyed by tasks, actors and nested tasks: rules_hold.py ADDRESS NODE_ID NODE_ID."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import ray

import stead


def _where() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _nested() -> list[str]:
    return [str(id) for id in ray.get([where.remote() for _ in range(3)])]


class _Actor:
    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


where: Any = ray.remote(_where)
nested: Any = ray.remote(_nested)
Actor: Any = ray.remote(_Actor)


def main() -> None:
    address, first, second = sys.argv[1:]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stead.init(address, log_to_driver=False, logging_level="error")
    said = any("cannot change a node's resources" in str(warning.message) for warning in caught)
    assert said == bool(os.environ.get("STEAD_EXPECT_WARNING")), [str(warning.message) for warning in caught]
    stead.label(first, {"disk": "ssd"})
    assert ray.get(where.options(label_selector={"disk": "ssd"}).remote(), timeout=60) == first
    stead.taint(second, {"closed": "yes"})
    assert set(ray.get([where.remote() for _ in range(10)], timeout=60)) == {first}
    assert set(ray.get(nested.remote(), timeout=60)) == {first}
    assert ray.get(Actor.remote().where.remote(), timeout=60) == first
    tolerant = where.options(tolerations={"closed": stead.Exists()}, label_selector={"zone": "a"})
    assert ray.get(tolerant.remote(), timeout=60) == second
    sys.stdout.write("all good\n")


if __name__ == "__main__":
    main()
