"""The oracle: docs/semantics.md implemented naively, one node at a time, with plain dicts, every rule for every node.

Rule: only the types of facts, reasons and decisions come from the engine; the operators of the language are implemented
again in `oracle_language`. Holds (rule 13) are not covered, and the clock is only stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from stead.engine import facts, reasons
from stead.engine.decisions import Refusal
from stead.language.asks import Affinity, Ask, AskId, Choice, Group, HostPort, PolicyName, Spread
from stead.language.claims import Claim, ClaimId
from stead.language.labels import Labels, Requirement, Selector
from stead.language.nodes import Node, NodeId
from stead.language.resources import Resources
from stead.language.taints import Effect, Taint
from tests.oracle_groups import change_group, end_member, missing_of
from tests.oracle_language import ids_named, meets, names_asks, reaches, selects, tolerates

UNIT = 10_000
DEVICES = ("GPU", "TPU", "NPU", "HPU", "neuron_cores")
THRESHOLD = 5_000
PREFER_NO_SCHEDULE_COST = 100


@dataclass
class Held:
    """A placed ask: its node, its choice, and its shares of devices."""

    ask: Ask
    node: NodeId
    choice: int
    shares: list[tuple[str, int, int]] = field(default_factory=list)


class Place:
    """One live node: its current record, and what its work uses."""

    def __init__(self, node: Node) -> None:
        self.used: dict[str, int] = {}
        self.shares: dict[tuple[str, int], int] = {}
        self.asks: dict[AskId, Held] = {}
        self.others: list[Held] = []
        self.become(node)

    def become(self, node: Node) -> None:
        self.node = node
        self.labels = {**node.labels, "node_id": node.id, "ray.io/node-id": node.id}
        if node.ip:
            self.labels["node_ip"] = node.ip
        if node.name:
            self.labels["node_name"] = node.name

    def devices(self, name: str) -> list[int]:
        """The free amount of every device, by its index."""
        return [UNIT - self.shares.get((name, index), 0) for index in range(self.node.capacity.get(name) // UNIT)]

    def free(self, name: str) -> int:
        total = int(self.node.capacity.get(name))
        return (total - total % UNIT if name in DEVICES else total) - self.used.get(name, 0)

    def ever_fits(self, name: str, need: int) -> bool:
        if name in DEVICES:
            return len(self.devices(name)) * UNIT >= need
        return bool(self.node.capacity.get(name) >= need)

    def fits_now(self, name: str, need: int) -> bool:
        if name not in DEVICES or self.free(name) < need:
            return self.free(name) >= need
        if need < UNIT:
            return any(free >= need for free in self.devices(name))
        return sum(free == UNIT for free in self.devices(name)) >= need // UNIT

    def take(self, held: Held) -> None:
        self.asks[held.ask.id] = held
        self._take(held)

    def give_back(self, ask: AskId) -> None:
        self._give_back(self.asks.pop(ask))

    def use(self, amounts: Resources, pieces: int) -> None:
        """Set what unmanaged work uses here: whole devices first, then a share of one."""
        for held in self.others:
            self._give_back(held)
        whole = {name: units - units % UNIT if _has_a_share(name, units) else units for name, units in amounts.items()}
        shares = {name: units % UNIT for name, units in amounts.items() if _has_a_share(name, units)}
        parts = [whole, *({name: units} for name, units in shares.items())] if pieces else []
        self.others = [Held(Ask("others", (Choice(Resources(part)),)), self.node.id, 0) for part in parts]
        for held in self.others:
            self._take(held)

    def _take(self, held: Held) -> None:
        for name, need in held.ask.choices[held.choice].resources.items():
            self.used[name] = self.used.get(name, 0) + need
            if name in DEVICES:
                free = self.devices(name)
                if need < UNIT:
                    enough = [index for index in range(len(free)) if free[index] >= need]
                    chosen = sorted(enough, key=lambda index: free[index])[:1]
                    share = need
                else:
                    chosen = [index for index in range(len(free)) if free[index] == UNIT][: need // UNIT]
                    share = UNIT
                for index in chosen:
                    held.shares.append((name, index, share))
                    self.shares[name, index] = self.shares.get((name, index), 0) + share

    def _give_back(self, held: Held) -> None:
        for name, need in held.ask.choices[held.choice].resources.items():
            self.used[name] -= need
        for name, index, share in held.shares:
            self.shares[name, index] -= share


def _has_a_share(name: str, units: int) -> bool:
    return name in DEVICES and units > UNIT and units % UNIT > 0


Holds = Callable[[Place], bool]
NodeChange = facts.NodeLabelled | facts.NodeTainted | facts.NodeUntainted | facts.NodeDrained | facts.NodeResized


def _has_label(requirement: Requirement, place: Place) -> bool:
    return meets(requirement, place.labels)


def _some_alternative_holds(alternatives: list[list[Holds]], place: Place) -> bool:
    return any(all(holds(place) for holds in every) for every in alternatives)


def _lies_outside(domains: set[tuple[str, str]], place: Place) -> bool:
    return not domains & place.labels.items()


def _has_no_taint(taint: Taint, place: Place) -> bool:
    return taint not in place.node.taints


def _has_port_free(wanted: HostPort, place: Place) -> bool:
    taken = [port for held in place.asks.values() for port in held.ask.ports]
    same = [port for port in taken if (port.protocol, port.port) == (wanted.protocol, wanted.port)]
    return not any("" in (port.ip, wanted.ip) or port.ip == wanted.ip for port in same)


def _is_on(nodes: set[NodeId], place: Place) -> bool:
    return place.node.id in nodes


def _may_have_volumes(claims: list[Claim], known: Mapping[ClaimId, Claim], asking: AskId, place: Place) -> bool:
    """Whether the node may have the volumes of these claims, all of one driver, beside those that it has."""
    driver = claims[0].driver
    limit = dict(place.node.volumes).get(driver)
    used = {id for held in place.asks.values() if held.ask.id != asking for id in held.ask.claims}
    there = {id for id in used if id in known and known[id].driver == driver}
    new = {claim.id for claim in claims} - there
    return limit is None or not new or len(there) + len(new) <= limit


def refuses(ask: Ask, taint: Taint) -> bool:
    return taint.effect != Effect.PREFER_NO_SCHEDULE and not tolerates(ask.tolerations, taint)


def _ever_fits(name: str, need: int, place: Place) -> bool:
    return place.ever_fits(name, need)


def _has_room_if_it_ever_fits(name: str, need: int, place: Place) -> bool:
    return not place.ever_fits(name, need) or place.fits_now(name, need)


class Oracle:
    """The cluster as the facts describe it; every query iterates over all nodes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.places: dict[NodeId, Place] = {}
        self.asks: dict[AskId, Ask] = {}
        self.groups: dict[str, Group] = {}
        self.claims: dict[ClaimId, Claim] = {}
        self.member_of: dict[AskId, str] = {}
        self.ended: set[AskId] = set()
        self.taken: dict[str, int] = {}
        self.submitted: dict[str, tuple[float, int]] = {}
        self.over: set[AskId] = set()
        self.held: dict[AskId, Held] = {}
        self._arrivals = 0

    def copy(self) -> Oracle:
        """A copy of the cluster, for a "what if"."""
        other = Oracle()
        other.now, other._arrivals = self.now, self._arrivals
        other.asks, other.groups, other.claims = dict(self.asks), dict(self.groups), dict(self.claims)
        other.ended, other.taken = set(self.ended), dict(self.taken)
        other.member_of, other.submitted, other.over = dict(self.member_of), dict(self.submitted), set(self.over)
        other.held = {id: replace(held, shares=list(held.shares)) for id, held in self.held.items()}
        for id, place in self.places.items():
            twin = other.places[id] = Place(place.node)
            twin.used, twin.shares = dict(place.used), dict(place.shares)
            twin.asks = {ask: other.held[ask] for ask in place.asks}
            twin.others = list(place.others)
        return other

    # What happened

    def apply(self, *happened: facts.Fact) -> None:
        for fact in happened:
            self._apply(fact)

    def _apply(self, fact: facts.Fact) -> None:
        match fact:
            case facts.ClockAdvanced(now):
                self.now = max(self.now, now)
            case facts.AskSubmitted(ask):
                if ask.id not in self.asks:
                    self.asks[ask.id] = ask
                    self.over.discard(ask.id)
                    self.arrived(ask.id)
            case facts.AsksSubmitted():
                for each in fact.each():
                    self.apply(each)
            case facts.GroupSubmitted(group):
                if not {group.id, *(member.id for member in group.all_members)} & {*self.groups, *self.asks}:
                    change_group(self, group)
            case facts.GroupChanged(group):
                change_group(self, group)
            case facts.AskRunning(ask, node):
                if self.placed.get(ask.id) != node:
                    self.place(ask, node)
            case facts.AskChanged(ask):
                if ask.id in self.placed:
                    self.change(ask)
            case facts.AskLost(id):
                self.lose(id)
            case facts.AskEnded(id) | facts.GroupEnded(id):
                self.forget(id)
            case facts.NodeJoined(node):
                if node.id in self.places:
                    self.places[node.id].become(node)
                else:
                    self.places[node.id] = Place(node)
            case facts.NodeLeft(id):
                for ask_id in list(self.places[id].asks) if id in self.places else []:
                    self.lose(ask_id)
                self.places.pop(id, None)
            case facts.NodeUsed(id, amounts, pieces):
                if id in self.places:
                    self.places[id].use(amounts, pieces)
            case facts.AskEnding() | facts.EvictionFailed() | facts.AskNominated() | facts.BudgetChanged():
                pass  # nothing is preempted here
            case facts.BudgetEnded():
                pass
            case facts.ClaimChanged(claim):
                self.claims[claim.id] = claim
            case facts.ClaimEnded(id):
                self.claims.pop(id, None)
            case _ if fact.node in self.places:
                place = self.places[fact.node]
                place.become(self._changed(place.node, fact))

    def members_of(self, group: str) -> list[AskId]:
        return [member for member, its in self.member_of.items() if its == group]

    @staticmethod
    def _changed(node: Node, fact: NodeChange) -> Node:
        match fact:
            case facts.NodeLabelled(_, labels, removed):
                kept = {key: value for key, value in node.labels.items() if key not in removed}
                return replace(node, labels=Labels({**kept, **labels}))
            case facts.NodeTainted(_, taint):
                others = [old for old in node.taints if (old.key, old.effect) != (taint.key, taint.effect)]
                return replace(node, taints=(*others, taint))
            case facts.NodeUntainted(_, key, effect):
                kept_taints = [old for old in node.taints if old.key != key or effect not in (None, old.effect)]
                return replace(node, taints=tuple(kept_taints))
            case facts.NodeDrained(_, draining):
                return replace(node, draining=draining)
            case facts.NodeResized(_, capacity):
                return replace(node, capacity=capacity)

    def arrived(self, id: str) -> None:
        self._arrivals += 1
        self.submitted[id] = (self.now, self._arrivals)

    def place(self, ask: Ask, node: NodeId, choice: int = 0) -> None:
        """Place the ask there by that choice, wherever it was before."""
        self.lose(ask.id)
        self.over.discard(ask.id)
        self.ended.discard(ask.id)
        self.asks[ask.id] = ask
        if ask.id in self.member_of:
            alternatives = self.groups[self.member_of[ask.id]].alternatives
            its = [n for n, members in enumerate(alternatives) if any(each.id == ask.id for each in members)]
            self.taken[self.member_of[ask.id]] = its[0]
        if ask.id not in self.submitted and ask.id not in self.member_of:
            self.arrived(ask.id)
        if node in self.places:
            self.hold(ask, node, choice)

    def hold(self, ask: Ask, node: NodeId, choice: int) -> None:
        self.held[ask.id] = Held(ask, node, choice)
        self.places[node].take(self.held[ask.id])

    def change(self, ask: Ask) -> None:
        """A placed ask is now this, where it is."""
        before = self.held[ask.id]
        self.lose(ask.id)
        self.over.discard(ask.id)
        self.asks[ask.id] = ask
        self.hold(ask, before.node, min(before.choice, len(ask.choices) - 1))

    def lose(self, id: AskId) -> None:
        if id in self.held:
            self.places[self.held.pop(id).node].give_back(id)

    def forget(self, id: str) -> None:
        """End the ask or group; it is remembered only while another ask must be near it."""
        members = self.members_of(id)
        for member in members:
            self.lose(member)
            self.ended.discard(member)
            del self.asks[member], self.member_of[member]
        if id in self.member_of:
            end_member(self, id)
        else:
            self.lose(id)
            self.ended.discard(id)
            for known in (self.groups, self.asks, self.submitted, self.taken):
                known.pop(id, None)
        asks = [ask for ask in self.asks.values() if ask.id not in self.ended]
        musts = [ask.affinities[0] for ask in asks if len(ask.affinities) == 1]
        named = [ids_named(affinity) for every in musts for affinity in every if affinity.near]
        self.over = (self.over | {id, *members}) & set().union(*named)

    # State

    @property
    def placed(self) -> dict[AskId, NodeId]:
        return {id: held.node for id, held in self.held.items()}

    def waiting(self) -> list[str]:
        """Unplaced asks, and groups with an unplaced member, in the order in which they are tried."""
        waiting = {id: ask for id, ask in self.asks.items() if id not in self.member_of and id not in self.held}
        lacking = {id: group for id, group in self.groups.items() if missing_of(self, group)}
        return self._in_line({**waiting, **lacking})

    def _in_line(self, works: Mapping[str, Ask | Group]) -> list[str]:
        first: dict[object, int] = {}
        for id, work in works.items():
            moment, arrival = self.submitted[id]
            shape = (work.priority, moment, work.shape_key)
            first[shape] = min(first.get(shape, arrival), arrival)

        def turn(id: str) -> tuple[float, float, int, int]:
            moment, arrival = self.submitted[id]
            priority = works[id].priority
            return -priority, moment, first[priority, moment, works[id].shape_key], arrival

        return sorted(works, key=turn)

    def free(self, node: NodeId) -> dict[str, int]:
        place = self.places[node]
        return {name: place.free(name) for name in {*place.node.capacity, *place.used}}

    def devices_free(self, node: NodeId, name: str) -> list[int]:
        return self.places[node].devices(name)

    # Which nodes allow an ask

    def verdict(self, ask: Ask, choice_index: int) -> tuple[list[NodeId], list[Refusal]]:
        """The nodes that no rule refuses, and the reasons for the others."""
        rules = list(self._rules(ask, ask.choices[choice_index]))
        refused, blamed, alone = [0] * len(rules), [0] * len(rules), [0] * len(rules)
        candidates = []
        for place in self.places.values():
            against = [index for index, (_, holds) in enumerate(rules) if not holds(place)]
            for index in against:
                refused[index] += 1
            if not against:
                candidates.append(place.node.id)
            else:
                blamed[against[0]] += 1
                alone[against[0]] += len(against) == 1
        return candidates, [
            Refusal(reason, blamed[index], alone[index]) for index, (reason, _) in enumerate(rules) if refused[index]
        ]

    def obstacles(self, ask: Ask, choice_index: int, node: NodeId) -> list[reasons.Reason]:
        """Every reason against one node, in blame order."""
        rules = self._rules(ask, ask.choices[choice_index])
        return [reason for reason, holds in rules if not holds(self.places[node])]

    def _rules(self, ask: Ask, choice: Choice) -> Iterator[tuple[reasons.Reason, Holds]]:
        yield reasons.Draining(), lambda place: not place.node.draining
        if len(choice.selector.terms) == 1:
            for requirement in choice.selector.terms[0]:
                yield reasons.LacksLabel(requirement), partial(_has_label, requirement)
        else:
            yield reasons.NoTermMatches(choice.selector), lambda place: selects(choice.selector, place.labels)

        claims = list(dict.fromkeys(ask.claims))
        for id in claims:
            yield self._reaches_claim(id)

        alternatives = [[(it, self._affinity_holds(ask, it)) for it in every] for every in ask.affinities]
        if len(alternatives) == 1:
            for affinity, holds in alternatives[0]:
                yield self.reason_against(affinity), holds
        elif alternatives:
            every_holds = [[holds for _, holds in every] for every in alternatives]
            yield reasons.NoAlternativeHolds(ask.affinities), partial(_some_alternative_holds, every_holds)
        yield from self._kept_away(ask)
        for spread in ask.spreads:
            yield (
                reasons.Skewed(spread),
                self._spread_holds(ask, choice, spread, {each.topology for each in ask.spreads}),
            )

        taints = {taint for place in self.places.values() for taint in place.node.taints}
        for taint in sorted(taints, key=lambda taint: (taint.key, taint.value, taint.effect)):
            if refuses(ask, taint):
                yield reasons.Tainted(taint), partial(_has_no_taint, taint)
        for port in ask.ports:
            yield reasons.PortTaken(port), partial(_has_port_free, port)
        yield from self._claims_free(ask, [self.claims[id] for id in claims if id in self.claims])
        needs = sorted(choice.resources.items())
        for name, need in needs:
            yield reasons.NeverFits(name, need), partial(_ever_fits, name, need)
        for name, need in needs:
            yield reasons.ShortOf(name, need), partial(_has_room_if_it_ever_fits, name, need)

    def _reaches_claim(self, id: ClaimId) -> tuple[reasons.Reason, Holds]:
        claim = self.claims.get(id)
        if claim is None or claim.problem:
            return reasons.ClaimUnusable(id, claim.problem if claim else ""), lambda place: False
        selector = claim.selector
        return reasons.ClaimElsewhere(id, selector, claim.bound), lambda place: selects(selector, place.labels)

    def _claims_free(self, ask: Ask, claims: list[Claim]) -> Iterator[tuple[reasons.Reason, Holds]]:
        for claim in claims:
            users = {it.node for it in self.held.values() if claim.id in it.ask.claims and it.ask.id != ask.id}
            if users and claim.exclusive:
                yield reasons.ClaimInUse(claim.id), lambda place: False
            elif users and not claim.bound:
                yield reasons.ClaimBeingBound(claim.id), partial(_is_on, users if len(users) == 1 else set())
        for driver in dict.fromkeys(claim.driver for claim in claims if claim.driver):
            its = [claim for claim in claims if claim.driver == driver]
            yield reasons.TooManyVolumes(driver), partial(_may_have_volumes, its, self.claims, ask.id)

    def reason_against(self, affinity: Affinity) -> reasons.Reason:
        if not affinity.near:
            return reasons.TooNear(affinity)
        ids = ids_named(affinity)
        return reasons.TargetDead(affinity) if ids and ids <= self.over else reasons.NotNear(affinity)

    def _affinity_holds(self, ask: Ask, affinity: Affinity) -> Holds:
        taken: dict[str, set[str]] = {key: set() for key in affinity.topologies}
        for held in self.held.values():
            labels = {**held.ask.labels, "ask_id": held.ask.id}
            if held.ask.id == ask.id or not reaches(affinity, ask.namespace, held.ask.namespace):
                continue
            if selects(affinity.selector, labels):
                where = self.places[held.node].labels
                for key in affinity.topologies:
                    if key in where:
                        taken[key].add(where[key])
        if affinity.namespaces == frozenset() and not names_asks(affinity) and selects(affinity.selector, {}):
            for where in (place.labels for place in self.places.values() if place.others):
                for key in affinity.topologies:
                    if key in where:
                        taken[key].add(where[key])
        if not affinity.near:
            return lambda place: not any(place.labels.get(key) in taken[key] for key in affinity.topologies)
        first_one = (
            not names_asks(affinity)
            and not any(taken.values())
            and reaches(affinity, ask.namespace, ask.namespace)
            and selects(affinity.selector, ask.labels)
        )
        return lambda place: all(
            key in place.labels and (first_one or place.labels[key] in taken[key]) for key in affinity.topologies
        )

    def _kept_away(self, ask: Ask) -> Iterator[tuple[reasons.Reason, Holds]]:
        taken: dict[Affinity, set[tuple[str, str]]] = {}
        for held in self.held.values():
            for affinity in (affinity for every in held.ask.affinities for affinity in every):
                if not affinity.symmetric or affinity.near or names_asks(affinity) or held.ask.id == ask.id:
                    continue
                if reaches(affinity, held.ask.namespace, ask.namespace) and selects(affinity.selector, ask.labels):
                    where = self.places[held.node].labels
                    domains = taken.setdefault(affinity, set())
                    domains.update((key, where[key]) for key in affinity.topologies if key in where)
        for affinity in sorted(taken, key=lambda it: (str(it.selector), it.topologies, sorted(it.namespaces or ()))):
            yield reasons.KeptAway(affinity), partial(_lies_outside, taken[affinity])

    def _spread_holds(self, ask: Ask, choice: Choice, spread: Spread, keys: set[str]) -> Holds:
        key = spread.topology
        eligible = {
            id: place.labels[key]
            for id, place in self.places.items()
            if keys <= set(place.labels)
            and (not spread.by_selector or selects(choice.selector, place.labels))
            and not (spread.by_taints and any(refuses(ask, taint) for taint in place.node.taints))
        }
        counts = dict.fromkeys(eligible.values(), 0)
        for held in self.held.values():
            if held.node not in eligible or held.ask.namespace != ask.namespace or held.ask.id == ask.id:
                continue
            if selects(spread.selector, held.ask.labels):
                counts[eligible[held.node]] += 1
        least = min(counts.values()) if len(counts) >= spread.min_domains else 0
        myself = 1 if selects(spread.selector, ask.labels) else 0
        return lambda place: (
            key in place.labels and counts.get(place.labels[key], 0) + myself - least <= spread.max_skew
        )

    # Which node

    def preference(self, ask: Ask, node: NodeId, choice_index: int = 0) -> int:
        place, total = self.places[node], 0
        for preference in ask.prefers:
            want = preference.want
            if isinstance(want, Selector):
                holds = selects(want, place.labels)
            elif isinstance(want, Affinity):
                holds = self._affinity_holds(ask, want)(place)
            else:
                holds = self._spread_holds(ask, ask.choices[choice_index], want, {want.topology})(place)
            total += preference.weight if holds else 0
        for taint in place.node.taints:
            if taint.effect == Effect.PREFER_NO_SCHEDULE and not tolerates(ask.tolerations, taint):
                total -= PREFER_NO_SCHEDULE_COST
        return total

    def load(self, ask: Ask, choice_index: int, node: NodeId) -> int:
        place, needs = self.places[node], ask.choices[choice_index].resources
        if not needs:
            return len(place.asks) + bool(place.others)  # unmanaged work there counts as one
        return max(
            (place.used.get(name, 0) + need) * 10_000 // place.node.capacity[name] for name, need in needs.items()
        )

    def best(self, ask: Ask) -> tuple[int, set[NodeId]] | None:
        """The first choice with candidates, and the best of them, which differ only in table order."""
        for index in range(len(ask.choices)):
            candidates, _ = self.verdict(ask, index)
            if candidates:
                keys = {node: self._order(ask, index, node) for node in candidates}
                best = min(keys.values())
                return index, {node for node in candidates if keys[node] == best}
        return None

    def _order(self, ask: Ask, choice_index: int, node: NodeId) -> tuple[int, int]:
        preference = -self.preference(ask, node, choice_index)
        match ask.policy:
            case PolicyName.HYBRID:
                return preference, max(THRESHOLD, self.load(ask, choice_index, node))
            case PolicyName.SPREAD:
                return preference, self.load(ask, choice_index, node)
            case PolicyName.PACK:
                return preference, -self.load(ask, choice_index, node)
            case PolicyName.RANDOM:
                return preference, 0
            case PolicyName.KUBE:
                return 0, 0  # tests/kubernetes/kube_oracle.py knows its order
            case PolicyName.FLOW | PolicyName.FLOW_PACK | PolicyName.FLOW_FGD:
                raise AssertionError("what is decided together has no order of its own; see tests/flow/literal.py")

    def shown(self, ask: Ask) -> list[Refusal]:
        """The reasons to report for a pending ask: of the first choice that only lacks free amounts somewhere."""
        for index in range(len(ask.choices)):
            for node in self.places:
                against = self.obstacles(ask, index, node)
                if against and all(isinstance(reason, reasons.ShortOf) for reason in against):
                    return self.verdict(ask, index)[1]
        return self.verdict(ask, 0)[1]

    def nowhere_alive(self, ask: Ask) -> bool:
        """Whether every term of every choice requires node ids of which none is alive."""
        return all(
            choice.selector.terms
            and all(any(self._is_dead(requirement) for requirement in term) for term in choice.selector.terms)
            for choice in ask.choices
        )

    def _is_dead(self, requirement: Requirement) -> bool:
        is_in = not requirement.complement and not requirement.absent
        return (
            is_in and requirement.key in ("node_id", "ray.io/node-id") and not requirement.values & self.places.keys()
        )
