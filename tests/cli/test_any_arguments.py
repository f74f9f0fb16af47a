"""Any arguments: a command exits with 0, or with 1 or 2 and one sentence, and never with a traceback.

Every parser of `stead.commands` that takes outside text is fed with text that is nearly right and text that is not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stead.cli import main
from stead.commands import arguments as words
from stead.commands.what_if import _described
from stead.errors import Invalid
from stead.language.resources import Resources
from stead.operate.desk import Desk
from tests.serving import simulated

SCENARIO = Path(__file__).parent.parent / "golden" / "served.yaml"
EXAMPLES = 1000 if os.environ.get("STEAD_SOAK") == "1" else 40

PARTS = [
    *("=", ":", "-", ",", "/", "{", "}", "[", "]", '"', "'", " ", "!", "(", ")", ".", "#", "&a", "*a", "\n", "\0", "é"),
    *(
        "k",
        "v",
        "zone",
        "a",
        "NoSchedule",
        "no-execute",
        "gpu_node",
        "true",
        "cpu-1",
        "nodes",
        "CPU",
        "8",
        "1e9",
        "32Gi",
    ),
    *(
        "id",
        "count",
        "capacity",
        "labels",
        "in",
        "not",
        "exists",
        "5m",
        "2h",
        "0",
        "-1",
        "nan",
        "inf",
        "2026-01-01",
        "T12",
    ),
    *("--json", "--all", "--dry-run", "state", "waiting", "draining"),
]
nearly = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)
text = nearly | st.text(max_size=20)

plain = st.none() | st.booleans() | st.integers() | st.floats() | text
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=8
)
FIELDS = (
    "changes",
    "work",
    "groups",
    "id",
    "join",
    "drain",
    "taint",
    "taints",
    "selector",
    "resources",
    "bundles",
    "like",
)
documents = st.dictionaries(
    st.sampled_from(FIELDS[:3]),
    st.lists(st.dictionaries(st.sampled_from(FIELDS[3:]), values, max_size=4), max_size=3) | values,
    max_size=3,
)

lightly = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with simulated(SCENARIO) as found:
        yield found


@pytest.fixture(autouse=True)
def at_the_desk(desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands use the desk directly, in an empty folder."""

    @contextmanager
    def reached(*_: object) -> Iterator[Desk]:
        yield desk

    for name in ("nodes", "work", "asking", "what_if", "auditing", "describing", "tops"):
        monkeypatch.setattr(f"stead.commands.{name}.reached", reached)
    monkeypatch.setattr("stead.commands.serving._run", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEAD_HOME", str(tmp_path / "home"))


def answered(*said: str) -> None:
    """Runs a command; a refusal must be one line."""
    with CliRunner().isolation() as (_, err, *_rest):
        code = main(list(said))
        told = err.getvalue().decode("utf-8", "replace") if err is not None else ""
    assert code in (0, 1, 2)
    assert "Traceback" not in told
    if code == 2 or (code == 1 and said[0] != "lint"):
        assert told.startswith("stead: "), told
        assert told.count("\n") == 1, told


COMMANDS: dict[str, tuple[str, ...]] = {
    "taint": ("nodes", "cpu-1"),
    "label": ("nodes", "cpu-1"),
    "taint by id": ("--node-id", "cpu-1", "--append"),
    "taint away": ("--node-id", "cpu-1", "--remove"),
    "label by id": ("--node-id", "cpu-1", "--append"),
    "label away": ("--node-id", "cpu-1", "--remove"),
    "taint for": ("nodes", "cpu-1", "k=v:NoSchedule", "--dry-run", "--for"),
    "taint effect": ("nodes", "cpu-1", "k=v", "--dry-run", "--effect"),
    "drain": ("--dry-run",),
    "nodes": ("--selector",),
    "nodes filter": ("--filter",),
    "work": ("--selector",),
    "work filter": ("--filter",),
    "groups": ("--filter",),
    "nodes sort": ("--sort-by",),
    "nodes output": ("-o",),
    "work jsonpath": ("-o", "jsonpath=."),
    "top sort": ("--sort-by",),
    "top": (),
    "describe": ("node",),
    "describe work": ("work",),
    "describe group": ("group",),
    "why": (),
    "why spec": ("--spec",),
    "lint": ("--spec",),
    "plan": ("--nodes",),
    "plan config": ("--config",),
    "plan saved": ("--snapshot",),
    "what-if kind": ("--add-kind",),
    "what-if": ("--add",),
    "what-if like": ("--add-like",),
    "what-if taint": ("--taint", "cpu-1"),
    "what-if untaint": ("--untaint", "cpu-1"),
    "what-if label": ("--label", "cpu-1"),
    "what-if drain": ("--drain",),
    "replay": ("--at",),
    "replay ask": ("--ask",),
    "replay file": (),
    "undo": (),
    "token": ("--role", "viewer", "--name"),
    "token away": ("--revoke",),
    "context name": ("add", "--address", "https://h", "--no-token"),
    "context address": ("add", "prod", "--overwrite", "--no-token", "--address"),
    "context ca": ("add", "prod", "--address", "https://h", "--no-token", "--ca"),
    "context token": ("add", "prod", "--address", "https://h", "--token-file"),
    "context use": ("use",),
    "context remove": ("remove",),
    "serve certificate": ("--port", "0", "--scenario", "none.yaml", "--tls-key", "key.pem", "--tls-cert"),
}


@pytest.mark.parametrize("name", COMMANDS)
@lightly
@given(word=text)
@example(word="")
def test_a_command_accepts_an_argument_or_refuses_it(name: str, word: str) -> None:
    command, given_words = name.partition(" ")[0], COMMANDS[name]
    dry = ["--dry-run"] if command in ("taint", "label") and "--dry-run" not in given_words else []
    answered(command, *dry, *given_words, word)


@lightly
@given(said=st.lists(text, max_size=5))
def test_no_arguments_cause_a_traceback(said: list[str]) -> None:
    for command in ("taint", "label", "what-if", "nodes", "why"):
        answered(command, *said, *(["--dry-run"] if command in ("taint", "label") else []))


@lightly
@given(document=documents | values)
def test_a_spec_is_read_or_refused(document: Any) -> None:
    Path("spec.yaml").write_text(json.dumps(document), encoding="utf-8")
    for command in ("why", "lint", "what-if"):
        answered(command, "--spec", "spec.yaml")
    for option in ("--nodes", "--spec", "--config", "--snapshot"):
        answered("plan", option, "spec.yaml")


@lightly
@given(content=st.binary(max_size=60) | text.map(str.encode))
def test_a_file_may_hold_anything(content: bytes) -> None:
    Path("spec.yaml").write_bytes(content)
    for command in ("why", "what-if"):
        answered(command, "--spec", "spec.yaml")
    answered("replay", "spec.yaml")
    answered("serve", "--port", "0", "--scenario", "spec.yaml")


CONTEXT = click.Context(click.Command("stead"))
OPTION = click.Option(["--at"])


@lightly
@given(said=text)
def test_times_and_durations_are_numbers_or_refused(said: str) -> None:
    for parse in (words.duration, words.moment_of_scenario, words.past_moment):
        with suppress(click.BadParameter):
            found = parse(CONTEXT, OPTION, said)
            assert found is not None
            number = found.seconds if isinstance(found, words.Moment) else found
            assert 0 <= number <= 1e12


@lightly
@given(amount=st.integers(0, 10**6) | st.floats(0, 1e6, allow_nan=False), name=st.sampled_from(["CPU", "disk", "a/b"]))
def test_the_capacity_of_a_node_is_read_as_written(amount: float, name: str) -> None:
    assert Resources.of(_described(f"{name}={amount}")["capacity"]) == Resources.of({name: str(amount)})


@lightly
@given(said=text)
def test_a_described_node_is_valid_or_refused(said: str) -> None:
    with suppress(Invalid):
        assert all(isinstance(name, str) for name in _described(said))
