"""Text for people: safe to print, short, and grammatical.

Rule: nothing here knows what a node or a piece of work is. Programs never parse this text. The one exception is short
ids: every command and page accepts the first characters of an id.
"""

from __future__ import annotations

import re
import reprlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

SHORT = 12
"""How many characters of a generated id are shown."""

ID_BEGINS = 6
"""The fewest characters that identify an id, if only one id starts with them."""

WHOLE_MAX = 60
"""Up to this length, an id that a user chose is shown in full."""

_MADE = r"[0-9a-f]{24,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_MADE_BY_A_MACHINE = re.compile(_MADE)
_MADE_ID_IN_TEXT = re.compile(rf"(?<![0-9A-Za-z_-])(?:{_MADE})(?![0-9A-Za-z_-])")

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that Python counts as printable but that are invisible."""

_brief = reprlib.Repr()
_brief.maxlevel, _brief.maxstring, _brief.maxlong, _brief.maxother = 3, 100, 60, 100


def printable(text: str, keep: str = "") -> str:
    """The text with control and bidi characters escaped. Names and owners are untrusted input."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)


def is_visible(name: str, most: int) -> bool:
    """Whether a name is safe to show and not too long. Control, bidi and invisible characters, or spaces at either end,
    could make it look like another name."""
    return 0 < len(name) <= most and name.isprintable() and name == name.strip() and not _INVISIBLE.search(name)


def quoted(value: object) -> str:
    """A value for use in a sentence: in quotes, and shortened if it is long or deep."""
    return _brief.repr(value)


def plural(count: int, one: str, many: str = "") -> str:
    """``1 node``, ``2 nodes``, ``12,000 nodes``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def price_text(price: float) -> str:
    """``13``, ``2.5``, ``1,234.57``, ``0.0025``: at most two decimals, or four for prices below 1."""
    return f"{price:,.{2 if price >= 1 else 4}f}".rstrip("0").rstrip(".")


def joined(items: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *others, last = [*items] or [""]
    return f"{', '.join(others)} and {last}" if others else last


def first_few(items: Iterable[str], most: int = 4) -> str:
    """``a, b, c``, or for a long list ``a, b, c, d and 3 more``."""
    known = list(items)
    rest = len(known) - most
    return ", ".join(known[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def short_id(id: str) -> str:
    """``1a2b3c4d5e6f`` for a generated id, followed by its first ``/`` and what comes after. An id that a user chose is
    shown in full, unless it is very long."""
    begin, slash, rest = id.partition("/")
    if _MADE_BY_A_MACHINE.fullmatch(begin):
        return f"{begin[:SHORT]}{slash}{rest}"
    return id if len(id) <= WHOLE_MAX else f"{id[: WHOLE_MAX - 1]}…"


def with_names(text: str, name: Callable[[str], str] = short_id) -> str:
    """The text with every generated id replaced by its name."""
    return _MADE_ID_IN_TEXT.sub(lambda found: name(found[0]), text)


class Titles(Mapping[str, str]):
    """A unique title for each of several things, by id: its name if no other has that name, else the first characters
    of its id that no other id starts with. Users can type a title to mean the thing."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._named = Counter(names.values())
        self._begins: Counter[str] | None = None
        self._sorted: Sequence[str] = ()

    def __getitem__(self, id: str) -> str:
        name = self._names.get(id, "")
        if name and self._named[name] == 1:
            return name
        short = short_id(id)
        return short if short == id or id not in self._names else self._alone(id, short)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _alone(self, id: str, short: str) -> str:
        if self._begins is None:
            self._begins = Counter(each[:SHORT] for each in self._names)
        if self._begins[id[:SHORT]] == 1:
            return short
        self._sorted = self._sorted or sorted(self._names)
        place = bisect_left(self._sorted, id)
        beside = [*self._sorted[max(0, place - 1) : place], *self._sorted[place + 1 : place + 2]]
        return id[: max(SHORT, 1 + max(_common(id, other) for other in beside))]


def _common(one: str, other: str) -> int:
    """The length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
