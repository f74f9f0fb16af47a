"""A service in a thread: any desk behind the real guard, on a real port of this machine.

    with simulated(SCENARIO) as desk, serving(desk) as served:
        ... served.url, served.token, served.variables ...

Its keys are in its own folder, so that it reads and leaves nothing on the machine.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from stead.operate.desk import Desk
from stead.service.app import create_app
from stead.service.keys import Keys
from stead.service.listening import SETTINGS
from stead.sim.desk import SimDesk
from stead.sim.scenario import parse

BEGAN = 1767225600.0
"""The moment 0 of a simulated cluster: 2026-01-01 00:00:00 in UTC, so that what is printed is the same every day."""


@dataclass(frozen=True)
class Served:
    """Where a service is, and its operator's token. `variables` lead a `stead` process there."""

    url: str
    token: str
    home: Path
    keys: Keys

    @property
    def variables(self) -> dict[str, str]:
        return {"STEAD_ADDRESS": self.url, "STEAD_HOME": str(self.home)}


@contextmanager
def simulated(scenario: str | Path, until: float | None = None, speed: float = 0.0) -> Iterator[SimDesk]:
    """The desk of a scenario (YAML text or a file) that has run; at speed 0 its clock then stops."""
    text = scenario.read_text(encoding="utf-8") if isinstance(scenario, Path) else scenario
    with tempfile.TemporaryDirectory(prefix="stead-desk-") as folder:
        desk = SimDesk(parse(text), Path(folder), until, speed, began=BEGAN)
        try:
            yield desk
        finally:
            desk.close()


@contextmanager
def serving(desk: Desk, **given: Any) -> Iterator[Served]:
    """Serve a desk on a free port of 127.0.0.1 for the length of a block; `given` goes to `create_app`."""
    with tempfile.TemporaryDirectory(prefix="stead-home-") as folder:
        keys = Keys(Path(folder))
        with listening_at(create_app(desk, keys, **given)) as port:
            yield Served(f"http://127.0.0.1:{port}", keys.operator_token(), Path(folder), keys)


@contextmanager
def listening_at(app: Any) -> Iterator[int]:
    """Any application, served like the service for the length of a block; yields the port."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        **SETTINGS,
        loop="asyncio",
        log_level="critical",
        access_log=False,
        timeout_graceful_shutdown=1,  # open streams do not delay the end
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    listening.listen(128)  # from here on the socket queues requests
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        listening.close()
        assert not thread.is_alive(), f"the service did not end:\n{_what_runs(server)}"


def _what_runs(server: uvicorn.Server) -> str:
    """The stack of every thread and request, to show why a service does not stop."""
    threads = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"{threads.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join([*stacks, *(repr(task) for task in list(server.server_state.tasks))])
