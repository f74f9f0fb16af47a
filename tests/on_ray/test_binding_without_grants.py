"""Without grants, work is bound by Ray's own label selectors, and it survives the nodes that they name."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import ray

import stead
from stead.language.labels import ANYWHERE, RAY_NODE_ID
from stead.language.selectors import parse_selector
from stead.ray.submit.native_selectors import NOWHERE, binding
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import SOON_S, Resident, attached, where

pytestmark = pytest.mark.long

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize(
    ("rule", "allowed", "selectors"),
    [
        ("", "abc", [{}]),
        ("", "ab", [{RAY_NODE_ID: "!in(c)"}]),
        ("", "", [{RAY_NODE_ID: "!in(a,b,c)"}]),
        ("zone in [x, y]", "ab", [{"zone": "in(x,y)", RAY_NODE_ID: "!in(c)"}, {RAY_NODE_ID: "in(a,b)"}]),
        ("zone not in [x]", "abc", [{"zone": "!in(x)"}, {RAY_NODE_ID: "in(a,b,c)"}]),
        ("zone in [x]", "", [{"zone": "in(x)", RAY_NODE_ID: "!in(a,b,c)"}]),
        ("zone in [x] or disk in [ssd]", "a", [NOWHERE, {RAY_NODE_ID: "in(a)"}]),
    ],
)
def test_the_first_selector_never_names_the_nodes_that_are_allowed(
    rule: str, allowed: str, selectors: list[dict[str, str]]
) -> None:
    assert binding(parse_selector(rule) if rule else ANYWHERE, set(allowed), "abc") == selectors


def state(actor: Any) -> str:
    from stead.ray.wire.tables import Tables

    row = Tables(ray.get_runtime_context().gcs_address).actor(actor._actor_id.hex())
    return row.state if row else "unknown"


@pytest.mark.filterwarnings("ignore:this Ray cannot change")
def test_actors_and_tasks_outlive_the_nodes_that_they_could_use(cluster_of: ClusterOf) -> None:
    """They wait for a node that their rules allow, and never start on a tainted one."""
    nodes = [{"num_cpus": 2}, {"num_cpus": 2, "labels": {"zone": "a"}}]
    with attached(cluster_of(nodes, environment={"STEAD_NO_GRANTS": "1"})) as cluster:
        head, other = [node.node_id for node in cluster.nodes]
        stead.taint(head, {"closed": "yes"})
        actors = [
            Resident.options(max_restarts=-1).remote(),
            Resident.options(max_restarts=-1, label_selector={"zone": "a"}).remote(),
        ]
        assert {ray.get(actor.where.remote(), timeout=SOON_S) for actor in actors} == {other}
        cluster.kill_node(1)
        wait_for(lambda: all(state(actor) != "ALIVE" for actor in actors), SOON_S, "the end of the node")
        tasks = [where.remote(), where.options(label_selector={"zone": "a"}).remote()]
        assert not ray.wait(tasks, timeout=1.0)[0]
        assert {state(actor) for actor in actors} == {"RESTARTING"}
        joined = cluster.add_node(num_cpus=4, labels={"zone": "a"}).node_id
        wait_for(lambda: all(state(actor) == "ALIVE" for actor in actors), SOON_S, "the restart of the actors")
        assert {ray.get(actor.where.remote(), timeout=SOON_S) for actor in actors} == {joined}
        assert set(ray.get(tasks, timeout=SOON_S)) == {joined}
