"""Input in the forms of the pages: any text is accepted, or refused in one sentence."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.errors import Invalid
from stead.service.pages.cluster import understood
from stead.service.pages.node import CHANGES, FIELDS, change_of
from stead.service.pages.sign_in import local
from stead.service.pages.what_if import KINDS, address_of, rows_of, written_by
from stead.service.pages.wording import listed, names, share, step
from tests.service.asking import Service

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
def test_a_selector_is_read_or_refused(text: str) -> None:
    selector, problem = understood(text)
    assert not (selector and problem)


@given(TEXT)
def test_signing_in_returns_only_to_this_service(text: str) -> None:
    assert local(text).startswith("/ui/") and "\n" not in local(text)
    assert local(f"//{text}") == "/ui/"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (listed(["web-1", "web-2", "web-3"]), "web-1 to web-3 (3)"),
        (names(["web-1", "cache", "web-2"]), "web \N{MULTIPLICATION SIGN}2, cache"),
        (share(100, 99.9), 1),
        (share(100, 0.1), 99),
        (share(0, 0), 0),
        (step(1), 5),
        (step(100), 100),
    ],
)
def test_texts_for_numbers(said: object, expected: object) -> None:
    assert said == expected


def test_a_map_that_does_not_show_every_node_says_so(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = service.ask("GET", "/ui/").body.decode()
    assert "the map shows" not in whole
    monkeypatch.setattr("stead.service.pages.cluster.PAGE_MAX", 2)
    part = service.ask("GET", "/ui/").body.decode()
    assert "the map shows the first 2; filter to see others" in part
    assert "the map shows" not in service.ask("GET", "/ui/?view=table").body.decode()
