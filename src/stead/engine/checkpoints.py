"""Checkpoints: everything an engine needs to go on as if it had never stopped, as one plain value.

Rule: what `Engine.fork` copies is in a checkpoint, and nothing else: caches are built again. A restored engine makes
every later decision that the original would have made. What equal asks share is written once, and pieces are columns:
a checkpoint of many pieces costs little more than their ids.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Any

from stead.asks import Ask, AskId, Group, GroupId
from stead.engine.amounts import DeviceShares
from stead.engine.board import Board
from stead.engine.decisions import Decision, Evicted, GroupPlaced, Moved, Placed, Refusal, Refused, Waiting
from stead.engine.fleet import Column
from stead.engine.fragmentation import SavedMix
from stead.engine.groups import GroupRecord, Groups, GroupShape
from stead.engine.rules import Hold
from stead.engine.timers import Timers
from stead.engine.waiting import Item, Line, Lines, Rest, Sleeper
from stead.engine.work import Matching, Placement
from stead.node import Node, NodeId
from stead.taints import Taint


@dataclass(frozen=True, slots=True)
class SavedPlacements:
    """Placed work in the order in which it is kept; every column has one value for each piece. `asks` are indexes of
    the checkpoint's. Shares of devices and groups, which few pieces have, are beside the number of their piece."""

    asks: tuple[int, ...] = ()
    ids: tuple[AskId, ...] = ()
    rows: tuple[int, ...] = ()
    moments: tuple[float, ...] = ()
    turns: tuple[int, ...] = ()
    choices: tuple[int, ...] = ()
    held: tuple[tuple[int, tuple[DeviceShares, ...]], ...] = ()
    groups: tuple[tuple[int, GroupId], ...] = ()


@dataclass(frozen=True, slots=True)
class SavedGroup:
    group: Group
    moment: float
    turn: int
    alternative: int | None = None
    ended: frozenset[AskId] = frozenset()


@dataclass(frozen=True, slots=True)
class SavedColumn:
    """A column that wakes a sleeper; `work` where it is about placed work."""

    kind: str
    name: str = ""
    work: Matching | None = None


@dataclass(frozen=True, slots=True)
class SavedSleeper:
    """A shape that work waits with, and how it rests. `of` is one ask or group that waits with it. For the shape of a
    group: whether it is of the whole group, and whether later equal groups will share it. `hopes` is a set of rows, in
    hexadecimal digits."""

    of: str
    is_whole: bool = True
    is_shared: bool = False
    columns: tuple[SavedColumn, ...] = ()
    hopes: str = "0"
    told: tuple[Refusal, ...] | None = None
    untold: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedLine:
    """A line, in the order of its arrival; `sleeper` is an index. Asks are runs of equal ones: an index of the
    checkpoint's asks and the ids. Groups are named by id."""

    sleeper: int
    priority: int
    moment: float
    turn: int
    since: float
    asks: tuple[tuple[int, tuple[AskId, ...]], ...] = ()
    groups: tuple[GroupId, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedHold:
    """Nodes that are held (rows, in hexadecimal digits). `sleeper` is -1 if its owner waits no more."""

    owner: str
    nodes: str
    sleeper: int = -1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An engine between two steps. `rows` are nodes by row; `extent` is how many rows were ever used. `columns` are
    the resources that somebody asked for, each with how many devices its column has room for. `asks` are all that are
    not equal, each without an id."""

    now: float = 0.0
    extent: int = 0
    rows: tuple[tuple[int, Node], ...] = ()
    columns: tuple[tuple[str, int], ...] = ()
    asks: tuple[Ask, ...] = ()
    placements: SavedPlacements = field(default_factory=SavedPlacements)
    groups: tuple[SavedGroup, ...] = ()
    sleepers: tuple[SavedSleeper, ...] = ()
    lines: tuple[SavedLine, ...] = ()
    awake: tuple[int, ...] = ()
    matchings: tuple[Matching, ...] = ()
    watched: tuple[AskId, ...] = ()
    watches_all: bool = False
    names: tuple[tuple[AskId, frozenset[AskId]], ...] = ()
    over: tuple[AskId, ...] = ()
    deadlines: tuple[tuple[str, float], ...] = ()
    evictions: tuple[tuple[AskId, Taint, float], ...] = ()
    told_to_go: tuple[AskId, ...] = ()
    hold: SavedHold | None = None
    turn: int = 0
    dice: int = 0
    mix: SavedMix = field(default_factory=SavedMix)
    somebody_late_at: float | None = None
    unfinished: bool = False


class Recovery:
    """The part of an engine that keeps its state for later, and takes it up again."""

    now: float
    _board: Board
    _waiting: Lines
    _groups: Groups
    _timers: Timers
    _somebody_late_at: float
    _unfinished: bool

    def checkpoint(self) -> Checkpoint:
        """Everything that is needed to go on from here. To be taken after `decide`, before the next `apply`."""
        board, fleet, work = self._board, self._board.fleet, self._board.work
        assert not fleet.news, "a checkpoint is taken after decide()"
        rests = self._waiting.rests
        index: dict[object, int] = {sleeper: number for number, sleeper in enumerate(rests)}
        first = {line.sleeper: next(iter(items.values())) for line, items in self._waiting.all_lines.items()}
        hold = board.world.hold
        asks = _Asks()
        placements = _saved_placements(list(work.placements.map.values()), asks)
        lines = [_saved_line(index[line.sleeper], line, its, asks) for line, its in self._waiting.all_lines.items()]
        return Checkpoint(
            now=self.now,
            extent=fleet.extent,
            rows=tuple(sorted(fleet.nodes.map.items())),
            columns=fleet.columns(),
            asks=asks.found,
            placements=placements,
            groups=tuple(SavedGroup(*record) for record in self._groups.records.map.values()),
            sleepers=tuple(self._saved_sleeper(sleeper, first[sleeper], rest) for sleeper, rest in rests.items()),
            lines=tuple(lines),
            awake=tuple(index[sleeper] for sleeper in self._waiting.ready),
            matchings=tuple(work.matchings),
            watched=tuple(work.watched),
            watches_all=work.watches_all,
            names=tuple(work.targets.names.items()),
            over=tuple(work.targets.over),
            deadlines=tuple(self._timers.deadlines.items()),
            evictions=tuple(self._timers.evictions),
            told_to_go=tuple(self._timers.told_to_go),
            hold=None if hold is None else SavedHold(hold.owner, f"{hold.nodes:x}", index.get(hold.holder, -1)),
            turn=board.turn,
            dice=board.dice.state,
            mix=board.least_fragmenting.mix.saved(),
            somebody_late_at=None if self._somebody_late_at == inf else self._somebody_late_at,
            unfinished=self._unfinished,
        )

    def _saved_sleeper(self, sleeper: Sleeper, first: Item, rest: Rest) -> SavedSleeper:
        is_whole, is_shared = True, False
        if isinstance(sleeper, GroupShape):
            assert isinstance(first, Group)
            is_whole, is_shared = sleeper.is_whole, self._groups.is_shared(first, sleeper)
        columns = tuple(
            SavedColumn(kind, work=about) if isinstance(about, Matching) else SavedColumn(kind, str(about))
            for kind, about in rest.columns
        )
        return SavedSleeper(first.id, is_whole, is_shared, columns, f"{rest.hopes:x}", rest.told, rest.untold)

    def _restore(self, saved: Checkpoint) -> None:
        """Take the state of a checkpoint; to be called on an engine that knows nothing."""
        board, fleet, work = self._board, self._board.fleet, self._board.work
        self.now = saved.now
        fleet.restore(saved.rows, saved.extent)
        for resource, devices in saved.columns:
            fleet.make_room(resource, devices)
        work.restore_indexes(saved.matchings, saved.watched, saved.watches_all)
        for placement in _placements(saved):
            resources = placement.ask.choices[placement.choice].resources
            fleet.take_again(placement.row, resources.items(), placement.held)
            work.add(fleet, placement)
        work.targets.restore(saved.names, saved.over)
        self._groups.restore(GroupRecord(g.group, g.moment, g.turn, g.alternative, g.ended) for g in saved.groups)
        sleepers = self._restore_lines(saved)
        for id, moment in saved.deadlines:
            self._timers.set_deadline(id, moment)
        for id, taint, moment in saved.evictions:
            self._timers.set_eviction(id, taint, moment)
        for id in saved.told_to_go:
            self._timers.evicted(id)
        if saved.hold is not None:
            holder = sleepers[saved.hold.sleeper] if saved.hold.sleeper >= 0 else None
            board.set_hold(Hold(saved.hold.owner, holder, int(saved.hold.nodes, 16)))
        board.turn, board.dice.state = saved.turn, saved.dice
        board.least_fragmenting.mix.restore(saved.mix)
        self._somebody_late_at = inf if saved.somebody_late_at is None else saved.somebody_late_at
        self._unfinished = saved.unfinished
        fleet.news.clear()

    def _restore_lines(self, saved: Checkpoint) -> list[Sleeper]:
        asks = [{id: _named(saved.asks[kind], id) for kind, ids in line.asks for id in ids} for line in saved.lines]
        of = {id: ask for each in asks for id, ask in each.items()}
        sleepers: list[Sleeper] = [
            self._board.shape_of(of[each.of]) if each.of in of else self._group_shape(each) for each in saved.sleepers
        ]
        for line, found in zip(saved.lines, asks, strict=True):
            items: dict[str, Item] = {**found}
            items |= {id: self._groups.records.map[id].group for id in line.groups}
            self._waiting.add(Line(sleepers[line.sleeper], line.priority, line.moment, line.turn, line.since), items)
        rests = {
            sleeper: Rest(tuple(map(_column, each.columns)), int(each.hopes, 16), each.told, each.untold)
            for sleeper, each in zip(sleepers, saved.sleepers, strict=True)
        }
        self._waiting.restore_rests(rests, (sleepers[number] for number in saved.awake))
        return sleepers

    def _group_shape(self, saved: SavedSleeper) -> GroupShape:
        record = self._groups.records.map[saved.of]
        shape = GroupShape(record.group, self._board, None if saved.is_whole else record.lacking(self._board))
        if saved.is_shared:
            self._groups.share(record.group, shape)
        return shape

    def become(self, other: Recovery) -> None:
        """Take over another engine's state, which is not to be used afterwards."""
        vars(self).update(vars(other))

    # -- what was decided before

    def assume(self, decisions: Iterable[Decision]) -> None:
        """Take over decisions that were made on the facts applied last, instead of deciding again: another version of
        the engine, or of its solver, might decide otherwise, and these may have been carried out.

        What still waits is tried again by the next `decide`, because decisions do not tell who sleeps. What does not
        fit what the engine knows is left out.
        """
        for decision in decisions:
            match decision:
                case Placed(id, node, choice):
                    self._assume_placed(id, node, choice)
                case GroupPlaced(group, alternative, members):
                    self._assume_group(group, alternative, members)
                case Moved(id, _, target):
                    self._assume_moved(id, target)
                case Evicted(id, _, taint):
                    self._timers.forget_eviction(id, taint)
                    self._timers.evicted(id)
                case Refused(id) if id in self._waiting:
                    self._forget(id)
                case Waiting(ids, refusals) if ids[0] in self._waiting:
                    self._waiting.tell(self._waiting.line_of(ids[0]).sleeper, refusals)
        self._board.fleet.take_news()
        self._waiting.wake_all()
        self._unfinished = any(True for _ in self._waiting.ready)

    def _assume_placed(self, id: AskId, node: NodeId, choice: int) -> None:
        row = self._board.fleet.row(node)
        item = self._waiting.item(id) if id in self._waiting else None
        if row is None or not isinstance(item, Ask) or choice >= len(item.choices):
            return
        line = self._waiting.line_of(id)
        self._waiting.remove(id)
        demand = self._board.shape_of(item).demands[choice]
        self._watch_taints(self._board.place(item, demand, row, line.moment, line.turn))

    def _assume_group(self, id: GroupId, alternative: int, members: Iterable[tuple[AskId, NodeId]]) -> None:
        record = self._groups.records.map.get(id)
        if record is None or alternative >= len(record.group.alternatives):
            return
        asks = {ask.id: ask for ask in record.group.alternatives[alternative]}
        for member, node in members:
            row = self._board.fleet.row(node)
            if row is not None and member in asks and member not in self._board.work.placements.map:
                demand = self._board.shape_of(asks[member]).demands[0]
                self._watch_taints(self._board.place(asks[member], demand, row, record.moment, record.turn, id))
        self._wait_for_the_rest(self._groups.update(record._replace(alternative=alternative)))

    def _assume_moved(self, id: AskId, target: NodeId) -> None:
        row = self._board.fleet.row(target)
        if row is not None and id in self._board.work.placements.map:
            moved = self._lift(id)
            demand = self._board.shape_of(moved.ask).demands[moved.choice]
            self._watch_taints(self._board.place(moved.ask, demand, row, moved.moment, moved.turn, moved.group))

    # -- the engine's own

    @abstractmethod
    def _lift(self, id: AskId) -> Placement: ...

    @abstractmethod
    def _watch_taints(self, placement: Placement) -> None: ...

    @abstractmethod
    def _wait_for_the_rest(self, record: GroupRecord) -> None: ...

    @abstractmethod
    def _forget(self, id: str) -> None: ...


class _Asks:
    """All different asks of a checkpoint, each once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._last: tuple[tuple[Any, ...], int] = ((), -1)

    def number(self, ask: Ask) -> int:
        """The index of one that differs in its id at most. Most are like the one before."""
        key = _BUT_ID(ask)
        if key != self._last[0]:
            self._last = key, self._numbers.setdefault(key, len(self._numbers))
        return self._last[1]

    @property
    def found(self) -> tuple[Ask, ...]:
        return tuple(Ask("", *key) for key in self._numbers)


_BUT_ID = attrgetter(*(field.name for field in fields(Ask) if field.name != "id"))


def _named(ask: Ask, id: AskId) -> Ask:
    """The same with this id."""
    return Ask(id, *_BUT_ID(ask))


def _saved_placements(placements: Sequence[Placement], asks: _Asks) -> SavedPlacements:
    if not placements:
        return SavedPlacements()
    placed, rows, choices, held, moments, turns, groups = zip(*placements, strict=True)
    return SavedPlacements(
        tuple([asks.number(ask) for ask in placed]),
        tuple([ask.id for ask in placed]),
        rows,
        moments,
        turns,
        choices,
        tuple([(number, each) for number, each in enumerate(held) if any(each)]),
        tuple([(number, group) for number, group in enumerate(groups) if group is not None]),
    )


def _placements(saved: Checkpoint) -> Iterator[Placement]:
    its = saved.placements
    held, groups = dict(its.held), dict(its.groups)
    columns = zip(its.asks, its.ids, its.rows, its.moments, its.turns, its.choices, strict=True)
    for number, (kind, id, row, moment, turn, choice) in enumerate(columns):
        ask = _named(saved.asks[kind], id)
        yield Placement(ask, row, choice, held.get(number, ()), moment, turn, groups.get(number))


def _saved_line(sleeper: int, line: Line, items: Mapping[str, Item], asks: _Asks) -> SavedLine:
    waiting = [item for item in items.values() if isinstance(item, Ask)]
    runs = tuple((kind, tuple([ask.id for ask in run])) for kind, run in groupby(waiting, asks.number))
    groups = tuple(item.id for item in items.values() if isinstance(item, Group))
    return SavedLine(sleeper, line.priority, line.moment, line.turn, line.since, runs, groups)


def _column(saved: SavedColumn) -> Column:
    return saved.kind, saved.name if saved.work is None else saved.work
