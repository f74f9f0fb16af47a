"""Lint: requests that nothing matches, each once, with the most similar name."""

from __future__ import annotations

from typing import Any

import pytest

from stead.errors import Invalid
from stead.operate.views import explanation_json
from tests.serving import simulated

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


def test_a_finding_about_pending_work_lists_all_of_that_work() -> None:
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
        ({"resources": {"GPU": 4}}, "too-large", "the largest node has 2 GPU"),
        ({"near": {"labels": {"app": "webb"}}}, "unknown-work", "did you mean 'web'"),
        ({"near": {"labels": {"ap": "web"}}}, "unknown-work", "did you mean 'app'"),
        ({"fallback": [{"selector": "zone = z"}]}, "unknown-value", "zone=z"),
    ],
)
def test_a_request_that_nothing_matches_is_found(fields: dict[str, Any], code: str, words: str) -> None:
    ((told, text),) = of(**fields)
    assert (told, words in text) == (code, True), text


@pytest.mark.parametrize(
    ("fields", "hints"),
    [
        ({"selector": "zonee = x"}, ["No node has the label zonee (did you mean 'zone'?)"]),
        ({"resources": {"GPUs": 1}}, ["No node has GPUs (did you mean 'GPU'?)"]),
        ({"near": {"labels": {"app": "webb"}}}, ["No work has app=webb (did you mean 'web'?)"]),
        ({"selector": "colour"}, []),
        ({"selector": "zonee = x", "fallback": [{"resources": {"CPU": 1}}]}, []),
    ],
)
def test_why_suggests_a_similar_name_if_the_work_fits_nowhere(fields: dict[str, Any], hints: list[str]) -> None:
    with simulated(SCENARIO) as desk:
        (why,) = desk.why_spec({"work": [{"id": "new", **fields}]})
    assert explanation_json(why)["hints"] == hints
    assert str(why).endswith(f"\n{hints[0]}." if hints else ".")


def test_why_of_a_group_suggests_it_once_for_all_members() -> None:
    with simulated(SCENARIO) as desk:
        (why,) = desk.why_spec({"groups": [{"id": "g2", "bundles": [{"GPUs": 1}, {"GPUs": 1}]}]})
        waits = str(desk.why("typo-1"))
    assert (str(why).count("did you mean"), waits.count("did you mean")) == (1, 1)


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
def test_work_that_only_has_to_wait_has_no_finding(fields: dict[str, Any]) -> None:
    assert of(**fields) == []


def test_findings_about_members_name_the_group() -> None:
    with simulated(SCENARIO) as desk:
        spec = {"groups": [{"id": "gang", "bundles": [{"TPU": 1}, {"TPU": 1}]}]}
        (finding,) = desk.lint(spec)
    assert finding.ids == ("gang",)


@pytest.mark.parametrize("spec", [{}, {"work": []}, {"changes": []}, 3, None.__class__, [], {"works": []}])
def test_an_invalid_spec_is_refused(spec: Any) -> None:
    with pytest.raises(Invalid):
        found(spec)
