"""Explanations: why work is pending or where it is, as a value and (through `wording`) as text.

Rule: nothing here decides about a node. Refusals come from the deciding rules (`verdicts`), changes from
`smallest_change`, and scores from the same ranking that chose the node, so an explanation cannot contradict a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from stead.engine.board import Board
from stead.engine.columns.amounts import REFUSED
from stead.engine.decisions import Verdict
from stead.engine.explain import wording
from stead.engine.explain.smallest_change import AddCapacity, AddLabel, Change, FreeUp, Uncordon, smallest_change
from stead.engine.explain.verdicts import refused_sets, verdict
from stead.engine.fleet import Fleet
from stead.engine.groups.lifecycle import GroupRecord
from stead.engine.groups.search import count_fitting, first_without_place, place_team
from stead.engine.parts import Parts
from stead.engine.reasons import Reason
from stead.engine.shapes import Shape
from stead.language.asks import Ask, AskId, Group
from stead.language.nodes import NodeId

RUNNERS_UP_MAX = 3


@dataclass(frozen=True, slots=True)
class Score:
    """Why a node ranks above or below another. `load` is in 1/10000 of the node, with the ask on it."""

    node: NodeId
    preference: int
    """The weights of the preferences that hold there."""
    load: int


@dataclass(frozen=True, slots=True)
class Quorum:
    """A group in numbers: its members, how many of them must be placed at once (`least`), how many are `placed` or
    have ended, and how many more fit now, placed one after the other (`fitting`)."""

    members: int
    least: int
    placed: int
    fitting: int

    @property
    def more_members(self) -> int:
        """How many more members must be submitted before the group is tried."""
        return max(0, self.least - self.members)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an ask or group is pending and what would make it fit, or why it is on its node. ``print`` it to read it.

    A group has one explanation for each unplaced member of its alternative.

    Attributes:
        id: The id of the ask or group.
        verdicts: How many nodes would take it and why the others do not, one entry for each choice.
        change: The smallest change that would make it fit, if one is known.
        chosen: For placed work, the score of its node now, computed without the work itself.
        runners_up: For placed work, the scores of the next best nodes.
        members: For a group, the explanations of its members.
        together: For a group, whether as many members as it needs would fit at the same time.
        nominated: The node where a place is kept for it until other work there has ended; of a group, the first one.
        ending: Ids of that other work.
        policy: How nodes are chosen for it.
        crowded_out: For a group whose members fit alone but not together, the first member that fits no node once the
            members before it are placed, and why.
        quorum: For a group, how many members it has, how many it needs, and how many fit.
        names: Names of the nodes that its sentences mention.
        hints: Possible misspellings in what it asks for.

    Example:
        ```python
        explanation = engine.explain("train")
        if not explanation.fits:
            print(explanation)
        ```
    """

    id: str
    verdicts: tuple[Verdict, ...] = ()
    change: Change | None = None
    chosen: Score | None = None
    runners_up: tuple[Score, ...] = ()
    members: tuple[Explanation, ...] = ()
    together: bool | None = None
    policy: str = ""
    nominated: NodeId = ""
    ending: tuple[AskId, ...] = ()
    crowded_out: tuple[AskId, Verdict] | None = None
    quorum: Quorum | None = None
    names: Mapping[NodeId, str] = field(default_factory=dict, compare=False)
    """Names of the nodes that its sentences mention."""

    hints: tuple[str, ...] = field(default=(), compare=False)
    """Possible misspellings in what it asks for."""

    @property
    def fits(self) -> bool:
        """Whether a node would take it now."""
        if self.members:
            return bool(self.together)
        return any(verdict.candidates for verdict in self.verdicts)

    @property
    def causes(self) -> frozenset[tuple[int, Reason]]:
        """The reasons by choice, without node counts. Counts change often, reasons rarely."""
        found = {(n, each.reason) for n, verdict in enumerate(self.verdicts) for each in verdict.refusals if each.nodes}
        return frozenset(found).union(*(member.causes for member in self.members))

    @property
    def change_text(self) -> str:
        """The smallest change in one sentence; "" if there is none."""
        return "" if self.change is None else wording.change(self.change, names=self.names)

    def __str__(self) -> str:
        return wording.explanation(self)

    def naming(self, fleet: Fleet) -> Explanation:
        """The same explanation with the names of the nodes that it and its members mention."""
        found = [set(wording.nodes_named(each)) for each in (self, *self.members)]
        if not any(found):
            return self
        names, *of_members = [{id: fleet.titles[id] for id in ids} for ids in found]
        members = (replace(each, names=own) for each, own in zip(self.members, of_members, strict=True))
        return replace(self, names=names, members=tuple(members))


def explain_pending(parts: Parts, what: Ask | Group) -> Explanation:
    """Why work is pending, without the places that are kept for it, and for what these wait."""
    twin = parts.board.fork(lasting=False)
    ids = [member.id for member in what.all_members] if isinstance(what, Group) else [what.id]
    kept = [twin.end_nomination(id) for id in ids if id in parts.board.work.nominations.map]
    if isinstance(what, Group):
        found = explain_group(twin, what, parts.groups.records.map.get(what.id))
    else:
        if what.id in twin.work.placements.map:
            twin.lift(what.id)  # an ask does not block itself
        found = explain_waiting(twin, what)
    if not kept:
        return found
    ending = parts.preemption.ending_on(*dict.fromkeys(each.row for each in kept))
    return replace(found, nominated=twin.node_id(kept[0].row), ending=ending)


def explain_waiting(board: Board, ask: Ask) -> Explanation:
    shape = board.shape_of(ask)
    sets = [refused_sets(board, demand) for demand in shape.demands]
    verdicts = tuple(verdict(board, found) for found in sets)
    if any(found.candidates for found in verdicts):
        return Explanation(ask.id, verdicts, policy=ask.policy)
    return Explanation(ask.id, verdicts, smallest_change(board, ask, sets), policy=ask.policy)


def explain_placed(board: Board, id: AskId) -> Explanation:
    """Why this node: the scores of its node and of the runners-up, computed on a fork without the ask."""
    twin = board.fork(lasting=False)
    placement = twin.lift(id)
    shape = twin.shape_of(placement.ask)
    demand = shape.demands[placement.choice]
    standing = twin.standing(demand)
    order = np.argsort(standing.keys, kind="stable")[: RUNNERS_UP_MAX + 1].tolist()
    rows = [row for row in order if row != placement.row and standing.keys.item(row) != REFUSED]
    verdicts = tuple(verdict(twin, refused_sets(twin, each)) for each in shape.demands)

    def score(row: int) -> Score:
        return Score(twin.node_id(row), *standing.score(twin.fleet, row))

    runners_up = tuple(score(row) for row in rows[:RUNNERS_UP_MAX])
    return Explanation(id, verdicts, chosen=score(placement.row), runners_up=runners_up, policy=placement.ask.policy)


def explain_group(board: Board, group: Group, record: GroupRecord | None) -> Explanation:
    """Each unplaced member of the alternative taken (or of the first) alone, and whether enough of them fit at once.
    While no alternative is taken, the group fits if any of them does."""
    known = record or GroupRecord(group, 0.0, 0, None, frozenset())
    together = any(place_team(twin, each.team(twin)) for each in known.open() for twin in (board.fork(),))
    by_shape: dict[Shape, Explanation] = {}
    explanations = []
    for ask in known.missing(board):
        shape = board.shape_of(ask)
        if shape not in by_shape:
            by_shape[shape] = explain_waiting(board, ask)
        same = by_shape[shape]
        explanations.append(Explanation(ask.id, same.verdicts, same.change, policy=same.policy))
    if len(explanations) > 1:
        explanations = [replace(each, change=_unless_of_nodes(each.change)) for each in explanations]
    team, alternative = known.team(board), known.alternative or 0
    members = len(group.alternatives[alternative])
    placed, fitting_now = members - len(team.members), count_fitting(board, team)
    quorum = Quorum(members, group.least(alternative), placed, fitting_now)
    crowded_out = None
    fitting = [member for member, each in zip(team.members, explanations, strict=True) if each.fits]
    if not together and not quorum.more_members and len(fitting) >= team.needed:
        crowded_out = first_without_place(board, team._replace(members=fitting))
    return Explanation(
        group.id,
        members=tuple(explanations),
        together=together,
        policy=group.strategy,
        crowded_out=crowded_out,
        quorum=quorum,
    )


def _unless_of_nodes(change: Change | None) -> Change | None:
    """The change, unless it edits a node: that helps only one member, while a change of the ask can help several."""
    on_nodes = (FreeUp, AddCapacity, AddLabel, Uncordon)
    return None if change is None or any(isinstance(edit, on_nodes) for edit in change.edits) else change
