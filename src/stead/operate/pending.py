"""Pending work by kind: equal work once, with the number of pieces, how long they have been pending, and why.

Rule: only this module decides which pending work is equal: `Pending` in a snapshot, `alike` in a list that a desk
returned. The reasons are the engine's own. The id of a `Kind` is made from the requests of the work, its name and its
owner, so it is the same in the next snapshot and in another process.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stead.controller import NO_REASON
from stead.language.asks import Ask
from stead.operate.ordering import entry_name
from stead.operate.snapshot import PAGE_MAX, Query, Snapshot
from stead.operate.views import GroupView, Page, WorkView, resources_of

if TYPE_CHECKING:
    from stead.operate.desk import Desk

EXPLAINED_MAX = 50
NOT_EXAMINED = "not-examined"
"""The code for the rest, when pending work has more than `EXPLAINED_MAX` different requests."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Work, or groups, that are equal for the scheduler."""

    id: str
    example: str  # the id of one piece, or of one group
    name: str
    owner: str
    count: int  # pieces of work; for groups, their members
    since: float | None  # when the oldest piece became pending, if known


class Pending:
    """The pending work of a snapshot. For pieces that cannot be distinguished, the oldest age counts for all."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._engine, self._rows, self.at = snapshot.engine, snapshot.rows, snapshot.at
        self._wants: dict[int, str] = {}
        self._ages: list[tuple[float | None, int]] = []
        self._alike: dict[str, tuple[str, int]] = {}  # by request: the id of one, and the number of pieces
        found: dict[str, Kind] = {}
        for id in self._rows.in_line:
            one = self._kind(id)
            self._ages.append((one.since, one.count))
            example, count = self._alike.get(self._asked(id), (id, 0))
            self._alike[self._asked(id)] = (example, count + one.count)
            known = found.get(one.id)
            found[one.id] = one if known is None else _together(known, one)
        self.kinds = tuple(found.values())

    def _kind(self, id: str) -> Kind:
        """The kind of one piece or group, alone."""
        rows, known, count = self._rows, self._rows.of(id), self._rows.of(id).count
        if id in rows.waiting_groups:
            group = rows.groups[id]
            owner = known.owner or group.owner
            count = len(rows.missing(id))
        else:
            owner = rows.owner(id)
        name = known.name or entry_name(id)
        text = f"{name}\0{owner}\0{self._asked(id)}"
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
        return Kind(digest, id, name, rows.owner_name(owner) or owner, count, known.since)

    def _asked(self, id: str) -> str:
        """Its request, as text that is the same for equal work in every process."""
        shape = self._rows.shape(id)
        if shape not in self._wants:
            item = self._engine.item(id)
            members = (item,) if isinstance(item, Ask) else item.alternatives[0]
            texts = [self._rows.requested(member) for member in members]
            parts = [resources_of(item), [each.rules for each in texts], [each.labels for each in texts]]
            self._wants[shape] = json.dumps(parts, sort_keys=True)
        return self._wants[shape]

    def longer_than(self, seconds: float) -> int:
        """The number of pieces that have been pending for longer; those of unknown age count only for 0."""
        if seconds <= 0:
            return sum(count for _, count in self._ages)
        return sum(count for since, count in self._ages if since is not None and self.at - since > seconds)

    @property
    def oldest_s(self) -> float:
        """How long the oldest piece has been pending."""
        return max([0.0, *(self.at - since for since, _ in self._ages if since is not None)])

    @cached_property
    def by_reason(self) -> Mapping[str, int]:
        """Pieces by the codes of the reasons why nodes refuse them. A piece with several reasons counts for each of
        them; a piece that no node refuses counts as `other`."""
        found = Counter[str]()
        most_first = sorted(self._alike.values(), key=lambda each: -each[1])
        for example, count in most_first[:EXPLAINED_MAX]:
            causes = self._engine.explain(example).causes
            found.update(dict.fromkeys({reason.code for _, reason in causes} or {NO_REASON}, count))
        if rest := sum(count for _, count in most_first[EXPLAINED_MAX:]):
            found[NOT_EXAMINED] = rest
        return dict(sorted(found.items()))


def _together(some: Kind, more: Kind) -> Kind:
    known = [since for since in (some.since, more.since) if since is not None]
    return replace(some, count=some.count + more.count, since=min(known, default=None))


# -- from a list


@dataclass(frozen=True, slots=True)
class Alike:
    """Pending work that is equal for the scheduler, or equal groups. `ids` are of work, or of groups."""

    ids: Sequence[str]
    names: Sequence[str]
    count: int  # pieces of work, or groups
    first: WorkView
    oldest: float | None
    members: int = 0  # in each group

    @property
    def id(self) -> str:
        """The id to ask about: one of them stands for all."""
        return self.ids[0]

    @property
    def pieces(self) -> int:
        return self.count * (self.members or 1)


def pending_alike(desk: Desk) -> tuple[Page[WorkView], list[Alike]]:
    """The pending work, up to a maximum, and the same by kind: the first in the queue comes first."""
    waiting = ("state=waiting",)
    page = desk.work(Query(waiting, limit=PAGE_MAX))
    groups = desk.groups(Query(waiting, limit=PAGE_MAX)).items if any(each.group for each in page.items) else ()
    return page, _alike(page.items, {group.id: group for group in groups})


def _alike(items: Iterable[WorkView], groups: Mapping[str, GroupView]) -> list[Alike]:
    """Pending work by its request, in the order in which the first piece of each is tried."""
    members: dict[str, list[WorkView]] = {}
    for each in items:
        members.setdefault(each.group or f"\0{each.id}", []).append(each)  # no group has such an id
    shapes: dict[Any, list[list[WorkView]]] = {}
    for same in members.values():
        one = same[0]
        group = groups.get(one.group)
        strategy = (group.strategy, group.owner) if group else ()
        key = (bool(one.group), strategy, one.namespace, one.owner, tuple(_wants(each) for each in same))
        shapes.setdefault(key, []).append(same)
    return [_of_groups(found, groups) if found[0][0].group else _of_work(found) for found in shapes.values()]


def _wants(each: WorkView) -> tuple[Any, ...]:
    return tuple(sorted(each.resources.items())), each.rules, tuple(sorted(each.labels.items()))


def _of_work(found: Sequence[Sequence[WorkView]]) -> Alike:
    same = [each for (each,) in found]
    names = [each.name or each.id for each in same]
    count = sum(each.count for each in same)
    return Alike([each.id for each in same], names, count, same[0], _oldest(each.since for each in same))


def _of_groups(found: Sequence[Sequence[WorkView]], groups: Mapping[str, GroupView]) -> Alike:
    ids = [members[0].group for members in found]
    views = [groups[id] for id in ids if id in groups]
    names = [groups[id].name or id if id in groups else id for id in ids]
    first = found[0][0]
    if views:
        owner, owner_name = first.owner or views[0].owner, first.owner_name or views[0].owner_name
        first = replace(first, owner=owner, owner_name=owner_name)
    moments = [each.since for members in found for each in members] + [view.since for view in views]
    return Alike(ids, names, len(ids), first, _oldest(moments), members=len(found[0]))


def _oldest(moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)
