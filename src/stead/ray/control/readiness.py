"""Whether the controller can answer. If it cannot, calls raise an error with one sentence.

It cannot until it has opened its files and completed one round, and while Ray's control store is away.

Rule: the actor's constructor never raises, because Ray would then consider the actor dead for good. If something stops
the controller from starting (a full disk, a damaged file, a failed first round), callers get the reason, and the
controller retries automatically.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from inspect import isfunction
from typing import Any, TypeVar

import grpc  # type: ignore[import-untyped]
import ray

from stead.errors import Unready, Unwritable

PASSES_S = 2.0
"""How long a call waits for a problem to pass before it raises."""

T = TypeVar("T")


class Readiness:
    def __init__(self) -> None:
        self._ready, self._is_known = threading.Event(), threading.Event()
        self._trouble: Unready | None = None
        self._opening: threading.Thread | None = None

    def opening(self) -> None:
        """This thread starts the controller; its own calls do not wait."""
        self._opening = threading.current_thread()

    def ready(self) -> None:
        self._ready.set()
        self._is_known.set()

    def failed(self, error: BaseException) -> None:
        """This attempt to start failed."""
        if isinstance(error, Unwritable):
            self._trouble = Unwritable(f"the controller cannot write its files now: {error}; it retries automatically")
        else:
            reason = f"{error}" if isinstance(error, Unready) else f"{type(error).__name__}: {error}"
            self._trouble = Unready(f"the controller cannot start now: {reason}; it retries automatically")
        self._is_known.set()

    def wait(self) -> None:
        """Wait until the controller is ready, or the reason is known why it is not."""
        self._is_known.wait()

    def check(self) -> None:
        """Raise the problem that stops the controller from answering, unless it passes in time."""
        if not self._ready.is_set() and threading.current_thread() is not self._opening:
            self._is_known.wait()
            if not self._ready.wait(PASSES_S):
                assert self._trouble is not None, "set before the event"
                raise Unready.__new__(type(self._trouble), *self._trouble.args)


def when_ready(kind: type[T]) -> type[T]:
    """Make every public method of the class check the object's `readiness` first."""
    for name in dir(kind):
        method = getattr(kind, name)
        if not name.startswith("_") and isfunction(method):
            setattr(kind, name, _checked(method))
    return kind


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def checked(self: Any, *given: Any, **named: Any) -> Any:
        self.readiness.check()
        try:
            return method(self, *given, **named)
        except (grpc.RpcError, ray.exceptions.RpcError) as error:  # the first one cannot be pickled
            code = error.code().name if isinstance(error, grpc.Call) else error
            raise Unready(f"Ray's control store does not answer now ({code}); try again") from None

    return checked
