"""The names of stead's own objects in Ray: resources, placement groups, actors.

Rule: only this module defines, creates and recognises these names. An object with such a name belongs to stead and is
not shown in any list of nodes, work or groups.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

# -- resources

PREFIX = "stead."
"""Prefix of all of stead's resource names."""

_EVERYWHERE = "node:__internal_implicit_resource_"
"""Prefix of the resources of which Ray has 1.0 on every node."""

IMPLICIT = f"{_EVERYWHERE}{PREFIX}"
"""Prefix of those of them that are stead's."""

FIXED = f"{IMPLICIT}fixed"
"""Held by a task with a hard affinity to its node. On every node."""

_LABELLED = f"{IMPLICIT}labelled/"
"""Prefix of the names that contain label selectors. On every node."""

_PART_LENGTH = 1_000
"""How much of a long selector one name contains: Ray matches names with regular expressions, which overflow the stack
on very long text."""

ONCE = f"{IMPLICIT}once"
"""Held by a task without retries: once it has started, it must not run again."""

TIMED = f"{PREFIX}timed"
"""Held by work that reports when it starts, because it has a deadline."""

TICKET = f"{PREFIX}t/"
"""Prefix of tickets: passes for one piece of work each (see `stead.ray.control.tickets`)."""

SLOT = f"{PREFIX}s/"
"""Prefix of slots: one name per shape of tasks that the engine places (see `stead.ray.control.slots`)."""

NEVER = f"{PREFIX}never"
"""A resource that no node ever has."""


def is_own_name(resource: str) -> bool:
    """Whether a resource is internal: stead's, or one that Ray has on every node."""
    return resource.startswith((PREFIX, _EVERYWHERE))


def labelled_names(selectors: Sequence[Mapping[str, str]]) -> list[str]:
    """Held by a task whose labels Ray matches itself. The names contain its label selector and then its fallbacks,
    because a worker sees only what its task holds: Ray lists a task about a second late, or never. Equal selectors have
    equal names."""
    text = json.dumps([dict(each) for each in selectors], separators=(",", ":"), sort_keys=True)
    # With the end mark, no part looks like a resource of a placement group.
    return [
        f"{_LABELLED}{start:06}/{text[start : start + _PART_LENGTH]}/" for start in range(0, len(text), _PART_LENGTH)
    ]


def read_labelled(names: Iterable[str]) -> list[dict[str, str]]:
    """The label selector and the fallbacks in the names of what a task holds; empty if there are none."""
    parts = sorted(name for name in names if name.startswith(_LABELLED))
    text = "".join(part[len(_LABELLED) + len("000000/") : -1] for part in parts)
    found: list[dict[str, str]] = json.loads(text) if text else []
    return found


def slot_name(key: str, generation: int) -> str:
    return f"{SLOT}{key}/{generation}"


def read_slot(name: str) -> tuple[str, int] | None:
    """The shape and the generation in the name of a slot; None for every other resource."""
    key, _, generation = name[len(SLOT) :].partition("/")
    return (key, int(generation)) if name.startswith(SLOT) and generation.isdigit() else None


def pass_name(key: str, generation: int) -> str:
    return f"{PREFIX}{key}.{generation}"


def soft_name(key: str) -> str:
    """A resource on the nodes that allow the pass. It is never plugged: without it a node is infeasible, so Ray sends
    actors that only prefer the node to another one."""
    return f"{PREFIX}{key}.soft"


def read_soft(name: str) -> str | None:
    """The key of the pass in its `soft_name`; None for every other resource."""
    return name[len(PREFIX) : -len(".soft")] if name.startswith(PREFIX) and name.endswith(".soft") else None


@lru_cache(maxsize=16_384)
def read_name(name: str) -> tuple[str, int] | None:
    """The key and the generation in a pass's name; None for every other resource."""
    if not name.startswith(PREFIX) or name == TIMED:
        return None
    key, _, generation = name[len(PREFIX) :].rpartition(".")
    return (key, int(generation)) if key and generation.isdigit() else None


# -- placement groups

PLUGS, TICKET_PLUGS, ANCHORS, WANTED = "stead-plug/", "stead-ticket/", "stead-anchor/", "stead-wanted/"
KEPT = "stead-kept/"
"""Prefixes of stead's placement groups, by purpose."""


def is_own_group(name: str) -> bool:
    return name.startswith((PLUGS, TICKET_PLUGS, ANCHORS, WANTED, KEPT))


# -- actors

NAMESPACE = "stead"
"""The namespace of stead's actors. No other actor uses it."""

CONTROLLER = "stead-controller"


def is_own_actor(namespace: str) -> bool:
    """Whether an actor of this namespace is stead's."""
    return namespace == NAMESPACE
