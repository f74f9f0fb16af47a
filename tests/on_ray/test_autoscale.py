"""`stead autoscale` with real raylets: pending work gets the right nodes, idle nodes go, and nothing fails or leaks.

One cluster whose head is full. The autoscaler is the command, in a process of its own, as users run it; a test may kill
it. Times are short, so that nodes come and go within seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

import stead
from stead import actor_affinity, label_in, label_not_in, node_affinity
from stead.language.nodes import NodeTemplate
from stead.operate.audit import Author
from stead.planner.instances import Instance
from stead.planner.scaler import Scaler
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.local.raylet_provider import LAUNCH, RayletProvider, raylet_provider
from stead.ray.remote_desk import remote_desk
from stead.ray.submit.connection import connection
from stead.scaling.catalog import cluster_of
from stead.scaling.loop import Autoscaler, end_all
from stead.scaling.provider import OutOfStock
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.processes import processes_of
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import SOON_S, Resident, attached, occupied, where_am_i

pytestmark = pytest.mark.long

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

COMMAND = [sys.executable, "-c", "import sys; from stead.cli import main; sys.exit(main())", "autoscale"]
FILE: dict[str, Any] = {
    "provider": {"type": "raylets"},
    "max_workers": 12,
    "idle_timeout_minutes": 0.05,
    "available_node_types": {
        "cpu": {"resources": {"CPU": 1}, "price": 1},
        "big": {"resources": {"CPU": 4}, "price": 10},
        "zone-a": {"resources": {"CPU": 1}, "labels": {"zone": "a"}, "price": 2},
        "zone-b": {"resources": {"CPU": 1}, "labels": {"zone": "b"}, "price": 2},
        "chip": {"resources": {"CPU": 1, "chip": 1}, "taints": {"chip_node": "true"}, "price": 5},
    },
    "metadata": {"stead": {"retry": "1s", "join": "60s", "settle": "1s"}},
}


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    started = cluster_of([{"num_cpus": 1}])
    with attached(started), occupied(started.nodes[0].node_id, 1):
        yield started


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "cluster.yaml"
    path.write_text(yaml.safe_dump(FILE))
    return path


@pytest.fixture
def words(cluster: LocalCluster, config: Path) -> list[str]:
    return [*COMMAND, "--config", str(config), "--address", cluster.address]


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: LocalCluster) -> Iterator[None]:
    """After each test, no launched node and none of its processes is left."""
    yield
    assert end_all(raylet_provider({}, by_force=True), SOON_S, lambda said: None)
    wait_for(lambda: kinds() == {}, SOON_S, "the end of all launched nodes")
    assert not [pid for pid in processes_of(Path("stead.ray.local.launched_node")) if cluster.temp_dir in words_of(pid)]


def words_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


@contextmanager
def autoscaler(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*words, "-o", "json"], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(SOON_S)
        assert process.stdout
        process.stdout.close()


def decided(process: subprocess.Popen[str], *kinds: str) -> Iterator[Mapping[str, Any]]:
    """The next decisions of these kinds, as the command prints them."""
    assert process.stdout
    for line in process.stdout:
        event = json.loads(line)
        if event["kind"] in kinds:
            yield event


def kinds() -> dict[str, str]:
    """The kind of each launched node that is alive, by id."""
    rows = [row for row in ray.nodes() if row["Alive"] and LAUNCH in row["Labels"]]
    return {row["NodeID"]: row["Labels"]["ray.io/node-group"] for row in rows}


def home(actor: Any) -> str:
    """The node of an actor, once it runs."""
    return str(ray.get(actor.where.remote(), timeout=SOON_S))


def kind_of_home(actor: Any) -> str:
    node = home(actor)
    return kinds()[node]


def zone(*names: str, soft: bool = False) -> Any:
    return node_affinity(label_in("zone", list(names), is_soft=soft))


CHIP = {"resources": {"chip": 1}, "num_cpus": 0}
APART = {"labels": {"role": "web"}, "scheduling_strategy": actor_affinity(label_not_in("role", ["web"]))}
FALLBACK = {"label_selector": {"zone": "x"}, "fallback_strategy": [{"label_selector": {"zone": "a"}}]}
WORK: dict[str, tuple[Mapping[str, Any], set[str]]] = {
    "a label of one kind": ({"scheduling_strategy": zone("b")}, {"zone-b"}),
    "a toleration": ({**CHIP, "tolerations": {"chip_node": stead.Exists()}}, {"chip"}),
    "a fallback": (FALLBACK, {"zone-a"}),
    "several kinds": ({}, {"cpu", "zone-a", "zone-b"}),
    "a preference for a kind": ({"scheduling_strategy": zone("a", soft=True)}, {"cpu", "zone-a", "zone-b"}),
    "a preference that no kind has": ({"scheduling_strategy": zone("x", soft=True)}, {"cpu", "zone-a", "zone-b"}),
    "apart from the other": (APART, {"cpu", "zone-a", "zone-b"}),
    "apart from the one": (APART, {"cpu", "zone-a", "zone-b"}),
}
"""Work by its rule, and the kinds of nodes where it may run: Ray chooses among the nodes that the rules allow."""


def test_pending_work_with_each_kind_of_rule_makes_the_right_nodes_appear_and_runs_there(words: list[str]) -> None:
    with autoscaler(words):
        wait_for(lambda: connection().page().bound, SOON_S, "the cluster obeys taints")
        actors = {name: Resident.options(**options).remote() for name, (options, _) in WORK.items()}
        never = Resident.options(**CHIP).remote()
        spread: dict[str, Any] = {"strategy": "STRICT_SPREAD", "bundle_label_selector": 2 * [{"zone": "b"}]}
        group = stead.placement_group([{"CPU": 1}, {"CPU": 1}], **spread)
        homes = {name: home(actor) for name, actor in actors.items()}
        assert group.wait(int(SOON_S))
        of = kinds()
        bundles = ray.util.placement_group_table(group)["bundles_to_node_id"]
        assert [of[node] for node in bundles.values()] == ["zone-b", "zone-b"]
        assert len(set(bundles.values())) == 2
        assert {name: of[node] for name, node in homes.items() if of[node] not in WORK[name][1]} == {}
        assert homes["apart from the one"] != homes["apart from the other"]
        assert "chip_node=true" in str(stead.why(never))
        assert Counter(of.values())["chip"] == 1, "work that does not tolerate the taint launches none"
        assert len(of) == len(WORK) + 2, "each piece needs a node, and no node is launched for nothing"
        stead.remove_placement_group(group)
        for actor in (*actors.values(), never):
            ray.kill(actor)
        wait_for(lambda: kinds() == {}, SOON_S, "idle nodes go")


def test_work_that_is_submitted_while_nodes_are_retired_does_not_fail(words: list[str]) -> None:
    task: Any = ray.remote(num_cpus=1, max_retries=0)(where_am_i)
    retirements, pause, refs = 0, threading.Event(), []
    with autoscaler([*words]) as process:
        refs.append(task.options(scheduling_strategy=zone("a")).remote())
        ray.get(refs, timeout=SOON_S)
        for _ in decided(process, "retiring"):  # now, while the node is drained and ended, and after that
            for _ in range(20):
                refs.append(task.options(scheduling_strategy=zone("a")).remote())
                pause.wait(0.1)
            retirements += 1
            if retirements == 2:
                break
        assert len(ray.get(refs, timeout=2 * SOON_S)) == 41
        wait_for(lambda: kinds() == {}, SOON_S, "idle nodes go")


def processes(provider: RayletProvider) -> dict[str, int]:
    """The process that owns each launch."""
    found = {path.parent.name: path.read_text() for path in provider.folder.glob("*/process")}
    return {launch: int(text) for launch, text in found.items()}


@pytest.mark.parametrize("what", ["the node", "the autoscaler", "the controller"])
def test_work_gets_its_node_although_something_is_killed_during_the_launch(what: str, words: list[str]) -> None:
    provider = raylet_provider({})
    actor = Resident.options(scheduling_strategy=zone("b")).remote()
    with autoscaler(words) as first:
        launching = next(decided(first, "launching"))["subject"]
        wait_for(lambda: [each.launch for each in provider.list()] == [launching], SOON_S, "the provider has it")
        if what == "the node":
            os.kill(wait_for(lambda: processes(provider).get(launching, 0), SOON_S, "the process"), signal.SIGKILL)
            assert "its process ended" in next(decided(first, "not-launched"))["text"]
        elif what == "the controller":
            os.kill(connection().ask("hello")["pid"], signal.SIGKILL)
        else:
            first.kill()
            first.wait()
    with autoscaler(words):
        assert kind_of_home(actor) == "zone-b"
        launches = [instance.launch for instance in provider.list()]
        assert (launches == [launching]) == (what != "the node"), "nothing is launched twice"
        assert len(launches) == 1, provider.list()
    ray.kill(actor)
    if what == "the autoscaler":
        ended = subprocess.run([*words, "--down"], capture_output=True, text=True, timeout=SOON_S, check=False)
        assert (ended.returncode, ended.stderr) == (0, "Ended 1 node.\n")


class Troubled(RayletProvider):
    """Has no nodes in zone a, hangs when one in zone b is launched, and lists badly: it fails, forgets, and lists twice
    and what does not exist."""

    def __init__(self, plain: RayletProvider) -> None:
        super().__init__(plain.address, plain.session)
        self.lists, self.tried, self.launched = 0, Counter[str](), list[str]()
        self.goes_on = threading.Event()

    def launch(self, id: str, template: NodeTemplate) -> None:
        self.tried[template.name] += 1
        if template.name == "zone-a":
            raise OutOfStock("there are no more nodes in zone a")
        if template.name == "zone-b":
            self.goes_on.wait(SOON_S)
        super().launch(id, template)
        self.launched.append(id)

    def list(self) -> Sequence[Instance]:
        self.lists += 1
        found = list(super().list())
        if self.lists % 5 == 2:
            raise OSError("no route to the provider")
        return found[:0] if self.lists % 5 == 3 else 2 * found if self.lists % 5 == 4 else found


def test_work_gets_a_node_from_a_provider_that_fails_hangs_and_lies() -> None:
    plain = raylet_provider({}, by_force=True)
    provider = Troubled(plain)
    file = cluster_of_zones()
    troubles: list[str] = []
    loop = Autoscaler(
        remote_desk(),
        provider,
        Scaler(file.catalog, file.settings),
        Author.here("test"),
        troubled=troubles.append,
        answers_s=3.0,
    )
    stop = threading.Event()
    thread = threading.Thread(target=loop.run, args=(stop, 0.5))
    thread.start()
    try:
        actor = Resident.options(scheduling_strategy=zone("a", "b", "c")).remote()
        assert kind_of_home(actor) == "zone-c"
        assert provider.tried == {"zone-a": 1, "zone-b": 1, "zone-c": 1}
        provider.goes_on.set()
        wait_for(lambda: len(provider.launched) == 2, SOON_S, "the late node")
        wait_for(lambda: len(plain.list()) == 1, SOON_S, "its end")
        wait_for(lambda: set(kinds().values()) == {"zone-c"}, SOON_S, "the late node goes")
        ray.kill(actor)
    finally:
        stop.set()
        thread.join(SOON_S)
    assert any("cannot list its nodes: no route to the provider" in text for text in troubles)


def cluster_of_zones() -> Any:
    """Three kinds: the first choice is a, then b, then c. A kind that failed is not tried again in this test."""
    types = {
        f"zone-{name}": {"resources": {"CPU": 1}, "labels": {"zone": name}, "price": price, "max_workers": 2}
        for price, name in enumerate("abc", start=1)
    }
    stead_fields = {"settle": "1s", "retry": "10m", "stock_out": "10m", "join": "60s"}
    return cluster_of(
        {**FILE, "available_node_types": types, "idle_timeout_minutes": 10, "metadata": {"stead": stead_fields}}
    )
