"""No-execute taints on Ray: when what runs under which name has to go, and the end of groups.

Rule: how long work may stay is the taints' word (`stay_under`). Tasks and actors end themselves, in their workers, by
what the page says; a placement group has no process, so the controller removes it, and with it what runs inside.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import ray
from ray.util.placement_group import PlacementGroup

from stead.engine import Engine
from stead.ray.book import Book, TaintEnd
from stead.ray.passes import GroupPlugs, Issued
from stead.ray.tables import Tables
from stead.taints import Effect, stay_under

Due = Mapping[str, Mapping[str, tuple[float, float]]]
"""By node and by name of a pass: since when it is so, and how many seconds what holds the name may stay from then on,
or from its own start if that was later."""


class Evictions:
    def __init__(self, book: Book, tables: Tables) -> None:
        self._book, self._tables = book, tables

    def due(self, engine: Engine, issued: Iterable[Issued]) -> dict[str, dict[str, tuple[float, float]]]:
        since = {(end.node, end.key, end.effect): end.since for end in self._book.taint_ends()}
        passes = list(issued)
        found: dict[str, dict[str, tuple[float, float]]] = {}
        for id, node in engine.nodes.items():
            for taint in node.taints:
                if taint.effect is not Effect.NO_EXECUTE:
                    continue
                at = since.get((id, taint.key, taint.effect))
                if at is None:  # the node came with it
                    at = time.time()
                    self._book.keep_taint(TaintEnd(id, taint.key, taint.effect, at))
                for each in passes:
                    stay = stay_under(taint, each.rule.tolerations)
                    if stay is not None:
                        names = found.setdefault(id, {})
                        for name in each.names:
                            names[name] = min(names.get(name, (at, stay)), (at, stay), key=sum)
        return found

    def carry_out(self, due: Due) -> None:
        """Remove the groups that have a bundle where it may not be any more."""
        now = time.time()
        over = {node: {name for name, stay in names.items() if sum(stay) <= now} for node, names in due.items()}
        if not any(over.values()):
            return
        for name, group in self._tables.groups().items():
            if name.startswith(GroupPlugs.NAME) or group["state"] != "CREATED":
                continue
            for index, node in group["bundles_to_node_id"].items():
                held = over.get(node, set()) & group["bundles"][index].keys()
                if held:
                    ray.util.remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(group["id"])))
                    text = f"removed, because a no-execute taint on node {node} does not let its bundle {index} stay"
                    self._book.add_event(now, "evicted", group["id"], text)
                    break
