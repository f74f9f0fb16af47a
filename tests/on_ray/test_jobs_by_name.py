"""Names of jobs: the name of a program, and how the desk of a real cluster shows the owner of work."""

from __future__ import annotations

from typing import Any

import pytest
import ray
from ray._private.ray_constants import KV_NAMESPACE_DASHBOARD

import stead
from stead.operate.snapshot import Query
from stead.ray.control.desk import dashboard_links
from stead.ray.remote_desk import remote_desk
from stead.ray.wire.tables import Tables, program_name
from tests.on_ray.conftest import ClusterOf, Connected
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import PlainResident


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --epochs 3", "train.py"),
        ("/usr/bin/python3.11 -u -X dev /home/ann/train.py", "train.py"),
        ("python -m trainer.main x", "trainer.main"),
        ("python -c 'import ray'", "python"),
        ("bash run.sh", "run.sh"),
        ("./start --now", "start"),
        ("/usr/bin/python3", "python3"),
        ("python 'open quote.py", "'open"),
        ("", ""),
    ],
)
def test_a_program_without_its_path_interpreter_and_arguments(command: str, name: str) -> None:
    assert program_name(command) == name


@pytest.mark.parametrize("address", ["", "x y:1", "127.0.0.1", "evil.example:80/path", "javascript:alert(1)"])
def test_an_invalid_address_makes_no_link(address: str) -> None:
    assert dashboard_links(address) == {}


@pytest.mark.long
def test_the_desk_shows_the_name_of_the_job_and_the_link_to_its_page(
    cluster_of: ClusterOf, connected: Connected
) -> None:
    with connected(cluster_of([{"num_cpus": 2}])):
        stead.init()
        actor: Any = ray.remote(num_cpus=1)(PlainResident)
        mine = actor.remote()
        ray.get(mine.where.remote())
        job, here = ray.get_runtime_context().get_job_id(), ray.get_runtime_context().gcs_address
        Tables(here).gcs.internal_kv_put(b"webui:url", b"127.0.0.1:8265", True, KV_NAMESPACE_DASHBOARD, timeout=60)
        name = Tables(here).jobs()[job].name
        assert name
        desk = remote_desk()
        owner = wait_for(lambda: desk.owners(Query()).items, what="the owner")[0]
        assert (owner.id, owner.kind, owner.name, owner.state) == (job, "job", name, "running")
        assert owner.uses["CPU"] == 1
        [work] = desk.work(Query((f"owner={name}",))).items
        assert (work.id, work.owner_name) == (mine._actor_id.hex(), name)
        wait_for(
            lambda: desk.summary().links.get("job") == "http://127.0.0.1:8265/#/jobs/{id}", what="the dashboard's link"
        )
