"""The options that place work relative to other work, combined with all kinds of Ray work.

Four nodes: nodes 1 and 2 are in zone a, node 3 is in zone b, the head has no zone. Every test ends what it started.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import stead
from stead import actor_affinity, affinity, anti_affinity, label_exists, label_in, node_affinity
from stead.ray.local.local_cluster import LocalCluster
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import (
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

pytestmark = pytest.mark.long

NODES: list[dict[str, Any]] = [
    {"num_cpus": 2, "name": "head"},
    {"num_cpus": 2, "name": "one", "labels": {"zone": "a"}},
    {"num_cpus": 2, "name": "two", "labels": {"zone": "a"}, "resources": {"slot": 1}},
    {"num_cpus": 2, "name": "three", "labels": {"zone": "b"}},
]
LONG = "x" * 64


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    with attached(cluster_of(NODES)) as started:
        yield started


def homes(cluster: LocalCluster, *actors: Any) -> list[int]:
    """The nodes of these actors, by index in the cluster."""
    ids = [node.node_id for node in cluster.nodes]
    return [ids.index(id) for id in ray.get([actor.where.remote() for actor in actors], timeout=SOON_S)]


def at(name: str) -> Any:
    return node_affinity(label_in("node_name", [name]))


def codes(what: Any) -> set[str]:
    return {refusal.reason.code for verdict in stead.why(what).verdicts for refusal in verdict.refusals}


def nothing_is_left() -> bool:
    """No ticket is left, so no ended work holds a node or could start."""
    return wait_for(lambda: not tickets(), SOON_S, f"the end of {tickets()}")


@contextmanager
def several(count: int, **options: Any) -> Iterator[list[Any]]:
    """This many actors, for a block."""
    with ExitStack() as stack:
        yield [stack.enter_context(resident(num_cpus=0, **options)) for _ in range(count)]


@pytest.fixture(scope="class")
def anchors(cluster: LocalCluster) -> Iterator[tuple[Any, Any]]:
    """Actors on node 1 and on node 2, the second with a label."""
    with (
        resident(num_cpus=0, scheduling_strategy=at("one")) as one,
        resident(num_cpus=0, scheduling_strategy=at("two"), labels={"role": "cache"}) as two,
    ):
        homes(cluster, one, two)
        yield one, two


class TestWeights:
    """A soft expression is worth its weight, and the node with the greatest sum that has room is taken.

    The tasks are small: Ray keeps the CPUs of an ended task for half a second, and a full node is no longer preferred.
    """

    @pytest.mark.parametrize(
        ("weights", "chosen"),
        [((10, 90, 1), 2), ((90, 10, 1), 1), ((60, 40, 40), 2), ((None, 1, 1), 1)],
        ids=["the heavier", "the other", "the greater sum", "100 if it has none"],
    )
    def test_the_greatest_sum_is_taken(
        self, cluster: LocalCluster, anchors: tuple[Any, Any], weights: tuple[int | None, int, int], chosen: int
    ) -> None:
        first, second, third = weights
        wanted = [
            affinity(anchors[0], is_soft=True, weight=first),
            affinity(anchors[1], is_soft=True, weight=second),
            label_in("role", ["cache"], is_soft=True, weight=third),
        ]
        assert landed(cluster, 1, num_cpus=0.1, scheduling_strategy=actor_affinity(wanted)) == {chosen}


class TestSpread:
    def test_zones_are_filled_evenly(self, cluster: LocalCluster) -> None:
        with several(4, labels={"app": "web"}, spread={"zone": 1}) as actors:
            zones = ["-aab"[home] for home in homes(cluster, *actors)]
            assert sorted(zones) == ["a", "a", "b", "b"]

    def test_work_that_would_make_it_uneven_is_pending_until_it_does_not(self, cluster: LocalCluster) -> None:
        stead.drain("three")
        try:
            with several(2, labels={"app": "uneven"}, spread={"zone": 1}) as (first, second):
                asked = [first.where.remote(), second.where.remote()]
                assert len(ray.wait(asked, timeout=SOON_S)[0]) == 1
                waiting = second if ray.wait([asked[0]], timeout=0)[0] else first
                assert waits(waiting.where.remote())
                assert codes(waiting) >= {"skewed", "draining"}
                stead.uncordon("three")
                assert 3 in homes(cluster, first, second)
        finally:
            stead.uncordon("three")

    def test_a_greater_skew_admits_more(self, cluster: LocalCluster) -> None:
        options = {"labels": {"app": "askew"}, "spread": {"zone": 2}, "scheduling_strategy": at("one")}
        with several(2, **options) as actors:
            assert homes(cluster, *actors) == [1, 1]

    def test_a_label_of_a_running_node_is_a_domain(self, cluster: LocalCluster) -> None:
        with (
            labelled(cluster.nodes[1].node_id, {"rack": "r-1"}),
            labelled(cluster.nodes[3].node_id, {"rack": "r-2"}),
            several(2, labels={"app": "racked"}, spread={"rack": 1}) as actors,
        ):
            assert sorted(homes(cluster, *actors)) == [1, 3]


class TestExclusive:
    def test_no_other_work_starts_there_until_it_ends(self, cluster: LocalCluster) -> None:
        with resident(exclusive=True, scheduling_strategy=at("three")) as alone:
            assert homes(cluster, alone) == [3]
            plain = where.options(label_selector={"zone": "b"}).remote()
            beside = where.options(scheduling_strategy=actor_affinity(affinity(alone))).remote()
            spread = [where.options(scheduling_strategy="SPREAD").remote() for _ in range(4)]
            assert 3 not in indexes(cluster, spread)
            assert waits(plain, beside)
            assert "apart from any work" in str(stead.why(beside))
        assert indexes(cluster, [plain]) == {3}
        ray.cancel(beside)

    def test_two_of_them_take_two_nodes_and_a_task_can_be_one(self, cluster: LocalCluster) -> None:
        zone = {"label_selector": {"zone": "a"}, "exclusive": True}
        with resident(num_cpus=0, **zone) as one, resident(num_cpus=0, **zone) as other:
            assert sorted(homes(cluster, one, other)) == [1, 2]
            third = where.options(**zone).remote()
            assert waits(third)
        assert indexes(cluster, [third]) <= {1, 2}
        assert nothing_is_left()

    @pytest.mark.parametrize("tenant", ["a labelled actor", "a plain actor", "a bundle"])
    def test_it_waits_until_a_node_is_empty(self, cluster: LocalCluster, tenant: str) -> None:
        holding: dict[str, Callable[[], Any]] = {
            "a labelled actor": lambda: resident(num_cpus=0, scheduling_strategy=at("three"), labels={"a": "b"}),
            "a plain actor": lambda: resident(scheduling_strategy=at("three")),
            "a bundle": lambda: occupied(cluster.nodes[3].node_id, 1),
        }
        with holding[tenant]() as actor:
            if actor is not None:
                homes(cluster, actor)
            task = where.options(exclusive=True, label_selector={"zone": "b"}).remote()
            assert waits(task)
        assert indexes(cluster, [task]) == {3}

    def test_a_node_is_open_again_after_a_task_that_had_it(self, cluster: LocalCluster) -> None:
        zone = {"label_selector": {"zone": "b"}}
        assert landed(cluster, 1, exclusive=True, **zone) == {3}
        assert landed(cluster, 2, **zone) == {3}


class TestMaxPerNode:
    def test_a_node_runs_at_most_that_many(self, cluster: LocalCluster) -> None:
        options = {"max_per_node": {"loader": 2}, "scheduling_strategy": node_affinity(label_in("zone", ["a"]))}
        with several(4, **options) as actors:
            assert sorted(homes(cluster, *actors)) == [1, 1, 2, 2]
            with resident(num_cpus=0, **options) as fifth:
                assert waits(asked := fifth.where.remote())
                ray.kill(actors[0])
                assert indexes(cluster, [asked]) <= {1, 2}

    def test_it_counts_only_tasks_and_actors_with_the_same_name(self, cluster: LocalCluster) -> None:
        one = {"max_per_node": {"single": 1}, "label_selector": {"zone": "b"}, "num_cpus": 0}
        with resident(**one) as actor:
            homes(cluster, actor)
            task = where.options(**one).remote()
            other = where.options(**{**one, "max_per_node": {"other": 1}}).remote()
            assert indexes(cluster, [other]) == {3}
            assert waits(task)
        assert indexes(cluster, [task]) == {3}

    def test_it_combines_with_an_affinity(self, cluster: LocalCluster) -> None:
        with resident(num_cpus=0, scheduling_strategy=at("two")) as target:
            near = {"scheduling_strategy": actor_affinity(affinity(target)), "max_per_node": {"near": 1}, "num_cpus": 0}
            with resident(**near) as first:
                assert homes(cluster, first) == [2]
                second = where.options(**near).remote()
                assert waits(second)
            assert indexes(cluster, [second]) == {2}


@pytest.fixture(scope="module")
def kinds() -> dict[str, Any]:
    """Functions and classes that are pickled by value, because they belong to no module."""

    def here() -> str:
        return str(ray.get_runtime_context().get_node_id())

    def follow(target: Any, depth: int) -> list[str]:
        """Work near an actor whose handle it received, submitted by work that is itself near the actor."""
        near = stead.actor_affinity(stead.affinity(target))
        mine = [str(ray.get_runtime_context().get_node_id())]
        if depth:
            deeper = ray.remote(num_cpus=0)(follow).options(scheduling_strategy=near)
            mine += ray.get(deeper.remote(target, depth - 1))
        return mine

    def stream(count: int) -> Iterator[str]:
        for _ in range(count):
            yield here()

    class Parent:
        def __init__(self) -> None:
            self.child: Any = None

        def raise_child(self, kind: Any) -> str:
            me = ray.get_runtime_context().current_actor
            self.child = kind.options(num_cpus=0, scheduling_strategy=stead.actor_affinity(stead.affinity(me))).remote()
            return str(ray.get(self.child.where.remote()))

    class Asynchronous:
        async def where(self) -> str:
            return here()

        async def submit(self, target: Any) -> list[str]:
            near = stead.actor_affinity(stead.affinity(target))
            task = ray.remote(num_cpus=0)(here).options(scheduling_strategy=near)
            return list(await asyncio.gather(task.remote(), task.remote()))

        async def count(self, end: int) -> AsyncIterator[str]:
            for _ in range(end):
                yield here()

    return {
        "follow": ray.remote(num_cpus=0)(follow),
        "stream": ray.remote(num_cpus=0, num_returns="streaming")(stream),
        "Parent": ray.remote(num_cpus=0)(Parent),
        "Asynchronous": ray.remote(num_cpus=0)(Asynchronous),
    }


@pytest.fixture(scope="module")
def target(cluster: LocalCluster) -> Iterator[Any]:
    """An actor on node 2 to follow; a plain one, so it has no ticket."""
    with resident(num_cpus=0, scheduling_strategy=at("two")) as actor:
        assert homes(cluster, actor) == [2]
        yield actor


class TestAllKindsOfWork:
    @pytest.fixture
    def near(self, target: Any) -> dict[str, Any]:
        return {"scheduling_strategy": actor_affinity(affinity(target))}

    def test_tasks_of_tasks_follow_a_handle_that_was_passed_on(
        self, cluster: LocalCluster, kinds: dict[str, Any], target: Any, near: dict[str, Any]
    ) -> None:
        ids = ray.get(kinds["follow"].options(**near).remote(target, 2), timeout=SOON_S)
        assert ids == [cluster.nodes[2].node_id] * 3

    def test_an_actor_starts_a_child_on_its_own_node(self, cluster: LocalCluster, kinds: dict[str, Any]) -> None:
        parent = kinds["Parent"].options(scheduling_strategy=at("one")).remote()
        assert indexes(cluster, [parent.raise_child.remote(Resident)]) == {1}
        ray.kill(parent)

    def test_asynchronous_actors_and_streams(
        self, cluster: LocalCluster, kinds: dict[str, Any], target: Any, near: dict[str, Any]
    ) -> None:
        actor = kinds["Asynchronous"].options(**near, labels={"role": "async"}).remote()
        assert indexes(cluster, [actor.where.remote()]) == {2}
        assert indexes(cluster, list(actor.count.options(num_returns="streaming").remote(2))) == {2}
        assert set(ray.get(actor.submit.remote(target), timeout=SOON_S)) == {cluster.nodes[2].node_id}
        ray.kill(actor)
        assert indexes(cluster, list(kinds["stream"].options(**near).remote(2))) == {2}

    def test_amounts_are_counted(self, cluster: LocalCluster, near: dict[str, Any]) -> None:
        slot = {**near, "resources": {"slot": 1}}
        with resident(**slot) as holder:
            assert homes(cluster, holder) == [2]
            second = where.options(**slot).remote()
            assert waits(second)
            assert "short of 1 slot" in str(stead.why(second))
        assert indexes(cluster, [second]) == {2}

    def test_a_named_actor_is_made_once(self, cluster: LocalCluster, near: dict[str, Any]) -> None:
        named = Resident.options(name="one of a kind", get_if_exists=True, num_cpus=0, labels={"role": "only"}, **near)
        one, other = named.remote(), named.remote()
        assert one == other
        assert homes(cluster, one) == [2]
        found = actor_affinity([affinity(ray.get_actor("one of a kind")), label_in("role", ["only"])])
        assert landed(cluster, 1, scheduling_strategy=found) == {2}
        ray.kill(one)
        assert nothing_is_left()

    def test_a_detached_actor_outlives_its_program_and_is_found(self, cluster: LocalCluster) -> None:
        program = """
            import json, sys
            import ray, stead

            stead.init(sys.argv[1], namespace="tests", log_to_driver=False, logging_level="error")
            here = lambda self: ray.get_runtime_context().get_node_id()
            kind = ray.remote(num_cpus=0)(type("Keeper", (), {"where": here}))
            three = stead.node_affinity(stead.label_in("node_name", ["three"]))
            options = dict(name="keeper", lifetime="detached", labels={"role": "keeper"}, scheduling_strategy=three)
            kind.options(**options).remote()
            print(json.dumps("gone"))
        """
        assert run_driver(program, {}, cluster.address) == "gone"
        keeper = ray.get_actor("keeper")
        near = [affinity(keeper), label_in("role", ["keeper"])]
        assert landed(cluster, 1, scheduling_strategy=actor_affinity(near)) == {3}
        ray.kill(keeper)
        assert nothing_is_left()

    def test_tasks_of_a_program_that_ended_are_forgotten(self, cluster: LocalCluster) -> None:
        program = """
            import json, sys
            import ray, stead

            stead.init(sys.argv[1], namespace="tests", log_to_driver=False, logging_level="error")
            kind = ray.remote(num_cpus=0)(lambda: None)
            never = stead.actor_affinity(stead.label_in("role", ["nobody-ever"]))
            ref = kind.options(scheduling_strategy=never, labels={"role": "orphan"}).remote()
            ray.wait([ref], timeout=0.5)
            print(json.dumps(str(stead.why(ref))))
        """
        assert "not near work with role in {nobody-ever}" in run_driver(program, {}, cluster.address)
        assert nothing_is_left()

    def test_labels_alone_change_nothing_about_a_result(self, cluster: LocalCluster) -> None:
        tagged = ray.remote(num_cpus=0, labels={"role": "tagged"}, num_returns=2)(lambda: (1, 2))
        assert ray.get(tagged.remote(), timeout=SOON_S) == [1, 2]
        assert ray.remote(num_cpus=0, num_returns=0)(lambda: None).options(labels={"role": "silent"}).remote() is None
        assert nothing_is_left()

    def test_an_error_is_the_tasks_own_and_nothing_is_left(self, cluster: LocalCluster, near: dict[str, Any]) -> None:
        with pytest.raises(ZeroDivisionError):
            ray.get(ray.remote(num_cpus=0)(lambda: 1 // 0).options(**near).remote(), timeout=SOON_S)
        assert nothing_is_left()


class TestWithOtherRules:
    def test_a_fallback_is_taken(self, cluster: LocalCluster) -> None:
        fallback = {"label_selector": {"zone": "mars"}, "fallback_strategy": [{"label_selector": {"zone": "b"}}]}
        assert landed(cluster, 1, labels={"role": "fallen"}, **fallback) == {3}

    def test_a_list_of_strategies_holds_as_a_whole(self, cluster: LocalCluster, target: Any) -> None:
        strategy = [node_affinity(label_in("zone", ["a"])), actor_affinity(anti_affinity(target)), "SPREAD"]
        assert landed(cluster, 2, scheduling_strategy=strategy) == {1}

    @pytest.mark.parametrize(("rule", "home"), [(affinity, 2), (anti_affinity, 3)], ids=["near", "apart"])
    def test_inside_a_group_the_bundle_is_chosen(
        self, cluster: LocalCluster, target: Any, rule: Callable[[Any], Any], home: int
    ) -> None:
        group = ray.util.placement_group(
            [{"CPU": 1}, {"CPU": 1}], bundle_label_selector=[{"node_name": "two"}, {"node_name": "three"}]
        )
        try:
            assert group.wait(SOON_S)
            strategy = [actor_affinity(rule(target)), PlacementGroupSchedulingStrategy(group)]
            assert landed(cluster, 1, scheduling_strategy=strategy) == {home}
            with resident(scheduling_strategy=strategy, labels={"role": "bundled"}) as actor:
                assert homes(cluster, actor) == [home]
                near = actor_affinity(label_in("role", ["bundled"]))
                assert landed(cluster, 1, num_cpus=0, scheduling_strategy=near) == {home}
        finally:
            ray.util.remove_placement_group(group)

    def test_without_patching_anything_the_rules_hold_or_are_refused(self, cluster: LocalCluster, target: Any) -> None:
        program = """
            import json, sys
            import ray, stead

            ray.init(sys.argv[1], namespace="tests", log_to_driver=False, logging_level="error")
            near = stead.actor_affinity(stead.affinity(sys.argv[2]))
            kind = stead.remote(num_cpus=0, scheduling_strategy=near)(lambda: ray.get_runtime_context().get_node_id())
            try:
                print(json.dumps(ray.get(kind.remote(), timeout=60)))
            except (stead.Invalid, stead.Unsupported) as error:
                print(json.dumps(str(error)))
        """
        said = run_driver(program, {}, cluster.address, target._actor_id.hex())
        assert said == cluster.nodes[2].node_id or "stead.init" in said


class TestEndings:
    """Work that is ended while it is pending leaves nothing behind."""

    def test_a_task_that_waits_can_be_cancelled(self, cluster: LocalCluster) -> None:
        task = where.options(scheduling_strategy=actor_affinity(label_in("role", ["nobody"]))).remote()
        assert waits(task)
        ray.cancel(task)
        with pytest.raises(ray.exceptions.TaskCancelledError):
            ray.get(task, timeout=SOON_S)
        assert nothing_is_left()

    def test_an_actor_that_waits_can_be_killed(self, cluster: LocalCluster) -> None:
        with resident(scheduling_strategy=actor_affinity(label_in("role", ["nobody"])), labels={"a": "b"}) as actor:
            asked = actor.where.remote()
            assert waits(asked)
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(asked, timeout=SOON_S)
        assert nothing_is_left()

    def test_a_granted_task_that_has_no_room_can_be_cancelled(self, cluster: LocalCluster, target: Any) -> None:
        with occupied(cluster.nodes[2].node_id, 2):
            task = where.options(scheduling_strategy=actor_affinity(affinity(target))).remote()
            assert waits(task)
            ray.cancel(task)
        assert nothing_is_left()

    def test_a_deadline_ends_it_with_the_reason(self, cluster: LocalCluster) -> None:
        late = where.options(scheduling_strategy=actor_affinity(label_exists("nobody")), deadline_s=1).remote()
        with pytest.raises(stead.Unplaced, match="not near work with nobody"):
            stead.get(late, timeout=SOON_S)
        assert nothing_is_left()

    def test_a_deadline_ends_an_actor_and_the_controller_goes_on(self, cluster: LocalCluster, target: Any) -> None:
        strategy = actor_affinity(label_exists("nobody"))
        late = Resident.options(scheduling_strategy=strategy, deadline_s=1).remote()
        with pytest.raises(stead.Unplaced, match=r"was not placed by its deadline: 0 of . nodes fit"):
            stead.get(late.where.remote(), timeout=SOON_S)
        beside = where.options(scheduling_strategy=actor_affinity(affinity(target))).remote()
        assert ray.get(beside, timeout=SOON_S) == ray.get(target.where.remote())
        assert nothing_is_left()


class TestBurst:
    def test_actors_apart_from_their_own_kind_never_share_a_node_whichever_program_creates_them(
        self, cluster: LocalCluster
    ) -> None:
        program = """
            import json, sys
            import ray, stead

            stead.init(sys.argv[1], namespace="tests", log_to_driver=False, logging_level="error")
            here = lambda self: ray.get_runtime_context().get_node_id()
            kind = ray.remote(num_cpus=0)(type("Shy", (), {"where": here}))
            apart = stead.actor_affinity(stead.label_not_in("role", ["shy"]))
            for name in sys.argv[2:]:
                options = dict(name=name, lifetime="detached", labels={"role": "shy"}, scheduling_strategy=apart)
                kind.options(**options).remote()
            print(json.dumps("made"))
        """
        names = [["s-0", "s-1"], ["s-2", "s-3"], ["s-4", "s-5"]]
        with ThreadPoolExecutor(3) as drivers:
            assert set(drivers.map(lambda each: run_driver(program, {}, cluster.address, *each), names)) == {"made"}
        asked = {ray.get_actor(name).where.remote(): name for some in names for name in some}
        try:
            ready, rest = ray.wait(list(asked), num_returns=4, timeout=60)
            assert sorted(homes(cluster, *(ray.get_actor(asked[ref]) for ref in ready))) == [0, 1, 2, 3]
            assert waits(*rest)
            gone, (left,) = asked.pop(ready[0]), indexes(cluster, ready[:1])
            ray.kill(ray.get_actor(gone))
            next_ones, _ = ray.wait(rest, timeout=SOON_S)
            assert indexes(cluster, next_ones) == {left}
        finally:
            for name in asked.values():
                ray.kill(ray.get_actor(name))
        assert nothing_is_left()


class TestRuntimeEnvironments:
    """Work prefers nodes that already have its environment."""

    def test_work_prefers_a_node_that_has_its_environment(self, cluster: LocalCluster) -> None:
        env = {"use_node_labels_to_acceleration": True, "env_vars": {"COLOUR": "blue"}}
        colour = ray.remote(num_cpus=1)(lambda: (__import__("os").environ["COLOUR"], where_it_is()))

        def where_it_is() -> str:
            return str(ray.get_runtime_context().get_node_id())

        seen = ray.get(colour.options(runtime_env=env, label_selector={"zone": "b"}).remote(), timeout=60)
        assert seen == ("blue", cluster.nodes[3].node_id)

        def holders() -> set[str]:
            return {
                id for key, by in stead.labels().items() if key.startswith("exist_runtime_env/") for id in by["true"]
            }

        assert wait_for(holders, SOON_S, "the label of the environment") == {cluster.nodes[3].node_id}
        assert ray.get(colour.options(runtime_env=env).remote(), timeout=60) == seen
        assert env == {"use_node_labels_to_acceleration": True, "env_vars": {"COLOUR": "blue"}}

    def test_without_the_flag_nothing_is_labelled(self, cluster: LocalCluster) -> None:
        before = stead.labels().keys()
        env = {"use_node_labels_to_acceleration": False, "env_vars": {"COLOUR": "red"}}
        assert landed(cluster, 1, runtime_env=env, label_selector={"zone": "b"}) == {3}
        assert stead.labels().keys() == before


def strategy(*given: Any, **named: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"scheduling_strategy": actor_affinity(*given, **named)}


def near(actors: Any, *given: Any, **named: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"scheduling_strategy": actor_affinity(affinity(actors, *given, **named))}


SOMEBODY = "ab" * 16

BAD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "labels as text": (lambda: {"labels": "role=x"}, "role=x"),
    "labels as a list": (lambda: {"labels": ["role"]}, "role"),
    "a label with a long value": (lambda: {"labels": {"role": LONG}}, LONG),
    "a label with a long key": (lambda: {"labels": {LONG: "x"}}, LONG),
    "a label of a number": (lambda: {"labels": {"role": 3}}, "3"),
    "a label without a key": (lambda: {"labels": {"": "x"}}, "''"),
    "a label of identity": (lambda: {"labels": {"actor_id": "x"}}, "actor_id"),
    "spread without labels": (lambda: {"spread": {"zone": 1}}, "labels="),
    "spread as text": (lambda: {"spread": "zone", "labels": {"a": "b"}}, "zone"),
    "a skew of zero": (lambda: {"spread": {"zone": 0}, "labels": {"a": "b"}}, "0"),
    "a skew of yes": (lambda: {"spread": {"zone": True}, "labels": {"a": "b"}}, "True"),
    "a skew in words": (lambda: {"spread": {"zone": "even"}, "labels": {"a": "b"}}, "even"),
    "a long spread key": (lambda: {"spread": {LONG: 1}, "labels": {"a": "b"}}, LONG),
    "exclusive in words": (lambda: {"exclusive": "yes"}, "yes"),
    "exclusive as a number": (lambda: {"exclusive": 1}, "1"),
    "exclusive as zero": (lambda: {"exclusive": 0}, "0"),
    "exclusive as nothing": (lambda: {"exclusive": ""}, "''"),
    "max_per_node as a number": (lambda: {"max_per_node": 1}, "{'trainer': 1}"),
    "max_per_node of zero": (lambda: {"max_per_node": {"x": 0}}, "0"),
    "max_per_node of half": (lambda: {"max_per_node": {"x": 0.5}}, "0.5"),
    "max_per_node of too many": (lambda: {"max_per_node": {"x": 100}}, "99"),
    "max_per_node of nobody": (lambda: {"max_per_node": {"": 1}}, "''"),
    "max_per_node of a number": (lambda: {"max_per_node": {3: 1}}, "3"),
    "affinity to nobody": (strategy([]), "actor_affinity"),
    "affinity to an empty list": (near([]), "affinity(actor)"),
    "affinity to a number": (near(3), "3"),
    "affinity to nothing": (near(None), "None"),
    "affinity to a class": (near(int), "int"),
    "affinity to a ref": (near(ray.ObjectRef.nil()), "ObjectRef"),
    "softness in words": (near(SOMEBODY, "soft"), "is_soft"),
    "an id as an expression": (strategy(SOMEBODY), SOMEBODY),
    "an empty topology": (strategy(affinity(SOMEBODY), topology=""), "''"),
    "topology without keys": (strategy(affinity(SOMEBODY), topology=[]), "zone"),
    "topology as a number": (strategy(affinity(SOMEBODY), topology=3), "3"),
    "a long topology": (strategy(affinity(SOMEBODY), topology=LONG), LONG),
    "a weight of zero": (near(SOMEBODY, is_soft=True, weight=0), "0"),
    "a weight of 101": (near(SOMEBODY, is_soft=True, weight=101), "101"),
    "a weight in words": (near(SOMEBODY, is_soft=True, weight="much"), "much"),
    "a weight that is hard": (near(SOMEBODY, weight=5), "is_soft=True"),
    "a flag in words": (lambda: {"runtime_env": {"use_node_labels_to_acceleration": "yes"}}, "yes"),
    "two of Ray's strategies": (lambda: {"scheduling_strategy": ["SPREAD", "DEFAULT"]}, "SPREAD"),
}


class TestBadInput:
    @pytest.mark.parametrize("name", BAD)
    @pytest.mark.parametrize("target", [where, Resident], ids=["task", "actor"])
    def test_an_invalid_option_is_refused_in_one_sentence_that_names_it(
        self, cluster: LocalCluster, target: Any, name: str
    ) -> None:
        options, part = BAD[name]
        with pytest.raises(stead.Invalid) as refusal:
            target.options(**options()).remote()
        words = str(refusal.value)
        assert part in words
        assert "\n" not in words and len(words) < 400, words

    def test_work_near_an_unknown_actor_id_is_pending_and_explains_why(self, cluster: LocalCluster) -> None:
        task = where.options(scheduling_strategy=actor_affinity(affinity(SOMEBODY))).remote()
        assert waits(task)
        assert wait_for(lambda: codes(task) == {"target-dead"}, SOON_S, "the word that nobody has this id")
        ray.cancel(task)
        assert nothing_is_left()
