"""A what-if becomes one change for each node, or is refused with the part that cannot be applied."""

from __future__ import annotations

from typing import Any

import pytest

from stead.errors import Invalid
from stead.language.labels import Labels
from stead.language.taints import Effect, Taint
from stead.operate.applying import changes_in
from stead.operate.changes import NodeChange, Removal

APPLIED: list[tuple[str, list[dict[str, Any]], list[NodeChange]]] = [
    ("drain", [{"drain": "a"}], [NodeChange("id-a", draining=True)]),
    ("uncordon", [{"undrain": "a"}], [NodeChange("id-a", draining=False)]),
    ("evict", [{"drain": "a", "evict": True}], [NodeChange("id-a", draining=True, evict=True)]),
    (
        "drain, then evict",
        [{"drain": "a"}, {"drain": "a", "evict": True}],
        [NodeChange("id-a", draining=True, evict=True)],
    ),
    ("taint", [{"taint": "a", "taints": "k=v"}], [NodeChange("id-a", (Taint("k", "v"),))]),
    (
        "the same taint twice: the last one wins",
        [{"taint": "a", "taints": "k=v"}, {"taint": "a", "taints": "k=w"}],
        [NodeChange("id-a", (Taint("k", "w"),))],
    ),
    (
        "untaint",
        [{"untaint": "a", "key": "k", "effect": "NoExecute"}],
        [NodeChange("id-a", untaints=(Removal("k", None, Effect.NO_EXECUTE),))],
    ),
    (
        "label",
        [{"label": "a", "labels": {"x": "1"}, "remove": "y"}],
        [NodeChange("id-a", labels=Labels({"x": "1"}), unlabels=("y",))],
    ),
    (
        "several of one node are one change",
        [{"drain": "a"}, {"label": "a", "labels": {"x": "1"}}, {"label": "a", "labels": {"z": "2"}}],
        [NodeChange("id-a", labels=Labels({"x": "1", "z": "2"}), draining=True)],
    ),
    (
        "several nodes",
        [{"drain": ["a", "b"]}],
        [NodeChange("id-a", draining=True), NodeChange("id-b", draining=True)],
    ),
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "the what-if has no change to apply; you can apply drain, undrain, taint, untaint, label"),
    ({"work": [{"id": "w"}]}, "work of a what-if cannot be applied: submit it yourself"),
    ({"changes": [{"drain": "a"}], "groups": [{"id": "g"}]}, "groups of a what-if cannot be applied"),
    ({"changes": [{"drain": "a"}, {"join": {"like": "a"}}]}, "changes[1]: a new node cannot be applied; you can apply"),
    ({"changes": [{"leave": "a"}]}, "changes[0]: a removed node cannot be applied"),
    ({"changes": [{"resize": "a", "capacity": {"CPU": 1}}]}, "changes[0]: resize cannot be applied"),
    ({"changes": [{"suggested": "w"}]}, "changes[0]: suggested cannot be applied"),
    ({"changes": [{"drain": "a"}, {"undrain": "a"}]}, "node id-a is drained and uncordoned in the same what-if"),
    (
        {"changes": [{"taint": "a", "taints": "k=v"}, {"untaint": "a", "key": "k"}]},
        "taint k=v of node id-a is set and removed in one change",
    ),
    (
        {"changes": [{"untaint": "a", "key": "k"}, {"taint": "a", "taints": "k=v"}]},
        "taint k=v of node id-a is set and removed in one change",
    ),
    (
        {"changes": [{"label": "a", "labels": {"x": "1"}}, {"label": "a", "remove": "x"}]},
        "label 'x' of node id-a is set and removed in one change",
    ),
    ({"changes": [{"undrain": "a", "evict": True}]}, "changes[0].evict: is not a known field"),
    ({"changes": [{"label": "a"}]}, "the change is empty; name a taint or a label"),
    ({"changes": [{"taint": "a"}]}, "changes[0].taints: is missing"),
    ({"changes": [{"drain": "nobody"}]}, "changes[0].drain: there is no node 'nobody'"),
]


def find(said: str) -> str:
    if said == "nobody":
        raise Invalid("there is no node 'nobody'")
    return f"id-{said}"


@pytest.mark.parametrize(("written", "made"), [row[1:] for row in APPLIED], ids=[row[0] for row in APPLIED])
def test_node_changes_can_be_applied(written: list[dict[str, Any]], made: list[NodeChange]) -> None:
    assert changes_in({"changes": written}, find) == made


@pytest.mark.parametrize(("document", "sentence"), REFUSED, ids=[str(document) for document, _ in REFUSED])
def test_anything_else_is_refused_as_a_whole(document: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Invalid) as caught:
        changes_in(document, find)
    assert str(caught.value).startswith(sentence)
