"""Ray's autoscaler (v2) launches what stead's planner chooses: a real cluster, bound by the hook.

The head has a CPU and is tainted, so plain work fits nowhere. The nodes that the autoscaler launches are raylets on
this machine, started by Ray's own provider for tests; everything here is on loopback and ends with the module.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from stead.ray.local.local_cluster import OBJECT_STORE_BYTES, cluster_environment
from tests.on_ray.processes import answers, end, free_ports
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import run_driver

pytest.importorskip("ray")

pytestmark = pytest.mark.long

HEAD_ID = f"{'f' * 51}00000"
"""The id that Ray's provider for tests expects of the head."""

IDLE_S = 8.0
"""A node that is idle for this long should end. On a busy machine, work takes some seconds to start on a new node."""

AUTOSCALED = {
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # to Ray this means: all of it is on 127.0.0.1
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "AUTOSCALER_METRIC_PORT": "0",
}

POOL = {"pool": "own"}

ROOT = str(Path(__file__).parent.parent.parent)

EMPTY = ("setup_commands", "head_setup_commands", "worker_setup_commands", "cluster_synced_files")
"""Settings for what Ray does on a machine that it launches: nothing, in these tests."""

DRIVER = """
    import json, sys, time
    import ray, stead

    sys.path.insert(0, sys.argv[2])
    from stead.ray.wire.tables import Tables
    from tests.on_ray.waiting import wait_for

    def alive():
        return {node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def known():
        return {node["NodeID"] for node in ray.nodes()}

    def coming():
        status = Tables(sys.argv[1]).status()
        return {**status.requested, **status.starting}

    def told():
        rows = [row for row in ray.util.placement_group_table().values() if row["state"] != "REMOVED"]
        return {row["name"] for row in rows if row["name"].startswith("stead-wanted/")}

    @ray.remote(num_cpus=1)
    def where():
        return ray.get_runtime_context().get_node_id()

    ray.init(sys.argv[1], log_to_driver=False, logging_level="error")
    head = ray.get_runtime_context().get_node_id()
    stead.taint(head, {"kept": "free"})
    wait_for(lambda: alive() == {head} and not coming(), 60, "a cluster of the head alone")
    before, start = known(), time.monotonic()
"""
"""How each program begins: bound by the hook alone, with the only node tainted."""

SCALES = """
    ran_on = ray.get(where.remote(), timeout=60)
    ran = time.monotonic() - start
    wait_for(lambda: alive() == {head}, 60, "the end of the idle node")
    gone = time.monotonic() - start
    wait_for(lambda: not told(), 60, "the end of what was told")
    taints = [str(taint) for view in stead.nodes() if view.id == head for taint in view.taints]
    print(json.dumps({
        "head": head, "ran_on": ran_on, "launched": sorted(known() - before), "taints": taints,
        "seconds": [ran, gone],
    }))
"""

RULES = """
    import os, signal
    from stead import actor_affinity, label_in, label_not_in, node_affinity
    from stead.ray.remote_desk import remote_desk

    @ray.remote(num_cpus=1)
    class Shop:
        def where(self):
            return ray.get_runtime_context().get_node_id()

    def running():
        return {each.name: each.running for each in remote_desk().scale().kinds if each.running}

    apart = [node_affinity(label_in("shop", ["main"])), actor_affinity(label_not_in("app", ["shop"]))]
    first, second = (Shop.options(scheduling_strategy=apart, labels={"app": "shop"}).remote() for _ in range(2))
    untolerant = where.options(label_selector={"shop": "kept"}).remote()
    tolerant = Shop.options(label_selector={"shop": "kept"}, tolerations={"team": stead.Exists()}).remote()
    wait_for(told, 60, "a demand that stands")
    controller = ray.get_actor("stead-controller", "stead")
    os.kill(ray.get(controller.hello.remote())["pid"], signal.SIGKILL)
    ran_on = ray.get([each.where.remote() for each in (first, second, tolerant)], timeout=90)
    seconds = time.monotonic() - start
    nodes = {view.id: view for view in stead.nodes()}
    waits, why = not ray.wait([untolerant], timeout=0)[0], str(stead.why(untolerant))
    wait_for(lambda: running().get("cheap") == 2, 60, "a report of both nodes")
    plans = [remote_desk().scale().plan, remote_desk().plan(None)]
    ray.cancel(untolerant)
    ray.kill(first)
    ray.kill(tolerant)
    wait_for(lambda: not {ran_on[0], ran_on[2]} & alive(), 60, "the end of the idle nodes")
    busy = ray.get(second.where.remote(), timeout=60) == ran_on[1]
    ray.kill(second)
    wait_for(lambda: alive() == {head}, 60, "the end of all launched nodes")
    print(json.dumps({
        "ran_on": ran_on, "types": [nodes[id].labels["ray.io/node-group"] for id in ran_on],
        "taints": [str(taint) for taint in nodes[ran_on[2]].taints], "waits": waits, "why": why, "busy": busy,
        "launched": len(known() - before), "pending": [[each.nearest for each in plan.pending] for plan in plans],
        "kinds": [each.name for each in remote_desk().scale().kinds], "seconds": [seconds, time.monotonic() - start],
    }))
"""

LOST = """
    import os, signal
    from pathlib import Path
    from stead.ray.remote_desk import remote_desk

    def raylets():
        found = set()
        for place in Path("/proc").glob("[0-9]*"):
            try:
                command = (place / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if command.split("\\0")[0].endswith("raylet/raylet") and sys.argv[3] in command:
                found.add(int(place.name))
        return found

    sold_out = Path(sys.argv[3], "cheap")
    sold_out.touch()
    ours = raylets()
    pending = where.options(label_selector={"shop": "main"}).remote()
    (pid,) = wait_for(lambda: raylets() - ours, 60, "a raylet that starts")
    os.kill(pid, signal.SIGKILL)
    ran_on = ray.get(pending, timeout=100)
    seconds = time.monotonic() - start
    nodes = {view.id: view for view in stead.nodes()}
    events = {event.text for event in remote_desk().events(-200, 200) if event.kind == "not-launched"}
    sold_out.unlink()
    wait_for(lambda: alive() == {head}, 60, "the end of the idle node")
    print(json.dumps({
        "type": nodes[ran_on].labels["ray.io/node-group"], "events": sorted(events),
        "seconds": [seconds, time.monotonic() - start],
    }))
"""

TAINTED_TOO = """
    from stead.ray.remote_desk import remote_desk

    group = ray.util.placement_group([{"CPU": 1}], bundle_label_selector=[{"pool": "own"}])
    assert group.wait(60)
    (reserved,) = ray.util.placement_group_table(group)["bundles_to_node_id"].values()
    ran_on = ray.get(where.remote(), timeout=60)
    stead.taint(ran_on, {"suspect": "yes"}, owner="vision")
    next_on = ray.get(where.remote(), timeout=60)
    stead.taint(next_on, {"suspect": "yes"})
    wait_for(lambda: next_on not in alive(), 60, "the end of the tainted node")
    kept = {each.node: each.kept for each in remote_desk().scale().nodes}.get(ran_on)
    stay = {ran_on, reserved} <= alive()
    stead.untaint(ran_on, ["suspect"])
    ray.util.remove_placement_group(group)
    wait_for(lambda: alive() == {head}, 60, "the end of the nodes that nobody needs any more")
    print(json.dumps({"used": [head, reserved, ran_on, next_on], "kept": kept, "stay": stay}))
"""

MUCH = """
    hopeless = where.options(num_gpus=1).remote()
    many = [where.remote() for _ in range(6)]
    labelled = where.options(label_selector={"pool": "own"}).remote()
    ran_on = ray.get(many, timeout=60)
    (labelled_on,) = ray.get([labelled], timeout=60)
    labels = {node["NodeID"]: node["Labels"] for node in ray.nodes()}
    seconds = time.monotonic() - start
    ray.kill(ray.get_actor("stead-controller", "stead"), no_restart=False)
    stead.nodes()
    waits = not ray.wait([hopeless], timeout=0)[0]
    ray.cancel(hopeless)
    wait_for(lambda: not told(), 60, "the end of what was told, before and after the kill")
    print(json.dumps({
        "head": head, "ran_on": ran_on, "pool": labels[labelled_on].get("pool"), "waits": waits, "seconds": seconds,
    }))
"""


@dataclass(frozen=True)
class Autoscaled:
    address: str
    directory: Path

    def words(self) -> str:
        """The end of the autoscaler's log, for a test that fails."""
        found = sorted(self.directory.glob("session_2*/logs/monitor.*"))
        lines = [line for each in found for line in each.read_text(errors="replace").splitlines()]
        return "\n".join([line for line in lines if "empty legacy field" not in line][-40:])


@pytest.fixture(scope="module")
def cluster(private_home: Path) -> Iterator[Autoscaled]:
    resources = {"CPU": 1, "object_store_memory": OBJECT_STORE_BYTES}
    types = {
        "small": {"resources": resources},
        "own": {"resources": resources, "labels": POOL},
        "dear": {"resources": resources, "labels": {"shop": "main", "tier": "high"}},
        "cheap": {"resources": {**resources, "CPU": 2}, "labels": {"shop": "main", "tier": "low"}},
        "kept": {"resources": resources, "labels": {"shop": "kept"}},
    }
    more = {"dear": {"price": 5}, "cheap": {"price": 1}, "kept": {"taints": {"team": "blue"}}}
    with autoscaled(types, {"stead": {"node_types": more, "join": "60s", "retry": "15s"}}) as found:
        yield found


@contextmanager
def autoscaled(node_types: dict[str, Any], metadata: dict[str, Any]) -> Iterator[Autoscaled]:
    """A head with one CPU whose autoscaler launches up to two nodes of each type."""
    directory = Path(tempfile.mkdtemp(prefix="as-", dir="/tmp"))
    port, client_port = free_ports(2)
    address = f"127.0.0.1:{port}"
    provider = {
        "type": "external",
        "module": "tests.on_ray.stock_outs.StockedProvider",
        "out_of_stock": str(directory),
        "launch_multiple": True,
        "head_node_id": HEAD_ID,
        "gcs_address": address,
        "disable_node_updaters": True,
    }
    types = {name: {"node_config": {}, "min_workers": 0, "max_workers": 2, **kind} for name, kind in node_types.items()}
    types["ray.head.default"] = {"node_config": {}, "max_workers": 0, "resources": {"CPU": 1}}
    config = directory / "autoscaler.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "cluster_name": "tests",
                "max_workers": 5,
                "idle_timeout_minutes": IDLE_S / 60,
                "provider": provider,
                "available_node_types": types,
                "head_node_type": "ray.head.default",
                "metadata": metadata,
                **{name: [] for name in EMPTY},
            }
        )
    )
    paths = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH", "")]))
    command = f"""
        start --head --block --port={port} --node-ip-address=127.0.0.1 --num-cpus=1 --temp-dir={directory}
        --object-store-memory={OBJECT_STORE_BYTES} --include-dashboard=false --ray-client-server-port={client_port}
        --min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0 --autoscaling-config={config}
    """.split()
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", *command],
        env=cluster_environment(os.environ, {**AUTOSCALED, "PYTHONPATH": paths}, hooked=True),
        stdout=(directory / "head.out").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        wait_for(lambda: answers(port), 60, f"the start of a head in {directory}")
        yield Autoscaled(address, directory)
    finally:
        end(head, directory)
        shutil.rmtree(directory, ignore_errors=True)


def run(cluster: Autoscaled, program: str) -> Any:
    environment = {"RAY_RUNTIME_ENV_HOOK": "stead.ray.hook", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    try:
        return run_driver(
            dedent(DRIVER) + dedent(program),
            environment,
            cluster.address,
            ROOT,
            str(cluster.directory),
        )
    except (AssertionError, subprocess.TimeoutExpired) as error:
        raise AssertionError(f"{error}\n{cluster.words()}") from None


def test_work_that_cannot_run_on_the_tainted_head_gets_a_new_node_that_ends_when_idle(cluster: Autoscaled) -> None:
    found = run(cluster, SCALES)
    assert found["ran_on"] != found["head"]
    assert found["launched"] == [found["ran_on"]], "one node was enough"
    assert found["taints"] == ["kept=free"], "the taint still stands"


def test_a_tainted_node_is_replaced_and_ends_when_idle_but_not_one_with_an_owner_or_a_group(
    cluster: Autoscaled,
) -> None:
    found = run(cluster, TAINTED_TOO)
    assert len(set(found["used"])) == 4, "the group, the first and the second task have nodes of their own"
    assert found["stay"], "nothing ran there for longer than on the node that has ended"
    assert found["kept"] == "vision has set the taint suspect"


def test_infeasible_work_and_demand_above_the_limit_do_not_stop_scale_up(cluster: Autoscaled) -> None:
    found = run(cluster, MUCH)
    assert found["head"] not in found["ran_on"]
    assert found["pool"] == "own"
    assert found["waits"]


def test_each_rule_gets_the_right_type_and_a_killed_controller_requests_nothing_twice(cluster: Autoscaled) -> None:
    found = run(cluster, RULES)
    assert found["types"] == ["cheap", "cheap", "kept"], "Ray itself would choose the type that the work fills: dear"
    assert found["ran_on"][0] != found["ran_on"][1], "apart"
    assert found["launched"] == 3
    assert found["taints"] == ["team=blue"]
    assert found["waits"]
    assert "team=blue" in found["why"]
    assert found["busy"], "a node with work stays"
    for nearest in found["pending"]:
        assert len(nearest) == 1 and nearest[0] in found["kinds"], "the plan says what stays pending, by node types"


def test_a_type_that_is_out_of_stock_rests_and_a_node_that_dies_during_launch_is_replaced(cluster: Autoscaled) -> None:
    found = run(cluster, LOST)
    assert found["type"] == "dear"
    assert any("no launch of kind cheap" in text for text in found["events"]), "it was out of stock"
