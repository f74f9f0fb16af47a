"""Telling Ray's autoscaler what waits, in words it knows.

Rule: only demands that any new node of the right size could serve are told. Ray's autoscaler knows the resources that
node types declare, and passes are none of them, so it takes all work that carries one for hopeless. Where a pass asks
for nothing but tolerations, the same demand without the pass is made the cluster's resource request (Ray has one for
the whole cluster), beside what is in use; when nothing waits any more, the request is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources

from stead.labelling import ANYWHERE
from stead.ray.cluster import real_amounts
from stead.ray.compile import Pass
from stead.ray.page import read_name
from stead.ray.tables import PendingRow, Status

BUNDLES_MAX = 1000
_NOT_ASKED_FOR = frozenset({"object_store_memory"})


class Mirror:
    def __init__(self, rule_of: Callable[[Mapping[str, float]], Pass]) -> None:
        self._rule_of = rule_of
        self._told: Any = None

    def tell(self, status: Status) -> None:
        """Make the request fit what waits now. Does nothing where no autoscaler could launch a node."""
        waiting = [row for row in status.pending if self._any_node_would_do(row)]
        if not waiting and self._told is None:
            return
        if waiting and not self._has_node_types():
            return
        wanted = self._bundles(status, waiting) if waiting else None
        if wanted == self._told:
            return
        bundles, selectors = wanted or ([], [])
        request_resources(bundles=bundles, bundle_label_selectors=selectors)
        self._told = wanted

    def _any_node_would_do(self, row: PendingRow) -> bool:
        carries_pass = any(read_name(name) for name in row.resources)
        return carries_pass and self._rule_of(row.resources).selector == ANYWHERE

    def _has_node_types(self) -> bool:
        config = ray._private.state.state.get_cluster_config()
        return config is not None and any(group.max_count for group in config.node_group_configs)

    def _bundles(
        self, status: Status, waiting: list[PendingRow]
    ) -> tuple[list[dict[str, float]], list[dict[str, str]]]:
        """What is in use on each node, which Ray would otherwise take for free, and what waits."""
        bundles: list[dict[str, float]] = []
        for node in status.nodes.values():
            total, free = _asked(node.total), _asked(node.available)
            used = {name: round(total[name] - free.get(name, 0.0), 4) for name in total}
            bundles.append({name: amount for name, amount in used.items() if amount > 0})
        bundles = [bundle for bundle in bundles if bundle]
        selectors: list[dict[str, str]] = [{} for _ in bundles]
        for row in waiting:
            labels = {
                key: f"{'' if among else '!'}in({','.join(values)})"
                for key, among, values in row.labels
                if key != "ray.io/node-id"
            }
            for _ in range(min(row.count, BUNDLES_MAX - len(bundles))):
                bundles.append(_asked(row.resources))
                selectors.append(labels)
        return bundles, selectors


def _asked(amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in real_amounts(amounts).items() if name not in _NOT_ASKED_FOR}
