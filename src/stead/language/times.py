"""Durations and times: parsing and printing.

Rule: both are seconds. Times count from 1970, or from the start of a scenario. Every duration printed here can be
parsed again. Times are shown in UTC, so everyone sees the same ones.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from stead.errors import Invalid
from stead.text import quoted

SECONDS_MAX = 1e12
"""The longest duration: about 30,000 years, where a float still resolves milliseconds."""

MOMENT_MAX = 1e11
"""The latest time: about 3,000 years from now, which `datetime` can still represent."""

CLOCK_MIN = 1e8
"""A time below this belongs to a simulation, which starts at 0."""

UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE]\+?[0-9]{1,3})?", re.ASCII)
_PARTS = r"\s*".join(rf"(?:([0-9]+(?:\.[0-9]+)?)\s*{unit})?" for unit in ("d", "h", "m(?:in)?", "s"))
_DURATION = re.compile(_PARTS, re.ASCII)


def parse_duration(given: object, what: str = "") -> float:
    """Seconds from a number or from text: ``90``, ``90s``, ``5m``, ``1.5h``, ``1h30m``, ``2d``. An error message starts
    with `what`."""
    number = given
    if isinstance(given, str) and (text := given.strip()):
        if _NUMBER.fullmatch(text):
            number = float(text)
        elif found := _DURATION.fullmatch(text):
            number = sum(float(part) * size for part, (_, size) in zip(found.groups("0"), UNITS, strict=True))
    if isinstance(number, bool) or not isinstance(number, int | float) or not number >= 0:
        good = "must be a duration such as '90s', '5m' or '1h30m', or a number of seconds, 0 or more"
        raise Invalid(f"{what} {good}, not {quoted(given)}".lstrip())
    if number > SECONDS_MAX:
        raise Invalid(
            f"{what} must be at most {SECONDS_MAX:.0f} seconds, for example '5m', not {quoted(given)}".lstrip()
        )
    return float(number)


def duration_text(seconds: float) -> str:
    """``45s``, ``1m30s``, ``2h``, ``3d4h``: the two largest units; smaller units are dropped."""
    if 0 < seconds < 1:
        return f"{seconds:.1g}s" if seconds >= 0.001 else "0.001s"
    left, parts = max(0, round(seconds)), []
    first = next((place for place, (_, size) in enumerate(UNITS) if left >= size), len(UNITS) - 1)
    for unit, size in UNITS[first : first + 2]:
        count, left = divmod(left, size)
        parts += [f"{count}{unit}"] * bool(count)
    return "".join(parts) or "0s"


def parse_moment(text: str) -> float:
    """``2026-01-31 12:00:00`` (UTC unless it has a time zone), or seconds since 1970."""
    stripped = text.strip()
    try:
        if _NUMBER.fullmatch(stripped):
            found = float(stripped)
        else:
            parsed = datetime.fromisoformat(stripped)
            found = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        found = -1.0
    if not 0 <= found <= MOMENT_MAX:
        raise Invalid(f"{quoted(text)} is not a time; write '2026-01-31 12:00:00' (UTC), or seconds since 1970")
    return found


def moment_text(at: float) -> str:
    """``2026-01-31 12:00:00`` in UTC; in a scenario, the seconds since its start: ``90 s``."""
    if at < CLOCK_MIN:
        return f"{at:g} s"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
