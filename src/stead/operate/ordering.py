"""Names with numbers: node-2 sorts before node-10, and upper case next to lower case; web-1 and web-2 are copies."""

from __future__ import annotations

import re
from functools import lru_cache

Parts = tuple[tuple[int, int, str], ...]

_DIGITS = re.compile(r"([0-9]{1,18})")


@lru_cache(maxsize=1 << 16)
def natural(text: str) -> Parts:
    """A sort key in which numbers count as numbers."""
    parts = enumerate(_DIGITS.split(text.lower()))
    return tuple((0, int(part), "") if place % 2 else (1, 0, part) for place, part in parts if part)


def entry_name(id: str) -> str:
    """The common part of numbered copies: ``web`` for ``web-12``."""
    head, dash, tail = id.rpartition("-")
    return head if dash and head and tail.isdecimal() else id
