"""What work asks for: an Ask, its choices, and Groups of asks.

Rule: an ask is a plain value that describes what is wanted, not how to find it. Everything that can affect which node
it gets is part of its shape (`shape_key`); its id, priority, deadline and owner are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypedDict, Unpack, cast

from stead.errors import Invalid, one_of
from stead.language.claims import ClaimId
from stead.language.labels import ANYWHERE, EMPTY, NODE_ID, Labels, Requirement, Selector
from stead.language.resources import DEVICES, NOTHING, UNIT, Amount, Resources, amount_text
from stead.language.taints import Toleration

AskId = str
GroupId = str

ASK_ID = "ask_id"
"""The label key by which affinities can find every placed ask, in addition to its own labels."""

WEIGHT_MIN, WEIGHT_MAX = 1, 100


class PolicyName(StrEnum):
    """How to choose among the nodes that would take the work.

    Attributes:
        HYBRID: Fill one node after the other up to half, then use the emptiest first, as Ray does. The default.
        PACK: The fullest node.
        SPREAD: The emptiest node.
        RANDOM: Any node.
        FLOW: Decide all pending work of this policy together, as a min-cost flow that spreads the load.
        FLOW_PACK: The same, but it packs nodes.
        FLOW_FGD: The same, but with as little fragmentation of GPUs as possible.
        KUBE: The node with the highest score of kube-scheduler's default plugins. The default on Kubernetes.

    Example:
        ```python
        Ask.of("train", {"GPU": 1}, policy=PolicyName.PACK)
        ```
    """

    HYBRID = "hybrid"
    PACK = "pack"
    SPREAD = "spread"
    RANDOM = "random"
    FLOW = "flow"
    FLOW_PACK = "flow-pack"
    FLOW_FGD = "flow-fgd"
    KUBE = "kube"

    @staticmethod
    def of(name: object) -> PolicyName:
        """The policy called `name`, for example ``"flow-pack"``; raises `Invalid` if there is none."""
        return one_of(PolicyName, name, "policy")

    @property
    def in_batches(self) -> bool:
        """Whether all pending work with this policy is decided together, as one min-cost flow."""
        return self in _IN_BATCHES

    # Every shape key contains the policy and is hashed for every ask: the plain hash of a string is fast.
    __hash__ = str.__hash__


_IN_BATCHES = frozenset({PolicyName.FLOW, PolicyName.FLOW_PACK, PolicyName.FLOW_FGD})


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run an ask: these resources, on a node that the selector matches.

    Attributes:
        resources: What it needs, in units.
        selector: What the node's labels must be.

    Example:
        ```python
        Choice(Resources.of(GPU=1), parse_selector("gpu_type in [A100]"))
        ```
    """

    resources: Resources = NOTHING
    selector: Selector = ANYWHERE
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in DEVICES & self.resources.keys():
            if self.resources[name] > UNIT and self.resources[name] % UNIT:
                raise Invalid(
                    f"you cannot ask for {amount_text(name, self.resources[name])}: above 1 it must be whole devices, "
                    f"for example 2; below 1 it is a share of one device, for example 0.5"
                )
        object.__setattr__(self, "_hash", hash((self.resources, self.selector)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (Choice, (self.resources, self.selector))


@dataclass(frozen=True, slots=True)
class Affinity:
    """Where work must be relative to other work: in the same domain, or in another one.

    The other work is every placed ask whose labels (and `ask_id`) match. A domain is all nodes with one value of a
    topology key; with ``node_id`` it is the node itself. If nothing placed matches and the ask matches itself, it may
    go to every node that has the keys, so that the first of a set can start.

    Attributes:
        selector: What the labels of the other work must be.
        near: True to be in the domain of the other work, False to be outside of it.
        topologies: The label keys that define the domains; with several keys, it must hold for each of them.
        namespaces: Where to look for the other work. None means the ask's own; the empty set means all.
        symmetric: Only if `near` is False: matching work that is placed later may not enter the domain either.

    Example:
        ```python
        Affinity(parse_selector("app=db"), near=False, topologies=("zone",))
        ```
    """

    selector: Selector
    near: bool = True
    topologies: tuple[str, ...] = (NODE_ID,)
    namespaces: frozenset[str] | None = None
    symmetric: bool = False

    @property
    def by_identity(self) -> bool:
        """Whether it names asks by their ids; then the exception for the first ask of a set does not apply."""
        return ASK_ID in self.selector.keys


@dataclass(frozen=True, slots=True)
class Spread:
    """Work is spread evenly over the values of a label key.

    No value may have more matching asks than the value with the fewest, plus `max_skew`. Values are counted on live
    nodes that have the keys of all its spreads and, by default, that the ask's own selector matches; a node without the
    key is refused. The ask counts itself if it matches.

    Attributes:
        topology: The label key.
        selector: Which asks to count, by their labels, in the namespace of the ask.
        max_skew: The maximum difference, 1 or more.
        min_domains: While there are fewer values than this, the smallest number counts as 0.
        by_selector: Whether only nodes count that the ask's selector matches.
        by_taints: Whether only nodes count whose taints the ask tolerates.
        needs_key: For a preference with the policy ``kube``: whether nodes without the key get the lowest score.

    Example:
        ```python
        Spread("zone", parse_selector("app=web"), max_skew=1)
        ```
    """

    topology: str
    selector: Selector
    max_skew: int = 1
    min_domains: int = 1
    by_selector: bool = True
    by_taints: bool = False
    needs_key: bool = True

    def __post_init__(self) -> None:
        for name, number in (("max skew", self.max_skew), ("min domains", self.min_domains)):
            if number < 1:
                raise Invalid(f"{name} must be at least 1, but is {number}")


@dataclass(frozen=True, slots=True)
class Preference:
    """What work prefers. Nodes where it holds score higher; other nodes are not refused.

    Attributes:
        want: What is preferred.
        weight: How much it counts, from 1 to 100.

    Example:
        ```python
        Preference(parse_selector("disk=ssd"), weight=50)
        ```
    """

    want: Selector | Affinity | Spread
    weight: int = WEIGHT_MAX

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not isinstance(self.weight, int):
            raise Invalid(f"weight {self.weight!r} must be a whole number from {WEIGHT_MIN} to {WEIGHT_MAX}")
        if not WEIGHT_MIN <= self.weight <= WEIGHT_MAX:
            raise Invalid(f"weight {self.weight} is out of range: it must be from {WEIGHT_MIN} to {WEIGHT_MAX}")


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the node itself. Two pieces of work on one node cannot have the same port and protocol, unless both
    name an address and the addresses differ.

    Attributes:
        port: The number of the port.
        protocol: ``TCP``, ``UDP`` or ``SCTP``.
        ip: The address of the node; empty means all addresses.

    Example:
        ```python
        HostPort(8080)
        ```
    """

    port: int
    protocol: str = "TCP"
    ip: str = ""

    @property
    def number(self) -> str:
        """Protocol and port without the address, for example ``TCP/8080``."""
        return f"{self.protocol}/{self.port}"

    def __str__(self) -> str:
        return f"{self.number} on {self.ip}" if self.ip else self.number


def locality(*node_ids: str, weight: int = WEIGHT_MAX) -> Preference:
    """Prefer nodes that already have what the work needs, such as its input or its caller.

    Args:
        *node_ids: The ids of the nodes.
        weight: How much it counts, from 1 to 100.

    Returns:
        The preference.

    Raises:
        Invalid: The weight is out of range.

    Example:
        ```python
        Ask.of("reduce", {"CPU": 1}, prefers=(locality("node-1", "node-2"),))
        ```
    """
    return Preference(Selector.all_of(Requirement.is_in(NODE_ID, *node_ids)), weight)


class AskOptions(TypedDict, total=False):
    """The options of `Ask.of`: the other fields of `Ask`. Labels may be a plain map, and the policy may be its name.

    Attributes:
        tolerations: The taints that it tolerates.
        affinities: Where it must be relative to other work, an OR of ANDs.
        spreads: Over which label keys equal work is spread.
        prefers: What it prefers.
        labels: Its own labels.
        namespace: Its namespace.
        policy: How to choose among the nodes that would take it.
        priority: Higher goes first.
        deadline: When to refuse it, on the engine's clock.
        owner: Who it belongs to.
        ports: The ports that it opens on its node.
        images: The container images that it runs, one entry for each container.
        estimates: What scores assume that it uses in addition to what it requests.
        pulls: What it prefers of work that is placed later.
        preempts: Whether work of a lower priority may be evicted for it.
        preemptible: Whether it may be evicted for work of a higher priority.
        claims: The claims that it uses.
    """

    tolerations: tuple[Toleration, ...]
    affinities: tuple[tuple[Affinity, ...], ...]
    spreads: tuple[Spread, ...]
    prefers: tuple[Preference, ...]
    labels: Mapping[str, str]
    namespace: str
    policy: str | PolicyName
    priority: int
    deadline: float | None
    owner: str
    ports: tuple[HostPort, ...]
    images: tuple[str, ...]
    estimates: Resources
    pulls: tuple[Preference, ...]
    preempts: bool
    preemptible: bool
    claims: tuple[ClaimId, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """One piece of work that needs a node. `Ask.of` creates one from plain maps and text.

    Attributes:
        id: Its id, unique among asks and groups.
        choices: What it needs; later choices are fallbacks, tried in order.
        tolerations: The taints that it tolerates.
        affinities: Where it must be relative to other work, an OR of ANDs.
        spreads: Over which label keys equal work is spread.
        prefers: What it prefers.
        labels: Its own labels, which other work can refer to.
        namespace: Where other work looks for these labels.
        policy: How to choose among the nodes that would take it.
        priority: Higher goes first; among equals, the one that has waited longer.
        deadline: When to refuse it if it is still pending, on the engine's clock.
        owner: Who it belongs to, such as a job. Placement ignores it.
        ports: The ports that it opens on its node; a node where one of them is taken is refused.
        images: The container images that it runs, one entry for each container. Only the policy ``kube`` scores them.
        estimates: What the policy ``kube`` assumes that it uses, in addition to what it requests.
        pulls: What it prefers of work that is placed later: with the policy ``kube``, matching work scores nodes in its
            domain higher, or lower if the preference is to be apart.
        preempts: Whether preemptible work of a lower priority may be evicted for it, if it fits no node.
        preemptible: Whether it may be evicted for work of a higher priority.
        claims: The claims that it uses, by id; a node that cannot use one of them is refused.

    Example:
        ```python
        Ask.of("train", {"GPU": 1}, parse_selector("zone=a"), priority=10)
        ```
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
    ports: tuple[HostPort, ...] = ()
    images: tuple[str, ...] = ()
    estimates: Resources = NOTHING
    pulls: tuple[Preference, ...] = ()
    preempts: bool = True
    preemptible: bool = False
    claims: tuple[ClaimId, ...] = ()

    def __post_init__(self) -> None:
        if not self.choices:
            raise Invalid(f"ask {self.id!r} has no choice; give at least one, for example Choice()")
        # Accept plain maps and strings.
        labels: Any = self.labels
        policy: Any = self.policy
        if not isinstance(labels, Labels):
            object.__setattr__(self, "labels", Labels.checked(labels))
        if not isinstance(policy, PolicyName):
            object.__setattr__(self, "policy", PolicyName.of(policy))

    @staticmethod
    def of(
        id: str,
        resources: Mapping[str, Amount] | None = None,
        selector: Selector = ANYWHERE,
        **rest: Unpack[AskOptions],
    ) -> Ask:
        """An ask with one choice, from plain maps and text.

        Args:
            id: Its id, unique among asks and groups.
            resources: Amounts by name, for example ``{"CPU": 2, "memory": "2Gi"}``.
            selector: What the node's labels must be.
            **rest: The other fields; see `AskOptions`.

        Returns:
            The ask.

        Raises:
            Invalid: An amount, a label or the policy is not valid.

        Example:
            ```python
            Ask.of("train", {"GPU": 1}, labels={"app": "train"}, policy="pack")
            ```
        """
        return Ask(id, (Choice(Resources.of(resources), selector),), **cast(dict[str, Any], rest))

    @property
    def shape_key(self) -> tuple[object, ...]:
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
            self.ports,
            self.images,
            self.estimates,
            self.pulls,
            self.preempts,
            self.claims,
        )


class Strategy(StrEnum):
    """Where the members of a group are relative to each other, by node or by a label key.

    Attributes:
        PACK: On as few nodes as possible.
        SPREAD: On as many nodes as possible.
        STRICT_PACK: All on one node.
        STRICT_SPREAD: Each on a node of its own.
        ANY: Each where its own policy puts it.

    Example:
        ```python
        Group("ring", (members,), Strategy.STRICT_SPREAD)
        ```
    """

    PACK = "PACK"
    SPREAD = "SPREAD"
    STRICT_PACK = "STRICT_PACK"
    STRICT_SPREAD = "STRICT_SPREAD"
    ANY = "ANY"

    @staticmethod
    def of(name: object) -> Strategy:
        """The strategy called `name`, for example ``"PACK"``; raises `Invalid` if there is none."""
        return one_of(Strategy, name, "strategy")

    @property
    def strict(self) -> bool:
        """Whether the group stays pending if the strategy cannot be met."""
        return self in (Strategy.STRICT_PACK, Strategy.STRICT_SPREAD)


@dataclass(frozen=True, slots=True)
class Group:
    """Asks that are placed together or not at all (a gang); with `min_available`, at least so many of them together,
    and the others as they fit.

    Attributes:
        id: Its id, unique among asks and groups.
        alternatives: Sets of members, tried in order. Each member has one choice, and an id that is unique across all
            alternatives.
        strategy: Where the members are relative to each other, by node.
        topology: The same by label key: pairs of a key and its strategy.
        priority: Higher goes first. It is the priority of every member.
        deadline: When to refuse it if it is still pending, on the engine's clock.
        owner: Who it belongs to. Placement ignores it.
        min_available: How many members must be placed at once; None means all. It may be more than there are members
            so far: then the group waits for more.
        timeout_s: How long the group may hold places while fewer members than its minimum are placed, and how long
            nodes stay reserved for it, in seconds; None means without limit.

    Example:
        ```python
        Group("ring", ((Ask.of("ring/0", {"GPU": 1}), Ask.of("ring/1", {"GPU": 1})),), Strategy.SPREAD)
        ```
    """

    id: GroupId
    alternatives: tuple[tuple[Ask, ...], ...]
    strategy: Strategy = Strategy.PACK
    topology: tuple[tuple[str, Strategy], ...] = ()
    priority: int = 0
    deadline: float | None = None
    owner: str = ""
    min_available: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if not self.alternatives or not all(self.alternatives):
            raise Invalid(f"group {self.id!r} has no members; give at least one bundle, for example {{'CPU': 1}}")
        if any(member.priority != self.priority for member in self.all_members):
            ranked = (tuple(replace(each, priority=self.priority) for each in members) for members in self.alternatives)
            object.__setattr__(self, "alternatives", tuple(ranked))
        ids = [self.id, *(member.id for member in self.all_members)]
        if len(set(ids)) < len(ids):
            raise Invalid(
                f"group {self.id!r} has two members with one id, or a member with its own id; give each a unique id"
            )
        for member in self.all_members:
            if len(member.choices) > 1:
                raise Invalid(
                    f"member {member.id!r} of group {self.id!r} has its own fallbacks; give the group another "
                    f"alternative instead"
                )
        self._check_minimum()

    def _check_minimum(self) -> None:
        least, fewest = self.min_available, min(map(len, self.alternatives))
        if least is not None and (isinstance(least, bool) or not isinstance(least, int) or least < 1):
            raise Invalid(f"group {self.id!r} needs a whole number as min_available, for example 2, not {least!r}")
        if least is not None and len(self.alternatives) > 1 and fewest < least:
            raise Invalid(
                f"group {self.id!r} has an alternative with {fewest} members, but min_available is {least}; give each "
                f"alternative at least {least} members"
            )
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise Invalid(f"group {self.id!r} needs a time-out above 0 seconds, for example 60, not {self.timeout_s}")

    def least(self, alternative: int) -> int:
        """How many members of an alternative must be placed at once."""
        return len(self.alternatives[alternative]) if self.min_available is None else self.min_available

    @property
    def all_members(self) -> tuple[Ask, ...]:
        """The members of all alternatives."""
        return tuple(member for members in self.alternatives for member in members)

    @property
    def shape_key(self) -> tuple[object, ...]:
        """Everything that can affect its placement. Groups with equal keys are interchangeable."""
        members = tuple(tuple(member.shape_key for member in members) for members in self.alternatives)
        return (members, self.strategy, self.topology, self.min_available)
