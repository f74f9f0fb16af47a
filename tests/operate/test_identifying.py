"""How a node is found by name, in a snapshot and in the views that a command has fetched."""

from __future__ import annotations

import pytest

from stead.language.nodes import Node
from stead.operate.changes import Absent, Conflict
from stead.operate.identifying import NodeNames

NODES = [
    Node.of("aaaaaa1111", ip="10.0.0.1", name="gpu-1"),
    Node.of("aaaaaa2222", ip="10.0.0.1", name="gpu-2"),
    Node.of("bbbbbb3333", ip="10.0.0.2", name="10.0.0.1"),
]
ONE, TWO, THREE = (node.id for node in NODES)


@pytest.mark.parametrize(
    ("said", "by", "meant"),
    [
        (ONE, "", [ONE]),
        ("aaaaaa1", "", [ONE]),
        ("aaaaaa", "", [ONE, TWO]),
        ("gpu-2", "", [TWO]),
        ("10.0.0.2", "", [THREE]),
        ("10.0.0.1", "", [ONE, TWO, THREE]),
        ("10.0.0.1", "node_ip", [ONE, TWO]),
        ("bbbbbb", "node_id", [THREE]),
    ],
)
def test_by_an_id_the_beginning_of_one_an_address_or_a_name(said: str, by: str, meant: list[str]) -> None:
    assert NodeNames(NODES).meant(said, by) == meant


@pytest.mark.parametrize(
    ("said", "by", "sentence"),
    [
        ("gpu-3", "", r"there is no node 'gpu-3' in this cluster \(did you mean 'gpu-[12]'\?\)"),
        ("aaaaa", "", "there is no node 'aaaaa' in this cluster"),  # too short for the beginning of an id
        ("", "", "there is no node '' in this cluster; for example, there is '10.0.0.1'"),
        ("gpu-1", "node_id", "there is no node 'gpu-1'"),
        ("gpu-1", "node_ip", "there is no node 'gpu-1'"),
        (ONE, "node_ip", f"there is no node '{ONE}'"),
    ],
)
def test_an_unknown_name_is_refused(said: str, by: str, sentence: str) -> None:
    with pytest.raises(Absent, match=sentence):
        NodeNames(NODES).one(said, by)


def test_a_name_comes_before_the_beginning_of_an_id() -> None:
    nodes = [*NODES, Node.of("cccccc4444", name="aaaaaa"), Node.of("dddddd5555", name="aaaaaa1111")]
    assert NodeNames(nodes).one("aaaaaa") == "cccccc4444"
    assert NodeNames(nodes).one("aaaaaa1111") == ONE


def test_several_are_refused_with_their_ids() -> None:
    with pytest.raises(Conflict, match=f"'aaaaaa' matches 2 nodes: {ONE}, {TWO}; give the id of one"):
        NodeNames(NODES).one("aaaaaa")
