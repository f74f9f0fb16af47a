"""`stead convert`: files of pods and of work, and what is refused. The fields are tested in tests/kubernetes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from stead.cli import main

Convert = Callable[..., tuple[int, str, str]]

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop}
spec:
  restartPolicy: Never
  containers: [{name: web, image: nginx, command: [nginx], resources: {requests: {cpu: 1, memory: 1Gi}}}]
"""

WORK = "work: {id: web, run: nginx, image: nginx, resources: {CPU: 1}}"


@pytest.fixture
def convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Convert:
    def call(text: str, *options: str) -> tuple[int, str, str]:
        file = tmp_path / "input.yaml"
        file.write_text(text, encoding="utf-8")
        code = main(["convert", str(file), *options])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_pods_and_back(convert: Convert) -> None:
    code, out, err = convert("work: {id: web, count: 2, run: nginx, image: nginx, priority: 5}", "--to", "kubernetes")
    assert (code, err) == (0, "")
    assert [each["kind"] for each in yaml.safe_load_all(out)] == ["PriorityClass", "Pod", "Pod"]
    code, out, err = convert(out, "--from", "kubernetes")
    assert (code, err) == (0, "")
    entry = {"run": "nginx", "image": "nginx", "namespace": "default", "priority": 5}
    assert yaml.safe_load(out) == {"work": [{"id": "web-1", **entry}, {"id": "web-2", **entry}]}


def test_json_is_a_list_for_kubectl(convert: Convert) -> None:
    _, out, _ = convert(WORK, "--to", "kubernetes", "-o", "json", "-n", "shop", "--scheduler-name", "batch")
    found = json.loads(out)
    assert (found["kind"], len(found["items"])) == ("List", 1)
    pod = found["items"][0]
    assert (pod["metadata"]["namespace"], pod["spec"]["schedulerName"]) == ("shop", "batch")


def test_a_list_of_pods_is_read_as_kubectl_prints_it(convert: Convert) -> None:
    pod = yaml.safe_load(POD)
    code, out, _ = convert(yaml.safe_dump({"kind": "List", "items": [pod, pod]}), "--from", "kubernetes", "-o", "json")
    assert (code, len(json.loads(out)["work"])) == (0, 2)


def test_what_is_left_out_is_listed(convert: Convert) -> None:
    code, _, err = convert(POD.replace("Never", "Always"), "--from", "kubernetes", "--leave-out")
    assert code == 0
    assert err == "left out: pod web-0: spec.restartPolicy: work in a spec runs once; set it to Never\n"
    code, _, err = convert(WORK.replace("}}", "}, for: 5, deadline: 5}"), "--to", "kubernetes", "--leave-out")
    assert code == 0
    assert err.splitlines() == [
        "left out: web: for: cannot be said for a pod",
        "left out: web: deadline: cannot be said for a pod",
    ]


REFUSED: dict[str, tuple[str, list[str], str]] = {
    "a restart policy": (
        POD.replace("Never", "Always"),
        ["--from", "kubernetes"],
        "input.yaml: pod web-0: spec.restartPolicy: work in a spec runs once",
    ),
    "another kind": (
        "kind: Deployment\nmetadata: {name: web}",
        ["--from", "kubernetes"],
        "Deployment web is not a pod",
    ),
    "no pods": ("", ["--from", "kubernetes"], "it has no pods; a good file is the output of kubectl get pod"),
    "text": ("hello", ["--from", "kubernetes"], "it must contain objects of Kubernetes"),
    "not YAML": ("a: [", ["--from", "kubernetes"], "line 1: this is not YAML"),
    "metadata that is no map": ("kind: Pod\nmetadata: 5", ["--from", "kubernetes"], "'metadata' must be an object"),
    "a pod without a name": ("kind: Pod\nspec: {restartPolicy: Never}", ["--from", "kubernetes"], "pod None: "),
    "a duration": (WORK.replace("}}", "}, for: 5}"), ["--to", "kubernetes"], "work.for: cannot be said for a pod"),
    "a deadline": (WORK.replace("}}", "}, deadline: 5}"), ["--to", "kubernetes"], "work.deadline: cannot be said"),
    "an owner": (WORK.replace("}}", "}, owner: blue}"), ["--to", "kubernetes"], "work.owner: cannot be said for a pod"),
    "a share of a GPU": (WORK.replace("CPU: 1", "GPU: 0.5"), ["--to", "kubernetes"], "work.resources: a pod cannot"),
    "a field with a typo": ("work: {id: a, imge: b}", ["--to", "kubernetes"], "did you mean 'image'?"),
}


@pytest.mark.parametrize(("text", "options", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_converted_is_one_sentence(
    convert: Convert, text: str, options: list[str], sentence: str
) -> None:
    code, out, err = convert(text, *options)
    assert (code, out) == (1, "")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("options", [[], ["--to", "kubernetes", "--from", "kubernetes"]])
def test_there_is_one_direction(convert: Convert, options: list[str]) -> None:
    code, _, err = convert(WORK, *options)
    assert code == 2
    assert "give either --to kubernetes or --from kubernetes" in err


def test_converted_pods_can_be_explained(convert: Convert, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = convert(POD, "--from", "kubernetes")
    (tmp_path / "spec.yaml").write_text(out, encoding="utf-8")
    (tmp_path / "nodes.yaml").write_text("nodes: {id: a, capacity: {CPU: 0.5, memory: 4Gi}}", encoding="utf-8")
    assert main(["why", "--spec", str(tmp_path / "spec.yaml"), "--scenario", str(tmp_path / "nodes.yaml")]) == 0
    assert "web-0: 0 of 1 node fits: 1 too small for 1 CPU" in capsys.readouterr().out
