"""Label syntax: that of Kubernetes, with errors that show a good value."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.errors import Invalid
from stead.language.labels import EMPTY, Labels, check_key, check_value, integer
from tests.language.sentences import refused, refused_saying

GOOD_KEY = "for example 'zone' or 'example.com/zone'"
GOOD_PREFIXED = "for example 'example.com/zone'"
ONLY = "but only letters, digits, '-', '_' and '.' are allowed"


@pytest.mark.parametrize(
    "key",
    [
        "a",
        "Z",
        "0",
        "zone",
        "gpu_type",
        "a.b-c_d",
        "a" * 63,
        "ray.io/node-id",
        "example.com/Zone",
        "a-b.c-d/x",
        "0/0",
        "a--b.c/x",
        "x" * 253 + "/a",
        "a" * 100 + "." + "b" * 100 + "/" + "n" * 63,
    ],
)
def test_a_key_is_a_name_with_an_optional_dns_prefix(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("", f"label key '' must be a non-empty string, {GOOD_KEY}"),
        (None, f"label key None must be a non-empty string, {GOOD_KEY}"),
        (3, f"label key 3 must be a non-empty string, {GOOD_KEY}"),
        (b"zone", f"label key b'zone' must be a non-empty string, {GOOD_KEY}"),
        ("-a", f"label key '-a' must begin and end with a letter or digit, {GOOD_KEY}"),
        ("a-", f"label key 'a-' must begin and end with a letter or digit, {GOOD_KEY}"),
        ("_", f"label key '_' must begin and end with a letter or digit, {GOOD_KEY}"),
        ("example.com/", f"label key 'example.com/' must begin and end with a letter or digit, {GOOD_KEY}"),
        ("a b", f"label key 'a b' contains ' ', {ONLY}, {GOOD_KEY}"),
        ("zone\n", rf"label key 'zone\n' contains '\n', {ONLY}, {GOOD_KEY}"),
        ("größe", f"label key 'größe' contains 'ö', {ONLY}, {GOOD_KEY}"),
        ("zone²", f"label key 'zone²' contains '²', {ONLY}, {GOOD_KEY}"),
        ("a=b", f"label key 'a=b' contains '=', {ONLY}, {GOOD_KEY}"),
        (
            "n" * 64,
            f"label key '{'n' * 64}' has a name of 64 characters, but at most 63 are allowed, {GOOD_PREFIXED}",
        ),
    ],
)
def test_a_bad_key_is_named_with_what_is_wrong(key: object, sentence: str) -> None:
    with refused_saying(sentence):
        check_key(key)


@pytest.mark.parametrize(
    "prefix",
    ["", "Example.com", "a_b", "-a", "a-", "a..b", ".a", "a.", "a.-b", "a/b", "x" * 254, "a b", "ä.de", "a.\n"],
)
def test_a_prefix_is_a_lowercase_dns_name(prefix: str) -> None:
    with refused_saying(
        f"label key {prefix + '/zone'!r} has the prefix {prefix!r}, which must be a lowercase DNS name of at most 253 "
        f"characters, for example 'example.com/zone'"
    ):
        check_key(f"{prefix}/zone")


@pytest.mark.parametrize("value", ["", "a", "A100", "us-west4-a", "1.10", "a_b", "v" * 63, "0", "a..b"])
def test_a_value_is_a_name_or_empty(value: str) -> None:
    assert check_value(value) == value


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (True, "label value True must be a string, for example 'true'"),
        (False, "label value False must be a string, for example 'false'"),
        (4, "label value 4 must be a string, for example '4'"),
        (1.5, "label value 1.5 must be a string, for example '1.5'"),
        (-1, "label value -1 must be a string, for example 'A100'"),
        (1e300, "label value 1e+300 must be a string, for example 'A100'"),
        (None, "label value None must be a string, for example 'A100'"),
        (["a"], "label value ['a'] must be a string, for example 'A100'"),
        ("-a", "label value '-a' must begin and end with a letter or digit, for example 'us-west4-a'"),
        ("a.", "label value 'a.' must begin and end with a letter or digit, for example 'us-west4-a'"),
        ("a b", f"label value 'a b' contains ' ', {ONLY}, for example 'us-west4-a'"),
        ("a/b", f"label value 'a/b' contains '/', {ONLY}, for example 'us-west4-a'"),
        ("a\n", rf"label value 'a\n' contains '\n', {ONLY}, for example 'us-west4-a'"),
        (" " * 64, f"label value {' ' * 64!r} contains ' ', {ONLY}, for example 'us-west4-a'"),
        (
            "ab" * 32,
            f"label value '{'ab' * 32}' has 64 characters, but at most 63 are allowed, for example '{'ab' * 10}'",
        ),
        (
            "X" * 64,
            f"label value '{'X' * 64}' has 64 characters, but at most 63 are allowed, for example '{'X' * 20}'",
        ),
        (
            "a" + "._-" * 21 + "z",
            f"label value 'a{'._-' * 21}z' has 65 characters, but at most 63 are allowed, for example 'a'",
        ),
    ],
)
def test_a_bad_value_is_named_with_what_is_wrong(value: object, sentence: str) -> None:
    with refused_saying(sentence):
        check_value(value)


def test_an_error_names_the_key_or_value() -> None:
    with refused("taint key '' must be"):
        check_key("", "taint key")
    with refused("the value of taint 'k', 'a b' contains"):
        check_value("a b", "the value of taint 'k',")


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.text("a._-", min_size=60)))
def test_the_value_that_a_message_shows_is_good(value: object) -> None:
    try:
        check_value(value)
    except Invalid as error:
        shown = re.findall(r"for example '([^']*)'$", str(error))
        assert len(shown) == 1 and shown[0]
        assert check_value(shown[0]) == shown[0]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        ("+5", 5),
        ("-5", -5),
        ("-0", 0),
        ("007", 7),
        ("0", 0),
        ("000", 0),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("-9223372036854775808", -(2**63)),
        ("-9223372036854775809", None),
        ("9999999999999999999", None),
        ("10000000000000000000", None),
        ("0" * 5000 + "5", 5),
        ("9" * 5000, None),
        ("", None),
        ("+", None),
        ("++5", None),
        ("5.0", None),
        ("5 ", None),
        (" 5", None),
        ("5\n", None),
        ("1_000", None),
        ("0x10", None),
        ("1e3", None),
        ("٣", None),
        ("five", None),
    ],
)
def test_numbers_are_what_kubernetes_parses_as_int64(text: str, number: int | None) -> None:
    assert integer(text) == number


def test_labels_iterate_in_key_order_and_are_immutable_values() -> None:
    labels = Labels({"b": "2", "a": "1"})
    assert list(labels) == ["a", "b"]
    assert list(labels.items()) == [("a", "1"), ("b", "2")]
    assert len(labels) == 2
    assert labels["a"] == "1"
    assert labels.get("a") == "1"
    assert labels.get("c") is None
    assert labels.get("c", "x") == "x"
    assert "c" not in labels
    assert str(labels) == "a=1,b=2"
    assert repr(labels) == "Labels({'a': '1', 'b': '2'})"
    with pytest.raises(KeyError):
        labels["c"]


def test_equal_labels_are_one_value_whatever_their_order_and_origin() -> None:
    labels = Labels({"b": "2", "a": "1"})
    same = Labels([("a", "1"), ("b", "2")])
    assert labels == same
    assert labels == Labels(labels)
    assert hash(labels) == hash(same) == hash(same)
    assert labels != Labels({"a": "1"})
    assert labels != {"a": "1", "b": "2"}
    assert hash(labels) != hash(Labels({"a": "1"}))
    assert pickle.loads(pickle.dumps(labels)) == labels
    assert Labels() == EMPTY
    assert not EMPTY


def test_a_change_sets_and_removes_and_leaves_the_original() -> None:
    labels = Labels({"a": "1", "b": "2"})
    assert labels.changed({"c": "3", "a": "0"}, ["b"]) == Labels({"a": "0", "c": "3"})
    assert labels.changed({"b": "9"}, ["b"]) == Labels({"a": "1", "b": "9"})
    assert labels.changed({}) == labels == Labels({"a": "1", "b": "2"})
    assert labels.changed({}, iter(["a", "b"])) == EMPTY


def test_checked_labels_are_checked_key_by_key_and_value_by_value() -> None:
    assert Labels.checked({"zone": "a", "empty": ""}) == Labels({"zone": "a", "empty": ""})
    with refused_saying("labels must be a map such as {'zone': 'us-west4-a'}, not ['zone']"):
        Labels.checked(bad(["zone"]))
    with refused("label key 'a b' contains ' '"):
        Labels.checked({"a b": "x"})
    with refused("the value of label 'zone', 3 must be a string, for example '3'"):
        Labels.checked(bad({"zone": 3}))


def bad(value: Any) -> Mapping[Any, Any]:
    """A value that a type checker would refuse."""
    given: Mapping[Any, Any] = value
    return given
