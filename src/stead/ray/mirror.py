"""Telling Ray's autoscaler what waits, in words it knows.

Rule: only demands that a new node could serve are told, and nothing told ever takes a place for good. Ray's autoscaler
knows the resources that node types declare, and passes are none of them, so it takes all work that carries one for
hopeless. The same demand without its pass is therefore asked for once more, as a placement group of one bundle that
only a node not known yet may hold. When a node has joined, all such groups are gone before what waits is counted anew.

Groups, and not Ray's resource request: there is one request for the whole cluster, which Ray Data writes too, and the
autoscaler refuses all of it as soon as one bundle is more than it may launch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import ray
from ray.autoscaler.v2.utils import is_autoscaler_v2

from stead.asks import Ask
from stead.ray.cluster import real_amounts
from stead.ray.compile import Pass
from stead.ray.native import NODE_ID, in_rays_words, words
from stead.ray.page import read_name
from stead.ray.tables import NodeRow, PendingRow, Status, handle
from stead.resources import UNIT

WANTED_MAX = 64
"""So many pieces of work are told at once, shared among their kinds; the next ones when these have their nodes."""

ANY_ROOM = (("CPU", 0.0001),)
"""What work that holds nothing needs of a new node: a bundle cannot be empty."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one piece of waiting work needs of a new node: amounts, and labels in Ray's own words."""

    amounts: tuple[tuple[str, float], ...]
    labels: tuple[tuple[str, str], ...] = ()


class Told(Protocol):
    """What the autoscaler has been told."""

    def add(self, wanted: Wanted, but: Iterable[str]) -> None:
        """Ask for one more, on any node but these."""

    def take_back(self, wanted: Wanted) -> None:
        """Ask for one less."""

    def standing(self) -> Counter[Wanted]: ...


class Mirror:
    def __init__(
        self,
        rule_of: Callable[[Mapping[str, float]], Pass],
        told: Told | None = None,
        is_listened_to: Callable[[], bool] = is_autoscaler_v2,
    ) -> None:
        self._rule_of, self._is_listened_to = rule_of, is_listened_to
        self._told: Told = told or WantedGroups()
        self._known: set[str] = set()

    def tell(self, status: Status, singly: Iterable[Ask] = ()) -> None:
        """Make what is told fit what waits now; `singly` is what Ray does not list in a form that can be read. Does
        nothing where no autoscaler listens."""
        joined, self._known = status.nodes.keys() - self._known, set(status.nodes)
        # A node that has just joined is to take what waits first, before more nodes are asked for.
        wanted = Counter[Wanted]() if joined else self._wanted(status, singly)
        standing = self._told.standing()
        for gone in (standing - wanted).elements():
            self._told.take_back(gone)
        if wanted and self._is_listened_to():
            for missing in (wanted - standing).elements():
                self._told.add(missing, sorted(self._known))

    def _wanted(self, status: Status, singly: Iterable[Ask]) -> Counter[Wanted]:
        """What waits, could run on a new node and does not fit what is free now."""
        free = [(node, dict(node.available)) for node in status.nodes.values() if not node.draining]
        kinds = Counter[Wanted]()
        for row in status.pending:
            kind = self._kind(row)
            left = row.count
            for node, amounts in free if kind else ():
                while left and kind and _takes(node, amounts, row, kind):
                    left -= 1
                    for name, amount in row.resources.items():
                        amounts[name] -= amount
            if kind and left:
                kinds[kind] += left
        for ask in singly:
            choice = ask.choices[0]
            said = in_rays_words(choice.selector)
            if said is not None:
                needs = tuple((name, units / UNIT) for name, units in sorted(choice.resources.items()) if units)
                kinds[Wanted(needs or ANY_ROOM, tuple(sorted(said.items())))] += 1
        share = max(1, WANTED_MAX // max(1, len(kinds)))
        return Counter({kind: min(left, share) for kind, left in list(kinds.items())[:WANTED_MAX]})

    def _kind(self, row: PendingRow) -> Wanted | None:
        """The row without its pass; None where there is none, or its rules are more than Ray can say."""
        if not any(read_name(name) for name in row.resources):
            return None
        ruled = in_rays_words(self._rule_of(row.resources).selector)
        if ruled is None:
            return None
        # Node ids are how preferred nodes are told to Ray, and no new node is among them.
        native = {key: words(among, values) for key, among, values in row.labels if key != NODE_ID}
        if any(native.get(key, said) != said for key, said in ruled.items()):
            return None
        amounts = {name: amount for name, amount in real_amounts(row.resources).items() if amount}
        return Wanted(tuple(sorted(amounts.items())) or ANY_ROOM, tuple(sorted({**native, **ruled}.items())))


def _takes(node: NodeRow, free: Mapping[str, float], row: PendingRow, kind: Wanted) -> bool:
    """Whether a node has room for a piece of work, its pass included; Ray has only not looked again yet."""
    fits = all(free.get(name, 0.0) >= amount for name, amount in row.resources.items())
    native = {key for key, _, _ in row.labels} & {key for key, _ in kind.labels}
    return fits and all((node.labels.get(key) in values) == among for key, among, values in row.labels if key in native)


class WantedGroups:
    """Demands as placement groups: no process, and gone with the controller, or with the one after it."""

    NAME = "stead-wanted"

    def __init__(self) -> None:
        self._groups: list[tuple[Wanted, Any]] = []
        self._numbers = count()
        self._is_clean = False

    def add(self, wanted: Wanted, but: Iterable[str]) -> None:
        labels = {**dict(wanted.labels), NODE_ID: words(False, but)}
        group = ray.util.placement_group(
            [dict(wanted.amounts)], name=f"{self.NAME}/{next(self._numbers)}", bundle_label_selector=[labels]
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
        """Of a controller before this one, that was killed."""
        for id, row in (ray.util.placement_group_table() or {}).items():
            if row["name"].startswith(f"{self.NAME}/") and row["state"] != "REMOVED":
                ray.util.remove_placement_group(handle(id))
