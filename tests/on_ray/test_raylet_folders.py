"""The folders of launched raylets, without a cluster."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from stead.planner.instances import Instance, InstanceState
from stead.ray.local.raylet_provider import RayletProvider


def test_no_list_sees_a_part_of_a_folder_that_is_being_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = RayletProvider("127.0.0.1:1", str(tmp_path))
    folder = provider.folder / "launch-1"
    folder.mkdir()
    (folder / "record.json").write_text(json.dumps({"kind": "cpu", "since": 5.0}))
    listed, remove = [], shutil.rmtree

    def in_parts(path: Path, **options: Any) -> None:
        (path / "record.json").unlink()
        listed.append(provider.list())
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", in_parts)
    (instance,) = provider.list()
    assert instance == Instance("launch-1", "cpu", InstanceState.FAILED, 5.0, problem=instance.problem)
    provider.retire(instance)
    assert listed == [[]]
    assert list(provider.folder.iterdir()) == []
