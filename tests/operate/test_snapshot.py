"""Lists: their content, filters and order, and that a page is a slice of the whole list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stead.engine.facts import NodeUsed
from stead.errors import Invalid
from stead.language.resources import Resources
from stead.language.selectors import parse_selector
from stead.language.taints import Effect, Taint
from stead.operate.audit import Author
from stead.operate.changes import NodeChange
from stead.operate.snapshot import Known, Query, Snapshot
from stead.operate.views import explanation_json, group_json, node_json, work_json
from stead.sim.desk import SimDesk
from tests.serving import simulated

SCENARIO = """
nodes:
- {id: n, count: 12, capacity: {CPU: 2}, labels: {zone: a}}
- {id: g, count: 2, name: gpu, ip: 10.0.0.1, capacity: {CPU: 2, GPU: 2}, labels: {zone: b}, taints: "gpu=true"}
- {id: d, capacity: {CPU: 1}, draining: true}
work:
- {id: web, count: 20, resources: {CPU: 1}, labels: {app: web, tier: front}, owner: blue}
- {id: db, count: 2, resources: {CPU: 1}, labels: {app: db}, namespace: stores}
- {id: stuck, count: 3, resources: {GPU: 9}, labels: {app: stuck, tier: front}}
groups:
- {id: gang, bundles: [{CPU: 1}, {CPU: 1}], owner: red}
- {id: never, bundles: [{GPU: 9}, {GPU: 9}]}
"""


@pytest.fixture(scope="module")
def desk() -> Iterator[SimDesk]:
    with simulated(SCENARIO) as found:
        yield found


@pytest.fixture
def snapshot(desk: SimDesk) -> Snapshot:
    return desk.snapshot()


def ids(page: Any) -> list[str]:
    return [item.id for item in page.items]


class TestNodes:
    def test_are_in_natural_order(self, snapshot: Snapshot) -> None:
        assert ids(snapshot.nodes()) == ["d", *(f"n-{number}" for number in range(1, 13)), "g-1", "g-2"]

    @pytest.mark.parametrize(
        ("filters", "found"),
        [
            (["labels.zone=b"], ["g-1", "g-2"]),
            (["labels.zone!=a"], ["d", "g-1", "g-2"]),
            (["labels=zone", "taints=gpu"], ["g-1", "g-2"]),
            (["labels!=zone"], ["d"]),
            (["draining=true"], ["d"]),
            (["id=n-3"], ["n-3"]),
            (["name=gpu", "id!=g-1"], ["g-2"]),
            (["ip=10.0.0.1"], ["g-1", "g-2"]),
            (["runs=0", "taints!=gpu"], ["d"]),
            (["labels.node_id=n-3"], ["n-3"]),
            (["id=nothing"], []),
        ],
    )
    def test_are_filtered(self, snapshot: Snapshot, filters: list[str], found: list[str]) -> None:
        assert ids(snapshot.nodes(Query(tuple(filters)))) == found

    def test_are_selected_by_label(self, snapshot: Snapshot) -> None:
        assert ids(snapshot.nodes(Query(selector=parse_selector("zone = b")))) == ["g-1", "g-2"]

    @pytest.mark.parametrize(
        ("said", "words"),
        [
            ("gpu", "matches 2 nodes: g-1, g-2; give the id of one"),
            ("n-13", "there is no node 'n-13' in this cluster"),
            ("", "there is no node ''"),
        ],
    )
    def test_are_never_guessed(self, snapshot: Snapshot, said: str, words: str) -> None:
        with pytest.raises(Invalid, match=words):
            snapshot.find(said)


class TestWork:
    def test_that_is_waiting_comes_first(self, snapshot: Snapshot) -> None:
        states = [view.state for view in snapshot.work().items]
        assert states == sorted(states, key=lambda state: state != "waiting")
        assert ids(snapshot.work())[:5] == ["stuck-1", "stuck-2", "stuck-3", "never-1", "never-2"]

    @pytest.mark.parametrize(
        ("filters", "count"),
        [
            (["state=waiting"], 5),
            (["state=running"], 24),
            (["state=asleep"], 0),
            (["labels.app=web"], 20),
            (["labels.app!=web"], 9),
            (["labels=tier", "state=waiting"], 3),
            (["labels.tier=front"], 23),
            (["owner=blue"], 20),
            (["owner=blue", "id!=web-1"], 19),
            (["namespace=stores"], 2),
            (["group=gang"], 2),
            (["kind=member"], 4),
            (["kind!=member"], 25),
            (["count=1"], 29),
            (["name="], 29),
            (["id=db-1"], 1),
            (["node="], 5),
        ],
    )
    def test_is_filtered(self, snapshot: Snapshot, filters: list[str], count: int) -> None:
        assert snapshot.work(Query(tuple(filters))).total == count

    def test_is_found_by_its_node(self, snapshot: Snapshot) -> None:
        for view in snapshot.nodes().items:
            assert snapshot.work(Query((f"node={view.id}",))).total == view.runs

    def test_alone_is_the_same_as_in_the_list(self, snapshot: Snapshot) -> None:
        assert {view.id: view for view in snapshot.work().items} == {
            id: snapshot.one(id) for id in ids(snapshot.work())
        }

    def test_is_not_a_group(self, snapshot: Snapshot) -> None:
        with pytest.raises(Invalid, match="'gang' is a group"):
            snapshot.one("gang")


def test_waiting_work_is_in_the_order_in_which_it_is_tried_with_the_members_of_groups_in_between() -> None:
    late = """
    nodes: [{id: n, capacity: {CPU: 1}}]
    work: [{id: early, resources: {CPU: 9}}, {id: late, resources: {CPU: 9}, at: 2}]
    groups: [{id: gang, bundles: [{CPU: 9}, {CPU: 9}], at: 1}]
    """
    with simulated(late) as desk:
        assert list(desk.snapshot().engine.waiting) == ["early", "gang", "late"]
        assert ids(desk.work(Query(("state=waiting",)))) == ["early", "gang-1", "gang-2", "late"]


class TestGroups:
    def test_that_are_waiting_come_first(self, snapshot: Snapshot) -> None:
        assert [(view.id, view.state) for view in snapshot.groups().items] == [("never", "waiting"), ("gang", "placed")]

    def test_are_filtered(self, snapshot: Snapshot) -> None:
        assert ids(snapshot.groups(Query(("owner=red",)))) == ["gang"]
        assert ids(snapshot.groups(Query(("state!=waiting",)))) == ["gang"]


@pytest.mark.parametrize(
    "written", ["zone", "colour=red", "labels.zone", "taints.gpu=true", "=x", "!=x", "stat=waiting", "labels.=x.y"]
)
def test_an_invalid_filter_is_refused(snapshot: Snapshot, written: str) -> None:
    for ask in (snapshot.nodes, snapshot.work, snapshot.groups):
        try:
            found = ask(Query((written,)))
        except Invalid as error:
            said = str(error)
        else:
            said = "" if found.total == 0 else "taken"
        assert said != "taken", ask


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(offset=st.integers(0, 40), limit=st.integers(1, 40), what=st.sampled_from(["nodes", "work", "groups"]))
def test_a_page_is_a_slice_of_the_whole_list(desk: SimDesk, offset: int, limit: int, what: str) -> None:
    ask: Callable[[Query], Any] = getattr(desk.snapshot(), what)
    whole, part = ask(Query(limit=100)), ask(Query(offset=offset, limit=limit))
    assert part.items == whole.items[offset : offset + limit]
    assert (part.total, part.offset) == (len(whole.items), offset)


@pytest.mark.parametrize(("offset", "limit"), [(-1, 1), (0, 0), (0, 10_001), (10**9 + 1, 1), (True, 1)])
def test_an_impossible_page_is_refused(offset: int, limit: int) -> None:
    with pytest.raises(Invalid, match="must be a whole number"):
        Query(offset=offset, limit=limit)


def test_other_usage_is_not_listed_as_work_but_takes_room(desk: SimDesk) -> None:
    engine = desk.snapshot().engine.fork()
    engine.apply(NodeUsed("n-1", Resources.of({"CPU": 1})))
    before, snapshot = desk.snapshot(), Snapshot(engine, 0.0, {"web-2": Known(count=5)})
    assert ids(snapshot.work()) == ids(before.work())
    assert snapshot.summary.running == 24 + 4
    assert sum(view.runs for view in snapshot.nodes().items) == snapshot.summary.running
    assert snapshot.node("n-1").available["CPU"] == max(0.0, before.node("n-1").available["CPU"] - 1)


def everything(snapshot: Snapshot) -> object:
    return (
        [node_json(view) for view in snapshot.nodes().items],
        [work_json(view) for view in snapshot.work().items],
        [group_json(view) for view in snapshot.groups().items],
        snapshot.summary,
        snapshot.labels,
        snapshot.work_labels,
        snapshot.by_node,
    )


@pytest.mark.parametrize(
    "change",
    [
        NodeChange("n-1", (Taint("k", "v"),)),
        NodeChange("n-1", (Taint("k", "v", Effect.NO_EXECUTE),)),
        NodeChange("n-1", draining=True, evict=True),
        NodeChange("n-1", unlabels=("zone",)),
        NodeChange("d", draining=False),
    ],
    ids=lambda change: change.action,
)
def test_what_is_reused_from_the_previous_snapshot_equals_a_fresh_one(change: NodeChange) -> None:
    with simulated(SCENARIO) as desk:
        everything(desk.snapshot())  # builds all its tables
        desk.change(change, Author("ann"))
        desk.change(NodeChange("n-2", (Taint("later"),)), Author("ann"))
        found = desk.snapshot()
        fresh = Snapshot(found.engine, found.at, desk._known, desk.ends(), desk._started, title=found.title)
        assert everything(found) == everything(fresh)


def test_a_change_that_moves_no_work_keeps_the_rows() -> None:
    with simulated(SCENARIO) as desk:
        rows = desk.snapshot().rows
        desk.change(NodeChange("n-1", (Taint("k", "v"),)), Author("ann"))
        assert desk.snapshot().rows is rows
        desk.change(NodeChange("n-1", (Taint("k", "v", Effect.NO_EXECUTE),)), Author("ann"))
        assert desk.snapshot().rows is not rows


class TestWhyWithManyReasons:
    """Every node has its own taint, so there are as many reasons as nodes."""

    NODES = 130

    @pytest.fixture
    def desk_of_many(self) -> Iterator[SimDesk]:
        own = "\n".join(f"- {{id: own-{number}, taints: 'team=t{number}'}}" for number in range(self.NODES))
        with simulated(f"nodes:\n{own}\n- {{id: s, count: 5, taints: 'shared=x'}}\nwork: [{{id: w}}]") as desk:
            yield desk

    @pytest.fixture
    def found(self, desk_of_many: SimDesk) -> dict[str, Any]:
        return explanation_json(desk_of_many.why("w"))

    def test_a_sentence_names_twelve_and_counts_the_others(self, found: dict[str, Any]) -> None:
        assert found["text"].startswith("0 of 135 nodes fit: 5 tainted shared=x; 1 tainted team=t0; ")
        assert "; 119 for 119 other reasons." in found["text"]

    def test_an_event_names_twelve_too(self, desk_of_many: SimDesk) -> None:
        [event] = [event for event in desk_of_many.events(0, 1000) if event.subject == "w" and event.kind == "waiting"]
        assert event.text.endswith("; 119 for 119 other reasons.")

    def test_an_answer_lists_a_hundred_and_counts_the_others(self, found: dict[str, Any]) -> None:
        [choice] = found["choices"]
        assert len(choice["refusals"]) == 100
        assert choice["refusals"][0] == {"code": "tainted", "nodes": 5, "alone": 5, "text": "5 tainted shared=x"}
        assert (choice["other_reasons"], choice["other_nodes"]) == (31, 31)
        assert sum(each["nodes"] for each in choice["refusals"]) + choice["other_nodes"] == choice["nodes"]
