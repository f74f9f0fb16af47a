"""Lint: words that match nothing today, each once, with the word that was perhaps meant."""

from __future__ import annotations

from typing import Any

import pytest

from serving import simulated
from stead.errors import Invalid

SCENARIO = """
nodes:
- {id: a, count: 2, capacity: {CPU: 4}, labels: {zone: x, ray.io/market-type: spot}}
- {id: g, capacity: {CPU: 4, GPU: 2}, labels: {zone: y}}
work:
- {id: web, resources: {CPU: 1}, labels: {app: web}}
- {id: typo, count: 3, resources: {CPU: 1}, selector: "zonee = x"}
- {id: full, count: 9, resources: {CPU: 3}}
"""


def found(spec: Any) -> list[tuple[str, str]]:
    with simulated(SCENARIO) as desk:
        return [(each.code, each.text) for each in desk.lint(spec)]


def of(**fields: Any) -> list[tuple[str, str]]:
    return found({"work": [{"id": "new", **fields}]})


def test_what_waits_is_told_once_with_all_whom_it_concerns() -> None:
    with simulated(SCENARIO) as desk:
        (finding,) = desk.lint(None)
    assert (finding.code, finding.ids) == ("unknown-label", ("typo-1", "typo-2", "typo-3"))
    assert "did you mean 'zone'" in finding.text


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"selector": "ray.io/market_type = spot"}, "unknown-label", "did you mean 'ray.io/market-type'"),
        ({"selector": "zone in [x, z]"}, "unknown-value", "no node has zone=z"),
        ({"selector": "colour"}, "unknown-label", "no node has the label colour"),
        ({"resources": {"GPUs": 1}}, "unknown-resource", "did you mean 'GPU'"),
        ({"resources": {"GPU": 4}}, "too-large", "the greatest node has 2 GPU"),
        ({"near": {"labels": {"app": "webb"}}}, "unknown-work", "did you mean 'web'"),
        ({"near": {"labels": {"ap": "web"}}}, "unknown-work", "did you mean 'app'"),
        ({"fallback": [{"selector": "zone = z"}]}, "unknown-value", "zone=z"),
    ],
)
def test_a_word_that_nothing_has_is_found(fields: dict[str, Any], code: str, words: str) -> None:
    ((told, text),) = of(**fields)
    assert (told, words in text) == (code, True), text


@pytest.mark.parametrize(
    "fields",
    [
        {"selector": "zone = x"},
        {"selector": "zone != z"},
        {"selector": "not colour"},
        {"resources": {"CPU": 4}},
        {"resources": {"CPU": 3}},
        {"apart": {"labels": {"app": "nothing"}}},
        {"labels": {"app": "first"}, "near": {"labels": {"app": "first"}}},
    ],
)
def test_what_only_has_to_wait_or_asks_for_nothing_is_not(fields: dict[str, Any]) -> None:
    assert of(**fields) == []


def test_members_of_a_group_are_told_by_the_group() -> None:
    with simulated(SCENARIO) as desk:
        spec = {"groups": [{"id": "gang", "bundles": [{"TPU": 1}, {"TPU": 1}]}]}
        (finding,) = desk.lint(spec)
    assert finding.ids == ("gang",)


@pytest.mark.parametrize("spec", [{}, {"work": []}, {"changes": []}, 3, None.__class__, [], {"works": []}])
def test_what_is_no_spec_is_refused(spec: Any) -> None:
    with pytest.raises(Invalid):
        found(spec)
