"""Polls a condition until it holds or a timeout passes. Also the types of the fixtures."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Event
from typing import Any, TypeVar

from stead.ray.local.local_cluster import LocalCluster

ClusterOf = Callable[..., LocalCluster]
Connected = Callable[..., AbstractContextManager[Any]]

T = TypeVar("T")


def wait_for(condition: Callable[[], T], seconds: float = 60.0, what: str = "") -> T:
    """The first true value of `condition`; fails after `seconds` with its last value."""
    until = time.monotonic() + seconds
    pause = Event()
    while not (answer := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"{what or 'it'} did not happen within {seconds} s; the last answer was {answer!r}")
        pause.wait(0.05)
    return answer
