"""Several nodes changed as one on a page: one preview, one Apply, one audit entry, one undo."""

from __future__ import annotations

import pytest

from tests.service.asking import Service
from tests.service.page_forms import look, send, words_of

BOTH = [("node", "cpu-1"), ("node", "cpu-2")]
TAINT = [("do", "taint"), ("key", "team"), ("value", "blue"), ("effect", "NoSchedule")]


def test_a_taint_of_two_nodes_is_previewed_made_and_undone_as_one(service: Service) -> None:
    desk = service.desk
    preview = send(service, "/ui/ask/change", [*BOTH, *TAINT])
    assert "Taint 2 nodes with team=blue:NoSchedule" in words_of(preview)
    assert "Apply to 2 nodes" in words_of(preview)
    assert desk.audit(0, 9) == [], "a preview changes nothing"

    made = send(service, "/ui/do/change", [*BOTH, *TAINT])
    assert made.status == 303 and made.headers["location"] == "/ui/change?done=1"
    (entry,) = desk.audit(0, 9)
    assert (set(entry.states), entry.via, entry.action) == ({"cpu-1", "cpu-2"}, "page", "taint")
    shown = words_of(look(service, made.headers["location"], service.token))
    assert "Done: taint +team=blue:no-schedule on 2 nodes by operator, entry 1 of the audit" in shown

    undone = send(service, "/ui/do/undo/1", [])
    assert undone.headers["location"] == "/ui/change?done=2"
    assert not desk.node("cpu-1").taints and not desk.node("cpu-2").taints


def test_all_nodes_that_match_a_selector_are_selected_with_one_checkbox(service: Service) -> None:
    preview = send(service, "/ui/ask/change", [("all", "yes"), ("q", "zone=b"), ("do", "drain")]).body.decode()
    assert "Drain 2 nodes" in words_of(preview)
    assert preview.count('name="node" value="cpu-2"') == 2, "in the form to change it, and in the one that applies it"
    assert 'name="all"' not in preview, "what is applied are the nodes that were previewed"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("do", "drain")], "No node is selected; select nodes on the map or in the table, or select all"),
        ([("node", "gone"), ("do", "drain")], "There is no node 'gone' in this cluster any more"),
        ([("all", "yes"), ("q", "zone in ["), ("do", "drain")], "Selector 'zone in ['"),
        ([*BOTH, ("do", "untaint"), ("key", "x")], "None of the 2 nodes has a taint x"),
        ([*BOTH, ("do", "unlabel"), ("key", "x")], "None of the 2 nodes has a label 'x'"),
        ([*BOTH, ("do", "taint"), ("key", "bad key")], "'bad key'"),
    ],
)
def test_an_impossible_change_is_one_sentence(service: Service, fields: list[tuple[str, str]], said: str) -> None:
    answered = send(service, "/ui/ask/change", fields)
    assert answered.status == 400
    assert said in words_of(answered)


def test_a_kind_of_change_without_a_key_asks_for_the_key(service: Service) -> None:
    answered = send(service, "/ui/ask/change", [*BOTH, ("do", "taint"), ("key", "")])
    assert answered.status == 200
    assert "Apply" not in words_of(answered)


def test_a_removed_taint_or_label_may_be_missing_on_some_nodes(service: Service) -> None:
    send(service, "/ui/do/nodes/cpu-1", TAINT)
    made = send(service, "/ui/do/change", [*BOTH, ("do", "untaint"), ("key", "team"), ("effect", "NoExecute")])
    assert made.status == 303
    assert not service.desk.node("cpu-1").taints


def test_it_needs_an_operator(service: Service) -> None:
    assert send(service, "/ui/do/change", [*BOTH, ("do", "drain")], token="").status == 401
    viewer = service.keys.give("viewer", "guest")
    assert send(service, "/ui/do/change", [*BOTH, ("do", "drain")], token=viewer).status == 403
    assert "Your token is a viewer's" in words_of(send(service, "/ui/ask/change", [*BOTH, ("do", "drain")], viewer))
    stranger = send(service, "/ui/ask/change", [*BOTH, ("do", "drain")], token="").body.decode()
    assert "/login?next=/ui/change%3Fdo%3Ddrain%26node%3Dcpu-1%26node%3Dcpu-2" in stranger


def test_every_node_has_a_checkbox_on_the_map_and_in_the_table(service: Service) -> None:
    for path in ("/ui/", "/ui/?view=table"):
        page = look(service, path)
        assert page.count('class="pick"') == 4
        assert "All 4 nodes" in words_of(page)
    assert "All 2 nodes that match" in words_of(look(service, "/ui/?q=zone%3Db"))
