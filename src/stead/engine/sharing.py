"""Tables that a fork shares until somebody writes.

Rule: reading never copies, forking never copies, and the first write after a fork copies only the
table written to. Values inside a table are immutable (or are tables themselves), so sharing is safe.
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

    def __init__(self, map: dict[K, V] | None = None, owned: bool = True) -> None:
        self.map: dict[K, V] = {} if map is None else map
        self._owned = owned

    def write(self) -> dict[K, V]:
        """The dict, this fork's own, to be changed at once (never kept)."""
        if not self._owned:
            self.map = self.map.copy()
            self._owned = True
        return self.map

    def fork(self, lasting: bool = True) -> Sheet[K, V]:
        """A twin. One that does not last (it is gone before this one is written to again) costs this one nothing."""
        self._owned = self._owned and not lasting
        return Sheet(self.map, owned=False)


class Shelf(Generic[K, K2, V]):
    """A dict of dicts shared between forks, each inner dict on its own. Empty inner dicts are not kept."""

    __slots__ = ("_inner_owned", "_outer_owned", "map")

    def __init__(self, map: dict[K, dict[K2, V]] | None = None, owned: bool = True) -> None:
        self.map: dict[K, dict[K2, V]] = {} if map is None else map
        self._outer_owned = owned
        self._inner_owned: set[K] = set()

    def read(self, key: K) -> Mapping[K2, V]:
        return self.map.get(key, _NONE)  # type: ignore[arg-type]  # one empty dict serves all types

    def write(self, key: K) -> dict[K2, V]:
        """The inner dict of `key`, this fork's own, made if it is not there."""
        if key in self._inner_owned:
            return self.map[key]
        self._own()
        inner = dict(self.map.get(key, ()))
        self.map[key] = inner
        self._inner_owned.add(key)
        return inner

    def drop(self, key: K, inner_key: K2) -> None:
        """Remove one entry, and the inner dict when it was the last."""
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
        """A twin, as of a Sheet."""
        if lasting:
            self._outer_owned = False
            self._inner_owned = set()
        return Shelf(self.map, owned=False)
