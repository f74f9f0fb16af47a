"""Edits to an ask or to the cluster, applied by hand, and all the edits that could be worth a try.

Rule: the meaning of each edit is implemented here again, for the oracle; the engine only says which edits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from stead.engine.explain.smallest_change import AddCapacity, AddLabel, Drop, Edit, FreeUp, Tolerate, Uncordon, Widen
from stead.engine.facts import NodeDrained, NodeLabelled, NodeResized
from stead.language.asks import Affinity, Ask, Choice, HostPort, Spread
from stead.language.labels import (
    ANYWHERE,
    NODE_ID,
    NODE_IP,
    NODE_NAME,
    RAY_NODE_ID,
    Labels,
    Operator,
    Requirement,
    Selector,
)
from stead.language.resources import Resources
from stead.language.taints import Effect, Taint, Toleration
from tests.oracle import DEVICES, UNIT, Oracle
from tests.oracle_language import tolerates

IDENTITY = (NODE_ID, NODE_IP, NODE_NAME, RAY_NODE_ID)


def edited(ask: Ask, oracle: Oracle, edits: Iterable[Edit]) -> tuple[Ask, Oracle]:
    """The ask and the cluster after the edits, in order; an edit with nothing left to change is ignored."""
    oracle = oracle.copy()
    for edit in edits:
        match edit:
            case Tolerate(taint):
                exactly = Toleration(taint.key, frozenset({taint.value}), complement=False, effect=taint.effect)
                ask = replace(ask, tolerations=(*ask.tolerations, exactly))
            case Widen(requirement, value):
                ask = _with_requirement(ask, requirement, widened(requirement, value))
            case Drop(what):
                ask = _without(ask, what)
            case AddLabel(node, key, value):
                assert key not in IDENTITY, f"{key} is the node's own"
                oracle.apply(NodeLabelled(node, Labels({key: value})))
            case Uncordon(node):
                oracle.apply(NodeDrained(node, draining=False))
            case AddCapacity(node, name, amount):
                capacity = oracle.places[node].node.capacity
                oracle.apply(NodeResized(node, capacity + Resources({name: amount})))
            case FreeUp(node, name, amount):
                _free_up(oracle, node, name, amount)
    return ask, oracle


def widened(requirement: Requirement, value: str) -> Requirement:
    if requirement.operator is Operator.IN:
        return replace(requirement, values=requirement.values | {value})
    assert requirement.operator is Operator.NOT_IN
    assert value in requirement.values
    return replace(requirement, values=requirement.values - {value})


def _with_requirement(ask: Ask, old: Requirement, new: Requirement | None) -> Ask:
    """The ask with one requirement of its node selectors replaced or removed, in all choices."""
    return replace(ask, choices=tuple(Choice(it.resources, _edited(it.selector, old, new)) for it in ask.choices))


def _edited(selector: Selector, old: Requirement, new: Requirement | None) -> Selector:
    kept = () if new is None else (new,)
    return Selector(
        tuple(tuple(it for each in term for it in (kept if each == old else (each,))) for term in selector.terms)
    )


def _without(ask: Ask, what: object) -> Ask:
    match what:
        case Requirement():
            return _with_requirement(ask, what, None)
        case Selector():
            return replace(
                ask,
                choices=tuple(
                    Choice(it.resources, ANYWHERE if it.selector == what else it.selector) for it in ask.choices
                ),
            )
        case Affinity():
            return replace(ask, affinities=tuple(tuple(it for it in every if it != what) for every in ask.affinities))
        case Spread():
            return replace(ask, spreads=tuple(it for it in ask.spreads if it != what))
        case HostPort():
            return replace(ask, ports=tuple(it for it in ask.ports if it != what))
        case _:
            return replace(ask, affinities=())


def _free_up(oracle: Oracle, node: str, name: str, amount: int) -> None:
    """Free this amount; of devices, on those with the most free already."""
    place = oracle.places[node]
    amount = min(amount, place.used.get(name, 0))
    place.used[name] = place.used.get(name, 0) - amount
    if name in DEVICES:
        free = place.devices(name)
        for index in sorted(range(len(free)), key=lambda index: -free[index]):
            given = min(amount, UNIT - free[index])
            amount -= given
            place.shares[name, index] = place.shares.get((name, index), 0) - given


def edits_worth_a_try(ask: Ask, oracle: Oracle) -> list[Edit]:
    """Every edit that could change the answer of a rule, each once."""
    every = (*_of_the_ask(ask, oracle), *_of_labels(ask, oracle), *_of_room(ask, oracle))
    return list(dict.fromkeys(every))


def _of_the_ask(ask: Ask, oracle: Oracle) -> Iterator[Edit]:
    taints: list[Taint] = [taint for place in oracle.places.values() for taint in place.node.taints]
    for taint in taints:
        if taint.effect is not Effect.PREFER_NO_SCHEDULE and not tolerates(ask.tolerations, taint):
            yield Tolerate(taint)
    for choice in ask.choices:
        terms = choice.selector.terms
        if len(terms) != 1:
            yield Drop(choice.selector)
        for requirement in (requirement for term in terms for requirement in term):
            yield Drop(requirement)
            if requirement.operator is Operator.NOT_IN:
                yield from (Widen(requirement, value) for value in sorted(requirement.values))
            if requirement.operator is Operator.IN:
                found = {place.labels.get(requirement.key) for place in oracle.places.values()}
                yield from (Widen(requirement, it) for it in found if it is not None and it not in requirement.values)
    yield from (Drop(affinity) for every in ask.affinities for affinity in every)
    yield from (Drop(spread) for spread in ask.spreads)
    yield from (Drop(port) for port in ask.ports)
    if len(ask.affinities) > 1:
        yield Drop(ask.affinities)


def _of_labels(ask: Ask, oracle: Oracle) -> Iterator[Edit]:
    """Labels that a node lacks and the ask refers to; existing labels are never changed."""
    values: dict[str, set[str]] = {}
    for choice in ask.choices:
        for requirement in (requirement for term in choice.selector.terms for requirement in term):
            bounds = (requirement.greater, requirement.less)
            near_bounds = {str(bound + step) for bound in bounds if bound is not None for step in (-1, 1)}
            values.setdefault(requirement.key, {"fresh"}).update(requirement.values | near_bounds)
    topologies = [key for every in ask.affinities for affinity in every for key in affinity.topologies]
    for key in (*topologies, *(spread.topology for spread in ask.spreads)):
        values.setdefault(key, {"fresh"})
    for key in values.keys() - set(IDENTITY):
        values[key] |= {place.labels[key] for place in oracle.places.values() if key in place.labels}
        for node, place in oracle.places.items():
            if key not in place.labels:
                yield from (AddLabel(node, key, value) for value in sorted(values[key]))


def _of_room(ask: Ask, oracle: Oracle) -> Iterator[Edit]:
    """Amounts that one resource of one choice lacks."""
    for id, place in oracle.places.items():
        if place.node.draining:
            yield Uncordon(id)
        for choice in ask.choices:
            for name, need in choice.resources.items():
                if place.ever_fits(name, need) and place.fits_now(name, need):
                    continue
                if name not in DEVICES:
                    yield AddCapacity(id, name, need - place.free(name))
                    missing = need - place.free(name)
                else:
                    free = sorted(place.devices(name), reverse=True)
                    whole = sum(each == UNIT for each in free)
                    yield AddCapacity(id, name, max(UNIT, need) - whole * UNIT)
                    count = max(1, need // UNIT)
                    missing = sum(max(0, min(need, UNIT) - each) for each in free[:count])
                if place.ever_fits(name, need) and missing <= place.used.get(name, 0):
                    yield FreeUp(id, name, missing)
