"""The end of a program: its background threads leave Ray alone before Ray shuts down.

Rule: Ray ends the whole process, with an error, when a thread calls it after it was shut down. So at the exit of a
program calls that are under way get a moment, and no new one begins.
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
        """Around a call of Ray's; when the program leaves, ends the thread as Ray itself does."""
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
        """Let no call begin any more, and wait for those that are under way; False if some are not over by then."""
        with self._changed:
            self._is_begun = True
            return self._changed.wait_for(lambda: not self._calls, seconds)
