"""What work wants: an Ask, its choices, and Groups of asks.

Rule: an ask is a plain value. It says what is wanted and never how to find it; everything in it that
can affect placement is part of its shape (`shape_key`), and its identity is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stead.errors import Invalid, one_of
from stead.labelling import ANYWHERE, EMPTY, NODE_ID, Labels, Requirement, Selector
from stead.resources import DEVICES, NOTHING, UNIT, Resources, amount_text
from stead.taints import Toleration

AskId = str
GroupId = str

ASK_ID = "ask_id"
"""The label key under which every placed ask can be found by affinities, beside its own labels."""

WEIGHT_MIN, WEIGHT_MAX = 1, 100


class PolicyName(StrEnum):
    """How to choose among the nodes that remain."""

    HYBRID = "hybrid"
    PACK = "pack"
    SPREAD = "spread"
    RANDOM = "random"
    FLOW = "flow"
    FLOW_PACK = "flow-pack"
    FLOW_FGD = "flow-fgd"

    @staticmethod
    def of(name: object) -> PolicyName:
        return one_of(PolicyName, name, "policy")

    @property
    def in_batches(self) -> bool:
        """Whether all waiting work with this policy is decided together, as one min-cost flow."""
        return self in _IN_BATCHES

    # Part of every shape's key, which is hashed for every ask: the plain hash of a string is quick.
    __hash__ = str.__hash__


_IN_BATCHES = frozenset({PolicyName.FLOW, PolicyName.FLOW_PACK, PolicyName.FLOW_FGD})


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to satisfy an ask: so much of each resource, on a node the selector matches."""

    resources: Resources = NOTHING
    selector: Selector = ANYWHERE
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in DEVICES & self.resources.keys():
            if self.resources[name] > UNIT and self.resources[name] % UNIT:
                raise Invalid(
                    f"{amount_text(name, self.resources[name])} cannot be asked for: above 1 it must be whole "
                    f"devices, for example 2; below 1 it is a share of one, for example 0.5"
                )
        object.__setattr__(self, "_hash", hash((self.resources, self.selector)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (Choice, (self.resources, self.selector))


@dataclass(frozen=True, slots=True)
class Affinity:
    """Placement relative to other work: near it (in the same domain) or apart from it.

    The other work is every placed ask whose labels (and `ask_id`) match `selector` and whose
    namespace is in `namespaces`; None means the ask's own namespace, the empty set means all of them.
    A domain is all nodes with one value of a topology key; with `NODE_ID` it is the node itself. With
    several keys, near means near in every one of them, and apart means apart in every one.

    Near by labels lets the first one in: when nothing placed matches and the ask matches itself, every
    node that has the keys will do. `symmetric` (only for apart): while this ask is placed, matching
    newcomers are kept out of its domain too.
    """

    selector: Selector
    near: bool = True
    topologies: tuple[str, ...] = (NODE_ID,)
    namespaces: frozenset[str] | None = None
    symmetric: bool = False

    @property
    def by_identity(self) -> bool:
        """Whether it names particular asks, and so never lets a first one in."""
        return ASK_ID in self.selector.keys


@dataclass(frozen=True, slots=True)
class Spread:
    """Even numbers over the domains of a topology key: no domain may exceed the emptiest by more than
    `max_skew` asks that match `selector` (in the ask's namespace).

    Domains, and the work in them, are taken from live nodes that the ask's own node selector matches and
    that carry the topology keys of all its spreads. A node without the key is refused. The ask counts
    itself when it matches.
    """

    topology: str
    selector: Selector
    max_skew: int = 1

    def __post_init__(self) -> None:
        if self.max_skew < 1:
            raise Invalid(f"max skew must be at least 1, but is {self.max_skew}")


@dataclass(frozen=True, slots=True)
class Preference:
    """Something worth `weight` (1..100) on a node where it holds, and no obstacle where it does not."""

    want: Selector | Affinity | Spread
    weight: int = WEIGHT_MAX

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not isinstance(self.weight, int):
            raise Invalid(f"weight {self.weight!r} must be a whole number from {WEIGHT_MIN} to {WEIGHT_MAX}")
        if not WEIGHT_MIN <= self.weight <= WEIGHT_MAX:
            raise Invalid(f"weight {self.weight} is out of range: it must be from {WEIGHT_MIN} to {WEIGHT_MAX}")


def locality(*node_ids: str, weight: int = WEIGHT_MAX) -> Preference:
    """Prefer the nodes that already hold what the work needs: its data, its caller, its environment."""
    return Preference(Selector.all_of(Requirement.is_in(NODE_ID, *node_ids)), weight)


@dataclass(frozen=True, slots=True)
class Ask:
    """One unit of work looking for a node.

    `choices` are tried in order; a later one is a fallback. `affinities` is an OR of ANDs. Among
    waiting asks a higher `priority` goes first, then the one that has waited longer. `deadline` is the
    moment of the engine's clock at which it is refused instead of waiting on. `owner` is whose it is
    (a job, a replica set); it is shown and never affects placement.
    """

    id: AskId
    choices: tuple[Choice, ...] = (Choice(),)
    tolerations: tuple[Toleration, ...] = ()
    affinities: tuple[tuple[Affinity, ...], ...] = ()
    spreads: tuple[Spread, ...] = ()
    prefers: tuple[Preference, ...] = ()
    labels: Labels = EMPTY
    namespace: str = ""
    policy: PolicyName = PolicyName.HYBRID
    priority: int = 0
    deadline: float | None = None
    owner: str = ""

    def __post_init__(self) -> None:
        if not self.choices:
            raise Invalid(f"ask {self.id!r} has no choice; give at least one, for example Choice()")
        # People write plain maps and strings; both are what they mean.
        labels: Any = self.labels
        policy: Any = self.policy
        if not isinstance(labels, Labels):
            object.__setattr__(self, "labels", Labels.checked(labels))
        if not isinstance(policy, PolicyName):
            object.__setattr__(self, "policy", PolicyName.of(policy))

    @staticmethod
    def of(
        id: str,
        resources: Mapping[str, Any] | None = None,
        selector: Selector = ANYWHERE,
        **rest: Any,
    ) -> Ask:
        """An ask with one choice, from what a user writes."""
        return Ask(id, (Choice(Resources.of(resources), selector),), **rest)

    @property
    def shape_key(self) -> tuple[Any, ...]:
        """Everything that can affect its placement. Asks with equal keys are interchangeable."""
        return (
            self.choices,
            self.tolerations,
            self.affinities,
            self.spreads,
            self.prefers,
            self.labels,
            self.namespace,
            self.policy,
        )


class Strategy(StrEnum):
    """How the members of a group lie to each other, by node or by a topology key."""

    PACK = "PACK"
    SPREAD = "SPREAD"
    STRICT_PACK = "STRICT_PACK"
    STRICT_SPREAD = "STRICT_SPREAD"

    @staticmethod
    def of(name: object) -> Strategy:
        return one_of(Strategy, name, "strategy")

    @property
    def strict(self) -> bool:
        return self in (Strategy.STRICT_PACK, Strategy.STRICT_SPREAD)


@dataclass(frozen=True, slots=True)
class Group:
    """Asks placed together or not at all.

    `alternatives` are sets of members tried in order: the first is what is wanted, later ones are
    fallbacks and may have other members. `strategy` is by node; `topology` adds strategies by label
    key, as (key, strategy) pairs. Members have one choice each; their ids are unique across all alternatives.
    """

    id: GroupId
    alternatives: tuple[tuple[Ask, ...], ...]
    strategy: Strategy = Strategy.PACK
    topology: tuple[tuple[str, Strategy], ...] = ()
    priority: int = 0
    deadline: float | None = None
    owner: str = ""

    def __post_init__(self) -> None:
        if not self.alternatives or not all(self.alternatives):
            raise Invalid(f"group {self.id!r} has no members; give at least one bundle, for example {{'CPU': 1}}")
        ids = [self.id, *(member.id for member in self.all_members)]
        if len(set(ids)) < len(ids):
            raise Invalid(
                f"group {self.id!r} names a member twice, or like itself; every member needs an id of its own"
            )
        for member in self.all_members:
            if len(member.choices) > 1:
                raise Invalid(
                    f"member {member.id!r} of group {self.id!r} has fallbacks of its own; give the group "
                    f"another alternative instead"
                )

    @property
    def all_members(self) -> tuple[Ask, ...]:
        """The members of all alternatives."""
        return tuple(member for members in self.alternatives for member in members)

    @property
    def shape_key(self) -> tuple[Any, ...]:
        members = tuple(tuple(member.shape_key for member in members) for members in self.alternatives)
        return (members, self.strategy, self.topology)
