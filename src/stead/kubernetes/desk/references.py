"""How people name pods: ``pod/web``, ``team/web``, ``pod/team/web`` or ``web``.

Rule: the id of a pod is ``NAMESPACE/NAME``, everywhere. A name without a namespace is in the given one.
"""

from __future__ import annotations

KINDS = ("pod", "pods", "po")


def is_pod(given: str) -> bool:
    """Whether this names a pod as kubectl does: ``pod/web``."""
    kind, slash, name = given.partition("/")
    return kind in KINDS and bool(slash and name)


def pod_id(given: str, namespace: str) -> str:
    """The id of a pod."""
    name = given.partition("/")[2] if is_pod(given) else given
    return name if "/" in name else f"{namespace}/{name}"


def reference(id: str, namespace: str = "") -> str:
    """``pod/web`` for people, with the namespace if it is not this one."""
    within, _, name = id.rpartition("/")
    return f"pod/{name}" if within == namespace else f"pod/{within}/{name}"
