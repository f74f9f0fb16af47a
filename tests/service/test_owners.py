"""Owners by REST and on pages: a list, one by id or name, and links to the cluster's own dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from stead.operate.views import Summary
from stead.service.pages.wording import outside
from tests.service.asking import Service
from tests.service.conftest import Serve
from tests.serving import simulated

PAGES = {"node": "cluster/nodes/{id}", "logs": "logs/?nodeId={id}"}
LINKS = {"job": "http://127.0.0.1:8265/#/jobs/{id}", "node": "javascript:alert({id})"}
SUMMARY = Summary("", "ray", 0.0, 1, 0, 0, 0, 0, 0, 0, links=LINKS)

SCENARIO = """
until: 10s
nodes:
  - {id: n, capacity: {CPU: 4}}
work:
  - {id: a, resources: {CPU: 1}, owner: blue, for: 1h}
  - {id: b, resources: {CPU: 9}, owner: blue}
  - {id: c, resources: {CPU: 1}, owner: "<i>red", for: 1h}
"""


@pytest.fixture
def owned(serve: Serve, tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "owned.yaml").write_text(SCENARIO, encoding="utf-8")
    service = serve()
    with ExitStack() as stack:
        service.desk.instead(lambda: stack.enter_context(simulated(tmp_path / "owned.yaml")))
        yield service


def test_a_list_and_one_of_them(owned: Service) -> None:
    answer = owned.ask("GET", "/owners").json
    assert [(each["id"], each["running"], each["waiting"]) for each in answer["items"]] == [
        ("blue", 1, 1),
        ("<i>red", 1, 0),
    ]
    assert owned.ask("GET", "/owners/blue").json == answer["items"][0]
    assert answer["items"][0]["asks_for"] == {"CPU": 9.0}


def test_an_unknown_owner(owned: Service) -> None:
    answer = owned.ask("GET", "/owners/blu")
    assert (answer.status, answer.error) == (
        404,
        "there is no owner 'blu' with work in this cluster (did you mean 'blue'?)",
    )


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/ui/owners", ["Owners", 'href="/ui/owners/blue"', "&lt;i&gt;red"]),
        ("/ui/owners/blue", ["<h1>blue</h1>", 'href="/ui/work/a"', 'href="/ui/work/b"', "9 CPU"]),
        ("/ui/owners/<i>red", ["<h1>&lt;i&gt;red</h1>", 'href="/ui/work/c"']),
    ],
)
def test_pages_of_them(owned: Service, path: str, shown: list[str]) -> None:
    answer = owned.ask("GET", path)
    text = answer.body.decode()
    assert answer.status == 200
    assert [part for part in shown if part not in text] == []


def test_the_page_of_an_unknown_owner_is_404(owned: Service) -> None:
    answer = owned.ask("GET", "/ui/owners/nobody")
    assert answer.status == 404
    assert "with work in this cluster" in answer.body.decode()


@pytest.mark.parametrize(
    ("path", "address"),
    [("/ui/nodes/n", "cluster/nodes/n"), ("/ui/nodes/n", "logs/?nodeId=n"), ("/ui/work/a", "logs/?nodeId=n")],
)
def test_pages_lead_to_the_dashboard_of_the_cluster(
    owned: Service, path: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = owned.ask("GET", path).body.decode()
    links = {kind: f"http://127.0.0.1:8265/#/{page}" for kind, page in PAGES.items()}
    summary = owned.desk.summary()
    monkeypatch.setattr(owned.desk._made, "summary", lambda: replace(summary, links=links))
    after = owned.ask("GET", path).body.decode()
    assert [f'href="http://127.0.0.1:8265/#/{address}"' in text for text in (before, after)] == [False, True]


@pytest.mark.parametrize(
    ("kind", "id", "address"),
    [
        ("job", "01000000", "http://127.0.0.1:8265/#/jobs/01000000"),
        ("job", 'a"/b', "http://127.0.0.1:8265/#/jobs/a%22%2Fb"),
        ("node", "1", ""),  # not a web page
        ("actor", "1", ""),
    ],
)
def test_a_link_leads_to_the_dashboard_of_the_cluster_or_nowhere(kind: str, id: str, address: str) -> None:
    assert outside(SUMMARY, kind, id) == address
