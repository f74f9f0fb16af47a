"""Checkpoints: the whole state of an engine as one plain value.

Rule: a checkpoint contains what `Engine.fork` copies, except caches, which are rebuilt. A restored engine makes the
same later decisions as the original would. Equal asks are written once and placements as columns, so a checkpoint of
many asks is little larger than their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Any, cast

from stead.engine.batch.fragmentation import SavedMix
from stead.engine.columns.amounts import DeviceShares
from stead.engine.columns.change_log import Column, ColumnKind
from stead.engine.decisions import Verdict
from stead.engine.groups.lifecycle import GroupRecord, GroupShape
from stead.engine.parts import Parts
from stead.engine.rules import Hold
from stead.engine.timing.taint_times import TaintEnd
from stead.engine.timing.timers import Timeout
from stead.engine.waiting import Item, Line, Rest, Sleeper
from stead.engine.work import Matching, Placement, Unmanaged
from stead.language.asks import Ask, AskId, Group, GroupId
from stead.language.budgets import Budget
from stead.language.claims import Claim
from stead.language.nodes import Node
from stead.language.resources import Resources
from stead.language.taints import Taint


@dataclass(frozen=True, slots=True)
class SavedPlacements:
    """Placed work in its stored order, as columns with one value per piece. `asks` are indexes into the checkpoint's
    `asks`. Device shares, groups and times of start, which not all pieces have, are listed with the index of their
    piece."""

    asks: tuple[int, ...] = ()
    ids: tuple[AskId, ...] = ()
    rows: tuple[int, ...] = ()
    moments: tuple[float, ...] = ()
    turns: tuple[int, ...] = ()
    choices: tuple[int, ...] = ()
    held: tuple[tuple[int, tuple[DeviceShares, ...]], ...] = ()
    groups: tuple[tuple[int, GroupId], ...] = ()
    started: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SavedUse:
    """What unmanaged work uses on the node of a row."""

    row: int
    amounts: Resources
    pieces: int
    held: tuple[DeviceShares, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedGroup:
    group: Group
    moment: float
    turn: int
    alternative: int | None = None
    ended: frozenset[AskId] = frozenset()


@dataclass(frozen=True, slots=True)
class SavedColumn:
    """A column that wakes a sleeper; `work` is set if it is about placed work."""

    kind: str
    name: str = ""
    work: Matching | None = None


@dataclass(frozen=True, slots=True)
class SavedSleeper:
    """The shape of pending work, and the state of its sleeper (see `waiting.Rest`). `of` is one ask or group with this
    shape. `is_whole` and `is_shared` are for groups: whether the shape is of the whole group, and whether later equal
    groups will share it. `hopes` is a set of rows, in hexadecimal."""

    of: str
    is_whole: bool = True
    is_shared: bool = False
    columns: tuple[SavedColumn, ...] = ()
    hopes: str = "0"
    reported: tuple[Verdict, ...] | None = None
    unreported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedLine:
    """A line; `sleeper` is an index. `asks` are runs of equal asks: an index into the checkpoint's `asks`, and the ids.
    `groups` are ids."""

    sleeper: int
    priority: int
    moment: float
    turn: int
    since: float
    asks: tuple[tuple[int, tuple[AskId, ...]], ...] = ()
    groups: tuple[GroupId, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedHold:
    """Reserved nodes (rows, in hexadecimal). `sleeper` is -1 if the owner is no longer pending."""

    owner: str
    nodes: str
    sleeper: int = -1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An engine between two steps. `rows` are nodes by row; `extent` is the number of rows ever used. `columns` are the
    resources that work asked for, each with its number of device rows. `asks` are the distinct asks, without ids.
    `over` are ended targets of affinities, `being_evicted` asks that are being evicted. `nominations` are places kept
    for pending asks; `ending` is work that is being stopped, and whether budgets count it; `spared` is work
    that could not be evicted."""

    now: float = 0.0
    extent: int = 0
    rows: tuple[tuple[int, Node], ...] = ()
    columns: tuple[tuple[str, int], ...] = ()
    asks: tuple[Ask, ...] = ()
    placements: SavedPlacements = field(default_factory=SavedPlacements)
    nominations: SavedPlacements = field(default_factory=SavedPlacements)
    unmanaged: tuple[SavedUse, ...] = ()
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
    timeouts: tuple[tuple[GroupId, Timeout, float], ...] = ()
    evictions: tuple[tuple[AskId, Taint, float], ...] = ()
    being_evicted: tuple[AskId, ...] = ()
    ending: tuple[tuple[AskId, bool], ...] = ()
    spared: tuple[AskId, ...] = ()
    budgets: tuple[Budget, ...] = ()
    claims: tuple[Claim, ...] = ()
    taint_ends: tuple[TaintEnd, ...] = ()
    hold: SavedHold | None = None
    turn: int = 0
    dice: int = 0
    mix: SavedMix = field(default_factory=SavedMix)
    late_at: float | None = None
    is_unfinished: bool = False


def save(parts: Parts) -> Checkpoint:
    """The state of an engine after a decision."""
    board, fleet, work, waiting = parts.board, parts.board.fleet, parts.board.work, parts.waiting
    assert not len(fleet.news), "take a checkpoint after decide()"
    rests = waiting.rests
    index: dict[object, int] = {sleeper: number for number, sleeper in enumerate(rests)}
    first = {line.sleeper: next(iter(items.values())) for line, items in waiting.all_lines.items()}
    hold = board.world.hold
    asks = _Asks()
    placements = _saved_placements(list(work.placements.map.values()), asks)
    nominations = _saved_placements(list(work.nominations.map.values()), asks)
    lines = [_saved_line(index[line.sleeper], line, its, asks) for line, its in waiting.all_lines.items()]
    return Checkpoint(
        now=parts.now,
        extent=fleet.extent,
        rows=tuple(sorted(fleet.nodes.map.items())),
        columns=fleet.columns(),
        asks=asks.found,
        placements=placements,
        nominations=nominations,
        unmanaged=tuple(SavedUse(row, *used) for row, used in work.unmanaged.map.items()),
        groups=tuple(SavedGroup(*record) for record in parts.groups.records.map.values()),
        sleepers=tuple(_saved_sleeper(parts, sleeper, first[sleeper], rest) for sleeper, rest in rests.items()),
        lines=tuple(lines),
        awake=tuple(index[sleeper] for sleeper in waiting.ready),
        matchings=tuple(work.matchings),
        watched=tuple(work.watched),
        watches_all=work.watches_all,
        names=tuple(work.targets.names.items()),
        over=tuple(work.targets.ended),
        deadlines=tuple((id, moment) for id, _, moment in parts.timers.deadlines),
        timeouts=tuple(parts.timers.timeouts),
        evictions=tuple(parts.timers.evictions),
        being_evicted=tuple(parts.timers.being_evicted),
        ending=tuple(parts.preemption.ending.map.items()),
        spared=tuple(parts.preemption.spared.map),
        budgets=tuple(parts.preemption.protection.budgets.map.values()),
        claims=tuple(work.claims.known.map.values()),
        taint_ends=tuple(parts.taint_times.ends),
        hold=None if hold is None else SavedHold(hold.owner, f"{hold.nodes:x}", index.get(hold.holder, -1)),
        turn=board.turn,
        dice=board.dice.state,
        mix=board.least_fragmenting.mix.saved(),
        late_at=None if parts.holds.late_at == inf else parts.holds.late_at,
        is_unfinished=parts.is_unfinished,
    )


def _saved_sleeper(parts: Parts, sleeper: Sleeper, first: Item, rest: Rest) -> SavedSleeper:
    is_whole, is_shared = True, False
    if isinstance(sleeper, GroupShape):
        assert isinstance(first, Group)
        is_whole, is_shared = sleeper.is_whole, parts.groups.is_shared(first, sleeper)
    columns = tuple(
        SavedColumn(kind, work=about) if isinstance(about, Matching) else SavedColumn(kind, str(about))
        for kind, about in rest.columns
    )
    return SavedSleeper(first.id, is_whole, is_shared, columns, f"{rest.hopes:x}", rest.reported, rest.unreported)


def restore(parts: Parts, saved: Checkpoint) -> None:
    """Give new parts the state of a checkpoint."""
    board, fleet, work = parts.board, parts.board.fleet, parts.board.work
    parts.now = saved.now
    fleet.restore(saved.rows, saved.extent)
    for resource, devices in saved.columns:
        fleet.make_room(resource, devices)
    for claim in saved.claims:
        board.claim_changed(claim)
    work.restore_indexes(saved.matchings, saved.watched, saved.watches_all)
    for placement in _placements(saved, saved.placements):
        board.put_back(placement)
    for nomination in _placements(saved, saved.nominations):
        board.put_back(nomination._replace(is_nomination=True))
    for use in saved.unmanaged:
        used = Unmanaged(use.amounts, use.pieces, use.held)
        fleet.take_again(use.row, used.needs, used.held)
        work.set_unmanaged(fleet, use.row, used)
    work.targets.restore(saved.names, saved.over)
    parts.groups.restore(GroupRecord(g.group, g.moment, g.turn, g.alternative, g.ended) for g in saved.groups)
    sleepers = _restore_lines(parts, saved)
    for id, moment in saved.deadlines:
        parts.timers.set_deadline(id, moment)
    for group, timeout, moment in saved.timeouts:
        parts.timers.timeouts.set(group, timeout, moment)
    for id, taint, moment in saved.evictions:
        parts.timers.evictions.set(id, taint, moment)
    for id in saved.being_evicted:
        parts.timers.evicted(id)
    parts.preemption.restore(saved.ending, saved.spared, saved.budgets)
    parts.taint_times.restore(saved.taint_ends)
    if saved.hold is not None:
        holder = sleepers[saved.hold.sleeper] if saved.hold.sleeper >= 0 else None
        board.set_hold(Hold(saved.hold.owner, holder, int(saved.hold.nodes, 16)))
    board.turn, board.dice.state = saved.turn, saved.dice
    board.least_fragmenting.mix.restore(saved.mix)
    parts.holds.late_at = inf if saved.late_at is None else saved.late_at
    parts.is_unfinished = saved.is_unfinished
    fleet.news.take()


def _restore_lines(parts: Parts, saved: Checkpoint) -> list[Sleeper]:
    asks = [{id: _named(saved.asks[kind], id) for kind, ids in line.asks for id in ids} for line in saved.lines]
    of = {id: ask for each in asks for id, ask in each.items()}
    sleepers: list[Sleeper] = [
        parts.board.shape_of(of[each.of])
        if each.of in of
        else parts.groups.restore_shape(each.of, each.is_whole, each.is_shared)
        for each in saved.sleepers
    ]
    for line, found in zip(saved.lines, asks, strict=True):
        items: dict[str, Item] = {**found}
        items |= {id: parts.groups.record(id).group for id in line.groups}
        parts.waiting.add(Line(sleepers[line.sleeper], line.priority, line.moment, line.turn, line.since), items)
    rests = {
        sleeper: Rest(tuple(map(_column, each.columns)), int(each.hopes, 16), each.reported, each.unreported)
        for sleeper, each in zip(sleepers, saved.sleepers, strict=True)
    }
    parts.waiting.restore_rests(rests, (sleepers[number] for number in saved.awake))
    return sleepers


class _Asks:
    """The distinct asks of a checkpoint."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._last: tuple[tuple[Any, ...], int] = ((), -1)

    def number(self, ask: Ask) -> int:
        """The index of an ask that is equal except for its id. Most asks equal the previous one."""
        key = _BUT_ID(ask)
        if key != self._last[0]:
            self._last = key, self._numbers.setdefault(key, len(self._numbers))
        return self._last[1]

    @property
    def found(self) -> tuple[Ask, ...]:
        return tuple(Ask("", *key) for key in self._numbers)


_BUT_ID = attrgetter(*(field.name for field in fields(Ask) if field.name != "id"))


def _named(ask: Ask, id: AskId) -> Ask:
    """The same ask with this id."""
    return Ask(id, *_BUT_ID(ask))


def _saved_placements(placements: Sequence[Placement], asks: _Asks) -> SavedPlacements:
    if not placements:
        return SavedPlacements()
    placed, rows, choices, held, moments, turns, groups, started, _ = zip(*placements, strict=True)
    return SavedPlacements(
        tuple([asks.number(ask) for ask in placed]),
        tuple([ask.id for ask in placed]),
        rows,
        moments,
        turns,
        choices,
        tuple([(number, each) for number, each in enumerate(held) if any(each)]),
        tuple([(number, group) for number, group in enumerate(groups) if group is not None]),
        tuple([(number, moment) for number, moment in enumerate(started) if moment is not None]),
    )


def _placements(saved: Checkpoint, its: SavedPlacements) -> Iterator[Placement]:
    held, groups, started = dict(its.held), dict(its.groups), dict(its.started)
    columns = zip(its.asks, its.ids, its.rows, its.moments, its.turns, its.choices, strict=True)
    for number, (kind, id, row, moment, turn, choice) in enumerate(columns):
        ask = _named(saved.asks[kind], id)
        devices, group = held.get(number, ()), groups.get(number)
        yield Placement(ask, row, choice, devices, moment, turn, group, started.get(number))


def _saved_line(sleeper: int, line: Line, items: Mapping[str, Item], asks: _Asks) -> SavedLine:
    waiting = [item for item in items.values() if isinstance(item, Ask)]
    runs = tuple((kind, tuple([ask.id for ask in run])) for kind, run in groupby(waiting, asks.number))
    groups = tuple(item.id for item in items.values() if isinstance(item, Group))
    return SavedLine(sleeper, line.priority, line.moment, line.turn, line.since, runs, groups)


def _column(saved: SavedColumn) -> Column:
    return Column(cast(ColumnKind, saved.kind), saved.name if saved.work is None else saved.work)
