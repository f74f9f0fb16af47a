"""The text of explanations: every reason and every edit, singular and plural, pinned by golden files.

`STEAD_GOLDEN=write` rewrites them; read the diff before you commit it.
"""

from __future__ import annotations

from typing import get_args

import pytest

from stead.engine.decisions import Refusal
from stead.engine.explain.explanations import Explanation, Score
from stead.engine.explain.smallest_change import Change, Edit
from stead.engine.facts import AskLost, AskRunning, NodeJoined
from stead.engine.reasons import Reason
from stead.language.asks import Ask, PolicyName, Preference, Spread
from stead.language.labels import Requirement, Selector
from tests.behaviour import (
    all_of,
    apart_from_app,
    ask,
    cluster,
    fill,
    group,
    near,
    node,
    on,
    place,
    refusals,
    run,
    submit,
    taint,
    zones,
)
from tests.behaviour.explanation_cases import CASES
from tests.golden_files import FOLDER, assert_golden


@pytest.mark.parametrize("name", CASES)
def test_the_words_are_those_of_the_golden_file(name: str) -> None:
    assert_golden(f"explanations/{name}.txt", f"{CASES[name]()}\n")


def test_every_golden_file_has_its_case() -> None:
    assert {path.stem for path in (FOLDER / "explanations").glob("*.txt")} == CASES.keys()


def every_part(found: Explanation) -> list[Explanation]:
    return [found, *found.members]


def test_every_kind_of_reason_has_a_sentence() -> None:
    parts = [part for case in CASES.values() for part in every_part(case())]
    verdicts = [*(verdict for part in parts for verdict in part.verdicts)]
    verdicts += [part.crowded_out[1] for part in parts if part.crowded_out]
    seen = {type(refusal.reason) for verdict in verdicts for refusal in verdict.refusals}
    assert seen == set(get_args(Reason))


def test_every_kind_of_edit_has_a_sentence() -> None:
    changes = [part.change for case in CASES.values() for part in every_part(case()) if part.change]
    assert {type(edit) for change in changes for edit in change.edits} == set(get_args(Edit))


@pytest.mark.parametrize("name", CASES)
def test_counts_add_up_to_all_nodes(name: str) -> None:
    for part in every_part(CASES[name]()):
        for verdict in part.verdicts:
            assert verdict.candidates + sum(each.nodes for each in verdict.refusals) == verdict.nodes
            assert sum(each.alone for each in verdict.refusals) <= verdict.nodes - verdict.candidates


def test_codes_are_stable() -> None:
    """Programs depend on these codes."""
    assert sorted(reason.code for reason in get_args(Reason)) == [
        "apart-from-group",
        "claim-being-bound",
        "claim-elsewhere",
        "claim-in-use",
        "claim-unusable",
        "draining",
        "has-member",
        "kept-away",
        "lacks-label",
        "never-fits",
        "no-alternative-holds",
        "no-term-matches",
        "not-near",
        "port-taken",
        "reserved",
        "short-now",
        "skewed",
        "tainted",
        "target-dead",
        "too-many-volumes",
        "too-near",
    ]


# What an explanation is about


def test_an_explanation_needs_no_submission_and_leaves_no_trace() -> None:
    engine = zones("a")
    engine.explain(ask("ghost", 1))
    engine.explain(group("ghosts", ask("g0", 1)))
    assert (engine.waiting, dict(engine.placed)) == ((), {})
    assert engine.decide() == []


def test_a_waiting_ask_is_explained_by_its_name() -> None:
    engine = zones("a")
    submit(engine, ask("w", 9))
    assert engine.explain("w") == engine.explain(ask("w", 9))


def test_explanations_equal_what_decisions_report() -> None:
    engine = zones("a", "b")
    submit(engine, ask("w", 1, selector=on("zone", "c")))
    (found,) = engine.explain("w").verdicts
    assert [(each.reason, each.nodes, each.alone) for each in found.refusals] == refusals(
        engine, ask("x", 1, selector=on("zone", "c"))
    )
    assert found.refusals == (Refusal(found.refusals[0].reason, 2, 2),)


def test_blame_goes_to_the_first_reason_and_alone_counts_the_only_ones() -> None:
    engine = cluster(
        node("both", 1, taints=[taint("x")]),
        node("taint", taints=[taint("x")]),
        node("small", 1),
        node("fits"),
    )
    found = refusals(engine, ask("w", 2))
    assert [(reason.code, nodes, alone) for reason, nodes, alone in found] == [("tainted", 2, 1), ("never-fits", 1, 1)]


def test_the_order_of_blame_is_that_of_the_page() -> None:
    """One node that every rule but `Reserved` refuses, so that all reasons show and the node counts under the first."""
    engine = cluster(node("n0", 2, memory=1, taints=[taint("x")], draining=True), node("other"))
    shy = apart_from_app("me", symmetric=True)
    run(engine, ask("shy", 1, affinities=all_of(shy), labels={"app": "web"}), "n0")
    wanted = ask(
        "w",
        2,
        memory=2,
        selector=on("zone", "a"),
        affinities=all_of(near("nobody"), apart_from_app("web")),
        spreads=(Spread("zone", on("app", "web")),),
        labels={"app": "me"},
    )
    found = [(reason.code, nodes) for reason, nodes, _ in refusals(engine, wanted)]
    assert [code for code, _ in found] == [
        "draining",
        "lacks-label",
        "not-near",
        "too-near",
        "kept-away",
        "skewed",
        "tainted",
        "never-fits",
        "short-now",
    ]
    assert [nodes for _, nodes in found] == [1, 1, 0, 0, 0, 0, 0, 0, 0]


# Placed work


def test_placed_work_is_scored_as_if_it_were_decided_again() -> None:
    engine = cluster(node("n0", 4), node("n1", 8), node("n2", 1), node("n3", 8))
    fill(engine, "n1", 2)
    assert place(engine, ask("w", 2, policy=PolicyName.SPREAD)) == ["n3"]
    found = engine.explain("w")
    assert found.chosen == Score("n3", 0, 2500)
    assert found.runners_up == (Score("n0", 0, 5000), Score("n1", 0, 5000))
    assert found.policy == "spread"
    assert found.fits


def test_at_most_three_runners_up_are_named_the_best_first() -> None:
    engine = cluster(*(node(f"n{index}", 8) for index in range(7)))
    for index in range(7):
        fill(engine, f"n{index}", 7 - index)
    place(engine, ask("w", 1, policy=PolicyName.SPREAD))
    found = engine.explain("w")
    assert [found.chosen.node if found.chosen else None, *(each.node for each in found.runners_up)] == [
        "n6",
        "n5",
        "n4",
        "n3",
    ]


def test_work_that_is_not_where_it_would_go_now_has_three_better_runners_up() -> None:
    engine = cluster(*(node(f"n{index}", 4) for index in range(5)))
    place(engine, ask("w", 1, policy=PolicyName.SPREAD, prefers=(Preference(on("node_id", "n4"), 1),)))
    submit(engine, ask("other", 3, prefers=(Preference(on("node_id", "n4")),)))
    found = engine.explain("w")
    assert found.chosen == Score("n4", 1, 10000)
    assert [each.node for each in found.runners_up] == ["n0", "n1", "n2"]


def test_the_score_of_an_ask_for_nothing_is_how_much_work_the_node_has() -> None:
    engine = cluster(node("n0"), node("n1"))
    assert place(engine, ask("x"), ask("y")) == ["n0", "n1"]
    found = engine.explain("y")
    assert found.chosen == Score("n1", 0, 0)
    assert found.runners_up == (Score("n0", 0, 10000),)


def test_placed_work_on_a_node_that_would_not_take_it_now_is_still_explained() -> None:
    engine = cluster(node("n0"), node("n1"))
    place(engine, ask("w", 1))
    engine.apply(NodeJoined(node("n0", taints=[taint("x")])))
    found = engine.explain("w")
    assert found.chosen is not None
    assert found.chosen.node == "n0"
    assert [each.node for each in found.runners_up] == ["n1"]


# Groups


def test_a_group_is_explained_by_its_members_and_whether_they_fit_together() -> None:
    engine = cluster(node("n0", 2))
    found = engine.explain(group("g", ask("m0", 1), ask("m1", 1), ask("m2", 1)))
    assert [member.id for member in found.members] == ["m0", "m1", "m2"]
    assert all(member.fits for member in found.members)
    assert (found.together, found.fits, found.policy) == (False, False, "PACK")


def test_a_group_that_lacks_one_member_is_explained_by_that_one() -> None:
    engine = cluster(node("n0", 1), node("n1", 1))
    submit(engine, group("g", ask("m0", 1), ask("m1", 1)))
    engine.apply(AskLost("m1"), AskRunning(ask("thief", 1), "n1"))
    found = engine.explain("g")
    assert [member.id for member in found.members] == ["m1"]
    assert not found.fits


def test_a_group_placed_by_a_later_alternative_is_placed() -> None:
    engine = cluster(node("n0", 2))
    submit(engine, group("g", ask("big", 9), fallbacks=((ask("small", 1),),)))
    assert str(engine.explain("g")) == "All members are placed."


def test_a_group_fits_if_any_of_its_alternatives_does() -> None:
    engine = cluster(node("n0", 2))
    assert engine.explain(group("g", ask("big", 9), fallbacks=((ask("small", 1),),))).fits


def test_what_would_be_enough_is_enough() -> None:
    """The change forevery pending case has at least one node and at least one edit."""
    for case in CASES.values():
        for part in every_part(case()):
            if part.change is not None:
                assert isinstance(part.change, Change)
                assert part.change.edits
                assert part.change.nodes > 0
                assert not part.fits


def test_values_are_quoted_where_they_could_be_misread() -> None:
    wanted = Ask.of("w", {}, on("in", "a"))
    assert str(zones("a").explain(wanted)).startswith('0 of 1 node fits: 1 lacks "in" in {a}.')
    assert str(Requirement.is_in("zone", "")) == 'zone in {""}'


LONG = "0123456789abcdef" * 3 + "01234567"
LIKE_IT = LONG[:20] + "f" * 36


class TestNodesAreCalledByName:
    def test_where_no_other_has_the_name(self) -> None:
        found = cluster(node(LONG, 1, name="gpu-1")).explain(ask("big", 2))
        assert str(found).endswith("Adding 1 CPU to gpu-1 would be enough (1 node).")
        assert found.names == {LONG: "gpu-1"}

    def test_else_by_the_beginning_of_the_id_as_long_as_no_other_begins_so(self) -> None:
        engine = cluster(node(LONG, 1, name="gpu"), node(LIKE_IT, 2, name="gpu"))
        engine.apply(AskRunning(ask("small", 1), LIKE_IT))
        assert str(engine.explain("small")) == (
            f"Placed on {LIKE_IT[:21]} by hybrid (50 % full). Runners-up: {LONG[:21]} (100 % full)."
        )

    def test_where_work_asks_for_nodes_by_their_ids(self) -> None:
        engine = cluster(node(LONG, name="gpu-1"), node(LIKE_IT), node("n2", name="cpu", draining=True))
        elsewhere = ask("elsewhere", selector=Selector.all_of(Requirement.not_in("node_id", LONG, LIKE_IT)))
        assert str(engine.explain(elsewhere)) == (
            f"0 of 3 nodes fit: 1 draining; 2 have node_id in {{{LIKE_IT[:21]}, gpu-1}}. "
            f"Allowing node_id=gpu-1 would be enough (1 node)."
        )
        pinned = ask("pinned", selector=on("node_id", "n2", "f" * 56))
        assert str(engine.explain(pinned)).startswith(
            f"0 of 3 nodes fit: 1 draining; 2 lack node_id in {{cpu, {'f' * 12}}}."
        )

    def test_in_the_explanations_of_members_too(self) -> None:
        found = cluster(node(LONG, 1, name="gpu-1")).explain(group("g", ask("g-1", 2)))
        assert "Adding 1 CPU to gpu-1" in str(found)
