"""Shapes: what equal asks share. Rules are compiled once per shape.

Rule: a `Shape` is immutable, so forks share it.
"""

from __future__ import annotations

from collections.abc import Iterable

from stead.engine.columns.change_log import NODES, TAINTS, Column
from stead.engine.fleet import Fleet, Nodes
from stead.engine.ranking.policies import Policy
from stead.engine.rules import HoldsAffinity, NotSkewed, Rules, World, allowed, compile_rules
from stead.engine.work import Kind, Work
from stead.language.asks import Affinity, Ask, Choice, PolicyName, Preference, Spread
from stead.language.labels import Selector
from stead.language.resources import DEVICES
from stead.language.taints import Effect, Taint, Toleration, tolerated

TAINT_PENALTY = 100


class Demand:
    """One choice of a shape, compiled."""

    __slots__ = (
        "estimates",
        "images",
        "index",
        "is_kube",
        "kind",
        "needs",
        "on_devices",
        "policy",
        "prefers",
        "pulls",
        "rules",
        "selector",
        "tolerations",
    )

    def __init__(self, index: int, choice: Choice, shape: Shape, ask: Ask, policy: Policy) -> None:
        self.index = index
        self.kind: Kind = (ask.namespace, ask.labels)
        self.needs: tuple[tuple[str, int], ...] = tuple(choice.resources.items())
        self.on_devices = any(resource in DEVICES for resource, _ in self.needs)
        self.selector = choice.selector
        self.tolerations: tuple[Toleration, ...] = ask.tolerations
        self.prefers: tuple[Preference, ...] = ask.prefers
        self.pulls: tuple[Preference, ...] = ask.pulls
        self.images, self.estimates = ask.images, ask.estimates
        self.policy = policy
        self.is_kube = ask.policy is PolicyName.KUBE
        self.rules: Rules = compile_rules(
            choice, self.kind, ask.tolerations, ask.affinities, ask.spreads, shape, ask.ports, ask.claims
        )

    def reads(self, work: Work) -> tuple[Column, ...]:
        """Every column, except amounts, that can change where it may go or what it prefers (with the policy ``kube``:
        only where it may go)."""
        columns: dict[Column, None] = {NODES: None, TAINTS: None}
        for rule in self.rules.before_amounts:
            columns.update(dict.fromkeys(rule.reads(work)))
        for preference in self.prefers if not self.is_kube else ():
            columns.update(dict.fromkeys(self._preference_reads(preference, work)))
        return tuple(columns)

    def preferences(self, world: World) -> list[tuple[Nodes, int]]:
        """Sets of nodes, each with its weight in the ask's preferences."""
        worth = [(self._preferred(preference, world), preference.weight) for preference in self.prefers]
        return worth + self.avoided(world.fleet)

    def avoided(self, fleet: Fleet) -> list[tuple[Nodes, int]]:
        """For each prefer-no-schedule taint that it does not tolerate, the nodes that have it, and what that costs."""
        return fleet.about_taints(("avoided", self.tolerations), self._avoided)

    def _avoided(self, taints: Iterable[tuple[Taint, Nodes]]) -> list[tuple[Nodes, int]]:
        avoided = [(taint, nodes) for taint, nodes in taints if taint.effect is Effect.PREFER_NO_SCHEDULE]
        return [(nodes, -TAINT_PENALTY) for taint, nodes in avoided if not tolerated(taint, self.tolerations)]

    def _preference_reads(self, preference: Preference, work: Work) -> tuple[Column, ...]:
        want = preference.want
        if isinstance(want, Affinity):
            return HoldsAffinity(want, self.kind).reads(work)
        if isinstance(want, Spread):
            return NotSkewed(want, self.selector, self.tolerations, self.kind, (want.topology,)).reads(work)
        return tuple(Column("label", key) for key in sorted(want.keys))

    def _preferred(self, preference: Preference, world: World) -> Nodes:
        want = preference.want
        if isinstance(want, Affinity):
            return HoldsAffinity(want, self.kind).holds(world)
        if isinstance(want, Spread):
            return allowed((NotSkewed(want, self.selector, self.tolerations, self.kind, (want.topology,)),), world)
        return world.fleet.selected(want)


class Shape:
    """Everything about an ask that can affect its placement, compiled. `one_by_one`: placing one ask may change where
    the next may go (it has affinities, spreads, ports, claims or a random policy), so they are placed one at a time.
    `batch`: the policy that decides such asks in batches, if any."""

    __slots__ = ("batch", "demands", "key", "kind", "one_by_one", "policy")

    def __init__(self, ask: Ask, policy: Policy) -> None:
        self.key = ask.shape_key
        self.kind: Kind = (ask.namespace, ask.labels)
        self.demands = tuple(Demand(index, choice, self, ask, policy) for index, choice in enumerate(ask.choices))
        looks_at_work = any(not isinstance(preference.want, Selector) for preference in ask.prefers)
        affects_work = bool(ask.affinities or ask.spreads or ask.ports or ask.pulls or ask.claims)
        self.one_by_one = affects_work or looks_at_work or policy.by_chance
        self.policy = ask.policy
        self.batch = ask.policy if ask.policy.in_batches and not self.one_by_one else None
