"""Answers submitting processes: which nodes would accept work that they are about to submit.

Rule: the engine decides which nodes accept the work. Nothing changes, except whose turn it is among equal bundles.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from stead.engine.engine import Engine
from stead.engine.facts import AskRunning
from stead.language.asks import Ask, Choice
from stead.language.labels import Requirement, Selector
from stead.language.resources import Resources
from stead.language.selectors import intersection
from stead.ray.control.bundles import Bundles
from stead.ray.control.cluster import real_amounts
from stead.ray.control.passes import Passes
from stead.ray.control.ticketed_work import named_by
from stead.ray.submit.compile import Pass, Wish
from stead.ray.submit.messages import NOWHERE
from stead.ray.wire.node_page import SYNC_S
from stead.ray.wire.own_names import read_name
from stead.ray.wire.tables import Tables


def nodes_allowed(engine: Engine, rule: Pass) -> set[str]:
    """The nodes on which a pass is granted: those that would accept an ask without amounts under its rules."""
    return set(engine.candidates(Ask("pass", (Choice(selector=rule.selector),), rule.tolerations))[0])


class Admission:
    """`fork` knows what all work uses now; `settle` waits for a whole round."""

    def __init__(
        self,
        lock: threading.RLock,
        engine: Engine,
        tables: Tables,
        passes: Passes,
        fork: Callable[[], Engine],
        settle: Callable[[], object],
    ) -> None:
        self._lock, self._engine, self._tables, self._passes = lock, engine, tables, passes
        self._fork, self._settle, self._bundles = fork, settle, Bundles()

    def bundle_for(self, ask: Ask, group: str, nodes: Mapping[int, str], wanted: int) -> int | None:
        """The bundle of a group in which to run an ask, by the nodes of the bundles. -1 is any of them; None if no
        bundle is on a node that would accept the ask. `wanted` is the only bundle to consider, unless it is -1."""
        with self._lock:
            tiers = self._tiers(ask)
            alike = [
                [index for index in sorted(nodes) if nodes[index] in tier and wanted in (-1, index)] for tier in tiers
            ]
            if sum(map(len, alike)) == len(nodes):
                return -1
            best = next(filter(None, alike), None)
            return None if best is None else self._bundles.choose(group, best)

    def _tiers(self, ask: Ask) -> tuple[tuple[str, ...], ...]:
        """The nodes that would accept an ask now, the most preferred first; nodes in one tier are equally good."""
        engine = self._engine.fork()
        for id in named_by(ask) - engine.placed.keys():
            row = self._tables.actor(id)
            if row is not None and row.state == "ALIVE":
                engine.apply(AskRunning(Ask(id, NOWHERE), row.node_id))
        return engine.tiers(ask)

    def refuses(self, wish: Wish, node: str) -> str:
        """Why a node refuses work with these rules; "" if it accepts it."""
        with self._lock:
            if node not in self._engine.nodes or node in nodes_allowed(self._engine, wish.admits):
                return ""
            pinned = Selector.all_of(Requirement.is_in("node_id", node))
            selector = intersection([wish.admits.selector, pinned])
            return str(self._engine.explain(Ask.of("pinned", selector=selector, tolerations=wish.admits.tolerations)))

    def pin(self, wish: Wish, node: str) -> tuple[str, float]:
        """Like `refuses`; and how many seconds to wait until every raylet knows that the node has the pass."""
        reason = self.refuses(wish, node)
        if reason or not self._passes.are_granted:
            return reason, 0.0
        if self._passes.usable_since(node, wish.admits.key) is None:
            self._settle()  # wait for a whole round, because the pass or the node is new
        since = self._passes.usable_since(node, wish.admits.key)
        return "", SYNC_S if since is None else max(0.0, since + SYNC_S - time.monotonic())

    def has_room(self, name: str, amounts: Mapping[str, float], node: str) -> bool:
        """Whether another node accepts work under the pass of this name, and has these amounts free."""
        found = read_name(name)
        issued = self._passes.issued.get(found[0]) if found else None
        if issued is None:
            return False
        choice = Choice(Resources.of(real_amounts(amounts)), issued.rule.selector)
        return any(id != node for id in self._fork().candidates(Ask("room", (choice,), issued.rule.tolerations))[0])
