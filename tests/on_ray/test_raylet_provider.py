"""The provider of raylets keeps its records right, whatever is killed.

Here a process that only waits takes the place of a raylet; `test_autoscale.py` has real ones.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stead.language.labels import Labels
from stead.language.nodes import NodeTemplate
from stead.language.resources import Resources
from stead.language.taints import Taint
from stead.planner.instances import Instance, InstanceState
from stead.ray.local import raylet_provider
from stead.ray.local.launched_node import JOINED, PROCESS
from stead.ray.local.raylet_provider import RayletProvider, StillBusy, is_empty
from stead.ray.wire.tables import NodeRow
from stead.scaling.provider import Unlaunched
from tests.on_ray.waiting import wait_for

KIND = NodeTemplate("gpu", Resources.of(CPU=2, disk=1), Labels({"zone": "a"}), (Taint("gpu_node", "true"),))
WAITS = f"""
import os, sys, time
os.fork() and os._exit(0)
folder = sys.argv[1]
for name in ("{PROCESS}", "{JOINED}"):
    with open(f"{{folder}}/{{name}}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{{folder}}/{{name}}.new", f"{{folder}}/{{name}}")
while True:
    time.sleep(60)
"""


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayletProvider]:
    monkeypatch.setattr(raylet_provider, "START", WAITS)
    made = RayletProvider("127.0.0.1:6379", str(tmp_path))
    yield made
    for instance in made.list():
        made.retire(instance)


def running(provider: RayletProvider, id: str) -> Instance:
    def found() -> Instance | None:
        return next((each for each in provider.list() if each.launch == id and each.state == "running"), None)

    instance = wait_for(found, what=f"{id} runs")
    assert instance is not None
    return instance


def process_of(provider: RayletProvider, id: str) -> int:
    return int((provider.folder / id / PROCESS).read_text())


def test_a_launch_is_listed_at_once_and_a_second_call_starts_nothing(provider: RayletProvider) -> None:
    provider.launch("gpu-1", KIND)
    (listed,) = provider.list()
    assert (listed.launch, listed.kind, listed.node != "") == ("gpu-1", "gpu", True)
    process = process_of(provider, running(provider, "gpu-1").launch)
    provider.launch("gpu-1", KIND)
    assert [each.node for each in provider.list()] == [listed.node]
    assert process_of(provider, "gpu-1") == process


def test_another_provider_of_the_cluster_takes_over(provider: RayletProvider) -> None:
    provider.launch("gpu-1", KIND)
    instance = running(provider, "gpu-1")
    other = RayletProvider(provider.address, provider.session)
    assert list(other.list()) == [instance]
    other.retire(instance)
    assert list(provider.list()) == []


def test_retiring_ends_the_process_and_a_second_call_does_nothing(provider: RayletProvider) -> None:
    provider.launch("gpu-1", KIND)
    instance, process = running(provider, "gpu-1"), process_of(provider, "gpu-1")
    provider.retire(instance)
    assert list(provider.list()) == []
    wait_for(lambda: not Path(f"/proc/{process}").exists() or "Z" in Path(f"/proc/{process}/stat").read_text())
    provider.retire(instance)


def test_a_node_with_work_is_not_ended(provider: RayletProvider) -> None:
    provider.launch("gpu-1", KIND)
    instance, left = running(provider, "gpu-1"), [True, False]
    provider.emptied = lambda node: not left.pop(0)
    with pytest.raises(StillBusy, match="the node of launch gpu-1 has work"):
        provider.retire(instance)
    assert running(provider, "gpu-1") == instance
    provider.retire(instance)
    assert list(provider.list()) == []


def test_a_killed_process_leaves_a_failed_launch(provider: RayletProvider) -> None:
    provider.launch("gpu-1", KIND)
    running(provider, "gpu-1")
    os.kill(process_of(provider, "gpu-1"), signal.SIGKILL)
    (failed,) = wait_for(lambda: [each for each in provider.list() if each.state is InstanceState.FAILED])
    assert failed.problem == "its process ended before its node joined"
    provider.retire(failed)
    assert list(provider.list()) == []


def test_a_record_whose_process_was_never_started_is_a_failed_launch(provider: RayletProvider) -> None:
    """As after `kill -9` between the two."""
    os.close(provider._made(provider.folder / "gpu-1", {"kind": "gpu", "since": 5.0, "node": "ab"}))
    assert [(each.launch, each.state, each.since) for each in provider.list()] == [("gpu-1", "failed", 5.0)]
    provider.launch("gpu-1", KIND)
    assert [each.state for each in provider.list()] == ["failed"], "its id is used up"


def test_an_unfinished_record_counts_as_no_launch(provider: RayletProvider) -> None:
    (provider.folder / ".gpu-1.1234").mkdir()
    assert list(provider.list()) == []


@pytest.mark.parametrize(
    ("id", "kind", "says"),
    [
        ("../gpu", KIND, "the id of a launch, '../gpu', must be like"),
        ("gpu-1", NodeTemplate("half", Resources.of(CPU=0.5)), "a node of kind half cannot run on this machine"),
    ],
)
def test_what_cannot_be_launched_is_refused_in_a_sentence(
    provider: RayletProvider, id: str, kind: NodeTemplate, says: str
) -> None:
    with pytest.raises(Unlaunched, match=says):
        provider.launch(id, kind)
    assert list(provider.list()) == []


PLUG, USER = "ab" * 18, "cd" * 18


@pytest.mark.parametrize(
    ("total", "available", "empty"),
    [
        ({"CPU": 2.0}, {"CPU": 2.0}, True),
        ({"CPU": 2.0}, {"CPU": 1.0}, False),
        ({"CPU": 2.0, "stead.a.0": 100.0}, {"CPU": 2.0, "stead.a.0": 99.9999}, False),
        ({"object_store_memory": 80.0}, {"object_store_memory": 79.0}, False),
        ({"stead.a.0": 0.7016, f"stead.a.0_group_{PLUG}": 0.7}, {"stead.a.0": 0.0016}, True),
        ({"stead.a.0": 0.7016, f"stead.a.0_group_{PLUG}": 0.7}, {"stead.a.0": 0.0}, False),
        ({"CPU": 2.0, f"CPU_group_0_{USER}": 1.0}, {"CPU": 1.0, f"CPU_group_0_{USER}": 1.0}, False),
    ],
    ids=["idle", "a task", "work without CPUs", "an object", "stead's plug", "a plug and work", "a bundle of a group"],
)
def test_whether_a_node_is_empty(total: dict[str, float], available: dict[str, float], empty: bool) -> None:
    assert is_empty(NodeRow("n", "127.0.0.1", {}, total, available, draining=True), {PLUG}) == empty
