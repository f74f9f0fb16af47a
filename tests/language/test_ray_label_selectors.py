"""Ray's ``label_selector=`` strings, parsed strictly: mistakes that Ray accepts are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.language.labels import ANYWHERE, NOWHERE, Requirement, Selector
from stead.language.selectors import label_selector_strings, parse_label_selector
from tests.language.sentences import refused

IN, NOT_IN = Requirement.is_in, Requirement.not_in


@pytest.mark.parametrize(
    ("text", "requirement", "printed"),
    [
        ("a", IN("k", "a"), "a"),
        (" a ", IN("k", "a"), "a"),
        ("", IN("k", ""), ""),
        ('""', IN("k", ""), ""),
        ("''", IN("k", ""), ""),
        ("in", IN("k", "in"), "in"),
        ("!a", NOT_IN("k", "a"), "!a"),
        ("! a", NOT_IN("k", "a"), "!a"),
        ('!""', NOT_IN("k", ""), '!""'),
        ("in(a)", IN("k", "a"), "a"),
        ("in(b,a)", IN("k", "a", "b"), "in(a,b)"),
        ("IN( a , b )", IN("k", "a", "b"), "in(a,b)"),
        ("in (a)", IN("k", "a"), "a"),
        ('in("",a)', IN("k", "", "a"), 'in("",a)'),
        ("!in(a,b)", NOT_IN("k", "a", "b"), "!in(a,b)"),
        ("! In (a)", NOT_IN("k", "a"), "!a"),
        ("exists()", Requirement.exists("k"), "exists()"),
        ("EXISTS( )", Requirement.exists("k"), "exists()"),
        ("!exists()", Requirement.does_not_exist("k"), "!exists()"),
        ("gt(3)", Requirement.greater_than("k", 3), "gt(3)"),
        ("Gt( +3 )", Requirement.greater_than("k", 3), "gt(3)"),
        ("lt(-3)", Requirement.less_than("k", -3), "lt(-3)"),
    ],
)
def test_a_condition_parses_to(text: str, requirement: Requirement, printed: str) -> None:
    assert parse_label_selector({"k": text}) == Selector.all_of(requirement)
    assert label_selector_strings(Selector.all_of(requirement)) == {"k": printed}


@pytest.mark.parametrize(
    "text",
    [
        "(x)",
        "!(x)",
        "()",
        "in()",
        "in( )",
        "in(a,,b)",
        "in(a,)",
        "in(a b)",
        "in a,b",
        "a,b",
        "a b",
        "exists(x)",
        "!!x",
        "!",
        "!gt(3)",
        "!lt(3)",
        "in(a",
        "in a)",
        "in(a))",
        "in((a))",
        "in(a)b",
        "!!in(a)",
        "'a'",
        "!in(!a)",
    ],
)
def test_a_mistake_is_refused_with_the_good_forms(text: str) -> None:
    with refused(f"the condition {text!r} on label 'k' is not valid; good values are 'a', '!a', 'in(a,b)'", "gt(3)"):
        parse_label_selector({"k": text})


@pytest.mark.parametrize(("text", "meant"), [("inn(a)", "in"), ("exist()", "exists"), ("!Exist()", "exists")])
def test_a_known_operator_is_suggested(text: str, meant: str) -> None:
    with refused(f"the condition {text!r} on label 'k' is not valid (did you mean '{meant}'?); good values are"):
        parse_label_selector({"k": text})


@pytest.mark.parametrize(
    ("wanted", "parts"),
    [
        ({"k": "gt(x)"}, ["the value 'x' that label 'k' is compared with", "for example 3"]),
        ({"k": "gt()"}, ["the value '' that label 'k'", "for example 3"]),
        ({"k": "lt(1,2)"}, ["the value '1,2' that label 'k'", "for example 3"]),
        ({"k": "a$"}, ["the value for label 'k', 'a$' contains '$'", "for example 'us-west4-a'"]),
        ({"k": "in(a,-)"}, ["the value for label 'k', '-' must begin and end", "'us-west4-a'"]),
        ({"k": 3}, ["the condition 3 on label 'k' must be a string, for example 'in(a,b)'"]),
        ({"k": ["b", "a"]}, ["the condition ['b', 'a'] on label 'k' must be a string, for example 'in(a,b)'"]),
        ({"k": []}, ["the condition [] on label 'k' must be a string, for example 'in(a,b)'"]),
        ({"k": {"x", "y"}}, ["must be a string, for example 'in(x,y)'"]),
        ({"k": None}, ["the condition None on label 'k' must be a string"]),
        ({"a b": "x"}, ["label key 'a b' contains ' '", "for example 'zone'"]),
        ({3: "x"}, ["label key 3 must be a non-empty string", "for example 'zone'"]),
        ({3: "x", "a": "b"}, ["label key 3 must be a non-empty string"]),
        ("k=v", ["label_selector must be a map such as {'zone': 'in(a,b)'}, not 'k=v'"]),
        (None, ["label_selector must be a map such as"]),
        ({"node_ip": '""'}, ["the value for label 'node_ip', '', must be a non-empty string", "'node-1'"]),
    ],
)
def test_what_is_not_a_map_of_conditions_is_refused(wanted: Any, parts: list[str]) -> None:
    with refused(*parts):
        parse_label_selector(wanted)


def test_all_entries_must_hold_and_their_order_does_not_matter() -> None:
    zone, gpu = IN("zone", "a"), NOT_IN("gpu", "x")
    assert parse_label_selector({"zone": "a", "gpu": "!x"}) == Selector.all_of(gpu, zone)
    assert parse_label_selector({"gpu": "!x", "zone": "a"}) == Selector.all_of(gpu, zone)
    assert parse_label_selector({}) == ANYWHERE
    assert label_selector_strings(ANYWHERE) == {}


def test_names_of_nodes_need_not_be_label_values() -> None:
    assert parse_label_selector({"node_ip": "fe80::1"}) == Selector.all_of(IN("node_ip", "fe80::1"))
    assert label_selector_strings(Selector.all_of(IN("node_ip", "fe80::1"))) == {"node_ip": "fe80::1"}


@pytest.mark.parametrize(
    ("selector", "parts"),
    [
        (NOWHERE, ["label_selector cannot express 'nowhere'", "'zone = a'"]),
        (Selector.any_of(IN("a", "1"), IN("b", "1")), ["cannot express 'a in {1} or b in {1}'", "'zone = a'"]),
        (Selector.all_of(IN("a", "1", "2"), NOT_IN("a", "1")), ["two conditions on 'a'", "'in(a,b)'"]),
        (Selector.all_of(IN("node_name", "a b")), ["cannot express 'node_name in {\"a b\"}'", "'in(a,b)'"]),
        (Selector.all_of(IN("k")), ["cannot express 'k in {}'", "'in(a,b)' or 'gt(3)'"]),
        (
            Selector.all_of(Requirement("k", frozenset(), complement=True, absent=False, greater=1, less=5)),
            ["cannot express 'k > 1'"],
        ),
    ],
)
def test_what_these_strings_cannot_express_is_refused(selector: Selector, parts: list[str]) -> None:
    with refused(*parts):
        label_selector_strings(selector)


NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,5}[A-Za-z0-9])?", fullmatch=True)
VALUES = st.lists(st.one_of(st.just(""), st.just("exists"), NAMES), min_size=1, max_size=3)
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def requirements(draw: st.DrawFn, key: str) -> Requirement:
    kind = draw(st.integers(0, 5))
    if kind < 2:
        return (IN, NOT_IN)[kind](key, *draw(VALUES))
    if kind < 4:
        return (Requirement.exists, Requirement.does_not_exist)[kind - 2](key)
    return (Requirement.greater_than, Requirement.less_than)[kind - 4](key, draw(INT64))


@given(st.sets(NAMES, max_size=4), st.data())
def test_what_is_printed_can_be_parsed_again(keys: set[str], data: st.DataObject) -> None:
    selector = Selector.all_of(*(data.draw(requirements(key)) for key in sorted(keys)))
    assert parse_label_selector(label_selector_strings(selector)) == selector
