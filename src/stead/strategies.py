"""The names in which the seeds and Ray say where work wants to be, and what they come to.

Rule: everything here compiles to the canonical types (`Wants`, `Toleration`) and decides nothing. Ray is
never imported; its own classes and handles are known by their shape. Spellings that the seeds use, slips
included, are accepted; a spelling that could mean two things is refused in one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, product
from math import prod
from typing import Any

from stead.arguments import parse_effect
from stead.asks import ASK_ID, Affinity, Preference, Spread
from stead.errors import Invalid
from stead.expressions import (
    ACTOR_ID,
    APART,
    LabelMatchExpression,
    LabelMatchOperator,
    as_list,
    checked_softness,
    label_does_not_exist,
    label_exist,
    label_exists,
    label_in,
    label_not_in,
)
from stead.labelling import ANYWHERE, NODE_ID, Labels, Requirement, Selector, check_key, check_value
from stead.selectors import TERMS_MAX, intersection, parse_label_condition, parse_selector, union
from stead.taints import Effect, Toleration

__all__ = [
    "ActorAffinitySchedulingStrategy",
    "DoesNotExist",
    "Exist",
    "Exists",
    "In",
    "LabelMatchExpression",
    "LabelMatchOperator",
    "NodeAffinity",
    "NodeAffinitySchedulingStrategy",
    "NotIn",
    "Wants",
    "actor_affinity",
    "affinity",
    "anti_affinity",
    "label_does_not_exist",
    "label_exist",
    "label_exists",
    "label_in",
    "label_not_in",
    "node_affinity",
    "node_labels",
    "spreads",
    "tolerations",
    "wants",
]


def affinity(handles: Any, is_soft: bool = False, weight: int | None = None) -> LabelMatchExpression:
    """For `actor_affinity`: where one of these actors is."""
    return LabelMatchExpression(ACTOR_ID, LabelMatchOperator.IN, _ids(handles), is_soft, weight=weight)


def anti_affinity(handles: Any, is_soft: bool = False, weight: int | None = None) -> LabelMatchExpression:
    """For `actor_affinity`: where none of these actors is."""
    return LabelMatchExpression(ACTOR_ID, LabelMatchOperator.NOT_IN, _ids(handles), is_soft, weight=weight)


def _ids(handles: Any) -> tuple[str, ...]:
    listed = tuple(handles) if isinstance(handles, list | tuple | set | frozenset) else (handles,)
    if not listed:
        raise Invalid("affinity needs at least one actor, for example affinity(actor), but has an empty list")
    return tuple(map(_id, listed))


def _id(handle: Any) -> str:
    identity = handle
    if not isinstance(handle, str | type):
        identity = getattr(handle, "_actor_id", None) or getattr(handle, "_ray_actor_id", None)
        if callable(turn := getattr(identity, "hex", None)):
            identity = turn()
    if not isinstance(identity, str) or not identity:
        raise Invalid(f"{handle!r} is no actor; give a handle or an actor id, for example affinity(Actor.remote())")
    return identity


@dataclass(frozen=True, slots=True)
class Wants:
    """What a scheduling strategy comes to: the parts of an `Ask` that say where."""

    selector: Selector = ANYWHERE
    affinities: tuple[tuple[Affinity, ...], ...] = ()
    prefers: tuple[Preference, ...] = ()


@dataclass(frozen=True, slots=True, init=False)
class NodeAffinitySchedulingStrategy:
    """Nodes by their labels: expressions that all hold (or one of them, with `is_or_semantics`), or a selector.

    Soft expressions are preferences, in either case. Ray's own form, ``(node_id=..., soft=...)``, is an
    expression on `node_id`.
    """

    match_expressions: tuple[LabelMatchExpression, ...]
    is_or_semantics: bool
    selector: Selector

    def __init__(
        self,
        match_expressions: Any = None,
        is_or_semantics: bool = False,
        *,
        node_id: Any = None,
        soft: bool | None = None,
        selector: Selector | None = None,
    ) -> None:
        if isinstance(match_expressions, str) and node_id is None:
            # Ray's positional form: the second argument is its `soft`.
            node_id, match_expressions = match_expressions, None
            soft, is_or_semantics = is_or_semantics if soft is None else soft, False
        if node_id is not None:
            if match_expressions is not None:
                raise Invalid("node affinity takes expressions or node_id=, not both; use label_in('node_id', [...])")
            match_expressions = label_in(NODE_ID, _node_id(node_id), checked_softness("node affinity", soft))
        elif soft is not None:
            raise Invalid("node affinity has soft= without node_id=; write is_soft=True on an expression instead")
        alone = selector is not None and match_expressions is None
        expressions = () if alone else _expressions("node_affinity", match_expressions or [])
        object.__setattr__(self, "match_expressions", expressions)
        object.__setattr__(self, "is_or_semantics", _checked_or("node_affinity", is_or_semantics))
        object.__setattr__(self, "selector", ANYWHERE if selector is None else selector)

    @property
    def wants(self) -> Wants:
        hard = [Selector.all_of(e.requirement) for e in self.match_expressions if not e.soft]
        soft = [Preference(Selector.all_of(e.requirement), e.weight) for e in self.match_expressions if e.soft]
        parts = [union(hard)] if self.is_or_semantics and hard else hard
        return Wants(intersection([self.selector, *parts]), prefers=tuple(soft))


def _node_id(node_id: Any) -> str:
    identity = node_id.hex() if callable(getattr(node_id, "hex", None)) else node_id
    if not isinstance(identity, str) or not identity or any(mark in identity for mark in " =[](){},!<>"):
        raise Invalid(
            f"node_id {node_id!r} is no node id such as 'node-1'; a selector goes to node_affinity, for example "
            f"node_affinity('gpu_type in [A100]')"
        )
    return identity


def node_affinity(expressions: Any, is_or_semantics: bool = False) -> NodeAffinitySchedulingStrategy:
    """Nodes whose labels satisfy an expression, a list of them, or a selector such as ``gpu_type in [A100]``."""
    if isinstance(expressions, str):
        return NodeAffinitySchedulingStrategy(is_or_semantics=is_or_semantics, selector=parse_selector(expressions))
    if isinstance(expressions, Selector):
        return NodeAffinitySchedulingStrategy(is_or_semantics=is_or_semantics, selector=expressions)
    return NodeAffinitySchedulingStrategy(expressions, is_or_semantics)


NodeAffinity = node_affinity


@dataclass(frozen=True, slots=True, init=False)
class ActorAffinitySchedulingStrategy:
    """Near or apart from other work, by its id or its labels, on the same node or in the same `topology`.

    IN, EXISTS, GT and LT mean near work that matches; NOT_IN and DOES_NOT_EXIST mean apart from work that
    matches IN and EXISTS. All expressions hold (or one of them, with `is_or_semantics`); soft ones are preferences.
    """

    match_expressions: tuple[LabelMatchExpression, ...]
    is_or_semantics: bool
    topology: tuple[str, ...]

    def __init__(
        self, match_expressions: Any, is_or_semantics: bool = False, topology: str | Iterable[str] | None = None
    ) -> None:
        if topology is not None and not isinstance(topology, str | list | tuple | set | frozenset):
            raise Invalid(f"topology must be a label key or several, for example 'zone', not {topology!r}")
        keys = (NODE_ID,) if topology is None else (topology,) if isinstance(topology, str) else tuple(topology)
        if not keys:
            raise Invalid("topology must name at least one label key, for example 'zone', but is empty")
        object.__setattr__(self, "match_expressions", _expressions("actor_affinity", match_expressions))
        object.__setattr__(self, "is_or_semantics", _checked_or("actor_affinity", is_or_semantics))
        object.__setattr__(self, "topology", tuple(check_key(key, "topology") for key in keys))

    @property
    def wants(self) -> Wants:
        hard = tuple(self._affinity(e) for e in self.match_expressions if not e.soft)
        soft = tuple(Preference(self._affinity(e), e.weight) for e in self.match_expressions if e.soft)
        alternatives = tuple((one,) for one in hard) if self.is_or_semantics else (hard,)
        return Wants(affinities=alternatives if hard else (), prefers=soft)

    def _affinity(self, expression: LabelMatchExpression) -> Affinity:
        apart = expression.operator in APART
        wanted = expression.requirement
        key = ASK_ID if wanted.key == ACTOR_ID else wanted.key
        meant = Requirement(
            key, wanted.values, wanted.complement != apart, absent=False, greater=wanted.greater, less=wanted.less
        )
        # An id names one piece of work wherever it lives; labels are looked up in the ask's own namespace.
        namespaces: frozenset[str] | None = frozenset() if key == ASK_ID else None
        return Affinity(Selector.all_of(meant), not apart, self.topology, namespaces)


def actor_affinity(
    expressions: Any, is_or_semantics: bool = False, topology: str | Iterable[str] | None = None
) -> ActorAffinitySchedulingStrategy:
    """Near or apart from other work: ``actor_affinity([affinity(a), label_not_in("app", ["web"])])``."""
    return ActorAffinitySchedulingStrategy(expressions, is_or_semantics, topology)


def _expressions(who: str, given: Any) -> tuple[LabelMatchExpression, ...]:
    """One expression or several, each an object or a tuple (key, operator, values, is_soft)."""
    single = isinstance(given, LabelMatchExpression) or (
        isinstance(given, tuple) and given and isinstance(given[0], str)
    )
    if not single and not isinstance(given, list | tuple):
        raise _no_expression(who, given)
    listed = [given] if single else list(given)
    if not listed:
        raise Invalid(f"{who} needs at least one expression, for example {_good(who)}")
    return tuple(_expression(who, one) for one in listed)


def _expression(who: str, given: Any) -> LabelMatchExpression:
    if isinstance(given, LabelMatchExpression):
        return given
    if isinstance(given, tuple) and 2 <= len(given) <= 4:
        return LabelMatchExpression(*given)
    raise _no_expression(who, given)


def _no_expression(who: str, given: object) -> Invalid:
    return Invalid(f"{given!r} is no expression for {who}; write for example {_good(who)}")


def _good(who: str) -> str:
    return "actor_affinity(affinity(actor))" if who == "actor_affinity" else "node_affinity(label_in('zone', ['a']))"


def _checked_or(who: str, is_or_semantics: object) -> bool:
    if not isinstance(is_or_semantics, bool):
        raise Invalid(
            f"{who} has is_or_semantics={is_or_semantics!r}, which must be True or False; several expressions go in a "
            f"list, for example {_good(who)}"
        )
    return is_or_semantics


def wants(strategy: Any) -> Wants:
    """What a strategy, or a list of strategies that all hold, comes to."""
    if strategy is None:
        return Wants()
    parts = [_wants_of(one) for one in (strategy if isinstance(strategy, list | tuple) else [strategy])]
    alternatives = [part.affinities for part in parts if part.affinities]
    if (count := prod(map(len, alternatives))) > TERMS_MAX:
        raise Invalid(
            f"the strategies come to {count} alternatives of affinities, but at most {TERMS_MAX} are allowed; use "
            f"is_or_semantics=True in fewer of them, for example in one"
        )
    affinities = tuple(tuple(dict.fromkeys(chain.from_iterable(ands))) for ands in product(*alternatives))
    return Wants(
        intersection(part.selector for part in parts),
        affinities if alternatives else (),
        tuple(chain.from_iterable(part.prefers for part in parts)),
    )


def _wants_of(strategy: Any) -> Wants:
    if isinstance(strategy, NodeAffinitySchedulingStrategy | ActorAffinitySchedulingStrategy):
        return strategy.wants
    if isinstance(strategy, Wants):
        return strategy
    # Ray's own classes, known by name so that Ray need not be imported.
    name = type(strategy).__name__
    if name == "NodeAffinitySchedulingStrategy":
        return NodeAffinitySchedulingStrategy(node_id=strategy.node_id, soft=strategy.soft).wants
    if name == "NodeLabelSchedulingStrategy":
        return node_labels(strategy.hard, strategy.soft)
    if isinstance(strategy, LabelMatchExpression):
        raise Invalid(
            "an expression alone does not say whose label it means; write node_affinity(...) or actor_affinity(...), "
            "for example node_affinity(label_in('zone', ['a']))"
        )
    raise Invalid(f"{strategy!r} is no strategy that stead knows; write for example {_good('node_affinity')}")


@dataclass(frozen=True, slots=True, init=False)
class _Match:
    """A condition on a value whose key stands beside it; `effect` and `seconds` are for tolerations alone."""

    values: tuple[str, ...]
    effect: Effect | None
    seconds: float | None

    def __init__(self, *values: Any, effect: Effect | str | None = None, seconds: float | None = None) -> None:
        name = type(self).__name__
        listed = tuple(values[0]) if len(values) == 1 and isinstance(values[0], list | tuple | set) else values
        if not listed and isinstance(self, In | NotIn):
            raise Invalid(f"{name}() needs at least one value, for example {name}('A100')")
        kind = None if effect is None else parse_effect(effect)
        if seconds is not None:
            _check_seconds(seconds, kind)
        object.__setattr__(self, "values", tuple(check_value(value, f"the value of {name},") for value in listed))
        object.__setattr__(self, "effect", kind)
        object.__setattr__(self, "seconds", None if seconds is None else float(seconds))


def _check_seconds(seconds: object, effect: Effect | None) -> None:
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not (math.isfinite(seconds) and seconds >= 0)
    ):
        raise Invalid(f"toleration seconds {seconds!r} must be a number from 0 up, for example 300")
    if effect not in (None, Effect.NO_EXECUTE):
        raise Invalid(f"toleration seconds {seconds!r} have no meaning under {effect}; use effect='no-execute'")


class In(_Match):
    """One of the values: ``In("A100", "P100")``."""

    __slots__ = ()


class NotIn(_Match):
    """None of the values."""

    __slots__ = ()


class Exists(_Match):
    """There, whatever the value."""

    __slots__ = ()

    def __init__(self, effect: Effect | str | None = None, seconds: float | None = None) -> None:
        super().__init__(effect=effect, seconds=seconds)


class DoesNotExist(_Match):
    """Absent."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()


Exist = Exists

_MATCHES = {
    "In": LabelMatchOperator.IN,
    "NotIn": LabelMatchOperator.NOT_IN,
    "Exists": LabelMatchOperator.EXISTS,
    "DoesNotExist": LabelMatchOperator.DOES_NOT_EXIST,
}


def _operator(match: object) -> LabelMatchOperator | None:
    """The operator of an `In(...)` and its like, stead's or Ray's own."""
    return _MATCHES.get(type(match).__name__)


def node_labels(hard: Any, soft: Any = None) -> Wants:
    """What Ray's ``NodeLabelSchedulingStrategy(hard, soft=)`` means: maps from key to In, NotIn, Exists, DoesNotExist,
    or a string for equal and ``!`` before it for not equal. All soft conditions together are one preference."""
    required, preferred = _label_conditions(hard), _label_conditions(soft)
    prefers = (Preference(Selector.all_of(*preferred)),) if preferred else ()
    return Wants(Selector.all_of(*required), prefers=prefers)


def _label_conditions(conditions: Any) -> list[Requirement]:
    if conditions is None:
        return []
    if isinstance(conditions, Mapping):
        return [_label_condition(key, match) for key, match in conditions.items()]
    if isinstance(conditions, str) or not isinstance(conditions, Iterable):
        raise Invalid(f"label conditions must be a map such as {{'zone': In('a')}}, not {conditions!r}")
    return [_label_condition(one.key, one.operator) for one in conditions]  # As Ray's own class keeps them.


def _label_condition(key: Any, match: Any) -> Requirement:
    check_key(key)
    if isinstance(match, str):
        return parse_label_condition(key, match)
    operator = _operator(match)
    if operator is None:
        raise Invalid(f"the condition {match!r} on label {key!r} is unknown; write for example {{{key!r}: In('a')}}")
    if getattr(match, "effect", None) or getattr(match, "seconds", None) is not None:
        raise Invalid(
            f"effect and seconds on label {key!r} belong to tolerations; write for example In('a') without them"
        )
    return LabelMatchExpression(key, operator, getattr(match, "values", None)).requirement


def tolerations(wanted: Any) -> tuple[Toleration, ...]:
    """The tolerations of ``tolerations={"gpu_node": Exists(), "gpu_type": In("A100")}``."""
    if wanted is None:
        return ()
    if not isinstance(wanted, Mapping):
        raise Invalid(f"tolerations must be a map such as {{'gpu_node': Exists()}}, not {wanted!r}")
    return tuple(_toleration(key, match) for key, match in wanted.items())


def _toleration(key: Any, match: Any) -> Toleration:
    check_key(key, "taint key")
    operator = _operator(match)
    if operator is None:
        raise Invalid(f"the toleration {match!r} of {key!r} is no expression; write for example {{{key!r}: Exists()}}")
    if operator is LabelMatchOperator.DOES_NOT_EXIST:
        raise Invalid(
            f"the toleration of {key!r} is DoesNotExist(), but a taint that does not exist needs none; write for "
            f"example {{{key!r}: Exists()}}"
        )
    values = [] if operator is LabelMatchOperator.EXISTS else as_list(key, getattr(match, "values", None))
    if not values and operator is not LabelMatchOperator.EXISTS:
        raise Invalid(f"the toleration of {key!r} has no values; write for example {{{key!r}: In('A100')}}")
    for value in values:
        check_value(value, f"the tolerated value of {key!r},")
    return Toleration(
        key,
        frozenset(values),
        operator is not LabelMatchOperator.IN,
        getattr(match, "effect", None),
        getattr(match, "seconds", None),
    )


def spreads(option: Any, labels: Labels) -> tuple[Spread, ...]:
    """The spreads of ``spread={"zone": 1}``: over the values of each key, work with all of these labels (the ask's own)
    is at most so much more numerous at one value than at another."""
    if option is None:
        return ()
    if not isinstance(option, Mapping):
        raise Invalid(f"spread must be a map from label key to greatest skew such as {{'zone': 1}}, not {option!r}")
    if option and not labels:
        raise Invalid(
            "spread counts work that has the same labels, but there are none; give for example labels={'app': 'web'}"
        )
    alike = Selector.all_of(*(Requirement.is_in(key, value) for key, value in labels.items()))
    return tuple(Spread(check_key(key, "spread key"), alike, _checked_skew(key, skew)) for key, skew in option.items())


def _checked_skew(key: str, skew: object) -> int:
    if isinstance(skew, bool) or not isinstance(skew, int) or skew < 1:
        raise Invalid(
            f"the skew of spread key {key!r} must be a whole number from 1 up, for example 1, but is {skew!r}"
        )
    return skew
