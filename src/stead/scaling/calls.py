"""Calls that may be slow or hang, each in a thread of its own.

Rule: nobody waits for a call longer than it wants to, and no result is lost: it is delivered when it comes. There is
one call with a key at a time, and a limited number of calls: those that hang count, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

CALLS_MAX = 32


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended: its result, or its error."""

    key: Hashable
    result: Any = None
    error: Exception | None = None


class Calls:
    def __init__(self, most: int = CALLS_MAX) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._begun: dict[Hashable, float] = {}
        self._ended: dict[Hashable, Outcome] = {}

    def start(self, key: Hashable, call: Callable[..., Any], *given: Any) -> bool:
        """Start a call; False if one with this key is not finished, or if there are too many."""
        with self._changed:
            if key in self._begun or len(self._begun) >= self._most:
                return False
            self._begun[key] = time.monotonic()
            self._ended.pop(key, None)
        threading.Thread(target=self._run, args=(key, call, given), name=f"stead-{key}", daemon=True).start()
        return True

    def _run(self, key: Hashable, call: Callable[..., Any], given: tuple[Any, ...]) -> None:
        try:
            outcome = Outcome(key, call(*given))
        except Exception as error:
            outcome = Outcome(key, error=error)
        with self._changed:
            del self._begun[key]
            self._ended[key] = outcome
            self._changed.notify_all()

    def taken(self) -> list[Outcome]:
        """The outcomes of all calls that have ended since the last time."""
        with self._changed:
            found, self._ended = list(self._ended.values()), {}
            return found

    def wait(self, key: Hashable, seconds: float) -> Outcome | None:
        """The outcome of a call; None if it does not end in time, or was never started."""
        with self._changed:
            self._changed.wait_for(lambda: key not in self._begun, seconds)
            return self._ended.pop(key, None)

    def wait_for_all(self, seconds: float) -> bool:
        """Wait until no call is under way; False if some still are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._begun, seconds)

    def ages(self) -> dict[Hashable, float]:
        """How long each call that has not ended takes, in seconds."""
        with self._changed:
            now = time.monotonic()
            return {key: now - begun for key, begun in self._begun.items()}
