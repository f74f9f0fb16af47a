"""Compiles the options of one submission into its route: Ray's own selectors, a pass, and what the engine ranks.

Rule: Ray checks only labels that cannot change while a node runs. The pass enforces every other hard rule. Ray's
selectors and the pass together allow exactly the nodes that the engine allows. This module does not import Ray; it
recognises Ray's strategies by their class names.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, combinations
from typing import Any, cast

from stead.codec import dumps
from stead.errors import Invalid
from stead.language.asks import ASK_ID, Affinity, Ask, Choice, PolicyName, Preference, Spread
from stead.language.expressions import ACTOR_ID
from stead.language.labels import (
    ANYWHERE,
    EMPTY,
    NODE_ID,
    NODE_ID_KEYS,
    Labels,
    Operator,
    Requirement,
    Selector,
    Term,
)
from stead.language.resources import Resources
from stead.language.selectors import intersection, label_selector_strings, parse_label_selector, union
from stead.language.strategies import (
    NodeAffinitySchedulingStrategy,
    Wants,
    node_affinity,
    spreads,
    tolerations,
    wants,
)
from stead.language.taints import Toleration
from stead.ray.submit.environments import digest_in, preferring
from stead.ray.submit.native_selectors import Conditions, conditions, is_expressible
from stead.ray.wire.own_names import IMPLICIT, is_own_name

OWN_OPTIONS = (
    "tolerations",
    "deadline_s",
    "labels",
    "spread",
    "exclusive",
    "max_per_node",
    "policy",
    "priority",
    "preemptible",
)
"""Stead's own options. Ray must not see them."""

ALONE = Affinity(ANYWHERE, near=False, namespaces=frozenset(), symmetric=True)
"""What ``exclusive=True`` means: the node has no other work, and takes none while this work runs."""

PER_NODE_MAX = 99
"""Ray's amounts have a precision of 1/10000. Up to this limit, 1/k and 1/(k+1) of a node remain different amounts."""

PRIORITY_MIN, PRIORITY_MAX = -1_000_000_000, 1_000_000_000
"""The priorities that Kubernetes lets users give to pods."""

NATIVE_PREFIX = "ray.io/"
NOT_NATIVE = NODE_ID_KEYS | {"ray.io/accelerator-type"}
"""Ray's own keys that are still enforced by the pass. Ray fails an actor for good when all nodes in its selector on
node ids are dead. And Ray may know an accelerator only as a resource, where stead sees it as a label."""

ENTRIES_MAX = 8
"""Maximum number of selectors that express preferences in one submission. Above it, the engine ranks the nodes."""

REMEMBERED_MAX = 10_000
"""How many compiled sets of rules are cached."""

DEFAULT, SPREAD = "DEFAULT", "SPREAD"
_PINNING, _GROUPING = "NodeAffinitySchedulingStrategy", "PlacementGroupSchedulingStrategy"


@dataclass(frozen=True, slots=True)
class Pass:
    """The rules of an open pass. It is granted on every node that the selector and the tolerations allow.

    Equal rules share one pass, in whatever order they are written.
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
    """A pass, and how to rank the nodes it allows: `choices` in order, `prefers` by weight."""

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
    """How one submission goes to Ray, and the same submission for the engine.

    `choices` and `prefers` hold all rules, whether Ray or the pass enforces them. Ray gets `label_selector`, then each
    entry of `fallback_strategy`. If the wish has something to rank, there are no fallbacks, and every ranked node
    matches `label_selector`. `pins` are the only nodes that the work may use, if its hard rules name nodes.
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
    policy: PolicyName | None = None  # None: the cluster's default, or else Ray's own policy
    priority: int | None = None
    preemptible: bool = False
    by_engine: bool = False  # the engine chooses the node even if Ray could
    shapes: dict[Any, Any] = field(init=False, default_factory=dict, compare=False, repr=False)
    """Values derived from this route, cached for equal submissions."""
    is_decided: bool = field(init=False, compare=False)
    """Whether the engine must choose the node: the choice depends on other work, other work may depend on this, or Ray
    does not have the policy or priorities."""

    def __post_init__(self) -> None:
        on_work = (isinstance(preference.want, Affinity | Spread) for preference in self.prefers)
        rules = bool(self.affinities or self.spreads or self.labels) or any(on_work)
        ranked = self.by_engine or self.preemptible or self.priority is not None
        object.__setattr__(self, "is_decided", rules or ranked or self.policy not in (None, PolicyName.HYBRID))

    def ask(
        self,
        id: str,
        resources: Mapping[str, float],
        namespace: str = "",
        tolerations: tuple[Toleration, ...] | None = None,
    ) -> Ask:
        """The ask for the engine, without a deadline: the controller adds that, on its own clock."""
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
            priority=self.priority or 0,
            preemptible=self.preemptible,
        )


def by_default(asked: Route | None, policy: str, strategy: object) -> Route | None:
    """The route of work in a cluster whose default policy is `policy` ("" for none); `strategy` is Ray's own.

    The default applies to work without a policy. Only a flow policy moves work from Ray to the engine; any other
    default applies only to work that the engine places anyway.
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
    """Amounts of Ray's implicit resources, which exist on every node and keep work apart without the engine.

    Work with ``max_per_node`` k takes 1/k of a name. Work that stays apart from its own kind takes all of a name, so
    two pieces with that rule never share a node, even before the engine knows about them.
    """
    names = {f"{name}/{most}": math.floor(10_000 / most) / 10_000 for name, most in asked.per_node}
    if len(asked.affinities) == 1:
        for each in asked.affinities[0]:
            own = not each.near and each.topologies == (NODE_ID,) and each.namespaces is None
            if own and each.selector.matches(asked.labels):
                names[hashlib.sha256(dumps(_ordered(each.selector))).hexdigest()[:10]] = 1.0
    return {f"{IMPLICIT}{namespace}/{name}": amount for name, amount in names.items()}


def is_plain(options: Mapping[str, Any]) -> bool:
    """Whether the options need only the plain pass."""
    get = options.get
    return (
        get("deadline_s") is None
        and get("policy") is None
        and get("priority") is None
        and all(get(name) is None or get(name) is False for name in ("exclusive", "preemptible"))  # 0 is refused
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
        _priority(options.get("priority")),
        _preemptible(options.get("preemptible"), strategy),
    )


def route_of(ask: Ask, deadline_s: float | None = None) -> Route:
    """The route of work that is described by an ask; the engine chooses its node. Amounts, ports, images, estimates and
    the namespace of the ask are not part of a route."""
    rules = _rules(
        tuple(choice.selector for choice in ask.choices), Wants(prefers=ask.prefers), Wants(), ask.tolerations
    )
    return Route(
        rules.wish,
        rules.choices,
        rules.prefers,
        *rules.native,
        None,
        rules.pins,
        deadline_s,
        ask.affinities,
        ask.spreads,
        ask.labels,
        policy=ask.policy,
        priority=ask.priority,
        by_engine=True,
    )


@dataclass(frozen=True, slots=True)
class _Rules:
    """The part of a route that many submissions share."""

    wish: Wish
    choices: tuple[Selector, ...]
    prefers: tuple[Preference, ...]
    native: tuple[Labels, tuple[Labels, ...]]
    pins: tuple[str, ...]


@lru_cache(REMEMBERED_MAX)
def _rules(labels: tuple[Selector, ...], wanted: Wants, pinned: Wants, tolerated: tuple[Toleration, ...]) -> _Rules:
    choices = tuple(dict.fromkeys(_ordered(intersection([one, wanted.selector])) for one in labels))
    divided = _divide(choices, _ordered_preferences(wanted.prefers))
    everything = tuple(_ordered(intersection([one, pinned.selector])) for one in choices)
    return _Rules(
        Wish(Pass(divided.admits, tolerated), divided.choices, divided.prefers),
        everything,
        _ordered_preferences(wanted.prefers + pinned.prefers),
        (divided.entries[0], divided.entries[1:]),
        _pins(everything),
    )


# Read the options.


def _split(given: Any) -> tuple[object | None, Wants]:
    """Ray's own strategy, unchanged, and the combined rules of the other strategies in the list."""
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
    """``max_per_node={"trainer": 1}``: the maximum number of pieces on one node, of all work that uses the name."""
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
            f"policy {policy.value!r} and scheduling_strategy 'SPREAD' both choose the node; "
            f"give one of them, for example policy={policy.value!r}"
        )
    return policy


def _priority(given: Any) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not PRIORITY_MIN <= given <= PRIORITY_MAX:
        raise Invalid(
            f"priority {given!r} must be a whole number from {PRIORITY_MIN:,} to {PRIORITY_MAX:,}, for example 10"
        )
    return given


def _preemptible(given: Any, strategy: object) -> bool:
    if given is None or given is False:
        return False
    if given is not True:
        raise Invalid(f"preemptible must be True or False, not {given!r}")
    if _is_of(strategy, _GROUPING):
        raise Invalid(
            "preemptible=True is not possible inside a placement group, which keeps its resources; "
            "leave preemptible out there"
        )
    return True


def _is_native(strategy: object) -> bool:
    """Whether Ray accepts this strategy unchanged."""
    return _is_word(strategy, DEFAULT) or _is_word(strategy, SPREAD) or _is_of(strategy, _PINNING, _GROUPING)


def _is_word(strategy: object, word: str) -> bool:
    return isinstance(strategy, str) and strategy == word


def _is_of(strategy: object, *names: str) -> bool:
    """Whether this is an instance of one of Ray's classes with these names, not of stead's class with the same name."""
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        return False
    return any(kind.__name__ in names for kind in type(strategy).__mro__)


def _name(strategy: object) -> str:
    return repr(strategy) if isinstance(strategy, str) else type(strategy).__name__


def _pinned(strategy: Any) -> Wants:
    """Ray's own node affinity as rules of the engine."""
    if not _is_of(strategy, _PINNING):
        return Wants()
    return NodeAffinitySchedulingStrategy(node_id=strategy.node_id, soft=bool(strategy.soft)).wants


def _label_choices(options: Mapping[str, Any]) -> tuple[Selector, ...]:
    """``label_selector=``, then each entry of ``fallback_strategy=``."""
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
    """Whether an option is None or an empty map or list. An empty string is a mistake and is refused later."""
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


# What Ray's own selectors can express.


@dataclass(frozen=True, slots=True)
class _Divided:
    """Hard rules and preferences, divided: selectors for Ray, the rules of the pass, and what the engine ranks."""

    entries: tuple[Labels, ...]
    admits: Selector
    choices: tuple[Selector, ...] = ()
    prefers: tuple[Preference, ...] = ()


def _divide(choices: tuple[Selector, ...], prefers: tuple[Preference, ...]) -> _Divided:
    common, admits = _common(choices), union(choices)
    each = [_conditions(selector.terms[0]) if len(selector.terms) == 1 else None for selector in choices]
    native = [conditions for conditions in each if conditions is not None]
    if len(native) == len(choices) and (entries := _entries(native, prefers)):
        return _Divided(entries, ANYWHERE)
    if len(choices) > 1:
        # Ray keeps the order of choices only if it can express all of them, with their preferences.
        return _Divided((_written(common),), admits, choices, prefers)
    if native:
        return _Divided((_written(native[0]),), ANYWHERE, prefers=prefers)
    if entries := _entries([common], prefers):
        return _Divided(entries, admits)
    return _Divided((_written(common),), admits, prefers=prefers)


def _conditions(term: Iterable[Requirement]) -> Conditions | None:
    """The requirements as conditions that Ray can check reliably, or None."""
    term = list(term)
    return conditions(term) if all(map(_is_trusted, term)) else None


def _is_trusted(requirement: Requirement) -> bool:
    """Whether Ray can express the requirement, and its label cannot change while a node runs."""
    key = requirement.key
    return key.startswith(NATIVE_PREFIX) and key not in NOT_NATIVE and is_expressible(requirement)


def _common(choices: Sequence[Selector]) -> Conditions:
    """The requirements that all terms of all choices share and that Ray can express. They help Ray's autoscaler."""
    terms = [frozenset(term) for selector in choices for term in selector.terms]
    shared = frozenset.intersection(*terms) if terms else frozenset()
    return _conditions(sorted(filter(_is_trusted, shared), key=_rank)) or {}


def _entries(hard: Sequence[Conditions], prefers: Sequence[Preference]) -> tuple[Labels, ...] | None:
    """For each choice, one entry per subset of the preferences: the heaviest subset first, the empty one last.

    None if Ray cannot express a preference, or if there would be too many entries.
    """
    if prefers and len(hard) << len(prefers) > ENTRIES_MAX:
        return None
    soft: list[tuple[Conditions, int]] = []
    for preference in prefers:
        want = preference.want
        wanted = _conditions(want.terms[0]) if isinstance(want, Selector) and len(want.terms) == 1 else None
        if wanted is None:
            return None
        soft.append((wanted, preference.weight))
    sets = chain.from_iterable(combinations(soft, count) for count in range(len(soft), -1, -1))
    falling = sorted(sets, key=lambda chosen: -sum(weight for _, weight in chosen))
    entries = []
    for needed in hard:
        for chosen in falling:
            parts = [needed, *(wanted for wanted, _ in chosen)]
            both = _conditions(chain.from_iterable(part.values() for part in parts))
            if both is not None:  # None: no node can match all of them
                entries.append(_written(both))
    return tuple(dict.fromkeys(entries))


def _written(wanted: Conditions) -> Labels:
    return Labels(label_selector_strings(Selector.all_of(*wanted.values())))


# Put rules in one canonical order, so that equal rules are equal values.


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
