"""Nodes from user input, the labels that every node has, and suggestions for misspelt words."""

from __future__ import annotations

from typing import Any

import pytest

from stead.errors import Invalid, Unsupported, did_you_mean
from stead.language.labels import Labels
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import NOTHING, Resources
from stead.language.taints import Taint
from tests.language.sentences import refused


def test_a_node_from_what_a_user_writes() -> None:
    taint = Taint("gpu")
    node = Node.of("n1", {"CPU": 2}, {"zone": "a"}, [taint, taint], ip="10.0.0.1", name="one", draining=True)
    assert node == Node("n1", Resources.of(CPU=2), Labels({"zone": "a"}), (taint,), "10.0.0.1", "one", True)
    assert Node.of("n1") == Node("n1")


@pytest.mark.parametrize(
    ("node", "identity"),
    [
        (Node("n1"), {}),
        (Node("n1", ip="10.0.0.1"), {"node_ip": "10.0.0.1"}),
        (Node("n1", name="one"), {"node_name": "one"}),
        (Node("n1", ip="fe80::1", name="one two"), {"node_ip": "fe80::1", "node_name": "one two"}),
    ],
)
def test_every_node_carries_its_identity_as_labels(node: Node, identity: dict[str, str]) -> None:
    expected = {"node_id": "n1", "ray.io/node-id": "n1", **identity}
    assert node.all_labels == Labels(expected)
    for key in ("node_id", "ray.io/node-id", "node_ip", "node_name", "zone"):
        assert node.label(key) == expected.get(key)


def test_the_users_labels_are_in_addition_to_the_identity() -> None:
    node = Node.of("n1", labels={"zone": "a", "ray.io/market-type": "spot"})
    assert node.all_labels["zone"] == node.label("zone") == "a"
    assert node.all_labels["ray.io/market-type"] == "spot"
    assert node.label("rack") is None


@pytest.mark.parametrize("key", ["node_id", "node_ip", "node_name", "ray.io/node-id"])
def test_identity_labels_cannot_be_set(key: str) -> None:
    with refused(f"label {key!r} is set by stead on every node", "for example 'zone'"):
        Node.of("n1", labels={key: "x"})


@pytest.mark.parametrize("id", ["", None, 3])
def test_a_node_needs_an_id(id: Any) -> None:
    with refused(f"node id {id!r} must be a non-empty string, for example 'node-1'"):
        Node.of(id)


def test_a_node_has_whole_devices_and_keeps_its_name_beside_them() -> None:
    assert Node.of("n1", {"GPU": 2, "CPU": 0.5, "TPU": 1}, name="one").name == "one"
    assert Node.of("n1", {"GPU": 2}).name == ""
    with refused("node 'n1' cannot have 1.5 GPU: give whole devices, for example 1"):
        Node.of("n1", {"GPU": 1.5})


def test_a_nodes_labels_and_amounts_are_checked() -> None:
    with refused("label key 'a b' contains ' '"):
        Node.of("n1", labels={"a b": "x"})
    with refused("the amount of 'CPU'", "must not be negative"):
        Node.of("n1", {"CPU": -1})


def test_a_template_is_a_plain_value() -> None:
    assert NodeTemplate("small") == NodeTemplate("small", NOTHING, Labels(), (), 0, 0, 0.0)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("market_type", " (did you mean 'market-type'?)"),
        ("ZONE", " (did you mean 'zone'?)"),
        ("zon", " (did you mean 'zone'?)"),
        ("zone", ""),
        ("altogether-different", ""),
        ("", ""),
    ],
)
def test_a_close_name_is_suggested(word: str, hint: str) -> None:
    assert did_you_mean(word, ["zone", "market-type", "gpu"]) == hint
    assert did_you_mean(word, []) == ""


def test_what_cannot_be_done_is_invalid_too() -> None:
    assert issubclass(Unsupported, Invalid)
    assert issubclass(Invalid, ValueError)
