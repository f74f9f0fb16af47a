"""No-execute taints on Ray: when what runs under which name has to go, and the end of groups.

Rule: how long work may stay is the taints' word (`stay_under`). Tasks and actors leave by themselves, in their workers,
by what the page says and when the controller lets them; it costs neither a retry nor a restart. A placement group has
no process, so the controller takes it from its nodes, and with it what runs inside; then it is decided again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from stead.engine import Engine
from stead.node import Node
from stead.operate.views import TaintEnd
from stead.ray.book import Book
from stead.ray.groups import OWN_NAMES
from stead.ray.passes import FULL, Issued
from stead.ray.tables import Status, Tables
from stead.taints import Effect, stay_under

Due = Mapping[str, Mapping[str, tuple[float, float]]]
"""By node and by name of a pass: since when it is so, and how many seconds what holds the name may stay from then on,
or from its own start if that was later."""


class Evictions:
    """`placed_at` tells since when a group is where it is; `again` takes it away and lets it be decided once more."""

    def __init__(
        self, book: Book, tables: Tables, placed_at: Callable[[str], float], again: Callable[[str], None]
    ) -> None:
        self._book, self._tables, self._placed_at, self._again = book, tables, placed_at, again
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}

    def keep_rate(self, node: str, per_second: float) -> None:
        """Evict no more than so many pieces of work a second from this node; 0 is without a limit."""
        self._book.mark(f"evictions/{node}", f"{per_second:g}" if per_second else "")

    def admits_one(self, node: str) -> bool:
        """Whether the rate of the node allows another eviction now; if so, it is counted."""
        said = self._book.marked(f"evictions/{node}")
        with self._lock:
            now = time.monotonic()
            if said and self._next.get(node, 0.0) > now:
                return False
            self._next[node] = now + 1.0 / float(said) if said else now
            return True

    def due(
        self, engine: Engine, issued: Iterable[Issued], status: Status, allowed: Mapping[str, set[str]]
    ) -> dict[str, dict[str, tuple[float, float]]]:
        """What has to go. Where a pass is not allowed any more, only once Ray's tables show that it is withdrawn: what
        ended before that would come back."""
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
                        total = status.nodes[id].total if id in status.nodes else {}
                        is_allowed = id in allowed.get(each.rule.key, ())
                        for name in each.names:
                            if not is_allowed and total.get(name, 0.0) >= FULL:
                                continue
                            names[name] = min(names.get(name, (at, stay)), (at, stay), key=sum)
        return found

    def carry_out(self, due: Due, nodes: Mapping[str, Node]) -> None:
        """Groups that have a bundle where it may not be any more."""
        now = time.time()
        over = {node: {name for name, stay in names.items() if sum(stay) <= now} for node, names in due.items()}
        if not any(over.values()):
            return
        for name, group in self._tables.groups().items():
            if name.startswith(OWN_NAMES) or group["state"] != "CREATED":
                continue
            for index, node in group["bundles_to_node_id"].items():
                held = over.get(node, set()) & group["bundles"][index].keys()
                stay = min((due[node][each][1] for each in held), default=0.0)
                if held and self._placed_at(group["id"]) + stay <= now:
                    taints = [str(taint) for taint in nodes[node].taints if taint.effect is Effect.NO_EXECUTE]
                    text = f"decided again, because bundle {index} may not stay on node {node}: tainted "
                    self._book.add_event(now, "evicted", group["id"], text + ", ".join(taints))
                    self._again(group["id"])
                    break
