"""What is done can be taken back, and what was tried is what is done."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from serving import simulated
from stead.errors import Invalid
from stead.labelling import Labels
from stead.operate.audit import Author
from stead.operate.changes import DRAINED, Conflict, NodeChange, Removal, change_json, state_of
from stead.operate.snapshot import Query
from stead.operate.what_if import Difference
from stead.service.api import change_of
from stead.service.schemas import NodeEdit
from stead.sim.cluster import play
from stead.sim.desk import SimDesk
from stead.taints import Effect, Taint

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
def test_changes_undone_in_turn_leave_every_node_as_it_was(wanted: list[NodeChange]) -> None:
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
    """Virtual time."""
    play(desk._cluster, desk._controller, desk._cluster.now() + seconds)
    desk._snapshot = None


def moves(difference: Difference) -> dict[str, str]:
    """Where everything would be that gets, changes or loses its place."""
    kinds = (difference.placed, difference.moved, difference.stranded)
    return {id: fate.after for fates in kinds for fate in fates for id in fate.ids}


@settings(max_examples=60 * SOAK, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes)
def test_what_was_tried_is_what_is_done(change: NodeChange) -> None:
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
def test_a_change_is_the_same_after_a_way_over_the_network(change: NodeChange) -> None:
    edit = NodeEdit.model_validate(change_json(change))
    assert change_of(change.node, edit) == change


class TestUndo:
    def test_brings_back_owner_and_end(self, desk: SimDesk) -> None:
        desk.change(NodeChange("a-1", (Taint("k", "v"),), for_s=100.0, owner="ann"), ANN)
        desk.change(NodeChange("a-1", (Taint("k", "w"),), owner="bob"), ANN)
        desk.undo(2, ANN)
        (end,) = desk.node("a-1").ends
        assert (end.owner, end.until) == ("ann", desk.now() + 100)
        desk.change(NodeChange("a-1", untaints=(Removal("k"),)), ANN)
        desk.undo(4, ANN)
        (end,) = desk.node("a-1").ends
        assert (end.owner, end.until) == ("ann", desk.now() + 100)

    def test_of_another_end_alone_brings_the_old_one_back(self, desk: SimDesk) -> None:
        desk.change(NodeChange("a-1", (Taint("k", "v"),), for_s=100.0), ANN)
        desk.change(NodeChange("a-1", (Taint("k", "v"),), for_s=900.0), ANN)
        desk.undo(2, ANN)
        assert [end.until for end in desk.node("a-1").ends] == [desk.now() + 100]

    def test_of_a_drain_with_evictions_lets_work_in_again(self, desk: SimDesk) -> None:
        before = states(desk)
        desk.change(NodeChange("a-1", draining=True, evict=True), ANN)
        assert not desk.snapshot().by_node.get("a-1")
        desk.undo(1, ANN)
        assert states(desk) == before

    def test_is_refused_when_somebody_changed_it_since(self, desk: SimDesk) -> None:
        desk.change(NodeChange("a-1", (Taint("k", "v"),)), ANN)
        desk.change(NodeChange("a-1", (Taint("k", "w"),)), ANN)
        with pytest.raises(Conflict, match="k:no-schedule of node a-1 was changed since"):
            desk.undo(1, ANN)

    def test_does_not_touch_what_others_changed_beside_it(self, desk: SimDesk) -> None:
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
    def test_goes_by_itself_and_not_before(self, desk: SimDesk) -> None:
        desk.change(NodeChange("a-1", (Taint("k", "v"),), for_s=100.0), ANN)
        let_pass(desk, 99.0)
        assert desk.node("a-1").taints
        assert desk.node("a-1").ends
        let_pass(desk, 2.0)
        assert not desk.node("a-1").taints
        assert not desk.node("a-1").ends

    def test_does_not_go_when_it_was_set_anew_without_one(self, desk: SimDesk) -> None:
        desk.change(NodeChange("a-1", (Taint("k", "v"),), for_s=0.5), ANN)
        desk.change(NodeChange("a-1", (Taint("k", "v"),)), ANN)
        assert [end.until for end in desk.node("a-1").ends] == [None]
        let_pass(desk, 1000.0)
        assert desk.node("a-1").taints
