"""Nodes are called in parallel, and a hanging node does not delay the others. Ray's call is a fake here."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

import pytest

from stead.ray.wire import resource_grants as grants
from stead.ray.wire.resource_grants import Outcome, RayletGrants

ANSWERED, SILENT, NOT_ASKED = Outcome.ANSWERED, Outcome.SILENT, Outcome.NOT_ASKED


class Nodes:
    """Nodes that answer at once, except those that hang or refuse."""

    def __init__(self, hang: str = "", refuse: str = "") -> None:
        self.hang, self.refuse = hang, refuse
        self.asked: list[tuple[str, dict[str, float]]] = []
        self.under_way: list[Future[None]] = []

    def send(self, node: str, amounts: Mapping[str, float]) -> Future[None]:
        self.asked.append((node, dict(amounts)))
        call: Future[None] = Future()
        self.under_way.append(call)
        if node in self.refuse:
            call.set_exception(RuntimeError("this node is gone"))
        elif node not in self.hang:
            call.set_result(None)
        return call

    def answer(self) -> None:
        for call in self.under_way:
            if not call.done():
                call.set_result(None)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "ANSWER_S", 0.05)


def changes(*nodes: str) -> dict[str, dict[str, float]]:
    return {node: {"one": 1.0, "two": 2.0} for node in nodes}


def test_each_node_gets_one_call_with_all_its_amounts() -> None:
    nodes = Nodes()
    assert RayletGrants(nodes.send).set_many(changes("a", "b")) == {"a": ANSWERED, "b": ANSWERED}
    assert nodes.asked == [("a", {"one": 1.0, "two": 2.0}), ("b", {"one": 1.0, "two": 2.0})]


def test_nodes_after_a_hanging_one_are_called_before_waiting_for_it() -> None:
    nodes = Nodes(hang="a")
    assert RayletGrants(nodes.send).set_many(changes("a", "b")) == {"a": SILENT, "b": ANSWERED}


def test_a_hanging_node_is_not_called_again_before_it_has_answered() -> None:
    nodes = Nodes(hang="a")
    made = RayletGrants(nodes.send)
    made.set_many(changes("a"))
    assert made.set_many(changes("a", "b")) == {"a": NOT_ASKED, "b": ANSWERED}
    assert [node for node, _ in nodes.asked] == ["a", "b"]
    nodes.answer()
    nodes.hang = ""
    assert made.set_many(changes("a")) == {"a": ANSWERED}


def test_several_nodes_that_hang_take_as_long_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, waits = Nodes(hang="abcdefgh"), list[tuple[int, float]]()
    monkeypatch.setattr(grants, "_wait_for", lambda calls, seconds: waits.append((len(calls), seconds)))
    assert set(RayletGrants(nodes.send).set_many(changes(*"abcdefgh")).values()) == {SILENT}
    assert waits == [(8, grants.ANSWER_S)], "they were waited for one after another"


def test_an_error_counts_as_no_answer_and_the_node_is_called_again() -> None:
    nodes = Nodes(refuse="a")
    made = RayletGrants(nodes.send)
    assert made.set_many(changes("a")) == {"a": SILENT}
    nodes.refuse = ""
    assert made.set_many(changes("a")) == {"a": ANSWERED}


def test_without_changes_no_node_is_called() -> None:
    nodes = Nodes()
    assert RayletGrants(nodes.send).set_many({}) == {}
    assert not nodes.asked
