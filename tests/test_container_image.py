"""The Dockerfile refers only to what exists. There is no Docker engine here, so the image itself is not built."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import yaml

from stead.kubernetes.manifests.rendering import Installation, manifests

ROOT = Path(__file__).parent.parent
TEXT = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.+)$", TEXT, re.MULTILINE)


def test_every_copied_file_exists_and_is_sent_to_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = [word for line in instructions("COPY") if "--from" not in line for word in shlex.split(line)[:-1]]
    assert set(copied) == {"pyproject.toml", "README.md", "LICENSE", "src"}
    for name in copied:
        assert (ROOT / name).exists(), f"the Dockerfile copies {name}"
        assert f"!{name}" in ignored, f".dockerignore leaves out {name}"


def test_what_the_wheel_is_built_from_is_copied() -> None:
    copied = " ".join(instructions("COPY"))
    for name in (PROJECT["readme"], *PROJECT["license-files"]):
        assert name in copied


def test_the_extras_exist() -> None:
    (found,) = re.findall(r"\$wheel\[([\w,]+)\]", TEXT)
    extras = found.split(",")
    assert extras == ["kubernetes", "flow"]
    assert set(extras) <= PROJECT["optional-dependencies"].keys()


def test_both_stages_have_the_same_supported_python() -> None:
    bases = {line.split()[0] for line in instructions("FROM")}
    assert bases == {"python:3.11-slim"}
    assert PROJECT["requires-python"] == ">=3.11"


def test_it_runs_the_command_as_the_user_of_the_manifests() -> None:
    assert [json.loads(line) for line in instructions("ENTRYPOINT")] == [["stead"]]
    assert "stead" in PROJECT["scripts"]
    documents = [each for each in yaml.safe_load_all(manifests(Installation("stead"))) if each]
    (deployment,) = (each for each in documents if each["kind"] == "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    user, group = (spec["securityContext"][field] for field in ("runAsUser", "runAsGroup"))
    assert instructions("USER") == [f"{user}:{group}"]
    assert instructions("EXPOSE") == [str(spec["containers"][0]["ports"][0]["containerPort"])]
