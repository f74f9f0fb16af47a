"""A small simulated cluster with a paused clock behind a real service, and how a test runs a command on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stead.cli import main
from tests.serving import Served, serving, simulated

ROOT = Path(__file__).parent.parent.parent
SCENARIO = ROOT / "tests" / "golden" / "served.yaml"
VARIABLES = ("RAY_", "__RAY_", "STEAD_", "_STEAD_")
KEPT = ("STEAD_GOLDEN", "STEAD_SOAK")  # these are for the tests themselves

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command: its exit code, stdout and stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def untouched() -> Iterator[Served]:
    """The service that tests only read."""
    with simulated(SCENARIO) as desk, serving(desk) as served:
        yield served


@pytest.fixture
def lone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any setting of stead or Ray; returns its home."""
    for name in [name for name in os.environ if name.startswith(VARIABLES) and name not in KEPT]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STEAD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path / "home"


@pytest.fixture
def looked_at(untouched: Served, lone: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Commands use the service that no test changes."""
    for name, value in untouched.variables.items():
        monkeypatch.setenv(name, value)
    return untouched


@pytest.fixture
def changed(lone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Commands use their own service, which they may change."""
    with simulated(SCENARIO) as desk, serving(desk) as served:
        for name, value in served.variables.items():
            monkeypatch.setenv(name, value)
        yield served


@pytest.fixture(scope="session")
def shared() -> Iterator[Served]:
    """The service that tests change and restore."""
    with simulated(SCENARIO) as desk, serving(desk) as served:
        yield served


@pytest.fixture
def left_as_it_was(shared: Served, lone: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Commands use a service whose nodes the test restores; work may have moved."""
    for name, value in shared.variables.items():
        monkeypatch.setenv(name, value)
    return shared
