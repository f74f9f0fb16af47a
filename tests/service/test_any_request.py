"""Requests generated from the OpenAPI document, valid and invalid ones: no answer is a server error, and every
answer matches the document. `make soak` sends 20,000.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from stead.service.guard import Limits
from tests.service.conftest import SCENARIO
from tests.serving import Served, serving, simulated

CASES = 20_000 if os.environ.get("STEAD_SOAK") == "1" else 500
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
KNOWN: dict[str, list[Any]] = {
    "node_id": ["cpu-1", "cpu-2", "10.0.0.3", "012345"],
    "id": ["web-1", "render", "ring"],
    "number": [1, 2, 3],
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    limits = Limits(reads=1e9, writes=1e9, wrong=1e9)
    with simulated(SCENARIO) as desk, serving(desk, limits=limits) as found:
        yield found


@pytest.fixture(scope="module")
def session(served: Served) -> Iterator[requests.Session]:
    with requests.Session() as found:
        found.trust_env = False
        found.headers["authorization"] = f"Bearer {served.token}"
        yield found


@pytest.fixture(scope="module")
def schema(served: Served, session: requests.Session) -> BaseSchema:
    return schemathesis.openapi.from_dict(session.get(f"{served.url}/openapi.json", timeout=60).json())


@pytest.mark.long
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_is_answered_as_the_document_says(
    schema: BaseSchema, served: Served, session: requests.Session, mode: GenerationMode
) -> None:
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    answered: Counter[tuple[str, int]] = Counter()

    @settings(
        max_examples=CASES // 2,
        deadline=None,
        database=None,
        derandomize=os.environ.get("STEAD_SOAK") != "1",
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of([each.as_strategy(generation_mode=mode) for each in operations]), chosen=st.data())
    def send(case: Case[Any], chosen: st.DataObject) -> None:
        for name in set(KNOWN) & set(case.path_parameters or ()):
            if chosen.draw(st.booleans()):
                case.path_parameters[name] = chosen.draw(st.sampled_from(KNOWN[name]))
        found = case.call_and_validate(base_url=served.url, session=session, checks=CHECKS)
        answered[case.operation.label, found.status_code] += 1

    send()
    assert len({label for label, _ in answered}) > len(operations) / 2
    good = sum(count for (_, status), count in answered.items() if status == 200)
    least = CASES / 20 if mode.is_positive else 0
    assert good > least, "most of what is sent would not reach the cluster"
