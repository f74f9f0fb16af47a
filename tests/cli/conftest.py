"""A small simulated cluster behind a real service, whose time stands still; and how a test runs a command on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving import Served, serving, simulated
from stead.cli import main

ROOT = Path(__file__).parent.parent.parent
SCENARIO = ROOT / "tests" / "golden" / "served.yaml"
VARIABLES = ("RAY_", "__RAY_", "STEAD_", "_STEAD_")
KEPT = ("STEAD_GOLDEN", "STEAD_SOAK")  # these are for the tests themselves

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command: its exit code, what it printed, and what it said on stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def untouched() -> Iterator[Served]:
    """The service that tests only look at."""
    with simulated(SCENARIO) as desk, serving(desk) as served:
        yield served


@pytest.fixture
def lone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which nothing of stead or Ray is set; its home is answered."""
    for name in [name for name in os.environ if name.startswith(VARIABLES) and name not in KEPT]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STEAD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path / "home"


@pytest.fixture
def looked_at(untouched: Served, lone: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Commands reach the service that nobody changes."""
    for name, value in untouched.variables.items():
        monkeypatch.setenv(name, value)
    return untouched


@pytest.fixture
def changed(lone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Commands reach a service of their own, to change what they like."""
    with simulated(SCENARIO) as desk, serving(desk) as served:
        for name, value in served.variables.items():
            monkeypatch.setenv(name, value)
        yield served


@pytest.fixture(scope="session")
def shared() -> Iterator[Served]:
    """The service that tests change and leave as it was."""
    with simulated(SCENARIO) as desk, serving(desk) as served:
        yield served


@pytest.fixture
def left_as_it_was(shared: Served, lone: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Commands reach a service whose nodes a test leaves as they were; work may have moved."""
    for name, value in shared.variables.items():
        monkeypatch.setenv(name, value)
    return shared
