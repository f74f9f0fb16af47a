"""Near and apart from other work on a real cluster: by handle, by label, by node and by zone.

Four nodes. An anchor actor is on node 1, another on node 2; nodes 1 and 2 are in zone a, node 3 is in zone b, the head
has no zone. Unrestricted work runs on the head, where the driver is, so work on another node was placed there by its
rules.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray

import stead
from stead import (
    ActorAffinitySchedulingStrategy,
    LabelMatchExpression,
    LabelMatchOperator,
    actor_affinity,
    affinity,
    anti_affinity,
    label_does_not_exist,
    label_exists,
    label_in,
    label_not_in,
    node_affinity,
)
from stead.language.asks import Ask
from stead.language.labels import Requirement, Selector
from stead.ray.control.ticketed_work import STARTS_MAX_S, STARTS_S
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.remote_desk import remote_desk
from stead.ray.submit.connection import connection
from stead.ray.submit.messages import Recalled
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import (
    SOON_S,
    PlainResident,
    Resident,
    attached,
    cpus_are_free,
    indexes,
    labelled,
    landed,
    occupied,
    resident,
    run_driver,
    tickets,
    waits,
    where,
)

NODES: list[dict[str, Any]] = [
    {"num_cpus": 2, "name": "head"},
    {"num_cpus": 2, "name": "one", "labels": {"zone": "a"}},
    {"num_cpus": 2, "name": "two", "labels": {"zone": "a"}},
    {"num_cpus": 2, "name": "three", "labels": {"zone": "b"}},
]


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    with attached(cluster_of(NODES)) as started:
        yield started


@pytest.fixture(scope="module")
def anchors(cluster: LocalCluster) -> Iterator[dict[str, Any]]:
    """`one` is a plain actor of Ray's, on node 1; `two` has labels, on node 2."""
    with (
        resident(num_cpus=0, label_selector={"node_name": "one"}) as one,
        resident(num_cpus=0, label_selector={"node_name": "two"}, labels={"role": "cache", "owner": "blue"}) as two,
    ):
        assert homes(cluster, one, two) == [1, 2]
        yield {"one": one, "two": two}


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
def ask(actor: Any) -> str:
    """The node of an actor; runs until the actor is placed."""
    return str(ray.get(actor.where.remote()))


def homes(cluster: LocalCluster, *actors: Any) -> list[int]:
    """The nodes of these actors, by index in the cluster."""
    ids = [node.node_id for node in cluster.nodes]
    return [ids.index(id) for id in ray.get([actor.where.remote() for actor in actors], timeout=SOON_S)]


def at(name: str) -> Any:
    return node_affinity(label_in("node_name", [name]))


def codes(what: Any) -> set[str]:
    """The stable codes of all reasons why work is pending."""
    return {refusal.reason.code for verdict in stead.why(what).verdicts for refusal in verdict.refusals}


def nothing_else_runs(cluster: LocalCluster, anchors: dict[str, Any]) -> bool:
    """Whether tasks of earlier tests have ended, for stead and for Ray: a preference gives way if there is no room."""
    others = set(connection().ask("registered_ids")) - {anchor._actor_id.hex() for anchor in anchors.values()}
    return not others and cpus_are_free(cluster)


@contextmanager
def held_back(word: str, **options: Any) -> Iterator[Any]:
    """An actor that is pending until a node gets this label."""
    with resident(num_cpus=0, label_selector={"admits": word}, **options) as actor:
        yield actor


BY_HANDLE: dict[str, tuple[Any, set[int]]] = {
    "near one": (lambda one, two: affinity(one), {1}),
    "near one, hard by position": (lambda one, two: affinity(one, False), {1}),
    "near the other": (lambda one, two: affinity(two, is_soft=False), {2}),
    "near one in a list": (lambda one, two: [affinity([one])], {1}),
    "near either": (lambda one, two: affinity([one, two]), {1, 2}),
    "near either, as a tuple, by position": (lambda one, two: affinity((one, two), False), {1, 2}),
    "near one, by its id": (lambda one, two: affinity(one._actor_id.hex()), {1}),
    "apart from one": (lambda one, two: anti_affinity(one), {0, 2, 3}),
    "apart from one, hard by position": (lambda one, two: anti_affinity(one, False), {0, 2, 3}),
    "apart from both": (lambda one, two: anti_affinity([one, two]), {0, 3}),
    "apart from one and from the other": (
        lambda one, two: [anti_affinity(one, False), anti_affinity(two, False)],
        {0, 3},
    ),
    "near either and apart from one": (lambda one, two: [affinity([one, two]), anti_affinity(one)], {2}),
    "near one, softly": (lambda one, two: affinity(one, True), {1}),
    "near the other, softly": (lambda one, two: [affinity(two, is_soft=True)], {2}),
    "near either, rather apart from one": (
        lambda one, two: [affinity([one, two]), anti_affinity(one, is_soft=True)],
        {2},
    ),
    "near one, rather near the other": (lambda one, two: [affinity(one), affinity(two, is_soft=True)], {1}),
}


class TestByHandle:
    @pytest.mark.parametrize("name", BY_HANDLE)
    def test_a_task_goes_where_the_expressions_hold(
        self, cluster: LocalCluster, anchors: dict[str, Any], name: str
    ) -> None:
        written, allowed = BY_HANDLE[name]
        wait_for(lambda: nothing_else_runs(cluster, anchors), SOON_S, "room for what has only a preference")
        assert landed(cluster, 2, scheduling_strategy=actor_affinity(written(**anchors))) <= allowed

    @pytest.mark.parametrize("name", ["near one, hard by position", "apart from both", "near the other, softly"])
    def test_an_actor_goes_where_the_expressions_hold(
        self, cluster: LocalCluster, anchors: dict[str, Any], name: str
    ) -> None:
        written, allowed = BY_HANDLE[name]
        with resident(scheduling_strategy=actor_affinity(written(**anchors))) as actor:
            assert set(homes(cluster, actor)) <= allowed

    @pytest.mark.long
    def test_actors_created_at_once_are_placed_by_their_affinities(self, cluster: LocalCluster) -> None:
        """The others are created without waiting for the first actor."""
        with (
            resident(num_cpus=0) as first,
            resident(num_cpus=0, scheduling_strategy=actor_affinity(affinity(first, False))) as second,
            resident(num_cpus=0, scheduling_strategy=actor_affinity(affinity([first, second], False))) as third,
            resident(num_cpus=0, scheduling_strategy=actor_affinity(anti_affinity(first, False))) as fourth,
        ):
            place, *near, apart = homes(cluster, first, second, third, fourth)
            assert near == [place, place]
            assert apart != place

    def test_work_stays_apart_from_an_actor_that_ray_is_still_starting(self, cluster: LocalCluster) -> None:
        """The second one prefers that node, and is created before the first one runs."""
        rather = node_affinity(label_in("node_name", ["three"], is_soft=True))
        with (
            resident(num_cpus=0, label_selector={"zone": "b"}) as first,
            resident(num_cpus=0, scheduling_strategy=[rather, actor_affinity(anti_affinity(first))]) as second,
        ):
            assert homes(cluster, first) == [3]
            assert homes(cluster, second) != [3]

    @pytest.mark.long
    @pytest.mark.parametrize("kind", ["an actor", "a task"])
    def test_work_stays_apart_from_an_actor_that_takes_long_to_start(
        self, kind: str, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        """It waits longer than it would for an actor that has no room, although other work is pending."""

        class Slow(PlainResident):
            def __init__(self) -> None:
                super().__init__()
                wait_for((tmp_path / "go").exists)

        rather = node_affinity(label_in("node_name", ["three"], is_soft=True))
        first = ray.remote(Slow).options(num_cpus=0, label_selector={"zone": "b"}).remote()
        options = {"num_cpus": 0, "scheduling_strategy": [rather, actor_affinity(anti_affinity(first))]}
        with held_back("never"), resident(**options) as second:
            placed = where.options(**options).remote() if kind == "a task" else second.where.remote()
            assert not ray.wait([placed], timeout=2 * STARTS_S)[0]
            (tmp_path / "go").touch()
            assert homes(cluster, first) == [3]
            assert indexes(cluster, [placed]) != {3}

    def test_one_of_several_alternatives_is_enough(self, cluster: LocalCluster, anchors: dict[str, Any]) -> None:
        with held_back("never") as absent:
            either = actor_affinity([affinity(absent), affinity(anchors["two"])], is_or_semantics=True)
            assert landed(cluster, 1, scheduling_strategy=either) == {2}

    @pytest.mark.long
    def test_a_chain_of_actors_follows_its_first(self, cluster: LocalCluster) -> None:
        with (
            resident(num_cpus=0, scheduling_strategy=at("three")) as first,
            resident(num_cpus=0, scheduling_strategy=actor_affinity(affinity(first))) as second,
            resident(num_cpus=0, scheduling_strategy=actor_affinity(affinity(second))) as third,
        ):
            assert homes(cluster, third, second, first) == [3, 3, 3]

    @pytest.mark.long
    def test_a_soft_affinity_gives_way_when_its_node_is_full(
        self, cluster: LocalCluster, anchors: dict[str, Any]
    ) -> None:
        soft = actor_affinity([affinity(anchors["two"], is_soft=True), affinity(list(anchors.values()))])
        with occupied(cluster.nodes[2].node_id, 2):
            assert landed(cluster, 1, scheduling_strategy=soft) == {1}

    @pytest.mark.long
    def test_a_soft_affinity_gives_way_when_the_room_is_taken_at_the_last_moment(
        self, cluster: LocalCluster, anchors: dict[str, Any]
    ) -> None:
        """Whichever is first, the task is placed: on the node it prefers, or on the other."""
        soft = actor_affinity([affinity(anchors["two"], is_soft=True), affinity(list(anchors.values()))])
        for _ in range(6):
            ref = where.options(scheduling_strategy=soft).remote()
            with occupied(cluster.nodes[2].node_id, 2):
                assert indexes(cluster, [ref]) <= {1, 2}

    @pytest.mark.long
    def test_a_soft_anti_affinity_gives_way_when_nothing_else_is_there(
        self, cluster: LocalCluster, anchors: dict[str, Any]
    ) -> None:
        strategy = [at("one"), actor_affinity(anti_affinity(anchors["one"], True))]
        assert landed(cluster, 1, scheduling_strategy=strategy) == {1}


class TestExpressionsBeneath:
    """The expressions that the functions create."""

    @pytest.mark.long
    @pytest.mark.parametrize("operator", ["IN", "in", LabelMatchOperator.IN], ids=str)
    @pytest.mark.parametrize("words", [("match_operator", "is_soft"), ("operator", "soft")], ids="/".join)
    def test_an_expression_on_actor_ids_is_an_affinity(
        self, cluster: LocalCluster, anchors: dict[str, Any], operator: Any, words: tuple[str, str]
    ) -> None:
        named = {"key": "actor_id", "values": [anchors["two"]._actor_id.hex()], words[0]: operator, words[1]: False}
        strategy = ActorAffinitySchedulingStrategy([LabelMatchExpression(**named)])
        assert landed(cluster, 1, scheduling_strategy=strategy) == {2}

    def test_not_in_is_an_anti_affinity(self, cluster: LocalCluster, anchors: dict[str, Any]) -> None:
        ids = [actor._actor_id.hex() for actor in anchors.values()]
        apart = LabelMatchExpression(key="actor_id", match_operator="NOT_IN", values=ids, is_soft=False)
        assert landed(cluster, 2, scheduling_strategy=ActorAffinitySchedulingStrategy([apart])) <= {0, 3}


BY_LABEL: dict[str, tuple[Any, set[int]]] = {
    "near a value": (label_in("role", ["cache"]), {2}),
    "near one of the values, by position": (label_in("role", ["cache", "web"], False), {2}),
    "near a bare value": (label_in("role", "cache"), {2}),
    "near a key": (label_exists("owner", False), {2}),
    "both": ([label_in("role", ["cache"], False), label_exists("owner", False)], {2}),
    "apart from a value": (label_not_in("role", ["cache"]), {0, 1, 3}),
    "apart from a key": (label_does_not_exist("owner"), {0, 1, 3}),
    "apart from another value is no rule": ([label_not_in("role", ["web"]), label_exists("role")], {2}),
    "rather near": (label_in("role", ["cache"], is_soft=True), {2}),
    "rather near nobody": ([label_in("role", ["nobody"], True), label_exists("role")], {2}),
}


@pytest.mark.long
class TestByLabel:
    @pytest.mark.parametrize("name", BY_LABEL)
    def test_a_task_goes_where_the_expressions_hold(
        self, cluster: LocalCluster, anchors: dict[str, Any], name: str
    ) -> None:
        written, allowed = BY_LABEL[name]
        wait_for(lambda: nothing_else_runs(cluster, anchors), SOON_S, "room for what has only a preference")
        assert landed(cluster, 2, scheduling_strategy=actor_affinity(written)) <= allowed

    def test_handles_and_labels_can_be_combined(self, cluster: LocalCluster, anchors: dict[str, Any]) -> None:
        both = actor_affinity([anti_affinity(anchors["one"]), label_not_in("role", ["cache"])])
        with resident(scheduling_strategy=both) as actor:
            assert set(homes(cluster, actor)) <= {0, 3}

    def test_the_first_piece_with_an_affinity_to_its_own_kind_is_placed_and_the_others_follow(
        self, cluster: LocalCluster
    ) -> None:
        together = {"labels": {"role": "pack"}, "scheduling_strategy": actor_affinity(label_in("role", ["pack"]))}
        with resident(num_cpus=0, **together) as one, resident(num_cpus=0, **together) as other:
            assert len(set(homes(cluster, one, other))) == 1

    def test_a_task_is_found_by_its_labels_while_it_runs(self, cluster: LocalCluster, anchors: dict[str, Any]) -> None:
        """It runs until an actor answers that is pending until a node is labelled."""
        with held_back("gate") as gate:
            visitor = ask.options(labels={"role": "visitor"}, scheduling_strategy=at("three")).remote(gate)
            near = where.options(scheduling_strategy=actor_affinity(label_in("role", ["visitor"]))).remote()
            assert indexes(cluster, [near]) == {3}
            with labelled(cluster.nodes[1].node_id, {"admits": "gate"}):
                assert indexes(cluster, [visitor]) == {1}
        wait_for(lambda: nothing_else_runs(cluster, anchors), SOON_S, "news of the visitor's end")
        late = where.options(scheduling_strategy=actor_affinity(label_in("role", ["visitor"]))).remote()
        assert waits(late)
        ray.cancel(late)

    @pytest.mark.long
    def test_labels_of_work_in_another_namespace_are_not_found(
        self, cluster: LocalCluster, anchors: dict[str, Any]
    ) -> None:
        program = """
            import json, sys
            import ray, stead
            from stead import actor_affinity, label_in, label_not_in, affinity

            stead.init(sys.argv[1], namespace="others", log_to_driver=False, logging_level="error")
            here = ray.remote(num_cpus=0)(lambda: ray.get_runtime_context().get_node_id())
            near = here.options(scheduling_strategy=actor_affinity(label_in("role", ["cache"]))).remote()
            by_id = here.options(scheduling_strategy=actor_affinity(affinity(sys.argv[2]))).remote()
            two = stead.node_affinity(label_in("node_name", ["two"]))
            apart = [two, actor_affinity(label_not_in("role", ["cache"]))]
            placed = ray.get([by_id, here.options(scheduling_strategy=apart).remote()], timeout=60)
            found = ray.wait([near], timeout=1)[0]
            print(json.dumps([placed, len(found), str(stead.why(near))]))
        """
        by_id, apart = 2, 2
        placed, found, reason = run_driver(program, {}, cluster.address, anchors["two"]._actor_id.hex())
        ids = [node.node_id for node in cluster.nodes]
        assert [ids.index(id) for id in placed] == [by_id, apart]
        assert found == 0
        assert "near work with role in {cache}" in reason

    def test_an_actor_that_died_is_forgotten(self, cluster: LocalCluster) -> None:
        shy = {"scheduling_strategy": [at("three"), actor_affinity(label_not_in("role", ["mortal"]))], "num_cpus": 0}
        with resident(num_cpus=0, labels={"role": "mortal"}, scheduling_strategy=at("three")) as mortal:
            assert homes(cluster, mortal) == [3]
            blocked = where.options(**shy).remote()
            assert waits(blocked)
            assert codes(blocked) >= {"too-near"}
        assert indexes(cluster, [blocked]) == {3}


@pytest.mark.long
class TestWaiting:
    """Work whose rules cannot be met is pending, explains why, and starts automatically once they can."""

    @pytest.mark.parametrize("kind", ["by handle", "by label"])
    def test_work_waits_for_a_pending_actor_and_follows_it(self, cluster: LocalCluster, kind: str) -> None:
        before = max((event.number for event in stead.events()), default=0)
        with held_back(kind.replace(" ", "-"), labels={"role": "late"}) as target:
            near = affinity(target, False) if kind == "by handle" else label_in("role", ["late"])
            with resident(num_cpus=0, scheduling_strategy=actor_affinity(near)) as follower:
                task = where.options(scheduling_strategy=actor_affinity(near)).remote()
                asked = follower.where.remote()
                assert waits(asked, task)
                assert codes(follower) == codes(task) == {"not-near"}
                told = [event for event in stead.events(after=before) if event.kind == "waiting"]
                assert any("not near" in event.text for event in told), told
                with labelled(cluster.nodes[3].node_id, {"admits": kind.replace(" ", "-")}):
                    assert indexes(cluster, [asked, task]) == {3}

    def test_a_pending_plain_actor_is_followed_too(self, cluster: LocalCluster) -> None:
        """The engine does not know it until other work names it."""
        nodes = [{"ray.io/node-id": node.node_id} for node in cluster.nodes[:3]]
        full = [ray.util.placement_group([{"CPU": 2}], bundle_label_selector=[node]) for node in nodes]
        ray.get([group.ready() for group in full])
        with occupied(cluster.nodes[3].node_id, 1), resident(num_cpus=2) as target:
            task = where.options(num_cpus=0, scheduling_strategy=actor_affinity(affinity(target))).remote()
            assert waits(task)
            for group in full:
                ray.util.remove_placement_group(group)
            assert indexes(cluster, [task]) == set(homes(cluster, target))

    @pytest.mark.long
    def test_work_waits_behind_a_taint_of_its_target(self, cluster: LocalCluster) -> None:
        stead.taint("three", {"closed": "yes"})
        try:
            with (
                resident(num_cpus=0, label_selector={"zone": "b"}) as target,
                resident(num_cpus=0, scheduling_strategy=actor_affinity(affinity(target))) as follower,
            ):
                asked = follower.where.remote()
                assert waits(asked)
                stead.untaint("three", ["closed"])
                assert indexes(cluster, [asked]) == {3}
        finally:
            if any(node.taints for node in stead.nodes()):
                stead.untaint("three", ["closed"])

    def test_a_follower_needs_a_toleration_for_the_taint_of_its_targets_node(
        self, cluster: LocalCluster, anchors: dict[str, Any]
    ) -> None:
        near = actor_affinity(affinity(anchors["one"]))
        stead.taint("one", {"closed": "yes"})
        try:
            blocked = where.options(scheduling_strategy=near).remote()
            tolerant = where.options(scheduling_strategy=near, tolerations={"closed": stead.Exists()}).remote()
            assert indexes(cluster, [tolerant]) == {1}
            assert waits(blocked)
            assert codes(blocked) == {"not-near", "tainted"}
        finally:
            stead.untaint("one", ["closed"])
        assert indexes(cluster, [blocked]) == {1}

    @pytest.mark.parametrize(
        ("amount", "near", "expected"),
        [
            (2, "one", {"not-near", "short-now"}),
            (64, "one", {"not-near", "never-fits"}),
            (1, "absent", {"not-near"}),
            (64, "absent", {"not-near", "never-fits"}),
        ],
        ids=["room is short", "it never fits", "the affinity is unmet", "both"],
    )
    def test_the_reason_names_what_is_missing(
        self, cluster: LocalCluster, anchors: dict[str, Any], amount: float, near: str, expected: set[str]
    ) -> None:
        with held_back("nobody") as absent, occupied(cluster.nodes[1].node_id, 1):
            strategy = actor_affinity(affinity({**anchors, "absent": absent}[near]))
            with resident(num_cpus=amount, scheduling_strategy=strategy) as actor:
                assert waits(actor.where.remote())
                assert codes(actor) == expected

    @pytest.mark.long
    def test_work_that_waits_for_room_near_its_target_starts_when_there_is(
        self, cluster: LocalCluster, anchors: dict[str, Any]
    ) -> None:
        with occupied(cluster.nodes[1].node_id, 2):
            task = where.options(scheduling_strategy=actor_affinity(affinity(anchors["one"]))).remote()
            assert waits(task)
        assert indexes(cluster, [task]) == {1}

    def test_work_apart_from_a_pending_actor_does_not_wait(self, cluster: LocalCluster) -> None:
        """An actor without room does not start soon; one that has room is waited for."""
        with held_back("nowhere") as absent:
            began = time.monotonic()
            assert landed(cluster, 1, scheduling_strategy=actor_affinity(anti_affinity(absent)))
            assert time.monotonic() - began < STARTS_MAX_S

    def test_work_near_a_dead_actor_is_pending_and_explains_why(self, cluster: LocalCluster) -> None:
        target = Resident.options(num_cpus=0).remote()
        homes(cluster, target)
        ray.kill(target)
        task = where.options(scheduling_strategy=actor_affinity(affinity(target))).remote()
        assert waits(task)
        assert wait_for(lambda: codes(task) == {"target-dead"}, SOON_S, "the word that it is dead")
        ray.cancel(task)

    def test_the_final_death_of_a_target_is_reported_to_work_that_waits_for_it(self, cluster: LocalCluster) -> None:
        with held_back("dying") as target:
            task = where.options(scheduling_strategy=actor_affinity(affinity(target))).remote()
            assert waits(task)
        assert wait_for(lambda: codes(task) == {"target-dead"}, SOON_S, "the word that it is dead")
        ray.cancel(task)

    @pytest.mark.long
    def test_work_apart_from_a_dead_actor_goes_anywhere(self, cluster: LocalCluster) -> None:
        target = Resident.options(num_cpus=0, scheduling_strategy=at("three")).remote()
        homes(cluster, target)
        ray.kill(target)
        strategy = [at("three"), actor_affinity(anti_affinity(target))]
        assert landed(cluster, 1, scheduling_strategy=strategy) == {3}

    def test_a_placed_actor_explains_its_node(self, cluster: LocalCluster, anchors: dict[str, Any]) -> None:
        with resident(num_cpus=0, scheduling_strategy=actor_affinity(affinity(anchors["two"]))) as actor:
            homes(cluster, actor)
            chosen = wait_for(lambda: stead.why(actor).chosen, SOON_S, "the news that it runs")
            assert chosen is not None
            assert chosen.node == cluster.nodes[2].node_id

    @pytest.mark.usefixtures("cluster")
    def test_an_actor_that_ray_does_not_know_yet_is_explained_to_its_creator(self) -> None:
        ask = Ask.of("0" * 32, selector=Selector.all_of(Requirement.is_in("zone", "z")))
        assert not remote_desk().why(ask.id, Recalled(ask)).fits
        with pytest.raises(stead.Invalid, match="Ray has no actor 0000"):
            stead.why(ask.id)


@pytest.mark.long
class TestTopology:
    """Together and apart by zone, and by a label set on a running node."""

    @pytest.mark.parametrize(
        ("expression", "allowed"),
        [
            pytest.param(affinity, {1, 2}, id="near"),
            pytest.param(lambda one: [affinity(one), anti_affinity("nobody")], {1, 2}, id="near, apart from nobody"),
            pytest.param(anti_affinity, {0, 3}, id="apart"),
        ],
    )
    def test_an_affinity_can_be_to_a_zone(
        self, cluster: LocalCluster, anchors: dict[str, Any], expression: Any, allowed: set[int]
    ) -> None:
        strategy = actor_affinity(expression(anchors["one"]), topology="zone")
        assert landed(cluster, 2, scheduling_strategy=strategy) <= allowed

    def test_an_affinity_can_be_to_the_same_zone_on_another_node(
        self, cluster: LocalCluster, anchors: dict[str, Any]
    ) -> None:
        strategy = [
            actor_affinity(label_in("role", ["cache"]), topology="zone"),
            actor_affinity(label_not_in("role", ["cache"])),
        ]
        with resident(num_cpus=0, scheduling_strategy=strategy) as actor:
            assert homes(cluster, actor) == [1]

    def test_a_label_set_at_run_time_adds_the_node_to_the_zone(
        self, cluster: LocalCluster, anchors: dict[str, Any]
    ) -> None:
        strategy = [at("three"), actor_affinity(affinity(anchors["one"]), topology="rack")]
        with labelled(cluster.nodes[1].node_id, {"rack": "r-1"}):
            task = where.options(scheduling_strategy=strategy).remote()
            assert waits(task)
            with labelled(cluster.nodes[3].node_id, {"rack": "r-1"}):
                assert indexes(cluster, [task]) == {3}


def test_nothing_is_left_over(cluster: LocalCluster) -> None:
    """The last test of the file: pending work has ended, and only the anchors' tickets are left."""
    assert wait_for(lambda: len(tickets()) <= 1, SOON_S, "the end of all tickets")
