"""The smallest change that would make an ask fit.

Rule: a change is a set of edits, and fewer edits are smaller. Among equal numbers of edits, `_ORDER` decides (the
cheapest kinds of edit first), then the number of nodes that would take the ask. Every change offered was tested on a
fork. The search is bounded, so on a large cluster it may miss a smaller change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np

from stead.engine.board import Board
from stead.engine.explain.verdicts import all_and_once
from stead.engine.fleet import Nodes, rows_of
from stead.engine.reasons import (
    Draining,
    LacksLabel,
    NeverFits,
    NoAlternativeHolds,
    NoTermMatches,
    NotNear,
    PortTaken,
    Reason,
    ShortOf,
    Skewed,
    Tainted,
    TargetDead,
    TooNear,
)
from stead.engine.shapes import Demand
from stead.engine.work import meant_by
from stead.language.asks import Affinity, Ask, Choice, HostPort, Spread
from stead.language.labels import ANYWHERE, IDENTITY_KEYS, Operator, Requirement, Selector
from stead.language.nodes import NodeId
from stead.language.resources import Resources
from stead.language.taints import Taint, Toleration

SIGNATURES_MAX = 512
SIGNATURES_TRIED_MAX = 24
VALUES_TRIED_MAX = 8
ROWS_COMPARED_MAX = 1000
ROWS_TRIED_MAX = 3

Promise = tuple[int, list[int]]
"""(number of edits, their positions in `_ORDER`): the first parts of a change's size."""


@dataclass(frozen=True, slots=True)
class Tolerate:
    """The ask tolerates this taint."""

    taint: Taint


@dataclass(frozen=True, slots=True)
class Widen:
    """The requirement accepts one more value."""

    requirement: Requirement
    value: str


Wish = Requirement | Selector | Affinity | Spread | HostPort | tuple[tuple[Affinity, ...], ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """The ask drops a requirement, a selector, an affinity (or all alternative affinities), a spread or a port."""

    what: Wish
    """What it drops."""


@dataclass(frozen=True, slots=True)
class FreeUp:
    """`amount` units of a resource become free on the node."""

    node: NodeId
    resource: str
    amount: int
    """The amount, in units."""


@dataclass(frozen=True, slots=True)
class AddCapacity:
    """The node gets `amount` more units of a resource, free to use."""

    node: NodeId
    resource: str
    amount: int
    """The amount, in units."""


@dataclass(frozen=True, slots=True)
class AddLabel:
    """The node gets a label that it lacks and that the ask refers to. Existing labels are never changed: a node does
    not move to another zone to suit an ask."""

    node: NodeId
    key: str
    """The key of the label."""
    value: str
    """Its value."""


@dataclass(frozen=True, slots=True)
class Uncordon:
    """The node takes new work again."""

    node: NodeId


Edit = Tolerate | Widen | Drop | FreeUp | AddCapacity | AddLabel | Uncordon
_ORDER: tuple[type, ...] = (Tolerate, Widen, FreeUp, Drop, AddCapacity, AddLabel, Uncordon)


@dataclass(frozen=True, slots=True)
class Change:
    """Edits that together make the ask fit; `nodes` is the number of nodes that would then take it."""

    edits: tuple[Edit, ...]
    """What to change."""
    nodes: int
    choice: int = 0
    """The index of the choice that would then fit."""

    @property
    def size(self) -> tuple[int, list[int], int]:
        """How large it is, to compare changes by."""
        return len(self.edits), sorted(_ORDER.index(type(edit)) for edit in self.edits), -self.nodes


def smallest_change(board: Board, ask: Ask, refused: Sequence[Sequence[tuple[Reason, Nodes]]]) -> Change | None:
    """The smallest change for an ask that fits no node; `refused` are the refused sets of each choice."""
    best: Change | None = None
    for index, sets in enumerate(refused):
        found = _ChangeSearch(board, ask, index, sets).run()
        if found is not None and (best is None or found.size < best.size):
            best = found
    return best


Signature = tuple[Promise, tuple[Reason, ...], Nodes]
"""(lower bound on the change, obstacles, nodes with exactly these obstacles)"""


def _most_promising(signature: Signature) -> tuple[Promise, int, int]:
    promise, _, nodes = signature
    return promise, -nodes.bit_count(), nodes & -nodes


class _ChangeSearch:
    """The search for one choice of one ask. Nodes with the same obstacles (a *signature*) are handled together."""

    def __init__(self, board: Board, ask: Ask, index: int, sets: Sequence[tuple[Reason, Nodes]]) -> None:
        self.board, self.ask, self.index, self.sets = board, ask, index, sets
        self.demand: Demand = board.shape_of(ask).demands[index]

    def run(self) -> Change | None:
        return self._best_of(self._with_one_obstacle()) or self._best_of(self._signatures())

    def _best_of(self, signatures: Sequence[Signature]) -> Change | None:
        best: Change | None = None
        for promise, reasons, nodes in signatures[:SIGNATURES_TRIED_MAX]:
            if best is not None and promise > best.size[:2]:
                break
            for edits in self._proposals(reasons, nodes, promise[0]):
                change = self._verified(edits)
                if change is not None and (best is None or change.size < best.size):
                    best = change
        return best

    def _with_one_obstacle(self) -> list[Signature]:
        """Signatures with one obstacle, the most promising first. Empty if one edit might remove several obstacles,
        because then larger signatures may need as few edits. A fast path: most changes are found here."""
        others = [reason for reason, _ in self.sets if type(reason) is not Tainted]
        keys = [key for reason in others for key in _label_keys(reason)]
        if len(set(keys)) < len(keys) or any(isinstance(reason, Skewed) for reason in others):
            return []
        once, promises, found = all_and_once(self.sets)[1], dict[type, Promise](), list[Signature]()
        for reason, nodes in self.sets:
            alone = nodes & once
            if alone and type(reason) in _CURABLE:
                if type(reason) not in promises:
                    promises[type(reason)] = self._promise((reason,))
                found.append((promises[type(reason)], (reason,), alone))
        return sorted(found, key=_most_promising)

    def _signatures(self) -> list[Signature]:
        """All signatures, the most promising first."""
        found: list[Signature] = []
        kinds = [(type(reason), _label_keys(reason)) for reason, _ in self.sets]
        curable = [type(reason) in _CURABLE for reason, _ in self.sets]
        promises: dict[tuple[object, ...], Promise] = {}
        for obstacles, group in self._with_the_same_obstacles():
            if not obstacles or not all(map(curable.__getitem__, obstacles)):
                continue
            reasons = tuple([self.sets[number][0] for number in obstacles])
            kind = tuple([kinds[number] for number in obstacles])
            if kind not in promises:
                promises[kind] = self._promise(reasons)
            found.append((promises[kind], reasons, group))
        return sorted(found, key=_most_promising)

    def _with_the_same_obstacles(self) -> list[tuple[tuple[int, ...], Nodes]]:
        """All nodes, grouped by their obstacles (indexes of `sets`). A small set visits only the groups of its nodes,
        because there can be as many reasons as nodes."""
        groups: list[tuple[tuple[int, ...], Nodes]] = [((), self.board.fleet.alive)]
        group_of: dict[int, int] = {}  # by row; 0 if missing
        for index, (_, refused) in enumerate(self.sets):
            few = rows_of(refused) if refused.bit_count() < len(groups) else None
            for number in range(len(groups)) if few is None else {group_of.get(row, 0) for row in few}:
                obstacles, nodes = groups[number]
                both = nodes & refused
                if both == nodes:
                    groups[number] = (*obstacles, index), nodes
                elif both:
                    groups[number] = obstacles, nodes ^ both
                    for row in rows_of(both):
                        group_of[row] = len(groups)
                    groups.append(((*obstacles, index), both))
        if len(groups) > SIGNATURES_MAX:  # the fewest obstacles are the most promising
            groups.sort(key=lambda group: (len(group[0]), -group[1].bit_count(), group[1] & -group[1]))
        return groups[:SIGNATURES_MAX]

    def _promise(self, reasons: tuple[Reason, ...]) -> Promise:
        """A lower bound on the size of a change that removes these obstacles."""
        fewest = self._fewest(reasons)
        if fewest < len(set(reasons)):
            return fewest, []
        return fewest, sorted(_ORDER.index(_CURABLE[type(reason)]) for reason in set(reasons))

    def _fewest(self, reasons: tuple[Reason, ...]) -> int:
        """The minimum number of edits: one per obstacle, but one label on the node may remove several obstacles, and a
        changed selector may fix a spread."""
        distinct = dict.fromkeys(reasons)
        keys = Counter(key for reason in distinct for key in _label_keys(reason))
        skewed = sum(isinstance(reason, Skewed) for reason in distinct)
        return max(1, len(distinct) - skewed - sum(count - 1 for count in keys.values()))

    def _proposals(self, reasons: tuple[Reason, ...], nodes: Nodes, fewest: int) -> Iterator[list[Edit]]:
        row = self._representative(reasons, nodes)
        edits = [self._cure(reason, row) for reason in reasons]
        yield edits
        if fewest < len(set(reasons)) or any(isinstance(reason, Skewed) for reason in reasons):
            yield [e for e, r in zip(edits, reasons, strict=True) if not isinstance(r, Skewed)]
            for each in dict.fromkeys(
                (row, *self._rows_with_company(reasons, nodes), *rows_of(nodes)[:ROWS_TRIED_MAX])
            ):
                yield from self._by_labels(reasons, each)

    def _rows_with_company(self, reasons: tuple[Reason, ...], nodes: Nodes) -> list[int]:
        """Nodes that run the work it must be near but lack the topology key: adding the label would be enough."""
        found = 0
        for reason in reasons:
            if isinstance(reason, NotNear):
                affinity = reason.affinity
                found |= self.board.work.nodes(meant_by(affinity.selector, affinity.namespaces, self.ask.namespace))
        return rows_of(nodes & found)[:ROWS_TRIED_MAX]

    def _representative(self, reasons: tuple[Reason, ...], nodes: Nodes) -> int:
        """The node with the smallest shortage, or with the most common labels among these nodes."""
        fleet = self.board.fleet
        rows = rows_of(nodes)
        short = [reason for reason in reasons if isinstance(reason, ShortOf | NeverFits)]
        if short:
            where = np.array(rows)
            lacking = np.zeros(len(rows), np.int64)
            for reason in short:
                amount = fleet.amount(reason.resource)
                have = amount.fitting_total if isinstance(reason, NeverFits) else amount.fitting
                lacking += np.maximum(reason.need - have(reason.need)[where], 0)
            rows = where[lacking == lacking.min()].tolist()
        rows = rows[:ROWS_COMPARED_MAX]
        keys = [r.requirement.key for r in reasons if isinstance(r, LacksLabel)]
        if keys and len(rows) > 1:
            values = [tuple(fleet.nodes.map[row].label(key) or "" for key in keys) for row in rows]
            carried = [all(value) for value in values]
            tally = Counter(values)
            return min(zip(rows, values, carried, strict=True), key=lambda f: (not f[2], -tally[f[1]], f[1], f[0]))[0]
        return rows[0]

    def _cure(self, reason: Reason, row: int) -> Edit:
        """An edit that removes one obstacle of one node."""
        fleet = self.board.fleet
        node = fleet.nodes.map[row]
        match reason:
            case Tainted(taint):
                return Tolerate(taint)
            case LacksLabel(requirement):
                value = node.label(requirement.key)
                if value is not None and requirement.operator in (Operator.IN, Operator.NOT_IN):
                    return Widen(requirement, value)
                return Drop(requirement)
            case NoTermMatches(selector):
                return Drop(selector)
            case NotNear(affinity) | TargetDead(affinity) | TooNear(affinity):
                return Drop(affinity)
            case NoAlternativeHolds(affinities):
                return Drop(affinities)
            case Skewed(spread):
                return Drop(spread)
            case PortTaken(port):
                return Drop(port)
            case ShortOf(resource, need):
                return FreeUp(node.id, resource, fleet.amount(resource).lacking(row, need))
            case NeverFits(resource, need):
                return AddCapacity(node.id, resource, fleet.amount(resource).lacking_total(row, need))
        return Uncordon(node.id)

    def _by_labels(self, reasons: tuple[Reason, ...], row: int) -> Iterator[list[Edit]]:
        """Add labels that the node lacks, then remove the remaining obstacles: one label may remove every obstacle that
        refers to its key."""
        node = self.board.fleet.nodes.map[row]
        spoken_of = sorted({key for reason in reasons for key in _label_keys(reason)} - IDENTITY_KEYS)
        keys = [key for key in spoken_of if node.label(key) is None]
        for chosen in (c for size in range(1, min(len(keys), 2) + 1) for c in combinations(keys, size)):
            for values in product(*(self._values_worth_trying(key) for key in chosen)):
                added = [AddLabel(node.id, key, value) for key, value in zip(chosen, values, strict=True)]
                yield [*self._cures_after(added, row), *added]

    def _cures_after(self, added: Sequence[Edit], row: int) -> list[Edit]:
        """One edit for each obstacle that remains on a node after some edits."""
        board = self.board.fork()
        for edit in added:
            self._made(board, self.ask, edit)
        left = []
        for rule in board.shape_of(self.ask).demands[self.index].rules.in_blame_order():
            left += [reason for reason, nodes in rule.refusals(board.world) if nodes >> row & 1]
        return [self._cure(reason, row) for reason in left if type(reason) in _CURABLE]

    def _values_worth_trying(self, key: str) -> list[str]:
        """Values that requirements on the key list, that nodes have, or that are next to a bound; values that satisfy
        most requirements first."""
        terms = self.demand.selector.terms
        requirements = [r for term in terms for r in term if r.key == key]
        values: dict[str, None] = {}
        for requirement in requirements:
            values.update(dict.fromkeys(sorted(requirement.values)))
            if requirement.greater is not None:
                values[str(requirement.greater + 1)] = None
            if requirement.less is not None:
                values[str(requirement.less - 1)] = None
        values.update(dict.fromkeys(sorted(self.board.fleet.domains(key))))
        values["any"] = None
        by_how_many = {value: sum(requirement.accepts(value) for requirement in requirements) for value in values}
        return sorted(values, key=lambda value: -by_how_many[value])[:VALUES_TRIED_MAX]

    def _verified(self, edits: list[Edit]) -> Change | None:
        """The change, if it works on a fork."""
        board = self.board.fork()
        ask = self.ask
        for edit in dict.fromkeys(edits):
            ask = self._made(board, ask, edit)
        for demand in board.shape_of(ask).demands:
            nodes = board.standing(demand).candidates().bit_count()
            if nodes:
                return Change(tuple(dict.fromkeys(edits)), nodes, demand.index)
        return None

    def _made(self, board: Board, ask: Ask, edit: Edit) -> Ask:
        """Make one edit, on the fork or in the returned ask."""
        match edit:
            case Tolerate() | Widen() | Drop():
                return loosened(ask, edit)
            case FreeUp(node, resource, _):
                need = dict(self.demand.needs)[resource]
                board.fleet.free_up(board.fleet.rows.map[node], resource, need)
            case AddCapacity(node, resource, amount):
                row = board.fleet.rows.map[node]
                capacity = board.fleet.nodes.map[row].capacity
                board.fleet.set_capacity(row, Resources({**capacity, resource: capacity.get(resource) + amount}))
            case AddLabel(node, key, value):
                row = board.fleet.rows.map[node]
                board.fleet.set_labels(row, board.fleet.nodes.map[row].labels.changed({key: value}))
            case Uncordon(node):
                board.fleet.set_draining(board.fleet.rows.map[node], False)
        return ask


_CURABLE: dict[type, type] = {
    Tainted: Tolerate,
    LacksLabel: Widen,
    ShortOf: FreeUp,
    NoTermMatches: Drop,
    NotNear: Drop,
    TargetDead: Drop,
    TooNear: Drop,
    NoAlternativeHolds: Drop,
    Skewed: Drop,
    PortTaken: Drop,
    NeverFits: AddCapacity,
    Draining: Uncordon,
}
"""Obstacles that an edit can remove, with the cheapest kind of edit."""


def _label_keys(reason: Reason) -> frozenset[str]:
    """The node label keys that the obstacle refers to: a new label on the node might remove it."""
    match reason:
        case LacksLabel(requirement):
            return frozenset({requirement.key})
        case NoTermMatches(selector):
            return selector.keys
        case NotNear(affinity) | TooNear(affinity):
            return frozenset(affinity.topologies)
        case NoAlternativeHolds(affinities):
            return frozenset(key for term in affinities for affinity in term for key in affinity.topologies)
        case Skewed(spread):
            return frozenset({spread.topology})
    return frozenset()


def loosened(ask: Ask, edit: Edit) -> Ask:
    """The ask after an edit: with one more toleration, one requirement widened or one condition dropped, in all
    choices. An edit of a node leaves the ask unchanged."""
    if isinstance(edit, Tolerate):
        taint = edit.taint
        covering = Toleration(taint.key, frozenset({taint.value}), complement=False, effect=taint.effect)
        return replace(ask, tolerations=(*ask.tolerations, covering))
    if isinstance(edit, Widen):
        old = edit.requirement
        values = old.values - {edit.value} if old.complement else old.values | {edit.value}
        return _with_requirement(ask, old, (replace(old, values=values),))
    if not isinstance(edit, Drop):
        return ask
    what = edit.what
    if isinstance(what, Requirement):
        return _with_requirement(ask, what, ())
    if isinstance(what, Selector):
        choices = tuple(Choice(c.resources, ANYWHERE if c.selector == what else c.selector) for c in ask.choices)
        return replace(ask, choices=choices)
    if isinstance(what, Spread):
        return replace(ask, spreads=tuple(spread for spread in ask.spreads if spread != what))
    if isinstance(what, HostPort):
        return replace(ask, ports=tuple(port for port in ask.ports if port != what))
    if isinstance(what, Affinity):
        return replace(ask, affinities=tuple(tuple(a for a in term if a != what) for term in ask.affinities))
    return replace(ask, affinities=())


def _with_requirement(ask: Ask, old: Requirement, new: tuple[Requirement, ...]) -> Ask:
    choices = []
    for choice in ask.choices:
        terms = tuple(
            tuple(r for each in term for r in (new if each == old else (each,))) for term in choice.selector.terms
        )
        choices.append(Choice(choice.resources, Selector(terms)))
    return replace(ask, choices=tuple(choices))
