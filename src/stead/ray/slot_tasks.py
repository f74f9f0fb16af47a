"""How a task whose node the engine chooses goes to Ray: it asks for a slot of its shape, and is counted.

Rule: the submission never waits for the decision, and nothing is sent for a single task. The task goes to Ray at once,
asking for one unit of its shape's name. A thread sends what was submitted, counted by shape, and sends it again until
the controller has acknowledged it. Inside a placement group Ray places the task, among the bundles that the rules
allow.
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
from stead.ray.compile import Route, implicit
from stead.ray.page import ONE, SLOT, TIMED, Page
from stead.taints import Toleration

if TYPE_CHECKING:
    from stead.ray.attach import Connection
    from stead.ray.book import SlotShape

BETWEEN_S = 0.02
"""The shortest time between two calls: what is submitted meanwhile goes with the next."""

RETRY_S = 0.2
log = logging.getLogger(__name__)


class TaskShape:
    """What equal submissions share: made once for each, then looked up."""

    def __init__(self, asked: Route, resources: Mapping[str, float], namespace: str, tolerated: tuple[Toleration, ...]):
        self._made = (asked, dict(resources), namespace, tolerated)
        ask = replace(asked.ask("", resources, namespace), tolerations=tolerated)
        self.key = hashlib.sha256(dumps(ask)).hexdigest()[:12]
        self.marks = implicit(asked, namespace)
        if asked.deadline_s is not None:
            self.marks[TIMED] = ONE

    def slot_shape(self) -> SlotShape:
        from stead.ray.book import SlotShape  # only here: most workers never need it, and start sooner without

        asked, resources, namespace, tolerated = self._made
        return SlotShape(self.key, replace(asked.ask(self.key, resources, namespace), tolerations=tolerated))


def shape_of(
    link: Connection, asked: Route, resources: Mapping[str, float], tolerated: tuple[Toleration, ...]
) -> TaskShape:
    namespace = link.namespace
    key = (namespace, tolerated, *resources.items())
    found: TaskShape | None = asked.shapes.get(key)
    if found is None:
        found = asked.shapes[key] = TaskShape(asked, resources, namespace, tolerated)
    return found


def ask_for_slot(link: Connection, page: Page, shape: TaskShape, resources: MutableMapping[str, float]) -> None:
    """Add the slot to what a task asks of Ray, and count the task."""
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
    """Tells the controller how many tasks of each shape this process has submitted."""

    def __init__(self, send: Callable[..., Any], is_over: Callable[[], bool]) -> None:
        self._process, self._send, self._is_over = uuid.uuid4().hex, send, is_over
        self._lock, self._more = threading.Lock(), threading.Event()
        self._totals: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._new: dict[str, TaskShape] = {}
        threading.Thread(target=self._run, name="stead-task-counter", daemon=True).start()

    def add(self, key: str, shape: TaskShape | None = None) -> None:
        """Count a task. The first one of a process brings its shape, unless the controller knows that."""
        with self._lock:
            count = self._totals.get(key)
            if count is None:
                count = 0
                if shape is not None:
                    self._new[key] = shape
            self._totals[key] = count + 1
        if not self._more.is_set():
            self._more.set()

    def _run(self) -> None:
        while True:
            self._more.wait()
            if self._is_over():
                return
            self._more.clear()
            with self._lock:
                totals = {key: total for key, total in self._totals.items() if total != self._sent.get(key)}
                new = dict(self._new)
            try:
                self._send("want_slots", self._process, [shape.slot_shape() for shape in new.values()], totals)
            except Exception:
                if self._is_over():
                    return
                log.debug("the controller was not told what was submitted; trying again", exc_info=True)
                self._more.set()
                time.sleep(RETRY_S)
                continue
            with self._lock:
                self._sent.update(totals)
                for key in new:
                    self._new.pop(key, None)
            time.sleep(BETWEEN_S)
