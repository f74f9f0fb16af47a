"""Unmodified code: under the cluster hook, no work of Ray's libraries runs on a tainted node, and a user's own hooks
still run. The tainted node is the larger one, so all of them would otherwise use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import stead
from tests.on_ray.waiting import wait_for

pytestmark = pytest.mark.long

pytest.importorskip("ray")

DRIVERS = Path(__file__).parent / "drivers"
UV = Path(sys.executable).parent / "uv"
HOOK = {"RAY_RUNTIME_ENV_HOOK": "stead.ray.hook"}


@pytest.fixture(scope="module")
def cluster(cluster_of: Any) -> Any:
    return cluster_of(
        [{"num_cpus": 3}, {"num_cpus": 4, "taints": {"keep": "out"}}],
        include_dashboard=True,
        environment=HOOK,
    )


def run(cluster: Any, driver: str, *given: str, through: tuple[str, ...] = (), more: Mapping[str, str] = {}) -> Any:
    done = subprocess.run(
        [*(through or [sys.executable]), str(DRIVERS / driver), cluster.address, *given],
        cwd=DRIVERS,
        env={**os.environ, **HOOK, **more},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("library", ["data", "serve", "tune", "train"])
def test_a_tainted_node_gets_no_work_of_the_library(library: str, cluster: Any) -> None:
    assert run(cluster, "library_work.py", library, more={"RAY_TRAIN_V2_ENABLED": "1"}) == [cluster.nodes[0].node_id]


@pytest.mark.parametrize("setup", ["named", "function"])
def test_a_workers_own_setup_hook_still_runs_and_its_work_is_bound(setup: str, cluster: Any) -> None:
    nodes, own_setup, _ = run(cluster, "own_work.py", setup)
    assert own_setup == ["ran"]
    assert nodes == [cluster.nodes[0].node_id]


def test_the_users_own_runtime_env_hook_is_chained(cluster: Any) -> None:
    own = {"STEAD_RUNTIME_ENV_HOOK": "own_hooks.change_runtime_env", "PYTHONPATH": str(DRIVERS)}
    nodes, _, own_hook = run(cluster, "own_work.py", "none", more=own)
    assert own_hook == ["ran"]
    assert nodes == [cluster.nodes[0].node_id]


def test_a_submitted_job_is_bound(cluster: Any) -> None:
    from ray.job_submission import JobStatus, JobSubmissionClient

    url = cluster.dashboard_url
    jobs = JobSubmissionClient(url if "://" in url else f"http://{url}")
    job = jobs.submit_job(entrypoint=f"{sys.executable} {DRIVERS / 'own_work.py'} {cluster.address} none")
    wait_for(lambda: jobs.get_job_status(job).is_terminal(), 90, "the end of the job")
    said = jobs.get_job_logs(job)
    assert jobs.get_job_status(job) == JobStatus.SUCCEEDED, said
    answer = next(line for line in reversed(said.splitlines()) if line.startswith("[["))
    assert json.loads(answer)[0] == [cluster.nodes[0].node_id]


@pytest.mark.skipif(not UV.exists(), reason="uv is not installed in this environment")
def test_a_driver_under_uv_run_is_bound_by_init(cluster: Any) -> None:
    """Ray skips the runtime-env hook under `uv run`, so such a program has to call `stead.init`."""
    uv = (str(UV), "run", "--no-project", "--offline", "--python", sys.executable)
    nodes, _, _ = run(cluster, "own_work.py", "init", through=uv)
    assert nodes == [cluster.nodes[0].node_id]


def test_a_ray_client_is_refused_in_one_sentence() -> None:
    with pytest.raises(stead.Unsupported, match="cannot bind a Ray Client"):
        stead.init("ray://127.0.0.1:10001")
