"""Columns (properties of all nodes that rules read) and the log of their changes.

Rule: a reader of a log keeps a cursor and asks for the entries `since` that cursor. Old entries are dropped when there
are many; a reader that is too far behind gets None and computes everything again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T")


ColumnKind = Literal[
    "nodes",
    "draining",
    "taints",
    "reserved",
    "label",
    "free",
    "total",
    "work",
    "ask",
    "any-work",
    "keepers",
    "pulls",
    "port",
    "images",
    "claim",
    "claim-use",
    "volumes",
    "volume-limits",
]


class Column(NamedTuple):
    """One property of all nodes that a rule can read: the values of a label key, the free amount of a resource, or the
    location of the work that a selector matches. Or something that all nodes depend on, such as a claim."""

    kind: ColumnKind
    of: Hashable = ""


NODES = Column("nodes")
DRAINING = Column("draining")
TAINTS = Column("taints")
RESERVED = Column("reserved")
ANY_WORK = Column("any-work")
KEEPERS = Column("keepers")
"""Changes when a symmetric anti-affinity of placed work is added or removed."""
PULLS = Column("pulls")
"""Changes when work is placed or removed that prefers later work near it or apart from it."""
IMAGES = Column("images")


class ChangeLog(Generic[T]):
    """A list whose entries keep their numbers when older ones are dropped. `end` is the cursor after the last entry."""

    __slots__ = ("_dropped", "_entries", "add", "extend")

    def __init__(self) -> None:
        self._dropped = 0
        self._begin([])

    def _begin(self, entries: list[T]) -> None:
        self._entries = entries
        self.add, self.extend = entries.append, entries.extend  # called in the engine's innermost loops

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def end(self) -> int:
        return self._dropped + len(self._entries)

    def since(self, cursor: int) -> list[T] | None:
        """The entries from a cursor on; None if some of them were dropped."""
        return self._entries[cursor - self._dropped :] if cursor >= self._dropped else None

    def take(self) -> list[T]:
        """Return all entries and drop them; for a log with a single reader."""
        entries = self._entries
        if not entries:
            return []
        self._dropped += len(entries)
        self._begin([])
        return entries

    def keep_at_most(self, most: int) -> None:
        """Drop all entries if there are more than this."""
        if len(self._entries) > most:
            self.take()

    def fork(self) -> ChangeLog[T]:
        twin: ChangeLog[T] = ChangeLog.__new__(ChangeLog)
        twin._dropped = self._dropped
        twin._begin(self._entries.copy())
        return twin

    def replace(self, cursor: int, entries: Iterable[T]) -> None:
        """Replace the entries from a cursor on."""
        self._entries[cursor - self._dropped :] = entries
