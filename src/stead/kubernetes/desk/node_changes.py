"""Changes nodes through the API server, under the rights of the caller.

Rule: a node is patched only in the version that was read; if somebody else changed it meanwhile, it is read again. What
the change does not name stays as it is, also what stead does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from stead.errors import Invalid, Unsupported
from stead.kubernetes.api.http import ApiClient, ApiError, error_of
from stead.kubernetes.api_objects import ANYTHING, ENCODER
from stead.kubernetes.desk.reading import missing_right
from stead.kubernetes.fields import Fields, fields_in, parts_in
from stead.kubernetes.nodes import taint_of
from stead.kubernetes.watches import NODES
from stead.language.arguments import effect_text
from stead.language.taints import Taint
from stead.operate.changes import Absent, NodeChange
from stead.operate.desk import Unanswered

TRIES_MAX = 10
MERGE = "application/merge-patch+json"
REFUSED = (400, 422)


def check(change: NodeChange) -> None:
    """Refuse what Kubernetes cannot do."""
    if change.for_s is not None:
        removed = " ".join(f"{taint.key}-" for taint in change.taints) or "KEY-"
        raise Unsupported(f"a taint of Kubernetes has no end; set it without --for, and remove it later: {removed}")
    if change.until_job:
        raise Unsupported("a taint of Kubernetes cannot end with a job; set it without --until-job")
    if change.owner:
        raise Unsupported("a taint of Kubernetes has no owner; set it without --owner, for example team=blue")


async def change_node(client: ApiClient, change: NodeChange) -> bytes:
    """Make the change, and return the node as it is now."""
    path = f"{NODES}/{quote(change.node, safe='')}"
    for _ in range(TRIES_MAX):
        found = await client.request("GET", path)
        if found.status != 200:
            raise _refusal(error_of(found), "get", change.node)
        patch = patch_of(ANYTHING.decode(found.body), change)
        if not patch:
            return bytes(found.body)
        changed = await client.request("PATCH", path, body=ENCODER.encode(patch), content_type=MERGE)
        if changed.status == 200:
            return bytes(changed.body)
        if changed.status != 409:
            raise _refusal(error_of(changed), "patch", change.node)
    raise Unanswered(f"node {change.node} is changed by others all the time; try again")


def patch_of(node: Fields, change: NodeChange) -> dict[str, Any]:
    """The JSON merge patch that changes this version of a node; empty if there is nothing to change."""
    metadata, spec = fields_in(node, "metadata"), fields_in(node, "spec")
    labels = _labels(fields_in(metadata, "labels"), change)
    taints = _taints(spec, change)
    changed: dict[str, Any] = {}
    if taints is not None:
        changed["taints"] = taints or None
    if change.draining is not None and change.draining != bool(spec.get("unschedulable")):
        changed["unschedulable"] = change.draining or None
    if not labels and not changed:
        return {}
    version = {"resourceVersion": metadata.get("resourceVersion") or ""}
    return {"metadata": {**version, **({"labels": labels} if labels else {})}, **({"spec": changed} if changed else {})}


def _labels(before: Mapping[str, Any], change: NodeChange) -> dict[str, str | None]:
    found: dict[str, str | None] = {key: value for key, value in change.labels.items() if before.get(key) != value}
    for key in change.unlabels:
        if key in before and change.unlabel_values.get(key, before[key]) == before[key]:
            found[key] = None
    return found


def _taints(spec: Fields, change: NodeChange) -> list[Fields] | None:
    """All taints of the node after the change; None if they stay as they are."""
    before = parts_in(spec, "taints")
    new = {(taint.key, taint.effect): taint for taint in change.taints}
    after = []
    for written in before:
        taint = taint_of(written)
        if any(removal.matches(taint) for removal in change.untaints):
            continue
        if new.get((taint.key, taint.effect), taint) == taint:
            new.pop((taint.key, taint.effect), None)
            after.append(written)
    after += map(_written, new.values())
    return None if after == before else after


def _written(taint: Taint) -> Fields:
    return {"key": taint.key, **({"value": taint.value} if taint.value else {}), "effect": effect_text(taint.effect)}


def _refusal(error: ApiError, verb: str, node: str) -> Exception:
    if error.status == 403:
        return Invalid(missing_right(verb, "nodes", error.message))
    if error.status == 404:
        return Absent(f"node {node} has left the cluster")
    if error.status in REFUSED:
        return Invalid(f"the API server refuses this change of node {node}: {error.message}")
    return error
