"""A list in every output form: table, wide, name, JSON, YAML, CSV, JSONPath; and sorting.

Rule: each kind of object has one `Listing` with its columns, its name and its JSON, and every form comes from that. A
table may shorten ids and omit columns; wide and CSV shorten nothing, and CSV has every column.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stead.commands.output import columns, detailed, for_scripts, more, written
from stead.errors import Invalid, did_you_mean
from stead.operate.ordering import natural
from stead.text import printable

if TYPE_CHECKING:
    from stead.operate.snapshot import Query
    from stead.operate.views import Page

T = TypeVar("T")

NOTHING = "-"
FOR_PEOPLE = ("default", "table", "wide")


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column: its text for an item ("" if empty), and how a table shortens that."""

    title: str
    text: Callable[[T], str]
    short: Callable[[str], str] | None = None
    wide: bool = False  # whether a normal table omits it
    key: Callable[[T], Any] | None = None  # the sort key, if that is not the text


@dataclass(frozen=True)
class Listing(Generic[T]):
    """How items of one kind are listed."""

    columns: Sequence[Column[T]]
    name: Callable[[T], str | tuple[str, ...]]  # the name that other commands accept
    json: Callable[[T], dict[str, Any]]

    def text(self, form: str, items: Sequence[T]) -> str:
        if for_scripts(form):
            return written(form, [self.json(item) for item in items])
        if form == "name":
            return "\n".join(dict.fromkeys(map(printable, self._names(items))))
        if form == "csv":
            return self._csv(items)
        is_wide = form == "wide"
        shown = [column for column in self.columns if is_wide or not column.wide]
        rows = [[column.title for column in shown]]
        rows += [[_cell(column, item, is_wide) or NOTHING for column in shown] for item in items]
        return columns(rows)

    def _names(self, items: Sequence[T]) -> Iterator[str]:
        for item in items:
            name = self.name(item)
            yield from (name,) if isinstance(name, str) else name

    def _csv(self, items: Sequence[T]) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.title for column in self.columns])
        writer.writerows([printable(column.text(item)) for column in self.columns] for item in items)
        return text.getvalue().removesuffix("\n")

    def sorted(self, items: Sequence[T], order: str) -> list[T]:
        """By a column or a JSON field; with a ``-`` in front, in descending order. Items without a value come last."""
        value = self._value(order.removeprefix("-"), items)
        keys = [_comparable(value(item)) for item in items]
        having = [number for number, key in enumerate(keys) if key]
        having.sort(key=keys.__getitem__, reverse=order.startswith("-"))
        return [items[number] for number in (*having, *(number for number, key in enumerate(keys) if not key))]

    def _value(self, name: str, items: Sequence[T]) -> Callable[[T], Any]:
        """The value of an item in the column or JSON field of this name."""
        for column in self.columns:
            if _same(column.title, name):
                return column.key or column.text
        from stead.commands.json_paths import Field, path, values_at

        steps = path(name.removeprefix("{").removesuffix("}"))
        fields = list(self.json(items[0])) if items else []
        if not steps or not isinstance(steps[0], Field) or (items and steps[0].name not in fields):
            known = [*(column.title for column in self.columns), *fields]
            good = ", ".join(dict.fromkeys(known))
            raise Invalid(f"cannot sort by {name!r}{did_you_mean(name, known)}; good columns are {good}")
        return lambda item: next(iter(values_at(steps, self.json(item))), None)

    def page(self, fetch: Callable[[Query], Page[T]], query: Query, order: str | None) -> Page[T]:
        """A page of the list. With a sort order, the first items of the whole sorted list."""
        if order is None:
            return fetch(query)
        from dataclasses import replace

        from stead.operate.snapshot import PAGE_MAX
        from stead.operate.views import Page

        found: list[T] = []
        while True:
            page = fetch(replace(query, offset=len(found), limit=PAGE_MAX))
            found += page.items
            if not page.items or len(found) >= page.total:
                return Page(tuple(self.sorted(found, order)[: query.limit]), len(found))


def page_text(listing: Listing[T], page: Page[T], form: str, detail: bool, nothing: str) -> str:
    """A page in an output form; for people also when there is nothing, or more than is shown."""
    if form in FOR_PEOPLE:
        more(len(page.items), page.total)
        if not page.items:
            return nothing
        if detail:
            return detailed(map(listing.json, page.items))
    return listing.text(form, page.items)


def _cell(column: Column[T], item: T, is_wide: bool) -> str:
    text = column.text(item)
    return text if is_wide or column.short is None else column.short(text)


def _same(title: str, name: str) -> bool:
    return re.sub("[-_]", " ", title).casefold() == re.sub("[-_]", " ", name).casefold()


def _comparable(value: Any) -> tuple[Any, ...]:
    """Numbers as numbers, before text; also numbers inside a text, so that node-2 comes before node-10. None is ()."""
    if value is None or value in ("", NOTHING):
        return ()
    if isinstance(value, int | float):
        return (0, value)
    if isinstance(value, list | dict):
        return (0, len(value))
    return (1, natural(str(value)))
