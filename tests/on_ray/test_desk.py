"""What users see and change on a real cluster: the desk, with everything from Ray's own tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import stead
from stead.errors import Invalid
from stead.language.labels import Labels
from stead.language.taints import Effect, Taint
from stead.operate.audit import Author
from stead.operate.changes import NodeChange, Removal
from stead.operate.desk import Desk
from stead.operate.snapshot import ALL, Query
from stead.operate.views import WorkView
from stead.ray.remote_desk import remote_desk
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import SOON_S, Resident, attached

pytestmark = pytest.mark.long

NODES = [
    {"num_cpus": 0},
    {"num_cpus": 2, "labels": {"zone": "a"}},
    {"num_cpus": 2, "labels": {"zone": "b"}},
]
ME = Author("tester", "here", "test")


@pytest.fixture(scope="module")
def desk(cluster_of: ClusterOf) -> Iterator[Desk]:
    with attached(cluster_of(NODES)):
        yield remote_desk()


@pytest.fixture(autouse=True)
def nothing_runs(desk: Desk) -> None:
    """The work of the previous test has ended and is not listed any more."""
    wait_for(lambda: not listed(desk) and not desk.groups(ALL).items, 60, "the end of the last test's work")


def node_in(desk: Desk, zone: str) -> str:
    found = [view.id for view in desk.nodes(ALL).items if view.labels.get("zone") == zone]
    assert len(found) == 1
    return found[0]


def listed(desk: Desk, *filters: str) -> tuple[WorkView, ...]:
    return desk.work(Query(filters)).items


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Any]:
    """Starts tasks that run until the end of the test."""
    flag, refs = tmp_path / "over", list[Any]()

    def until_there(path: str) -> None:
        import os
        import threading

        while not os.path.exists(path):
            threading.Event().wait(0.05)

    held: Any = ray.remote(num_cpus=1, max_retries=0)(until_there)

    def start(**options: Any) -> Any:
        refs.append(held.options(**options).remote(str(flag)))
        return refs[-1]

    yield start
    flag.touch()
    ray.get(refs, timeout=SOON_S)


class TestWorkIsListed:
    def test_running_and_pending_tasks_are_listed_with_name_node_and_age(self, desk: Desk, gate: Any) -> None:
        refs = [gate(name="crunch") for _ in range(6)]

        def shows() -> bool:
            states = [view.state for view in listed(desk, "name=crunch")]
            return states.count("running") == 4 and states.count("waiting") == 2

        wait_for(shows, 60, "four run and two wait")
        ids = {ref.task_id().hex() for ref in refs}
        for view in listed(desk, "name=crunch"):
            assert view.id in ids
            assert view.kind == "task"
            assert view.resources == {"CPU": 1.0}
            assert view.since is not None
            assert bool(view.node) == (view.state == "running")
        assert desk.summary().running >= 4

    def test_actors_are_listed_with_their_rules_also_if_they_only_wait_for_labels(self, desk: Desk) -> None:
        there = Resident.options(name="there", scheduling_strategy=stead.node_affinity(stead.label_in("zone", ["b"])))
        nowhere = Resident.options(
            name="nowhere", scheduling_strategy=stead.node_affinity(stead.label_in("zone", ["c"]))
        )
        alive, waits = there.remote(), nowhere.remote()
        assert ray.get(alive.where.remote()) == node_in(desk, "b")

        wait_for(lambda: len(listed(desk, "name=there", "state=running")) == 1)
        wait_for(lambda: len(listed(desk, "name=nowhere", "state=waiting")) == 1)
        (view,) = listed(desk, "name=nowhere")
        assert view.id == waits._actor_id.hex()
        assert view.rules == ("zone in {c}",)
        assert "zone in {c}" in str(desk.why(view.id))
        assert desk.lint(None)[0].code == "unknown-value"

    def test_the_same_work_is_not_listed_twice(self, desk: Desk) -> None:
        far = stead.node_affinity(stead.label_in("zone", ["c"]))
        waits = [Resident.options(scheduling_strategy=far).remote() for _ in range(3)]
        wanted = {actor._actor_id.hex() for actor in waits}
        wait_for(lambda: wanted <= {view.id for view in listed(desk, "state=waiting")})
        rows = [view for view in listed(desk, "state=waiting") if view.rules == ("zone in {c}",)]
        assert sum(view.count for view in rows) == 3

    def test_groups_are_listed_with_the_nodes_of_their_bundles(self, desk: Desk) -> None:
        group = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD", name="pair")
        large = ray.util.placement_group([{"CPU": 64}], name="large")
        ray.get(group.ready(), timeout=60)
        try:
            wait_for(lambda: {view.name for view in desk.groups(ALL).items} >= {"pair", "large"})
            views = {view.name: view for view in desk.groups(ALL).items}
            assert views["pair"].state == "placed"
            assert {node for _, node in views["pair"].members} == {node_in(desk, "a"), node_in(desk, "b")}
            assert views["large"].state == "waiting"
            assert "CPU" in str(desk.why(large.id.hex()))
        finally:
            ray.util.remove_placement_group(group)
            ray.util.remove_placement_group(large)


class TestPrograms:
    def test_get_the_same_nodes_labels_and_events_as_commands(self, desk: Desk) -> None:
        carried = desk.change(NodeChange(node_in(desk, "a"), (Taint("team", "blue"),), owner="blue"), ME)
        try:
            assert stead.nodes() == list(desk.nodes(ALL).items)
            assert [view.id for view in stead.nodes("zone = b")] == [node_in(desk, "b")]
            assert stead.labels() == desk.labels()
            assert stead.events(after=0, limit=5) == list(desk.events(0, 5))
        finally:
            desk.undo(carried.entry.number, ME)

    def test_see_how_many_tasks_and_actors_run_on_each_node(self, desk: Desk, gate: Any) -> None:
        actor = Resident.options(num_cpus=0, label_selector={"zone": "b"}).remote()
        ray.get(actor.where.remote(), timeout=60)
        for zone, labels in (("a", None), ("b", None), ("b", {"app": "web"})):
            gate(label_selector={"zone": zone}, **({"labels": labels} if labels else {}))

        def runs() -> dict[str, int]:
            return {view.labels.get("zone", "head"): view.runs for view in stead.nodes()}

        wait_for(lambda: runs() == {"head": 0, "a": 1, "b": 3}, 60, "one task, two tasks and an actor")
        ray.kill(actor)
        wait_for(lambda: runs() == {"head": 0, "a": 1, "b": 2}, 60, "the end of the actor")


class TestChanges:
    def test_a_change_takes_effect_is_audited_and_can_be_undone(self, desk: Desk, gate: Any) -> None:
        a, b = node_in(desk, "a"), node_in(desk, "b")
        carried = desk.change(
            NodeChange(a, (Taint("team", "blue"),), labels=Labels({"disk": "ssd"}), owner="blue", for_s=600), ME
        )
        assert carried.node.taints == (Taint("team", "blue"),)
        assert carried.node.ends[0].owner == "blue"
        assert carried.node.sources["disk"] == "run time"
        assert carried.entry.who == "tester"
        actors = [Resident.remote() for _ in range(2)]
        assert {ray.get(actor.where.remote(), timeout=60) for actor in actors} == {b}

        undone = desk.undo(carried.entry.number, ME)
        assert undone.node.taints == ()
        assert "disk" not in undone.node.labels
        assert undone.entry.action == f"undo {carried.entry.number}"
        assert desk.verify() >= 2

    def test_changes_by_programs_are_audited_too(self, desk: Desk) -> None:
        a = node_in(desk, "a")
        stead.taint(a, {"mine": "yes"}, owner="me")
        stead.untaint(a, ["mine"])
        last = desk.audit(0, 1000)[-2:]
        assert [(entry.action, entry.via, entry.node) for entry in last] == [("taint", "api", a), ("untaint", "api", a)]

    def test_a_drained_node_gets_no_work_until_it_is_uncordoned(self, desk: Desk) -> None:
        a, b = node_in(desk, "a"), node_in(desk, "b")
        drained = desk.change(NodeChange(a, draining=True), ME)
        assert drained.node.draining
        held = [Resident.remote() for _ in range(3)]
        wait_for(lambda: len(listed(desk, "kind=actor", f"node={b}")) == 2, 60)
        wait_for(lambda: len(listed(desk, "kind=actor", "state=waiting")) == 1)
        desk.undo(drained.entry.number, ME)
        assert sorted(ray.get([actor.where.remote() for actor in held], timeout=60)) == sorted([a, b, b])

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (NodeChange("nothing"), "no node 'nothing'"),
            (NodeChange("a"), "the change is empty"),
            (NodeChange("a", untaints=(Removal("k"),)), "has no taint k"),
            (NodeChange("a", unlabels=("k",)), "has no label k"),
            (NodeChange("a", labels=Labels({"ray.io/x": "y"})), "cannot change while a node runs"),
            (NodeChange("a", (Taint("k", "v"),), until_job="no"), "is not a running job"),
        ],
    )
    def test_an_impossible_change_is_refused_before_anything_is_stored(
        self, desk: Desk, change: NodeChange, said: str
    ) -> None:
        entries = len(desk.audit(0, 1000))
        node = node_in(desk, "a") if change.node == "a" else change.node
        with pytest.raises(Invalid, match=said):
            desk.change(NodeChange(node, **{name: getattr(change, name) for name in FIELDS}), ME)
        assert len(desk.audit(0, 1000)) == entries


FIELDS = ("taints", "untaints", "labels", "unlabels", "until_job")


class TestQuestions:
    def test_a_blast_radius_names_stranded_and_blocked_work(self, desk: Desk, gate: Any) -> None:
        a = node_in(desk, "a")
        pinned = Resident.options(
            name="pinned", max_restarts=1, scheduling_strategy=stead.node_affinity(stead.label_in("zone", ["a"]))
        ).remote()
        assert ray.get(pinned.where.remote(), timeout=60) == a
        wait_for(lambda: listed(desk, "name=pinned", "state=running"))
        soft = desk.blast(NodeChange(a, (Taint("team", "blue"),)))
        assert [(stays.name, stays.nodes) for stays in soft.stays if stays.name == "pinned"] == [("pinned", 0)]
        hard = desk.blast(NodeChange(a, (Taint("team", "blue", Effect.NO_EXECUTE),)))
        assert [fate.name for fate in hard.stranded if fate.name == "pinned"] == ["pinned"]
        assert not desk.node(a).taints

    def test_nodes_that_stead_only_prefers_are_not_shown_as_a_rule_of_the_user(self, desk: Desk) -> None:
        a, b = node_in(desk, "a"), node_in(desk, "b")
        mild = desk.change(NodeChange(a, (Taint("mild", "", Effect.PREFER_NO_SCHEDULE),)), ME)
        rather_b = Resident.options(name="rather-b", max_restarts=1).remote()
        assert ray.get(rather_b.where.remote(), timeout=60) == b
        wait_for(lambda: listed(desk, "name=rather-b", "state=running"))
        found = desk.blast(NodeChange(b, draining=True, evict=True))
        assert [(fate.name, fate.after) for fate in found.moved] == [("rather-b", a)]
        assert found.stranded == ()
        desk.undo(mild.entry.number, ME)

    def test_what_if_answers_from_the_live_cluster_and_changes_nothing(self, desk: Desk) -> None:
        waits = Resident.options(name="much", num_cpus=3).remote()
        wait_for(lambda: listed(desk, "name=much", "state=waiting"))
        id = waits._actor_id.hex()
        found = desk.what_if({"changes": [{"join": {"id": "big", "capacity": {"CPU": 8}}}]})
        assert [fate.after for fate in found.placed if id in fate.ids] == ["big"]
        assert listed(desk, "name=much", "state=waiting")

    def test_a_spec_is_explained_without_being_submitted(self, desk: Desk) -> None:
        (found,) = desk.why_spec({"work": [{"id": "train", "resources": {"GPU": 1}}]})
        assert "GPU" in str(found)
        assert not [view for view in listed(desk) if view.id == "train"]

    def test_a_decision_is_replayed_from_the_journal_with_its_reason(self, desk: Desk) -> None:
        first = Resident.options(name="first", labels={"app": "db"}).remote()
        near = stead.actor_affinity(stead.label_in("app", ["db"]))
        second = Resident.options(name="second", scheduling_strategy=near).remote()
        where = ray.get(first.where.remote(), timeout=60)
        assert ray.get(second.where.remote(), timeout=60) == where
        found = desk.replay(second._actor_id.hex())
        assert found.explanation is not None
        assert found.explanation.chosen is not None
        assert found.explanation.chosen.node == where

    def test_replaying_work_that_ray_placed_says_that_stead_did_not_decide_it(self, desk: Desk) -> None:
        plain = Resident.remote()
        ray.get(plain.where.remote(), timeout=60)
        with pytest.raises(Invalid, match="no decision about"):
            desk.replay(plain._actor_id.hex())
