"""Errors for users, and the functions that word them.

Rule: a message is one sentence that names the bad part and shows a good value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import TypeVar

from stead.text import Titles, first_few, is_visible, printable, quoted

E = TypeVar("E", bound=StrEnum)

CLOSE = 0.7
SENTENCE_MAX = 2_000


class Invalid(ValueError):
    """What you gave has no meaning. The message is one sentence that names the bad part and shows a good value.

    Example:
        ```python
        try:
            stead.parse_selector("zone in")
        except stead.Invalid as error:
            print(error)
        ```
    """


class Unsupported(Invalid):
    """What you asked for is clear, but this stead, or the software around it, cannot do it.

    Example:
        ```python
        try:
            stead.init("ray://head:10001")
        except stead.Unsupported as error:
            print(error)
        ```
    """


class Unready(Invalid):
    """A temporary failure. Nothing was changed; the user can retry."""


class Unwritable(Unready):
    """A temporary write failure, for example a full disk."""


def sentence(error: object) -> str:
    """An error as one printable line of limited length, whatever it quotes."""
    text = str(error)
    if len(text) > SENTENCE_MAX:
        text = f"{text[:SENTENCE_MAX]}... ({len(text) - SENTENCE_MAX:,} more characters)"
    return printable(text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'zone'?)`` when `word` is close to a known one, else the empty string."""
    length = len(word)  # skip words of a very different length: they are never close, and there may be thousands
    alike = sorted(name for name in known if 2 * min(length, len(name)) >= CLOSE * (length + len(name)))
    by_folded = {name.lower().replace("_", "-"): name for name in alike}
    close = get_close_matches(word.lower().replace("_", "-"), by_folded, n=1, cutoff=CLOSE)
    return f" (did you mean {by_folded[close[0]]!r}?)" if close and by_folded[close[0]] != word else ""


def absent(what: str, given: str, known: Iterable[str], where: str = "in this cluster") -> str:
    """``there is no node 'gpu-9' in this cluster (did you mean 'gpu-1'?)``, or with an example of a known name."""
    names = set(known)
    example = f"; for example, there is {min(names)!r}" if names else ""
    return f"there is no {what} {quoted(given)} {where}".rstrip() + (did_you_mean(given, names) or example)


def several(given: str, ids: Sequence[str], what: str) -> str:
    """``'gpu' matches 2 nodes: gpu-1, gpu-2; give the id of one``. Long ids are cut where they stay distinct."""
    titles = Titles(dict.fromkeys(ids, ""))
    shown = first_few((titles[id] for id in ids), 10)
    return f"{quoted(given)} matches {len(ids):,} {what}: {shown}; give the id of one"


def check_name(what: str, name: str, most: int, good: str) -> None:
    """Refuse a name that is unreadable or that could look like another name."""
    if not is_visible(name, most):
        rule = f"{what} {name[:100]!a} must have 1 to {most} printable characters and no spaces at either end"
        raise Invalid(f"{rule}, like {good!r}")


def one_of(kind: type[E], name: object, what: str) -> E:
    """The member of an enumeration with this name; `what` names it in the error message."""
    known = [member.value for member in kind]
    if name not in known:
        raise Invalid(f"{what} {name!r} is unknown{did_you_mean(str(name), known)}; good values are {', '.join(known)}")
    return kind(name)
