"""Targets: work that other work must be near by its id, and which targets have ended.

Rule: an ended id is remembered only while known work (pending, placed, or member of a group) names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stead.engine.columns.sharing import Sheet, Shelf
from stead.language.asks import ASK_ID, Ask, AskId
from stead.language.labels import Selector

NO_IDS: frozenset[AskId] = frozenset()


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
    """The ids that the ask must be near. If its affinities are alternatives, no single id is required."""
    if len(ask.affinities) != 1:
        return NO_IDS
    named = [ids_named(affinity.selector) for affinity in ask.affinities[0] if affinity.near]
    return NO_IDS.union(*(ids for ids in named if ids))


class Targets:
    """Which work names which targets, and which targets have ended (also: were refused, or ended with their group)."""

    def __init__(self) -> None:
        self._ended: Sheet[AskId, None] = Sheet()
        self._names: Sheet[AskId, frozenset[AskId]] = Sheet()
        self._named_by: Shelf[AskId, AskId, None] = Shelf()

    def fork(self, lasting: bool = True) -> Targets:
        twin = Targets()
        twin._ended, twin._names = self._ended.fork(lasting), self._names.fork(lasting)
        twin._named_by = self._named_by.fork(lasting)
        return twin

    # -- checkpoints

    @property
    def names(self) -> Mapping[AskId, frozenset[AskId]]:
        """For each ask: the ids that it must be near."""
        return self._names.map

    @property
    def ended(self) -> Iterable[AskId]:
        return self._ended.map

    def restore(self, names: Iterable[tuple[AskId, frozenset[AskId]]], ended: Iterable[AskId]) -> None:
        for id, named in names:
            self._name(id, named)
        self._ended.write().update(dict.fromkeys(ended))

    # -- changes

    def have_all_ended(self, selector: Selector) -> bool:
        """Whether the selector names work by id only, and all of it has ended."""
        if not self._ended.map:
            return False
        ids = ids_named(selector)
        return ids is not None and ids != NO_IDS and ids <= self._ended.map.keys()

    def note_known(self, asks: Iterable[Ask]) -> list[AskId]:
        """Register asks and their targets. Returns the asks that were remembered as ended."""
        back = []
        for ask in asks:
            if ask.affinities or self._names.map:
                self._name(ask.id, targets_of(ask))
                if ask.id in self._ended.map:
                    del self._ended.write()[ask.id]
                    back.append(ask.id)
        return back

    def note_ended(self, id: AskId) -> bool:
        """The work has ended. Returns whether this changes anything for work that names it."""
        self._name(id, NO_IDS)
        if id not in self._named_by or id in self._ended.map:
            return False
        self._ended.write()[id] = None
        return True

    def _name(self, id: AskId, names: frozenset[AskId]) -> None:
        before = self._names.map.get(id, NO_IDS)
        if names == before:
            return
        for target in names - before:
            self._named_by.write(target)[id] = None
        for target in before - names:
            self._named_by.drop(target, id)
            if target in self._ended.map and target not in self._named_by:
                del self._ended.write()[target]
        if names:
            self._names.write()[id] = names
        else:
            del self._names.write()[id]
