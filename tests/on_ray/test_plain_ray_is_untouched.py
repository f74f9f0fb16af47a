"""Without the hook and stead's options nothing about a job changes; with `stead.init`, nothing until there is a
taint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

pytest.importorskip("ray")

DRIVER = Path(__file__).parent / "drivers" / "untouched.py"


@pytest.fixture(scope="module")
def cluster(cluster_of: Any) -> Any:
    return cluster_of([{"num_cpus": 3}, {"num_cpus": 1}], hooked=False)


def run(cluster: Any, how: str, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(DRIVER), cluster.address, how],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def of_stead(amounts: dict[str, float]) -> list[str]:
    return [name for name in amounts if name.startswith("stead")]


def test_a_plain_job_holds_nothing_of_stead_and_starts_no_controller(cluster: Any) -> None:
    found = run(cluster, "plain")
    assert {name: of_stead(held) for name, held in found["held"].items() if of_stead(held)} == {}
    assert of_stead(found["cluster"]) == []
    assert found["held"]["task"] == {"CPU": 1.0}
    assert found["held"]["default actor 0"] == {}


def test_with_init_alone_plain_work_is_unchanged_until_there_is_a_taint(cluster: Any) -> None:
    found = run(cluster, "init")
    assert {name: of_stead(held) for name, held in found["held"].items() if of_stead(held)} == {}


def test_under_the_hook_every_piece_outside_a_group_carries_the_pass(cluster: Any) -> None:
    """The opposite case shows that the two tests above check the right thing."""
    found = run(cluster, "plain", RAY_RUNTIME_ENV_HOOK="stead.ray.hook")
    bound = {name for name, held in found["held"].items() if of_stead(held)}
    assert bound == found["held"].keys() - {"task in a group"}
    assert found["held"]["task"]["CPU"] == 1.0
    assert "CPU" not in found["held"]["default actor 0"]
