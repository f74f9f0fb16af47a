"""Sends messages to the controller in the background and keeps each one until the controller acknowledges it.

Rule: messages are delivered at least once and in order, unless the process leaves the cluster. A message is sent at
once; messages added during a call go together in the next one. Above `unacknowledged_max` messages, `add` blocks. A
receiver must accept the same message twice.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

from stead.errors import Invalid, Unready

UNACKNOWLEDGED_MAX = 10_000
BATCH_MAX = 2_000
"""Messages in one call. A larger batch would delay the controller's other callers."""

RETRY_S, RETRY_MAX_S = 0.1, 5.0

Message = tuple[str, Any]
"""The kind, which is a controller method that takes a list of items, and one item."""

log = logging.getLogger(__name__)


class Registrar:
    """`send` delivers messages and returns when they are acknowledged. On `Invalid` the controller refused them, so
    they are logged and dropped. On `Unready` or any other error they are sent again, with growing pauses."""

    def __init__(
        self,
        send: Callable[[list[Message]], None],
        has_left: Callable[[], bool],
        unacknowledged_max: int = UNACKNOWLEDGED_MAX,
    ) -> None:
        self._send, self._has_left, self._max = send, has_left, unacknowledged_max
        self._changed = threading.Condition()
        self._waiting: dict[Hashable, tuple[int, Message]] = {}
        self._added = self._acknowledged = 0  # how many messages
        self._thread: threading.Thread | None = None

    def add(self, kind: str, item: Any, key: Hashable = None) -> None:
        """Send a message. With a `key` it replaces an unsent message with the same key, in its position: for values
        such as a total, where only the latest one matters."""
        with self._changed:
            name: Hashable = object() if key is None else (kind, key)
            while name not in self._waiting and self._added - self._acknowledged >= self._max:
                if self._has_left():
                    return
                self._changed.wait(1.0)
            if name not in self._waiting:
                self._added += 1
            number, _ = self._waiting.get(name, (self._added, None))
            self._waiting[name] = (number, (kind, item))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stead-registrar", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, seconds: float = math.inf) -> None:
        """Wait until all earlier messages are acknowledged, for at most this many seconds."""
        end = time.monotonic() + seconds
        with self._changed:
            last = self._added
            while self._acknowledged < last and not self._has_left() and time.monotonic() < end:
                self._changed.wait(min(1.0, seconds))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                batch = [self._waiting.pop(key) for key in list(self._waiting)[:BATCH_MAX]]
            if not self._deliver([message for _, message in batch]):
                return
            with self._changed:
                self._acknowledged = batch[-1][0]
                self._changed.notify_all()

    def _deliver(self, batch: list[Message]) -> bool:
        """Returns False if this process has left the cluster; its work has then ended too."""
        pause = RETRY_S
        while not self._has_left():
            try:
                self._send(batch)
            except Unready as error:
                pause = self._wait(pause, len(batch), error)
                continue
            except Invalid as error:
                if len(batch) > 1:  # only one may be wrong: the others are delivered
                    return all(self._deliver([each]) for each in batch)
                log.warning("stead's controller refused a message of this program: %s", error)
            except SystemExit:  # ends calls in progress when a process exits, as Ray does
                return False
            except Exception as error:
                if self._has_left():
                    return False
                pause = self._wait(pause, len(batch), error)
                continue
            return True
        return False

    @staticmethod
    def _wait(pause: float, count: int, error: Exception) -> float:
        """Wait, and return the next pause."""
        level = logging.WARNING if pause >= RETRY_MAX_S else logging.DEBUG
        why = f" ({error})" if isinstance(error, Unready) else ""
        log.log(level, "stead's controller has not acknowledged %d messages%s; retrying", count, why)
        log.debug("the error was", exc_info=error)
        time.sleep(pause * random.uniform(0.75, 1.25))
        return min(2 * pause, RETRY_MAX_S)
