"""Submits tasks whose node the engine chooses: each task asks for a slot of its shape and is counted.

Rule: a submission never waits for the decision, and no message is sent per task. The task goes to Ray at once and asks
for one unit of its shape's resource name. A thread sends the counts by shape, and repeats a message until the
controller acknowledges it. Inside a placement group, Ray places the task among the bundles that the rules allow.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stead.codec import dumps
from stead.errors import Unsupported
from stead.language.taints import Toleration
from stead.ray.submit.compile import Route, implicit
from stead.ray.wire.node_page import ONE, Page
from stead.ray.wire.own_names import SLOT, TIMED

if TYPE_CHECKING:
    from stead.ray.submit.connection import Connection
    from stead.ray.submit.messages import SlotShape

BETWEEN_S = 0.02
"""Minimum time between two calls. Tasks submitted meanwhile are counted in the next one."""

RETRY_S = 0.2
KNOWN_MAX = 10_000
"""How many shapes are remembered as known to the controller. A forgotten shape is sent again."""

log = logging.getLogger(__name__)


class TaskShape:
    """What equal submissions share, computed once and cached."""

    def __init__(self, asked: Route, resources: Mapping[str, float], namespace: str, tolerated: tuple[Toleration, ...]):
        self._made = (asked, dict(resources), namespace, tolerated)
        ask = replace(asked.ask("", resources, namespace), tolerations=tolerated)
        self.key = hashlib.sha256(dumps(ask)).hexdigest()[:12]
        self.marks = implicit(asked, namespace)
        if asked.deadline_s is not None:
            self.marks[TIMED] = ONE

    def slot_shape(self) -> SlotShape:
        from stead.ray.submit.messages import (
            SlotShape,  # imported here: most workers never need it
        )

        asked, resources, namespace, tolerated = self._made
        return SlotShape(self.key, replace(asked.ask(self.key, resources, namespace), tolerations=tolerated))


def shape_of(
    link: Connection, asked: Route, resources: Mapping[str, float], tolerated: tuple[Toleration, ...]
) -> TaskShape:
    key = (link.namespace, tolerated, *resources.items())
    found: TaskShape | None = asked.shapes.get(key)
    if found is None:
        found = asked.shapes[key] = TaskShape(asked, resources, link.namespace, tolerated)
    return found


def ask_for_slot(link: Connection, page: Page, shape: TaskShape, resources: MutableMapping[str, float]) -> None:
    """Add the slot to a task's resources, and count the task."""
    resources[f"{SLOT}{shape.key}/{page.slots.get(shape.key, 0)}"] = 1.0
    if shape.marks:
        resources.update(shape.marks)
    link.counter.add(shape.key, shape)


def check_grants(page: Page) -> None:
    if not page.grants:
        raise Unsupported(
            "rules on other work, labels, spread and a policy need a Ray that can change a node's resources while "
            "it runs"
        )


class TaskCounter:
    """Sends the controller the number of tasks of each shape that this process submitted since the last message."""

    def __init__(self, send: Callable[..., Any], has_left: Callable[[], bool]) -> None:
        self._process, self._send, self._has_left = uuid.uuid4().hex, send, has_left
        self._lock, self._more = threading.RLock(), threading.Event()
        self._counts: dict[str, int] = {}
        self._new: dict[str, TaskShape] = {}
        self._known: set[str] = set()  # shapes that the controller has acknowledged
        threading.Thread(target=self._run, name="stead-task-counter", daemon=True).start()

    def add(self, key: str, shape: TaskShape | None = None) -> None:
        """Count a task. The first task of a shape also sends the shape, unless the controller knows it."""
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1
            if shape is not None and key not in self._known:
                self._new[key] = shape
        if not self._more.is_set():
            self._more.set()

    def _run(self) -> None:
        number = 0
        while True:
            self._more.wait()
            self._more.clear()
            with self._lock:
                counts, self._counts = self._counts, {}
                new, self._new = self._new, {}
            number += 1
            if not self._deliver(number, new, counts):
                return
            with self._lock:
                if len(self._known) > KNOWN_MAX:
                    self._known.clear()
                self._known |= new.keys()
            time.sleep(BETWEEN_S)

    def _deliver(self, number: int, new: Mapping[str, TaskShape], counts: Mapping[str, int]) -> bool:
        """Send one message until it is acknowledged. The controller ignores a number that arrives twice. Returns False
        if this process has left the cluster."""
        shapes = [shape.slot_shape() for shape in new.values()]
        while not self._has_left():
            try:
                self._send("want_slots", self._process, number, shapes, counts)
            except Exception:
                log.debug("the controller did not acknowledge the task counts; retrying", exc_info=True)
                time.sleep(RETRY_S)
            else:
                return True
        return False
