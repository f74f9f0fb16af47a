"""Pending work by kind: equal work once, with the number of pieces, how long they have been pending, and why.

Rule: everything comes from one snapshot, and the reasons are the engine's own. The id of a kind is made from the
requests of the work, its name and its owner, so it is the same in the next snapshot and in another process.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from stead.controller import NO_REASON
from stead.language.asks import Ask
from stead.operate.ordering import entry_name
from stead.operate.snapshot import Snapshot
from stead.operate.views import resources_of

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
            count = sum(member.id not in rows.placed for member in group.alternatives[0])
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
