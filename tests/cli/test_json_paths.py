"""JSONPath as in kubectl, on the output of commands."""

from __future__ import annotations

from typing import Any

import pytest

from stead.commands.json_paths import filled, template
from stead.errors import Invalid

ONE: dict[str, Any] = {
    "name": "gpu-1",
    "runs": 2,
    "draining": False,
    "since": None,
    "labels": {"zone": "a", "ray.io/node-id": "x1"},
    "taints": [{"key": "gpu", "value": "true"}, {"key": "team", "value": "blue"}],
}
LIST: list[dict[str, Any]] = [
    {"name": "a", "runs": 1, "labels": {"zone": "x"}},
    {"name": "b", "runs": 5, "labels": {}},
    {"name": "c", "runs": 10, "labels": {"zone": "y"}},
]

PICKED: list[tuple[str, Any, str]] = [
    ("{.name}", ONE, "gpu-1"),
    (".name", ONE, "gpu-1"),
    ("{$.name}", ONE, "gpu-1"),
    ("{['name']}", ONE, "gpu-1"),
    ("{.name} runs {.runs}", ONE, "gpu-1 runs 2"),
    ('{.name}{"\\t"}{.runs}{"\\n"}', ONE, "gpu-1\t2\n"),
    ("{.draining}", ONE, "false"),
    ("{.since}", ONE, ""),
    ("{.nothing.deeper}", ONE, ""),
    ("{.labels}", ONE, '{"zone":"a","ray.io/node-id":"x1"}'),
    ("{.labels.ray\\.io/node-id}", ONE, "x1"),
    ('{.labels["ray.io/node-id"]}', ONE, "x1"),
    ("{.labels.*}", ONE, "a x1"),
    ("{.taints[0].key}", ONE, "gpu"),
    ("{.taints[-1].key}", ONE, "team"),
    ("{.taints[*].key}", ONE, "gpu team"),
    ('{.taints[?(@.key=="team")].value}', ONE, "blue"),
    ("{.taints[?(@.key!='team')].value}", ONE, "true"),
    ("{.items[*].name}", LIST, "a b c"),
    ("{[*].name}", LIST, "a b c"),
    ("{.items[1].name}", LIST, "b"),
    ("{.items[*].labels.zone}", LIST, "x y"),
    ("{.items[?(@.runs>=5)].name}", LIST, "b c"),
    ("{.items[?(@.runs<5)].name}", LIST, "a"),
    ("{.items[?(@.labels.zone)].name}", LIST, "a c"),
    ("{.items[?(@.name>3)].name}", LIST, ""),
    ("{.items[*].name}", [], ""),
]

REFUSED: list[tuple[str, Any, str]] = [
    ("name", ONE, "jsonpath 'name' has no expression; a good one is '{.items[*].name}'"),
    ("", ONE, "jsonpath '' has no expression"),
    ("{.name", ONE, "jsonpath '{.name' has no closing brace"),
    ("{.name[}", ONE, "jsonpath '.name[' cannot be read from '[' on"),
    ("{..name}", ONE, "jsonpath '..name' cannot be read from '..name' on"),
    ("{range .items[*]}{.name}{end}", LIST, "jsonpath cannot use {range .items[*]} here; [*] takes every item"),
    ('{"a}', ONE, "jsonpath '{\"a}' has no closing brace"),
    ("{.name}", LIST, "jsonpath takes the field 'name' of a list; take every item with [*], as in '{.items[*].name}'"),
    ("{.items[7].name}", LIST, "jsonpath takes [7] of a list with 3 items; [*] takes every item"),
    ("{.items[?(@.a~3)]}", LIST, "jsonpath '.items[?(@.a~3)]' cannot be read from '[?(@.a~3)]' on"),
]


@pytest.mark.parametrize(("text", "value", "expected"), PICKED, ids=[text for text, _, _ in PICKED])
def test_a_template_is_filled_with_what_its_paths_pick(text: str, value: Any, expected: str) -> None:
    assert filled(template(text), value) == expected


@pytest.mark.parametrize(("text", "value", "sentence"), REFUSED, ids=[text for text, _, _ in REFUSED])
def test_an_invalid_path_is_one_sentence(text: str, value: Any, sentence: str) -> None:
    with pytest.raises(Invalid) as caught:
        filled(template(text), value)
    assert str(caught.value).startswith(sentence)
