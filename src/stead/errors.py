"""What stead says when it is given something it cannot use.

Rule: a message is one sentence that names the bad part and shows a good value.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import TypeVar

E = TypeVar("E", bound=StrEnum)

CLOSE = 0.7
SENTENCE_MAX = 2_000


class Invalid(ValueError):
    """The user's input cannot mean anything; the message is one sentence for the user."""


class Unsupported(Invalid):
    """The input is well formed, but asks for something this build of stead cannot do."""


class Unready(Invalid):
    """It cannot be done now, for a reason that may pass. Nothing was changed: try again."""


class Unwritable(Unready):
    """Nothing can be written now: the disk is full, or fails for another reason that may pass."""


def printable(text: str, keep: str = "") -> str:
    """Names and owners are anybody's: a control or bidi character in them is shown, not obeyed."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)


def sentence(error: object) -> str:
    """An error as it may be shown anywhere: one line, printable, and not too long, whatever it quotes."""
    text = str(error)
    if len(text) > SENTENCE_MAX:
        text = f"{text[:SENTENCE_MAX]}... ({len(text) - SENTENCE_MAX:,} more characters)"
    return printable(text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'zone'?)`` when `word` is close to a known one, else the empty string."""
    length = len(word)  # words of quite another length are never close, and there may be thousands of them
    alike = sorted(name for name in known if 2 * min(length, len(name)) >= CLOSE * (length + len(name)))
    by_folded = {name.lower().replace("_", "-"): name for name in alike}
    close = get_close_matches(word.lower().replace("_", "-"), by_folded, n=1, cutoff=CLOSE)
    return f" (did you mean {by_folded[close[0]]!r}?)" if close and by_folded[close[0]] != word else ""


def one_of(kind: type[E], name: object, what: str) -> E:
    """The member of an enumeration that `name` stands for; `what` is the word for it in the sentence."""
    known = [member.value for member in kind]
    if name not in known:
        raise Invalid(f"{what} {name!r} is unknown{did_you_mean(str(name), known)}; good values are {', '.join(known)}")
    return kind(name)
