"""Tickets for a node that hangs. The calls to Ray are a fake here: a real node cannot be made to hang at one call."""

from __future__ import annotations

from collections.abc import Mapping

from stead.ray.grants import NotSent
from stead.ray.page import BOTH
from stead.ray.tables import NodeRow, Status
from stead.ray.tickets import Tickets

NODE = "n" * 56
STATUS = Status({NODE: NodeRow(NODE, "127.0.0.1", {}, {}, {}, False)}, ())


class Hanging:
    """Refuses the first call and takes the others."""

    def __init__(self, error: Exception) -> None:
        self.errors, self.taken = [error], list[dict[str, float]]()

    def set(self, node_id: str, amounts: Mapping[str, float]) -> None:
        if self.errors:
            raise self.errors.pop()
        self.taken.append(dict(amounts))


def granted_after(error: Exception, rounds: int) -> list[dict[str, float]]:
    grants = Hanging(error)
    tickets = Tickets(grants, lambda: None, {})
    tickets.add("a", "stead.t/a")
    tickets.want("a", NODE)
    for _ in range(rounds):
        tickets.carry_out(STATUS)
    return grants.taken


def test_a_grant_that_a_hanging_node_was_not_asked_for_is_made_in_the_next_round_and_once() -> None:
    assert granted_after(NotSent("busy"), 3) == [{"stead.t/a": BOTH}]


def test_one_that_it_was_asked_for_is_not_made_again_because_it_may_still_hear_of_it() -> None:
    assert granted_after(RuntimeError("no answer"), 3) == []
