"""Messages to the controller that nobody waits for: each is kept until the controller has acknowledged it.

Rule: delivered at least once and in order, or the process has left the cluster. A message goes at once; those that are
added while a call is under way go together in the next one, so a burst is a few calls. At most `unacknowledged_max`
messages are kept: beyond that, adding one waits. Whoever receives messages must accept the same one twice.
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
"""Messages in one call: more would keep the controller from its other callers."""

RETRY_S, RETRY_MAX_S = 0.1, 5.0

Message = tuple[str, Any]
"""Its kind, which is a method of the controller that takes a list of such items, and one item."""

log = logging.getLogger(__name__)


class Registrar:
    """`send` delivers messages and returns when they are acknowledged. `Invalid` means that the controller refused
    them, so they are dropped and logged; after `Unready` or any other error they are sent again, later and later."""

    def __init__(
        self,
        send: Callable[[list[Message]], None],
        is_over: Callable[[], bool],
        unacknowledged_max: int = UNACKNOWLEDGED_MAX,
    ) -> None:
        self._send, self._is_over, self._max = send, is_over, unacknowledged_max
        self._changed = threading.Condition()
        self._waiting: dict[Hashable, tuple[int, Message]] = {}
        self._added = self._acknowledged = 0  # numbers of messages
        self._thread: threading.Thread | None = None

    def add(self, kind: str, item: Any, key: Hashable = None) -> None:
        """Send a message. One with a `key` replaces a message with the same key that was not sent yet, at its place:
        for what is said as a whole again and again, such as a total."""
        with self._changed:
            name: Hashable = object() if key is None else (kind, key)
            while name not in self._waiting and self._added - self._acknowledged >= self._max:
                if self._is_over():
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
        """Wait until all that was added before is acknowledged, or so long."""
        end = time.monotonic() + seconds
        with self._changed:
            last = self._added
            while self._acknowledged < last and not self._is_over() and time.monotonic() < end:
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
        """False: this process has left the cluster, and what it submitted went with it."""
        pause = RETRY_S
        while not self._is_over():
            try:
                self._send(batch)
            except Unready as error:
                pause = self._wait(pause, len(batch), error)
                continue
            except Invalid as error:
                if len(batch) > 1:  # one of them; the others are to arrive
                    return all(self._deliver([each]) for each in batch)
                log.warning("stead's controller refused what this program told it: %s", error)
            except SystemExit:  # Ray's way to end calls that are under way when a process leaves
                return False
            except Exception as error:
                if self._is_over():
                    return False
                pause = self._wait(pause, len(batch), error)
                continue
            return True
        return False

    @staticmethod
    def _wait(pause: float, count: int, error: Exception) -> float:
        """Wait, and return how long to wait the next time."""
        level = logging.WARNING if pause >= RETRY_MAX_S else logging.DEBUG
        why = f" ({error})" if isinstance(error, Unready) else ""
        log.log(level, "stead's controller cannot be told of %d pieces of work%s; trying again", count, why)
        log.debug("the error was", exc_info=error)
        time.sleep(pause * random.uniform(0.75, 1.25))
        return min(2 * pause, RETRY_MAX_S)
