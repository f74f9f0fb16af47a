"""Every rule lists each column that can change its answer; caches and waking depend on that list."""

from __future__ import annotations

import pytest

from stead.engine.columns.change_log import ANY_WORK, DRAINING, KEEPERS, RESERVED, TAINTS, Column
from stead.engine.facts import ClaimChanged
from stead.engine.fleet import Fleet
from stead.engine.rules import Rule, World, compile_rules
from stead.engine.work import Work, meant_by
from stead.language.asks import Affinity, Ask, Choice, Spread
from stead.language.claims import Claim
from stead.language.labels import EMPTY, NOWHERE, Requirement, Selector
from tests.behaviour import all_of, apart_from_app, ask, cluster, near, near_app, node, on, run, tolerates

WEB = on("app", "web")
ZONE, DISK = Requirement.exists("zone"), Requirement.exists("disk")


def rules_of(work: Ask) -> tuple[Rule, ...]:
    kind = (work.namespace, work.labels)
    (choice,) = work.choices
    return compile_rules(
        choice, kind, work.tolerations, work.affinities, work.spreads, work, (), work.claims
    ).in_blame_order()


def named(work: Ask, placed: Work | None = None) -> dict[str, set[Column]]:
    """The columns that each rule of the ask reads, by the name of the rule."""
    found: dict[str, set[Column]] = {}
    for rule in rules_of(work):
        found.setdefault(type(rule).__name__, set()).update(rule.reads(placed or Work()))
    return found


def label(*keys: str) -> set[Column]:
    return {Column("label", key) for key in keys}


def work(selector: Selector, *namespaces: str) -> set[Column]:
    return {Column("work", meant_by(selector, frozenset(namespaces), ""))}


PLAIN: dict[str, set[Column]] = {
    "NotDraining": {DRAINING},
    "NotKeptAway": {KEEPERS},
    "ToleratesTaints": {TAINTS},
    "CouldFit": set(),
    "FitsNow": set(),
    "NotReserved": {RESERVED},
}


@pytest.mark.parametrize(
    ("wanted", "more"),
    [
        pytest.param(ask("w"), {}, id="a plain ask"),
        pytest.param(
            ask("w", 1, memory=5),
            {"CouldFit": {("total", "CPU"), ("total", "memory")}, "FitsNow": {("free", "CPU"), ("free", "memory")}},
            id="amounts",
        ),
        pytest.param(ask("w", tolerations=(tolerates("x"),)), {}, id="tolerations read what everybody reads"),
        pytest.param(
            ask("w", selector=Selector.all_of(ZONE, DISK)), {"HasLabel": label("zone", "disk")}, id="requirements"
        ),
        pytest.param(
            ask("w", selector=Selector.any_of(ZONE, DISK)), {"MatchesSelector": label("zone", "disk")}, id="terms"
        ),
        pytest.param(ask("w", selector=NOWHERE), {"MatchesSelector": set()}, id="no term"),
        pytest.param(
            ask("w", affinities=all_of(near_app("web"))), {"HoldsAffinity": work(WEB, "")}, id="an affinity by node"
        ),
        pytest.param(
            ask("w", affinities=all_of(near_app("web", "zone", "ray.io/node-id"))),
            {"HoldsAffinity": work(WEB, "") | label("zone")},
            id="an affinity by zone",
        ),
        pytest.param(
            ask("w", affinities=all_of(apart_from_app("web", namespaces=frozenset({"blue"})))),
            {"HoldsAffinity": work(WEB, "blue")},
            id="an affinity to another namespace",
        ),
        pytest.param(
            ask("w", namespace="blue", affinities=all_of(near_app("web"))),
            {"HoldsAffinity": work(WEB, "blue")},
            id="an affinity in a namespace of its own",
        ),
        pytest.param(
            ask("w", affinities=all_of(near("a", "b"))),
            {"HoldsAffinity": {("ask", "a"), ("ask", "b")}},
            id="an affinity to asks",
        ),
        pytest.param(
            ask("w", affinities=all_of(Affinity(Selector.all_of(Requirement.not_in("ask_id", "a"))))),
            {"HoldsAffinity": {ANY_WORK}},
            id="an affinity to all asks but one",
        ),
        pytest.param(
            ask("w", affinities=((near("a"),), (near_app("web", "zone"), near("a")))),
            {"HoldsOneAlternative": {("ask", "a")} | work(WEB, "") | label("zone")},
            id="alternatives",
        ),
        pytest.param(
            ask("w", selector=Selector.all_of(DISK), spreads=(Spread("zone", WEB), Spread("rack", WEB))),
            {"HasLabel": label("disk"), "NotSkewed": work(WEB, "") | label("zone", "rack", "disk")},
            id="spreads",
        ),
    ],
)
def test_a_rule_reads(wanted: Ask, more: dict[str, set[Column]]) -> None:
    assert named(wanted) == {**PLAIN, **more}


def test_work_that_keeps_others_away_by_a_label_makes_them_read_it() -> None:
    engine = cluster(node("n0"))
    for app, key in (("web", "zone"), ("web", "node_id"), ("db", "rack")):
        run(engine, ask(f"shy-{key}", affinities=all_of(apart_from_app(app, key, symmetric=True))), "n0")
    placed = engine._parts.board.work
    assert named(ask("w", labels={"app": "web"}), placed)["NotKeptAway"] == {KEEPERS} | label("zone")


def test_claims_are_read_with_the_labels_and_drivers_that_they_speak_of() -> None:
    engine = cluster(node("n0"))
    engine.apply(ClaimChanged(Claim("data", on("zone", "a"), driver="ebs")))
    found = named(ask("w", claims=("data", "unknown")), engine._parts.board.work)
    claims = {Column("claim", "data"), Column("claim", "unknown")}
    uses = {Column("claim-use", "data"), Column("claim-use", "unknown")}
    assert found["ReachesClaim"] == claims | label("zone")
    assert found["ClaimFree"] == claims | uses
    assert found["VolumesFit"] == claims | uses | {Column("volumes", "ebs"), Column("volume-limits", "ebs")}


def test_every_rule_can_be_asked_about_an_empty_cluster() -> None:
    either = ((near("a"),), (near_app("web", "zone"),))
    wanted = ask("w", 1, selector=Selector.any_of(ZONE, DISK), affinities=either, claims=("data",))
    world = World(Fleet(), Work())
    assert all(not nodes for rule in rules_of(wanted) for _, nodes in rule.refusals(world))


def test_rules_are_in_blame_order() -> None:
    spread = Spread("zone", WEB)
    wanted = ask("w", 1, selector=on("zone", "a"), affinities=all_of(near("a")), spreads=(spread,), claims=("data",))
    assert [type(rule).__name__ for rule in rules_of(wanted)] == [
        "NotDraining",
        "HasLabel",
        "ReachesClaim",
        "HoldsAffinity",
        "NotKeptAway",
        "NotSkewed",
        "ToleratesTaints",
        "ClaimFree",
        "VolumesFit",
        "CouldFit",
        "FitsNow",
        "NotReserved",
    ]


def test_an_alternative_without_affinities_has_no_rule() -> None:
    plain = compile_rules(Choice(), ("", EMPTY), (), (), (), None).in_blame_order()
    assert [type(rule).__name__ for rule in plain] == [
        "NotDraining",
        "NotKeptAway",
        "ToleratesTaints",
        "CouldFit",
        "FitsNow",
        "NotReserved",
    ]
