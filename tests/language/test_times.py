"""Durations and times: parsing and printing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.errors import Invalid
from stead.language.times import SECONDS_MAX, duration_text, moment_text, parse_duration, parse_moment
from tests.language.sentences import refused


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (0, 0.0),
        (1.5, 1.5),
        ("90", 90.0),
        (" 1e3 ", 1000.0),
        ("90s", 90.0),
        ("5m", 300.0),
        ("5 min", 300.0),
        ("1.5 h", 5400.0),
        ("1h30m", 5400.0),
        ("3 h 20 min", 12_000.0),
        ("1d", 86400.0),
        ("1d2h3m4s", 93784.0),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_has_units(written: Any, expected: float) -> None:
    assert parse_duration(written) == expected


@pytest.mark.parametrize(
    "written", ["", " ", "soon", "-5", -1, True, None, [], "5x", "30m1h", "1h1h", "1_000", "٣m", "nan", float("nan")]
)
def test_what_is_not_a_duration_is_refused(written: Any) -> None:
    with refused("for must be a duration such as '90s', '5m' or '1h30m', or a number of seconds, 0 or more, not "):
        parse_duration(written, "for")


@pytest.mark.parametrize("written", ["inf", "1e13", 10**400, "9999999999999d"])
def test_a_duration_has_an_end(written: Any) -> None:
    with pytest.raises(Invalid):
        parse_duration(written)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-3, "0s"),
        (0.25, "0.2s"),
        (45, "45s"),
        (90, "1m30s"),
        (3599.7, "1h"),
        (7200, "2h"),
        (7199, "1h59m"),
        (12_000, "3h20m"),
        (86400 * 3 + 60, "3d"),
    ],
)
def test_a_duration_is_printed_in_its_two_greatest_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@given(st.integers(0, int(SECONDS_MAX)))
def test_a_printed_duration_can_be_parsed_again(seconds: int) -> None:
    """Except for what is below the smaller of its two units."""
    again = parse_duration(duration_text(seconds))
    assert again <= seconds
    assert duration_text(again) == duration_text(seconds)
    assert seconds - again < (1 if seconds < 3600 else 60 if seconds < 86400 else 3600)


@given(st.floats(0, 1))
def test_less_than_a_second_is_not_nothing(seconds: float) -> None:
    assert (parse_duration(duration_text(seconds)) > 0) == (seconds > 0)


@given(st.text(max_size=40))
def test_any_text_is_understood_or_refused(text: str) -> None:
    for read in (parse_duration, parse_moment):
        with suppress(Invalid):
            assert read(text) >= 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-11-15T16:20", 1794759600.0),
        ("2026-11-15 16:20:00", 1794759600.0),
        ("2026-11-15T16:20:00+01:00", 1794756000.0),
        (" 1794759600 ", 1794759600.0),
    ],
)
def test_a_time_is_utc(text: str, found: float) -> None:
    assert parse_moment(text) == found


@pytest.mark.parametrize("text", ["", "yesterday", "1066-10-14", "-5", "1e12", "nan"])
def test_what_is_not_a_time_is_refused(text: str) -> None:
    with refused(f"{text!r} is not a time; write '2026-01-31 12:00:00' (UTC), or seconds since 1970"):
        parse_moment(text)


@given(st.integers(10**8, 10**11))
def test_a_printed_time_can_be_parsed_again(at: int) -> None:
    assert parse_moment(moment_text(at)) == at


def test_a_time_in_a_scenario_counts_from_its_start() -> None:
    assert moment_text(90.5) == "90.5 s"
