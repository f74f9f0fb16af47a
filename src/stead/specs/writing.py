"""Writes an ask as an entry of a spec: the inverse of `documents`.

Rule: reading the entry gives an equal ask, or `Invalid` names the part that a spec cannot say. Defaults are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stead.errors import Invalid
from stead.language.arguments import effect_text
from stead.language.asks import Affinity, Ask, HostPort, PolicyName, Preference, Spread
from stead.language.labels import ANYWHERE, NODE_ID, Labels, Operator, Requirement, Selector
from stead.language.resources import UNIT, Resources, is_bytes, text
from stead.language.taints import TOLERATE_ALL, Toleration
from stead.specs.commands import Command

BYTES = (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))

Entry = dict[str, Any]


def entry_of(ask: Ask, command: Command | None = None) -> Entry:
    """The entry of one piece of work. Raises `Invalid` if a spec cannot say what the ask says."""
    first, *others = ask.choices
    entry: Entry = {"id": ask.id}
    if command is not None:
        entry |= _filled(run=command.written, image=command.image, env=dict(command.env))
    entry |= _filled(resources=_amounts(first.resources), **_selected(first.selector))
    entry |= _filled(
        tolerations=[_toleration(each) for each in ask.tolerations],
        labels=dict(ask.labels),
        namespace=ask.namespace,
        **_around(ask),
        spread=[_spread(each) for each in ask.spreads],
        prefers=[_preference(each) for each in ask.prefers],
        claims=list(ask.claims),
        ports=[_port(each) for each in ask.ports],
        estimates=_amounts(ask.estimates),
        priority=ask.priority,
        policy=None if ask.policy is PolicyName.HYBRID else ask.policy.value,
        deadline=ask.deadline,
        owner=ask.owner,
    )
    if not ask.preempts:
        entry["preempts"] = False
    if others:
        entry["fallback"] = [{"resources": _amounts(each.resources), **_selected(each.selector)} for each in others]
    if ask.pulls:
        raise Invalid("pulls: what a piece prefers of later work cannot be said in a spec; leave it out")
    if ask.images:
        raise Invalid("images: a spec has one image, of its command; leave them out")
    return entry


def _filled(**fields: Any) -> Entry:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value}


def _amounts(resources: Resources) -> Entry:
    return {name: _amount(name, amount) for name, amount in resources.items()}


def _amount(name: str, amount: int) -> int | str | float:
    whole, rest = divmod(amount, UNIT)
    if rest:
        return float(text(amount))
    for suffix, size in BYTES if is_bytes(name) else ():
        if whole % size == 0:
            return f"{whole // size}{suffix}"
    return whole


def _selected(selector: Selector) -> Entry:
    return {} if selector == ANYWHERE else {"selector": str(selector)}


def _toleration(toleration: Toleration) -> Entry | str:
    if toleration == TOLERATE_ALL:
        return "all"
    effect = None if toleration.effect is None else effect_text(toleration.effect)
    values = sorted(toleration.values)
    if toleration.seconds is None and toleration.key is not None and len(values) == (not toleration.complement):
        named = toleration.key if toleration.complement else f"{toleration.key}={values[0]}"
        return named if effect is None else f"{named}:{effect}"
    if not values and not toleration.complement:
        raise Invalid("tolerations: a toleration of no value covers no taint; leave it out")
    if values and toleration.key is None:
        raise Invalid("tolerations: a toleration of values without a key cannot be said in a spec; name the key")
    if toleration.seconds is not None and toleration.seconds < 0:
        raise Invalid(f"tolerations: {toleration.seconds:g} seconds cannot be said in a spec; the least is 0")
    operator = ("NotIn" if toleration.complement else "In") if values else "Exists"
    written = _filled(key=toleration.key, operator=operator, values=values, effect=effect)
    return written if toleration.seconds is None else {**written, "seconds": toleration.seconds}


def _around(ask: Ask) -> Entry:
    """What the ask says about other work."""
    if len(ask.affinities) > 1:
        raise Invalid("near and apart: alternatives cannot be said in a spec; one list must hold as a whole")
    found: dict[str, list[Entry]] = {"near": [], "apart": []}
    for affinity in ask.affinities[0] if ask.affinities else ():
        found["near" if affinity.near else "apart"].append(_others(affinity))
    return found


def _others(affinity: Affinity) -> Entry:
    if affinity.symmetric and affinity.near:
        raise Invalid("near: only apart can be symmetric")
    entry = _of_work(affinity.selector)
    if affinity.topologies != (NODE_ID,):
        entry["topology"] = affinity.topologies[0] if len(affinity.topologies) == 1 else list(affinity.topologies)
    if affinity.namespaces is not None:
        if "" in affinity.namespaces:
            raise Invalid("namespaces: the namespace without a name cannot be said in a spec; name them, such as blue")
        entry["namespaces"] = sorted(affinity.namespaces)
    return {**entry, "symmetric": True} if affinity.symmetric else entry


def _of_work(selector: Selector) -> Entry:
    equal = Labels(dict(_equal(selector)))
    if equal and Selector.all_of(*(Requirement.is_in(key, value) for key, value in equal.items())) == selector:
        return {"labels": dict(equal)}
    return {"selector": str(selector)}


def _equal(selector: Selector) -> Iterator[tuple[str, str]]:
    """The labels with exactly one value in a selector without alternatives."""
    for requirement in selector.terms[0] if len(selector.terms) == 1 else ():
        if requirement.operator is Operator.IN and len(requirement.values) == 1 and requirement.values != {""}:
            yield requirement.key, next(iter(requirement.values))


def _spread(spread: Spread) -> Entry:
    usual = Spread(spread.topology, spread.selector)
    names = ("max_skew", "min_domains", "by_selector", "by_taints", "needs_key")
    options = {name: getattr(spread, name) for name in names if getattr(spread, name) != getattr(usual, name)}
    return {"topology": spread.topology, **_of_work(spread.selector), **options}


def _preference(preference: Preference) -> Entry:
    want = preference.want
    if isinstance(want, Selector):
        entry: Entry = {"selector": str(want)}
    elif isinstance(want, Spread):
        entry = {"spread": _spread(want)}
    else:
        entry = {"near" if want.near else "apart": _others(want)}
    return entry if preference.weight == Preference(want).weight else {**entry, "weight": preference.weight}


def _port(port: HostPort) -> Entry | int:
    if port == HostPort(port.port):
        return port.port
    return {"port": port.port, **_filled(protocol=port.protocol if port.protocol != "TCP" else "", ip=port.ip)}
