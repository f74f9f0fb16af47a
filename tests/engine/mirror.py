"""An engine and an oracle side by side: both get the same facts, and the oracle checks every decision.

Rule: decisions are checked in the order in which they were made, each against the state of the oracle at that moment,
and only then applied to the oracle.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from math import inf

from stead.engine.decisions import (
    DeadlinePassed,
    Decision,
    Evicted,
    GroupPlaced,
    GroupReleased,
    NodeUnknown,
    Placed,
    Refusal,
    Refused,
    Waiting,
)
from stead.engine.engine import Engine
from stead.engine.facts import Fact
from stead.engine.reasons import NotNear, TargetDead
from stead.language.asks import Ask, Group
from stead.language.taints import Effect, Taint
from tests.oracle import Oracle
from tests.oracle_groups import fits_group, group_follows, is_there, needed_of, taken_of
from tests.oracle_language import stay_seconds

GROUP_MEMBERS_MAX, GROUP_NODES_MAX = 4, 5
"""The size up to which every assignment of a group is tried."""


class Mirror:
    """`engine` and `oracle` have the same facts; the other fields record times."""

    def __init__(self, engine: Engine, oracle: Oracle) -> None:
        self.engine, self.oracle = engine, oracle
        self.said: dict[str, tuple[Refusal, ...]] = {}
        self.evicted: set[str] = set()
        self.first_seen: dict[object, int] = {}
        self._waits_since: dict[str, float] = {}
        self._had_a_place: set[str] = set()
        self._taint_times: dict[tuple[str, Taint], tuple[float, float]] = {}
        self._place_times: dict[tuple[str, str], tuple[float, float]] = {}

    def fork(self) -> Mirror:
        other = Mirror(self.engine.fork(), self.oracle.copy())
        other.said, other.evicted, other.first_seen = dict(self.said), set(self.evicted), dict(self.first_seen)
        other._waits_since, other._had_a_place = dict(self._waits_since), set(self._had_a_place)
        other._taint_times, other._place_times = dict(self._taint_times), dict(self._place_times)
        return other

    def feed(self, *facts: Fact) -> None:
        for fact in facts:
            self.engine.apply(fact)
            self.oracle.apply(fact)
            self._note_times(fact)
            for id, (_, arrival) in self.oracle.submitted.items():
                work = self.oracle.groups.get(id) or self.oracle.asks[id]
                self.first_seen.setdefault(work.shape_key, arrival)

    def _note_times(self, fact: Fact | None) -> None:
        """When each taint was set and each placement made: the earliest and the latest possible time."""
        now, oracle = self.oracle.now, self.oracle
        touched = getattr(fact, "node", None)
        touched = getattr(touched, "id", touched)
        taints = {(id, taint) for id, place in oracle.places.items() for taint in place.node.taints}
        places = set(oracle.placed.items())
        self.evicted &= {ask for ask, node in places if (ask, node) in self._place_times}
        self._taint_times = {
            it: (self._taint_times.get(it, (now, now))[0], now if it[0] == touched else self._taint_times[it][1])
            for it in taints
        }
        self._place_times = {
            it: (self._place_times.get(it, (now, now))[0], now if it[1] == touched else self._place_times[it][1])
            for it in places
        }
        without_any_place = [id for id in oracle.waiting() if not self._is_begun(id)]
        self._waits_since = {id: self._waits_since.get(id, now) for id in without_any_place}
        self._had_a_place &= oracle.submitted.keys()
        self._had_a_place |= {oracle.member_of.get(ask, ask) for ask, _ in places}
        self.said = {id: refusals for id, refusals in self.said.items() if id in oracle.submitted}

    # Decisions

    def decide(self) -> list[Decision]:
        """The engine's decisions, checked one by one."""
        line, before = list(self.engine.waiting), set(self.oracle.placed.items())
        decisions = self.engine.decide()
        for decision in decisions:
            match decision:
                case Placed():
                    self._check_placed(decision, line)
                case GroupPlaced():
                    self._check_group_placed(decision, line)
                case Waiting(ids):
                    self.said |= dict.fromkeys(ids, decision.refusals)
                case Refused():
                    self._check_refused(decision)
                case Evicted():
                    self._check_evicted(decision)
                case GroupReleased():
                    self._check_released(decision)
        self._check_evictions_are_complete(before)
        self._check_nothing_that_fits_waits()
        return decisions

    def _check_placed(self, decision: Placed, line: list[str]) -> None:
        oracle, id = self.oracle, decision.ask
        assert id in oracle.asks, f"{id} is not known"
        assert id not in oracle.placed, f"{id} has a place already"
        assert id not in oracle.member_of, f"{id} belongs to a group"
        best = oracle.best(oracle.asks[id])
        assert best is not None, f"{decision}: nothing fits; {oracle.verdict(oracle.asks[id], decision.choice)[1]}"
        assert decision.choice == best[0], f"{decision}: choice {best[0]} has candidates"
        assert decision.node in best[1], f"{decision}: the best are {sorted(best[1])}"
        self._check_nobody_is_overtaken(id, line)
        oracle.place(oracle.asks[id], decision.node, decision.choice)
        self._moved((id, decision.node))

    def _check_group_placed(self, decision: GroupPlaced, line: list[str]) -> None:
        oracle = self.oracle
        group = oracle.groups[decision.group]
        members = group.alternatives[decision.alternative]
        missing = {member.id for member in members if not is_there(oracle, member.id)}
        elsewhere = [member.id for other in group.alternatives if other is not members for member in other]
        assert not set(elsewhere) & oracle.placed.keys(), f"{decision}: another alternative is placed"
        assert taken_of(oracle, group) in (None, decision.alternative), f"{decision}: another alternative is taken"
        assert [id for id, _ in decision.members if id in missing] == [id for id, _ in decision.members]
        needed = needed_of(oracle, group, decision.alternative)
        assert len(decision.members) >= max(needed, 1), f"{decision}: it needed {needed}"
        if group.min_available is None:
            assert {id for id, _ in decision.members} == missing, f"{decision}: it lacked {sorted(missing)}"
        assert group_follows(oracle, group, dict(decision.members), needed), f"{decision}: does not hold together"
        if self._is_small(group):
            assert decision.alternative == fits_group(oracle, group)
        self._check_nobody_is_overtaken(group.id, line)
        for id, node in decision.members:
            oracle.place(oracle.asks[id], node)
            self._moved((id, node))

    def _moved(self, placement: tuple[str, str]) -> None:
        self._place_times[placement] = (self.oracle.now, self.oracle.now)
        self._had_a_place.add(self.oracle.member_of.get(placement[0], placement[0]))
        self.evicted.discard(placement[0])
        self.said.pop(placement[0], None)

    def _check_nobody_is_overtaken(self, id: str, line: list[str]) -> None:
        oracle = self.oracle
        assert id in line, f"{id} was not in line"
        still_waiting = set(oracle.waiting())
        for earlier in line[: line.index(id)]:
            if earlier in still_waiting and not self._may_be_refused(earlier):
                assert not self.fits(earlier), f"{id} overtook {earlier}"

    def _check_refused(self, decision: Refused) -> None:
        oracle, id = self.oracle, decision.id
        work = oracle.groups.get(id) or oracle.asks[id]
        assert id in oracle.waiting()
        match decision.cause:
            case NodeUnknown(nodes):
                assert isinstance(work, Ask) and oracle.nowhere_alive(work), f"{decision}: {work}"
                assert not set(nodes) & oracle.places.keys()
            case DeadlinePassed(deadline):
                assert work.deadline == deadline and self._may_be_refused(id), f"{decision}: now is {oracle.now}"
        oracle.forget(id)
        self._note_times(None)

    def _check_evicted(self, decision: Evicted) -> None:
        oracle = self.oracle
        assert oracle.placed.get(decision.ask) == decision.node
        assert decision.taint in oracle.places[decision.node].node.taints
        assert decision.taint.effect is Effect.NO_EXECUTE
        assert decision.ask not in self.evicted, f"{decision}: said before"
        due = self._due(decision.ask, decision.node, decision.taint)
        assert due is not None and due[0] <= oracle.now, f"{decision}: may stay until {due}"
        self.evicted.add(decision.ask)

    def _check_released(self, decision: GroupReleased) -> None:
        group = self.oracle.groups[decision.group]
        placed = [member.id for member in group.all_members if member.id in self.oracle.placed]
        assert group.timeout_s is not None and placed == list(decision.members) != []
        alternative = next(n for n, members in enumerate(group.alternatives) if placed[0] in {m.id for m in members})
        assert needed_of(self.oracle, group, alternative) > 0, f"{decision}: it has its minimum"

    def _due(self, ask: str, node: str, taint: Taint) -> tuple[float, float] | None:
        """The times between which the work must be evicted; None: it may stay."""
        stay = stay_seconds(self.oracle.asks[ask].tolerations, taint)
        if stay is None:
            return None
        times = (self._taint_times[node, taint], self._place_times[ask, node])
        return max(earliest for earliest, _ in times) + stay, max(latest for _, latest in times) + stay

    def _check_evictions_are_complete(self, before: set[tuple[str, str]]) -> None:
        """Only for work placed before: work placed just now may be evicted in the next call."""
        oracle = self.oracle
        for ask, node in before & oracle.placed.items():
            for taint in oracle.places[node].node.taints:
                if taint.effect is Effect.NO_EXECUTE and ask not in self.evicted:
                    due = self._due(ask, node, taint)
                    assert due is None or oracle.now < due[1], f"{ask} on {node} should have been evicted: {taint}"

    def _check_nothing_that_fits_waits(self) -> None:
        oracle = self.oracle
        for id in oracle.waiting():
            assert not self._is_late(id), f"{id} waits past its deadline"
            assert not self.fits(id), f"{id} waits, but fits"
            if id in oracle.asks:
                assert not oracle.nowhere_alive(oracle.asks[id]), f"{id} insists on dead nodes, but was not refused"
                # Work that joins a line is unreported and awake. A shape goes to sleep only where `Lines.report`
                # follows, which reports all that is unreported; `decide` without a limit ends with nothing awake.
                assert id in self.said, f"{id} waits, and its reasons were never reported"
                self._check_hopes(id)

    def _check_hopes(self, id: str) -> None:
        """The decision says whether the targets of its affinities are dead."""
        for reason in (refusal.reason for refusal in self.said[id]):
            if isinstance(reason, NotNear | TargetDead):
                assert reason == self.oracle.reason_against(reason.affinity), f"{id} reported {reason}"

    def _is_late(self, id: str) -> bool:
        """Whether it was pending at its deadline, and none of it is placed."""
        return self._may_be_refused(id) and self._waits_since[id] < self._deadline(id)

    def _may_be_refused(self, id: str) -> bool:
        """The same, or it was submitted after its deadline. Work that lost its last place after that is not refused."""
        if self.oracle.now < self._deadline(id) or self._is_begun(id):
            return False
        return id not in self._had_a_place or self._waits_since[id] < self._deadline(id)

    def _deadline(self, id: str) -> float:
        deadline = (self.oracle.groups.get(id) or self.oracle.asks[id]).deadline
        return inf if deadline is None else deadline

    def _is_begun(self, id: str) -> bool:
        group = self.oracle.groups.get(id)
        return group is not None and taken_of(self.oracle, group) is not None

    def fits(self, id: str) -> bool:
        """Whether the ask or group could be placed now; a group too large to try all assignments of counts as not."""
        if id in self.oracle.groups:
            group = self.oracle.groups[id]
            return self._is_small(group) and fits_group(self.oracle, group) is not None
        return self.oracle.best(self.oracle.asks[id]) is not None

    def _is_small(self, group: Group) -> bool:
        members = max(len(members) for members in group.alternatives)
        return members <= GROUP_MEMBERS_MAX and len(self.oracle.places) <= GROUP_NODES_MAX

    # State

    def check_state(self) -> None:
        """The public state of the engine equals the oracle's."""
        assert dict(self.engine.placed) == self.oracle.placed
        self._check_line(list(self.engine.waiting))
        for node in self.oracle.places:
            shown, expected = self.engine.free(node), self.oracle.free(node)
            for name in {*shown, *expected}:
                assert shown.get(name, 0) == expected.get(name, 0), f"free {name} of {node}"

    def _check_line(self, line: list[str]) -> None:
        """The documented order. A known shape may keep its first position, or be ordered as if it were new."""
        oracle = self.oracle
        assert sorted(line) == sorted(oracle.waiting()), f"the line is {line}, not {oracle.waiting()}"
        if line == oracle.waiting():
            return
        works = [oracle.groups.get(id) or oracle.asks[id] for id in line]
        turns = [(-work.priority, oracle.submitted[work.id][0]) for work in works]
        assert turns == sorted(turns), f"the line is {line}, not {oracle.waiting()}"
        shapes = [(turn, work.shape_key) for turn, work in zip(turns, works, strict=True)]
        assert len([shape for shape, _ in groupby(shapes)]) == len(set(shapes)), f"shapes are torn apart in {line}"
        for ahead, behind in pairwise(works):
            first, second = oracle.submitted[ahead.id][1], oracle.submitted[behind.id][1]
            equal = ahead.shape_key == behind.shape_key  # then they are in the order in which they became pending
            known_before = equal or self.first_seen[ahead.shape_key] < second
            same_turn = (ahead.priority, oracle.submitted[ahead.id][0]) == (
                behind.priority,
                oracle.submitted[behind.id][0],
            )
            assert not same_turn or first < second or known_before, f"{ahead.id} is ahead of {behind.id}"

    def check_explanation(self, ask: Ask, name: Ask | str) -> None:
        """The verdict on every choice equals the oracle's, with all counts and in the same order."""
        explanation, candidates = self.engine.explain(name), self.engine.candidates(ask)
        assert len(explanation.verdicts) == len(candidates) == len(ask.choices)
        for index, verdict in enumerate(explanation.verdicts):
            expected, refusals = self.oracle.verdict(ask, index)
            assert verdict.refusals == tuple(refusals)
            assert (verdict.nodes, verdict.candidates) == (len(self.oracle.places), len(expected))
            assert verdict.candidates + sum(each.nodes for each in verdict.refusals) == verdict.nodes
            assert set(candidates[index]) == set(expected)
        assert str(explanation)
