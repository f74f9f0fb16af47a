"""What happens to submitted work: its states, what it prints, and what every cluster must offer for that.

Rule: the same values for every cluster. A cluster reports each state of a piece once, in order, and the last one is
final.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class State(StrEnum):
    """Where a piece of work is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return self in (State.SUCCEEDED, State.FAILED)


@dataclass(frozen=True, slots=True)
class Update:
    """A piece of work has a new state, or a new reason to be pending.

    Attributes:
        id: The id of the piece.
        state: Its state.
        node: Where it runs or ran.
        reason: Why it is pending, or why it failed.
        code: The exit status of its command, once it has ended.
        at: In a simulation, the time in seconds.
    """

    id: str
    state: State
    node: str = ""
    reason: str = ""
    code: int | None = None
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a piece of work printed, or, without an id, something to say about following it."""

    id: str
    text: str


class Target(Protocol):
    """A cluster that work is submitted to. Every method raises `Invalid` in one sentence."""

    def check(self) -> Sequence[str]:
        """Check that the cluster can do all of it, without submitting anything. Returns the ids of the pieces."""

    def submit(self) -> Sequence[str]:
        """Submit everything or nothing. Returns the ids of the pieces in the cluster."""

    def follow(self) -> Iterator[Update | Line]:
        """What happens until all pieces have ended. It waits for each next item."""

    def cancel(self) -> None:
        """Stop what was submitted, and remove what has not started."""

    def close(self) -> None:
        """Give up connections; the work continues."""
