"""`stead start` in the pods of KubeRay: docs/kuberay.md's RayCluster, with the files that the kubelet would write."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from stead.cli import main
from stead.errors import Invalid
from stead.kubernetes.ray_clusters import node_templates
from stead.language.taints import Effect, Taint
from stead.ray.local import start as starting
from stead.ray.local.start import Options, RayStart, Surroundings, ray_start, surroundings_of, taints_in
from stead.ray.wire.taint_labels import taints_in as taints_in_labels

PAGE = Path(__file__).parents[2] / "docs" / "kuberay.md"
MANIFEST: dict[str, Any] = yaml.safe_load(PAGE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0])
GROUPS = {group["groupName"]: group for group in MANIFEST["spec"]["workerGroupSpecs"]}


def labels_of_pod(group: Mapping[str, Any]) -> dict[str, str]:
    """The labels of a pod: of its template, and those that KubeRay adds."""
    return {
        **group["template"]["metadata"].get("labels", {}),
        "app.kubernetes.io/created-by": "kuberay-operator",
        "ray.io/cluster": MANIFEST["metadata"]["name"],
        "ray.io/group": group["groupName"],
        "ray.io/identifier": "vision-worker",
        "ray.io/is-ray-node": "yes",
        "ray.io/node-type": "worker",
    }


def as_the_kubelet_writes(values: Mapping[str, str]) -> str:
    """Lines with the key and the quoted value, sorted by key; the last one has no line end."""
    return "\n".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in sorted(values.items()))


def pod_files(folder: Path, group: Mapping[str, Any]) -> None:
    """The files that the volume of the manifest has."""
    metadata = group["template"]["metadata"]
    found = {
        "metadata.labels": labels_of_pod(group),
        "metadata.annotations": {"ray.io/ft-enabled": "false", "note": 'a "b"\n', **metadata.get("annotations", {})},
    }
    (volume,) = group["template"]["spec"]["volumes"]
    for item in volume["downwardAPI"]["items"]:
        (folder / item["path"]).write_text(as_the_kubelet_writes(found[item["fieldRef"]["fieldPath"]]))


def words_of_the_pod(folder: Path, group: Mapping[str, Any]) -> list[str]:
    """The arguments of `stead` when the pod's command runs, with the folder in place of /etc/podinfo."""
    (folder / "stead").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (folder / "stead").chmod(0o755)
    (container,) = group["template"]["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    args = [each.replace(mount["mountPath"], str(folder)) for each in container["args"]]
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "KUBERAY_GEN_RAY_START_CMD": "ray start  --address=head:6379  --block  --num-cpus=8 "
        " --resources='{\"disk\":1}' ",
    }
    done = subprocess.run(
        [*container["command"], *args], env=environment, capture_output=True, text=True, check=True, cwd=folder
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", GROUPS)
def test_a_pod_of_the_guide_starts_a_node_with_the_labels_and_taints_of_its_group(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod_files(tmp_path, GROUPS[name])
    begun: list[RayStart] = []
    monkeypatch.setattr(starting, "run", lambda found: begun.append(found) or 0)  # type: ignore[func-returns-value]
    monkeypatch.setenv("STEAD_PODINFO", str(tmp_path / "labels"))
    monkeypatch.setenv("RAY_NODE_TYPE_NAME", name)  # by KubeRay
    words = words_of_the_pod(tmp_path, GROUPS[name])
    assert main(words) == 0
    (found,) = begun
    assert found.words[1:5] == ("--address=head:6379", "--block", "--num-cpus=8", '--resources={"disk":1}')
    (written,) = [word.removeprefix("--labels=") for word in found.words if word.startswith("--labels=")]
    labels = dict(pair.split("=", 1) for pair in written.split(","))
    (template,) = [each for each in node_templates(MANIFEST) if each.name == name]
    assert template.labels.items() <= labels.items()
    assert tuple(taints_in_labels(labels)) == template.taints


GOOD = (Taint("gpu_node", "true"), Taint("spot", "", Effect.NO_EXECUTE))


@pytest.mark.parametrize(
    "text",
    [
        "gpu_node=true:NoSchedule, spot:NoExecute",
        "gpu_node=true:NoSchedule spot:NoExecute\n",
        'a="b"\nstead/taints="gpu_node=true:NoSchedule,spot:NoExecute"\nz="\\"quoted\\"\\n"\n',
    ],
)
def test_a_taints_file_has_taints_or_the_annotations_of_a_pod(text: str, tmp_path: Path) -> None:
    assert taints_in(text) == GOOD
    path = tmp_path / "taints"
    path.write_text(text)
    labels = ray_start(Options(taints_file=str(path)), {}, Surroundings()).words[-1].removeprefix("--labels=")
    assert set(taints_in_labels(dict(pair.split("=", 1) for pair in labels.split(",")))) == set(GOOD)


@pytest.mark.parametrize("text", ["", "\n", 'a="b"\n'])
def test_a_file_without_taints_is_fine(text: str) -> None:
    assert taints_in(text) == ()


def test_the_command_line_overrides_the_file_which_overrides_the_variable_and_the_pod(tmp_path: Path) -> None:
    (tmp_path / "annotations").write_text('stead/taints="a=pod,b=pod,c=pod,d=pod"')
    (tmp_path / "file").write_text("b=file,a=file")
    pod = surroundings_of({"STEAD_PODINFO": str(tmp_path / "labels")})
    options = Options(taints="a=line", taints_file=str(tmp_path / "file"))
    written = ray_start(options, {"STEAD_NODE_TAINTS": "c=variable,b=variable"}, pod).words[-1]
    labels = dict(pair.split("=", 1) for pair in written.removeprefix("--labels=").split(","))
    found = {taint.key: taint.value for taint in taints_in_labels(labels)}
    assert found == {"a": "line", "b": "file", "c": "variable", "d": "pod"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "the taints file .* cannot be read: No such file or directory"),
        (b"a=b:Never", "the taints file .*: taint effect 'Never' is unknown"),
        (b'stead/taints="a=b:Never"', "the taints file .*: taint effect 'Never' is unknown"),
        (b"\xff\xfe", "the taints file .* is not text; good content is 'gpu_node=true:NoSchedule'"),
    ],
)
def test_a_bad_taints_file_is_refused_in_one_sentence(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "taints"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Invalid, match=words):
        ray_start(Options(taints_file=str(path)), {}, Surroundings())
