"""The script that starts workers of a local cluster: it sets variables, and leaves the rest to Ray's script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stead.ray.local.raylets import SETUP_WORKER

SHOW = "import json, os, sys; print(json.dumps([__file__, sys.argv[1:], os.environ.get('A'), os.getpid()]))\n"
PLAIN: dict[str, Any] = {
    "command_prefix": [],
    "py_executable": sys.executable,
    "override_worker_entrypoint": None,
    "java_jars": [],
}


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """A worker that prints what it was started with, and beside it a script of Ray's that does the same."""
    for name in ("default_worker.py", "setup_worker.py"):
        (tmp_path / name).write_text(SHOW)
    return tmp_path / "default_worker.py"


def started(worker: Path, *more: str, **environment: str) -> tuple[str, list[str], str | None, bool]:
    """The file that ran in the end, its arguments, the variable A, and whether it is the process that was started."""
    words = [sys.executable, SETUP_WORKER, str(worker), "--node-ip=1 2", *more, "--port=7"]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    file, arguments, variable, pid = json.loads(running.communicate(timeout=60)[0])
    return Path(file).name, arguments, variable, pid == running.pid


def context(**changed: Any) -> str:
    return "--serialized-runtime-env-context=" + json.dumps({**PLAIN, "env_vars": {"A": "x=y z"}, **changed})


def test_a_worker_gets_its_variables_and_its_own_arguments_in_the_same_process(worker: Path) -> None:
    found = started(worker, context(), "--language=PYTHON")
    assert found == ("default_worker.py", ["--node-ip=1 2", "--port=7"], "x=y z", True)


@pytest.mark.parametrize(
    "given",
    [
        [context(command_prefix=["conda", "activate", "&&"]), "--language=PYTHON"],
        [context(py_executable="/another/python"), "--language=PYTHON"],
        [context(override_worker_entrypoint="/in/a/container.py"), "--language=PYTHON"],
        [context(env_vars={"A": "${HOME}/lib"}), "--language=PYTHON"],
        [context(env_vars={"A": 3}), "--language=PYTHON"],
        [context(of_a_later_version=True), "--language=PYTHON"],
        [context(), "--language=JAVA"],
        [context()],
        [context(), "--language", "PYTHON"],
        ["--serialized-runtime-env-context={", "--language=PYTHON"],
        ["--serialized-runtime-env-context=[]", "--language=PYTHON"],
        [],
    ],
)
def test_everything_else_is_left_to_rays_script(worker: Path, given: list[str]) -> None:
    found = started(worker, *given)
    assert found == ("setup_worker.py", [str(worker), "--node-ip=1 2", *given, "--port=7"], os.environ.get("A"), True)
