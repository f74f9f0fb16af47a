"""Kills the controller at an exact step of its loop, without any support in the controller's own code.

In a cluster started with `Killer.environment`, every worker runs `arm`. The process that becomes the controller then
reads a plan, a file, whenever it reaches one of `TARGETS`. `Killer.at` writes a plan for a block, and the block fails
if the controller did not die exactly there, once. To kill at another place, add it to `TARGETS`. To kill during another
fact, name the fact: counting starts when the step with that fact is about to be written to the journal.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from stead.ray.local.start import SETUP_HOOK

PLAN = "KILLING_PLAN"

WRITE = "stead.journal:Journal.append"
GRANT = "stead.ray.control.passes:Passes._set_many"
TICKET = "stead.ray.control.tickets:Tickets._set_many"
PLUG = "stead.ray.control.plugs:GroupPlugs.add"
UNPLUG = "stead.ray.control.plugs:GroupPlugs.remove"
ANNOUNCE = "stead.ray.control.node_agents:Pages.write"
SETTLE = "stead.ray.control.passes:Passes.settle"
TELL = "stead.ray.control.state_store:StateStore.add_event"
TARGETS = (WRITE, GRANT, TICKET, PLUG, UNPLUG, ANNOUNCE, SETTLE, TELL)


@dataclass(frozen=True)
class Step:
    """A moment in the controller's loop. `within` is only for `WRITE`: the row is written but not committed."""

    target: str
    moment: Literal["before", "within", "after"]
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.moment} {self.target.rpartition('.')[2].strip('_')} {self.nth}"


class Killer:
    """The test's side: the plan, and the environment that the cluster needs."""

    def __init__(self, folder: Path) -> None:
        self._plan, self._fired = folder / "plan.json", folder / "fired.json"

    @property
    def environment(self) -> dict[str, str]:
        paths = [str(Path(__file__).parent.parent.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        return {
            PLAN: str(self._plan),
            SETUP_HOOK: f"{__name__}.arm",
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        }

    @contextmanager
    def at(self, step: Step, since: str) -> Iterator[None]:
        """In this block the controller dies, once: at `step`, counted from the fact with that name."""
        unfinished = self._plan.with_suffix(".new")
        unfinished.write_text(json.dumps({**asdict(step), "since": since}), encoding="utf-8")
        self._fired.unlink(missing_ok=True)
        unfinished.replace(self._plan)
        try:
            yield
            assert self._fired.exists(), f"the controller did not come to the step {step!s} of {since}"
        finally:
            self._plan.unlink(missing_ok=True)


# -- in the cluster


def arm() -> None:
    """For Ray's worker setup. Changes only the process that becomes the controller."""
    from stead.ray.submit import core_worker as submission

    plain = submission.exempt_this_process

    def exempt_and_armed() -> None:
        plan = _Plan(Path(os.environ[PLAN]))
        for target in TARGETS:
            module, _, name = target.partition(":")
            kind, _, method = name.partition(".")
            owner = getattr(import_module(module), kind)
            setattr(owner, method, plan.watching(target, getattr(owner, method)))
        plain()

    submission.exempt_this_process = exempt_and_armed


class _Plan:
    """The plan in the controller's process, and its progress."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0
        self._begun, self._count = False, 0

    def watching(self, target: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def step(self_: Any, *given: Any) -> Any:
            moment = self._moment(target, given)
            if moment == "before":
                self._die()
            if moment == "within":
                self_._connection.set_trace_callback(lambda said: self._die() if said == "COMMIT" else None)
            answer = plain(self_, *given)
            if moment == "after":
                self._die()
            return answer

        return step

    def _moment(self, target: str, given: tuple[Any, ...]) -> str:
        """When to die around this call; "" if not."""
        try:
            plan, number = json.loads(self._path.read_text(encoding="utf-8")), self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return ""
        if number != self._seen:
            self._seen, self._begun, self._count = number, False, 0
        if target == WRITE and any(type(fact).__name__ == plan["since"] for fact in given[0]):
            self._begun = True
        if not self._begun or plan["target"] != target:
            return ""
        self._count += 1
        return str(plan["moment"]) if self._count == plan["nth"] else ""

    def _die(self) -> None:
        self._path.rename(self._path.with_name("fired.json"))  # so that the next controller lives
        os.kill(os.getpid(), signal.SIGKILL)
