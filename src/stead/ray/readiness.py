"""Whether the controller can answer; if it cannot, calls get one sentence.

That is so until it has opened its files and gone around once, and while Ray's control store is away.

Rule: the actor's constructor never raises, because Ray then takes the actor for dead for good. Whatever keeps the
controller from starting (a full disk, a damaged file, a first round that fails) is told to whoever calls, and the
controller tries again by itself.
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
"""How long a call waits for trouble to pass before it is told of it."""

T = TypeVar("T")


class Readiness:
    def __init__(self) -> None:
        self._ready, self._told = threading.Event(), threading.Event()
        self._trouble: Unready | None = None
        self._opening: threading.Thread | None = None

    def opening(self) -> None:
        """This thread brings the controller up; its own calls are not held up."""
        self._opening = threading.current_thread()

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    def ready(self) -> None:
        self._ready.set()
        self._told.set()

    def failed(self, error: BaseException) -> None:
        """It could not start this time."""
        if isinstance(error, Unwritable):
            self._trouble = Unwritable(f"the controller cannot write its files now: {error}; it tries again by itself")
        else:
            said = f"{error}" if isinstance(error, Unready) else f"{type(error).__name__}: {error}"
            self._trouble = Unready(f"the controller cannot start now: {said}; it tries again by itself")
        self._told.set()

    def wait(self) -> None:
        """Until it is ready, or it is known why it is not."""
        self._told.wait()

    def check(self) -> None:
        """Raise what keeps it from answering, unless that passes."""
        if not self._ready.is_set() and threading.current_thread() is not self._opening:
            self._told.wait()
            if not self._ready.wait(PASSES_S):
                assert self._trouble is not None, "it was told"
                raise Unready.__new__(type(self._trouble), *self._trouble.args)


def when_ready(kind: type[T]) -> type[T]:
    """The class, of which every public method first looks at the object's `readiness`."""
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
        except (grpc.RpcError, ray.exceptions.RpcError) as error:  # the first cannot even be sent to the caller
            code = error.code().name if isinstance(error, grpc.Call) else error
            raise Unready(f"Ray's control store does not answer now ({code}); try again") from None

    return checked
