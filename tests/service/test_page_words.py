"""What people write into the forms of the pages: any text is understood, or refused in one sentence."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.asking import Service
from stead.errors import Invalid
from stead.operate.describing import last_number
from stead.service.pages.cluster import understood
from stead.service.pages.node import CHANGES, FIELDS, change_of
from stead.service.pages.past import moment_of
from stead.service.pages.sign_in import local
from stead.service.pages.trying import KINDS, address_of, amounts_of, rows_of, written_by
from stead.service.pages.wording import age, amount, listed, names, share, short, step

TEXT = st.text(max_size=40)
WORDS = st.one_of(TEXT, st.sampled_from(["CPU=4", "a=b", "gpu-1", "2", "{CPU: 1}", "zone in [a]", "2h", "x:NoExecute"]))
NAMES = sorted({field.name for _, fields in KINDS.values() for field in fields})


@given(st.fixed_dictionaries({"do": st.sampled_from([*CHANGES, "", "?"])}, optional=dict.fromkeys(FIELDS[1:], WORDS)))
def test_the_form_of_a_node_is_read_or_refused(form: dict[str, str]) -> None:
    with suppress(Invalid):
        assert change_of("n", form).node == "n"


@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.dictionaries(st.sampled_from(NAMES), WORDS)), max_size=4))
def test_rows_of_a_what_if_survive_their_address(rows: list[tuple[str, dict[str, str]]]) -> None:
    found = rows_of([pair for kind, values in rows for pair in (("kind", kind), *values.items())])
    again = rows_of(parse_qsl(urlsplit(address_of(found)).query))
    assert [(row.kind, {name: value for name, value in row.values.items() if value}) for row in found] == [
        (row.kind, row.values) for row in again
    ]
    with suppress(Invalid):
        written_by(found)


@given(TEXT)
def test_a_moment_a_selector_and_amounts_are_read_or_refused(text: str) -> None:
    for read in (moment_of, amounts_of):
        with suppress(Invalid):
            read(text)
    selector, problem = understood(text)
    assert not (selector and problem)


@given(TEXT)
def test_after_signing_in_one_stays_on_this_service(text: str) -> None:
    assert local(text).startswith("/ui/") and "\n" not in local(text)
    assert local(f"//{text}") == "/ui/"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-11-15T16:20", 1794759600.0),
        ("2026-11-15T16:20:00+01:00", 1794756000.0),
        ("1794759600", 1794759600.0),
        (" ", None),
    ],
)
def test_a_moment_is_utc(text: str, found: float | None) -> None:
    assert moment_of(text) == found


def test_amounts_as_people_write_them() -> None:
    assert amounts_of("CPU=8, GPU: 0.5, memory=64Gi") == {"CPU": 8.0, "GPU": 0.5, "memory": "64Gi"}
    assert amounts_of("{CPU: 8}") == {"CPU": 8.0}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (amount(64 * 2**30, "memory"), "64 GiB"),
        (amount(0.5, "CPU"), "0.5"),
        (amount(179_200, "CPU"), "179,200"),
        (age(59), "59 s"),
        (age(3600), "60 min"),
        (age(12_000), "3 h 20 min"),
        (age(500_000), "5 d"),
        (short("ab" * 28), "abababababab…"),
        (short("ab" * 18 + "/3"), "abababababab…/3"),
        (listed(["web-1", "web-2", "web-3"]), "web-1 to web-3 (3)"),
        (names(["web-1", "cache", "web-2"]), "web \N{MULTIPLICATION SIGN}2, cache"),
        (share(100, 99.9), 1),
        (share(100, 0.1), 99),
        (share(0, 0), 0),
        (step(1), 5),
        (step(100), 100),
    ],
)
def test_words_for_numbers(said: object, expected: object) -> None:
    assert said == expected


@given(st.integers(0, 5000), st.integers(0, 4999), st.integers(0, 6000))
def test_the_last_number_is_found_also_when_the_first_ones_are_forgotten(last: int, forgotten: int, seen: int) -> None:
    """Whatever was seen as the last one before: a service that starts again may begin anew."""
    kept = range(min(forgotten, last) + 1, last + 1)

    def fetch(after: int, limit: int) -> range:
        return range(max(kept.start, after + 1), kept.stop)[:limit]

    assert last_number(fetch) == last_number(fetch, seen) == (last if kept else 0)


def test_a_map_that_cannot_show_every_node_says_so(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = service.ask("GET", "/ui/").body.decode()
    assert "the map shows" not in whole
    monkeypatch.setattr("stead.service.pages.cluster.PAGE_MAX", 2)
    part = service.ask("GET", "/ui/").body.decode()
    assert "the map shows the first 2, a filter shows others" in part
    assert "the map shows" not in service.ask("GET", "/ui/?view=table").body.decode()
