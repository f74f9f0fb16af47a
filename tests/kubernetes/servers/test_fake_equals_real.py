"""The fake API server answers like the real one.

Rule: recorded.json holds what the real server answered to the scripts. The fake is compared with it in every run; the
recording itself is compared with a real server where there is one (`pytest -m kube`). After a change of the scripts,
write it again: STEAD_GOLDEN=write pytest -m kube tests/kubernetes/servers/test_fake_equals_real.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.objects import Kubectl
from tests.kubernetes.servers.fake import FakeServer
from tests.kubernetes.servers.real import RealServer, missing
from tests.kubernetes.servers.recording import Compacted, Recorder, Step
from tests.kubernetes.servers.scripts import NOT_COMPARED, SCRIPTS

RECORDED = Path(__file__).parent / "recorded.json"
NAMES = list(SCRIPTS)


@pytest.fixture(scope="module")
def fake() -> Iterator[Recorder]:
    with FakeServer() as server, Kubectl(server) as kubectl:
        yield Recorder(server, kubectl)


@pytest.fixture(scope="module")
def real() -> Iterator[Recorder]:
    if why := missing():
        pytest.skip(why)
    with RealServer() as server, Kubectl(server) as kubectl:
        yield Recorder(server, kubectl)


def run(recorder: Recorder, name: str) -> Any:
    """What a server answers to a script, with the status codes that the script expects."""
    script = SCRIPTS[name]
    recorded = recorder.run(script, f"script-{NAMES.index(name)}")
    steps = [step for step in script if not isinstance(step, Compacted)]
    for step, answer in zip(steps, recorded, strict=True):
        if isinstance(step, Step):
            assert answer["code"] == step.code, f"{step.method} {step.path} answers {answer}"
    return recorded


def recording() -> dict[str, Any]:
    found = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    assert isinstance(found, dict)
    return found


def as_text(recorded: dict[str, Any]) -> str:
    """JSON with one line for each answer, so that a difference can be read."""
    scripts = []
    for name in sorted(recorded):
        answers = ",\n".join("  " + json.dumps(answer, sort_keys=True) for answer in recorded[name])
        scripts.append(f" {json.dumps(name)}: [\n{answers}\n ]")
    return "{\n" + ",\n".join(scripts) + "\n}\n"


@pytest.mark.parametrize("name", NAMES)
def test_the_fake_answers_as_the_real_server_did(name: str, fake: Recorder) -> None:
    assert run(fake, name) == recording()[name]


@pytest.mark.kube
@pytest.mark.parametrize("name", NAMES)
def test_the_real_server_answers_as_recorded(name: str, real: Recorder) -> None:
    answers = run(real, name)
    if os.environ.get("STEAD_GOLDEN") == "write":
        known = {other: was for other, was in recording().items() if other in SCRIPTS}
        RECORDED.write_text(as_text({**known, name: answers}), encoding="utf-8")
    assert answers == recording()[name]


def test_the_recording_has_every_script_and_no_other() -> None:
    assert set(recording()) == set(SCRIPTS)


def test_what_is_not_compared_has_a_reason() -> None:
    assert all(NOT_COMPARED.values())
