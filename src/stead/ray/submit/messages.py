"""The messages about work that submitting processes send to the controller.

Rule: plain values, sent and stored unchanged. The module is small, because workers import it only when they need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stead.language.asks import Ask, Choice, Group
from stead.language.labels import Labels, Selector
from stead.language.taints import TOLERATE_ALL
from stead.ray.submit.compile import Pass

NOWHERE = (Choice(selector=Selector(())),)
"""For work that the engine follows but does not place. Ray places it, so for the engine no node fits it."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Work that has to start before its deadline. `refused` is the explanation if it did not. The owner sends only a
    duration (`within_s`); the ask's deadline is on the controller's clock, from when the message arrives."""

    id: str
    kind: str  # "task" or "actor"
    owner: str  # a detached actor or a job; the work ends with it
    ask: Ask
    refused: str | None = None
    within_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Registered:
    """Work that the engine places. `ask` is what it needs to start, `running` what it then holds. `name` is its ticket,
    or empty if Ray places the work and the engine only follows it. With `within_s` it must be placed before a deadline,
    on the controller's clock, from when the message arrives."""

    id: str
    kind: str  # "task" or "actor"
    name: str
    job: str
    ask: Ask
    running: Ask
    within_s: float | None = None


@dataclass(frozen=True, slots=True)
class SlotShape:
    """What equal tasks share. `ask` is an example of such a task, with `key` as its id."""

    key: str
    ask: Ask


@dataclass(frozen=True, slots=True)
class GroupAsked:
    """A placement group that the engine places. For each bundle of each alternative it has the pass and the labels that
    Ray needs. The group ends with `actor`, the detached actor that created it directly or indirectly, or else with its
    job."""

    group: Group
    passes: tuple[tuple[Pass, ...], ...]
    natives: tuple[tuple[Labels, ...], ...]
    name: str
    job: str
    actor: str
    detached: bool


@dataclass(frozen=True, slots=True)
class Recalled:
    """What the process that calls `why` knows about the work, and Ray's tables may not: what the work asked for
    (`resources` are Ray's, with stead's names), its placement group, and whether it has ended."""

    ask: Ask | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    group: str = ""
    has_ended: bool = False


def followed_only(ask: Ask) -> Ask:
    """The same ask for an engine that does not place it: with its labels, without amounts. Ray's tables show its
    use."""
    return replace(ask, choices=NOWHERE, affinities=(), spreads=(), prefers=(), tolerations=(TOLERATE_ALL,))
