"""Near and apart from other work (A1-A5, A7) on a real cluster: by handle, by label, by node and by zone.

Four nodes. An anchor is on node 1, another on node 2; nodes 1 and 2 are zone a, node 3 is zone b, the head has none.
Left to itself, work goes to the head, where the driver is; so whoever is elsewhere was led there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray
from conftest import ClusterOf
from waiting import wait_for
from workload import (
    SOON_S,
    Resident,
    attached,
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
from stead.asks import Ask
from stead.labelling import Requirement, Selector
from stead.ray.attach import connection
from stead.ray.local import LocalCluster

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
    """Where an actor lives; runs for as long as it has no place."""
    return str(ray.get(actor.where.remote()))


def homes(cluster: LocalCluster, *actors: Any) -> list[int]:
    """The nodes on which these actors live, by their place in the cluster."""
    ids = [node.node_id for node in cluster.nodes]
    return [ids.index(id) for id in ray.get([actor.where.remote() for actor in actors], timeout=SOON_S)]


def at(name: str) -> Any:
    return node_affinity(label_in("node_name", [name]))


def codes(what: Any) -> set[str]:
    """The stable codes of all reasons why something waits."""
    return {refusal.reason.code for verdict in stead.why(what).verdicts for refusal in verdict.refusals}


def nothing_else_runs(cluster: LocalCluster, anchors: dict[str, Any]) -> bool:
    """Whether tasks of tests before are over, for stead and for Ray: a preference gives way where there is no room."""
    others = set(connection().ask("registered_ids")) - {anchor._actor_id.hex() for anchor in anchors.values()}
    free = ray._private.state.state.available_resources_per_node()
    return not others and all(free[node.node_id].get("CPU") == node.spec.num_cpus for node in cluster.nodes)


@contextmanager
def held_back(word: str, **options: Any) -> Iterator[Any]:
    """An actor that has no place until a node is labelled with that word."""
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
    def test_an_actor_goes_where_they_hold_too(self, cluster: LocalCluster, anchors: dict[str, Any], name: str) -> None:
        written, allowed = BY_HANDLE[name]
        with resident(scheduling_strategy=actor_affinity(written(**anchors))) as actor:
            assert set(homes(cluster, actor)) <= allowed

    def test_the_calls_of_the_seed_at_once(self, cluster: LocalCluster) -> None:
        """Nobody waits for the first actor before the others are created."""
        with (
            resident(num_cpus=0) as first,
            resident(num_cpus=0, scheduling_strategy=actor_affinity(affinity(first, False))) as second,
            resident(num_cpus=0, scheduling_strategy=actor_affinity(affinity([first, second], False))) as third,
            resident(num_cpus=0, scheduling_strategy=actor_affinity(anti_affinity(first, False))) as fourth,
        ):
            place, *near, apart = homes(cluster, first, second, third, fourth)
            assert near == [place, place]
            assert apart != place

    def test_an_actor_that_ray_is_still_starting_is_kept_apart_from(self, cluster: LocalCluster) -> None:
        """The second one would rather be there than anywhere, and is created before the first one runs."""
        rather = node_affinity(label_in("node_name", ["three"], is_soft=True))
        with (
            resident(num_cpus=0, label_selector={"zone": "b"}) as first,
            resident(num_cpus=0, scheduling_strategy=[rather, actor_affinity(anti_affinity(first))]) as second,
        ):
            assert homes(cluster, first) == [3]
            assert homes(cluster, second) != [3]

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

    def test_a_soft_affinity_gives_way_when_its_node_is_full(
        self, cluster: LocalCluster, anchors: dict[str, Any]
    ) -> None:
        soft = actor_affinity([affinity(anchors["two"], is_soft=True), affinity(list(anchors.values()))])
        with occupied(cluster.nodes[2].node_id, 2):
            assert landed(cluster, 1, scheduling_strategy=soft) == {1}

    def test_it_gives_way_too_when_the_room_is_taken_at_the_last_moment(
        self, cluster: LocalCluster, anchors: dict[str, Any]
    ) -> None:
        """Whoever is first, the task finds a place: on the node it likes, or on the other."""
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
    """A2: the form that the functions stand for."""

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

    def test_handles_and_labels_go_together(self, cluster: LocalCluster, anchors: dict[str, Any]) -> None:
        both = actor_affinity([anti_affinity(anchors["one"]), label_not_in("role", ["cache"])])
        with resident(scheduling_strategy=both) as actor:
            assert set(homes(cluster, actor)) <= {0, 3}

    def test_the_first_of_a_kind_that_wants_its_own_kind_is_let_in_and_the_others_follow(
        self, cluster: LocalCluster
    ) -> None:
        together = {"labels": {"role": "pack"}, "scheduling_strategy": actor_affinity(label_in("role", ["pack"]))}
        with resident(num_cpus=0, **together) as one, resident(num_cpus=0, **together) as other:
            assert len(set(homes(cluster, one, other))) == 1

    def test_a_task_is_found_by_its_labels_while_it_runs(self, cluster: LocalCluster, anchors: dict[str, Any]) -> None:
        """It runs until an actor answers, which has no place before a node is labelled."""
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
            placed = ray.get([by_id, here.options(scheduling_strategy=apart).remote()], timeout=30)
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
    """A5: what cannot be met yet waits, says why, and goes on by itself."""

    @pytest.mark.parametrize("kind", ["by handle", "by label"])
    def test_work_waits_for_an_actor_without_a_place_and_follows_it(self, cluster: LocalCluster, kind: str) -> None:
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

    def test_a_plain_actor_of_rays_that_waits_is_followed_too(self, cluster: LocalCluster) -> None:
        """It is no affair of the engine's until somebody names it."""
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

    def test_a_taint_on_the_targets_node_keeps_the_follower_off_unless_it_tolerates_it(
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

    def test_work_apart_from_an_actor_without_a_place_does_not_wait(self, cluster: LocalCluster) -> None:
        with held_back("nowhere") as absent:
            assert landed(cluster, 1, scheduling_strategy=actor_affinity(anti_affinity(absent)))

    def test_an_affinity_to_a_dead_actor_waits_and_says_so(self, cluster: LocalCluster) -> None:
        target = Resident.options(num_cpus=0).remote()
        homes(cluster, target)
        ray.kill(target)
        task = where.options(scheduling_strategy=actor_affinity(affinity(target))).remote()
        assert waits(task)
        assert wait_for(lambda: codes(task) == {"target-dead"}, SOON_S, "the word that it is dead")
        ray.cancel(task)

    def test_a_target_that_dies_for_good_while_others_wait_for_it_is_told(self, cluster: LocalCluster) -> None:
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

    def test_an_actor_in_its_place_says_why_it_is_there(self, cluster: LocalCluster, anchors: dict[str, Any]) -> None:
        with resident(num_cpus=0, scheduling_strategy=actor_affinity(affinity(anchors["two"]))) as actor:
            homes(cluster, actor)
            chosen = wait_for(lambda: stead.why(actor).chosen, SOON_S, "the news that it runs")
            assert chosen is not None
            assert chosen.node == cluster.nodes[2].node_id

    @pytest.mark.usefixtures("cluster")
    def test_an_actor_that_ray_has_not_heard_of_yet_is_explained_to_who_made_it(self) -> None:
        ask = Ask.of("0" * 32, selector=Selector.all_of(Requirement.is_in("zone", "z")))
        assert not connection().ask("why_actor", ask.id, ask).fits
        with pytest.raises(stead.Invalid, match="Ray knows no actor 0000"):
            stead.why(ask.id)


@pytest.mark.long
class TestTopology:
    """A7: together and apart by zone, and by a label that a running node gets."""

    @pytest.mark.parametrize(
        ("expression", "allowed"),
        [
            pytest.param(affinity, {1, 2}, id="near"),
            pytest.param(lambda one: [affinity(one), anti_affinity("nobody")], {1, 2}, id="near, apart from nobody"),
            pytest.param(anti_affinity, {0, 3}, id="apart"),
        ],
    )
    def test_a_zone_is_the_place(
        self, cluster: LocalCluster, anchors: dict[str, Any], expression: Any, allowed: set[int]
    ) -> None:
        strategy = actor_affinity(expression(anchors["one"]), topology="zone")
        assert landed(cluster, 2, scheduling_strategy=strategy) <= allowed

    def test_the_same_zone_on_another_node(self, cluster: LocalCluster, anchors: dict[str, Any]) -> None:
        strategy = [
            actor_affinity(label_in("role", ["cache"]), topology="zone"),
            actor_affinity(label_not_in("role", ["cache"])),
        ]
        with resident(num_cpus=0, scheduling_strategy=strategy) as actor:
            assert homes(cluster, actor) == [1]

    def test_a_label_of_a_running_node_makes_it_part_of_the_place(
        self, cluster: LocalCluster, anchors: dict[str, Any]
    ) -> None:
        strategy = [at("three"), actor_affinity(affinity(anchors["one"]), topology="rack")]
        with labelled(cluster.nodes[1].node_id, {"rack": "r-1"}):
            task = where.options(scheduling_strategy=strategy).remote()
            assert waits(task)
            with labelled(cluster.nodes[3].node_id, {"rack": "r-1"}):
                assert indexes(cluster, [task]) == {3}


def test_nothing_is_left_over(cluster: LocalCluster) -> None:
    """The last test of the file: what waited was ended, and no ticket remains but those of the anchors."""
    assert wait_for(lambda: len(tickets()) <= 1, SOON_S, "the end of all tickets")
