"""A what-if that only changes nodes is applied as one change; two what-ifs are compared in one table."""

from __future__ import annotations

import re

import pytest

from tests.service.asking import Service
from tests.service.page_forms import look, send, words_of

DRAIN = [("kind", "drain"), ("node", "cpu-one")]
LABEL = [("kind", "label"), ("node", "cpu-2"), ("labels", "disk=nvme")]
TAINT = [("kind", "written"), ("text", "changes: [{taint: [cpu-1, cpu-2], taints: team=blue}]")]


def test_changes_of_nodes_are_applied_as_one_change(service: Service) -> None:
    tried = send(service, "/ui/ask/what-if", [*DRAIN, *LABEL, *TAINT, ("do", "try")])
    assert 'action="/ui/do/what-if"' in tried.body.decode()
    assert service.desk.audit(0, 9) == []
    made = send(service, "/ui/do/what-if", [*DRAIN, *LABEL, *TAINT])
    assert made.headers["location"] == "/ui/change?done=1"
    (entry,) = service.desk.audit(0, 9)
    assert set(entry.states) == {"cpu-1", "cpu-2"}
    first, second = service.desk.node("cpu-1"), service.desk.node("cpu-2")
    assert first.draining and second.labels["disk"] == "nvme" and [str(t) for t in second.taints] == ["team=blue"]


def test_a_change_of_one_node_leads_to_its_page(service: Service) -> None:
    assert send(service, "/ui/do/what-if", DRAIN).headers["location"] == "/ui/nodes/cpu-1?done=1"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("kind", "leave"), ("node", "cpu-1")], "a removed node cannot be applied"),
        ([("kind", "join"), ("count", "1"), ("like", "cpu-1")], "a new node cannot be applied"),
        ([*DRAIN, ("kind", "work"), ("count", "1"), ("resources", "CPU=1")], "work of a what-if cannot be applied"),
        ([("kind", "suggested"), ("id", "render")], "suggested cannot be applied"),
    ],
)
def test_other_what_ifs_are_not_offered_and_refused(service: Service, rows: list[tuple[str, str]], said: str) -> None:
    tried = send(service, "/ui/ask/what-if", [*rows, ("do", "try")])
    assert tried.status == 200 and said in words_of(tried)
    assert "/ui/do/what-if" not in tried.body.decode()
    assert send(service, "/ui/do/what-if", rows).status == 400
    assert service.desk.audit(0, 9) == []


def test_applying_needs_an_operator(service: Service) -> None:
    assert send(service, "/ui/do/what-if", DRAIN, token="").status == 401
    assert send(service, "/ui/do/what-if", DRAIN, token=service.keys.give("viewer", "guest")).status == 403
    stranger = send(service, "/ui/ask/what-if", [*DRAIN, ("do", "try")], token="").body.decode()
    assert "/login?next=/ui/what-if%3Fkind%3Ddrain%26node%3Dcpu-one" in stranger


def test_new_work_and_new_nodes_are_plain_text(service: Service) -> None:
    rows = [("kind", "join"), ("count", "1"), ("capacity", "CPU=128")]
    rows += [("kind", "work"), ("count", "1"), ("id", "trial"), ("resources", "CPU=33")]
    page = send(service, "/ui/ask/what-if", [*rows, ("do", "try")]).body.decode()
    assert re.search(r'<th scope="row">trial-1</th><td data-label="Now"><span class="quiet">not submitted', page)
    assert "find?id=trial" not in page and "/ui/nodes/new-1" not in page


class TestComparing:
    FIRST = "changes: [{untaint: 0123456789abcdef, key: gpu_node}]"
    SECOND = "changes: [{join: {like: cpu-1, count: 2}}]"

    def test_two_texts_are_one_table(self, service: Service) -> None:
        answered = send(service, "/ui/ask/compare", [("first", self.FIRST), ("second", self.SECOND)], token="")
        assert answered.status == 200
        page = answered.body.decode()
        assert page.count("<table") == 1
        cells = [words_of(cell).strip() for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", page, re.DOTALL)]
        assert cells[cells.index("Nodes") :][:4] == ["Nodes", "4", "4", "6"]
        render = cells.index("render")
        assert cells[render + 1 : render + 4] == ["pending", "would start: 0123456789ab", "as now"]

    def test_an_error_is_shown_next_to_its_text(self, service: Service) -> None:
        answered = send(service, "/ui/ask/compare", [("first", self.FIRST), ("second", "changes: [{drain: nobody}]")])
        assert answered.status == 400
        assert "Second what-if: changes[0].drain: there is no node 'nobody'" in words_of(answered)
        assert "Side by side" not in words_of(answered)

    def test_an_empty_text_is_one_sentence(self, service: Service) -> None:
        answered = send(service, "/ui/ask/compare", [("first", ""), ("second", self.SECOND)])
        assert "First what-if: is empty; write a change" in words_of(answered)

    def test_a_link_computes_nothing_without_a_token(self, service: Service) -> None:
        path = "/ui/compare?first=changes:%20[]&second=changes:%20[]"
        assert "Side by side" not in words_of(look(service, path))
        assert "Side by side" in words_of(look(service, path, service.token))

    def test_a_what_if_leads_to_its_comparison(self, service: Service) -> None:
        page = send(service, "/ui/ask/what-if", [*DRAIN, ("do", "try")]).body.decode()
        (address,) = re.findall(r'href="(/ui/compare\?[^"]+)"', page)
        assert "drain: cpu-one" in words_of(look(service, address.replace("&amp;", "&")))
