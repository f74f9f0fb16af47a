"""The board: nodes and placed work, and the cached ranking of nodes for every shape.

Rule: work moves only through `place`, `place_many`, `put_back` and `lift`; places are kept for pending work only
through `nominate` and `end_nomination`. A plan is tried on the board itself, inside an `attempt`. An attempt that is
not kept is undone, and wakes no pending work. `use` records what unmanaged work uses on a node. Every method keeps
amounts and indexes consistent.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from itertools import repeat
from types import TracebackType
from typing import Self

import numpy as np

from stead.engine.batch.flow import Emptiest, Fullest, Prices
from stead.engine.batch.fragmentation import LeastFragmenting, Mix
from stead.engine.columns.amounts import DeviceShares
from stead.engine.columns.change_log import RESERVED, Column
from stead.engine.columns.sharing import Sheet
from stead.engine.fleet import Fleet, News, Nodes, as_flags, rows_of
from stead.engine.ranking.kube_fit import FitScores
from stead.engine.ranking.kube_scores import KubeStanding
from stead.engine.ranking.policies import Dice, policies
from stead.engine.ranking.standing import Standing
from stead.engine.ranking.views import View
from stead.engine.rules import Hold, World, allowed
from stead.engine.shapes import Demand, Shape
from stead.engine.waiting import Line, Lines
from stead.engine.work import Placement, Unmanaged, Work
from stead.language.asks import Ask, AskId, GroupId, PolicyName
from stead.language.claims import Claim, ClaimId
from stead.language.nodes import NodeId
from stead.language.resources import Resources

STANDINGS_MAX = 128
VIEWS_MAX = 2048
SHAPES_IDLE_MAX = 4096
TOUCHED_MAX = 100_000

EMPTIEST, FULLEST = Emptiest(), Fullest()


class Attempt:
    """Moves that are kept or undone together. Attempts can be nested.

    A kept attempt wakes pending work only for resources that are free at its end, not for what was free in between.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._outer, board.attempted = board.attempted, self
        self._news = board.fleet.news.end
        self.moves: list[tuple[Placement, bool]] = []
        """What was placed (True) or lifted (False), in order."""
        self._is_open = True

    def keep(self) -> None:
        """Keep the moves."""
        self._close()
        if self._outer is not None:
            self._outer.moves += self.moves
            return
        first: dict[tuple[AskId, bool], tuple[Placement, bool]] = {}
        for placement, is_placed in self.moves:
            first.setdefault((placement.ask.id, placement.is_nomination), (placement, is_placed))
        freed: dict[News, None] = {}
        work = self._board.work
        for (id, is_nomination), (before, is_placed) in first.items():
            now = (work.nominations if is_nomination else work.placements).map.get(id)
            if not is_placed and (now is None or now.row != before.row):
                needs = before.ask.choices[before.choice].resources
                freed.update(dict.fromkeys((Column("free", resource), before.row) for resource in needs))
        news = self._board.fleet.news
        changed = [each for each in news.since(self._news) or () if each[0].kind != "free"]
        news.replace(self._news, [*changed, *freed])

    def take_back(self) -> None:
        """Undo the moves."""
        self._close()
        board = self._board
        board.attempted = None  # an outer attempt must not record the undo as moves
        for placement, is_placed in reversed(self.moves):
            if is_placed and placement.is_nomination:
                board.end_nomination(placement.ask.id)
            elif is_placed:
                board.lift(placement.ask.id)
            else:
                board.put_back(placement)
        board.fleet.news.replace(self._news, ())
        board.attempted = self._outer

    def _close(self) -> None:
        assert self._is_open and self._board.attempted is self, "an inner attempt ends before its outer one"
        self._is_open, self._board.attempted = False, self._outer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        while self._is_open:  # after an error, inner attempts may still be open
            assert self._board.attempted is not None
            self._board.attempted.take_back()


class Board:
    def __init__(self, hybrid_threshold: float, seed: int) -> None:
        self._on(World(Fleet(), Work()))
        self.dice = Dice(seed)
        self._policies = policies(hybrid_threshold)
        self._shapes: Sheet[tuple[object, ...], Shape] = Sheet()
        self._standings: OrderedDict[Demand, Standing | KubeStanding] = OrderedDict()
        self._fits: dict[tuple[object, ...], FitScores] = {}
        self._views: dict[Demand, View] = {}
        self.least_fragmenting = LeastFragmenting(Mix())
        self._shapes_max = SHAPES_IDLE_MAX
        self.turn = 0
        self.attempted: Attempt | None = None

    def fork(self, lasting: bool = True) -> Board:
        """A fork, as in `Sheet.fork`."""
        twin = Board.__new__(Board)
        twin._on(World(self.fleet.fork(lasting), self.work.fork(lasting), self.world.hold))
        twin.dice = Dice(self.dice.state)
        twin._policies, twin._shapes, twin._shapes_max = self._policies, self._shapes.fork(lasting), self._shapes_max
        twin.least_fragmenting = self.least_fragmenting.fork(lasting)
        twin._standings, twin._fits, twin._views, twin.turn = OrderedDict(), {}, {}, self.turn
        twin.attempted = None
        return twin

    def _on(self, world: World) -> None:
        self.world, self.fleet, self.work = world, world.fleet, world.work

    def next_turn(self) -> int:
        self.turn += 1
        return self.turn

    # -- shapes

    def shape_of(self, ask: Ask) -> Shape:
        """The shape that all equal asks share, compiled when first seen."""
        key = ask.shape_key
        shape = self._shapes.map.get(key)
        if shape is None:
            shape = Shape(ask, self._policies[ask.policy])
            self._shapes.write()[key] = shape
        return shape

    def note_kind(self, shape: Shape, count: int) -> None:
        """Count newly submitted asks of a shape. The fragmentation policy learns from these counts."""
        if shape.policy is PolicyName.FLOW_FGD:
            self.least_fragmenting.mix.add(shape.demands[0], count)

    def tidy(self, waiting: Lines) -> None:
        """Drop the caches of shapes without pending work once there are many; they are rebuilt when needed."""
        if len(self._shapes.map) > self._shapes_max:
            self._shapes = Sheet({shape.key: shape for shape in waiting.shapes()})
            self._shapes_max = 2 * len(self._shapes.map) + SHAPES_IDLE_MAX
            self._standings.clear()
            self._fits.clear()
            self._views.clear()
            self.work.forget_indexes(self.fleet, waiting.columns)

    def standing(self, demand: Demand) -> Standing | KubeStanding:
        """The demand's ranking of all nodes, up to date."""
        self._bound_log()
        standing = self._standings.get(demand)
        if standing is None:
            new = KubeStanding(demand, self._fit_scores(demand)) if demand.is_kube else Standing(demand)
            standing = self._standings[demand] = new
            if len(self._standings) > STANDINGS_MAX:
                self._standings.popitem(last=False)
        else:
            self._standings.move_to_end(demand)
        standing.refresh(self.world)
        return standing

    def best_in_turn(self, shape: Shape, count: int) -> list[int]:
        """The rows that `count` equal asks would get one after the other, although each may change where the next can
        go; none if that cannot be foreseen."""
        standing = self.standing(shape.demands[0])
        if len(shape.demands) > 1 or not isinstance(standing, KubeStanding):
            return []
        return standing.best_in_turn(self.world, count)

    def _fit_scores(self, demand: Demand) -> FitScores:
        """What it shares with other work that requests the same."""
        key = demand.needs, demand.estimates, demand.images
        if key not in self._fits and len(self._fits) >= STANDINGS_MAX:
            self._fits.clear()
        return self._fits.setdefault(key, FitScores(demand))

    def _bound_log(self) -> None:
        """Drop the log of changed rows if it is too long; its readers then compute everything again."""
        self.fleet.touched.keep_at_most(max(TOUCHED_MAX, 4 * self.fleet.size))

    def view(self, demand: Demand) -> View:
        """Which nodes are open to the demand, ignoring amounts, up to date."""
        view = self._views.get(demand)
        if view is None:
            if len(self._views) >= VIEWS_MAX:
                self._views.clear()
            view = self._views[demand] = View(demand)
        view.refresh(self.world)
        return view

    def prices(self, policy: PolicyName) -> Prices:
        """The costs of placements in a batch."""
        self._bound_log()
        if policy is PolicyName.FLOW_FGD:
            return self.least_fragmenting
        return EMPTIEST if policy is PolicyName.FLOW else FULLEST

    def hopes(self, demand: Demand) -> Nodes:
        """The nodes that would take it if enough became free."""
        return self.standing(demand).nodes & allowed((demand.rules.could_fit,), self.world)

    def wakers(self, shape: Shape) -> tuple[list[Column], Nodes]:
        """The columns whose change could let a shape fit, and the nodes where more free resources could."""
        columns: list[Column] = []
        hopes: Nodes = 0
        for demand in shape.demands:
            hopeful = self.hopes(demand)
            columns += demand.reads(self.work)
            columns += [Column("total", resource) for resource, _ in demand.needs]
            columns += [Column("free", resource) for resource, _ in demand.needs if hopeful]
            hopes |= hopeful
        return columns, hopes

    def emptiest(self, demand: Demand, nodes: Nodes) -> int:
        """The least loaded of these nodes, where enough is likely to become free first."""
        where = np.flatnonzero(as_flags(nodes, self.fleet.size))
        loads = np.zeros(len(where), np.int64)
        for resource, need in demand.needs:
            np.maximum(loads, self.fleet.amount(resource).loads(where, need), out=loads)
        return int(where[loads.argmin()])

    # -- moves

    def attempt(self) -> Attempt:
        """Try moves: ``with board.attempt() as tried: ...`` undoes them unless you call ``tried.keep()``."""
        return Attempt(self)

    def place(
        self,
        ask: Ask,
        demand: Demand,
        row: int,
        moment: float,
        turn: int,
        group: GroupId | None = None,
        started: float | None = None,
    ) -> Placement:
        held = self.fleet.take(row, demand.needs)
        if ask.estimates:
            self.fleet.estimate(row, ask.estimates.items(), +1)
        placement = Placement(ask, row, demand.index, held if demand.on_devices else (), moment, turn, group, started)
        self.work.add(self.fleet, placement)
        if self.attempted is not None:
            self.attempted.moves.append((placement, True))
        return placement

    def put_back(self, placement: Placement) -> None:
        """Place a lifted ask again, on the same devices; or nominate it again."""
        needs = placement.ask.choices[placement.choice].resources.items()
        self.fleet.take_again(placement.row, needs, placement.held)
        if placement.ask.estimates:
            self.fleet.estimate(placement.row, placement.ask.estimates.items(), +1)
        if placement.is_nomination:
            self.work.nominate(self.fleet, placement)
        else:
            self.work.add(self.fleet, placement)
        if self.attempted is not None:
            self.attempted.moves.append((placement, True))

    def nominate(
        self, ask: Ask, demand: Demand, row: int, moment: float, turn: int, group: GroupId | None = None
    ) -> None:
        """Keep a place for a pending ask. The node may be full: then more is in use than it has."""
        held = self.fleet.take(row, demand.needs)
        if ask.estimates:
            self.fleet.estimate(row, ask.estimates.items(), +1)
        devices = held if demand.on_devices else ()
        nomination = Placement(ask, row, demand.index, devices, moment, turn, group, is_nomination=True)
        self.work.nominate(self.fleet, nomination)
        if self.attempted is not None:
            self.attempted.moves.append((nomination, True))

    def end_nomination(self, id: AskId) -> Placement:
        """Do not keep a place for this ask any more."""
        return self._leave(self.work.end_nomination(self.fleet, id))

    def place_many(self, runs: Sequence[tuple[Demand, Sequence[Ask], list[int], Line]]) -> None:
        """Place runs of equal asks: of each run, one ask on each of its rows."""
        alike = []
        for demand, asks, rows, line in runs:
            held: Iterable[tuple[DeviceShares, ...]] = repeat(())
            if demand.on_devices:
                held = [self.fleet.take(row, demand.needs) for row in rows]
            else:
                self.fleet.take_many(rows, demand.needs)
            for row in rows if asks[0].estimates else ():
                self.fleet.estimate(row, asks[0].estimates.items(), +1)
            choice, moment, turn = demand.index, line.moment, line.turn
            places = zip(asks, rows, held, strict=False)
            alike.append([Placement(ask, row, choice, devices, moment, turn, None) for ask, row, devices in places])
        self.work.add_many(self.fleet, alike)
        if self.attempted is not None:
            self.attempted.moves += [(placement, True) for placements in alike for placement in placements]

    def lift(self, id: AskId) -> Placement:
        """Remove a placed ask from the board."""
        return self._leave(self.work.remove(self.fleet, id))

    def _leave(self, placement: Placement) -> Placement:
        needs = placement.ask.choices[placement.choice].resources.items()
        self.fleet.give(placement.row, needs, placement.held)
        if placement.ask.estimates:
            self.fleet.estimate(placement.row, placement.ask.estimates.items(), -1)
        if self.attempted is not None:
            self.attempted.moves.append((placement, False))
        return placement

    def use(self, row: int, amounts: Resources, pieces: int) -> None:
        """Record what unmanaged work uses on a node now."""
        before = self.work.unmanaged.map.get(row)
        if before is not None and (before.amounts, before.pieces) == (amounts, pieces):
            return
        if before is not None:
            self.fleet.give(row, before.needs, before.held)
        used = Unmanaged(amounts, pieces, ()) if pieces else None
        if used is not None:
            used = used._replace(held=self.fleet.take(row, used.needs))
        self.work.set_unmanaged(self.fleet, row, used)

    def claim_changed(self, claim: Claim) -> None:
        self.work.claim_changed(self.fleet, claim)

    def claim_ended(self, id: ClaimId) -> None:
        self.work.claim_ended(self.fleet, id)

    def set_hold(self, hold: Hold | None, news: bool = True) -> None:
        """Reserve nodes, or end the reservation, which wakes the work that it refused."""
        self.world.hold = hold
        self.fleet.bump(RESERVED, news=news and hold is None)

    # -- reading

    def node_id(self, row: int) -> NodeId:
        return self.fleet.nodes.map[row].id

    def candidates(self, shape: Shape) -> tuple[tuple[NodeId, ...], ...]:
        return tuple(self.fleet.ids(self.standing(demand).candidates()) for demand in shape.demands)

    def tiers(self, shape: Shape) -> tuple[tuple[NodeId, ...], ...]:
        """The candidates of all choices in groups: earlier choices first, then higher preference first."""
        found: list[tuple[NodeId, ...]] = []
        seen: Nodes = 0
        for demand in shape.demands:
            rows = rows_of(self.standing(demand).candidates() & ~seen)
            seen |= self.standing(demand).candidates()
            tiers: dict[int, list[NodeId]] = defaultdict(list)
            for row, worth in zip(rows, self.standing(demand).worth(rows), strict=True):
                tiers[worth].append(self.node_id(row))
            found.extend(tuple(tiers[worth]) for worth in sorted(tiers, reverse=True))
        return tuple(found)
