"""What the status of a pod says about the piece that it runs.

Rule: only the pod is read; nothing is kept and nothing is called.
"""

from __future__ import annotations

from stead.kubernetes.fields import Fields, fields_in, number_in, parts_in, text_in
from stead.specs.following import State, Update

STARTING = "starting"
ORDINARY = ("Error", "Completed", "")
"""Why a container ended, where its exit status says everything."""


def update_of(id: str, pod: Fields) -> Update:
    """The state of a pod, as the piece with this id."""
    status, node = fields_in(pod, "status"), text_in(fields_in(pod, "spec"), "nodeName")
    match text_in(status, "phase"):
        case "Succeeded":
            return Update(id, State.SUCCEEDED, node, code=0)
        case "Failed":
            return _failed(id, status, node)
        case "Running":
            return Update(id, State.RUNNING, node)
    if node:
        return Update(id, State.PENDING, node, f"{_container_waits(status) or STARTING} on {node}")
    return Update(id, State.PENDING, reason=_why_pending(pod, status))


def is_scheduled(pod: Fields) -> bool:
    return bool(text_in(fields_in(pod, "spec"), "nodeName"))


def has_logs(pod: Fields) -> bool:
    """Whether the container has started, so that its node has a log of it."""
    return is_scheduled(pod) and text_in(fields_in(pod, "status"), "phase") in ("Running", "Succeeded", "Failed")


def why_deleted(id: str, pod: Fields) -> Update:
    """The state of a pod that is gone: how it ended, or that it was deleted before."""
    last = update_of(id, pod)
    if last.state.is_final:
        return last
    disrupted = _condition(fields_in(pod, "status"), "DisruptionTarget")
    reason = text_in(disrupted, "message") if disrupted.get("status") == "True" else ""
    return Update(id, State.FAILED, last.node, f"its pod was deleted: {reason}" if reason else "its pod was deleted")


def _failed(id: str, status: Fields, node: str) -> Update:
    ended = _terminated(status)
    code = number_in(ended, "exitCode", 1) if ended else None
    reason, message = text_in(status, "reason"), text_in(status, "message")
    if reason or message:
        return Update(id, State.FAILED, node, ": ".join(filter(None, (reason, message))), code)
    why = text_in(ended, "reason")
    return Update(id, State.FAILED, node, "" if why in ORDINARY and ended else why or "no container says why", code)


def _terminated(status: Fields) -> Fields:
    for container in parts_in(status, "containerStatuses"):
        if found := fields_in(fields_in(container, "state"), "terminated"):
            return found
    return {}


def _container_waits(status: Fields) -> str:
    """Why the container does not start, such as an image that cannot be pulled."""
    for container in parts_in(status, "containerStatuses"):
        waiting = fields_in(fields_in(container, "state"), "waiting")
        reason = text_in(waiting, "reason")
        if reason and reason != "ContainerCreating":
            return ": ".join(filter(None, (reason, text_in(waiting, "message"))))
    return ""


def _why_pending(pod: Fields, status: Fields) -> str:
    condition = _condition(status, "PodScheduled")
    if condition.get("status") == "False":
        return text_in(condition, "message") or text_in(condition, "reason")
    gates = [text_in(gate, "name") for gate in parts_in(fields_in(pod, "spec"), "schedulingGates")]
    return f"scheduling gates: {', '.join(gates)}" if gates else ""


def _condition(status: Fields, kind: str) -> Fields:
    return next((each for each in parts_in(status, "conditions") if each.get("type") == kind), {})
