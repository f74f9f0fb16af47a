"""The selector language: parsed by a grammar, never evaluated; printed selectors can be parsed again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.language.labels import ANYWHERE, NOWHERE, Requirement, Selector
from stead.language.selectors import TERMS_MAX, intersection, negation, parse_selector, union, wanted_number
from tests.language.sentences import refused

IN, NOT_IN = Requirement.is_in, Requirement.not_in
EXISTS, DOES_NOT_EXIST = Requirement.exists, Requirement.does_not_exist
GT, LT = Requirement.greater_than, Requirement.less_than

ALL, ANY = Selector.all_of, Selector.any_of

A, B, C = EXISTS("a"), EXISTS("b"), EXISTS("c")


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("gpu_type in [A100, T100]", ALL(IN("gpu_type", "A100", "T100"))),
        ("gpu_type in {A100,T100}", ALL(IN("gpu_type", "A100", "T100"))),
        ("gpu_type in (A100)", ALL(IN("gpu_type", "A100"))),
        ("gpu_type IN[A100]", ALL(IN("gpu_type", "A100"))),
        ("gpu_type not in [A100]", ALL(NOT_IN("gpu_type", "A100"))),
        ("gpu_type NOT In (A100)", ALL(NOT_IN("gpu_type", "A100"))),
        ("gpu_type notin (A100)", ALL(NOT_IN("gpu_type", "A100"))),
        ("zone=a", ALL(IN("zone", "a"))),
        ("zone == a", ALL(IN("zone", "a"))),
        ("zone!=a", ALL(NOT_IN("zone", "a"))),
        ("zone = 'a'", ALL(IN("zone", "a"))),
        ('zone = "a"', ALL(IN("zone", "a"))),
        ('zone = ""', ALL(IN("zone", ""))),
        ("zone != ''", ALL(NOT_IN("zone", ""))),
        ("zone in ['', \"a\"]", ALL(IN("zone", "", "a"))),
        ("gpus > 3", ALL(GT("gpus", 3))),
        ("gpus>+3", ALL(GT("gpus", 3))),
        ("gpus < -3", ALL(LT("gpus", -3))),
        ("gpus < '4'", ALL(LT("gpus", 4))),
        ("ray.io/node-id", ALL(EXISTS("ray.io/node-id"))),
        ("  spot  ", ALL(EXISTS("spot"))),
        ("spot\nand\tcheap", ALL(EXISTS("spot"), EXISTS("cheap"))),
        ("not spot", ALL(DOES_NOT_EXIST("spot"))),
        ("!spot", ALL(DOES_NOT_EXIST("spot"))),
        ("! spot", ALL(DOES_NOT_EXIST("spot"))),
        ("not not spot", ALL(EXISTS("spot"))),
        ("not zone in [a]", ALL(NOT_IN("zone", "a"))),
        ("not zone = a", ALL(NOT_IN("zone", "a"))),
        ("not zone not in [a]", ALL(IN("zone", "a"))),
        ("a and b", ALL(A, B)),
        ("a AND b And c", ALL(A, B, C)),
        ("a,b", ALL(A, B)),
        ("zone=a,gpu=x,!spot", ALL(IN("zone", "a"), IN("gpu", "x"), DOES_NOT_EXIST("spot"))),
        ("a and b, c", ALL(A, B, C)),
        ("a or b", ANY(A, B)),
        ("a or b OR c", ANY(A, B, C)),
        ("a or b and c", Selector(((A,), (B, C)))),
        ("a and b or c", Selector(((A, B), (C,)))),
        ("(a or b) and c", Selector(((A, C), (B, C)))),
        ("(a, b) or c", Selector(((A, B), (C,)))),
        ("((a))", ALL(A)),
        ("not (a or b)", ALL(DOES_NOT_EXIST("a"), DOES_NOT_EXIST("b"))),
        ("not (a and b)", ANY(DOES_NOT_EXIST("a"), DOES_NOT_EXIST("b"))),
        ("!(a, b=1)", ANY(DOES_NOT_EXIST("a"), NOT_IN("b", "1"))),
        ("not (not (a or b))", ANY(A, B)),
        ("anywhere", ANYWHERE),
        ("Nowhere", NOWHERE),
        ("not nowhere", ANYWHERE),
        ("not anywhere", NOWHERE),
        ("anywhere and a", ALL(A)),
        ("anywhere or a", ANYWHERE),
        ("nowhere or a", ALL(A)),
        ("nowhere and a", NOWHERE),
        ('"anywhere"', ALL(EXISTS("anywhere"))),
        ("'in' in [in, not]", ALL(IN("in", "in", "not"))),
        ("notin notin (a)", ALL(NOT_IN("notin", "a"))),
        ("not notin", ALL(DOES_NOT_EXIST("notin"))),
        ("zone = or or zone = and", ANY(IN("zone", "or"), IN("zone", "and"))),
        ("node_ip in [10.0.0.1, fe80::1]", ALL(IN("node_ip", "10.0.0.1", "fe80::1"))),
        (r'node_name = "a \"b\" \\c"', ALL(IN("node_name", 'a "b" \\c'))),
        ("a and a or a", ALL(A)),
        ("zone in [a, a]", ALL(IN("zone", "a"))),
    ],
)
def test_a_selector_string_parses_to(text: str, selector: Selector) -> None:
    assert parse_selector(text) == selector
    assert parse_selector(str(selector)) == selector


GOOD = "for example 'gpu_type in [A100, T100]'"


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("", "selector '' is empty; write a label key or a condition"),
        ("  ", "selector '  ' is empty"),
        ("a inn [x]", "has the unknown operator 'inn' after 'a' (did you mean 'in'?)"),
        ("a not_in [x]", "has the unknown operator 'not_in' after 'a' (did you mean 'not in'?)"),
        ("a exists", "has the unknown operator 'exists' after 'a', "),
        ("a 'b'", "has the unknown operator \"'b'\" after 'a'"),
        ("a >= 3", "has the unknown operator '>=' after 'a'; write 'a > 3' or 'a < 3'"),
        ("a <= 3", "has the unknown operator '<=' after 'a'"),
        ("a = b c", "has 'c' where 'and', 'or' or its end was expected"),
        ("a)", "has ')' where 'and', 'or' or its end was expected"),
        ("anywhere = b", "has '=' where 'and', 'or' or its end was expected"),
        ("(a", "has its end where ')' was expected to close '('"),
        ("(a]", "has ']' where ')' was expected to close '('"),
        ("()", "has ')' where a label key was expected"),
        ("a and", "has its end where a label key was expected"),
        ("a or or b", "has the word 'or' where a label key was expected; put a key of that name in quotes"),
        ("in in [a]", "has the word 'in' where a label key was expected"),
        ("AND = a", "has the word 'AND' where a label key was expected"),
        ("a,,b", "has ',' where a label key was expected"),
        ("a,", "has its end where a label key was expected"),
        ("= a", "has '=' where a label key was expected"),
        ("not", "has its end where a label key was expected"),
        ("a not b", "has 'not' after 'a' without 'in'; write 'a not in [..]' or 'not a'"),
        ("a not", "has 'not' after 'a' without 'in'"),
        ("a =", "has its end where a value for 'a' was expected; write a value, or 'a = \"\"'"),
        ("a != , b", "has ',' where a value for 'a' was expected; write a value, or 'a != \"\"'"),
        ("a >", "has its end where a value for 'a' was expected; write a value, or 'a > 3'"),
        ("a = [b]", "has '[' where a value for 'a' was expected"),
        ("a in b", "has 'b' where a list in brackets was expected"),
        ("a in", "has its end where a list in brackets was expected"),
        ("a in ]b[", "has ']' where a list in brackets was expected"),
        ("a in []", "has ']' where a value for 'a' was expected"),
        ("a in [b,]", "has ']' where a value for 'a' was expected"),
        ("a in [,b]", "has ',' where a value for 'a' was expected"),
        ("a in [b c]", "has 'c' where ']' was expected or ',' after 'b'"),
        ("a in [b}", "has '}' where ']' was expected or ',' after 'b'"),
        ("a in [b", "has its end where ']' was expected or ',' after 'b'"),
        ("a = 'b", 'has a quote that is never closed at "\'b"'),
        ('a = "b\\"', "has a quote that is never closed at"),
        ("a, b or c", "mixes ',' with 'or', which is ambiguous; write 'and' and parentheses"),
        ("a or b, c", "mixes ',' with 'or'"),
        ("(" * 51 + "a" + ")" * 51, "nests parentheses or 'not' more than 50 levels deep; use fewer levels"),
        ("not " * 10_000 + "a", "nests parentheses or 'not' more than 50 levels deep"),
    ],
)
def test_a_mistake_is_named_in_one_sentence(text: str, bad: str) -> None:
    with refused(f"selector {text!r} ", bad, GOOD):
        parse_selector(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a$ = b", ["label key 'a$' contains '$'", "for example 'zone'"]),
        ("a = b$", ["the value for label 'a', 'b$' contains '$'", "for example 'us-west4-a'"]),
        ("a in [ok, -x]", ["the value for label 'a', '-x' must begin", "for example 'us-west4-a'"]),
        ("node_ip = ''", ["the value for label 'node_ip', '', must be a non-empty string", "'node-1'"]),
        ("a > x", ["the value 'x' that label 'a' is compared with must be a 64-bit integer", "for example 3"]),
        ("a < 9223372036854775808", ["'9223372036854775808'", "64-bit integer", "for example 3"]),
        ("a > 1.5", ["the value '1.5'", "for example 3"]),
        ("not a > 3", ["'not' cannot precede the comparison 'a > 3'", "for example 'a < 4'"]),
        ("not (b or a < 3)", ["'not' cannot precede the comparison 'a < 3'"]),
    ],
)
def test_a_bad_key_or_value_is_named(text: str, parts: list[str]) -> None:
    with refused(*parts):
        parse_selector(text)


@pytest.mark.parametrize("given_text", [None, 3, ["a"], b"a"])
def test_a_selector_is_text(given_text: Any) -> None:
    with refused(f"a selector must be a string such as 'gpu_type in [A100, T100]', not {given_text!r}"):
        parse_selector(given_text)


def test_fifty_parentheses_side_by_side_or_deep_are_fine() -> None:
    assert parse_selector("(" * 50 + "a" + ")" * 50) == ALL(A)
    assert parse_selector(" and ".join(["(a)"] * 500)) == ALL(A)


def test_the_number_of_alternatives_is_bounded() -> None:
    pair = "(a{0}=x or a{0}=y)"
    fits = " and ".join(pair.format(n) for n in range(8))
    assert len(parse_selector(fits).terms) == TERMS_MAX == 256
    with refused("has 512 alternatives", "at most 256 are allowed", "'zone in [a, b]' counts as one"):
        parse_selector(fits + " and " + pair.format(8))
    many = [f"a=v{n}" for n in range(257)]
    assert len(parse_selector(" or ".join(many[:256])).terms) == 256
    with refused("has 257 alternatives"):
        parse_selector(" or ".join(many))
    with refused("alternatives", "at most 256"):
        parse_selector("not (" + " or ".join(f"(a{n} and b{n})" for n in range(60)) + ")")
    assert len(parse_selector(",".join(f"k{n}=v" for n in range(5000))).terms[0]) == 5000


def test_joining_nothing_is_the_neutral_selector() -> None:
    assert intersection([]) == ANYWHERE
    assert union([]) == NOWHERE


@pytest.mark.parametrize("number", [True, None, 1.5, 2**63, -(2**63) - 1, "", [3]])
def test_a_compared_number_is_an_int64(number: object) -> None:
    with refused("that label 'k' is compared with must be a 64-bit integer", "for example 3"):
        wanted_number("k", number)


@pytest.mark.parametrize(("number", "read"), [(3, 3), (" +3 ", 3), (2**63 - 1, 2**63 - 1), (-(2**63), -(2**63))])
def test_a_compared_number_may_be_text(number: object, read: int) -> None:
    assert wanted_number("k", number) == read


NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,5}[A-Za-z0-9])?", fullmatch=True)
WORDS = st.sampled_from("in IN not and Or anywhere nowhere notin exists gt example.com/zone ray.io/in".split())
KEYS = st.one_of(NAMES, WORDS)
VALUES = st.one_of(st.just(""), NAMES, st.sampled_from(["in", "not", "and", "or", "NOT"]))
INT64 = st.integers(-(2**63), 2**63 - 1)
IDENTITIES = st.sampled_from(["node_id", "node_ip", "node_name", "ray.io/node-id"])


def listed(values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(values, min_size=1, max_size=3)


REQUIREMENTS = st.one_of(
    st.builds(lambda key, values: IN(key, *values), KEYS, listed(VALUES)),
    st.builds(lambda key, values: NOT_IN(key, *values), KEYS, listed(VALUES)),
    st.builds(lambda key, values: IN(key, *values), IDENTITIES, listed(st.text(min_size=1))),
    st.builds(EXISTS, KEYS),
    st.builds(DOES_NOT_EXIST, KEYS),
    st.builds(GT, KEYS, INT64),
    st.builds(LT, KEYS, INT64),
)
TERMS = st.lists(REQUIREMENTS, max_size=3).map(tuple)
SELECTORS = st.lists(TERMS, max_size=3).map(lambda terms: Selector(tuple(terms)))


@given(REQUIREMENTS)
def test_every_printed_requirement_can_be_parsed_again(requirement: Requirement) -> None:
    assert parse_selector(str(requirement)) == ALL(requirement)


@given(SELECTORS)
def test_every_printed_selector_can_be_parsed_again(selector: Selector) -> None:
    assert parse_selector(str(selector)) == selector


SMALL = st.sampled_from([A, B, IN("a", "1"), NOT_IN("b", "1", "2"), DOES_NOT_EXIST("c"), IN("c", "2")])
SMALL_SELECTORS = st.lists(st.lists(SMALL, max_size=3).map(tuple), max_size=3).map(lambda t: Selector(tuple(t)))
LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"))


@given(SMALL_SELECTORS, LABELS)
def test_a_negation_holds_exactly_where_its_selector_does_not(selector: Selector, labels: dict[str, str]) -> None:
    assert negation(selector).matches(labels) is not selector.matches(labels)
    assert parse_selector(f"not ({selector})").matches(labels) is not selector.matches(labels)


@given(st.lists(SMALL_SELECTORS, max_size=3), LABELS)
def test_joined_selectors_mean_all_and_any(selectors: list[Selector], labels: dict[str, str]) -> None:
    assert intersection(selectors).matches(labels) == all(one.matches(labels) for one in selectors)
    assert union(selectors).matches(labels) == any(one.matches(labels) for one in selectors)


@given(st.text("ab in[]{}(),=!<>'\"\\ 3notrd", max_size=30))
def test_any_text_is_read_or_refused_in_one_sentence(text: str) -> None:
    try:
        selector = parse_selector(text)
    except ValueError:
        with refused():
            parse_selector(text)
    else:
        assert parse_selector(str(selector)) == selector
