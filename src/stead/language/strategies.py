"""Scheduling strategies with the names of Ray and of the node-affinity, actor-affinity and taints proposals for Ray.

Rule: everything here compiles to the canonical types (`Wants`, `Toleration`, `Spread`) and decides nothing. Ray is
never imported; its classes and handles are recognised by name and attributes. All spellings in the proposals are
accepted, typos included; an ambiguous one is refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import prod
from typing import Any, Protocol, TypeAlias

from stead.errors import Invalid
from stead.language.asks import ASK_ID, Affinity, Preference, Spread
from stead.language.expressions import (
    ACTOR_ID,
    APART,
    DoesNotExist,
    Exist,
    Exists,
    In,
    LabelMatchExpression,
    LabelMatchOperator,
    NotIn,
    as_list,
    checked_softness,
    label_does_not_exist,
    label_exist,
    label_exists,
    label_in,
    label_not_in,
)
from stead.language.labels import ANYWHERE, NODE_ID, Labels, Requirement, Selector, check_key, check_value
from stead.language.selectors import TERMS_MAX, intersection, parse_label_condition, parse_selector, union
from stead.language.taints import Toleration

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


class HasActorId(Protocol):
    """A handle of an actor, recognised by its attributes so that Ray need not be imported."""

    @property
    def _actor_id(self) -> object: ...


class HasHex(Protocol):
    """An id from Ray, or bytes: ``id.hex()`` is its text."""

    def hex(self) -> str:
        """The id as text."""


Actor: TypeAlias = str | HasActorId | type
"""An actor: its handle or its id. Type checkers see `type` too, because Ray's ``ActorProxy[T]`` may be one."""

Expression: TypeAlias = LabelMatchExpression | tuple[object, ...]
"""An expression, or the tuple (key, operator, values, is_soft)."""


def affinity(
    handles: Actor | Iterable[Actor], is_soft: bool = False, weight: int | None = None
) -> LabelMatchExpression:
    """Near one of these actors.

    Args:
        handles: The handle or the id of an actor, or several.
        is_soft: Whether it is a preference: other nodes score lower, but are not refused.
        weight: How much a soft expression counts, from 1 to 100; 100 if not given.

    Returns:
        The expression, for `actor_affinity`.

    Raises:
        Invalid: The list is empty, an item is not an actor, or the weight is not valid.

    Example:
        ```python
        reader.options(scheduling_strategy=actor_affinity(affinity(cache))).remote()
        ```
    """
    return LabelMatchExpression(ACTOR_ID, LabelMatchOperator.IN, _ids(handles), is_soft, weight=weight)


def anti_affinity(
    handles: Actor | Iterable[Actor], is_soft: bool = False, weight: int | None = None
) -> LabelMatchExpression:
    """Apart from all of these actors.

    Args:
        handles: The handle or the id of an actor, or several.
        is_soft: Whether it is a preference: other nodes score lower, but are not refused.
        weight: How much a soft expression counts, from 1 to 100; 100 if not given.

    Returns:
        The expression, for `actor_affinity`.

    Raises:
        Invalid: The list is empty, an item is not an actor, or the weight is not valid.

    Example:
        ```python
        replica.options(scheduling_strategy=actor_affinity(anti_affinity(primary))).remote()
        ```
    """
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
        raise Invalid(f"{handle!r} is not an actor; give a handle or an actor id, for example affinity(Actor.remote())")
    return identity


@dataclass(frozen=True, slots=True)
class Wants:
    """What a scheduling strategy asks for: the parts of an `Ask` that say where.

    Attributes:
        selector: What the node's labels must be.
        affinities: Where it must be relative to other work, an OR of ANDs.
        prefers: What it prefers.
    """

    selector: Selector = ANYWHERE
    affinities: tuple[tuple[Affinity, ...], ...] = ()
    prefers: tuple[Preference, ...] = ()


@dataclass(frozen=True, slots=True, init=False)
class NodeAffinitySchedulingStrategy:
    """Nodes by their labels. `node_affinity` creates one; the constructor also accepts what Ray's own class accepts.

    Attributes:
        match_expressions: The expressions. Soft ones are preferences.
        is_or_semantics: Whether one hard expression is enough; otherwise all must hold.
        selector: A selector that the node's labels must also match.

    Args:
        match_expressions: One expression or several, or a node id as in Ray.
        is_or_semantics: Whether one hard expression is enough; after a node id, Ray's `soft`.
        node_id: The id of a node, as in Ray.
        soft: Whether another node is acceptable, as in Ray; only with `node_id`.
        selector: A selector that the node's labels must also match.

    Raises:
        Invalid: There is no expression, or the arguments contradict each other.

    Example:
        ```python
        NodeAffinitySchedulingStrategy([label_in("zone", ["a"]), label_exists("gpu_type", is_soft=True)])
        ```
    """

    match_expressions: tuple[LabelMatchExpression, ...]
    is_or_semantics: bool
    selector: Selector

    def __init__(
        self,
        match_expressions: str | Expression | Sequence[Expression] | None = None,
        is_or_semantics: bool = False,
        *,
        node_id: str | HasHex | None = None,
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
        """The same in the form that the engine reads."""
        hard = [Selector.all_of(e.requirement) for e in self.match_expressions if not e.soft]
        soft = [Preference(Selector.all_of(e.requirement), e.weight) for e in self.match_expressions if e.soft]
        parts = [union(hard)] if self.is_or_semantics and hard else hard
        return Wants(intersection([self.selector, *parts]), prefers=tuple(soft))


def _node_id(node_id: Any) -> str:
    identity = node_id.hex() if callable(getattr(node_id, "hex", None)) else node_id
    if not isinstance(identity, str) or not identity or any(mark in identity for mark in " =[](){},!<>"):
        raise Invalid(
            f"node_id {node_id!r} is not a node id such as 'node-1'; for a selector use node_affinity, for example "
            f"node_affinity('gpu_type in [A100]')"
        )
    return identity


def node_affinity(
    expressions: str | Selector | Expression | Sequence[Expression], is_or_semantics: bool = False
) -> NodeAffinitySchedulingStrategy:
    """Nodes by their labels, as a ``scheduling_strategy``.

    Args:
        expressions: An expression, a list of them, or a selector such as ``"gpu_type in [A100]"``.
        is_or_semantics: Whether one hard expression is enough; otherwise all must hold.

    Returns:
        The strategy.

    Raises:
        Invalid: An expression or the selector is not valid.

    Example:
        ```python
        train.options(scheduling_strategy=node_affinity(label_in("gpu_type", ["A100"]))).remote()
        ```
    """
    if isinstance(expressions, str):
        return NodeAffinitySchedulingStrategy(is_or_semantics=is_or_semantics, selector=parse_selector(expressions))
    if isinstance(expressions, Selector):
        return NodeAffinitySchedulingStrategy(is_or_semantics=is_or_semantics, selector=expressions)
    return NodeAffinitySchedulingStrategy(expressions, is_or_semantics)


NodeAffinity = node_affinity


@dataclass(frozen=True, slots=True, init=False)
class ActorAffinitySchedulingStrategy:
    """Near other work or apart from it, by its id or by its labels. `actor_affinity` creates one.

    IN, EXISTS, GT and LT mean near work that matches. NOT_IN and DOES_NOT_EXIST mean apart from work that matches IN
    and EXISTS.

    Attributes:
        match_expressions: The expressions. Soft ones are preferences.
        is_or_semantics: Whether one hard expression is enough; otherwise all must hold.
        topology: Label keys. A node is near if it has the same value of each key.

    Args:
        match_expressions: One expression or several.
        is_or_semantics: Whether one hard expression is enough.
        topology: A label key or several; by default, near means on the same node.

    Raises:
        Invalid: There is no expression, or an argument is not valid.

    Example:
        ```python
        ActorAffinitySchedulingStrategy([affinity(cache), label_not_in("app", ["web"])], topology="zone")
        ```
    """

    match_expressions: tuple[LabelMatchExpression, ...]
    is_or_semantics: bool
    topology: tuple[str, ...]

    def __init__(
        self,
        match_expressions: Expression | Sequence[Expression],
        is_or_semantics: bool = False,
        topology: str | Iterable[str] | None = None,
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
        """The same in the form that the engine reads."""
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
        # An id identifies work in any namespace; labels are matched in the ask's own namespace.
        namespaces: frozenset[str] | None = frozenset() if key == ASK_ID else None
        return Affinity(Selector.all_of(meant), not apart, self.topology, namespaces)


def actor_affinity(
    expressions: Expression | Sequence[Expression],
    is_or_semantics: bool = False,
    topology: str | Iterable[str] | None = None,
) -> ActorAffinitySchedulingStrategy:
    """Near other work or apart from it, as a ``scheduling_strategy``.

    Args:
        expressions: An expression or a list of them: `affinity` and `anti_affinity` for actors, `label_in`,
            `label_exists` and so on for work with labels.
        is_or_semantics: Whether one hard expression is enough; otherwise all must hold.
        topology: A label key or several: near means on a node with the same value. By default, on the same node.

    Returns:
        The strategy.

    Raises:
        Invalid: An expression or the topology is not valid.

    Example:
        ```python
        actor_affinity([affinity(cache), label_not_in("app", ["web"])])
        ```
    """
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
    return Invalid(f"{given!r} is not an expression for {who}; write for example {_good(who)}")


def _good(who: str) -> str:
    return "actor_affinity(affinity(actor))" if who == "actor_affinity" else "node_affinity(label_in('zone', ['a']))"


def _checked_or(who: str, is_or_semantics: object) -> bool:
    if not isinstance(is_or_semantics, bool):
        raise Invalid(
            f"{who} has is_or_semantics={is_or_semantics!r}, which must be True or False; several expressions go in a "
            f"list, for example {_good(who)}"
        )
    return is_or_semantics


def wants(strategy: object) -> Wants:
    """Read a ``scheduling_strategy``, stead's or Ray's own.

    Args:
        strategy: A strategy, a list of strategies that must all hold, or None.

    Returns:
        The parts of an `Ask` that it sets.

    Raises:
        Invalid: It is not a strategy, or the strategies have too many alternatives.

    Example:
        ```python
        wants(node_affinity("zone=a")).selector
        ```
    """
    if strategy is None:
        return Wants()
    parts = [_wants_of(one) for one in (strategy if isinstance(strategy, list | tuple) else [strategy])]
    alternatives = [part.affinities for part in parts if part.affinities]
    if (count := prod(map(len, alternatives))) > TERMS_MAX:
        raise Invalid(
            f"the strategies have {count} alternatives of affinities, but at most {TERMS_MAX} are allowed; use "
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
    # Ray's own classes, recognised by name so that Ray is not imported.
    name = type(strategy).__name__
    if name == "NodeAffinitySchedulingStrategy":
        return NodeAffinitySchedulingStrategy(node_id=strategy.node_id, soft=strategy.soft).wants
    if name == "NodeLabelSchedulingStrategy":
        return node_labels(strategy.hard, strategy.soft)
    if isinstance(strategy, LabelMatchExpression):
        raise Invalid(
            "an expression alone does not say whether it is about nodes or actors; write node_affinity(...) or "
            "actor_affinity(...), for example node_affinity(label_in('zone', ['a']))"
        )
    raise Invalid(f"stead does not know the strategy {strategy!r}; write for example {_good('node_affinity')}")


_MATCHES = {
    "In": LabelMatchOperator.IN,
    "NotIn": LabelMatchOperator.NOT_IN,
    "Exists": LabelMatchOperator.EXISTS,
    "DoesNotExist": LabelMatchOperator.DOES_NOT_EXIST,
}


def _operator(match: object) -> LabelMatchOperator | None:
    """The operator of an `In(...)`, `NotIn(...)` and so on, from stead or from Ray."""
    return _MATCHES.get(type(match).__name__)


def node_labels(hard: Any, soft: Any = None) -> Wants:
    """Compile Ray's ``NodeLabelSchedulingStrategy(hard, soft=)``: maps from key to In, NotIn, Exists, DoesNotExist, or
    to a string for "equal", with ``!`` before it for "not equal". All soft conditions together are one preference."""
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
    return [_label_condition(one.key, one.operator) for one in conditions]  # the form in Ray's own class


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


def tolerations(wanted: Mapping[str, In | NotIn | Exists] | None) -> tuple[Toleration, ...]:
    """Read the option ``tolerations``.

    Args:
        wanted: A condition on the value for each taint key, or None.

    Returns:
        The tolerations.

    Raises:
        Invalid: It is not a map, or a condition is not valid.

    Example:
        ```python
        tolerations({"gpu_node": Exists(), "gpu_type": In("A100")})
        ```
    """
    if wanted is None:
        return ()
    if not isinstance(wanted, Mapping):
        raise Invalid(f"tolerations must be a map such as {{'gpu_node': Exists()}}, not {wanted!r}")
    return tuple(_toleration(key, match) for key, match in wanted.items())


def _toleration(key: Any, match: Any) -> Toleration:
    check_key(key, "taint key")
    operator = _operator(match)
    if operator is None:
        raise Invalid(f"the toleration {match!r} of {key!r} is not valid; write for example {{{key!r}: Exists()}}")
    if operator is LabelMatchOperator.DOES_NOT_EXIST:
        raise Invalid(
            f"the toleration of {key!r} is DoesNotExist(), but a missing taint needs no toleration; write for example "
            f"{{{key!r}: Exists()}}"
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


def spreads(option: Mapping[str, int] | None, labels: Labels) -> tuple[Spread, ...]:
    """Read the option ``spread``.

    Args:
        option: The maximum skew for each label key, for example ``{"zone": 1}``, or None.
        labels: The labels of the work; all work with these labels counts.

    Returns:
        The spreads.

    Raises:
        Invalid: It is not a map, a skew is below 1, or there are no labels to count by.

    Example:
        ```python
        spreads({"zone": 1}, Labels({"app": "web"}))
        ```
    """
    if option is None:
        return ()
    if not isinstance(option, Mapping):
        raise Invalid(f"spread must be a map from label key to maximum skew such as {{'zone': 1}}, not {option!r}")
    if option and not labels:
        raise Invalid(
            "spread counts work with the same labels, but this work has none; give for example labels={'app': 'web'}"
        )
    alike = Selector.all_of(*(Requirement.is_in(key, value) for key, value in labels.items()))
    return tuple(Spread(check_key(key, "spread key"), alike, _checked_skew(key, skew)) for key, skew in option.items())


def _checked_skew(key: str, skew: object) -> int:
    if isinstance(skew, bool) or not isinstance(skew, int) or skew < 1:
        raise Invalid(
            f"the skew of spread key {key!r} must be a whole number, 1 or more, for example 1, but is {skew!r}"
        )
    return skew
