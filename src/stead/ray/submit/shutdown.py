"""Stops the background threads of a program from calling Ray before Ray shuts down.

Rule: Ray kills the whole process, with an error, if a thread calls it after shutdown. So when a program exits, calls in
progress get a short time to finish, and no new call starts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Leaving:
    """Counts the calls of background threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls = 0
        self._is_begun = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Wrap a call to Ray. When the program is exiting, end the thread as Ray itself does."""
        with self._changed:
            if self._is_begun:
                raise SystemExit
            self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def begin(self, seconds: float) -> bool:
        """Let no new call start, and wait for those in progress. Returns False if some are still running after
        `seconds`."""
        with self._changed:
            self._is_begun = True
            return self._changed.wait_for(lambda: not self._calls, seconds)
