"""The three ways to patch an object: JSON merge, strategic merge and JSON patch.

Rule: a patch returns a new object and leaves the old one as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from tests.kubernetes.servers.fake_status import Failure, bad_request

T = TypeVar("T")

MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumes": "name",
}
"""The lists of objects that a strategic merge merges, and by which field. Every other list is replaced; also taints
and tolerations."""

MERGED_SETS = frozenset({"finalizers"})
"""The lists of strings that it merges."""


def apply_patch(content_type: str, old: dict[str, Any], change: Any) -> dict[str, Any]:
    """The patched object. Raises `Failure` for a patch that does not apply."""
    name = content_type.partition(";")[0].strip()
    if name == "application/json-patch+json":
        return _apply_operations(old, change)
    if name not in {"application/merge-patch+json", "application/strategic-merge-patch+json"}:
        raise Failure(415, "the body of the request was in an unknown format - accepted media types include: json")
    if not isinstance(change, dict):
        raise bad_request("json: cannot unmarshal the patch into an object")
    return _merge(old, change) if name == "application/merge-patch+json" else _merge_strategically(old, change)


def _merge(old: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            before = merged.get(key)
            merged[key] = _merge(before if isinstance(before, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def _merge_strategically(old: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    if change.get("$patch") == "replace":
        return {key: value for key, value in change.items() if key != "$patch"}
    if change.get("$patch") == "delete":
        return {}
    merged = dict(old)
    for key, value in change.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            merged[field] = [item for item in merged.get(field) or () if item not in value]
        elif key.startswith("$"):
            continue  # $setElementOrder and $retainKeys: order and unions do not matter to the tests
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            before = merged.get(key)
            merged[key] = _merge_strategically(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, list) and key in MERGE_KEYS:
            merged[key] = _merge_items(merged.get(key) or [], value, MERGE_KEYS[key])
        elif isinstance(value, list) and key in MERGED_SETS:
            merged[key] = _interleaved(merged.get(key) or [], list(dict.fromkeys(value)))
        else:
            merged[key] = value
    return merged


def _merge_items(old: Sequence[dict[str, Any]], change: Sequence[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    if any(item.get("$patch") == "replace" for item in change):
        return [item for item in change if "$patch" not in item]
    if without := next((item for item in change if by not in item), None):
        raise bad_request(f"map: {without} does not contain declared merge key: {by}")
    before = {item[by]: item for item in old}
    deleted = {item[by] for item in change if item.get("$patch") == "delete"}
    merged = {item[by]: _merge_strategically(before.get(item[by], {}), item) for item in change}
    kept = [key for key in before if key not in deleted]
    order = _interleaved(kept, [key for key in merged if key not in deleted])
    return [merged[key] if key in merged else before[key] for key in order]


def _interleaved(old: Sequence[T], patched: Sequence[T]) -> list[T]:
    """The order of the real server: a new item comes before the old items that no item of the patch precedes."""
    left, right = [item for item in old if item not in patched], list(patched)
    places = {item: place for place, item in enumerate(old)}
    order: list[T] = []
    while left and right:
        first = right[0] in places and places[left[0]] < places[right[0]]
        order.append((left if first else right).pop(0))
    return [*order, *left, *right]


def _apply_operations(old: dict[str, Any], operations: Any) -> dict[str, Any]:
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    root: dict[str, Any] = {"": old}
    for operation in operations:
        path = [part.replace("~1", "/").replace("~0", "~") for part in str(operation.get("path", "")).split("/")]
        root = _apply_operation(root, path, operation)
    return dict(root[""])


def _apply_operation(at: Any, path: list[str], operation: dict[str, Any]) -> Any:
    """A copy of `at` with the operation applied at `path` below it. The original stays as it is."""
    name, key = operation.get("op"), path[0]
    copy: Any = list(at) if isinstance(at, list) else dict(at) if isinstance(at, dict) else None
    if copy is None:
        raise _cannot_apply(operation)
    place: Any = key if isinstance(copy, dict) else len(copy) if key == "-" else int(key) if key.isdigit() else -1
    there = place in copy if isinstance(copy, dict) else 0 <= place < len(copy)
    if len(path) > 1:
        if not there:
            raise _cannot_apply(operation)
        copy[place] = _apply_operation(copy[place], path[1:], operation)
    elif name == "add" and isinstance(copy, list) and 0 <= place <= len(copy):
        copy.insert(place, operation["value"])
    elif (name == "add" and isinstance(copy, dict)) or (name == "replace" and there):
        copy[place] = operation["value"]
    elif name == "remove" and there:
        del copy[place]
    elif name != "test" or not there or copy[place] != operation.get("value"):
        raise _cannot_apply(operation)
    return copy


def _cannot_apply(operation: dict[str, Any]) -> Failure:
    message = (
        f"the server rejected our request due to an error in our request: {operation.get('op')} {operation.get('path')}"
    )
    return Failure(422, message, "Invalid", {})
