"""A cluster saved to a file: the answers are those of the cluster, and a bad file is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stead.errors import Invalid
from stead.operate.audit import Author
from stead.operate.changes import NodeChange
from stead.operate.http_client import HttpDesk
from stead.operate.saved import MARK, is_saved, opened, save, without_nodes
from stead.operate.snapshot import Query
from tests.autoscaled import CPU, GPU, report_scaling
from tests.serving import serving, simulated

SERVED = Path(__file__).parent.parent / "golden" / "served.yaml"
SPEC = {"work": [{"id": "extra", "resources": {"GPU": 2}, "tolerations": "gpu_node=true"}]}


@pytest.mark.parametrize("written", [None, SPEC, {"nodes": [{"id": "big", "capacity": {"CPU": 32}}]}])
def test_a_saved_cluster_answers_as_the_cluster(written: Any) -> None:
    with simulated(SERVED) as desk:
        text = save(desk)
        found = opened(text)
        assert is_saved(text)
        assert found.plan(written) == desk.plan(written)
        assert found.summary() == desk.summary()
        free = {node.id: node.available for node in desk.nodes(Query()).items}
        assert {node.id: node.available for node in found.nodes(Query()).items} == free
        assert str(found.why("render")) == str(desk.why("render"))


def test_a_saved_cluster_knows_its_autoscaler() -> None:
    with simulated(SERVED) as desk:
        view = report_scaling(desk, CPU, GPU)
        found = opened(save(desk))
        assert found.scale() == view
        assert found.plan(None) == desk.plan(None)


def test_a_saved_cluster_cannot_be_changed() -> None:
    with pytest.raises(Invalid, match="cannot be changed"):
        without_nodes().change(NodeChange("cpu-1", draining=True), Author("ann", "here", "test"))


def test_a_cluster_without_nodes_needs_a_description_of_kinds() -> None:
    with pytest.raises(Invalid, match="describe kinds of nodes"):
        without_nodes().plan(SPEC)
    (new,) = without_nodes().plan({"nodes": [{"id": "gpu", "capacity": {"GPU": 2}}], **SPEC}).new_nodes
    assert (new.name, new.count, new.serves) == ("gpu", 1, ("extra",))


def test_a_service_cannot_save_its_cluster() -> None:
    with simulated(SERVED) as desk, serving(desk) as served, pytest.raises(Invalid, match="a service cannot save"):
        save(HttpDesk(served.url, served.token))


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"stead_snapshot": 1',
        json.dumps({MARK: 1}),
        json.dumps({MARK: 1, "settings": {}, "state": {"nodes": 3}, "work": {}, "scale": {"autoscaler": None}}),
        json.dumps({MARK: 1, "settings": {}, "state": {}, "work": {"a": []}, "scale": {"autoscaler": None}}),
    ],
)
def test_a_file_that_stead_did_not_save_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(Invalid):
        opened(text)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["state"].update(extent=-1),
        lambda found: found["work"]["render"].__setitem__(2, "x"),
        lambda found: found.pop("at"),
        lambda found: found.pop("sum"),
    ],
)
def test_a_file_that_was_changed_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    with simulated(SERVED) as desk:
        found = json.loads(save(desk))
    change(found)
    with pytest.raises(Invalid, match="save it again"):
        opened(json.dumps(found))


def test_a_file_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(Invalid, match="save it again"):
        opened(f'{{"{MARK}": 1, "state": {"[" * 100_000}{"]" * 100_000}}}')


def test_a_file_of_another_version_is_refused() -> None:
    with pytest.raises(Invalid, match="it has version 9, but this version of stead reads 1; save it again"):
        opened(json.dumps({MARK: 9}))
