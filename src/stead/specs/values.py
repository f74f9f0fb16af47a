"""Single values of a spec: texts, numbers, amounts and taints.

Rule: each function takes a parsed value and returns it with its type, or says in one sentence what a good value is.
"""

from __future__ import annotations

from typing import Any

from stead.errors import Invalid
from stead.language.arguments import parse_taints, taints_of
from stead.language.asks import Strategy
from stead.language.labels import check_key
from stead.language.nodes import Node
from stead.language.resources import Resources
from stead.language.taints import Taint
from stead.language.times import parse_duration
from stead.text import quoted

COUNT_MAX = 1_000_000
"""The maximum number of nodes and pieces of work in one scenario."""


def some_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise Invalid(
            f"must be text, for example {quoted(str(value) if isinstance(value, int) else 'a')}, not {quoted(value)}"
        )
    return value


def texts_in(value: Any) -> tuple[str, ...]:
    return tuple(some_text(item) for item in value) if isinstance(value, list) else (some_text(value),)


def values_in(value: Any) -> tuple[str, ...]:
    """Values of a taint, which may be empty."""
    items = value if isinstance(value, list) else [value]
    return tuple(item if item == "" else some_text(item) for item in items)


def whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(f"must be a whole number such as 1, not {quoted(value)}")
    return value


def count_in(value: Any) -> int:
    if whole(value) < 1:
        raise Invalid(f"must be at least 1, not {quoted(value)}")
    if value > COUNT_MAX:
        raise Invalid(f"must be at most {COUNT_MAX}, not {quoted(value)}")
    return int(value)


def up_to(bundles: int, value: Any) -> int:
    if count_in(value) > bundles:
        raise Invalid(f"must be at most the number of bundles, {bundles}, not {quoted(value)}")
    return int(value)


def timeout_in(value: Any) -> float:
    seconds = parse_duration(value)
    if not seconds:
        raise Invalid("must be more than 0 s, for example 60")
    return seconds


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Invalid(f"must be true or false, not {quoted(value)}")
    return value


def resources_in(value: Any) -> Resources:
    if not isinstance(value, dict):
        raise Invalid(f"must be a map such as {{CPU: 4, memory: 2Gi}}, not {quoted(value)}")
    return Resources.of(value)


def limits_in(value: Any) -> dict[str, int]:
    """How many volumes of each driver a node may have."""
    if not isinstance(value, dict) or any(whole(most) < 0 for most in value.values()):
        raise Invalid(f"must be a map of limits from 0, such as {{ebs: 25}}, not {quoted(value)}")
    return {some_text(driver): most for driver, most in value.items()}


def capacity_of(node: str, value: Any) -> Resources:
    """The resources of a node; devices must be whole."""
    resources_in(value)
    return Node.of(node, value).capacity


def taints_in(value: Any) -> tuple[Taint, ...]:
    if isinstance(value, list):
        return tuple(dict.fromkeys(taint for item in value for taint in _taint_items(item)))
    return _taint_items(value)


def _taint_items(value: Any) -> tuple[Taint, ...]:
    return parse_taints(value) if isinstance(value, str) else taints_of(value)


def topology_in(value: Any) -> str:
    return check_key(value, "topology key")


def topologies_in(value: Any) -> tuple[str, ...]:
    return tuple(map(topology_in, value)) if isinstance(value, list) and value else (topology_in(value),)


def strategies_in(value: Any) -> tuple[tuple[str, Strategy], ...]:
    if not isinstance(value, dict):
        raise Invalid(f"must be a map such as {{zone: STRICT_SPREAD}}, not {quoted(value)}")
    return tuple((topology_in(key), Strategy.of(strategy)) for key, strategy in value.items())
