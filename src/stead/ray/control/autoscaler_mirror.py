"""Shows pending work to Ray's autoscaler in a form that it understands.

Rule: the planner decides, and nothing that this module creates holds resources for good. Ray's autoscaler knows only
the resources and labels that node types declare: no passes, no taints, no affinities.

If the node types are known, the planner chooses how many nodes of which type pending work needs. Each of these nodes is
requested by a demand that only a new node of its type satisfies. Otherwise, the demand of pending work is requested
without its pass, and Ray chooses the type.

Each request is a placement group of one bundle that only an unknown node may hold. When a node joins, all of them are
removed before pending work is counted again. Groups are used instead of Ray's resource request. There is only one
request per cluster, Ray Data writes it too, and the autoscaler refuses all of it if one bundle exceeds its limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Protocol

import ray
from ray.autoscaler.v2.utils import is_autoscaler_v2

from stead.engine.engine import Engine
from stead.language.asks import Ask
from stead.language.labels import RAY_NODE_ID
from stead.language.resources import UNIT, Resources
from stead.planner.wanting import wanting_a_node
from stead.ray.control.launch_plans import LaunchPlans
from stead.ray.control.node_types import ANY_ROOM, NodeTypes, Wanted
from stead.ray.submit.native_selectors import as_ray_selector, words
from stead.ray.wire.own_names import WANTED
from stead.ray.wire.tables import Status, handle

WANTED_MAX = 64
"""Maximum number of demands shown at once, shared among their kinds. The next ones follow when these have nodes."""

BEING_PLACED = ("SCHEDULING_STARTED", "FAILED_TO_COMMIT_RESOURCES")
"""Ray's words for a group that it is placing now."""


class Demands(Protocol):
    """The demands that the autoscaler sees."""

    def add(self, wanted: Wanted, but: Iterable[str]) -> None:
        """Request one more node like this, other than these nodes."""

    def take_back(self, wanted: Wanted) -> None:
        """Request one less."""

    def standing(self) -> Counter[Wanted]: ...


class Mirror:
    """
    Args:
        demands: Where to request nodes.
        has_autoscaler: Whether the cluster has an autoscaler that understands the requests.
        types: The node types of the cluster; None if they are not known.
        plans: Chooses among them.
    """

    def __init__(
        self,
        demands: Demands | None = None,
        has_autoscaler: Callable[[], bool] = is_autoscaler_v2,
        types: NodeTypes | None = None,
        plans: LaunchPlans | None = None,
    ) -> None:
        self._has_autoscaler, self.types = has_autoscaler, types
        self._demands: Demands = demands or WantedGroups()
        self.plans = plans or LaunchPlans()
        self._known: set[str] = set()

    def clear(self) -> None:
        """Request nothing."""
        for gone in self._demands.standing().elements():
            self._demands.take_back(gone)

    def update(self, status: Status, engine: Engine, pending: Iterable[tuple[Ask, int]] = ()) -> None:
        """Update the demands to match what is pending now: in the engine, which knows what is in use, and of work that
        Ray places. Does nothing without an autoscaler."""
        nodes = set(engine.nodes)
        joined, self._known = nodes - self._known, nodes
        standing = self._demands.standing()
        wanted = Counter[Wanted]()
        if not joined and self._has_autoscaler():
            if self.types is None:
                wanted = self._wanted(engine, pending)
            else:
                wanted = self._of_types(self.types, engine, pending, status, standing)
        # After a node joins, let it take pending work before more nodes are requested. Until the engine knows it, the
        # demand that it meets stands.
        for gone in (standing - wanted).elements():
            self._demands.take_back(gone)
        for missing in (wanted - standing).elements():
            self._demands.add(missing, sorted(self._known))

    def _of_types(
        self,
        types: NodeTypes,
        engine: Engine,
        pending: Iterable[tuple[Ask, int]],
        status: Status,
        standing: Counter[Wanted],
    ) -> Counter[Wanted]:
        """The demands for the nodes that the planner chooses."""
        requested = {kind: standing[wanted] for kind, wanted in types.demands.items()}
        counts = self.plans.wanted(types, engine, pending, status, requested)
        return _shared(Counter({types.demands[kind]: count for kind, count in counts.items()}))

    @staticmethod
    def _wanted(engine: Engine, pending: Iterable[tuple[Ask, int]]) -> Counter[Wanted]:
        """The demands of the work itself."""
        kinds = Counter[Wanted]()
        for ask, pieces in wanting_a_node(engine, pending):
            selectors = [as_ray_selector(choice.selector) for choice in ask.choices]
            for choice, labels in zip(ask.choices, selectors, strict=True):
                if labels is not None:
                    kinds[Wanted(_amounts(choice.resources), tuple(sorted(labels.items())))] += pieces
                    break
        return _shared(kinds)


def _shared(kinds: Counter[Wanted]) -> Counter[Wanted]:
    """As many of each as fit into the maximum."""
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
        """A group that Ray is placing stays until the next time: it may lose resources of one that is removed then."""
        mine = [entry for entry in self._groups if entry[0] == wanted]
        found = next((entry for entry in reversed(mine) if not _is_being_placed(entry[1])), None)
        if found is not None:
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


def _is_being_placed(group: Any) -> bool:
    row = ray.util.placement_group_table(group) or {"state": "REMOVED", "stats": {}}
    return row["state"] == "PREPARED" or (
        row["state"] in ("PENDING", "RESCHEDULING") and row["stats"].get("scheduling_state") in BEING_PLACED
    )
