"""Copy-on-write tables, which forks share until one of them writes.

Rule: reading and forking never copy. The first write after a fork copies only the table (of a `Shelf`: the outer dict
and one inner dict). Values are immutable or tables themselves, so sharing is safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
K2 = TypeVar("K2")
V = TypeVar("V")

_NONE: dict[object, object] = {}


class Sheet(Generic[K, V]):
    """A dict shared between forks. Read through `map`, write through `write()`."""

    __slots__ = ("_owned", "map")

    def __init__(self, map: Mapping[K, V] | None = None) -> None:
        self.map: Mapping[K, V] = {} if map is None else map
        self._owned = True

    def write(self) -> dict[K, V]:
        """This fork's own dict. Change it at once and do not keep it."""
        if not self._owned:
            self.map = dict(self.map)
            self._owned = True
        return self.map  # type: ignore[return-value]  # a dict, which others see as a mapping

    def fork(self, lasting: bool = True) -> Sheet[K, V]:
        """A fork. With `lasting=False` the caller must drop it before this table is written to again; then this table
        needs no copy."""
        self._owned = self._owned and not lasting
        twin: Sheet[K, V] = Sheet.__new__(Sheet)  # every fork of an engine forks dozens of tables
        twin.map, twin._owned = self.map, False
        return twin


class Shelf(Generic[K, K2, V]):
    """A dict of dicts shared between forks; inner dicts are copied one at a time. Empty inner dicts are removed."""

    __slots__ = ("_inner_owned", "_outer_owned", "map")

    def __init__(self) -> None:
        self.map: dict[K, dict[K2, V]] = {}
        self._outer_owned = True
        self._inner_owned: set[K] = set()

    def read(self, key: K) -> Mapping[K2, V]:
        return self.map.get(key, _NONE)  # type: ignore[arg-type]  # one empty dict serves all types

    def write(self, key: K) -> dict[K2, V]:
        """This fork's own inner dict of `key`, created if missing."""
        if key in self._inner_owned:
            return self.map[key]
        self._own()
        inner = dict(self.map.get(key, ()))
        self.map[key] = inner
        self._inner_owned.add(key)
        return inner

    def drop(self, key: K, inner_key: K2) -> None:
        """Remove one entry, and the inner dict if it is now empty."""
        inner = self.write(key)
        inner.pop(inner_key, None)
        if not inner:
            del self.map[key]
            self._inner_owned.discard(key)

    def clear(self, key: K) -> None:
        if key in self.map:
            self._own()
            del self.map[key]
            self._inner_owned.discard(key)

    def _own(self) -> None:
        if not self._outer_owned:
            self.map = self.map.copy()
            self._outer_owned = True

    def __iter__(self) -> Iterator[K]:
        return iter(self.map)

    def __contains__(self, key: object) -> bool:
        return key in self.map

    def fork(self, lasting: bool = True) -> Shelf[K, K2, V]:
        """A fork, as in `Sheet.fork`."""
        if lasting:
            self._outer_owned = False
            self._inner_owned = set()
        twin: Shelf[K, K2, V] = Shelf.__new__(Shelf)
        twin.map, twin._outer_owned, twin._inner_owned = self.map, False, set()
        return twin
