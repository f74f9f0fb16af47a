"""Requirements on labels and selectors, as in Kubernetes, special cases included."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.language.labels import ANYWHERE, NOWHERE, Labels, Operator, Requirement, Selector

IN, NOT_IN = Requirement.is_in, Requirement.not_in
EXISTS, DOES_NOT_EXIST = Requirement.exists, Requirement.does_not_exist
GT, LT = Requirement.greater_than, Requirement.less_than

A, B, C = IN("a", "1"), EXISTS("b"), NOT_IN("c", "3")

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


@pytest.mark.parametrize(
    ("requirement", "value", "matches"),
    [
        (IN("k", "a", "b"), "a", True),
        (IN("k", "a", "b"), "b", True),
        (IN("k", "a", "b"), "c", False),
        (IN("k", "a", "b"), None, False),
        (IN("k", "a"), "A", False),
        (IN("k", ""), "", True),
        (IN("k", ""), None, False),
        (NOT_IN("k", "a", "b"), "a", False),
        (NOT_IN("k", "a", "b"), "c", True),
        (NOT_IN("k", "a", "b"), None, True),
        (NOT_IN("k", ""), "", False),
        (NOT_IN("k", ""), None, True),
        (EXISTS("k"), "a", True),
        (EXISTS("k"), "", True),
        (EXISTS("k"), None, False),
        (DOES_NOT_EXIST("k"), "a", False),
        (DOES_NOT_EXIST("k"), "", False),
        (DOES_NOT_EXIST("k"), None, True),
        (GT("k", 3), "4", True),
        (GT("k", 3), "3", False),
        (GT("k", 3), "2", False),
        (GT("k", 3), "+5", True),
        (GT("k", 3), "0005", True),
        (GT("k", 3), "10", True),
        (GT("k", 3), "4.5", False),
        (GT("k", 3), "many", False),
        (GT("k", 3), "", False),
        (GT("k", 3), None, False),
        (GT("k", -3), "-2", True),
        (GT("k", 0), "1", True),
        (GT("k", 0), "0", False),
        (GT("k", INT64_MAX - 1), "9223372036854775807", True),
        (GT("k", INT64_MAX - 1), "9223372036854775808", False),
        (LT("k", 3), "2", True),
        (LT("k", 3), "3", False),
        (LT("k", 3), "4", False),
        (LT("k", 3), "-10", True),
        (LT("k", 3), "few", False),
        (LT("k", 3), "", False),
        (LT("k", 3), None, False),
        (LT("k", 0), "-1", True),
        (LT("k", INT64_MIN + 1), "-9223372036854775808", True),
        (LT("k", INT64_MIN + 1), "-9223372036854775809", False),
    ],
    ids=lambda value: repr(value) if isinstance(value, str) else str(value),
)
def test_one_label_and_one_requirement(requirement: Requirement, value: str | None, matches: bool) -> None:
    labels = {"other": "a"} if value is None else {"k": value, "other": "z"}
    assert requirement.matches(labels) is matches
    assert requirement.matches(Labels(labels)) is matches
    assert Selector.all_of(requirement).matches(labels) is matches
    if value is not None:
        assert requirement.accepts(value) is matches


def test_a_range_with_exceptions_is_one_requirement() -> None:
    between = Requirement("k", frozenset({"5"}), complement=True, absent=False, greater=3, less=7)
    assert [n for n in range(10) if between.accepts(str(n))] == [4, 6]
    exactly = Requirement("k", frozenset({"5", "9"}), complement=False, absent=True, greater=3, less=7)
    assert [n for n in range(10) if exactly.accepts(str(n))] == [5]
    assert exactly.matches({})


@pytest.mark.parametrize(
    ("requirement", "operator", "text"),
    [
        (IN("k", "b", "a"), Operator.IN, "k in {a, b}"),
        (IN("k", ""), Operator.IN, 'k in {""}'),
        (IN("k", "a b"), Operator.IN, 'k in {"a b"}'),
        (IN("node_ip", "fe80::1"), Operator.IN, "node_ip in {fe80::1}"),
        (IN("node_name", 'a"b\\c'), Operator.IN, 'node_name in {"a\\"b\\\\c"}'),
        (IN("k", "in", "NOT"), Operator.IN, "k in {NOT, in}"),
        (NOT_IN("k", "a"), Operator.NOT_IN, "k not in {a}"),
        (EXISTS("k"), Operator.EXISTS, "k"),
        (EXISTS("ray.io/node-id"), Operator.EXISTS, "ray.io/node-id"),
        (EXISTS("anywhere"), Operator.EXISTS, '"anywhere"'),
        (IN("nowhere", "a"), Operator.IN, '"nowhere" in {a}'),
        (NOT_IN("Or", "a"), Operator.NOT_IN, '"Or" not in {a}'),
        (DOES_NOT_EXIST("k"), Operator.DOES_NOT_EXIST, "not k"),
        (DOES_NOT_EXIST("not"), Operator.DOES_NOT_EXIST, 'not "not"'),
        (GT("k", 3), Operator.GT, "k > 3"),
        (GT("k", 0), Operator.GT, "k > 0"),
        (GT("IN", -3), Operator.GT, '"IN" > -3'),
        (LT("k", 0), Operator.LT, "k < 0"),
        (LT("and", 7), Operator.LT, '"and" < 7'),
    ],
)
def test_a_requirement_knows_its_operator_and_prints_itself(
    requirement: Requirement, operator: Operator, text: str
) -> None:
    assert requirement.operator is operator
    assert str(requirement) == text


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (ANYWHERE, "anywhere"),
        (NOWHERE, "nowhere"),
        (Selector.all_of(A), "a in {1}"),
        (Selector.all_of(A, B), "a in {1} and b"),
        (Selector.any_of(A, B), "a in {1} or b"),
        (Selector(((A, B), (C,))), "(a in {1} and b) or c not in {3}"),
        (Selector(((C,), (A, B))), "c not in {3} or (a in {1} and b)"),
        (Selector(((A,), (), (B,))), "anywhere"),
    ],
)
def test_a_selector_prints_itself(selector: Selector, text: str) -> None:
    assert str(selector) == text


def test_a_selector_is_an_or_of_ands() -> None:
    selector = Selector(((A, B), (C,)))
    assert selector.matches({"a": "1", "b": "", "c": "3"})
    assert not selector.matches({"a": "1", "c": "3"})
    assert not selector.matches({"b": "", "c": "3"})
    assert selector.matches({})
    assert selector.keys == {"a", "b", "c"}
    assert ANYWHERE.matches({})
    assert not NOWHERE.matches({})
    assert ANYWHERE.keys == NOWHERE.keys == frozenset()


def test_duplicate_terms_count_once() -> None:
    assert Selector(((A, B, A), (C,), (A, B))).terms == ((A, B), (C,))
    assert Selector.all_of() == ANYWHERE
    assert Selector.any_of() == NOWHERE
    assert Selector(((A,), ())) == ANYWHERE
    assert Selector.all_of(A, B).terms == ((A, B),)
    assert Selector.any_of(A, B).terms == ((A,), (B,))


def test_and_distributes_over_or() -> None:
    assert (Selector.any_of(A, B) & Selector.all_of(C)).terms == ((A, C), (B, C))
    assert (Selector.any_of(A, B) & Selector.any_of(B, C)).terms == ((A, B), (A, C), (B,), (B, C))
    assert (Selector.all_of(A) | Selector.all_of(B, C)).terms == ((A,), (B, C))
    assert ANYWHERE & Selector.all_of(A) == Selector.all_of(A)
    assert NOWHERE & Selector.all_of(A) == NOWHERE
    assert NOWHERE | Selector.all_of(A) == Selector.all_of(A)
    assert ANYWHERE | Selector.all_of(A) == ANYWHERE


def test_equal_selectors_are_one_value_in_every_process() -> None:
    selector, same = Selector(((A, B), (C,))), Selector(((A, B), (C,)))
    assert selector == same
    assert hash(selector) == hash(same) == hash(selector.terms)
    assert selector != Selector(((C,), (A, B)))
    assert pickle.loads(pickle.dumps(selector)) == selector
    assert selector.__reduce__() == (Selector, (selector.terms,))
    assert "hash" not in repr(selector)


REQUIREMENTS = st.sampled_from([A, B, C, DOES_NOT_EXIST("a"), GT("c", 2), LT("c", 4)])
SELECTORS = st.lists(st.lists(REQUIREMENTS, max_size=2).map(tuple), max_size=3).map(lambda t: Selector(tuple(t)))
LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("135"))


@given(SELECTORS, SELECTORS, LABELS)
def test_and_or_mean_what_they_say(left: Selector, right: Selector, labels: dict[str, str]) -> None:
    assert (left & right).matches(labels) == (left.matches(labels) and right.matches(labels))
    assert (left | right).matches(labels) == (left.matches(labels) or right.matches(labels))
