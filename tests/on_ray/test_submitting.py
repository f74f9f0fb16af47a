"""`stead submit --to ray` on a real cluster: places, logs, exit status, deadlines, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import ray

from stead.cli import main
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.wire.own_names import is_own_group
from stead.ray.wire.tables import Tables
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import SOON_S, attached

pytestmark = pytest.mark.long

Submit = Callable[..., tuple[int, list[str], str]]

NODES = [
    {"num_cpus": 2, "name": "head"},
    {"num_cpus": 2, "name": "cpu-1", "labels": {"zone": "a"}},
    {"num_cpus": 2, "num_gpus": 1, "name": "gpu-1", "labels": {"zone": "b"}, "taints": {"gpu_node": "true"}},
]

NAMESPACE = "default"


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> LocalCluster:
    return cluster_of(NODES)


@pytest.fixture
def submit(cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Submit:
    """Submits a file: the exit code, the lines on stdout, and stderr."""

    def call(text: str, *options: str) -> tuple[int, list[str], str]:
        code = main(words(cluster, tmp_path, text, *options))
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return call


def words(cluster: LocalCluster, folder: Path, text: str, *options: str) -> list[str]:
    file = folder / "work.yaml"
    file.write_text(text, encoding="utf-8")
    return ["submit", "--to", "ray", str(file), "--address", cluster.address, *options]


def running_with(word: str) -> list[str]:
    """The command lines of processes that contain this word."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append((entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " "))
    return [line for line in found if f"sleep {word}" in line and "stead" not in line]


def states() -> set[str]:
    """The states of all placement groups that stead does not hold itself."""
    return {row["state"] for row in ray.util.placement_group_table().values() if not is_own_group(row["name"])}


@pytest.fixture
def nothing_is_left(cluster: LocalCluster) -> Iterator[None]:
    """Every actor and group of the submissions ends with them."""
    yield
    with attached(cluster, NAMESPACE):
        wait_for(lambda: not ray.util.list_named_actors(), SOON_S, "the end of all actors")
        wait_for(lambda: not states() - {"REMOVED"}, SOON_S, "the end of all groups")
        wait_for(lambda: ray.available_resources().get("CPU") == 6, SOON_S, "the return of all CPUs")


@pytest.mark.usefixtures("nothing_is_left")
class TestFollowed:
    def test_work_runs_where_it_may_prints_and_succeeds(self, submit: Submit) -> None:
        code, lines, _ = submit(
            """
            work:
              - {id: web, count: 2, run: "echo here", resources: {CPU: 1}, labels: {app: web}, apart: {symmetric: true}}
              - id: train
                run: [python3, -c, "import os; print(os.environ['MODE'])"]
                env: {MODE: fast}
                resources: {GPU: 1, CPU: 1}
                tolerations: gpu_node
            """,
            "-w",
        )
        assert code == 0, lines
        assert "train: running on gpu-1" in lines
        assert lines.index("train | fast") < lines.index("train: succeeded")
        nodes = [line.rpartition(" ")[2] for line in lines if line.startswith("web-") and "running on" in line]
        assert sorted(nodes) == ["cpu-1", "head"]
        assert lines[-1] == "3 pieces succeeded"

    def test_one_failure_is_exit_code_1_and_json_has_each_exit_status(self, submit: Submit) -> None:
        code, lines, err = submit(
            """
            work:
              - {id: good, run: "echo fine; exit 0", resources: {CPU: 1}}
              - {id: bad, run: exit 3, resources: {CPU: 1}}
              - {id: absent, run: [no-such-program], resources: {CPU: 1}}
              - {id: killed, run: 'kill -9 $$', resources: {CPU: 1}}
            """,
            "-w",
            "-o",
            "json",
        )
        assert code == 1
        codes = {each["id"]: (each["state"], each["code"]) for each in json.loads("\n".join(lines))}
        assert codes == {
            "good": ("succeeded", 0),
            "bad": ("failed", 3),
            "absent": ("failed", 127),
            "killed": ("failed", 137),
        }
        assert "absent | no-such-program cannot be started: No such file or directory" in err

    def test_why_work_is_pending_is_printed_until_its_deadline(self, submit: Submit) -> None:
        spec = "work: {id: train, run: echo no, resources: {GPU: 1}, deadline: 3}"
        code, lines, _ = submit(spec, "-w")
        assert code == 1
        why = "0 of 3 nodes fit: 1 tainted gpu_node=true; 2 too small for 1 GPU."
        assert lines[0].startswith(f"train: pending: {why}")
        assert lines[-2] == f"train: failed: its deadline passed: {why}"

    def test_a_group_is_placed_as_a_whole(self, submit: Submit) -> None:
        code, lines, _ = submit(
            """
            groups:
              id: ring
              run: echo member
              strategy: STRICT_SPREAD
              bundles: [{CPU: 1}, {resources: {CPU: 1}, run: echo other}]
            """,
            "-w",
        )
        assert code == 0, lines
        assert {"ring-1 | member", "ring-2 | other"} <= set(lines)
        nodes = {line.rpartition(" ")[2] for line in lines if "running on" in line}
        assert nodes == {"head", "cpu-1"}

    def test_a_group_that_does_not_fit_ends_at_its_deadline(self, submit: Submit) -> None:
        spec = "groups: {id: ring, run: x, strategy: STRICT_PACK, bundles: [{CPU: 2}, {CPU: 2}], deadline: 3}"
        code, lines, _ = submit(spec, "-w")
        assert code == 1
        assert lines[0].startswith("ring-1: pending: ")
        ended = [line for line in lines if "failed: its deadline passed: " in line]
        assert len(ended) == 2, lines

    def test_a_higher_priority_starts_first(self, submit: Submit) -> None:
        code, lines, _ = submit(
            """
            work:
              - {id: holder, run: sleep 1, resources: {CPU: 2}, selector: zone = a}
              - {id: low, count: 3, run: sleep 0.2, resources: {CPU: 2}, selector: zone = a}
              - {id: high, run: sleep 0.2, resources: {CPU: 2}, selector: zone = a, priority: 10}
            """,
            "-w",
        )
        assert code == 0, lines
        started = [line.partition(":")[0] for line in lines if "running on" in line]
        assert started.index("high") < min(started.index(f"low-{number}") for number in (1, 2, 3)), started

    def test_its_owner_runs_on_the_head(self, cluster: LocalCluster, submit: Submit, tmp_path: Path) -> None:
        """A node that is drained or lost then ends only the pieces that run there."""
        go = tmp_path / "go"
        wait = f"while [ ! -e {go} ]; do sleep 0.1; done"
        submit(f"work: {{id: long, run: '{wait}', resources: {{CPU: 1}}}}")
        with attached(cluster, NAMESPACE):
            (name,) = [each for each in ray.util.list_named_actors() if each.startswith("stead-submission-")]
            row = Tables(ray.get_runtime_context().gcs_address).actor(ray.get_actor(name)._actor_id.hex())
            assert row is not None
            assert row.node_id == cluster.nodes[0].node_id
        go.touch()

    def test_a_command_leaves_nothing_behind(self, submit: Submit, tmp_path: Path) -> None:
        spec = "work: {id: parent, run: 'sleep 98765 & echo started', resources: {CPU: 1}}"
        code, lines, _ = submit(spec, "-w")
        assert (code, lines[-2]) == (0, "parent: succeeded")
        assert not running_with("98765")

    def test_ctrl_c_ends_what_runs_and_what_waits(self, cluster: LocalCluster, tmp_path: Path) -> None:
        spec = """
            work:
              - {id: runs, run: "trap 'echo bye; exit 0' TERM; sleep 87654 & echo started; wait", resources: {CPU: 1}}
              - {id: waits, run: x, resources: {GPU: 1}}
        """
        program = [sys.executable, "-c", "import sys; from stead.cli import main; sys.exit(main())"]
        command = [*program, *words(cluster, tmp_path, spec, "-w")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line == "runs | started\n":
                    break
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=SOON_S)
        assert (process.returncode, err.strip().splitlines()[-1]) == (130, "stead: interrupted")
        assert "cancelling; press Ctrl-C again to leave at once" in out
        assert not running_with("87654")


@pytest.mark.usefixtures("nothing_is_left")
def test_work_continues_without_the_command_and_its_name_is_taken(
    cluster: LocalCluster, submit: Submit, tmp_path: Path
) -> None:
    go, done = tmp_path / "go", tmp_path / "done"
    wait = f"while [ ! -e {go} ]; do sleep 0.1; done; echo $HOME > {done}"
    spec = f"work: [{{id: long, run: '{wait}', resources: {{CPU: 1}}}}, {{id: other, run: exit 3}}]"
    code, lines, _ = submit(spec)
    assert (code, lines) == (0, ["long submitted", "other submitted"])
    code, _, err = submit(spec)
    assert (code, err.count("\n")) == (1, 1)
    assert "there is an actor named long" in err
    go.touch()
    wait_for(done.exists, SOON_S, "the end of the command")


REFUSED: dict[str, tuple[str, str]] = {
    "no command": ("work: {id: a}", "work.run: is missing; a good value is 'python train.py'"),
    "later": ("work: {id: a, run: x, at: 5}", "work: only the simulator can submit work later"),
    "claims": ("work: {id: a, run: x, claims: data}", "work.claims: Ray does not know claims"),
    "ports": ("work: {id: a, run: x, ports: 80}", "work.ports: Ray does not know the ports of a node"),
    "estimates": ("work: {id: a, run: x, estimates: {CPU: 1}}", "work.estimates: work on Ray has no estimates"),
    "two namespaces": (
        "work: [{id: a, run: x, namespace: blue}, {id: b, run: x, namespace: red}]",
        "work[1].namespace: all work of a submission has one namespace on Ray",
    ),
    "other resources as a fallback": (
        "work: {id: a, run: x, resources: {GPU: 1}, fallback: {resources: {CPU: 4}}}",
        "work.fallback: on Ray a fallback can change only the selector",
    ),
    "near an id": ("work: {id: a, run: x, near: {ask: b}}", "work: on Ray, other work is found by its labels"),
    "a minimum": (
        "groups: {id: a, run: x, bundles: [{CPU: 1}], min_available: 1}",
        "groups.min_available: Ray places all bundles of a group at once",
    ),
    "affinity of a member": (
        "groups: {id: a, run: x, labels: {app: a}, bundles: [{CPU: 1}]}",
        "groups: labels of a group's members cannot be said on Ray",
    ),
    "an empty bundle": ("groups: {id: a, run: x, bundles: [{}]}", "groups.bundles: a bundle on Ray needs an amount"),
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_ray_cannot_do_is_refused_in_one_sentence(submit: Submit, text: str, sentence: str) -> None:
    code, lines, err = submit(text, "--dry-run")
    assert (code, lines) == (1, [])
    assert sentence in err
    assert err.count("\n") == 1


def test_no_cluster_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "work.yaml"
    file.write_text("work: {id: a, run: x}", encoding="utf-8")
    assert main(["submit", "--to", "ray", str(file), "--address", "127.0.0.1:1"]) == 1
    err = capsys.readouterr().err.splitlines()[-1]
    assert err == "stead: there is no Ray cluster at 127.0.0.1:1; start one with: stead start --head"
