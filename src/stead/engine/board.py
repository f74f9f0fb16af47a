"""The board: nodes, placed work, and how every shape stands to them; one move at a time.

Rule: `place` and `lift` are the only moves. Each keeps amounts, indexes and standings true together,
and each can be undone by the other, so a plan can be tried on the board itself and taken back.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np

from stead.asks import Ask, AskId, GroupId, PolicyName
from stead.engine.amounts import DeviceShares
from stead.engine.fleet import RESERVED, Fleet, Nodes, as_flags, rows_of
from stead.engine.flow import Emptiest, Fullest, Prices
from stead.engine.fragmentation import LeastFragmenting, Mix
from stead.engine.policies import Dice, policies
from stead.engine.rules import Hold, World, allowed
from stead.engine.shapes import Demand, Shape, Standing, View
from stead.engine.sharing import Sheet
from stead.engine.waiting import Line, Lines
from stead.engine.work import Placement, Work
from stead.node import NodeId

STANDINGS_MAX = 128
VIEWS_MAX = 2048
SHAPES_IDLE_MAX = 4096
TOUCHED_MAX = 100_000

EMPTIEST, FULLEST = Emptiest(), Fullest()


class Board:
    def __init__(self, hybrid_threshold: float, seed: int) -> None:
        self.world = World(Fleet(), Work())
        self.dice = Dice(seed)
        self._policies = policies(hybrid_threshold)
        self._shapes: Sheet[tuple[object, ...], Shape] = Sheet()
        self._standings: OrderedDict[Demand, Standing] = OrderedDict()
        self._views: dict[Demand, View] = {}
        self.least_fragmenting = LeastFragmenting(Mix())
        self._shapes_max = SHAPES_IDLE_MAX
        self.turn = 0

    def fork(self, lasting: bool = True) -> Board:
        """A twin; one that is gone before this board is written to again need not last, and costs it nothing."""
        twin = Board.__new__(Board)
        twin.world = World(self.world.fleet.fork(lasting), self.world.work.fork(lasting), self.world.hold)
        twin.dice = Dice(self.dice.state)
        twin._policies, twin._shapes, twin._shapes_max = self._policies, self._shapes.fork(lasting), self._shapes_max
        twin.least_fragmenting = self.least_fragmenting.fork(lasting)
        twin._standings, twin._views, twin.turn = OrderedDict(), {}, self.turn
        return twin

    @property
    def fleet(self) -> Fleet:
        return self.world.fleet

    @property
    def work(self) -> Work:
        return self.world.work

    def next_turn(self) -> int:
        self.turn += 1
        return self.turn

    # -- shapes

    def shape_of(self, ask: Ask) -> Shape:
        """The one shape of all equal asks, compiled when first seen."""
        key = ask.shape_key
        shape = self._shapes.map.get(key)
        if shape is None:
            shape = Shape(ask, self._policies[ask.policy])
            self._shapes.write()[key] = shape
        return shape

    def note_kind(self, shape: Shape, count: int) -> None:
        """So many asks of the shape have come: what usually comes is what nodes are kept whole for."""
        if shape.policy is PolicyName.FLOW_FGD:
            self.least_fragmenting.mix.add(shape.demands[0], count)

    def tidy(self, waiting: Lines) -> None:
        """Drop what was compiled for shapes that nothing waits with, once there are many of them; it is made
        again when needed."""
        if len(self._shapes.map) > self._shapes_max:
            self._shapes = Sheet({shape.key: shape for shape in waiting.shapes()})
            self._shapes_max = 2 * len(self._shapes.map) + SHAPES_IDLE_MAX
            self._standings.clear()
            self._views.clear()
            self.work.forget_indexes(self.fleet, waiting.columns)

    def standing(self, demand: Demand) -> Standing:
        """How the demand stands to all nodes, up to date."""
        self._trim()
        standing = self._standings.get(demand)
        if standing is None:
            standing = self._standings[demand] = Standing(demand)
            if len(self._standings) > STANDINGS_MAX:
                self._standings.popitem(last=False)
        else:
            self._standings.move_to_end(demand)
        standing.refresh(self.world)
        return standing

    def _trim(self) -> None:
        """The list of changed rows begins anew when it is long; what was kept up to date by it does, too."""
        if len(self.fleet.touched) > max(TOUCHED_MAX, 4 * self.fleet.size):
            self.fleet.touched.clear()
            self._standings.clear()
            self.least_fragmenting.forget()

    def view(self, demand: Demand) -> View:
        """How the demand sees all nodes, amounts aside, up to date."""
        view = self._views.get(demand)
        if view is None:
            if len(self._views) >= VIEWS_MAX:
                self._views.clear()
            view = self._views[demand] = View(demand)
        view.refresh(self.world)
        return view

    def prices(self, policy: PolicyName) -> Prices:
        """What placements in a batch cost."""
        self._trim()
        if policy is PolicyName.FLOW_FGD:
            return self.least_fragmenting
        return EMPTIEST if policy is PolicyName.FLOW else FULLEST

    def hopes(self, demand: Demand) -> Nodes:
        """The nodes that refuse it for nothing but amounts that may become free."""
        return self.standing(demand).nodes & allowed((demand.rules.could_fit,), self.world)

    def emptiest(self, demand: Demand, nodes: Nodes) -> int:
        """The least loaded of these nodes: the one where waiting for room is likely to be shortest."""
        where = np.flatnonzero(as_flags(nodes, self.fleet.size))
        loads = np.zeros(len(where), np.int64)
        for resource, need in demand.needs:
            np.maximum(loads, self.fleet.amount(resource).loads(where, need), out=loads)
        return int(where[loads.argmin()])

    # -- moves

    def place(
        self, ask: Ask, demand: Demand, row: int, moment: float, turn: int, group: GroupId | None = None
    ) -> Placement:
        held = self.fleet.take(row, demand.needs)
        placement = Placement(ask, row, demand.index, held if demand.on_devices else (), moment, turn, group)
        self.work.add(self.fleet, placement)
        return placement

    def place_many(self, runs: Sequence[tuple[Demand, Sequence[Ask], list[int], Line]]) -> None:
        """Place runs of equal asks that look at no other work: of each run, one ask on each of its rows."""
        alike = []
        for demand, asks, rows, line in runs:
            held: Iterable[tuple[DeviceShares, ...]] = repeat(())
            if demand.on_devices:
                held = [self.fleet.take(row, demand.needs) for row in rows]
            else:
                self.fleet.take_many(rows, demand.needs)
            choice, moment, turn = demand.index, line.moment, line.turn
            places = zip(asks, rows, held, strict=False)
            alike.append([Placement(ask, row, choice, devices, moment, turn, None) for ask, row, devices in places])
        self.work.add_many(self.fleet, alike)

    def lift(self, id: AskId) -> Placement:
        """Take a placed ask off the board."""
        placement = self.work.remove(self.fleet, id)
        needs = placement.ask.choices[placement.choice].resources.items()
        self.fleet.give(placement.row, needs, placement.held)
        return placement

    def set_hold(self, hold: Hold | None, news: bool = True) -> None:
        """Hold nodes, or hold them no longer, which is news to those who were kept off."""
        self.world.hold = hold
        self.fleet.bump(RESERVED, news=news and hold is None)

    # -- reading

    def node_id(self, row: int) -> NodeId:
        return self.fleet.nodes.map[row].id

    def candidates(self, shape: Shape) -> tuple[tuple[NodeId, ...], ...]:
        return tuple(self.fleet.ids(self.standing(demand).candidates()) for demand in shape.demands)

    def tiers(self, shape: Shape) -> tuple[tuple[NodeId, ...], ...]:
        """The candidates of all choices, grouped: an earlier choice first, then what is more preferred."""
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
