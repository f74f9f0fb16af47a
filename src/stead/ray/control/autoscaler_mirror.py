"""Shows pending work to Ray's autoscaler in a form that it understands.

Rule: the planner decides what a new node could run; this module only passes that on, and nothing it creates holds
resources for good. Ray's autoscaler knows only the resources that node types declare, and passes are not among them. So
it considers work with a pass infeasible. The same demand is therefore requested without its pass, as a placement group
of one bundle that only an unknown node may hold. When a node joins, all these groups are removed before pending work is
counted again.

Groups are used instead of Ray's resource request. There is only one request per cluster, Ray Data writes it too, and
the autoscaler refuses all of it if one bundle exceeds its limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import ray
from ray.autoscaler.v2.utils import is_autoscaler_v2

from stead.engine.engine import Engine
from stead.language.asks import Ask
from stead.language.labels import RAY_NODE_ID
from stead.language.nodes import NodeTemplate
from stead.language.resources import UNIT, Resources
from stead.planner.wanting import wanting_a_node
from stead.ray.submit.native_selectors import as_ray_selector, words
from stead.ray.wire.own_names import WANTED
from stead.ray.wire.tables import handle

WANTED_MAX = 64
"""Maximum number of demands shown at once, shared among their kinds. The next ones follow when these have nodes."""

ANY_ROOM = (("CPU", 0.0001),)
"""The demand of work without amounts: a bundle cannot be empty."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one piece of pending work needs on a new node: amounts, and labels in Ray's syntax."""

    amounts: tuple[tuple[str, float], ...]
    labels: tuple[tuple[str, str], ...] = ()


class Demands(Protocol):
    """The demands that the autoscaler sees."""

    def add(self, wanted: Wanted, but: Iterable[str]) -> None:
        """Request one more node like this, other than these nodes."""

    def take_back(self, wanted: Wanted) -> None:
        """Request one less."""

    def standing(self) -> Counter[Wanted]: ...


class Mirror:
    def __init__(self, demands: Demands | None = None, has_autoscaler: Callable[[], bool] = is_autoscaler_v2) -> None:
        self._has_autoscaler = has_autoscaler
        self._demands: Demands = demands or WantedGroups()
        self._known: set[str] = set()
        self._launched = Counter[Wanted]()

    def launch(self, templates: Iterable[NodeTemplate]) -> None:
        """Request nodes like these. Replaces the previous request."""
        self._launched = Counter(
            Wanted(_amounts(each.capacity), tuple((key, words(True, [value])) for key, value in each.labels.items()))
            for each in templates
        )

    def update(
        self, nodes: Iterable[str], engine: Callable[[], Engine], pending: Iterable[tuple[Ask, int]] = ()
    ) -> None:
        """Update the demands to match what is pending now: in the engine, which knows what is in use, and of work that
        Ray places. Does nothing without an autoscaler."""
        nodes = set(nodes)
        joined, self._known = nodes - self._known, nodes
        standing = self._demands.standing()
        wanted = Counter[Wanted]()
        if not joined and self._has_autoscaler():
            wanted = self._wanted(engine(), pending) + self._launched
        # After a node joins, let it take pending work before more nodes are requested.
        for gone in (standing - wanted).elements():
            self._demands.take_back(gone)
        for missing in (wanted - standing).elements():
            self._demands.add(missing, sorted(self._known))

    def _wanted(self, engine: Engine, pending: Iterable[tuple[Ask, int]]) -> Counter[Wanted]:
        kinds = Counter[Wanted]()
        for ask, pieces in wanting_a_node(engine, pending):
            selectors = [as_ray_selector(choice.selector) for choice in ask.choices]
            for choice, labels in zip(ask.choices, selectors, strict=True):
                if labels is not None:
                    kinds[Wanted(_amounts(choice.resources), tuple(sorted(labels.items())))] += pieces
                    break
        share = max(1, WANTED_MAX // max(1, len(kinds)))
        return Counter({kind: min(left, share) for kind, left in list(kinds.items())[:WANTED_MAX]})


def _amounts(resources: Resources) -> tuple[tuple[str, float], ...]:
    return tuple((name, units / UNIT) for name, units in sorted(resources.items()) if units) or ANY_ROOM


class WantedGroups:
    """Demands as placement groups. They need no process, and are removed with the controller or by the next one."""

    def __init__(self) -> None:
        self._groups: list[tuple[Wanted, Any]] = []
        self._numbers = count()
        self._is_clean = False

    def add(self, wanted: Wanted, but: Iterable[str]) -> None:
        labels = {**dict(wanted.labels), RAY_NODE_ID: words(False, but)}
        group = ray.util.placement_group(
            [dict(wanted.amounts)], name=f"{WANTED}{next(self._numbers)}", bundle_label_selector=[labels]
        )
        self._groups.append((wanted, group))

    def take_back(self, wanted: Wanted) -> None:
        found = next(entry for entry in self._groups if entry[0] == wanted)
        self._groups.remove(found)
        ray.util.remove_placement_group(found[1])

    def standing(self) -> Counter[Wanted]:
        if not self._is_clean:
            self._remove_left_over()
            self._is_clean = True
        return Counter(wanted for wanted, _ in self._groups)

    def _remove_left_over(self) -> None:
        """Remove groups of an earlier controller that was killed."""
        for id, row in (ray.util.placement_group_table() or {}).items():
            if row["name"].startswith(WANTED) and row["state"] != "REMOVED":
                ray.util.remove_placement_group(handle(id))
