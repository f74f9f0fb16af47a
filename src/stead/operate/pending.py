"""Pending work by kind: equal work once, with how many pieces there are, how long they have waited, and why.

Rule: all of it comes from one snapshot, and the reasons are the engine's own. The id of a kind is made of what the work
asks for, its name and its owner, so that it is the same in the next snapshot and in another process.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from stead.asks import Ask
from stead.controller import NO_REASON
from stead.operate.snapshot import Snapshot
from stead.operate.views import resources_of

EXPLAINED_MAX = 50
NOT_EXAMINED = "not-examined"
"""The code for the rest, where pending work asks for more than `EXPLAINED_MAX` different things."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Work that is equal in all that matters, or equal groups."""

    id: str
    example: str  # the id of one piece, or of one group
    name: str
    owner: str
    count: int  # pieces of work; of groups, their members
    since: float | None  # of the piece that waits longest, where that is known


class Pending:
    """The pending work of a snapshot. Of several pieces that nobody can tell apart, the oldest age counts for all."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._engine, self._rows, self.at = snapshot.engine, snapshot.rows, snapshot.at
        self._wants: dict[int, str] = {}
        self._ages: list[tuple[float | None, int]] = []
        self._alike: dict[str, tuple[str, int]] = {}  # by what they ask for: the id of one, and how many pieces
        found: dict[str, Kind] = {}
        hidden = self._rows.hidden
        for id in self._rows.in_line:
            if id not in hidden:
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
            count = sum(member.id not in rows.placed for member in group.alternatives[0])
        else:
            owner = rows.owner(id)
        name = known.name or _stem(id)
        text = f"{name}\0{owner}\0{self._asked(id)}"
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
        return Kind(digest, id, name, rows.owner_name(owner) or owner, count, known.since)

    def _asked(self, id: str) -> str:
        """What it asks for, as text: equal for equal work in every process."""
        shape = self._rows.shape(id)
        if shape not in self._wants:
            item = self._engine.item(id)
            members = (item,) if isinstance(item, Ask) else item.alternatives[0]
            said = [self._rows.said(member) for member in members]
            parts = [resources_of(item), [each.rules for each in said], [each.labels for each in said]]
            self._wants[shape] = json.dumps(parts, sort_keys=True)
        return self._wants[shape]

    def longer_than(self, seconds: float) -> int:
        """How many pieces have been pending for longer; those of unknown age count only for 0."""
        if seconds <= 0:
            return sum(count for _, count in self._ages)
        return sum(count for since, count in self._ages if since is not None and self.at - since > seconds)

    @property
    def oldest_s(self) -> float:
        """How long the oldest piece has waited."""
        return max([0.0, *(self.at - since for since, _ in self._ages if since is not None)])

    @cached_property
    def by_reason(self) -> Mapping[str, int]:
        """Pieces by the codes of the reasons for which nodes refuse them. A piece that is refused for several reasons
        counts for each of them; one that no single node refuses counts as `other`."""
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


def _stem(id: str) -> str:
    """What numbered copies have in common: ``web`` for ``web-12``."""
    head, dash, tail = id.rpartition("-")
    return head if dash and head and tail.isdecimal() else id
