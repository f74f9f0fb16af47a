"""What the pod of a worker says: how far it is, and why it does not start.

Rule: pure, and only about one pod. What cannot get better by itself is a failure; what Kubernetes tries again is not.
"""

from __future__ import annotations

from stead.errors import Invalid, sentence
from stead.kubernetes.fields import Fields, fields_in, parts_in, text_in
from stead.language.times import parse_moment
from stead.planner.instances import InstanceState

ENDED = frozenset({"Failed", "Succeeded"})
"""Phases of a pod that never runs again. KubeRay deletes it and creates another one."""

HOPELESS = frozenset(
    "ImagePullBackOff ErrImageNeverPull InvalidImageName CreateContainerConfigError CreateContainerError "
    "CrashLoopBackOff".split()
)
"""Reasons of a waiting container for which somebody must change something. `ErrImagePull` is not among them: it is the
first failure of a pull, which the kubelet repeats."""

UNSCHEDULABLE_S = 300.0
"""How long a pod may have no node. Before that, an autoscaler of the Kubernetes cluster may be adding one."""


def name_of(pod: Fields) -> str:
    """Its name."""
    return text_in(fields_in(pod, "metadata"), "name")


def labels_of(pod: Fields) -> Fields:
    """Its labels, as Kubernetes has them."""
    return fields_in(fields_in(pod, "metadata"), "labels")


def created_at(pod: Fields) -> float:
    """When it was created, in seconds since 1970; 0 if it does not say."""
    return _moment(text_in(fields_in(pod, "metadata"), "creationTimestamp"))


def is_being_deleted(pod: Fields) -> bool:
    """Whether somebody has deleted it; it ends soon."""
    return fields_in(pod, "metadata").get("deletionTimestamp") is not None


def has_ended(pod: Fields) -> bool:
    """Whether it will never run again."""
    return fields_in(pod, "status").get("phase") in ENDED


def ip_of(pod: Fields) -> str:
    """Its address, which is also that of its Ray node; empty as long as it has none."""
    return text_in(fields_in(pod, "status"), "podIP")


def state_of(pod: Fields, now: float) -> tuple[InstanceState, str]:
    """How far a pod is that nobody has deleted, and what is in its way."""
    status = fields_in(pod, "status")
    phase = status.get("phase") or "Pending"
    if phase in ENDED:
        return InstanceState.FAILED, _why_ended(name_of(pod), status)
    if (problem := _waiting(name_of(pod), status)) is not None:
        state, why = problem
        return (state, why) if phase == "Pending" or state == InstanceState.FAILED else (InstanceState.RUNNING, why)
    if phase != "Pending":
        return InstanceState.RUNNING, ""
    return _unscheduled(name_of(pod), status, now) or (InstanceState.STARTING, "")


def is_stuck(pod: Fields, now: float) -> bool:
    """Whether no Kubernetes node has had room for it for too long."""
    status = fields_in(pod, "status")
    found = _unscheduled(name_of(pod), status, now) if status.get("phase") == "Pending" else None
    return found is not None and found[0] == InstanceState.FAILED


def _why_ended(name: str, status: Fields) -> str:
    for container in (*parts_in(status, "initContainerStatuses"), *parts_in(status, "containerStatuses")):
        ended = fields_in(fields_in(container, "state"), "terminated")
        if ended.get("exitCode"):
            reason = text_in(ended, "reason") or "Error"
            return (
                f"the container {text_in(container, 'name')!r} of pod {name} ended with {ended['exitCode']} ({reason})"
            )
    reason, message = text_in(status, "reason"), text_in(status, "message")
    why = ": ".join(filter(None, (reason, message)))
    return sentence(f"pod {name} ended ({why})" if why else f"pod {name} ended")


def _waiting(name: str, status: Fields) -> tuple[InstanceState, str] | None:
    """The first container that waits for a reason that people should know."""
    for container in (*parts_in(status, "initContainerStatuses"), *parts_in(status, "containerStatuses")):
        waiting = fields_in(fields_in(container, "state"), "waiting")
        reason = text_in(waiting, "reason")
        if reason in HOPELESS or reason == "ErrImagePull":
            message = text_in(waiting, "message")
            why = f"the container {text_in(container, 'name')!r} of pod {name} cannot start: {reason}"
            state = InstanceState.FAILED if reason in HOPELESS else InstanceState.STARTING
            return state, sentence(f"{why} ({message})" if message else why)
    return None


def _unscheduled(name: str, status: Fields, now: float) -> tuple[InstanceState, str] | None:
    """What the scheduler of the Kubernetes cluster says about a pod that fits nowhere."""
    for condition in parts_in(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            waits_s = now - _moment(text_in(condition, "lastTransitionTime") or "")
            state = InstanceState.FAILED if waits_s >= UNSCHEDULABLE_S else InstanceState.STARTING
            message = text_in(condition, "message") or "no reason was given"
            return state, sentence(f"no Kubernetes node has room for pod {name}: {message}")
    return None


def _moment(written: str) -> float:
    try:
        return parse_moment(written)
    except Invalid:
        return 0.0
