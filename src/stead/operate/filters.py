"""Conditions on the rows of a list: ``state=waiting``, ``name!=a``, ``labels.zone=a``.

Rule: a condition on a field that the list does not have is refused with the names of its fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stead.errors import Invalid, did_you_mean


@dataclass(frozen=True, slots=True)
class Condition:
    """A field that must, or must not, have a value. `key` is the key of a label; without it, the condition is on the
    keys of labels or taints."""

    name: str
    key: str
    value: str
    negated: bool


def conditions(filters: Sequence[str], fields: Sequence[str]) -> list[Condition]:
    found = []
    for written in filters:
        name, equals, value = written.partition("=")
        if not equals:
            raise Invalid(f"filter {written!r} must look like {fields[0]}=VALUE or {fields[0]}!=VALUE")
        negated, name = name.endswith("!"), name.removesuffix("!").strip()
        first, _, key = name.partition(".")
        if first not in fields or (key and first != "labels"):
            hint = did_you_mean(first, fields)
            raise Invalid(f"there is no field {name!r} to filter by{hint}; good fields are {', '.join(fields)}")
        found.append(Condition(first, key, value.strip(), negated))
    return found
