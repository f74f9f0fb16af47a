"""Claims: which nodes can use them, one piece of work at a time, limits of volumes, and what wakes work that waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from stead.engine.decisions import Placed, Preempted
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskRunning,
    ClaimChanged,
    ClaimEnded,
    Fact,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
)
from stead.language.asks import Ask, PolicyName
from stead.language.claims import Claim
from stead.language.labels import NOWHERE, Labels
from stead.language.nodes import Node
from tests.behaviour import ask, candidates, cluster, codes, decide_after, group, node, on, place, run, submit, zones

BOTH_POLICIES = pytest.mark.parametrize("policy", [PolicyName.HYBRID, PolicyName.KUBE])


def with_claims(engine: Engine, *claims: Claim) -> Engine:
    engine.apply(*map(ClaimChanged, claims))
    return engine


def limited(**limit_of_each: int) -> Engine:
    """Nodes with a limit of volumes of the driver ebs; a negative one means that there is none."""
    nodes = [
        Node.of(id, {"CPU": 4}, volumes={"ebs": limit} if limit >= 0 else None) for id, limit in limit_of_each.items()
    ]
    return cluster(*nodes)


def disks(*names: str, **rest: Any) -> tuple[Claim, ...]:
    return tuple(Claim(name, driver="ebs", **rest) for name in names)


@pytest.mark.parametrize(
    ("claims", "uses", "nodes", "reasons"),
    [
        pytest.param([], ["data"], "", {"claim-unusable"}, id="a claim that does not exist"),
        pytest.param([Claim("data")], ["data"], "n0 n1 n2", set(), id="a claim for every node"),
        pytest.param([Claim("data", on("zone", "a"))], ["data"], "n0", {"claim-elsewhere"}, id="a claim in one zone"),
        pytest.param([Claim("data", NOWHERE)], ["data"], "", {"claim-elsewhere"}, id="a claim that is nowhere"),
        pytest.param(
            [Claim("data", problem="is lost")], ["data"], "", {"claim-unusable"}, id="a claim that cannot be used"
        ),
        pytest.param(
            [Claim("data", on("zone", "a", "b")), Claim("logs", on("zone", "b"))],
            ["data", "logs"],
            "n1",
            {"claim-elsewhere"},
            id="two claims",
        ),
        pytest.param([Claim("data")], ["data", "data"], "n0 n1 n2", set(), id="the same claim twice"),
        pytest.param([Claim("data"), Claim("logs", NOWHERE)], ["data"], "n0 n1 n2", set(), id="the claim of others"),
    ],
)
def test_work_goes_where_its_claims_are(claims: list[Claim], uses: list[str], nodes: str, reasons: set[str]) -> None:
    engine = with_claims(zones("a", "b", "-"), *claims)
    wanted = ask("w", 1, claims=tuple(uses))
    assert list(candidates(engine, wanted)) == nodes.split()
    assert set(codes(engine, wanted)) == reasons


@pytest.mark.parametrize(
    ("claim", "nodes"),
    [
        pytest.param(Claim("data"), "n0 n1 n2", id="a claim that is bound can be shared everywhere"),
        pytest.param(Claim("data", exclusive=True), "", id="an exclusive claim takes one at a time"),
        pytest.param(Claim("data", bound=False), "n1", id="a claim that is not bound keeps its users together"),
        pytest.param(Claim("data", on("zone", "a"), bound=False), "", id="unless it cannot be bound there"),
        pytest.param(Claim("data", bound=False, exclusive=True), "", id="an exclusive one that is not bound"),
    ],
)
def test_work_uses_a_claim_that_other_work_uses(claim: Claim, nodes: str) -> None:
    engine = with_claims(zones("a", "b", "-"), claim)
    run(engine, ask("user", 1, claims=("data",)), "n1")
    wanted = ask("w", 1, claims=("data",))
    assert list(candidates(engine, wanted)) == nodes.split()
    engine.apply(AskEnded("user"))
    expected = ["n0"] if claim.selector == on("zone", "a") else ["n0", "n1", "n2"]
    assert list(candidates(engine, wanted)) == expected


@pytest.mark.parametrize(
    ("limits", "placed", "uses", "nodes"),
    [
        pytest.param({"n0": 1, "n1": 0, "n2": -1}, {}, ["a"], "n0 n2", id="a limit of 1, of 0, and none"),
        pytest.param({"n0": 1, "n1": 2}, {}, ["a", "b"], "n1", id="two volumes at once"),
        pytest.param({"n0": 1, "n1": 2}, {"n0": ["a"], "n1": ["b"]}, ["c"], "n1", id="those of others count"),
        pytest.param({"n0": 1, "n1": 1}, {"n0": ["a"], "n1": ["b"]}, ["a"], "n0", id="a shared volume counts once"),
        pytest.param({"n0": 1}, {"n0": ["a", "b"]}, ["a"], "n0", id="a volume that is there is never too many"),
        pytest.param({"n0": 1}, {"n0": ["other"]}, ["a"], "n0", id="volumes of another driver do not count"),
        pytest.param({"n0": 0}, {}, ["other"], "n0", id="the limit is one of a driver"),
    ],
)
def test_a_node_has_no_more_volumes_than_it_may(
    limits: Mapping[str, int], placed: Mapping[str, list[str]], uses: list[str], nodes: str
) -> None:
    engine = with_claims(limited(**limits), *disks("a", "b", "c"), Claim("other", driver="nfs"))
    for where, claims in placed.items():
        for number, claim in enumerate(claims):
            run(engine, ask(f"on-{where}-{number}", claims=(claim,)), where)
    wanted = ask("w", 1, claims=tuple(uses))
    assert list(candidates(engine, wanted)) == nodes.split()
    assert set(codes(engine, wanted)) <= {"too-many-volumes"}


def test_two_pieces_of_work_that_share_a_volume_free_it_together() -> None:
    engine = with_claims(limited(n0=1), *disks("a", "b"))
    for name in ("one", "two"):
        run(engine, ask(name, claims=("a",)), "n0")
    assert submit(engine, ask("w", claims=("b",)))[0] != Placed("w", "n0")
    assert decide_after(engine, AskEnded("one")) == []
    assert decide_after(engine, AskEnded("two")) == [Placed("w", "n0")]


def test_the_volumes_of_a_claim_move_to_another_limit_with_its_driver() -> None:
    engine = with_claims(limited(n0=1), Claim("a"), *disks("b"))
    run(engine, ask("user", claims=("a",)), "n0")
    wanted = ask("w", claims=("b",))
    assert list(candidates(engine, wanted)) == ["n0"]
    engine.apply(ClaimChanged(Claim("a", driver="ebs")))
    assert list(candidates(engine, wanted)) == []
    engine.apply(ClaimChanged(Claim("a", driver="nfs")))
    assert list(candidates(engine, wanted)) == ["n0"]
    engine.apply(ClaimChanged(Claim("a", driver="ebs")), ClaimEnded("a"))
    assert list(candidates(engine, wanted)) == ["n0"]


# What wakes work

IN_B, ELSEWHERE = Claim("data", on("zone", "b")), Claim("data", on("zone", "z"))
LIMITED = (Claim("data", on("zone", "a"), driver="ebs"), *disks("other"))

CHANGES: dict[str, tuple[tuple[Claim, ...], Fact]] = {
    "its claim is created": ((), ClaimChanged(IN_B)),
    "its claim moves": ((ELSEWHERE,), ClaimChanged(IN_B)),
    "its claim moves, by another label": ((Claim("data", on("rack", "z")),), ClaimChanged(IN_B)),
    "its claim is well again": ((Claim("data", problem="is lost"),), ClaimChanged(IN_B)),
    "a node gets the label": ((Claim("data", on("rack", "z")),), NodeLabelled("n1", Labels({"rack": "z"}))),
    "a node joins there": ((ELSEWHERE,), NodeJoined(node("n9", labels={"zone": "z"}))),
    "the user of its claim ends": ((replace(IN_B, exclusive=True),), AskEnded("user")),
    "its claim can be shared": ((replace(IN_B, exclusive=True),), ClaimChanged(IN_B)),
    "its claim is bound": ((replace(IN_B, bound=False),), ClaimChanged(IN_B)),
    "a volume is gone": (LIMITED, AskEnded("other")),
    "a node may have more": (LIMITED, NodeJoined(Node.of("n0", {"CPU": 4}, {"zone": "a"}, volumes={"ebs": 2}))),
    "its volume is of another kind": (LIMITED, ClaimChanged(replace(LIMITED[0], driver="nfs"))),
}


@BOTH_POLICIES
@pytest.mark.parametrize("change", CHANGES)
def test_work_waits_until(change: str, policy: PolicyName) -> None:
    claims, fact = CHANGES[change]
    nodes = (Node.of(f"n{n}", {"CPU": 4}, {"zone": zone}, volumes={"ebs": 1}) for n, zone in enumerate("ab"))
    engine = with_claims(cluster(*nodes), *claims)
    user = "other" if claims == LIMITED else "data"
    run(engine, ask("other" if claims == LIMITED else "user", 1, claims=(user,)), "n0")
    submit(engine, ask("w", 1, claims=("data",), policy=policy))
    assert engine.is_pending("w")
    (placed,) = decide_after(engine, fact)
    assert isinstance(placed, Placed)


@BOTH_POLICIES
def test_the_labels_that_matter_change_with_the_claim(policy: PolicyName) -> None:
    engine = with_claims(zones("a", "b"), Claim("data", on("rack", "z")))
    submit(engine, ask("w", 1, claims=("data",), policy=policy))
    decide_after(engine, ClaimChanged(Claim("data", on("zone", "c"))))
    assert engine.is_pending("w")
    assert decide_after(engine, NodeLabelled("n1", Labels({"zone": "c"}))) == [Placed("w", "n1")]


def test_work_whose_claim_is_removed_keeps_its_place_and_cannot_be_placed_again() -> None:
    engine = with_claims(zones("a"), Claim("data"))
    place(engine, ask("w", 1, claims=("data",)))
    assert decide_after(engine, ClaimEnded("data")) == []
    assert engine.placed == {"w": "n0"}
    engine.apply(NodeLeft("n0"), NodeJoined(node("n0")))
    engine.decide()
    assert engine.is_pending("w")


def test_facts_about_claims_that_say_nothing_new_wake_nobody() -> None:
    engine = with_claims(zones("a"), Claim("data", NOWHERE))
    submit(engine, ask("w", 1, claims=("data",)))
    engine.apply(ClaimChanged(Claim("data", NOWHERE)), ClaimEnded("unknown"))
    assert not engine._parts.board.fleet.news.take()


# Several asks in one decision


@BOTH_POLICIES
def test_equal_work_that_shares_a_claim_which_is_not_bound_goes_to_one_node(policy: PolicyName) -> None:
    engine = with_claims(zones("a", "b", "c", cpu=20), Claim("data", bound=False))
    submit(engine, *(ask(f"w{number}", 1, claims=("data",), policy=policy) for number in range(30)))
    assert len(engine.placed) == 20
    assert len(set(engine.placed.values())) == 1


@BOTH_POLICIES
def test_equal_work_with_an_exclusive_claim_runs_one_at_a_time(policy: PolicyName) -> None:
    engine = with_claims(zones("a", "b"), Claim("data", exclusive=True))
    submit(engine, *(ask(f"w{number}", 1, claims=("data",), policy=policy) for number in range(3)))
    for number in range(3):
        assert list(engine.placed) == [f"w{number}"]
        decide_after(engine, AskEnded(f"w{number}"))


@BOTH_POLICIES
def test_work_with_volumes_of_its_own_fills_nodes_up_to_their_limits(policy: PolicyName) -> None:
    engine = with_claims(limited(n0=2, n1=1, n2=0), *disks("a", "b", "c", "d"))
    submit(engine, *(ask(f"w-{name}", claims=(name,), policy=policy) for name in "abcd"))
    assert sorted(engine.placed.values()) == ["n0", "n0", "n1"]
    assert len(engine.waiting) == 1


def test_members_of_a_group_share_a_claim_on_one_node() -> None:
    engine = with_claims(zones("a", "b", cpu=2), Claim("data", bound=False))
    members = [ask(f"m{number}", 1, claims=("data",)) for number in range(2)]
    submit(engine, group("g", *members))
    assert len(engine.placed) == 2
    assert len(set(engine.placed.values())) == 1
    submit(engine, group("h", *(ask(f"h{number}", 1, claims=("data",)) for number in range(2))))
    assert engine.waiting == ("h",)


# Preemption


def test_the_user_of_an_exclusive_claim_is_evicted_for_work_of_a_higher_priority() -> None:
    engine = with_claims(cluster(*(node(f"n{number}", 4) for number in range(40))), Claim("data", exclusive=True))
    for number in range(40):
        run(engine, ask(f"low-{number}", 4, preemptible=True, priority=-1), f"n{number}")
    engine.apply(AskEnded("low-37"))
    run(engine, ask("user", 4, claims=("data",), preemptible=True), "n37")
    urgent = ask("urgent", 1, claims=("data",), priority=5)
    assert [each for each in submit(engine, urgent) if isinstance(each, Preempted)] == [
        Preempted("urgent", "n37", ("user",))
    ]
    assert Placed("urgent", "n37") in decide_after(engine, AskEnded("user"))


def test_a_volume_is_evicted_where_a_node_has_too_many() -> None:
    engine = with_claims(limited(n0=1), *disks("a", "b"))
    run(engine, ask("low", claims=("a",), preemptible=True), "n0")
    decisions = submit(engine, ask("urgent", claims=("b",), priority=5))
    assert [each for each in decisions if isinstance(each, Preempted)] == [Preempted("urgent", "n0", ("low",))]


def test_nothing_is_evicted_for_a_claim_that_is_elsewhere() -> None:
    engine = with_claims(zones("a"), Claim("data", on("zone", "b")))
    run(engine, ask("low", 4, preemptible=True), "n0")
    decisions = submit(engine, ask("urgent", 1, claims=("data",), priority=5))
    assert not [each for each in decisions if isinstance(each, Preempted)]


# Restarts and forks


def test_a_restored_engine_knows_its_claims_and_counts_their_volumes() -> None:
    engine = with_claims(limited(n0=1, n1=1), *disks("a", "b"), Claim("c", exclusive=True))
    place(engine, ask("w-a", claims=("a",)), ask("w-c", claims=("c",)))
    again = Engine.restored(engine.checkpoint())
    for probe in (ask("p", claims=("b",)), ask("q", claims=("c",)), ask("r", claims=("a", "b"))):
        assert again.explain(probe) == engine.explain(probe)
        assert again.candidates(probe) == engine.candidates(probe)


def test_a_fork_has_claims_of_its_own() -> None:
    engine = with_claims(limited(n0=1), *disks("a", "b"))
    fork = engine.fork()
    run(fork, ask("w", claims=("a",)), "n0")
    fork.apply(ClaimEnded("b"), NodeJoined(Node.of("n0", {"CPU": 4}, volumes={"ebs": 0})))
    wanted: Ask = ask("p", claims=("b",))
    assert list(candidates(engine, wanted)) == ["n0"]
    assert list(candidates(fork, wanted)) == []
    engine.apply(AskRunning(ask("x", claims=("a",)), "n0"))
    assert set(codes(engine, wanted)) == {"too-many-volumes"}
    assert set(codes(fork, wanted)) == {"claim-unusable"}
