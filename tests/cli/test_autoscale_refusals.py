"""`stead autoscale` before it decides: what it refuses before it connects to a cluster, and its dry run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from stead.cli import REFUSED, USAGE, main
from stead.commands.autoscaling import _try
from stead.operate.saved import without_nodes
from stead.planner.instances import Instance, InstanceState
from stead.scaling.catalog import cluster_of
from stead.specs.sections import load_yaml

GOOD = "provider: {type: raylets}\navailable_node_types: {cpu: {resources: {CPU: 1}}}\n"


@pytest.mark.parametrize(
    ("file", "words", "code", "says"),
    [
        (GOOD, ["--dry-run", "--once"], USAGE, "give --dry-run or --once, not both"),
        (GOOD, ["--down", "--down-on-exit"], USAGE, "--down ends by itself, so it takes no --down-on-exit"),
        (GOOD, ["-o", "yaml"], USAGE, "'yaml' is not one of 'text', 'json'"),
        (GOOD, ["--address", "http://127.0.0.1:8080"], REFUSED, "http://127.0.0.1:8080 is a service; give the Ray clu"),
        (GOOD, ["--address", "127.0.0.1:1"], REFUSED, "there is no Ray cluster at 127.0.0.1:1"),
        (GOOD.replace("raylets", "aws"), [], REFUSED, "stead launches nodes with raylets and kuberay, not with aws"),
        (GOOD.replace("CPU: 1", "CPU: x"), [], REFUSED, "available_node_types.cpu.resources: the amount of 'CPU' 'x'"),
        (None, [], REFUSED, "cluster.yaml cannot be read: No such file or directory"),
    ],
)
def test_refused_in_a_sentence(
    file: str | None,
    words: list[str],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if file is not None:
        Path("cluster.yaml").write_text(file)
    assert main(["autoscale", "--config", "cluster.yaml", *words]) == code
    printed = capsys.readouterr()
    assert says in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)


def test_a_dry_run_plans_however_many_nodes_were_launched_just_now(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = GOOD.replace("CPU: 1", "CPU: 1}, min_workers: 1, max_workers: 2, labels: {a: b")
    file = cluster_of(load_yaml(f"{text}metadata: {{stead: {{launches_per_minute: 1}}}}"))
    monkeypatch.setattr("stead.ray.remote_desk.remote_desk", without_nodes)
    monkeypatch.setattr("stead.scaling.catalog.SETTLE_S", 0.0)
    launched = [Instance("launch-1", "other", InstanceState.STARTING, time.time())]
    assert _try(file, file.catalog, SimpleNamespace(list=lambda: launched), "json") == 0
    assert [each["count"] for each in json.loads(capsys.readouterr().out)["new_nodes"]] == [1]
