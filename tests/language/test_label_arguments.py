"""Labels in commands, environment variables and files."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.language.arguments import labels_of, merge, parse_labels, parse_labels_yaml
from stead.language.labels import EMPTY, Labels
from tests.language.sentences import refused

GOOD = "good labels are 'zone=us-west4-a,gpu_type=A100' or '{\"zone\": \"us-west4-a\"}'"


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", {}),
        ("  ", {}),
        ("{}", {}),
        ("{ }", {}),
        ("zone=a", {"zone": "a"}),
        ("zone=a,gpu=A100", {"zone": "a", "gpu": "A100"}),
        (" zone = a , gpu = A100 ", {"zone": "a", "gpu": "A100"}),
        ("zone=", {"zone": ""}),
        ("zone=,gpu=x", {"zone": "", "gpu": "x"}),
        ("ray.io/accelerator-type=A100,region=us", {"ray.io/accelerator-type": "A100", "region": "us"}),
        ('{"location": "dc_1"}', {"location": "dc_1"}),
        ('{"a":"b","c":""}', {"a": "b", "c": ""}),
        (' {"location":"dc_1"} ', {"location": "dc_1"}),
        ("{location:dc_1}", {"location": "dc_1"}),
        ("{location: dc_1}", {"location": "dc_1"}),
        ("{a:b,c:d}", {"a": "b", "c": "d"}),
        ("{a:b, c:}", {"a": "b", "c": ""}),
        ("{ray.io/market-type:spot}", {"ray.io/market-type": "spot"}),
        ("{count:4}", {"count": "4"}),
        ("{'a':'b'}", {"a": "b"}),
        ('{"a":b,\'c\':""}', {"a": "b", "c": ""}),
    ],
)
def test_labels_are_written(text: str, labels: dict[str, str]) -> None:
    assert parse_labels(text) == Labels(labels)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("zone", ["labels 'zone' have the part 'zone' without '='", GOOD]),
        ("zone:a", ["labels 'zone:a' have the part 'zone:a' without '='", GOOD]),
        ("zone=a,", ["labels 'zone=a,' have the part '' without '='", GOOD]),
        ("zone=a,,b=c", ["have the part '' without '='", GOOD]),
        ("=a", ["label key '' must be a non-empty string", "for example 'zone'"]),
        ("a=b=c", ["the value of label 'a', 'b=c' contains '='", "for example 'us-west4-a'"]),
        ("a=b;c=d", ["the value of label 'a', 'b;c=d' contains ';'", "for example 'us-west4-a'"]),
        ("a=b,a=c", ["label 'a' is given twice", "for example 'a=c'"]),
        ('{"a":"b","a":"c"}', ["label 'a' is given twice", "for example 'a=c'"]),
        ("{a:b,a:b}", ["label 'a' is given twice", "for example 'a=b'"]),
        ("{a:b:c}", ["labels '{a:b:c}' cannot be read as a map at 'a:b:c'", GOOD]),
        ("{a}", ["cannot be read as a map at 'a'", GOOD]),
        ("{a:b,}", ["cannot be read as a map at ''", GOOD]),
        ("{a:b", ["labels '{a:b' cannot be read as a map at '{'", GOOD]),
        ("{a:{b:c}}", ["cannot be read as a map at 'a:{b:c}'", GOOD]),
        ('{a:"b}', ["cannot be read as a map at 'a:\"b'", GOOD]),
        ("{a:b c:d}", ["cannot be read as a map at 'a:b c:d'", GOOD]),
        ("{a b:c}", ["cannot be read as a map at 'a b:c'", GOOD]),
        ('{"a":"b"} x', ["cannot be read as a map at '{'", GOOD]),
        ("{a:[b]}", ["cannot be read as a map at 'a:[b]'", GOOD]),
        ('{"a":1}', ["the value of label 'a', 1 must be a string, for example '1'"]),
        ('{"a":true}', ["the value of label 'a', True must be a string, for example 'true'"]),
        ('{"a":{"b":"c"}}', ["the value of label 'a',", "must be a string, for example 'A100'"]),
        ('{"a":' * 100_000, ["cannot be read as a map at '{'", GOOD]),
        ("node_id=x", ["label 'node_id' is set by stead on every node", "for example 'zone'"]),
        ("node_ip=x", ["label 'node_ip' is set by stead on every node", "for example 'zone'"]),
        ("{node_name:x}", ["label 'node_name' is set by stead on every node", "for example 'zone'"]),
        ("ray.io/node-id=x", ["label 'ray.io/node-id' is set by stead on every node", "for example 'zone'"]),
        (None, ["labels must be given as text such as 'zone=us-west4-a,", "not None"]),
        ({"a": "b"}, ["labels must be given as text such as 'zone=us-west4-a,", "not {'a': 'b'}"]),
    ],
)
def test_ambiguous_text_is_refused(text: Any, parts: list[str]) -> None:
    with refused(*parts):
        parse_labels(text)


def test_a_map_is_checked_like_text() -> None:
    assert labels_of({"zone": "a"}) == Labels({"zone": "a"})
    with refused("label 'node_id' is set by stead"):
        labels_of({"node_id": "a"})
    with refused("label key 'a b' contains ' '"):
        labels_of({"a b": "c"})


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", {}),
        ("# nothing\n", {}),
        ("{}", {}),
        ("zone: a\ngpu: A100\n", {"zone": "a", "gpu": "A100"}),
        ("---\nzone: a\n", {"zone": "a"}),
        ('{"zone": "a", gpu: b}', {"zone": "a", "gpu": "b"}),
        ('zone: ""\n', {"zone": ""}),
        ("version: 1.10\nspot: yes\nday: 2024-01-01\nn: 010\n", None),
        ("'quoted': 'x'", {"quoted": "x"}),
        ('zone="a"\n', {"zone": "a"}),
        ('# pod\nzone="a"\n\n  app.kubernetes.io/name="ray"  \nempty=""\n', None),
    ],
)
def test_a_labels_file_is_a_flat_map_or_downward_lines(text: str, labels: dict[str, str] | None) -> None:
    expected = labels
    if expected is None and text.startswith("#"):
        expected = {"zone": "a", "app.kubernetes.io/name": "ray", "empty": ""}
    elif expected is None:
        expected = {"version": "1.10", "spot": "yes", "day": "2024-01-01", "n": "010"}
    assert parse_labels_yaml(text) == Labels(expected)


LINE = "a good line is 'zone: us-west4-a'"
DOWNWARD_LINE = "a good line is 'zone=\"us-west4-a\"'"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("- zone", ["the labels file must hold a map from key to value", LINE]),
        ("zone", ["the labels file must hold a map from key to value", LINE]),
        ("a: b\nzone: [a]", ["line 2 of the labels file must be one key with one value", LINE]),
        ("zone: {a: b}", ["line 1 of the labels file must be one key with one value", LINE]),
        ("? [a]\n: b", ["line 1 of the labels file must be one key with one value", LINE]),
        ("zone:", ["label 'zone' in the labels file has no value", "for an empty value write 'zone: \"\"'"]),
        ("zone: null", ["label 'zone' in the labels file has no value", "for an empty value write"]),
        ("zone: a\nzone: b", ["label 'zone' is given twice", "for example 'zone=b'"]),
        ("a: b\n c: d: e", ["the labels file is not YAML, line 2: mapping values are not allowed", LINE]),
        ("a: 'b", ["the labels file is not YAML, line 1: found unexpected end", LINE]),
        ("a: b\n---\nc: d", ["the labels file is not YAML, line 2: but found another document", LINE]),
        ("a: \x00", ["the labels file is not YAML, it contains invalid characters", LINE]),
        ("[" * 100_000, ["the labels file is nested too deeply", LINE]),
        ("a: b c", ["the value of label 'a', 'b c' contains ' '", "for example 'us-west4-a'"]),
        ("node_id: x", ["label 'node_id' is set by stead on every node"]),
        ('zone="a"\nzone="b"', ["label 'zone' is given twice", "for example 'zone=b'"]),
        ('zone="a"\nb: c', ["the line 'b: c' of the labels file is not a label", DOWNWARD_LINE]),
        ('zone="a\\q"', ["of the labels file is not a label", DOWNWARD_LINE]),
        (None, ["labels must be given as text such as 'zone: us-west4-a', not None"]),
    ],
)
def test_a_labels_file_of_another_shape_is_refused(text: Any, parts: list[str]) -> None:
    with refused(*parts):
        parse_labels_yaml(text)


def test_the_argument_wins_over_the_file() -> None:
    file, argument = Labels({"zone": "a", "gpu": "x"}), Labels({"zone": "b", "spot": ""})
    assert merge(file, argument) == Labels({"zone": "b", "gpu": "x", "spot": ""})
    assert merge(file) == file
    assert merge(from_argument=argument) == argument
    assert merge() == EMPTY


NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,5}[A-Za-z0-9])?", fullmatch=True)
LABELS = st.dictionaries(NAMES, st.one_of(st.just(""), NAMES), max_size=4)


@given(LABELS)
def test_printed_labels_can_be_parsed_again_in_every_form(pairs: dict[str, str]) -> None:
    labels = Labels(pairs)
    assert parse_labels(str(labels)) == labels
    assert parse_labels("{" + ",".join(f"{key}:{value}" for key, value in pairs.items()) + "}") == labels
    assert parse_labels("{" + ", ".join(f'"{key}": "{value}"' for key, value in pairs.items()) + "}") == labels
    assert parse_labels_yaml("\n".join(f'{key}="{value}"' for key, value in pairs.items())) == labels
    assert parse_labels_yaml("\n".join(f"'{key}': '{value}'" for key, value in pairs.items())) == labels
