"""The commands on a real Ray cluster of three nodes at one address.

This process is attached to it, so that a command is a call; one test runs a command in its own process. Node 0
is the head, node 1 is named and labelled; node 2 is tainted from its start. A test restores them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stead.cli import main

ray = pytest.importorskip("ray")

import stead  # noqa: E402
from stead.ray.local.local_cluster import LocalCluster  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

IP = "127.0.0.1"
DRAINED = "node.stead.io"
NODES: list[dict[str, Any]] = [
    {"num_cpus": 1},
    {"num_cpus": 2, "name": "worker-1", "labels": {"zone": "a", "disk": "hdd"}},
    {"num_cpus": 1, "num_gpus": 1, "labels": {"zone": "b"}, "taints": {"gpu_node": "true"}},
]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command: its exit code, stdout and stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        for name in [name for name in os.environ if name.startswith(("RAY_", "__RAY_", "STEAD_"))]:
            patch.delenv(name)
        with LocalCluster(NODES) as started:
            stead.init(started.address, namespace="tests", log_to_driver=False, logging_level="error")
            yield started
            ray.shutdown()


@pytest.fixture
def ids(cluster: LocalCluster) -> Iterator[list[str]]:
    """The ids of the nodes; afterwards their taints and labels are as at the start."""
    found = [node.node_id for node in cluster.nodes]
    yield found
    for view in stead.nodes():
        spec = cluster.nodes[found.index(view.id)].spec
        if view.draining:
            stead.uncordon(view.id)
        if extra := {taint.key for taint in view.taints if taint.key.partition("/")[0] != DRAINED} - {
            taint.key for taint in spec.taints
        }:
            stead.untaint(view.id, extra)
        for taint in set(spec.taints) - set(view.taints):
            stead.taint(view.id, {taint.key: taint.value}, taint.effect)
        missing = {key: value for key, value in spec.labels.items() if view.labels.get(key) != value}
        run_time = [key for key, source in view.sources.items() if source == "run time" and key not in missing]
        if run_time or missing:
            stead.label(view.id, missing, remove=run_time)


def view(id: str) -> Any:
    return next(each for each in stead.nodes() if each.id == id)


def taints(id: str) -> list[str]:
    return sorted(map(str, view(id).taints))


def as_process(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from stead.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# -- the demo, before the cluster of the other tests exists


@pytest.mark.long
def test_the_demo_shows_every_kind_of_rule_and_leaves_nothing_behind(tmp_path: Path) -> None:
    place_for_files = tmp_path / "t"
    place_for_files.mkdir()
    done = as_process("demo", HOME=str(tmp_path), TMPDIR=str(place_for_files))
    assert (done.returncode, done.stderr) == (0, "")
    told, nodes, placed, waiting = done.stdout.split("\n\n")[:4]
    assert len(told.splitlines()) == 11
    assert "cpu-a   zone=a                 team=blue (of blue, for two hours)" in nodes
    place = {line.split()[0]: line.split()[-1] for line in placed.splitlines()[1:]}
    assert {place[f"plain-{number}"] for number in (1, 2, 3, 4)} <= {"cpu-a", "cpu-b", "spot-b"}
    expected = {"trainer": "gpu-a", "steady": "cpu-b", "cheap": "spot-b", "flexible": "cpu-a", "scratch": "cpu-b"}
    assert {name: place[name] for name in expected} == expected
    assert place["dreamer"] in {"cpu-a", "cpu-b", "spot-b"}
    assert place["reader"] == place["cache"] != place["spare"]
    assert {place["member-1"], place["member-2"]} == {"cpu-b", "spot-b"}
    assert (place["later-1"] in {"cpu-b", "spot-b"}, place["blue-1"]) == (True, "cpu-a")
    reason = {line.split()[0]: line for line in waiting.splitlines()[1:]}
    assert list(reason) == ["infer", "stuck", "hurried"]
    assert "1 tainted gpu_node=true" in reason["infer"]
    assert "1 tainted team=blue" in reason["stuck"]
    assert "ended at its deadline: 0 of 5 nodes fit: 5 lack gpu_type in {H100}." in reason["hurried"]
    assert list(place_for_files.iterdir()) == []


# -- taints


@pytest.mark.parametrize("option", ["--append", "--apend"])
def test_append_sets_a_taint_and_replaces_its_value(option: str, run: Run, ids: list[str]) -> None:
    code, out, err = run("taint", "--node-id", ids[1], option, '{"k": "v"}')
    assert (code, out, err) == (0, "node worker-1: tainted k=v\n", "")
    assert run("taint", "--node-id", ids[1][:6], option, "{k:w}")[0] == 0
    assert taints(ids[1]) == ["k=w"]


@pytest.mark.parametrize("option", ["--remove", "--delete"])
def test_remove_deletes_an_equal_taint_in_all_effects(option: str, run: Run, ids: list[str]) -> None:
    stead.taint(ids[1], {"k": "v"})
    stead.taint(ids[1], {"k": "v"}, effect="prefer-no-schedule")
    code, out, _ = run("taint", "--node-id", ids[1], option, '{"k": "v"}')
    assert (code, out) == (0, "node worker-1: no longer tainted k=v, k=v:prefer-no-schedule\n")
    assert taints(ids[1]) == []


def test_a_delete_with_another_value_removes_nothing(run: Run, ids: list[str]) -> None:
    code, out, err = run("taint", "--node-id", ids[2], "--remove", '{"gpu_node": "false"}')
    assert (code, out) == (1, "")
    assert err == f"stead: node {ids[2][:12]} has no taint gpu_node=false; it has gpu_node=true\n"
    assert taints(ids[2]) == ["gpu_node=true"]


def test_one_removal_that_matches_nothing_changes_nothing(run: Run, ids: list[str]) -> None:
    code, _, err = run("taint", "nodes", ids[2], "new=1:NoSchedule", "gpu_node-", "none-")
    assert (code, err) == (1, f"stead: node {ids[2][:12]} has no taint none; it has gpu_node=true\n")
    assert taints(ids[2]) == ["gpu_node=true"]


def test_kubectls_form_sets_and_removes(run: Run, ids: list[str]) -> None:
    code, out, _ = run("taint", "nodes", ids[1], "k=v:NoSchedule", "k:PreferNoSchedule", "other:NoExecute")
    assert (code, out) == (0, f"node/{ids[1]} tainted\n")
    assert run("taint", "node", ids[1], "k:NoSchedule-")[0] == 0
    assert taints(ids[1]) == ["k:prefer-no-schedule", "other:no-execute"]
    code, out, _ = run("taint", "nodes", ids[1], "k-", "k:PreferNoSchedule-", "other-", "last=1:NoSchedule")
    assert (code, out) == (0, f"node/{ids[1]} modified\n")
    assert taints(ids[1]) == ["last=1"]


def test_kubectls_form_changes_a_value_only_with_overwrite(run: Run, ids: list[str]) -> None:
    assert run("taint", "nodes", ids[1], "k=v:NoSchedule")[0] == 0
    assert run("taint", "nodes", ids[1], "k=v:NoSchedule")[0] == 0
    code, _, err = run("taint", "nodes", ids[1], "k=w:NoSchedule")
    assert (code, err) == (1, "stead: node worker-1 is tainted k=v; to change it to k=w, give --overwrite\n")
    assert run("taint", "nodes", ids[1], "k=w:NoExecute")[0] == 0
    assert run("taint", "nodes", ids[1], "k=w:NoSchedule", "--overwrite")[0] == 0
    assert taints(ids[1]) == ["k=w", "k=w:no-execute"]


def test_the_effect_can_be_an_option(run: Run, ids: list[str]) -> None:
    assert run("taint", "--node-id", ids[1], "--append", '{"k": "v"}', "--effect", "prefer-no-schedule")[0] == 0
    assert run("taint", "nodes", ids[1], "a=1", "b", "--effect", "PreferNoSchedule")[0] == 0
    assert taints(ids[1]) == ["a=1:prefer-no-schedule", "b:prefer-no-schedule", "k=v:prefer-no-schedule"]
    code, _, err = run("taint", "nodes", ids[1], "a-", "--effect", "NoSchedule")
    assert (code, "has no taint a:NoSchedule" in err) == (1, True)


def test_several_nodes_at_one_address_are_refused_with_their_ids_without_all(run: Run, ids: list[str]) -> None:
    code, _, err = run("taint", "--node-ip", IP, "--append", '{"k": "v"}')
    assert code == 1
    assert err.startswith(f"stead: '{IP}' matches 3 nodes: ")
    assert all(id[:12] in err for id in ids)
    assert err.endswith("; give the id of one, or --all\n")
    code, out, _ = run("taint", "--node-ip", IP, "--append", '{"k": "v"}', "--all")
    assert (code, sorted(out.splitlines())) == (
        0,
        sorted(f"node {name}: tainted k=v" for name in (ids[0][:12], "worker-1", ids[2][:12])),
    )


def test_a_taint_has_an_owner_and_an_end_and_they_are_shown(run: Run, ids: list[str]) -> None:
    job = ray.get_runtime_context().get_job_id()
    said = ["--owner", "blue", "--for", "2h", "--until-job", job]
    code, out, _ = run("taint", "nodes", "worker-1", "team=blue:NoSchedule", *said)
    assert (code, out) == (0, f"node/worker-1 tainted for 2h, until job {job} ends, by blue\n")
    line = next(line for line in run("nodes")[1].splitlines() if line.startswith(ids[1][:12]))
    assert re.search(rf"team=blue \((2h|1h59m) left, until job {job} ends, by blue\)$", line)
    (found,) = (each for each in json.loads(run("nodes", "--json")[1]) if each["id"] == ids[1])
    (taint,) = found["taints"]
    assert (taint["owner"], taint["until_job"]) == ("blue", job)
    assert 7100 < taint["until"] - time.time() <= 7200


def test_a_taint_cannot_end_with_a_job_that_does_not_run(run: Run, ids: list[str]) -> None:
    code, _, err = run("taint", "nodes", ids[1], "k=v:NoSchedule", "--until-job", "ff000000")
    assert (code, err.count("\n")) == (1, 1)
    assert "'ff000000' is not a running job" in err
    assert taints(ids[1]) == []


# -- labels


def test_kubectls_form_labels_a_node(run: Run, ids: list[str]) -> None:
    code, out, _ = run("label", "nodes", ids[1], "rack=7", "tier=", "zone-")
    assert (code, out) == (0, f"node/{ids[1]} labeled\n")
    assert {key: view(ids[1]).labels.get(key) for key in ("rack", "tier", "zone")} == {
        "rack": "7",
        "tier": "",
        "zone": None,
    }


def test_kubectls_form_changes_a_label_only_with_overwrite(run: Run, ids: list[str]) -> None:
    assert run("label", "nodes", ids[1], "disk=hdd")[0] == 0
    code, _, err = run("label", "nodes", ids[1], "disk=ssd")
    sentence = "stead: node worker-1 is labelled disk=hdd; to change it to disk=ssd, give --overwrite\n"
    assert (code, err) == (1, sentence)
    assert run("label", "nodes", ids[1], "disk=ssd", "--overwrite")[0] == 0
    assert view(ids[1]).labels["disk"] == "ssd"


def test_append_labels_a_node_and_replaces_values(run: Run, ids: list[str]) -> None:
    code, out, _ = run("label", "--node-id", ids[1], "--append", '{"disk":"ssd"}', "--remove", "zone")
    assert (code, out) == (0, "node worker-1: labelled disk=ssd; no longer labelled zone\n")
    code, _, err = run("label", "--node-id", ids[1], "--delete", '{"disk":"hdd"}')
    assert (code, err) == (1, "stead: node worker-1 has no label disk=hdd; it has disk=ssd\n")


def test_a_label_that_ray_itself_matches_cannot_be_set(run: Run, ids: list[str]) -> None:
    code, _, err = run("label", "nodes", ids[1], "ray.io/market-type=spot")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("stead: label 'ray.io/market-type' cannot change while a node runs")


# -- drain, nodes and events


def test_a_drained_node_is_shown_as_such_until_it_is_uncordoned(run: Run, ids: list[str]) -> None:
    assert run("drain", "worker-1")[:2] == (0, "node worker-1: takes no new work\n")
    assert view(ids[1]).draining
    assert run("nodes", "--selector", "node_name = worker-1")[1].splitlines()[1].endswith("draining")
    assert run("uncordon", ids[1][:8])[:2] == (0, "node worker-1: takes work again\n")
    assert not view(ids[1]).draining
    said = "node worker-1: takes no new work, and running work is evicted\n"
    assert run("drain", ids[1], "--evict")[:2] == (0, said)


def test_the_table_shows_the_main_facts_of_each_node(run: Run, ids: list[str]) -> None:
    code, out, err = run("nodes")
    assert (code, err) == (0, "")
    head, *rows = [re.split(r"  +", line) for line in out.splitlines()]
    assert head == ["NODE", "NAME", "IP", "CPU", "GPU", "LABELS", "TAINTS"]
    assert sorted(rows) == sorted(
        [
            [ids[0][:12], "-", IP, "1/1", "-", "-", "-"],
            [ids[1][:12], "worker-1", IP, "2/2", "-", "disk=hdd,zone=a", "-"],
            [ids[2][:12], "-", IP, "1/1", "1/1", "zone=b", "gpu_node=true"],
        ]
    )


def test_a_selector_chooses_nodes(run: Run, ids: list[str]) -> None:
    found = json.loads(run("nodes", "--selector", "zone in [b, c]", "--json")[1])
    assert [(each["id"], each["sources"]["zone"]) for each in found] == [(ids[2], "start")]
    assert run("nodes", "--selector", "zone = c")[:2] == (0, "no node has zone in {c}\n")


def test_events_show_who_did_what(run: Run, ids: list[str]) -> None:
    last = max((event["number"] for event in json.loads(run("events", "--json")[1])), default=0)
    stead.taint(ids[1], {"k": "v"}, owner="blue")
    (event,) = json.loads(run("events", "--json", "--after", str(last))[1])
    assert (event["kind"], event["subject"], event["text"]) == ("tainted", ids[1], "tainted k=v by blue")
    assert run("events", "--after", str(last))[1].endswith("  tainted   worker-1: tainted k=v by blue\n")


# -- questions, the audit and a service of the cluster


def fields(title: str) -> set[str]:
    """The fields that docs/json.md promises."""
    page = (Path(__file__).parent.parent.parent / "docs" / "json.md").read_text(encoding="utf-8")
    part = re.split(rf"^##+ {title}$", page, flags=re.MULTILINE)[1]
    return set(re.findall(r"^\| `(\w+)` \|", re.split(r"^##", part, maxsplit=1, flags=re.MULTILINE)[0], re.MULTILINE))


@pytest.fixture
def waiting(ids: list[str]) -> Iterator[str]:
    """The id of a pending actor: its label is misspelt."""

    class Lost:
        pass

    actor = ray.remote(num_cpus=0.1, label_selector={"zne": "a"})(Lost).remote()
    yield actor._actor_id.hex()
    ray.kill(actor)


def test_questions_are_answered_as_text_and_as_documented_json(run: Run, ids: list[str], waiting: str) -> None:
    def asked(*words: str) -> Any:
        code, out, err = run(*words, "-o", "json")
        assert (code, err) == (0, "")
        return json.loads(out)

    deadline = time.monotonic() + 60
    while waiting not in {each["id"] for each in asked("work", "--waiting")}:
        assert time.monotonic() < deadline, "the actor is not listed"
    (listed,) = (each for each in asked("work", "--filter", f"id={waiting}"))
    assert (set(listed), listed["kind"]) == (fields("A piece of work"), "actor")
    assert listed["name"].endswith("Lost")
    assert (set(asked("status")), asked("status")["kind"]) == (fields("The cluster"), "ray")
    assert all(set(each) == fields("A node") for each in asked("nodes"))
    assert set(asked("why", waiting)) == fields("An explanation")
    assert "lack zne in {a}" in run("why", waiting[:16])[1]
    code, out, _ = run("lint")
    assert (code, "no node has the label zne (did you mean 'zone'?)" in out) == (1, True)
    found = asked("what-if", "--label", ids[1][:12], "zne=a")
    assert set(found) == fields("A difference")
    assert [fate["ids"] for fate in found["placed"]] == [[waiting]]
    code, out, _ = run("label", "nodes", ids[1][:12], "zne=a", "--dry-run")
    assert (code, "placed" in out, "zne" in view(ids[1]).labels) == (0, True, False)


def test_a_decision_of_the_controller_is_replayed(run: Run, ids: list[str]) -> None:
    class Placed:
        def here(self) -> str:
            return str(ray.get_runtime_context().get_node_id())

    actor = ray.remote(num_cpus=0.1, spread={"zone": 1}, labels={"app": "replayed"})(Placed).remote()
    try:
        node, id = ray.get(actor.here.remote()), actor._actor_id.hex()
        code, out, err = run("replay", "--ask", id)
        assert (code, err) == (0, "")
        first, decision = out.splitlines()[:2]
        assert re.fullmatch(r"step \d+ of \d+, at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d: replayed, byte-equal\.", first)
        title = next(each.title for each in stead.nodes() if each.id == node)
        assert decision == f"  {id[:12]}: placed on {title}"
        assert f"{id[:12]}, at that time: Placed on {title} by hybrid" in out
        found = json.loads(run("replay", "--ask", id, "--at", "0s", "-o", "json")[1])
        assert (set(found), found["ask"]) == (fields("A decision of the past"), id)
    finally:
        ray.kill(actor)


def test_a_change_is_in_the_audit_with_the_user_and_can_be_undone(run: Run, ids: list[str]) -> None:
    assert run("taint", "nodes", "worker-1", "k=v:NoSchedule", "l=w:NoSchedule")[0] == 0
    entry = json.loads(run("audit", "--limit", "1", "--json")[1])[0]
    assert (set(entry), entry["node"], entry["via"]) == (fields("An entry of the audit"), ids[1], "cli")
    assert entry["changes"] == "+k=v:no-schedule +l=w:no-schedule"
    number = str(entry["number"])
    assert run("undo", number)[:2] == (
        0,
        f"node worker-1: entry {number} is undone: -k=v:no-schedule -l=w:no-schedule\n",
    )
    assert taints(ids[1]) == []
    assert run("audit", "--verify")[:2] == (0, f"{int(number) + 1} entries, none was tampered with\n")


def test_a_service_of_the_cluster_answers_the_same(
    run: Run, cluster: LocalCluster, ids: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys; from stead.cli import main; sys.exit(main())"
    words = ["serve", "--address", cluster.address, "--port", "0"]
    monkeypatch.setenv("STEAD_HOME", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            first = process.stdout.readline()
            found = re.fullmatch(r"ray \S+ is served at (http://127\.0\.0\.1:\d+)\n", first)
            assert found, (first, process.stderr.read())
            assert [each["id"] for each in json.loads(run("nodes", "--json", "--address", found[1])[1])] == [
                each["id"] for each in json.loads(run("nodes", "--json")[1])
            ]
            assert run("taint", "nodes", "worker-1", "k=v:NoSchedule", "--address", found[1])[0] == 0
            assert taints(ids[1]) == ["k=v"]
            entry = json.loads(run("audit", "--limit", "1", "--json", "--address", found[1])[1])[0]
            assert (entry["who"], entry["via"], entry["origin"]) == ("operator", "rest", "127.0.0.1")
            token = (tmp_path / "token").read_text().strip()
            for method, there in (("POST", ["gpu_node=true", "k=v"]), ("DELETE", ["k=v"])):  # as in the taint proposal
                request = urllib.request.Request(
                    f"{found[1]}/nodes/taints/{ids[1]}",
                    b'{"gpu_node": "true"}',
                    {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
                    method=method,
                )
                with urllib.request.urlopen(request, timeout=60) as answer:
                    assert answer.status == 200
                assert taints(ids[1]) == there
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            assert process.returncode == 0
        finally:
            process.kill()


# -- an unknown node, no cluster, no Ray


@pytest.mark.usefixtures("ids")
@pytest.mark.parametrize(
    "words", [["taint", "nodes", "nobody", "k-"], ["label", "--node-ip", "10.9.9.9", "--remove", "k"], ["drain", "nil"]]
)
def test_an_unknown_node_is_one_sentence(words: list[str], run: Run) -> None:
    code, out, err = run(*words)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert re.match(r"stead: there is no node '.+' in this cluster; for example, there is '", err)


def test_without_ray_the_demo_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert run("demo") == (1, "", "stead: stead demo needs Ray; install it with pip install 'stead[ray]'\n")


def test_a_command_finds_the_cluster_by_the_environment_and_prints_only_its_sentence(
    cluster: LocalCluster, ids: list[str]
) -> None:
    done = as_process("taint", "nodes", ids[1], "k=v:NoSchedule", RAY_ADDRESS=cluster.address)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"node/{ids[1]} tainted\n", "")
    assert taints(ids[1]) == ["k=v"]


def test_without_a_cluster_a_command_says_so(tmp_path: Path) -> None:
    done = as_process("nodes", "--address", f"{IP}:1", HOME=str(tmp_path), RAY_TMPDIR=str(tmp_path))
    sentence = f"stead: there is no Ray cluster at {IP}:1; start one with: stead start --head\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)
