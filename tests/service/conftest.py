"""A small simulated cluster with a paused clock behind the whole service, without a network."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from stead.errors import Invalid
from stead.operate.desk import Desk
from stead.service.app import create_inner
from stead.service.guard import App, Limits
from stead.service.keys import RAY_TOKEN, RAY_TOKEN_PATH, Keys
from tests.service.asking import Changing, Service
from tests.serving import simulated

SCENARIO = Path(__file__).parent.parent / "golden" / "served.yaml"

Serve = Callable[..., Service]
Slow = tuple[Service, threading.Event]


@pytest.fixture(autouse=True)
def no_token_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (RAY_TOKEN, RAY_TOKEN_PATH):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def tokens_are_looked_up_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not wait until the service checks its files again; tests of `LOOK_S` set it themselves."""
    monkeypatch.setattr("stead.service.keys.LOOK_S", 0.0)


@pytest.fixture(scope="session")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, Changing, Keys, asyncio.Runner]]:
    """The application, created once: this takes longer than the requests of a test."""
    desk, keys = Changing(), Keys(tmp_path_factory.mktemp("home"))
    with asyncio.Runner() as runner:
        yield cast(App, create_inner(cast(Desk, desk), keys)), desk, keys, runner


@pytest.fixture
def serve(inner: tuple[App, Changing, Keys, asyncio.Runner]) -> Iterator[Serve]:
    """Creates a service with a new cluster for this test; `given` goes to the guard."""
    app, desk, keys, runner = inner
    (keys._folder / "tokens.json").unlink(missing_ok=True)
    with ExitStack() as stack:
        desk.instead(lambda: stack.enter_context(simulated(SCENARIO)))

        def made(**given: Any) -> Service:
            return Service(app, desk, keys, runner, **given)

        yield made


@pytest.fixture
def slow(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """A service whose cluster does not answer until the event is set."""
    going = threading.Event()

    def wait(*_: Any) -> Any:
        going.wait(60)
        raise Invalid("too late")

    for name in ("summary", "lint"):
        monkeypatch.setattr(f"stead.operate.desk.LocalDesk.{name}", wait)
    few = {"at_once": 4, "visitors_at_once": 4, "questions": 2, "turns": 4, "slow_turns": 4, "visitors_turns": 4}
    yield serve(limits=Limits(**few, reads=1e9, writes=1e9)), going
    going.set()


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve()
