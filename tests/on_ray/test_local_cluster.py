"""Several real nodes on one machine: they start and stop, and nothing is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stead.errors import Invalid
from stead.language.taints import Effect, Taint
from stead.ray.local.local_cluster import (
    LocalCluster,
    NotStarted,
    cluster_environment,
    local_cluster,
    read_cluster_file,
)
from stead.ray.local.start import CHAINED_HOOK, OWN_HOOK, SETUP_HOOK
from stead.ray.wire.taint_labels import plain_labels, rare_in, taints_in
from tests.on_ray.waiting import ClusterOf, Connected, wait_for

NODES = [
    {"num_cpus": 1},
    {"num_cpus": 1, "labels": {"zone": "a"}, "taints": {"gpu_node": "true"}, "resources": {"disk": 3}},
    {"num_cpus": 1, "num_gpus": 2, "labels": "zone=b", "taints": "k=v:NoExecute", "memory": "1Gi", "name": "third"},
]

pytestmark = pytest.mark.long

OWNER = """
import sys
from stead.ray.local.local_cluster import local_cluster

with local_cluster([{"num_cpus": 1}, {"num_cpus": 1}], hooked=False) as cluster:
    print(cluster.temp_dir, flush=True)
    sys.stdin.read()
"""


def processes_with(text: str) -> list[str]:
    """The command lines of all processes that name `text`, such as the private directory of a cluster."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal() and int(place.name) != os.getpid():
            try:
                words = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in words:
                found.append(words)
    return found


def processesbelow(pid: int) -> set[int]:
    from stead.ray.local.raylets import below

    return set(below(pid))


def alive(ray: Any) -> dict[str, dict[str, Any]]:
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> LocalCluster:
    return cluster_of(NODES, ["gpu", "disk"], hooked=False, environment={"MARK_OF_TEST": "everywhere"})


def test_the_nodes_are_what_was_asked_for(cluster: LocalCluster, connected: Connected) -> None:
    with connected(cluster) as ray:
        nodes = [alive(ray)[node.node_id] for node in cluster.nodes[:3]]
    assert [taints_in(node["Labels"]) for node in nodes] == [
        (),
        (Taint("gpu_node", "true"),),
        (Taint("k", "v", Effect.NO_EXECUTE),),
    ]
    assert rare_in(nodes[0]["Labels"]) == ("disk", "gpu")
    assert plain_labels(nodes[1]["Labels"]) == {"zone": "a", "ray.io/node-id": cluster.nodes[1].node_id}
    assert nodes[1]["Resources"]["disk"] == 3
    assert nodes[2]["Resources"]["GPU"] == 2
    assert nodes[2]["Resources"]["memory"] == 2**30
    assert nodes[2]["NodeName"] == "third"
    assert nodes[0]["Resources"]["node:__internal_head__"] == 1


UNBOUND = """
import json, os, ray, sys
ray.init(sys.argv[1], log_to_driver=False, logging_level="error")
where = ray.remote(lambda: [ray.get_runtime_context().get_node_id(), os.environ.get("MARK_OF_TEST")])
print("ran:", json.dumps(ray.get(where.options(label_selector={"zone": "b"}).remote(), timeout=60)))
"""


def test_work_runs_on_the_node_it_names_with_the_environment_given(cluster: LocalCluster) -> None:
    """In a separate process that stead has not bound, because the node is tainted."""
    done = subprocess.run(
        [sys.executable, "-c", UNBOUND, cluster.address], capture_output=True, text=True, timeout=120, check=True
    )
    answer = done.stdout.partition("ran: ")[2].splitlines()[0]
    assert json.loads(answer) == [cluster.nodes[2].node_id, "everywhere"]


def test_nothing_listens_beyond_this_machine(cluster: LocalCluster) -> None:
    """This includes Ray's own agents and servers: no other machine can reach a local cluster."""
    ours = {place for pid in processesbelow(os.getpid()) for place in _open(pid)}
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in ours:
                listening.add(words[1].partition(":")[0])
    assert listening
    assert listening <= {"0100007F", "0000000000000000FFFF00000100007F", f"{'0' * 24}01000000"}


def _open(pid: int) -> list[str]:
    found = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def test_a_node_joins_and_another_is_killed(cluster: LocalCluster, connected: Connected) -> None:
    with connected(cluster) as ray:
        before = set(alive(ray))
        node = cluster.add_node(num_cpus=1, labels={"late": "yes"})
        assert set(alive(ray)) == before | {node.node_id}
        below = processesbelow(node.raylet_pid) | {node.raylet_pid}
        assert len(below) > 1
        cluster.kill_node(node.index)
        assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
        wait_for(lambda: set(alive(ray)) == before, what="the death of a killed node")
        assert not cluster.nodes[node.index].alive
        cluster.kill_node(node.index)


def test_the_head_is_not_killed(cluster: LocalCluster) -> None:
    with pytest.raises(Invalid, match="node 0 is the head"):
        cluster.kill_node(0)
    with pytest.raises(Invalid, match="node 99 is not in this cluster"):
        cluster.kill_node(99)


def test_the_callers_process_is_left_as_it_was() -> None:
    before = dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with local_cluster([{"num_cpus": 1}], hooked=False) as cluster:
        assert (dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        assert processes_with(cluster.temp_dir)
    assert processes_with(cluster.temp_dir) == []
    assert not Path(cluster.temp_dir).exists()
    cluster.close()
    with pytest.raises(NotStarted, match="closed"):
        cluster.add_node(num_cpus=1)


def test_another_ray_in_the_process_is_not_disturbed(cluster: LocalCluster, connected: Connected) -> None:
    with connected(cluster) as ray:
        with local_cluster([{"num_cpus": 1}], hooked=False):
            pass
        assert ray.is_initialized()
        assert cluster.nodes[0].node_id in alive(ray)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_however_the_owner_ends_no_process_and_no_file_is_left(how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as owner:
        assert owner.stdout
        directory = owner.stdout.readline().strip()
        assert len([words for words in processes_with(directory) if "/raylet/raylet " in words]) == 2
        owner.send_signal(how)
        owner.wait(60)
        wait_for(lambda: not processes_with(directory), what="the end of every process")
        wait_for(lambda: not Path(directory).exists(), what="the removal of the private directory")


def test_when_the_supervisor_is_killed_the_raylets_die_too() -> None:
    with local_cluster([{"num_cpus": 1}], hooked=False) as cluster:
        supervisor = int(
            (Path(f"/proc/{cluster.nodes[0].raylet_pid}") / "stat").read_text().rpartition(")")[2].split()[1]
        )
        os.kill(supervisor, signal.SIGKILL)
        wait_for(lambda: not processes_with("/raylet/raylet --raylet_socket_name=" + cluster.temp_dir))
        with pytest.raises(NotStarted, match="did not answer"):
            cluster.add_node(num_cpus=1)
    wait_for(lambda: not processes_with(cluster.temp_dir), what="the end of the agents")


def test_nodes_start_even_if_their_agents_take_long() -> None:
    """On a busy machine they do: Ray's raylet gives up after 15 s if it has to wait for the ports of its agents."""
    stopped, is_started = set[int](), threading.Event()
    before = processesbelow(os.getpid())

    def stop_agents() -> None:
        while not is_started.wait(0.01):
            for pid in processesbelow(os.getpid()) - before - stopped:
                with suppress(OSError):
                    if b"/runtime_env/agent/main.py\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGSTOP)
                        stopped.add(pid)

    stopper = threading.Thread(target=stop_agents)
    stopper.start()
    try:
        with local_cluster([{"num_cpus": 1}, {"num_cpus": 1}], hooked=False) as cluster:
            is_started.set()
            stopper.join()
            assert len(stopped) == 2
            assert [Path(f"/proc/{node.raylet_pid}").exists() for node in cluster.nodes] == [True, True]
    finally:
        is_started.set()
        stopper.join()


@pytest.mark.parametrize("index", [0, 1])
def test_a_node_whose_raylet_ends_while_it_starts_is_started_again(index: int) -> None:
    ended = threading.Event()
    before = processesbelow(os.getpid())

    def end_the_first() -> None:
        while not ended.wait(0.005):
            for pid in processesbelow(os.getpid()) - before:
                with suppress(OSError):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if b"/raylet/raylet\0" in words and b"/raylet.%d\0" % index in words:
                        os.kill(pid, signal.SIGKILL)
                        ended.set()
                        return

    killer = threading.Thread(target=end_the_first)
    killer.start()
    try:
        with local_cluster([{"num_cpus": 1}, {"num_cpus": 1}], hooked=False) as cluster:
            assert ended.is_set()
            assert [Path(f"/proc/{node.raylet_pid}").exists() for node in cluster.nodes] == [True, True]
    finally:
        ended.set()
        killer.join()


BAD_NODES: list[tuple[Any, str]] = [
    ([], "at least one node"),
    ({"num_cpus": 1}, "must be a list"),
    ([3], "node 0: a node must be a map"),
    ([{}, {"num_cpu": 1}], "node 1: the key 'num_cpu' is unknown (did you mean 'num_cpus'?)"),
    ([{"num_cpus": "many"}], "node 0: num_cpus"),
    ([{"num_cpus": 1.5}], "node 0: num_cpus must be a whole number from 0 up, for example 2, not 1.5"),
    ([{"resources": {"CPU": 2}}], "write num_cpus: 2"),
    ([{"resources": ["disk"]}], "resources must be a map such as {'disk': 4}"),
    ([{"labels": {"zone": "a b"}}], "node 0: the value of label 'zone', 'a b' contains ' '"),
    ([{"labels": {"node_ip": "1"}}], "'node_ip' is set by stead"),
    ([{"taints": {"k": 1}}], "node 0: the value of taint 'k', 1 must be a string"),
    ([{"taints": 7}], "taints must be a map"),
    ([{"name": 7}], "the name 7"),
    ([{"environment": {"A": 1}}], "'A' must be a string, for example '1'"),
]


@pytest.mark.parametrize(("nodes", "part"), BAD_NODES, ids=[part for _, part in BAD_NODES])
def test_a_bad_node_is_refused_in_one_sentence_before_anything_starts(nodes: Any, part: str) -> None:
    with pytest.raises(Invalid) as refusal:
        LocalCluster(nodes)
    assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_nodes_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("rare_resource_isolation: [gpu]\nnodes:\n- {num_cpus: 2}\n- {labels: {zone: a}}\n")
    assert read_cluster_file(path) == ([{"num_cpus": 2}, {"labels": {"zone": "a"}}], ("gpu",))
    path.write_text("- {num_cpus: 2}\n")
    assert read_cluster_file(path) == ([{"num_cpus": 2}], ())


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "must contain a list of nodes"),
        ("nodes: []", "must contain a list of nodes"),
        ("- {", "is not YAML at line 1"),
        ("nods: []", "unknown key 'nods' (did you mean 'nodes'?)"),
        ("- {num_cpus: x}", "node 0: num_cpus"),
        ("rare_resource_isolation: ['a b']\nnodes: [{}]", "rare resource 'a b'"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(Invalid) as refusal:
        read_cluster_file(path)
    assert part in str(refusal.value)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read: No such file"):
        read_cluster_file(tmp_path / "none.yaml")


def test_the_hook_is_in_every_raylets_environment_and_a_users_own_is_chained() -> None:
    assert cluster_environment({}, {}, hooked=True)[SETUP_HOOK] == OWN_HOOK
    assert SETUP_HOOK not in cluster_environment({}, {}, hooked=False)
    chained = cluster_environment({SETUP_HOOK: "mine.setup"}, {}, hooked=True)
    assert (chained[SETUP_HOOK], chained[CHAINED_HOOK]) == (OWN_HOOK, "mine.setup")
    assert CHAINED_HOOK not in cluster_environment({SETUP_HOOK: OWN_HOOK}, {}, hooked=True)


def test_variables_about_another_cluster_are_removed() -> None:
    environment = cluster_environment({"RAY_ADDRESS": "x:1", "RAY_OVERRIDE_LABELS": "{}", "A": "b"}, {}, hooked=False)
    assert "RAY_ADDRESS" not in environment
    assert "RAY_OVERRIDE_LABELS" not in environment
    assert environment["A"] == "b"
    quiet = "RAY_enable_worker_prestart"
    assert environment[quiet] == "0"
    assert cluster_environment({}, {quiet: "1"}, hooked=False)[quiet] == "1"
