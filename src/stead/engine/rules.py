"""Every reason a node may be refused.

Rule: a rule looks at all nodes at once and yields the sets it refuses, each with a typed reason. Nothing else in the
engine may refuse a node. Decisions and explanations use the same refusals: `allowed` is their complement, and `reads`
lists every column that can change the answer.

`compile_rules` lists them in blame order: a node that several rules refuse is counted under the first.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from stead.engine.columns.change_log import DRAINING, KEEPERS, RESERVED, TAINTS, Column
from stead.engine.counts import DomainCounts
from stead.engine.fleet import Domains, Fleet, Nodes, from_flags
from stead.engine.reasons import (
    ApartFromGroup,
    ClaimBeingBound,
    ClaimElsewhere,
    ClaimInUse,
    ClaimUnusable,
    Draining,
    HasMember,
    KeptAway,
    LacksLabel,
    NeverFits,
    NoAlternativeHolds,
    NoTermMatches,
    NotNear,
    PortTaken,
    Reason,
    Reserved,
    ShortOf,
    Skewed,
    Tainted,
    TargetDead,
    TooManyVolumes,
    TooNear,
)
from stead.engine.work import Kind, Matching, Work, meant_by
from stead.language.asks import Affinity, Choice, HostPort, Spread, Strategy
from stead.language.claims import ClaimId
from stead.language.labels import NODE_ID_KEYS, Operator, Requirement, Selector
from stead.language.taints import Taint, Toleration, tolerated


@dataclass(frozen=True, slots=True)
class Hold:
    """Nodes reserved for work that has been pending too long. `holder` is its shape, `owner` its id."""

    owner: str
    holder: object
    nodes: Nodes


@dataclass(slots=True)
class World:
    """What rules may read."""

    fleet: Fleet
    work: Work
    hold: Hold | None = None


Refused = Iterator[tuple[Reason, Nodes]]


class Rule(Protocol):
    def reads(self, work: Work) -> tuple[Column, ...]:
        """Every column that can change what the rule refuses."""

    def refusals(self, world: World) -> Refused:
        """Sets of live nodes that are refused, each with its reason, in blame order. They may overlap."""


@dataclass(frozen=True, slots=True)
class NotDraining:
    def reads(self, work: Work) -> tuple[Column, ...]:
        return (DRAINING,)

    def refusals(self, world: World) -> Refused:
        yield Draining(), world.fleet.draining


@dataclass(frozen=True, slots=True)
class HasLabel:
    """One requirement of a selector that has one term."""

    requirement: Requirement

    def reads(self, work: Work) -> tuple[Column, ...]:
        return (Column("label", self.requirement.key),)

    def refusals(self, world: World) -> Refused:
        yield LacksLabel(self.requirement), world.fleet.alive & ~world.fleet.matching(self.requirement)


@dataclass(frozen=True, slots=True)
class MatchesSelector:
    """A selector with several terms, or with none."""

    selector: Selector

    def reads(self, work: Work) -> tuple[Column, ...]:
        return tuple(Column("label", key) for key in sorted(self.selector.keys))

    def refusals(self, world: World) -> Refused:
        yield NoTermMatches(self.selector), world.fleet.alive & ~world.fleet.selected(self.selector)


@dataclass(frozen=True, slots=True)
class ReachesClaim:
    """Work can use the claim on the node."""

    claim: ClaimId

    def reads(self, work: Work) -> tuple[Column, ...]:
        known = work.claims.known.map.get(self.claim)
        keys = sorted(known.selector.keys) if known is not None else ()
        return (Column("claim", self.claim), *(Column("label", key) for key in keys))

    def refusals(self, world: World) -> Refused:
        fleet, claim = world.fleet, world.work.claims.known.map.get(self.claim)
        if claim is None or claim.problem:
            yield ClaimUnusable(self.claim, "" if claim is None else claim.problem), fleet.alive
        else:
            refused = fleet.alive & ~fleet.selected(claim.selector)
            yield ClaimElsewhere(self.claim, claim.selector, claim.bound), refused


@dataclass(frozen=True, slots=True)
class ClaimFree:
    """No placed work uses an exclusive claim, and none on another node uses a claim that is not bound yet."""

    claim: ClaimId

    def reads(self, work: Work) -> tuple[Column, ...]:
        return Column("claim", self.claim), Column("claim-use", self.claim)

    def refusals(self, world: World) -> Refused:
        claim, users = world.work.claims.known.map.get(self.claim), world.work.claims.nodes(self.claim)
        if claim is None or not users:
            return
        if claim.exclusive:
            yield ClaimInUse(self.claim), world.fleet.alive
        elif not claim.bound:
            is_clear = not users & (users - 1)  # all users are on one node
            yield ClaimBeingBound(self.claim), world.fleet.alive & ~users if is_clear else world.fleet.alive

    def where_evicting_helps(self, world: World) -> Nodes:
        """Evicting work on one node ends these refusals only there, and only if all that uses the claim is there."""
        refuses = any(nodes for _, nodes in self.refusals(world))
        return world.work.claims.nodes(self.claim) if refuses else world.fleet.alive


@dataclass(frozen=True, slots=True)
class VolumesFit:
    """With the volumes of these claims, the node has no more volumes of a driver than it may."""

    claims: tuple[ClaimId, ...]

    def reads(self, work: Work) -> tuple[Column, ...]:
        drivers = work.claims.of_drivers(self.claims)
        columns = [Column(kind, id) for id in self.claims for kind in ("claim", "claim-use")]
        columns += [Column(kind, driver) for driver in drivers for kind in ("volumes", "volume-limits")]
        return tuple(columns)

    def refusals(self, world: World) -> Refused:
        fleet, claims = world.fleet, world.work.claims
        for driver, its in claims.of_drivers(self.claims).items():
            limits = fleet.limits.column(driver, fleet.size)
            if limits is not None:
                exceeded = from_flags(claims.volumes_with(driver, its, fleet.size) > limits)
                yield TooManyVolumes(driver), fleet.alive & exceeded


@dataclass(frozen=True, slots=True)
class HoldsAffinity:
    """One affinity of an ask whose kind is `kind`: near other work, or apart from it."""

    affinity: Affinity
    kind: Kind

    def reads(self, work: Work) -> tuple[Column, ...]:
        labels = tuple(Column("label", key) for key in self.affinity.topologies if key not in NODE_ID_KEYS)
        return (*work.columns(self.meant), *labels)

    def refusals(self, world: World) -> Refused:
        if self.affinity.near:
            is_dead = world.work.targets.have_all_ended(self.affinity.selector)
            reason = TargetDead(self.affinity) if is_dead else NotNear(self.affinity)
            yield reason, world.fleet.alive & ~self.near(world)
        else:
            yield TooNear(self.affinity), self.too_near(world)

    @property
    def meant(self) -> Matching:
        """The work that it looks at."""
        return meant_by(self.affinity.selector, self.affinity.namespaces, self.kind[0])

    @property
    def is_about_itself(self) -> bool:
        """Whether the ask is like the work that it looks at."""
        return self.meant.includes(self.kind)

    def has_begun(self, world: World) -> bool:
        """Whether matching work is in a domain."""
        placed = world.work.nodes(self.meant)
        return any(placed & world.fleet.with_key.map.get(key, 0) for key in self.affinity.topologies)

    def near(self, world: World) -> Nodes:
        """The nodes that satisfy the affinity. The first ask that must be near its own kind may go to any node with the
        topology keys."""
        fleet, affinity = world.fleet, self.affinity
        placed = world.work.nodes(self.meant)
        held = allowed = fleet.alive
        for key in affinity.topologies:
            held &= fleet.with_key.map.get(key, 0)
            allowed &= fleet.domain(placed, key)
        is_first = not affinity.by_identity and self.is_about_itself and not self.has_begun(world)
        return held if is_first else allowed

    def too_near(self, world: World) -> Nodes:
        placed = world.work.nodes(self.meant)
        found = 0
        for key in self.affinity.topologies:
            found |= world.fleet.domain(placed, key)
        return found

    def holds(self, world: World) -> Nodes:
        return self.near(world) if self.affinity.near else world.fleet.alive & ~self.too_near(world)


@dataclass(frozen=True, slots=True)
class HoldsOneAlternative:
    """Alternative affinities: a node must satisfy all affinities of at least one alternative."""

    affinities: tuple[tuple[Affinity, ...], ...]
    kind: Kind

    def reads(self, work: Work) -> tuple[Column, ...]:
        every = (HoldsAffinity(affinity, self.kind) for term in self.affinities for affinity in term)
        return tuple(dict.fromkeys(column for rule in every for column in rule.reads(work)))

    def refusals(self, world: World) -> Refused:
        found = 0
        for term in self.affinities:
            nodes = world.fleet.alive
            for affinity in term:
                nodes &= HoldsAffinity(affinity, self.kind).holds(world)
            found |= nodes
        yield NoAlternativeHolds(self.affinities), world.fleet.alive & ~found


@dataclass(frozen=True, slots=True)
class NotKeptAway:
    """No placed work in the node's domain has a symmetric anti-affinity to this kind of work."""

    kind: Kind

    def reads(self, work: Work) -> tuple[Column, ...]:
        keys = {key for affinity, _ in work.keepers(self.kind) for key in affinity.topologies}
        return (KEEPERS, *(Column("label", key) for key in sorted(keys - NODE_ID_KEYS)))

    def refusals(self, world: World) -> Refused:
        kept: dict[Affinity, Nodes] = {}
        for affinity, nodes in world.work.keepers(self.kind):
            for key in affinity.topologies:
                kept[affinity] = kept.get(affinity, 0) | world.fleet.domain(nodes, key)
        for affinity in sorted(kept, key=_text_of) if len(kept) > 1 else kept:
            yield KeptAway(affinity), kept[affinity]


def _text_of(affinity: Affinity) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """A sort key that does not depend on the iteration order of sets."""
    return str(affinity.selector), affinity.topologies, tuple(sorted(affinity.namespaces or ()))


@dataclass(frozen=True, slots=True)
class NotSkewed:
    """The counts of work in the domains of a topology key stay within the maximum skew. Only work on nodes is counted
    that have all of `keys` (the topology keys of all spreads of the ask) and, as far as the spread says so, that
    `selector` matches and whose taints `tolerations` cover."""

    spread: Spread
    selector: Selector
    tolerations: tuple[Toleration, ...]
    kind: Kind
    keys: tuple[str, ...]

    def reads(self, work: Work) -> tuple[Column, ...]:
        keys = dict.fromkeys((*self.keys, *sorted(self.selector.keys)))
        taints = (TAINTS,) if self.spread.by_taints else ()
        return (*work.columns(self.meant), *(Column("label", key) for key in keys), *taints)

    def refusals(self, world: World) -> Refused:
        fleet = world.fleet
        domains, found = self.counted(world)
        is_full = found.counts > self.limit(found.least, len(found.present))
        lacking = fleet.alive & ~fleet.with_key.map.get(self.spread.topology, 0)
        yield Skewed(self.spread), lacking | domains.nodes_of(is_full) & fleet.alive

    @property
    def meant(self) -> Matching:
        """The work that it counts."""
        return meant_by(self.spread.selector, None, self.kind[0])

    @property
    def counts_itself(self) -> bool:
        """Whether the ask is like the work that it counts."""
        return self.meant.includes(self.kind)

    def counted(self, world: World) -> tuple[Domains, DomainCounts]:
        """The domains, and the counts in them. Read them at once."""
        domains = world.fleet.domain_column(self.spread.topology)
        return domains, world.work.counts_by_domain(self.meant, domains, self._eligible(world))

    def limit(self, least: int, domains: int) -> int:
        """The greatest count with which a domain still takes the ask, if `least` is the smallest one in so many."""
        return self.spread.max_skew + (least if domains >= self.spread.min_domains else 0) - self.counts_itself

    def _eligible(self, world: World) -> Nodes:
        """The nodes whose work counts."""
        fleet = world.fleet
        nodes = fleet.selected(self.selector) if self.spread.by_selector else fleet.alive
        for key in self.keys:
            nodes &= fleet.with_key.map.get(key, 0)
        return nodes & allowed((ToleratesTaints(self.tolerations),), world) if self.spread.by_taints else nodes


@dataclass(frozen=True, slots=True)
class PortsFree:
    """No placed work on the node has opened one of these ports."""

    ports: tuple[HostPort, ...]

    def reads(self, work: Work) -> tuple[Column, ...]:
        return tuple(Column("port", port.number) for port in self.ports)

    def refusals(self, world: World) -> Refused:
        for port in self.ports:
            yield PortTaken(port), world.work.with_port(port)


@dataclass(frozen=True, slots=True)
class ToleratesTaints:
    tolerations: tuple[Toleration, ...]

    def reads(self, work: Work) -> tuple[Column, ...]:
        return (TAINTS,)

    def refusals(self, world: World) -> Refused:
        return iter(world.fleet.about_taints(self, self._refused))

    def _refused(self, taints: Iterable[tuple[Taint, Nodes]]) -> list[tuple[Reason, Nodes]]:
        refused = [(taint, nodes) for taint, nodes in taints if taint.effect.refuses]
        if self.tolerations:
            refused = [(taint, nodes) for taint, nodes in refused if not tolerated(taint, self.tolerations)]
        return [(Tainted(taint), nodes) for taint, nodes in refused]


@dataclass(frozen=True, slots=True)
class KeepsStrategy:
    """A strict strategy allows a member of a group here, given the other members on the nodes `members`."""

    topology: str
    strategy: Strategy
    members: Nodes

    def reads(self, work: Work) -> tuple[Column, ...]:
        return (Column("label", self.topology),)

    def refusals(self, world: World) -> Refused:
        fleet = world.fleet
        carrying = fleet.with_key.map.get(self.topology, 0)
        if self.strategy is Strategy.STRICT_SPREAD:
            domain = fleet.domain(self.members, self.topology)
            yield HasMember(self.topology), fleet.alive & ~(carrying & ~domain)
        elif self.strategy is Strategy.STRICT_PACK:
            if self.members:  # no node is in the domain of all of them if the cluster runs them in several
                first = fleet.domain(self.members & -self.members, self.topology)
                carrying = 0 if self.members & ~first else first
            yield ApartFromGroup(self.topology), fleet.alive & ~carrying


@dataclass(frozen=True, slots=True)
class CouldFit:
    """The node has enough of every resource when it is empty."""

    needs: tuple[tuple[str, int], ...]

    def reads(self, work: Work) -> tuple[Column, ...]:
        return tuple(Column("total", resource) for resource, _ in self.needs)

    def refusals(self, world: World) -> Refused:
        for resource, need in self.needs:
            enough = from_flags(world.fleet.amount(resource).fitting_total(need) >= need)
            yield NeverFits(resource, need), world.fleet.alive & ~enough


@dataclass(frozen=True, slots=True)
class FitsNow:
    """The node has enough of every resource free. Nodes that are too small are refused by `CouldFit`."""

    needs: tuple[tuple[str, int], ...]

    def reads(self, work: Work) -> tuple[Column, ...]:
        return tuple(Column("free", resource) for resource, _ in self.needs)

    def refusals(self, world: World) -> Refused:
        for resource, need in self.needs:
            amount = world.fleet.amount(resource)
            short = (amount.fitting(need) < need) & (amount.fitting_total(need) >= need)
            yield ShortOf(resource, need), world.fleet.alive & from_flags(short)


@dataclass(frozen=True, slots=True)
class NotReserved:
    """The node is not reserved for other work."""

    holder: object

    def reads(self, work: Work) -> tuple[Column, ...]:
        return (RESERVED,)

    def refusals(self, world: World) -> Refused:
        hold = world.hold
        if hold is not None and hold.holder is not self.holder:
            yield Reserved(hold.owner), hold.nodes & world.fleet.alive


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one choice, in blame order. `lasting` rules, of which `kept_away` is one, do not change with every
    placement; the rules about amounts do."""

    lasting: tuple[Rule, ...]
    kept_away: NotKeptAway
    could_fit: CouldFit
    fits_now: FitsNow
    reserved: NotReserved

    def in_blame_order(self, more: Iterable[Rule] = ()) -> tuple[Rule, ...]:
        """All rules; `more` are rules about one member of a group."""
        return (*self.lasting, *more, self.could_fit, self.fits_now, self.reserved)

    @property
    def before_amounts(self) -> tuple[Rule, ...]:
        return (*self.lasting, self.reserved)

    @property
    def regardless_of_work(self) -> tuple[Rule, ...]:
        """The rules of `before_amounts` that do not depend on other work."""
        return tuple(rule for rule in self.before_amounts if not isinstance(rule, _ABOUT_WORK))

    @property
    def about_work(self) -> tuple[Rule, ...]:
        """The rules that depend on other work."""
        return tuple(rule for rule in self.lasting if isinstance(rule, _ABOUT_WORK))

    @property
    def liftable(self) -> tuple[Rule, ...]:
        """The rules of these whose refusals may end when placed work is evicted."""
        return tuple(rule for rule in self.about_work if not (isinstance(rule, HoldsAffinity) and rule.affinity.near))

    @property
    def depend_on_work(self) -> bool:
        """Whether the choice itself has rules about other work: affinities, spreads, ports or claims."""
        return any(isinstance(rule, _ABOUT_WORK) and not isinstance(rule, NotKeptAway) for rule in self.lasting)


_ABOUT_WORK = (HoldsAffinity, HoldsOneAlternative, NotKeptAway, NotSkewed, PortsFree, ClaimFree, VolumesFit)


def compile_rules(
    choice: Choice,
    kind: Kind,
    tolerations: tuple[Toleration, ...],
    affinities: tuple[tuple[Affinity, ...], ...],
    spreads: tuple[Spread, ...],
    holder: object,
    ports: tuple[HostPort, ...] = (),
    claims: tuple[ClaimId, ...] = (),
) -> Rules:
    """All rules of one choice, in blame order."""
    needs = tuple(choice.resources.items())
    lasting: list[Rule] = []
    # A draining node refuses everything, so other reasons do not matter.
    lasting.append(NotDraining())
    # Labels are what the user asked of nodes: the most useful reason.
    if len(choice.selector.terms) == 1:
        lasting.extend(HasLabel(requirement) for requirement in choice.selector.terms[0])
    else:
        lasting.append(MatchesSelector(choice.selector))
    claims = tuple(dict.fromkeys(claims))
    lasting.extend(ReachesClaim(claim) for claim in claims)
    # Then affinities to other work, and those of other work to this.
    if len(affinities) == 1:
        lasting.extend(HoldsAffinity(affinity, kind) for affinity in affinities[0])
    elif affinities:
        lasting.append(HoldsOneAlternative(affinities, kind))
    kept_away = NotKeptAway(kind)
    lasting.append(kept_away)
    keys = tuple(dict.fromkeys(spread.topology for spread in spreads))
    lasting.extend(NotSkewed(spread, choice.selector, tolerations, kind, keys) for spread in spreads)
    # Taints are set by the operator. Amounts come last, because they change all the time.
    lasting.append(ToleratesTaints(tolerations))
    if ports:
        lasting.append(PortsFree(ports))
    if claims:
        lasting.extend(ClaimFree(claim) for claim in claims)
        lasting.append(VolumesFit(claims))
    # Nodes that are too small come before nodes that are full now: only the second kind can fit later.
    return Rules(tuple(lasting), kept_away, CouldFit(needs), FitsNow(needs), NotReserved(holder))


def allowed(rules: tuple[Rule, ...], world: World) -> Nodes:
    """The nodes that none of the rules refuses."""
    refused = 0
    for rule in rules:
        for _, nodes in rule.refusals(world):
            refused |= nodes
    return world.fleet.alive & ~refused


def dead_required_nodes(selector: Selector, alive: Container[str]) -> frozenset[str]:
    """The node ids that a selector requires although none of them is alive; empty if some term can still match."""
    dead: set[str] = set()
    for term in selector.terms:
        named = [
            requirement.values
            for requirement in term
            if requirement.key in NODE_ID_KEYS
            and requirement.operator is Operator.IN
            and not any(id in alive for id in requirement.values)
        ]
        if not named:
            return frozenset()
        dead |= named[0]
    return frozenset(dead)
