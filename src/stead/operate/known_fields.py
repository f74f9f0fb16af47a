"""Reduces the JSON of a newer service to what this version of stead knows.

Rule: an unknown field is dropped at any depth, because fields may be added to any object. A list item of an unknown
class is dropped as a whole. Nothing is guessed: a field that is missing or wrong stays missing or wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from stead.codec import TAG


class _UnknownClass(Exception):
    """An object names a class that this version does not have."""


def picked(found: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The fields of one object that the class `kind` has, unchanged."""
    return {name: found[name] for name in _hints(kind) if name in found}


def known(value: Any, kind: Any) -> Any:
    """The parts of a JSON value that a value of type `kind` has."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(value, list) and origin in (list, tuple, frozenset):
        if origin is tuple and arguments[1:] != (...,):  # a pair: each position has its own type
            return [known(item, part) for item, part in zip(value, arguments, strict=False)]
        return _known_items(value, arguments[0])
    if isinstance(value, dict) and origin in (Union, UnionType):
        return known(value, _class_of(value, arguments))
    if isinstance(value, dict) and isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        return {name: known(part, hints.get(name)) for name, part in value.items() if name in hints or name == TAG}
    return value


def _known_items(values: list[Any], kind: Any) -> list[Any]:
    found = []
    for value in values:
        try:
            found.append(known(value, kind))
        except _UnknownClass:
            continue
    return found


def _class_of(value: dict[str, Any], options: tuple[Any, ...]) -> Any:
    """The class of an object: the one that it names, or the only one."""
    classes = {option.__name__: option for option in options if is_dataclass(option) and isinstance(option, type)}
    if len(classes) > 1:
        name = str(value.get(TAG))
        if name not in classes:
            raise _UnknownClass(name)
        return classes[name]
    return next((option for option in options if option is not NoneType), None)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}
