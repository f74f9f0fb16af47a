"""Small random clusters and work, for hypothesis: few names, so that they collide.

Rule: every field of every type of the language can take every kind of value here, but mostly takes a simple one, so
that work fits often enough. Everything is made from one kind of draw, a number below n, which is fast and shrinks
towards the simple value: the first option is always the simplest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import strategies as st

from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskSubmitted,
    ClaimChanged,
    ClaimEnded,
    Fact,
    GroupEnded,
    NodeDrained,
    NodeLabelled,
    NodeLeft,
    NodeTainted,
)
from stead.language.asks import Affinity, Ask, Choice, Group, HostPort, PolicyName, Preference, Spread, Strategy
from stead.language.claims import Claim
from stead.language.labels import ANYWHERE, Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.resources import NOTHING, Resources
from stead.language.taints import Effect, Taint, Toleration

T = TypeVar("T")
Words = Mapping[str, Sequence[str]]

NODE_IDS = ("n0", "n1", "n2", "n3", "n4", "n5")
ASK_IDS = ("w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9")
GROUP_IDS = ("g0", "g1", "g2")
NAMED_IDS = (*ASK_IDS[:4], "g0.0.0")
"""The ids that affinities speak of: few, so that they often come and go; one is that of a member of a group."""
ONE_AT_A_TIME = tuple(policy for policy in PolicyName if not policy.in_batches)
"""The others are held against an oracle of their own (tests/flow)."""
TAINT_KEYS = ("gpu", "spot")
TAINT_VALUES = ("", "x", "y")

CLAIM_IDS = ("c0", "c1", "c2")
DRIVERS = ("ebs", "nfs")

NODE_LABELS: Words = {
    "zone": ("a", "b", ""),
    "tier": ("1", "2", "10", "-3", "+2", "x", "9223372036854775808"),
    "rack": ("r1", "r2"),
}
NODE_NAMES: Words = {"node_name": ("name-n0", "name-n1")}
NODE_ID_LABELS: Words = {"node_id": NODE_IDS, "ray.io/node-id": NODE_IDS}
WORK_LABELS: Words = {"app": ("web", "db", ""), "size": ("1", "7")}
TOPOLOGIES = ("node_id", "zone", "zone", "rack")
CAPACITIES = {"CPU": (8, 4, 2, 8, 0), "memory": (4096, 4096, 4096, 0), "GPU": (2, 1, 3, 0), "disk": (2, 2, 2, 0)}
NEEDS = {
    "CPU": (0, 0.5, 1, 1, 2),
    "memory": (0, 0, 0, 0, 1024),
    "GPU": (0, 0, 0, 0, 0, 0.25, 0.5, 1, 2),
    "disk": (0, 0, 0, 0, 1),
}


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes values from `below`, which draws a number from 0 to one less than its argument."""

    below: Callable[[int], int]

    def one(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def rarely(self, one_in: int = 3) -> bool:
        return self.below(one_in) == one_in - 1

    def some(self, make: Callable[[], T], least: int, most: int) -> list[T]:
        return [make() for _ in range(least + self.below(most - least + 1))]

    def resources(self, amounts: Mapping[str, Sequence[float]]) -> Resources:
        return Resources.of({name: self.one(values) for name, values in amounts.items()})

    def labels(self, of: Words) -> Labels:
        pairs = {key: self.one((*values, None)) for key, values in of.items()}
        return Labels({key: value for key, value in pairs.items() if value is not None})

    def taint(self) -> Taint:
        return Taint(self.one(TAINT_KEYS), self.one(TAINT_VALUES), self.one(tuple(Effect)))

    def node(self, id: str) -> Node:
        taints = self.some(self.taint, 1, 3) if self.rarely(4) else []
        return Node(
            id,
            self.resources(CAPACITIES),
            self.labels(NODE_LABELS),
            tuple({(taint.key, taint.effect): taint for taint in taints}.values()),
            ip=self.one(("", f"10.0.0.{id[1:]}")),
            name=self.one(("", f"name-{id}")),
            draining=self.rarely(12),
            volumes=self.volumes() if self.rarely() else (),
        )

    def volumes(self) -> tuple[tuple[str, int], ...]:
        return tuple((driver, self.one((1, 0, 2))) for driver in DRIVERS[: 1 + self.below(2)])

    def claim(self) -> Claim:
        return Claim(
            self.one(CLAIM_IDS),
            self.node_selector() if self.rarely(2) else ANYWHERE,
            self.one((False, False, True)),
            self.one(("ebs", "", "nfs")),
            self.one((True, True, False)),
            "is being deleted" if self.rarely(6) else "",
        )

    def requirement(self, of: Words) -> Requirement:
        key = self.one(tuple(of))
        match self.below(8):
            case 0 | 1 | 2:
                return Requirement.is_in(key, *self.some(lambda: self.one(of[key]), 1, 2))
            case 3:
                return Requirement.not_in(key, *self.some(lambda: self.one(of[key]), 1, 2))
            case 4:
                return Requirement.exists(key)
            case 5:
                return Requirement.does_not_exist(key)
            case 6:
                return Requirement.greater_than(key, self.below(16) - 4)
            case _:
                return Requirement.less_than(key, self.below(16) - 4)

    def selector(self, of: Words) -> Selector:
        term_count = self.one((1, 1, 1, 1, 1, 1, 2, 3, 0))
        terms = [tuple(self.some(lambda: self.requirement(of), 0, 2)) for _ in range(term_count)]
        return Selector(tuple(terms))

    def node_selector(self, by_id: bool = True) -> Selector:
        return self.selector({**NODE_LABELS, **NODE_NAMES, **(NODE_ID_LABELS if by_id else {})})

    def work_selector(self, by_id: bool = True) -> Selector:
        """Mostly one value of one label, so that it often matches."""
        if not self.rarely(3):
            return Selector.all_of(Requirement.is_in("app", self.one(WORK_LABELS["app"])))
        if by_id and self.rarely(2):
            return Selector.all_of(Requirement.is_in("ask_id", *self.some(lambda: self.one(NAMED_IDS), 1, 2)))
        return self.selector({**WORK_LABELS, "ask_id": NAMED_IDS} if by_id else WORK_LABELS)

    def toleration(self) -> Toleration:
        return Toleration(
            self.one((*TAINT_KEYS, None)),
            frozenset(self.some(lambda: self.one(TAINT_VALUES), 0, 2)),
            complement=self.one((True, False)),
            effect=self.one((None, *Effect)),
            seconds=self.one((None, None, 0.0, 5.0, 20.0, -1.0)),
        )

    def affinity(self) -> Affinity:
        return Affinity(
            self.work_selector(),
            near=self.one((True, False)),
            topologies=tuple(dict.fromkeys(self.some(lambda: self.one(TOPOLOGIES), 1, 2 if self.rarely(4) else 1))),
            namespaces=self.one((None, None, frozenset[str](), frozenset({"blue"}), frozenset({"", "blue"}))),
            symmetric=self.one((False, True)),
        )

    def affinities(self) -> tuple[tuple[Affinity, ...], ...]:
        if not self.rarely(3):
            return ((self.affinity(),),)
        return tuple(self.some(lambda: tuple(self.some(self.affinity, 0, 2)), 1, 2))

    def spread(self) -> Spread:
        return Spread(
            self.one(TOPOLOGIES),
            self.work_selector(by_id=False),
            1 + self.below(2),
            min_domains=self.one((1, 1, 1, 2, 3)),
            by_selector=self.one((True, True, False)),
            by_taints=self.one((False, False, True)),
        )

    def preference(self) -> Preference:
        wants: tuple[Callable[[], Selector | Affinity | Spread], ...] = (
            self.node_selector,
            self.affinity,
            self.spread,
        )
        return Preference(self.one(wants)(), self.one((1, 50, 100)))

    def ask(self, id: str, choice_count_max: int = 2, by_id: bool = True, one_in: int = 3) -> Ask:
        """Each special field is used once in `one_in` times."""

        def choice() -> Choice:
            return Choice(self.resources(NEEDS), self.node_selector(by_id) if self.rarely(one_in) else ANYWHERE)

        return Ask(
            id,
            tuple(self.some(choice, 1, choice_count_max if self.rarely() else 1)),
            tuple(self.some(self.toleration, 1, 2) if self.rarely() else ()),
            self.affinities() if self.rarely(one_in) else (),
            tuple(self.some(self.spread, 1, 2) if self.rarely(one_in + 2) else ()),
            tuple(self.some(self.preference, 1, 2) if self.rarely() else ()),
            self.labels(WORK_LABELS),
            "blue" if self.rarely() else "",
            self.one(ONE_AT_A_TIME),
            priority=self.one((-1, 1)) if self.rarely(4) else 0,
            deadline=self.one((5.0, 30.0, 100.0)) if self.rarely(6) else None,
            ports=tuple(self.some(self.port, 1, 2) if self.rarely(6) else ()),
            images=tuple(self.some(lambda: self.one(("a", "b")), 1, 2) if self.rarely(6) else ()),
            estimates=self.resources(NEEDS) if self.rarely(6) else NOTHING,
            pulls=tuple(self.some(self.pull, 1, 2) if self.rarely(6) else ()),
            claims=tuple(self.some(lambda: self.one(CLAIM_IDS), 1, 2) if self.rarely(one_in + 1) else ()),
        )

    def port(self) -> HostPort:
        return HostPort(self.one((80, 443)), self.one(("TCP", "UDP")), self.one(("", "10.0.0.1", "10.0.0.2")))

    def pull(self) -> Preference:
        return Preference(replace(self.affinity(), selector=self.work_selector(by_id=False)), self.one((1, 50, 100)))

    def group(self) -> Group:
        """Members are named after their group, ``g0.0.1``: the second member of the first alternative."""
        id, alternatives = self.one(GROUP_IDS), []
        for index in range(self.one((1, 1, 2))):
            count = self.one((2, 1, 2, 3))
            alternatives.append(tuple(self.ask(f"{id}.{index}.{n}", 1, False, 6) for n in range(count)))
        return Group(
            id,
            tuple(alternatives),
            self.one(tuple(Strategy)),
            ((self.one(("zone", "rack")), self.one(tuple(Strategy))),) if self.rarely() else (),
            priority=self.one((-1, 1)) if self.rarely(4) else 0,
            deadline=self.one((5.0, 100.0)) if self.rarely(6) else None,
            min_available=self.one((1, min(map(len, alternatives)))) if self.rarely() else None,
            timeout_s=5.0 if self.rarely(4) else None,
        )

    def simple_fact(self) -> Fact:
        """A fact that does not depend on earlier ones."""
        kinds: tuple[Callable[[], Fact], ...] = (
            lambda: AskSubmitted(self.ask(self.one(ASK_IDS))),
            lambda: NodeLeft(self.one(NODE_IDS)),
            lambda: NodeLabelled(self.one(NODE_IDS), self.labels(NODE_LABELS)),
            lambda: NodeTainted(self.one(NODE_IDS), self.taint()),
            lambda: NodeDrained(self.one(NODE_IDS), self.one((False, True))),
            lambda: AskEnded(self.one(ASK_IDS)),
            lambda: AskLost(self.one(ASK_IDS)),
            lambda: GroupEnded(self.one(GROUP_IDS)),
            lambda: ClaimChanged(self.claim()),
            lambda: ClaimEnded(self.one(CLAIM_IDS)),
        )
        return self.one(kinds)()


_NUMBERS_BELOW = [st.integers(0, max(0, n - 1)) for n in range(17)]


@st.composite
def made(draw: st.DrawFn, make: Callable[[Maker], T]) -> T:
    """A hypothesis strategy for what a maker makes."""
    return make(Maker(lambda n: draw(_NUMBERS_BELOW[n])))


def capacities() -> st.SearchStrategy[Resources]:
    return made(lambda maker: maker.resources(CAPACITIES))


def node_labels() -> st.SearchStrategy[Labels]:
    return made(lambda maker: maker.labels(NODE_LABELS))


def taints() -> st.SearchStrategy[Taint]:
    return made(Maker.taint)


def nodes(ids: Sequence[str] = NODE_IDS) -> st.SearchStrategy[Node]:
    return made(lambda maker: maker.node(maker.one(ids)))


def clusters(sizes: Sequence[int] = (4, 5, 3, 2, 6, 1, 0)) -> st.SearchStrategy[list[Node]]:
    return made(lambda maker: [maker.node(id) for id in NODE_IDS[: maker.one(sizes)]])


def asks(ids: Sequence[str] = ASK_IDS, choice_count_max: int = 2, one_in: int = 3) -> st.SearchStrategy[Ask]:
    return made(lambda maker: maker.ask(maker.one(ids), choice_count_max, one_in=one_in))


def some_asks(most: int = 3) -> st.SearchStrategy[list[Ask]]:
    return made(lambda maker: maker.some(lambda: maker.ask(maker.one(ASK_IDS)), 1, most))


def claims() -> st.SearchStrategy[Claim]:
    return made(Maker.claim)


def groups() -> st.SearchStrategy[Group]:
    return made(Maker.group)


def simple_facts() -> st.SearchStrategy[list[Fact]]:
    return made(lambda maker: maker.some(maker.simple_fact, 1, 4))
