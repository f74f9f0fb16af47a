"""Work that is placed by other work on a real Ray cluster, beside plain Ray doing the same in the same run.

Rule: what is compared takes turns. Almost every piece of work starts a process of its own, which costs this machine
more than all else; so differences and ratios tell something, and the times themselves little.
"""

from __future__ import annotations

import ast
import inspect
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from benchmarks import Row
from benchmarks.on_ray import KEEP_WORKERS, percentile
from stead.ray.local.local_cluster import LocalCluster, local_cluster

PAIRS, PAIR_ROUNDS = 20, 5
STARTS = 12
GROUPS = 20
BATCH = 200
DEATHS = 2
SMALL = {"num_cpus": 0.1}


class _Actor:
    def where(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())


def together() -> list[Row]:
    import ray

    import stead

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the benchmarks

    nodes: list[dict[str, Any]] = [{"num_cpus": 0}, {"num_cpus": 8}, {"num_cpus": 8}]
    with local_cluster(nodes, system_config=KEEP_WORKERS | {"num_workers_soft_limit": 64}) as cluster:
        stead.init(cluster.address, namespace="bench", log_to_driver=False, logging_level="error")
        actor: Any = ray.remote(_Actor)
        rows = [*_starts(actor), *_pairs(actor), *_groups(), _batch(actor), *_deaths(actor, cluster)]
        ray.shutdown()
    return rows


def _taken(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _on(node: str) -> dict[str, Any]:
    """Ray's own way to say where."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}


def _starts(actor: Any) -> list[Row]:
    import ray

    from stead import actor_affinity, affinity

    target = actor.options(**SMALL).remote()
    home = ray.get(target.where.remote())
    here = _on(home)
    near = {"scheduling_strategy": actor_affinity(affinity(target))}
    kept: list[Any] = []

    def start(options: dict[str, Any]) -> float:
        def work() -> None:
            kept.append(actor.options(**SMALL, **options).remote())
            ray.get(kept[-1].where.remote())

        return _taken(work)

    times = [(start(here), start(near)) for _ in range(STARTS)]
    more = median(near for _, near in times) - median(plain for plain, _ in times)
    theirs = median(plain for plain, _ in times) * 1e3
    name = f"an actor's start with a ticket, over plain, p50 of {STARTS}"
    rows = [Row(name, more * 1e3, "ms", theirs, None, "<= 150 ms", more <= 0.15)]
    for each in (target, *kept):
        ray.kill(each)
    return rows


def _pair_by_affinity(actor: Any) -> list[Any]:
    from stead import actor_affinity, affinity

    first = actor.options(num_cpus=0.1).remote()
    second = actor.options(num_cpus=0.1, scheduling_strategy=actor_affinity(affinity(first))).remote()
    return [first, second]


def _pair_by_group(actor: Any) -> list[Any]:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = ray.util.placement_group([{"CPU": 0.1}, {"CPU": 0.1}], "STRICT_PACK")
    strategies = [PlacementGroupSchedulingStrategy(group, index) for index in (0, 1)]
    first = actor.options(num_cpus=0.1, scheduling_strategy=strategies[0]).remote()
    second = actor.options(num_cpus=0.1, scheduling_strategy=strategies[1]).remote()
    return [first, second, group]


PAIR = {"affinity": _pair_by_affinity, "groups": _pair_by_group}


def _written(pair: Callable[..., Any]) -> tuple[int, int]:
    """Lines and calls that somebody writes for a pair, as counted in the very code that is measured; a group is also
    removed in the end, by a call more."""
    (function,) = ast.parse(inspect.getsource(pair)).body
    assert isinstance(function, ast.FunctionDef)
    steps = [each for each in function.body if isinstance(each, ast.Assign)]
    calls = sum(isinstance(node, ast.Call) for step in steps for node in ast.walk(step))
    removal = pair is _pair_by_group
    return len(steps) + removal, calls + removal


def _made_pairs(actor: Any, count: int, by: str) -> None:
    """So many pairs at once, each on one node, until all answer; then their end."""
    import ray

    pairs = [PAIR[by](actor) for _ in range(count)]
    made = [each for first, second, *_ in pairs for each in (first, second)]
    homes = ray.get([each.where.remote() for each in made])
    assert homes[::2] == homes[1::2], "a pair is not together"
    for each in made:
        ray.kill(each)
    for _, _, *groups in pairs:
        for group in groups:
            ray.util.remove_placement_group(group)


def _pairs(actor: Any) -> list[Row]:
    """Every actor starts a process, also where workers idle: Ray 2.60 gives no worker that ran a task to an actor."""
    _made_pairs(actor, 1, "affinity")
    one, times = ({by: list[float]() for by in PAIR} for _ in range(2))
    for count, taken in ((1, one), (PAIRS, times)):
        for number in range(PAIR_ROUNDS):
            for by in PAIR if number % 2 else reversed(PAIR):
                taken[by].append(_taken(partial(_made_pairs, actor, count, by)))
    ours, theirs = (median(times[by]) for by in ("affinity", "groups"))
    our_one, their_one = (median(one[by]) * 1e3 for by in ("affinity", "groups"))
    best = min(times["affinity"]) / min(times["groups"])
    name = f"{PAIRS} pairs together, by affinity beside placement groups, p50 of {PAIR_ROUNDS}"
    (lines, calls), (group_lines, group_calls) = _written(_pair_by_affinity), _written(_pair_by_group)
    return [
        Row(f"{name} (best: {best:.2f}x)", ours, "s", theirs, ours / theirs, "<= 1.1", ours / theirs <= 1.1),
        Row(f"one pair, p50 of {PAIR_ROUNDS}", our_one, "ms", their_one, our_one / their_one, "", None),
        Row("lines for a pair, beside a placement group (A8)", lines, "", group_lines, lines / group_lines, "", None),
        Row("calls for a pair, beside a placement group (A8)", calls, "", group_calls, calls / group_calls, "", None),
    ]


def _groups() -> list[Row]:
    import ray

    import stead

    times: dict[str, list[float]] = {"stead": [], "ray": []}
    make = {"stead": stead.placement_group, "ray": ray.util.placement_group}
    for number in range(GROUPS):
        for by in ("stead", "ray") if number % 2 else ("ray", "stead"):
            made: list[Any] = []

            def work(by: str = by, made: list[Any] = made) -> None:
                made.append(make[by]([{"CPU": 1}] * 2))
                ray.get(made[0].ready())

            times[by].append(_taken(work))
            ray.util.remove_placement_group(made[0])
            while ray.available_resources().get("CPU", 0.0) < 16:
                time.sleep(0.02)
    ours, theirs = (percentile(times[by], 0.5) * 1e3 for by in ("stead", "ray"))
    return [Row(f"a group of two from create to ready, p50 of {GROUPS}", ours, "ms", theirs, ours / theirs, "", None)]


def _batch(actor: Any) -> Row:
    """Actors that stay apart from each other, all at once: two find a node, and it is decided that the others wait."""
    import ray

    from stead import actor_affinity, label_not_in
    from stead.ray.submit.connection import connection

    options = {"labels": {"bench": "apart"}, "scheduling_strategy": actor_affinity(label_not_in("bench", ["apart"]))}
    made: list[Any] = []

    def work() -> None:
        made.extend(actor.options(**SMALL, **options).remote() for _ in range(BATCH))
        while len(connection().ask("registered_ids")) < BATCH:
            time.sleep(0.01)
        connection().ask("settled")

    taken = _taken(work)
    for each in made:
        ray.kill(each)
    name = f"{BATCH} actors with labels, apart from each other: from the first call until all are decided"
    return Row(name, taken * 1e3, "ms", None, None, "", None)


def _deaths(actor: Any, cluster: LocalCluster) -> list[Row]:
    """A node dies under a pair: until both answer from another node, beside two plain actors. Ray needs seconds to
    notice, which is most of it."""
    import ray

    from stead import actor_affinity, affinity

    again = {"max_restarts": -1, "max_task_retries": -1}
    times: dict[str, list[float]] = {"affinity": [], "plain": []}
    for _ in range(DEATHS):
        for by, found in times.items():
            first = actor.options(**SMALL, **again).remote()
            home = ray.get(first.where.remote())
            near = {"scheduling_strategy": actor_affinity(affinity(first))} if by == "affinity" else _on(home)
            second = actor.options(**SMALL, **again, **near).remote()
            ray.get(second.where.remote())
            index = next(index for index, node in enumerate(cluster.nodes) if node.node_id == home)
            cluster.kill_node(index)
            begun = time.perf_counter()
            while home in ray.get([first.where.remote(), second.where.remote()]):
                time.sleep(0.05)
            found.append(time.perf_counter() - begun)
            ray.kill(first)
            ray.kill(second)
            cluster.add_node(num_cpus=8)
    ours, theirs = min(times["affinity"]), min(times["plain"])
    name = f"a node's death until its pair answers from another node, best of {DEATHS}, beside two plain actors"
    return [Row(name, ours, "s", theirs, ours / theirs, "", None)]
