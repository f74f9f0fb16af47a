"""Cancels long work when its client has disconnected.

Rule: long work calls `still_wanted` between its parts and stops there if its client has disconnected. A service sets
the check for one request (`stop_when`); elsewhere the check does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from stead.errors import Invalid


class ClientDisconnected(Invalid):
    """The client has closed its connection, so the answer was not computed."""


_has_left: ContextVar[Callable[[], bool] | None] = ContextVar("has_left", default=None)


def stop_when(has_left: Callable[[], bool]) -> None:
    """From here on, in this context and in threads that run in it, work stops as soon as `has_left` is true."""
    _has_left.set(has_left)


def still_wanted() -> None:
    has_left = _has_left.get()
    if has_left is not None and has_left():
        raise ClientDisconnected("the client has disconnected")
