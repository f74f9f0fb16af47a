"""No link is broken, even to work that Ray itself placed or that is gone; Undo is offered only if it is possible."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stead.engine.explain.events import Event, EventKind
from stead.errors import Invalid
from stead.language.labels import Labels
from stead.language.taints import Effect, Taint
from stead.operate.audit import Author
from stead.operate.changes import NodeChange
from stead.sim.desk import SimDesk
from tests.service.asking import Service
from tests.service.page_forms import links_of, look, send, words_of
from tests.serving import simulated

ME = Author("ann", "laptop", "page")
ACTOR, TASK = "1f" * 16, "2e" * 24
LEFT = """
title: left
until: 60s
nodes:
  - {id: a, capacity: {CPU: 4}, labels: {zone: a}}
  - {id: b, capacity: {CPU: 4, GPU: 1}, labels: {zone: b}}
  - {id: gone, capacity: {CPU: 4}}
work:
  - {id: web, count: 2, resources: {CPU: 1}, owner: shop}
  - {id: short, resources: {CPU: 1}, for: 10s}
  - {id: wide, resources: {CPU: 64}}
groups:
  - {id: pair, bundles: [{CPU: 1}, {CPU: 1}], strategy: STRICT_SPREAD}
  - {id: abcdef123456, bundles: [{CPU: 64}]}
events:
  - {at: 20s, taint: gone, taints: "repair=true:NoExecute"}
  - {at: 30s, leave: gone}
"""


class Placing:
    """A cluster that, like Ray, reports work that it placed itself and that the engine does not know."""

    def __init__(self, desk: SimDesk) -> None:
        self._desk = desk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk, name)

    def events(self, after: int, limit: int) -> list[Event]:
        found = list(self._desk.events(after, limit))
        last = len(self._desk.events(0, 10_000))
        if after < 0 or after <= last < after + limit:
            found.append(Event(last + 1, self._desk.now(), EventKind.RUNNING, ACTOR, "running on a"))
        return found

    def why(self, id: str) -> Any:
        if id == "web-2":
            raise Invalid("group pair is placed; its pending work waits for free resources in the group")
        return self._desk.why("wide" if id == TASK else id)

    def replay(self, ask: str = "", at: float | None = None) -> Any:
        if ask == ACTOR:
            raise Invalid(f"the journal has no decision about {ask!r}")
        return self._desk.replay(ask, at)


@pytest.fixture
def left(service: Service) -> Iterator[Service]:
    with simulated(LEFT) as desk:
        desk.change(NodeChange("a", labels=Labels({"disk": "ssd"})), ME)
        desk.change([NodeChange("a", (Taint("team"),)), NodeChange("b", (Taint("team"),))], ME)
        service.desk.instead(lambda: Placing(desk))
        yield service


def test_no_link_on_any_page_is_broken(left: Service) -> None:
    questions = (
        [("kind", "join"), ("count", "2"), ("like", "a"), ("kind", "work"), ("count", "3"), ("resources", "CPU=2")],
        [("kind", "leave"), ("node", "a"), ("kind", "drain"), ("node", "b")],
        [
            ("kind", "work"),
            ("count", "1"),
            ("id", "trial"),
            ("resources", "CPU=1"),
            ("kind", "untaint"),
            ("node", "b"),
            ("key", "team"),
        ],
    )
    ahead = ["/ui/", "/ui/?view=table", "/ui/change?done=2"]
    for rows in questions:
        answered = send(left, "/ui/ask/what-if", [*rows, ("do", "try")])
        assert answered.status == 200 and "What would happen" in words_of(answered)
        ahead += links_of(answered.body.decode())
    seen: dict[str, int] = {}
    while ahead:
        path = ahead.pop()
        if path in seen or "sort=" in path:
            continue
        answered = left.ask("GET", path, token=left.token)
        seen[path] = answered.status
        if answered.status == 303:
            ahead.append(answered.headers["location"])
        elif answered.status == 200:
            ahead += links_of(answered.body.decode())
    assert len(seen) > 40
    assert {path: status for path, status in seen.items() if status not in (200, 303)} == {}


def test_a_group_is_found_by_the_beginning_of_its_id(left: Service) -> None:
    assert left.ask("GET", "/ui/find?id=abcdef1").headers["location"] == "/ui/groups/abcdef123456"


def test_work_that_cannot_be_explained_has_a_page_and_is_not_missing(left: Service) -> None:
    assert "its pending work waits for free resources" in words_of(look(left, "/ui/work/web-2"))
    assert left.ask("GET", "/asks/web-2/why").status == 400


class TestWorkThatIsNotListed:
    @pytest.mark.parametrize(("path", "said"), [(f"/ui/work/{ACTOR}", "running"), ("/ui/nodes/gone", "repair=true")])
    def test_has_a_page_with_its_events(self, left: Service, path: str, said: str) -> None:
        shown = words_of(look(left, path))
        assert "not listed" in shown and said in shown

    def test_is_found_by_the_search_box(self, left: Service) -> None:
        for id in (ACTOR, "short", "gone"):
            assert left.ask("GET", f"/ui/find?id={id}").headers["location"] == f"/ui/about/{id}"

    @pytest.mark.parametrize("path", ["work", "nodes", "groups", "about", "find?id="])
    def test_an_unknown_id_is_not_found(self, left: Service, path: str) -> None:
        assert left.ask("GET", f"/ui/{path}/nonsense".replace("=/", "=")).status == 404

    def test_a_replay_of_it_says_that_there_is_no_decision(self, left: Service) -> None:
        shown = words_of(look(left, f"/ui/history?ask={ACTOR}", left.token))
        assert "Work that the cluster itself placed has no decision here." in shown

    def test_work_whose_reason_only_the_cluster_knows_is_explained(self, left: Service) -> None:
        assert "0 of 2 nodes fit" in words_of(look(left, f"/ui/work/{TASK}"))


def undo_offered(service: Service) -> set[int]:
    return {
        int(number) for number in re.findall(r'action="/ui/do/undo/(\d+)"', look(service, "/ui/history", service.token))
    }


class TestUndo:
    def test_is_offered_only_if_it_is_possible(self, left: Service) -> None:
        desk = left.desk
        assert undo_offered(left) == {1, 2}
        desk.undo(1, ME)
        assert undo_offered(left) == {2, 3}
        assert "undone by entry 3" in words_of(look(left, "/ui/history"))
        desk.change(NodeChange("b", (Taint("team", "red"),)), ME)
        assert undo_offered(left) == {3, 4}
        assert "team:no-schedule of node b was changed since" in words_of(look(left, "/ui/history"))
        for number in sorted(undo_offered(left), reverse=True):
            assert send(left, f"/ui/do/undo/{number}", []).status == 303

    def test_is_not_offered_to_viewers(self, left: Service) -> None:
        assert "/ui/do/undo/" not in look(left, "/ui/history")

    def test_is_not_offered_for_empty_changes_and_for_nodes_that_left(self, service: Service) -> None:
        with simulated(LEFT.replace("at: 30s, leave", "at: 3h, leave")) as desk:
            service.desk.instead(lambda: desk)
            desk.change(NodeChange("a", labels=Labels({"zone": "a"})), ME)
            desk.change(NodeChange("gone", draining=True), ME)
            assert undo_offered(service) == {2}
            with later(desk, 4 * 3600):
                assert undo_offered(service) == set()
                assert "node gone is gone" in words_of(look(service, "/ui/history", service.token))
                assert 'href="/ui/nodes/gone"' not in look(service, "/ui/history")


@contextmanager
def later(desk: SimDesk, seconds: float) -> Iterator[None]:
    """Advance the clock, and pause it again."""
    desk._speed, desk._caught_up_at = 1.0, desk._caught_up_at - seconds
    desk.summary()
    desk._speed = 0.0
    yield


class TestOnePage:
    """Its sections: state, why, events, changes, age, devices and shares."""

    def test_of_a_node_has_all_sections(self, left: Service) -> None:
        left.desk.change(NodeChange("b", (Taint("old", "", Effect.PREFER_NO_SCHEDULE),)), ME)
        shown = words_of(look(left, "/ui/nodes/b"))
        for said in ("Takes only work that tolerates team", "Joined 1m ago", "Events", "ann taint +team:no-schedule"):
            assert said in shown

    def test_of_a_node_shows_who_holds_its_devices(self, service: Service) -> None:
        shown = words_of(look(service, "/ui/nodes/0123456789abcdef"))
        assert "Who holds GPU 1 of 2 1 train" in shown

    def test_of_work_has_all_sections(self, service: Service) -> None:
        shown = words_of(look(service, "/ui/work/train"))
        share = "12 % of CPU, 50 % of GPU of its node"
        for said in ("Why it runs there", "Age 1m30s", share, "Events", "Changes of its node"):
            assert said in shown, said
        assert "placed on" in shown

    def test_of_pending_work_shows_the_latest_changes(self, left: Service) -> None:
        shown = words_of(look(left, "/ui/work/wide"))
        for said in ("Why it is pending", "too small for 64 CPU", "Latest changes of nodes", "+disk=ssd"):
            assert said in shown, said

    def test_of_a_group_has_all_sections(self, service: Service) -> None:
        shown = words_of(look(service, "/ui/groups/pair"))
        for said in ("Where it is", "Members 2", "12 % of CPU", "Events", "Changes of its nodes", "1m30s ago"):
            assert said in shown, said
