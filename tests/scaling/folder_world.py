"""A cluster and a provider in a folder, so that several processes see the same, and a process can be killed at a step.

The cluster is a list of pending work and, for each node, its labels and whether it is drained. The provider is a file
for each instance, which is renamed when the instance ends: so a kill is before or after a step, never between what was
done and what was noted. Instances join at once.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted, ClockAdvanced, NodeJoined, NodeUsed
from stead.engine.scaling.decisions import ScaleDecision
from stead.language.asks import Ask
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import Resources
from stead.operate.audit import Author
from stead.operate.changes import NodeChange
from stead.operate.scale import ScaleView
from stead.operate.snapshot import Snapshot
from stead.planner.instances import Instance, InstanceState
from stead.planner.scaler import Scaler, ScaleSettings
from stead.scaling.loop import Autoscaler

KIND = NodeTemplate("cpu", Resources.of(CPU=1), count_max=10)
PIECES = 2
ENDED = ".ended"
AT_ONCE = ScaleSettings(idle_s=0.01, settle_s=0.01, join_s=30)


class FolderWorld:
    """`reached` is called at each step that can be killed, with its name."""

    def __init__(self, folder: Path, reached: Callable[[str], None] = lambda step: None) -> None:
        self.folder, self.reached = folder, reached
        self.instances = folder / "instances"
        self.instances.mkdir(exist_ok=True)
        self._lock = threading.Lock()

    # -- the provider

    title = "the folder"

    def launch(self, id: str, template: NodeTemplate) -> None:
        self.reached("launch: before")
        with self._lock:
            if not (self.instances / id).exists():
                _write(self.instances / id, {"since": time.time()})
        self.reached("launch: stored")

    def retire(self, instance: Instance) -> None:
        self.reached("retire: before")
        with self._lock:
            path = self.instances / instance.launch
            if path.exists():
                path.rename(path.with_suffix(ENDED))
        self.reached("retire: ended")

    def _stored(self) -> Sequence[Path]:
        """The files of all instances that are not ended, without those that a kill left unfinished."""
        return sorted(path for path in self.instances.iterdir() if not path.suffix)

    def list(self) -> Sequence[Instance]:
        self.reached("list")
        found = [(path.name, _read(path)) for path in self._stored()]
        return [Instance(id, KIND.name, InstanceState.RUNNING, read["since"], f"node-{id}") for id, read in found]

    @property
    def launched(self) -> Sequence[str]:
        """Every instance that was ever launched; twice, if it was launched again after its end."""
        return [path.stem for path in self.instances.iterdir() if path.suffix in ("", ENDED)]

    @property
    def ended(self) -> Sequence[str]:
        return [path.stem for path in self.instances.iterdir() if path.suffix == ENDED]

    # -- the desk

    def snapshot(self) -> Snapshot:
        self.reached("snapshot")
        engine = Engine()
        engine.apply(ClockAdvanced(time.time()), NodeJoined(Node.of("head", {"CPU": 1})))
        engine.apply(NodeUsed("head", Resources.of(CPU=1), 1))
        for path in self._stored():
            node = KIND.node(f"node-{path.name}")
            state = _read(self.folder / f"{node.id}.json")
            drained, labels = state.get("draining", False), node.labels.changed(state.get("labels", {}))
            engine.apply(NodeJoined(Node(node.id, node.capacity, labels, draining=drained)))
        if not (self.folder / "work is done").exists():
            engine.apply(*(AskSubmitted(Ask.of(f"w-{number}", {"CPU": 1})) for number in range(PIECES)))
            engine.decide()
        return Snapshot(engine, time.time())

    def change(self, change: NodeChange, author: Author) -> Any:
        self.reached("change: before")
        path = self.folder / f"{change.node}.json"
        state = _read(path)
        labels = {key: value for key, value in state.get("labels", {}).items() if key not in change.unlabels}
        _write(path, {"draining": change.draining, "labels": {**labels, **change.labels}})
        self.reached("change: made")
        return SimpleNamespace(nodes=(), unconfirmed=())

    def report_scale(self, view: ScaleView, decisions: Sequence[ScaleDecision]) -> None:
        self.reached("report: before")
        if decisions:
            self.reached("report: of decisions")

    # -- one life of the cluster

    def live(self, seconds: float = 120.0) -> None:
        """An autoscaler launches nodes for the work; then the work ends, and it retires them."""
        loop = Autoscaler(self, self, Scaler([KIND], AT_ONCE), Author("test"))  # type: ignore[arg-type]  # change
        until, done, pause = time.monotonic() + seconds, self.folder / "work is done", threading.Event()
        while time.monotonic() < until:
            loop.turn()
            loop.wait(seconds)
            count = len(self._stored())
            if not done.exists() and count == PIECES and not self.snapshot().engine.waiting:
                done.touch()
            if done.exists() and not count:
                return
            pause.wait(0.01)
        raise TimeoutError(f"after {seconds} s, {self._stored()} are left")


class KilledAt:
    """Kills this process when it reaches a step for the nth time."""

    def __init__(self, step: str, nth: int) -> None:
        self._step, self._left = step, nth

    def __call__(self, step: str) -> None:
        if step == self._step:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
                threading.Event().wait()


def _write(path: Path, content: Any) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(content))
    new.rename(path)


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    return found
