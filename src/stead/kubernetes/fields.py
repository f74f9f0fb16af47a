"""Reads the dicts of Kubernetes' JSON API: objects, lists and labels.

Rule: a null field counts as missing, and a field of the wrong type raises `Invalid`. Nothing here knows what a field is
for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stead.errors import Invalid
from stead.language.asks import ASK_ID
from stead.language.labels import NODE_ID, NODE_IP, NODE_NAME, RAY_NODE_ID, Labels, check_key, check_value

Fields = Mapping[str, Any]
"""An API object, or a part of one."""

STEAD_KEYS = frozenset({NODE_ID, NODE_IP, NODE_NAME, RAY_NODE_ID, ASK_ID})
"""Keys that are identity labels in stead but ordinary labels in Kubernetes."""


def fields_in(parent: Fields, name: str) -> Fields:
    """The object under `name`; empty if there is none."""
    found = parent.get(name)
    if found is None:
        return {}
    if type(found) is not dict and not isinstance(found, Mapping):  # the first test is far cheaper
        raise Invalid(f"{name!r} must be an object such as {{'key': 'value'}}, not {found!r}")
    return found


def items_in(parent: Fields, name: str) -> Sequence[Any]:
    """The list under `name`; empty if there is none."""
    found = parent.get(name)
    if found is None:
        return ()
    if not isinstance(found, list | tuple):
        raise Invalid(f"{name!r} must be a list such as ['value'], not {found!r}")
    return found


def parts_in(parent: Fields, name: str) -> list[Fields]:
    """The list of objects under `name`; null counts as an empty object."""
    if parent.get(name) is None:  # most fields are missing
        return []
    items = items_in(parent, name)
    found = [{} if item is None else item for item in items]
    for item in found:
        if type(item) is not dict and not isinstance(item, Mapping):
            raise Invalid(f"every item of {name!r} must be an object, not {item!r}")
    return found


def text_in(parent: Fields, name: str) -> str:
    """The text under `name`; empty if there is none."""
    found = parent.get(name)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise Invalid(f"{name!r} must be text, not {found!r}")
    return found


def number_in(parent: Fields, name: str, usual: int = 0) -> int:
    """The whole number under `name`; `usual` if there is none."""
    found = parent.get(name)
    if found is None:
        return usual
    if isinstance(found, bool) or not isinstance(found, int):
        raise Invalid(f"{name!r} must be a whole number such as 1, not {found!r}")
    return found


def label_key(key: str) -> str:
    """stead's key for a Kubernetes label: the same key, unless it is an identity label in stead.

    Label keys cannot contain a colon, so the renamed key is unique.
    """
    return f"label:{key}" if key in STEAD_KEYS else key


def labels_of(metadata: Fields, lenient: bool = False) -> Labels:
    """The labels of a node or a pod. With `lenient`, labels that are not valid are left out."""
    given = fields_in(metadata, "labels")
    found = Labels({k: v for k, v in given.items() if _is_valid(k, v)}) if lenient else Labels.checked(given)
    return Labels({label_key(key): value for key, value in found.items()}) if STEAD_KEYS & found.keys() else found


def _is_valid(key: object, value: object) -> bool:
    try:
        check_key(key)
        check_value(value)
    except Invalid:
        return False
    return True
