"""Submits work to a simulated cluster: the scenario runs in virtual time with the work added, and ends with it.

Rule: it decides nothing and waits for nothing. A piece runs for the time that its file says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from stead.engine.decisions import Evicted, GroupPlaced, GroupReleased, Placed, Preempted, Refused, Waiting
from stead.engine.explain.events import Happened, event_of
from stead.engine.facts import AskEnded, AskLost, AskSubmitted, GroupEnded, GroupSubmitted, NodeLeft
from stead.sim.cluster import Happening, Outcome, run
from stead.sim.scenario import Scenario
from stead.specs.following import Line, State, Update
from stead.specs.sections import Misplaced
from stead.specs.submissions import Submission


def ids_of(scenario: Scenario) -> set[str]:
    """The ids that a scenario uses for work."""
    found: set[str] = set()
    for _, fact in scenario.moments:
        if isinstance(fact, AskSubmitted):
            found.add(fact.ask.id)
        elif isinstance(fact, GroupSubmitted):
            found |= {fact.group.id, *(member.id for member in fact.group.all_members)}
    return found


class SimTarget:
    """A simulation of a scenario and of what is submitted to it."""

    def __init__(self, scenario: Scenario, work: Submission, until: float | None = None) -> None:
        self._scenario, self._work, self._until = scenario, work, until

    def check(self) -> Sequence[str]:
        for id, piece in self._work.pieces.items():
            if (piece.group or id) not in self._work.durations:
                raise Misplaced(f"{piece.place}.for: is missing; the simulator needs a duration, for example 10m")
        return list(self._work.pieces)

    def submit(self) -> Sequence[str]:
        return self.check()

    def follow(self) -> Iterator[Update | Line]:
        moments = sorted((*self._scenario.moments, *self._work.moments), key=lambda moment: moment[0])
        durations = {**self._scenario.durations, **self._work.durations}
        outcome = run(replace(self._scenario, moments=tuple(moments), durations=durations), self._until)
        states: dict[str, Update] = {}
        for happening in outcome.timeline:
            for update in list(self._updates(happening, states)):
                before = states.get(update.id)
                if before is None or replace(before, at=update.at) != update:
                    states[update.id] = update
                    yield update
        yield from self._left(outcome, states)

    def cancel(self) -> None:
        """Nothing continues when a simulation is not followed."""

    def close(self) -> None:
        """There is no connection."""

    def _updates(self, happening: Happening, states: Mapping[str, Update]) -> Iterator[Update]:
        what, at = happening.what, happening.moment
        match what:
            case Waiting(ids):
                reason = event_of(what, at).text.removeprefix("waiting: ")
                yield from (Update(id, State.PENDING, reason=reason, at=at) for id in self._pieces(ids))
            case Placed(id, node):
                yield from (Update(each, State.RUNNING, node, at=at) for each in self._pieces([id]))
            case GroupPlaced(members=members):
                nodes = dict(members)
                yield from (Update(each, State.RUNNING, nodes[each], at=at) for each in self._pieces(nodes))
            case Refused(id):
                reason = event_of(what, at).text.removeprefix("refused: ")
                yield from (Update(each, State.FAILED, reason=reason, at=at) for each in self._pieces([id]))
            case AskEnded(id) | GroupEnded(id):
                for each in self._pieces([id]):
                    if each in states:
                        yield replace(states[each], state=State.SUCCEEDED, reason="", code=0, at=at)
            case _:
                for id, reason in _stopped(what, at, states):
                    if id in states and states[id].state is State.RUNNING:
                        yield Update(id, State.PENDING, reason=reason, at=at)

    def _pieces(self, ids: Iterable[str]) -> Iterator[str]:
        """The submitted pieces among these asks and groups."""
        for id in ids:
            if id in self._work.groups:
                yield from (member.id for member in self._work.groups[id].all_members)
            elif id in self._work.pieces:
                yield id

    def _left(self, outcome: Outcome, states: Mapping[str, Update]) -> Iterator[Update]:
        """What has not ended when nothing more can happen, or when the simulation stops."""
        for id in self._work.pieces:
            last = states.get(id, Update(id, State.PENDING))
            if not last.state.is_final:
                why = f": {last.reason}" if last.reason else ""
                yield Update(id, State.FAILED, reason=f"{last.state} when the simulation ended{why}", at=outcome.moment)


def _stopped(what: Happened, at: float, states: Mapping[str, Update]) -> Iterator[tuple[str, str]]:
    """Work that is taken off its node and will be placed again, and why."""
    match what:
        case Evicted(id):
            yield id, event_of(what, at).text
        case Preempted(id, victims=victims):
            yield from ((victim, f"preempted for {id}") for victim in victims)
        case GroupReleased(members=members):
            yield from ((member, "its group gave up its nodes") for member in members)
        case NodeLeft(node):
            yield from ((id, f"{node} left") for id, last in states.items() if last.node == node)
        case AskLost(id):
            yield id, "lost"
