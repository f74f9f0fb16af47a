"""Sortable tables. The order is in the URL: ``sort=name``, or ``sort=-name`` for descending.

Rule: a column header is a plain link, so that it works with the keyboard and without scripts. Rows without a value come
last in both directions. Without `sort` the desk's order is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stead.operate.ordering import natural

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column; without a key it is not sortable. Numbers start with the largest."""

    name: str
    title: str
    key: Callable[[T], Any] | None = None
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """A column header: where its link leads, and how the table is sorted by it now."""

    title: str
    address: str
    order: str  # "ascending", "descending", "none"; "" if not sortable
    is_number: bool


def heads(columns: Sequence[Column[T]], sort: str, address: Callable[[str], str]) -> list[Head]:
    """`address` returns the URL of the page in an order."""
    found = []
    for column in columns:
        if column.key is None:
            found.append(Head(column.title, "", "", column.is_number))
            continue
        up, down = column.name, f"-{column.name}"
        order = {up: "ascending", down: "descending"}.get(sort, "none")
        following = {"ascending": down, "descending": up}.get(order, down if column.is_number else up)
        found.append(Head(column.title, address(following), order, column.is_number))
    return found


def known(columns: Iterable[Column[T]], sort: str) -> str:
    """The requested order, or "" if no column has it."""
    return sort if any(each.name == sort.removeprefix("-") and each.key for each in columns) else ""


def ordered_by(items: Iterable[T], columns: Iterable[Column[T]], sort: str) -> list[T]:
    """The items in the requested order; equal ones keep their order."""
    key = next((each.key for each in columns if each.name == sort.removeprefix("-")), None)
    if not sort or key is None:
        return list(items)
    valued = [(key(item), item) for item in items]
    there = [pair for pair in valued if pair[0] not in (None, "", ())]
    there.sort(key=lambda pair: _comparable(pair[0]), reverse=sort.startswith("-"))
    return [item for _, item in there] + [item for value, item in valued if value in (None, "", ())]


def _comparable(value: Any) -> Any:
    return natural(value) if isinstance(value, str) else value


def amount_key(amounts: Mapping[str, float]) -> tuple[float, ...]:
    """Amounts by CPU, then GPU, then memory; empty for none of them."""
    found = tuple(amounts.get(name, 0.0) for name in ("CPU", "GPU", "memory"))
    return found if any(found) else ()
