"""A change can be undone, and does what its preview showed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stead.errors import Invalid
from stead.language.labels import EMPTY, Labels
from stead.language.taints import Effect, Taint
from stead.operate.audit import Author
from stead.operate.changes import DRAINED, Conflict, NodeChange, Removal, change_json, state_of
from stead.operate.snapshot import Query
from stead.operate.what_if import Difference
from stead.service.api import change_of
from stead.service.schemas import NodeEdit
from stead.sim.cluster import play
from stead.sim.desk import SimDesk
from tests.serving import simulated

SOAK = 20 if os.environ.get("STEAD_SOAK") == "1" else 1
ANN = Author("ann")
SCENARIO = """
nodes:
- {id: a, count: 2, capacity: {CPU: 4}, labels: {zone: x, disk: ssd}}
- {id: b, capacity: {CPU: 2, GPU: 1}, labels: {zone: y}, taints: "k=v:NoSchedule"}
- {id: c, capacity: {CPU: 2}, draining: true}
work:
- {id: w, count: 4, resources: {CPU: 1}}
- {id: near, resources: {CPU: 1}, selector: disk = ssd}
- {id: tolerant, resources: {GPU: 1}, tolerations: all}
- {id: waits, count: 2, resources: {CPU: 2}, selector: zone = z}
- {id: large, resources: {CPU: 4}}
groups:
- {id: gang, bundles: [{CPU: 1}, {CPU: 1}], strategy: STRICT_SPREAD}
"""

keys = st.sampled_from(["k", "team", "node.stead.io/drained"])
taints = st.builds(Taint, keys, st.sampled_from(["", "v", "w"]), st.sampled_from(Effect))
removals = st.builds(Removal, keys, st.sampled_from([None, "v"]), st.sampled_from([None, *Effect]))
label_keys = st.sampled_from(["zone", "disk", "rack"])
changes = st.builds(
    NodeChange,
    st.sampled_from(["a-1", "a-2", "b", "c"]),
    st.lists(taints, max_size=2, unique_by=lambda taint: (taint.key, taint.effect)).map(tuple),
    st.lists(removals, max_size=2).map(tuple),
    st.dictionaries(label_keys, st.sampled_from(["x", "z", ""]), max_size=2).map(Labels),
    st.lists(label_keys, max_size=1).map(tuple),
    st.sampled_from([None, None, True, False]),
    for_s=st.sampled_from([None, 5.0, 100.0]),
    owner=st.sampled_from(["", "ann"]),
    overwrite=st.booleans(),
    missing_ok=st.booleans(),
    unlabel_values=st.sampled_from([EMPTY, EMPTY, EMPTY, Labels({"disk": "ssd"}), Labels({"disk": "x"})]),
)


def states(desk: SimDesk) -> dict[str, Any]:
    nodes = desk.snapshot().by_id
    return {id: state_of(node, desk.ends()) for id, node in nodes.items()}


def places(desk: SimDesk) -> dict[str, str]:
    return {view.id: view.node for view in desk.work(Query(limit=1000)).items}


@pytest.fixture
def desk() -> Iterator[SimDesk]:
    with simulated(SCENARIO) as found:
        yield found


@settings(max_examples=60 * SOAK, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(changes, min_size=1, max_size=4))
@example([NodeChange("b", (Taint(DRAINED, "", Effect.NO_EXECUTE),)), NodeChange("b", draining=True)])
def test_undoing_all_changes_in_reverse_restores_every_node(wanted: list[NodeChange]) -> None:
    with simulated(SCENARIO) as desk:
        seen = [states(desk)]
        done = []
        for change in wanted:
            try:
                done.append(desk.change(change, ANN).entry)
            except Invalid:
                continue
            seen.append(states(desk))
            assert done[-1].after == seen[-1][change.node]
        for entry in reversed(done):
            after, before = seen.pop(), seen[-1]
            assert states(desk) == after
            if before == after:
                with pytest.raises(Conflict, match="changed nothing"):
                    desk.undo(entry.number, ANN)
            else:
                desk.undo(entry.number, ANN)
            assert states(desk) == before
        assert desk.verify() == len(desk.audit(0, 1000))


def let_pass(desk: SimDesk, seconds: float) -> None:
    """Advance the virtual time."""
    play(desk._cluster, desk._controller, desk._cluster.now() + seconds)
    desk._snapshot = None


def moves(difference: Difference) -> dict[str, str]:
    """The new node of all work that is placed, moved or evicted."""
    kinds = (difference.placed, difference.moved, difference.stranded)
    return {id: fate.after for fates in kinds for fate in fates for id in fate.ids}


@settings(max_examples=60 * SOAK, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes)
def test_a_change_does_what_its_preview_showed(change: NodeChange) -> None:
    with simulated(SCENARIO) as desk:
        before = places(desk)
        try:
            tried = desk.blast(change)
        except Invalid as refused:
            with pytest.raises(Invalid, match=re.escape(str(refused))):
                desk.change(change, ANN)
            return
        assert places(desk) == before
        desk.change(change, ANN)
        after = places(desk)
        assert {id: node for id, node in after.items() if node != before.get(id)} == moves(tried)
        blocked = {id for fate in tried.blocked for id in fate.ids}
        waiting = {id for fate in (*tried.waiting, *tried.stranded) for id in fate.ids} | blocked
        assert waiting == {id for id, node in after.items() if not node}


@given(changes)
def test_a_change_survives_serialisation(change: NodeChange) -> None:
    edit = NodeEdit.model_validate(change_json(change))
    assert change_of(change.node, edit) == change


REFUSED = [
    (
        NodeChange("a-1", (Taint("k", "v"),), (Removal("k"),)),
        "taint k=v of node a-1 is set and removed in one change; keep one of the two, for example 'k-'",
    ),
    (
        NodeChange("a-1", labels=Labels({"rack": "7"}), unlabels=("rack",)),
        "label 'rack' of node a-1 is set and removed in one change; keep one of the two, for example 'rack-'",
    ),
    (
        NodeChange("a-1", unlabels=("disk",), unlabel_values=Labels({"disk": "hdd"})),
        "node a-1 has no label disk=hdd; it has disk=ssd,zone=x",
    ),
    (
        NodeChange("a-1", unlabels=("zone",), unlabel_values=Labels({"disk": "ssd"})),
        "unlabel_values has label 'disk', which is not removed; add 'disk' to unlabels",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_a_contradiction_or_another_value_is_refused(change: NodeChange, sentence: str, desk: SimDesk) -> None:
    for ask in (desk.blast, lambda change: desk.change(change, ANN)):
        with pytest.raises(Invalid) as refused:
            ask(change)
        assert str(refused.value) == sentence
    assert desk.audit() == []


def test_a_taint_can_be_replaced_by_its_old_value(desk: SimDesk) -> None:
    desk.change(NodeChange("b", (Taint("k", "w"),), (Removal("k", "v"),)), ANN)
    assert [str(taint) for taint in desk.node("b").taints] == ["k=w"]


def test_a_label_with_another_value_stays_if_it_may_be_missing(desk: SimDesk) -> None:
    change = NodeChange("a-1", unlabels=("disk",), unlabel_values=Labels({"disk": "hdd"}), missing_ok=True)
    desk.change(change, ANN)
    assert desk.node("a-1").labels["disk"] == "ssd"


class TestUndo:
    def test_restores_owner_and_end(self, desk: SimDesk) -> None:
        desk.change(NodeChange("a-1", (Taint("k", "v"),), for_s=100.0, owner="ann"), ANN)
        desk.change(NodeChange("a-1", (Taint("k", "w"),), owner="bob"), ANN)
        desk.undo(2, ANN)
        (end,) = desk.node("a-1").ends
        assert (end.owner, end.until) == ("ann", desk.now() + 100)
        desk.change(NodeChange("a-1", untaints=(Removal("k"),)), ANN)
        desk.undo(4, ANN)
        (end,) = desk.node("a-1").ends
        assert (end.owner, end.until) == ("ann", desk.now() + 100)

    def test_of_a_changed_end_restores_the_old_one(self, desk: SimDesk) -> None:
        desk.change(NodeChange("a-1", (Taint("k", "v"),), for_s=100.0), ANN)
        desk.change(NodeChange("a-1", (Taint("k", "v"),), for_s=900.0), ANN)
        desk.undo(2, ANN)
        assert [end.until for end in desk.node("a-1").ends] == [desk.now() + 100]

    def test_of_a_drain_with_evictions_makes_the_node_schedulable_again(self, desk: SimDesk) -> None:
        before = states(desk)
        desk.change(NodeChange("a-1", draining=True, evict=True), ANN)
        assert not desk.snapshot().by_node.get("a-1")
        desk.undo(1, ANN)
        assert states(desk) == before

    def test_is_refused_when_the_same_thing_was_changed_since(self, desk: SimDesk) -> None:
        desk.change(NodeChange("a-1", (Taint("k", "v"),)), ANN)
        desk.change(NodeChange("a-1", (Taint("k", "w"),)), ANN)
        with pytest.raises(Conflict, match="k:no-schedule of node a-1 was changed since"):
            desk.undo(1, ANN)

    def test_keeps_other_changes(self, desk: SimDesk) -> None:
        desk.change(NodeChange("a-1", (Taint("k", "v"),)), ANN)
        desk.change(NodeChange("a-1", labels=Labels({"rack": "7"})), ANN)
        desk.undo(1, ANN)
        assert (desk.node("a-1").taints, desk.node("a-1").labels["rack"]) == ((), "7")

    def test_can_be_undone(self, desk: SimDesk) -> None:
        desk.change(NodeChange("a-1", (Taint("k", "v"),)), ANN)
        desk.undo(1, ANN)
        desk.undo(2, ANN)
        assert [str(taint) for taint in desk.node("a-1").taints] == ["k=v"]


class TestATaintWithAnEnd:
    def test_is_removed_automatically_and_not_before(self, desk: SimDesk) -> None:
        desk.change(NodeChange("a-1", (Taint("k", "v"),), for_s=100.0), ANN)
        let_pass(desk, 99.0)
        assert desk.node("a-1").taints
        assert desk.node("a-1").ends
        let_pass(desk, 2.0)
        assert not desk.node("a-1").taints
        assert not desk.node("a-1").ends

    def test_stays_when_it_was_set_again_without_an_end(self, desk: SimDesk) -> None:
        desk.change(NodeChange("a-1", (Taint("k", "v"),), for_s=0.5), ANN)
        desk.change(NodeChange("a-1", (Taint("k", "v"),)), ANN)
        assert [end.until for end in desk.node("a-1").ends] == [None]
        let_pass(desk, 1000.0)
        assert desk.node("a-1").taints


@pytest.mark.parametrize(
    ("removal", "taken"),
    [
        (Removal("k"), ["k=v", "k", "k=v:no-execute"]),
        (Removal("k", "v"), ["k=v", "k=v:no-execute"]),
        (Removal("k", ""), ["k"]),
        (Removal("k", None, Effect.NO_EXECUTE), ["k=v:no-execute"]),
        (Removal("k", "v", Effect.NO_SCHEDULE), ["k=v"]),
        (Removal("k", "w"), []),
    ],
    ids=str,
)
def test_a_removal_takes_what_it_names_and_no_more(removal: Removal, taken: list[str]) -> None:
    taints = [Taint("k", "v"), Taint("k"), Taint("k", "v", Effect.NO_EXECUTE), Taint("other", "v")]
    assert [str(taint) for taint in taints if removal.matches(taint)] == taken
