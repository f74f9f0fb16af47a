r"""JSONPath as in kubectl: text with expressions in braces, such as ``{.items[*].name}{"\n"}``.

Rule: an expression only picks values: a field, ``[0]``, ``[*]``, ``[?(@.state=="waiting")]``, or quoted text. A
template that cannot be parsed is refused before the cluster is asked. A missing field prints nothing, as in kubectl.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stead.errors import Invalid

GOOD = "{.items[*].name}"
LIST = "items"

_FIELD = r"(?:[\w/-]|\\.)+"
_STEP = re.compile(
    rf"""
    \.(?P<field>{_FIELD})
    | \[\s*(?P<quoted>'[^']*'|"[^"]*")\s*\]
    | \[\s*(?P<index>-?[0-9]{{1,9}})\s*\]
    | (?P<each>\[\s*\*\s*\]|\.\*)
    | \[\s*\?\(\s*@(?P<path>(?:\.{_FIELD})+)\s*
        (?:(?P<sign>==|!=|<=|>=|<|>)\s*(?P<value>"[^"]*"|'[^']*'|[\w.+-]+)\s*)?\)\s*\]
    """,
    re.VERBOSE,
)
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Field:
    name: str


@dataclass(frozen=True, slots=True)
class Index:
    number: int


@dataclass(frozen=True, slots=True)
class Each:
    pass


@dataclass(frozen=True, slots=True)
class Where:
    """The items of a list whose field compares with a value; without a sign, those that have the field."""

    path: tuple[Field, ...]
    sign: str
    value: Any


Step = Field | Index | Each | Where
Path = tuple[Step, ...]


def template(text: str) -> list[str | Path]:
    """The parts of a template: text and paths. A single expression needs no braces."""
    if "{" not in text and text[:1] in (".", "[", "$"):
        return [path(text)]
    parts: list[str | Path] = []
    rest = text
    while rest:
        before, brace, rest = rest.partition("{")
        if before:
            parts.append(before)
        if brace:
            body, rest = _until_brace(rest, text)
            parts.append(_expression(body.strip()))
    if not any(isinstance(part, tuple) for part in parts):
        raise Invalid(f"jsonpath {text!r} has no expression; a good one is '{GOOD}'")
    return parts


def _until_brace(text: str, whole: str) -> tuple[str, str]:
    """The text before the brace that closes the expression, and the text after it."""
    quote = ""
    for number, character in enumerate(text):
        if quote:
            quote = "" if character == quote and text[number - 1] != "\\" else quote
        elif character in "\"'":
            quote = character
        elif character == "}":
            return text[:number], text[number + 1 :]
    raise Invalid(f"jsonpath {whole!r} has no closing brace; a good one is '{GOOD}'")


def _expression(body: str) -> str | Path:
    if body[:1] == '"':
        try:
            return str(json.loads(body))
        except ValueError:
            raise Invalid(f'jsonpath text {body} cannot be read; a good one is {{"\\n"}}') from None
    if body.partition(" ")[0] in ("range", "end"):
        raise Invalid(f"jsonpath cannot use {{{body}}} here; [*] takes every item, as in '{GOOD}'")
    return path(body)


def path(text: str) -> Path:
    """``.items[*].name`` as steps; the first dot is optional."""
    rest = text.strip().removeprefix("$").removeprefix("@")
    if rest and rest[0] not in ".[":
        rest = f".{rest}"
    steps: list[Step] = []
    while rest:
        found = _STEP.match(rest)
        if found is None:
            raise Invalid(f"jsonpath {text!r} cannot be read from {rest!r} on; a good one is '{GOOD}'")
        steps.append(_step(found))
        rest = rest[found.end() :]
    return tuple(steps)


def _step(found: re.Match[str]) -> Step:
    if found["field"]:
        return Field(_plain(found["field"]))
    if found["quoted"]:
        return Field(_plain(found["quoted"][1:-1]))
    if found["index"]:
        return Index(int(found["index"]))
    if found["each"]:
        return Each()
    fields = tuple(Field(_plain(name)) for name in re.findall(rf"\.({_FIELD})", found["path"]))
    return Where(fields, found["sign"] or "", _value(found["value"] or ""))


def _plain(name: str) -> str:
    r"""``ray\.io/node-id`` is the field ``ray.io/node-id``."""
    return re.sub(r"\\(.)", r"\1", name)


def _value(text: str) -> Any:
    if text[:1] in ("'", '"'):
        return text[1:-1]
    if text in _WORDS:
        return _WORDS[text]
    try:
        return float(text)
    except ValueError:
        return text


# -- evaluating


def filled(parts: Sequence[str | Path], value: Any) -> str:
    """The template with values in place of its paths; several values of one path are separated by spaces."""
    return "".join(part if isinstance(part, str) else " ".join(map(_text, values_at(part, value))) for part in parts)


def values_at(steps: Path, value: Any) -> list[Any]:
    """The values at a path. A list that a command prints is also the field `items`."""
    values = [value]
    if isinstance(value, list) and steps and steps[0] == Field(LIST):
        steps = steps[1:]
    for step in steps:
        values = [each for one in values for each in _taken(step, one)]
    return values


def _taken(step: Step, value: Any) -> list[Any]:
    match step, value:
        case Field(name), dict():
            return [value[name]] if name in value else []
        case Field(name), list():
            raise Invalid(f"jsonpath takes the field {name!r} of a list; take every item with [*], as in '{GOOD}'")
        case Index(number), list():
            if not -len(value) <= number < len(value):
                raise Invalid(f"jsonpath takes [{number}] of a list with {len(value)} items; [*] takes every item")
            return [value[number]]
        case Each(), list():
            return list(value)
        case Each(), dict():
            return list(value.values())
        case Where(), list():
            return [item for item in value if _holds(step, item)]
    return []


def _holds(where: Where, item: Any) -> bool:
    values = values_at(where.path, item)
    if not where.sign:
        return bool(values)
    try:
        return bool(values) and _SIGNS[where.sign](values[0], where.value)
    except TypeError:  # a number and a text cannot be compared
        return False


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
