"""The options of one submission, compiled to its route: what Ray says itself, what a pass says, what is ranked.

Rule: Ray is trusted only with labels that nobody can change while a node runs; every other hard rule is the pass's, and
the nodes that Ray's own selectors and the pass leave together are exactly those that the engine would allow. Nothing
here imports Ray; its own strategies are known by their shape.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, combinations
from typing import Any, cast

from stead.asks import ASK_ID, Affinity, Ask, Choice, PolicyName, Preference, Spread
from stead.codec import dumps
from stead.errors import Invalid
from stead.expressions import ACTOR_ID
from stead.labelling import (
    ANYWHERE,
    EMPTY,
    NODE_ID,
    NODE_ID_KEYS,
    Labels,
    Operator,
    Requirement,
    Selector,
    Term,
    check_value,
)
from stead.ray.environments import digest_in, preferring
from stead.resources import Resources
from stead.selectors import intersection, label_selector_strings, parse_label_selector, union
from stead.strategies import (
    NodeAffinitySchedulingStrategy,
    Wants,
    node_affinity,
    spreads,
    tolerations,
    wants,
)
from stead.taints import Toleration

OWN_OPTIONS = ("tolerations", "deadline_s", "labels", "spread", "exclusive", "max_per_node", "policy")
"""Options that are stead's and that Ray must not see."""

ALONE = Affinity(ANYWHERE, near=False, namespaces=frozenset(), symmetric=True)
"""What ``exclusive=True`` means: a node with nothing else on it, and closed to everything that comes later."""

PER_NODE_MAX = 99
"""Ray counts in ten-thousandths, and one k-th of a node must be told from one (k+1)-th."""

RESOURCE_PREFIX = "stead."
"""How the names of stead's own resources begin, passes among them."""

IMPLICIT_PREFIX = "node:__internal_implicit_resource_"
"""How the names begin of which Ray has 1.0 on every node."""
FIXED = f"{IMPLICIT_PREFIX}stead.fixed"
"""Held by a task whose pass does not say all of where it may go: Ray was told labels or a node. Every node has it."""

ONCE = f"{IMPLICIT_PREFIX}stead.once"
"""Held by a task without retries: once it has begun, it must not run again."""

NATIVE_PREFIX = "ray.io/"
NOT_NATIVE = NODE_ID_KEYS | {"ray.io/accelerator-type"}
"""Keys of Ray's that it is not trusted with all the same: an actor with a selector on node ids is dead for good when
those nodes are, and a node may count as labelled with its accelerator while Ray knows only its resource."""

ENTRIES_MAX = 8
"""The most selectors in one submission for the sake of preferences; with more, the engine ranks the nodes instead."""

REMEMBERED_MAX = 10_000
"""How many sets of rules are remembered, so that what is submitted again is not compiled again."""

DEFAULT, SPREAD = "DEFAULT", "SPREAD"
_PINNING, _GROUPING = "NodeAffinitySchedulingStrategy", "PlacementGroupSchedulingStrategy"


@dataclass(frozen=True, slots=True)
class Pass:
    """What an open pass stands for: granted on every node that the selector and the tolerations allow.

    Equal rules share one pass, in whatever order they were written.
    """

    selector: Selector = ANYWHERE
    tolerations: tuple[Toleration, ...] = ()
    key: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "selector", _ordered(self.selector))
        object.__setattr__(self, "tolerations", tuple(sorted(set(self.tolerations), key=dumps)))
        plain = self.selector == ANYWHERE and not self.tolerations
        object.__setattr__(self, "key", "plain" if plain else _digest(self))


@dataclass(frozen=True, slots=True)
class Wish:
    """A pass, and what is to be ranked among the nodes it allows: choices in their order, preferences by weight."""

    admits: Pass
    choices: tuple[Selector, ...] = ()
    prefers: tuple[Preference, ...] = ()
    key: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(map(_ordered, self.choices)))
        object.__setattr__(self, "prefers", _ordered_preferences(self.prefers))
        object.__setattr__(self, "key", _digest(self) if self.choices or self.prefers else self.admits.key)


@dataclass(frozen=True, slots=True)
class Route:
    """How one submission goes to Ray, and the same as the engine sees it.

    `choices` and `prefers` say everything, whoever enforces it. `label_selector`, then each of `fallback_strategy`, are
    for Ray. Where the wish has something to rank there is no fallback, and `label_selector` holds on every node that is
    ranked. `pins` are the only nodes the work may go to, if the hard part names them.
    """

    wish: Wish
    choices: tuple[Selector, ...]
    prefers: tuple[Preference, ...]
    label_selector: Mapping[str, str]
    fallback_strategy: tuple[Mapping[str, str], ...]
    strategy: object | None
    pins: tuple[str, ...]
    deadline_s: float | None
    affinities: tuple[tuple[Affinity, ...], ...] = ()
    spreads: tuple[Spread, ...] = ()
    labels: Labels = EMPTY
    per_node: tuple[tuple[str, int], ...] = ()
    policy: PolicyName | None = None  # None: nothing is said, so the cluster's default holds, or else Ray's own way
    shapes: dict[Any, Any] = field(init=False, default_factory=dict, compare=False, repr=False)
    """What was made of this route for equal submissions, so that it is made once."""
    is_decided: bool = field(init=False, compare=False)
    """Whether the engine must choose the node of each piece, because it depends on where other work is, or other work
    may ask where this is, or because it is to choose by a policy that Ray has not."""

    def __post_init__(self) -> None:
        on_work = (isinstance(preference.want, Affinity | Spread) for preference in self.prefers)
        rules = bool(self.affinities or self.spreads or self.labels) or any(on_work)
        object.__setattr__(self, "is_decided", rules or self.policy not in (None, PolicyName.HYBRID))

    def ask(
        self,
        id: str,
        resources: Mapping[str, float],
        namespace: str = "",
        tolerations: tuple[Toleration, ...] | None = None,
    ) -> Ask:
        """The whole of it for the engine; a deadline is left to whoever knows the clock."""
        amounts = Resources.of({name: n for name, n in resources.items() if not is_own_name(name)})
        return Ask(
            id,
            tuple(Choice(amounts, selector) for selector in self.choices),
            self.wish.admits.tolerations if tolerations is None else tolerations,
            self.affinities,
            self.spreads,
            prefers=self.prefers,
            labels=self.labels,
            namespace=namespace,
            policy=self.policy or (PolicyName.SPREAD if _is_word(self.strategy, SPREAD) else PolicyName.HYBRID),
        )


def by_default(asked: Route | None, policy: str, strategy: object) -> Route | None:
    """The route of work in a cluster whose default policy is `policy`, "" for none; `strategy` is Ray's own.

    The default is for work that says nothing of how its node is to be chosen. Unless the policy is one of the flows, it
    takes no work away from Ray: it is for what the engine places anyway.
    """
    if not policy or not (strategy is None or _is_word(strategy, DEFAULT)):
        return asked
    chosen = PolicyName(policy)
    if asked is None:
        return _plain_by(chosen) if chosen.in_batches else None
    if asked.policy is None and (asked.is_decided or chosen.in_batches):
        if chosen not in asked.shapes:
            asked.shapes[chosen] = replace(asked, policy=chosen)
        return cast(Route, asked.shapes[chosen])
    return asked


@lru_cache
def _plain_by(policy: PolicyName) -> Route:
    return route({"policy": policy})


def implicit(asked: Route, namespace: str) -> dict[str, float]:
    """What Ray has of itself on every node and keeps work apart with, without anybody's help.

    One part in k of a name, for at most k on a node; all of a name, for work that stays apart from its own kind: two
    pieces with that rule never share a node, whatever else the engine knows of them.
    """
    names = {f"{name}/{most}": math.floor(10_000 / most) / 10_000 for name, most in asked.per_node}
    if len(asked.affinities) == 1:
        for each in asked.affinities[0]:
            own = not each.near and each.topologies == (NODE_ID,) and each.namespaces is None
            if own and each.selector.matches(asked.labels):
                names[hashlib.sha256(dumps(_ordered(each.selector))).hexdigest()[:10]] = 1.0
    return {f"{IMPLICIT_PREFIX}stead.{namespace}/{name}": amount for name, amount in names.items()}


def is_own_name(resource: str) -> bool:
    """Whether a resource is none of the user's: stead's, or one of those that Ray has on every node."""
    return resource.startswith((RESOURCE_PREFIX, IMPLICIT_PREFIX))


def is_plain(options: Mapping[str, Any]) -> bool:
    """Whether the options need nothing of stead but the plain pass."""
    get = options.get
    return (
        get("deadline_s") is None
        and get("policy") is None
        and (get("exclusive") is None or get("exclusive") is False)
        and not digest_in(get("runtime_env"))
        and all(_is_absent(get(name)) for name in ("tolerations", "labels", "spread", "max_per_node"))
        and _is_absent(get("label_selector"))
        and _is_absent(get("fallback_strategy"))
        and ((strategy := get("scheduling_strategy")) is None or _is_native(strategy))
    )


def route(options: Mapping[str, Any]) -> Route:
    """The route of a submission with these options, as given to ``@ray.remote(...)`` or ``.options(...)``."""
    strategy, wanted = _split(options.get("scheduling_strategy"))
    if digest := digest_in(options.get("runtime_env")):
        wanted = replace(wanted, prefers=(*wanted.prefers, preferring(digest)))
    tolerated = tolerations(options.get("tolerations"))
    deadline = _deadline(options.get("deadline_s"))
    rules = _rules(_label_choices(options), wanted, _pinned(strategy), tolerated)
    own = _own_labels(options.get("labels"))
    return Route(
        rules.wish,
        rules.choices,
        rules.prefers,
        *rules.native,
        strategy,
        rules.pins,
        deadline,
        _with_exclusive(wanted.affinities, options.get("exclusive")),
        spreads(options.get("spread"), own),
        own,
        _per_node(options.get("max_per_node")),
        _policy(options.get("policy"), strategy),
    )


@dataclass(frozen=True, slots=True)
class _Rules:
    """The part of a route that many submissions have in common."""

    wish: Wish
    choices: tuple[Selector, ...]
    prefers: tuple[Preference, ...]
    native: tuple[Labels, tuple[Labels, ...]]
    pins: tuple[str, ...]


@lru_cache(REMEMBERED_MAX)
def _rules(labels: tuple[Selector, ...], wanted: Wants, pinned: Wants, tolerated: tuple[Toleration, ...]) -> _Rules:
    choices = tuple(dict.fromkeys(_ordered(intersection([one, wanted.selector])) for one in labels))
    said = _said(choices, _ordered_preferences(wanted.prefers))
    everything = tuple(_ordered(intersection([one, pinned.selector])) for one in choices)
    return _Rules(
        Wish(Pass(said.admits, tolerated), said.choices, said.prefers),
        everything,
        _ordered_preferences(wanted.prefers + pinned.prefers),
        (said.entries[0], said.entries[1:]),
        _pins(everything),
    )


# Reading the options.


def _split(given: Any) -> tuple[object | None, Wants]:
    """Ray's own strategy, to be handed on as it is, and what the other strategies beside it come to."""
    listed = list(given) if isinstance(given, list | tuple) else [given]
    native = [one for one in listed if _is_native(one)]
    if len(native) > 1:
        names = " and ".join(map(_name, native))
        raise Invalid(f"scheduling_strategy has {names}, but Ray takes one of its own strategies, for example 'SPREAD'")
    wanted = wants([_readable(one) for one in listed if one is not None and not _is_native(one)])
    return (native[0] if native else None), wanted


def _readable(strategy: Any) -> Any:
    if isinstance(strategy, str) and strategy.strip().upper() in (DEFAULT, SPREAD):
        raise Invalid(f"scheduling_strategy {strategy!r} is unknown; write {strategy.strip().upper()!r}")
    return node_affinity(strategy) if isinstance(strategy, str | Selector) else strategy


def _own_labels(given: Any) -> Labels:
    if given is None:
        return EMPTY
    if not isinstance(given, Mapping):
        raise Invalid(f"labels must be a map such as {{'role': 'trainer'}}, not {given!r}")
    for key in (ACTOR_ID, ASK_ID):
        if key in given:
            raise Invalid(
                f"label {key!r} is the work's own id and cannot be set; choose another key, for example 'role'"
            )
    return Labels.checked(given)


def _with_exclusive(affinities: tuple[tuple[Affinity, ...], ...], exclusive: Any) -> tuple[tuple[Affinity, ...], ...]:
    if exclusive is None or exclusive is False:
        return affinities
    if exclusive is not True:
        raise Invalid(f"exclusive must be True or False, not {exclusive!r}")
    return tuple((*each, ALONE) for each in affinities or ((),))


def _per_node(given: Any) -> tuple[tuple[str, int], ...]:
    """``max_per_node={"trainer": 1}``: of the work that says so, at most so many on one node."""
    if given is None:
        return ()
    good = "for example {'trainer': 1}"
    if not isinstance(given, Mapping):
        raise Invalid(f"max_per_node must be a map from a name of your choice to a number, {good}, not {given!r}")
    for name, most in given.items():
        if not isinstance(name, str) or not name:
            raise Invalid(f"max_per_node has the name {name!r}, which must be a string, {good}")
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= PER_NODE_MAX:
            raise Invalid(
                f"max_per_node has {most!r} for {name!r}, which must be a whole number from 1 to {PER_NODE_MAX}, {good}"
            )
    return tuple(sorted(given.items()))


def _policy(given: Any, strategy: object) -> PolicyName | None:
    if given is None:
        return None
    policy = PolicyName.of(given)
    if _is_word(strategy, SPREAD) and policy is not PolicyName.SPREAD:
        raise Invalid(
            f"policy {policy.value!r} and scheduling_strategy 'SPREAD' both say how to choose a node; "
            f"give one of them, for example policy={policy.value!r}"
        )
    return policy


def _is_native(strategy: object) -> bool:
    """Whether this is a strategy that Ray takes as it is."""
    return _is_word(strategy, DEFAULT) or _is_word(strategy, SPREAD) or _is_of(strategy, _PINNING, _GROUPING)


def _is_word(strategy: object, word: str) -> bool:
    return isinstance(strategy, str) and strategy == word


def _is_of(strategy: object, *names: str) -> bool:
    """Whether it is of one of Ray's classes of these names; stead has a class of the same name, which is not meant."""
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        return False
    return any(kind.__name__ in names for kind in type(strategy).__mro__)


def _name(strategy: object) -> str:
    return repr(strategy) if isinstance(strategy, str) else type(strategy).__name__


def _pinned(strategy: Any) -> Wants:
    """What Ray's own node affinity means to the engine."""
    if not _is_of(strategy, _PINNING):
        return Wants()
    return NodeAffinitySchedulingStrategy(node_id=strategy.node_id, soft=bool(strategy.soft)).wants


def _label_choices(options: Mapping[str, Any]) -> tuple[Selector, ...]:
    """``label_selector=``, then each of ``fallback_strategy=``."""
    given, fallbacks = options.get("label_selector"), options.get("fallback_strategy")
    first = ANYWHERE if given is None else parse_label_selector(given)
    if fallbacks is None:
        return (first,)
    if not isinstance(fallbacks, list | tuple):
        raise Invalid(
            f"fallback_strategy must be a list such as [{{'label_selector': {{'zone': 'a'}}}}], not {fallbacks!r}"
        )
    return (first, *map(_fallback, fallbacks))


def _fallback(entry: Any) -> Selector:
    good = "for example {'label_selector': {'zone': 'in(a,b)'}}"
    if not isinstance(entry, Mapping) or not entry:
        raise Invalid(f"fallback_strategy has the entry {entry!r}, which must be a map with a label_selector, {good}")
    for name in entry:
        if name != "label_selector":
            raise Invalid(f"fallback_strategy has an entry with {name!r}, but only a label_selector can change, {good}")
    selector = entry["label_selector"]
    return ANYWHERE if selector is None else parse_label_selector(selector)


def _deadline(seconds: Any) -> float | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise Invalid(f"deadline_s {seconds!r} must be a positive number of seconds, for example 600")
    return float(seconds)


def _is_absent(option: object) -> bool:
    """Whether an option says nothing: not given, or an empty map or list (an empty string is a slip to be refused)."""
    return option is None or (not option and isinstance(option, dict | list | tuple))


def _pins(choices: Sequence[Selector]) -> tuple[str, ...]:
    terms = [term for selector in choices for term in selector.terms]
    named = [_named(term) for term in terms]
    found = [ids for ids in named if ids is not None]
    return tuple(sorted(frozenset().union(*found))) if len(found) == len(terms) else ()


def _named(term: Term) -> frozenset[str] | None:
    """The node ids that a term allows, or None when it does not list them."""
    on_ids = [requirement for requirement in term if requirement.key in NODE_ID_KEYS]
    listed = next((requirement.values for requirement in on_ids if requirement.operator is Operator.IN), None)
    if listed is None:
        return None
    return frozenset(id for id in listed if all(requirement.accepts(id) for requirement in on_ids))


# What Ray can say itself.


@dataclass(frozen=True, slots=True)
class _Said:
    """Hard rules and preferences, divided: selectors for Ray, the pass, and what is left to be ranked."""

    entries: tuple[Labels, ...]
    admits: Selector
    choices: tuple[Selector, ...] = ()
    prefers: tuple[Preference, ...] = ()


def _said(choices: tuple[Selector, ...], prefers: tuple[Preference, ...]) -> _Said:
    common, admits = _common(choices), union(choices)
    each = [_conditions(selector.terms[0]) if len(selector.terms) == 1 else None for selector in choices]
    native = [conditions for conditions in each if conditions is not None]
    if len(native) == len(choices) and (entries := _entries(native, prefers)):
        return _Said(entries, ANYWHERE)
    if len(choices) > 1:
        # Ray keeps the order of choices only if it can say them all, and their preferences with them.
        return _Said((_written(common),), admits, choices, prefers)
    if native:
        return _Said((_written(native[0]),), ANYWHERE, prefers=prefers)
    if entries := _entries([common], prefers):
        return _Said(entries, admits)
    return _Said((_written(common),), admits, prefers=prefers)


_Conditions = Mapping[str, Requirement]
"""Requirements that Ray can say, one for each key; all must hold."""


def _conditions(term: Iterable[Requirement]) -> _Conditions | None:
    """The requirements as conditions, or None where Ray cannot say them (or they can never all hold)."""
    result: dict[str, Requirement] = {}
    for requirement in term:
        if not _is_sayable(requirement):
            return None
        merged = _merged(result.get(requirement.key), requirement)
        if merged is None:
            return None
        result[requirement.key] = merged
    return result


def _is_sayable(requirement: Requirement) -> bool:
    return (
        requirement.key.startswith(NATIVE_PREFIX)
        and requirement.key not in NOT_NATIVE
        and requirement.operator in (Operator.IN, Operator.NOT_IN)
        and bool(requirement.values)
        and all(map(_is_sayable_value, requirement.values))
    )


def _is_sayable_value(value: str) -> bool:
    """Whether Ray reads the value as itself; what it makes of the empty one is not documented."""
    try:
        return bool(check_value(value))
    except Invalid:
        return False


def _merged(one: Requirement | None, other: Requirement) -> Requirement | None:
    """Both requirements on one key as one, or None if no label can satisfy both."""
    if one is None:
        return other
    if one.complement and other.complement:
        return Requirement.not_in(one.key, *(one.values | other.values))
    listed, second = (other, one) if one.complement else (one, other)
    values = [value for value in listed.values if second.accepts(value)]
    return Requirement.is_in(one.key, *values) if values else None


def _common(choices: Sequence[Selector]) -> _Conditions:
    """What every term of every choice requires and Ray can say: it may know, which helps its autoscaler."""
    terms = [frozenset(term) for selector in choices for term in selector.terms]
    shared = frozenset.intersection(*terms) if terms else frozenset()
    return _conditions(sorted(filter(_is_sayable, shared), key=_rank)) or {}


def _entries(hard: Sequence[_Conditions], prefers: Sequence[Preference]) -> tuple[Labels, ...] | None:
    """For each choice: with every set of preferences, the weightiest first, and at last with none of them.

    None where Ray cannot say a preference, or the entries would be too many.
    """
    if prefers and len(hard) << len(prefers) > ENTRIES_MAX:
        return None
    soft: list[tuple[_Conditions, int]] = []
    for preference in prefers:
        want = preference.want
        conditions = _conditions(want.terms[0]) if isinstance(want, Selector) and len(want.terms) == 1 else None
        if conditions is None:
            return None
        soft.append((conditions, preference.weight))
    sets = chain.from_iterable(combinations(soft, count) for count in range(len(soft), -1, -1))
    falling = sorted(sets, key=lambda chosen: -sum(weight for _, weight in chosen))
    entries = []
    for conditions in hard:
        for chosen in falling:
            parts = [conditions, *(wanted for wanted, _ in chosen)]
            both = _conditions(chain.from_iterable(part.values() for part in parts))
            if both is not None:  # else no node can have them all
                entries.append(_written(both))
    return tuple(dict.fromkeys(entries))


def _written(conditions: _Conditions) -> Labels:
    return Labels(label_selector_strings(Selector.all_of(*conditions.values())))


# One order, so that equal rules are equal values.


def _rank(requirement: Requirement) -> tuple[Any, ...]:
    bounds = (str(requirement.greater), str(requirement.less))
    return (requirement.key, requirement.complement, requirement.absent, sorted(requirement.values), bounds)


def _ranks(term: Term) -> list[tuple[Any, ...]]:
    return [_rank(requirement) for requirement in term]


def _ordered(selector: Selector) -> Selector:
    terms = [tuple(sorted(term, key=_rank)) for term in selector.terms]
    return Selector(tuple(sorted(terms, key=_ranks)))


def _ordered_preferences(prefers: Iterable[Preference]) -> tuple[Preference, ...]:
    ordered = (Preference(_ordered(p.want) if isinstance(p.want, Selector) else p.want, p.weight) for p in prefers)
    return tuple(sorted(ordered, key=dumps))


def _digest(value: Pass | Wish) -> str:
    return hashlib.sha256(dumps(value)).hexdigest()[:10]
