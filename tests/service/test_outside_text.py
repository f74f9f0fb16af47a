"""All input from outside, with any text: it is accepted, or refused in one sentence, and never causes a server error.

`make soak` tries fifty times as much.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stead.errors import Invalid
from stead.operate.filters import conditions
from stead.service.api import _duration
from stead.service.guard import Limits, _host, cookie_in, is_open, is_question
from tests.service.asking import Service
from tests.service.conftest import Serve

EXAMPLES = 5000 if os.environ.get("STEAD_SOAK") == "1" else 100
some = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

texts = st.text(max_size=40) | st.sampled_from(
    ["zone = a", "zone in [a", "a" * 300, "not", "and", "labels.zone=a", "=", "!=", "2h", "1e999", "∞", "\ud800", "nan"]
)
atoms: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from([10**400, -1, 0, 1, 0.5])
)
nested: st.SearchStrategy[Any] = st.recursive(
    atoms, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
NODES = ["cpu-1", "012345", "nowhere", "10.0.0.3", ""]
CHANGES = ("taint", "untaint", "label", "drain", "undrain", "leave", "join", "resize", "suggested", "end", "lose")
PARTS = (
    "resources selector label_selector tolerations labels namespace near apart spread prefers policy fallback priority "
    "deadline owner at for every count"
).split()


def sections(names: tuple[str, ...] | list[str], key: str) -> st.SearchStrategy[Any]:
    fields = st.dictionaries(st.sampled_from(names), nested, max_size=3)
    return st.lists(st.builds(lambda rest, id: {key: id, **rest}, fields, atoms | st.just("new")), max_size=2) | nested


specs = st.fixed_dictionaries(
    {},
    optional={
        "work": sections(PARTS, "id"),
        "groups": sections([*PARTS, "bundles", "strategy", "topology"], "id"),
        "changes": st.lists(
            st.dictionaries(
                st.sampled_from([*CHANGES, "taints", "key", "labels", "remove", "capacity", "effect"]),
                nested | st.sampled_from(NODES),
                max_size=3,
            ),
            max_size=2,
        )
        | nested,
    },
)


def said(value: Any) -> bytes:
    return json.dumps(value, default=str).encode()


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve(limits=Limits(reads=1e9, writes=1e9, wrong=1e9))


def check(found: Any, path: str) -> None:
    assert found.status < 500, (path, found.body)
    if found.status != 200:
        assert found.error.isprintable(), found.error
        assert len(found.error) < 3000, found.error


@some
@given(spec=specs | nested, path=st.sampled_from(["/why", "/what-if", "/lint"]))
def test_specs(service: Service, spec: Any, path: str) -> None:
    check(service.ask("POST", path, said(spec)), path)


@some
@given(
    edit=st.dictionaries(
        st.sampled_from(
            (
                "taints untaints labels unlabels unlabel_values draining evict for owner until_job overwrite dry_run "
                "other"
            ).split()
        ),
        nested,
        max_size=4,
    )
    | st.fixed_dictionaries(
        {},
        optional={
            "taints": st.lists(st.fixed_dictionaries({"key": texts}, optional={"value": texts, "effect": texts})),
            "untaints": st.lists(st.fixed_dictionaries({"key": texts}, optional={"value": texts, "effect": texts})),
            "labels": st.dictionaries(texts, texts),
            "for": texts | st.floats(),
        },
    ),
    node=st.sampled_from(NODES) | texts,
)
def test_changes(service: Service, edit: Any, node: str) -> None:
    path = f"/nodes/{node.encode(errors='replace').decode()}"
    check(service.ask("PATCH", path.replace("?", ""), said(edit), service.token), path)


@some
@given(selector=texts, filters=st.lists(texts, max_size=3), path=st.sampled_from(["/nodes", "/asks", "/groups"]))
def test_selectors_and_filters(service: Service, selector: str, filters: list[str], path: str) -> None:
    query = "&".join(f"filter={quote(each, errors='replace')}" for each in filters)
    found = service.ask("GET", f"{path}?selector={quote(selector, errors='replace')}&{query}")
    check(found, path)


@some
@given(ask=texts, at=texts | st.floats().map(str), number=texts)
def test_ids_and_moments(service: Service, ask: str, at: str, number: str) -> None:
    for path in (
        f"/replay?ask={quote(ask, errors='replace')}&at={quote(at, errors='replace')}",
        f"/events?after={quote(number, errors='replace')}",
        f"/asks/{quote(ask, errors='replace')}/why",
    ):
        check(service.ask("GET", path), path)


@some
@given(body=st.binary(max_size=60), path=st.sampled_from(["/why", "/nodes/taints/cpu-1", "/login", "/what-if"]))
def test_bodies_that_are_not_json(service: Service, body: bytes, path: str) -> None:
    found = service.ask("POST", path, body, service.token)
    assert found.status < 500, (path, found.body)


@some
@given(
    name=st.sampled_from(["cookie", "authorization", "origin", "accept", "last-event-id", "content-type", "host"]),
    value=st.binary(max_size=60),
)
def test_headers(service: Service, name: str, value: bytes) -> None:
    sent = [(name, value.decode("latin-1"))]
    host = None if name == "host" else "127.0.0.1"
    for method, path in (("GET", "/nodes"), ("POST", "/nodes/drain/cpu-1")):
        found = service.ask(method, path, headers=sent, host=host)
        assert found.status < 500
        assert method == "GET" or found.status in (400, 401, 403)


@given(st.text())
def test_a_host_is_a_name_without_its_port_or_none(text: str) -> None:
    found = _host(text)
    assert not set(found) & set(" @/\\?#,\r\n\0")


@given(st.text())
def test_a_cookie_is_ours_or_none(text: str) -> None:
    assert ";" not in cookie_in(text)


@given(st.text(), st.sampled_from(["POST", "PUT", "DELETE", "PATCH", "post"]))
def test_a_path_that_is_not_listed_is_a_change(text: str, method: str) -> None:
    path = f"/{text}"
    if path not in ("/what-if", "/why", "/lint", "/healthz", "/login", "/logout"):
        assert not is_question(method, path) or path.startswith("/ui/ask/")
        assert not is_open(method, path)


@given(texts)
def test_a_filter_is_read_or_refused(text: str) -> None:
    with suppress(Invalid):
        (found,) = conditions([text], ("id", "labels"))
        assert found.name in ("id", "labels")


@given(texts | st.floats())
def test_a_duration_is_read_or_refused(said: Any) -> None:
    with suppress(Invalid):
        found = _duration(said)
        assert found is None or 0 <= found <= 1e12
