"""Taints and rare resources are stored as labels, and are read back unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.engine.facts import NodeJoined
from stead.errors import Invalid
from stead.language.asks import PolicyName
from stead.language.taints import Effect, Taint
from stead.ray.control.cluster import RayCluster
from stead.ray.wire.node_page import HEAD
from stead.ray.wire.tables import NodeRow, Status
from stead.ray.wire.taint_labels import POLICY, marks_of, plain_labels, policy_in, rare_in, taints_in

NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", fullmatch=True)
PARTS = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,20}[a-z0-9])?", fullmatch=True)
PREFIXES = st.lists(PARTS, min_size=1, max_size=5).map(".".join)
KEYS = NAMES | st.builds("{}/{}".format, PREFIXES, NAMES)
TAINTS = st.lists(
    st.builds(Taint, KEYS, NAMES | st.just(""), st.sampled_from(Effect)),
    max_size=6,
    unique_by=lambda taint: (taint.key, taint.effect),
)
PLAIN = st.dictionaries(st.sampled_from(["zone", "disk", "ray.io/node-group", "stead.io/x", "rare.io/gpu"]), NAMES)

RARE = "rare_resource.ray.io/gpu"


@given(TAINTS, st.frozensets(NAMES, max_size=3), st.none() | st.sampled_from(PolicyName), PLAIN)
def test_what_is_written_is_read_back_unchanged(
    taints: list[Taint], rare: frozenset[str], policy: PolicyName | None, plain: dict[str, str]
) -> None:
    labels = {**plain, **marks_of(taints, rare, policy)}
    assert policy_in(labels) is policy
    assert taints_in(labels) == tuple(sorted(taints))
    assert rare_in(labels) == tuple(sorted(rare))
    assert plain_labels(labels) == plain


@given(TAINTS, st.frozensets(NAMES, max_size=3))
def test_ray_accepts_every_label(taints: list[Taint], rare: frozenset[str]) -> None:
    from ray._private.label_utils import validate_node_label_syntax

    validate_node_label_syntax(marks_of(taints, rare))


@pytest.mark.parametrize(
    ("taint", "label"),
    [
        (Taint("gpu_node", "true"), ("no-schedule.taint.stead.io/gpu_node", "true")),
        (Taint("gpu_node"), ("no-schedule.taint.stead.io/gpu_node", "")),
        (Taint("rare.ray.io/gpu", "x"), ("rare.ray.io.no-schedule.taint.stead.io/gpu", "x")),
        (Taint(RARE, "true", Effect.NO_EXECUTE), ("rare_resource.ray.io.no-execute.taint.stead.io/gpu", "true")),
        (Taint("k", "", Effect.PREFER_NO_SCHEDULE), ("prefer-no-schedule.taint.stead.io/k", "")),
    ],
    ids=str,
)
def test_a_taint_is_one_label(taint: Taint, label: tuple[str, str]) -> None:
    assert marks_of([taint]) == dict([label])


def test_a_key_may_have_one_taint_of_each_effect() -> None:
    taints = tuple(sorted(Taint("k", effect.value, effect) for effect in Effect))
    assert taints_in(marks_of(taints)) == taints


@pytest.mark.parametrize("key", ["soon.taint.stead.io/k", "taint.stead.io/k", "xtaint.stead.io/k", "rare.stead.io.x/k"])
def test_a_label_that_only_looks_like_a_taint_stays_a_label(key: str) -> None:
    assert taints_in({key: "true"}) == ()
    assert rare_in({key: "true"}) == ()
    assert plain_labels({key: "true"}) == {key: "true"}


@pytest.mark.parametrize(
    ("taints", "rare", "part"),
    [
        ([Taint(f"{'a' * 64}/k")], [], "63 between dots"),
        ([Taint(".".join(["abcdefghi"] * 23) + "/k", "", Effect.PREFER_NO_SCHEDULE)], [], "at most 219"),
        ([Taint("k_")], [], "'k_'"),
        ([Taint("k", "-")], [], "'-'"),
        ([Taint("k", "a"), Taint("k", "b")], [], "two values 'a' and 'b'"),
        ([], ["accelerator_type:A100"], "'accelerator_type:A100'"),
        ([], [3], "rare resource 3"),
    ],
)
def test_a_taint_that_cannot_be_a_label_is_refused_in_one_sentence(
    taints: list[Taint], rare: list[str], part: str
) -> None:
    with pytest.raises(Invalid) as refusal:
        marks_of(taints, rare)
    assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_unknown_policy_is_an_ordinary_label() -> None:
    assert policy_in({POLICY: "best"}) is None
    assert plain_labels({POLICY: "best"}) == {POLICY: "best"}


def test_the_cluster_has_the_policy_of_its_head_and_of_no_other_node() -> None:
    def row(id: str, total: dict[str, float], policy: PolicyName) -> NodeRow:
        return NodeRow(id, "127.0.0.1", marks_of((), policy=policy), total, total, False)

    commands: Any = None
    cluster = RayCluster(commands)
    rows = [row("h", {"CPU": 1.0, HEAD: 1.0}, PolicyName.FLOW_PACK), row("n", {"CPU": 1.0}, PolicyName.FLOW)]
    cluster.look(Status({each.id: each for each in rows}, ()), {}, {})
    assert cluster.policy is PolicyName.FLOW_PACK
    joined = [dict(fact.node.labels) for fact in cluster.facts() if isinstance(fact, NodeJoined)]
    assert joined == [{}, {}]


def test_a_node_whose_amounts_ray_does_not_know_yet_has_not_joined_and_a_known_one_stays() -> None:
    def row(total: dict[str, float]) -> NodeRow:
        return NodeRow("n", "127.0.0.1", {}, total, total, False)

    commands: Any = None
    cluster = RayCluster(commands)
    cluster.look(Status({"n": row({})}, ()), {}, {})
    assert not cluster.facts(), "nobody could say whether it is rare"
    cluster.look(Status({"n": row({"CPU": 1.0})}, ()), {}, {})
    (joined,) = cluster.facts()
    assert isinstance(joined, NodeJoined)
    cluster.look(Status({"n": row({})}, ()), {}, {"n": joined.node})
    assert not cluster.facts(), "Ray's control store has just started again"
