"""Targets: the work that other work must be near by its id, and which of it is over.

Rule: that an id is over is remembered only while work the engine knows (waiting, placed, or member of a
group) names it. The last that names it takes the memory along, and an id that nobody names leaves none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stead.asks import ASK_ID, Ask, AskId
from stead.engine.sharing import Sheet, Shelf
from stead.labelling import Selector

NOBODY: frozenset[AskId] = frozenset()


def ids_named(selector: Selector) -> frozenset[AskId] | None:
    """The ask ids that a selector over work names, if every term names some."""
    ids: set[str] = set()
    for term in selector.terms:
        named = [r.values for r in term if r.key == ASK_ID and not r.complement and not r.absent]
        if not named:
            return None
        ids |= named[0]
    return frozenset(ids)


def targets_of(ask: Ask) -> frozenset[AskId]:
    """The ids that the ask must be near. Where affinities are alternatives, no single id is a must."""
    if len(ask.affinities) != 1:
        return NOBODY
    named = [ids_named(affinity.selector) for affinity in ask.affinities[0] if affinity.near]
    return NOBODY.union(*(ids for ids in named if ids))


class Targets:
    """Who names whom, and who of them is over: ended, refused, or gone with its group."""

    def __init__(self) -> None:
        self._over: Sheet[AskId, None] = Sheet()
        self._names: Sheet[AskId, frozenset[AskId]] = Sheet()
        self._named_by: Shelf[AskId, AskId, None] = Shelf()

    def fork(self, lasting: bool = True) -> Targets:
        twin = Targets()
        twin._over, twin._names = self._over.fork(lasting), self._names.fork(lasting)
        twin._named_by = self._named_by.fork(lasting)
        return twin

    # -- to be kept and restored

    @property
    def names(self) -> Mapping[AskId, frozenset[AskId]]:
        """Who must be near whom, by id."""
        return self._names.map

    @property
    def over(self) -> Iterable[AskId]:
        return self._over.map

    def restore(self, names: Iterable[tuple[AskId, frozenset[AskId]]], over: Iterable[AskId]) -> None:
        for id, named in names:
            self._name(id, named)
        self._over.write().update(dict.fromkeys(over))

    # -- what happens

    def are_over(self, selector: Selector) -> bool:
        """Whether the selector names work by its id alone, and all of it is over."""
        if not self._over.map:
            return False
        ids = ids_named(selector)
        return ids is not None and ids != NOBODY and ids <= self._over.map.keys()

    def came(self, asks: Iterable[Ask]) -> list[AskId]:
        """The asks are known, with what they name. Those of them that had been over."""
        back = []
        for ask in asks:
            if ask.affinities or self._names.map:
                self._name(ask.id, targets_of(ask))
                if ask.id in self._over.map:
                    del self._over.write()[ask.id]
                    back.append(ask.id)
        return back

    def went(self, id: AskId) -> bool:
        """The work is over, and names nobody any more. Whether that is news to work that names it."""
        self._name(id, NOBODY)
        if id not in self._named_by or id in self._over.map:
            return False
        self._over.write()[id] = None
        return True

    def _name(self, id: AskId, names: frozenset[AskId]) -> None:
        before = self._names.map.get(id, NOBODY)
        if names == before:
            return
        for target in names - before:
            self._named_by.write(target)[id] = None
        for target in before - names:
            self._named_by.drop(target, id)
            if target in self._over.map and target not in self._named_by:
                del self._over.write()[target]
        if names:
            self._names.write()[id] = names
        else:
            del self._names.write()[id]
