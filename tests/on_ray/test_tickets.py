"""Tickets for a hanging node. The calls to Ray are a fake here: a real node cannot be made to hang at one call."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stead.ray.control.tickets import SHOWN_S, Tickets
from stead.ray.wire.node_page import BOTH, ONE
from stead.ray.wire.resource_grants import Outcome
from stead.ray.wire.tables import NodeRow, Status

NODE, NAME = "n" * 56, "stead.t/a"
STATUS = Status({NODE: NodeRow(NODE, "127.0.0.1", {}, {}, {}, False)}, ())


def shown(total: float, used: float = 0.0) -> Status:
    """Ray's tables with this amount of the ticket on the node."""
    totals, available = ({NAME: total}, {NAME: total - used}) if total else ({}, {})
    return Status({NODE: NodeRow(NODE, "127.0.0.1", {}, totals, available, False)}, ())


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Hanging:
    """Returns these outcomes for the first calls, and succeeds for the others."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes, self.taken = list(outcomes), list[dict[str, float]]()

    def set_many(self, changes: Mapping[str, Mapping[str, float]]) -> dict[str, Outcome]:
        if not changes:
            return {}
        outcome = self.outcomes.pop(0) if self.outcomes else Outcome.ANSWERED
        if outcome is Outcome.ANSWERED:
            self.taken += [dict(amounts) for amounts in changes.values()]
        return dict.fromkeys(changes, outcome)


def granted_after(outcome: Outcome, rounds: int) -> list[dict[str, float]]:
    grants = Hanging(outcome)
    tickets = Tickets(grants, lambda: None, {})
    tickets.add("a", NAME)
    tickets.want("a", NODE)
    for _ in range(rounds):
        tickets.carry_out(STATUS)
    return grants.taken


def test_a_grant_that_was_not_sent_to_a_hanging_node_is_made_once_in_the_next_round() -> None:
    assert granted_after(Outcome.NOT_ASKED, 3) == [{NAME: BOTH}]


def test_a_grant_that_was_sent_is_not_made_again_because_it_may_still_be_applied() -> None:
    assert granted_after(Outcome.SILENT, 3) == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("stead.ray.control.tickets.time", clock)
    return clock


def test_what_the_last_actor_held_is_removed_when_it_is_released_however_late(clock: Clock) -> None:
    grants = Hanging()
    tickets = Tickets(grants, lambda: None, {})
    tickets.add("a", NAME)
    tickets.want("a", NODE)
    tickets.carry_out(STATUS)
    tickets.started(["a"])
    tickets.carry_out(shown(BOTH, used=ONE))
    clock.now += 1000.0
    tickets.ended("a")
    for status in (shown(ONE, used=ONE), shown(ONE)):
        assert not tickets.is_settled
        tickets.sweep(status)
        tickets.carry_out(status)
        clock.now += 20.0
    assert grants.taken == [{NAME: BOTH}, {NAME: 0.0}, {NAME: 0.0}]
    tickets.sweep(shown(0.0))
    assert tickets.is_settled


def test_also_by_a_controller_that_found_it_at_its_start(clock: Clock) -> None:
    grants = Hanging()
    tickets = Tickets(grants, lambda: None, {})
    tickets.add("a", NAME)
    tickets.recover(shown(ONE, used=ONE))
    clock.now += 1000.0
    tickets.ended("a")
    assert not tickets.is_settled
    tickets.sweep(shown(ONE))
    tickets.carry_out(shown(ONE))
    assert grants.taken == [{NAME: 0.0}]


class TestWorkThatDied:
    """It is lost only when no ticket is left to start with."""

    def tickets(self, *outcomes: Outcome) -> Tickets:
        tickets = Tickets(Hanging(*outcomes), lambda: None, {})
        tickets.add("a", NAME)
        return tickets

    def test_is_gone_when_the_node_has_answered_and_the_tables_show_it(self, clock: Clock) -> None:
        tickets = self.tickets()
        tickets.take_back("a", NODE)
        assert not tickets.is_gone("a", shown(0.0))
        tickets.carry_out(shown(0.0))
        assert not tickets.is_gone("a", shown(0.0)), "the tables may be of before"
        clock.now += 2 * SHOWN_S
        assert not tickets.is_gone("a", shown(ONE, used=ONE)), "it may be its next start that uses it"
        assert not tickets.is_gone("a", shown(ONE)), "the sweep takes that away"
        assert tickets.is_gone("a", shown(0.0))

    @pytest.mark.parametrize("outcome", [Outcome.NOT_ASKED, Outcome.SILENT], ids=str)
    def test_is_not_gone_before_a_node_that_hangs_has_answered(self, clock: Clock, outcome: Outcome) -> None:
        """A controller that died may have sent the grant before, and the node may apply it later."""
        tickets = self.tickets(outcome, outcome)
        tickets.take_back("a", NODE)
        for _ in range(2):
            tickets.carry_out(shown(0.0))
            clock.now += 2 * SHOWN_S
            assert not tickets.is_gone("a", shown(0.0))
        tickets.carry_out(shown(0.0))
        clock.now += 2 * SHOWN_S
        assert tickets.is_gone("a", shown(0.0))

    def test_is_gone_with_its_node(self, clock: Clock) -> None:
        tickets = self.tickets(Outcome.SILENT)
        tickets.take_back("a", NODE)
        tickets.carry_out(shown(0.0))
        tickets.carry_out(Status({}, ()))
        clock.now += 2 * SHOWN_S
        assert tickets.is_gone("a", Status({}, ()))
