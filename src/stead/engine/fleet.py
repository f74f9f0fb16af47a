"""The Fleet: all nodes, as columns.

Rule: a node is a row, and a set of nodes is a Python int used as a bitset over rows (`Nodes`): immutable, hashable,
free to share. Amounts are numpy int64 columns in units of 1/10000. Every change goes through a method here. A change of
labels, taints, capacity, draining or work bumps the version of its column, which is the cache key of masks; a change of
amounts is logged in `touched`. Changes that could make pending work fit are logged in `news`, which wakes it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stead.engine.columns.amounts import Amount, Amounts, DeviceShares, grown
from stead.engine.columns.change_log import DRAINING, IMAGES, NODES, TAINTS, ChangeLog, Column
from stead.engine.columns.claims import VolumeLimits
from stead.engine.columns.sharing import Sheet, Shelf
from stead.language.labels import NODE_ID_KEYS, Labels, Requirement, Selector
from stead.language.nodes import Node, NodeId
from stead.language.resources import Resources, usable
from stead.language.taints import Taint
from stead.text import Titles

T = TypeVar("T")
T2 = TypeVar("T2", bound=np.generic)

News = tuple[Column, int]
"""A column and the row where it changed; -1 means any row."""

Nodes = int
"""A set of nodes: bit r is row r."""

SPARSE_MAX = 16
ROWS_MIN = 64
NODES_PER_DOMAIN_MAX = 64
"""Up to this many domains of a label key keep their sets of nodes."""


def rows_of(nodes: Nodes) -> list[int]:
    """The rows of a set, in order."""
    if nodes.bit_count() <= SPARSE_MAX:
        rows = []
        while nodes:
            low = nodes & -nodes
            rows.append(low.bit_length() - 1)
            nodes ^= low
        return rows
    return np.flatnonzero(as_flags(nodes, nodes.bit_length())).tolist()


def as_flags(nodes: Nodes, size: int) -> NDArray[np.bool_]:
    """The set as an array of booleans, one per row below `size`."""
    packed = np.frombuffer(nodes.to_bytes((size + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, bitorder="little", count=size).view(np.bool_)


def from_flags(flags: NDArray[np.bool_]) -> Nodes:
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


class RowSet:
    """Functions on the entries of the label index: a tuple of rows if few, a bitset if many.

    Otherwise a label with a different value on every node would cost a full-width bitset per node.
    """

    @staticmethod
    def nodes(entry: tuple[int, ...] | Nodes | None) -> Nodes:
        if entry is None:
            return 0
        if isinstance(entry, int):
            return entry
        nodes = 0
        for row in entry:
            nodes |= 1 << row
        return nodes

    @staticmethod
    def with_row(entry: tuple[int, ...] | Nodes | None, row: int) -> tuple[int, ...] | Nodes:
        if entry is None:
            return (row,)
        if isinstance(entry, tuple):
            if len(entry) < SPARSE_MAX:
                return (*entry, row)
            entry = RowSet.nodes(entry)
        return entry | 1 << row

    @staticmethod
    def without_row(entry: tuple[int, ...] | Nodes, row: int) -> tuple[int, ...] | Nodes:
        if isinstance(entry, tuple):
            return tuple(other for other in entry if other != row)
        return entry & ~(1 << row)


class Domains(NamedTuple):
    """The domains of a label key as a column: the number of each row's domain, -1 for rows without the key. It has no
    rows that were never used. Never write to it."""

    numbers: NDArray[np.intp]
    size: int
    """The number of domains."""
    are_single: bool
    """Whether every domain is one row."""
    are_everywhere: bool
    """Whether every live node has the key."""
    nodes: list[Nodes]
    """The nodes of each domain, filled when they are first needed."""

    def sums(self, column: Amounts) -> Amounts:
        """For each domain, the sum over its rows."""
        if self.are_single:
            held = self.numbers >= 0
            sums = np.zeros(self.size, np.int64)
            sums[self.numbers[held]] = column[held]
            return sums
        # Rows without the key are counted in an extra entry. The sums are floats, exact below 2**53.
        return np.bincount(self.numbers + 1, column, self.size + 1)[1:].astype(np.int64)

    def spread_out(self, sums: NDArray[T2]) -> NDArray[T2]:
        """For each row, the value of its domain; 0 without the key."""
        return np.append(sums, sums.dtype.type(0))[self.numbers]  # -1 is the last entry

    def present(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which domains have one of these rows; the last entry is for rows without the key."""
        found = np.zeros(self.size + 1, np.bool_)
        found[self.numbers[flags]] = True  # -1 is the last entry
        return found

    def nodes_of(self, chosen: NDArray[np.bool_]) -> Nodes:
        """All nodes of the chosen domains."""
        if self.size > NODES_PER_DOMAIN_MAX:
            return from_flags(np.append(chosen, False)[self.numbers])
        if not self.nodes:
            self.nodes.extend(from_flags(self.numbers == number) for number in range(self.size))
        found = 0
        for number in chosen.nonzero()[0].tolist():
            found |= self.nodes[number]
        return found


class Fleet:
    """All nodes. Rows are reused after a node has left; `alive` is the set of rows in use."""

    def __init__(self) -> None:
        self.size = ROWS_MIN
        self.alive: Nodes = 0
        self.draining: Nodes = 0
        self.rows: Sheet[NodeId, int] = Sheet()
        self.nodes: Sheet[int, Node] = Sheet()
        self.with_key: Sheet[str, Nodes] = Sheet()
        self.with_value: Shelf[str, str, tuple[int, ...] | Nodes] = Shelf()
        self.taints: Sheet[Taint, Nodes] = Sheet()
        self.images: Sheet[str, tuple[int, Nodes]] = Sheet()
        """Every image with its size in bytes, as first reported, and the nodes that have it."""
        self.estimates: Sheet[str, Amounts] = Sheet()
        """What scores assume to be in use, in addition to what was requested."""
        self.amounts: Sheet[str, Amount] = Sheet()
        self.limits = VolumeLimits()
        self.ask_counts: Amounts = np.zeros(self.size, np.int64)
        self.versions: Sheet[Column, int] = Sheet()
        self.version = 0
        self.touched: ChangeLog[int] = ChangeLog()
        """Rows whose amounts changed; used to update scores and prices."""
        self.news: ChangeLog[News] = ChangeLog()
        """Changes that could make pending work fit."""
        self.extent = 0
        """Rows from this one on were never used."""
        self._vacant: list[int] = []
        self._by_id: Mapping[NodeId, Node] | None = None
        self._changed: dict[NodeId, Node] = {}  # nodes that are newer than in `_by_id`
        self._titles: tuple[Mapping[NodeId, Node], Titles] | None = None  # with the nodes that they are of
        self._about_taints: tuple[int, dict[Hashable, Any]] = (-1, {})
        self._domains: dict[str, tuple[tuple[int, ...], Domains]] = {}  # with the versions that they are of
        self._owned_amounts: set[str] = set()
        self._owned_counts = True

    def fork(self, lasting: bool = True) -> Fleet:
        twin = Fleet.__new__(Fleet)
        _ = self.by_id  # build it once for all forks
        if self._about_taints[0] != self.versions.map.get(TAINTS, 0):
            self._about_taints = self.versions.map.get(TAINTS, 0), {}
        twin.__dict__.update(self.__dict__)
        twin._changed, twin._domains = {}, dict(self._domains)
        for name in ("rows", "nodes", "with_key", "with_value", "taints", "images", "amounts", "limits", "versions"):
            setattr(twin, name, getattr(self, name).fork(lasting))
        twin.estimates = Sheet({name: column.copy() for name, column in self.estimates.map.items()})
        twin.touched, twin.news, twin._vacant = ChangeLog(), self.news.fork(), list(self._vacant)
        twin._owned_amounts, twin._owned_counts = set(), False
        if lasting:
            self._owned_amounts, self._owned_counts = set(), False
        return twin

    # -- what others read

    @property
    def by_id(self) -> Mapping[NodeId, Node]:
        """Every live node, in table order. A returned mapping never changes."""
        if self._by_id is None:
            nodes = self.nodes.map
            self._by_id = {node.id: node for node in map(nodes.__getitem__, sorted(nodes))}
        elif self._changed:
            self._by_id = {**self._by_id, **self._changed}
        self._changed = {}
        return self._by_id

    @property
    def titles(self) -> Titles:
        """What sentences call each node: its name, or a short id."""
        nodes = self.by_id
        if self._titles is None or self._titles[0] is not nodes:
            self._titles = nodes, Titles({id: node.name for id, node in nodes.items()})
        return self._titles[1]

    def about_taints(self, key: Hashable, make: Callable[[Iterable[tuple[Taint, Nodes]]], T]) -> T:
        """The result of `make` for all taints and their nodes, in order. It is cached by key, for all forks, until a
        taint changes: there can be as many taints as nodes."""
        version = self.versions.map.get(TAINTS, 0)
        if self._about_taints[0] != version:
            self._about_taints = version, {}
        made = self._about_taints[1]
        if key not in made:
            made[key] = make(sorted(self.taints.map.items(), key=_taint_order))
        found: T = made[key]
        return found

    def row(self, node: NodeId) -> int | None:
        return self.rows.map.get(node)

    def ids(self, nodes: Nodes) -> tuple[NodeId, ...]:
        return tuple(self.nodes.map[row].id for row in rows_of(nodes))

    def amount(self, resource: str) -> Amount:
        """The column of a resource, created when first needed: nodes may offer thousands of resources that no work asks
        for."""
        found = self.amounts.map.get(resource)
        if found is None:
            found = Amount(resource, self.size)
            rows = [row for row, node in self.nodes.map.items() if resource in node.capacity]
            found.fill(rows, [usable(resource, self.nodes.map[row].capacity[resource]) for row in rows])
            self.amounts.write()[resource] = found
            self._owned_amounts.add(resource)
        return found

    def free(self, row: int) -> dict[str, int]:
        """What is free on a node, of every resource that it has or that is in use there."""
        asked_for = {name: int(amount.free[row]) for name, amount in self.amounts.map.items()}
        capacity = self.nodes.map[row].capacity
        unasked = {name: usable(name, units) for name, units in capacity.items()}
        found = {**unasked, **asked_for}
        return {name: found[name] for name in sorted(found) if found[name] or name in capacity}

    def matching(self, requirement: Requirement) -> Nodes:
        """All nodes whose labels meet the requirement."""
        key = requirement.key
        carrying = self.with_key.map.get(key, 0)
        values = self.with_value.read(key)
        if requirement.greater is not None or requirement.less is not None:
            found = 0
            for value, entry in values.items():
                if requirement.accepts(value):
                    found |= RowSet.nodes(entry)
        else:
            found = 0
            for value in requirement.values:
                found |= RowSet.nodes(values.get(value))
            if requirement.complement:
                found = carrying & ~found
        return found | (self.alive & ~carrying) if requirement.absent else found

    def selected(self, selector: Selector) -> Nodes:
        found = 0
        for term in selector.terms:
            nodes = self.alive
            for requirement in term:
                nodes &= self.matching(requirement)
            found |= nodes
        return found

    def domain(self, nodes: Nodes, key: str) -> Nodes:
        """All nodes that share a value of `key` with one of `nodes`."""
        carrying = self.with_key.map.get(key, 0)
        nodes &= carrying
        if not nodes or key in NODE_ID_KEYS:
            return nodes
        values = self.with_value.read(key)
        if len(values) == carrying.bit_count():
            return nodes
        found = 0
        if nodes.bit_count() <= len(values):
            for value in dict.fromkeys(self.nodes.map[row].label(key) for row in rows_of(nodes)):
                found |= RowSet.nodes(values.get(value or ""))
        else:
            for entry in values.values():
                members = RowSet.nodes(entry)
                if members & nodes:
                    found |= members
        return found

    def domains(self, key: str) -> Mapping[str, tuple[int, ...] | Nodes]:
        return self.with_value.read(key)

    def domain_column(self, key: str) -> Domains:
        """The same as a column."""
        versions = self.versions.map
        stamp = versions.get(NODES, 0), versions.get(Column("label", key), 0), self.extent
        known = self._domains.get(key)
        if known is not None and known[0] == stamp:
            return known[1]
        numbers = np.full(self.extent, -1, np.intp)
        values = self.with_value.read(key)
        for number, entry in enumerate(values.values()):
            numbers[list(entry) if isinstance(entry, tuple) else rows_of(entry)] = number
        carrying = self.with_key.map.get(key, 0)
        found = Domains(numbers, len(values), len(values) == carrying.bit_count(), carrying == self.alive, [])
        self._domains[key] = stamp, found
        return found

    def estimated(self, resource: str) -> Amounts:
        """What scores assume to be in use of a resource, in addition to what was requested, as a column."""
        found = self.estimates.map.get(resource)
        if found is None or len(found) < self.size:
            found = self.estimates.write()[resource] = (
                np.zeros(self.size, np.int64) if found is None else grown(found, self.size)
            )
        return found

    def stamp(self, columns: Iterable[Column]) -> tuple[int, ...]:
        """A value that changes whenever one of the columns changes."""
        versions = self.versions.map
        return tuple([versions.get(column, 0) for column in columns])

    # -- changes

    def bump(self, column: Column, row: int = -1, news: bool = True) -> None:
        """Record that a column changed; with `news`, the change could make pending work fit."""
        self.version += 1
        self.versions.write()[column] = self.version
        if news:
            self.news.add((column, row))

    def join(self, node: Node) -> int:
        """Add the node in a new row, or update its record in its row. Returns the row."""
        row = self.rows.map.get(node.id)
        if row is not None:
            old = self.nodes.map[row]
            self._write(row, node)
            self._relabel(row, old.all_labels, node.all_labels)
            self._retaint(row, old.taints, node.taints)
            self._restock(row, old.images, node.images)
            self._relimit(row, old.volumes, node.volumes)
            self._resize(row, node.capacity)
            self.set_draining(row, node.draining)
            return row
        row = self._new_row()
        self._add(row, node)
        return row

    def restore(self, nodes: Iterable[tuple[int, Node]], extent: int) -> None:
        """Fill an empty fleet: these nodes, each in the row it had."""
        self.extent = extent
        while self.size < extent:
            self.size *= 2
        self.ask_counts = grown(self.ask_counts, self.size)
        for row, node in nodes:
            self._add(row, node)
        self._vacant = [row for row in range(extent) if row not in self.nodes.map]
        self.news.take()

    def _add(self, row: int, node: Node) -> None:
        self.rows.write()[node.id] = row
        self._write(row, node)
        self.alive |= 1 << row
        self._relabel(row, Labels(), node.all_labels)
        self._retaint(row, (), node.taints)
        self._restock(row, (), node.images)
        self._relimit(row, (), node.volumes)
        self._resize(row, node.capacity)
        if node.draining:
            self.draining |= 1 << row
            self.bump(DRAINING, row)
        self.bump(NODES, row)

    def _write(self, row: int, node: Node) -> None:
        self.nodes.write()[row] = node
        if self._by_id is not None and node.id in self._by_id:
            self._changed[node.id] = node
        else:
            self._by_id = None

    def leave(self, row: int) -> None:
        """Remove the node. The caller has lifted its work, so the row is clean for the next node."""
        node = self.nodes.map[row]
        self._relabel(row, node.all_labels, Labels())
        self._retaint(row, node.taints, ())
        self._restock(row, node.images, ())
        self._relimit(row, node.volumes, ())
        self._resize(row, Resources())
        if self.draining >> row & 1:
            self.draining &= ~(1 << row)
            self.bump(DRAINING, row)
        self.alive &= ~(1 << row)
        del self.rows.write()[node.id]
        del self.nodes.write()[row]
        self._by_id = None
        heapq.heappush(self._vacant, row)
        self.bump(NODES, row, news=False)

    def set_labels(self, row: int, labels: Labels) -> None:
        old = self.nodes.map[row]
        new = replace(old, labels=labels)
        self._write(row, new)
        self._relabel(row, old.all_labels, new.all_labels)

    def set_taints(self, row: int, taints: tuple[Taint, ...]) -> None:
        old = self.nodes.map[row]
        self._write(row, replace(old, taints=taints))
        self._retaint(row, old.taints, taints)

    def set_capacity(self, row: int, capacity: Resources) -> None:
        old = self.nodes.map[row]
        self._write(row, replace(old, capacity=capacity))
        self._resize(row, capacity)

    def set_draining(self, row: int, draining: bool) -> None:
        if bool(self.draining >> row & 1) == draining:
            return
        old = self.nodes.map[row]
        self._write(row, replace(old, draining=draining))
        self.draining ^= 1 << row
        self.bump(DRAINING, row)

    def take(self, row: int, needs: Iterable[tuple[str, int]]) -> tuple[DeviceShares, ...]:
        """Use amounts on a node. Returns the devices used, one entry per need, for `give`."""
        self.touched.add(row)
        self._own_counts()[row] += 1
        return tuple([self._own_amount(resource).take(row, need) for resource, need in needs])

    def take_many(self, rows: list[int], needs: Iterable[tuple[str, int]]) -> None:
        """Use the same amounts once per entry of `rows`. Not for devices."""
        self.touched.extend(rows)
        where = np.array(rows)
        np.add.at(self._own_counts(), where, 1)
        for resource, need in needs:
            self._own_amount(resource).take_many(where, need)

    def take_again(self, row: int, needs: Iterable[tuple[str, int]], held: tuple[DeviceShares, ...]) -> None:
        """Use amounts on a node, on the same devices as before."""
        self.touched.add(row)
        self._own_counts()[row] += 1
        for index, (resource, need) in enumerate(needs):
            self._own_amount(resource).take_again(row, need, held[index] if held else ())

    def columns(self) -> tuple[tuple[str, int], ...]:
        """The resources that have a column, each with its number of device rows (the most that a node ever had)."""
        shares = {name: amount.shares for name, amount in self.amounts.map.items()}
        return tuple((name, 0 if each is None else len(each)) for name, each in shares.items())

    def make_room(self, resource: str, devices: int) -> None:
        self._own_amount(resource).make_room(devices)

    def give(self, row: int, needs: Iterable[tuple[str, int]], held: tuple[DeviceShares, ...]) -> None:
        """Free what `take` used on a node."""
        self.touched.add(row)
        self._own_counts()[row] -= 1
        for index, (resource, need) in enumerate(needs):
            amount = self._own_amount(resource)
            amount.give(row, need, held[index] if held else ())
            self.news.add((amount.became_free, row))

    def free_up(self, row: int, resource: str, need: int) -> None:
        """Pretend that just enough of a resource became free on the node for `need` to fit."""
        self.touched.add(row)
        self._own_amount(resource).free_up(row, need)

    # -- inside

    def _new_row(self) -> int:
        if self._vacant:
            return heapq.heappop(self._vacant)
        row = self.extent
        self.extent += 1
        if row >= self.size:
            self.size *= 2
            for resource in self.amounts.map:
                self._own_amount(resource).grow(self.size)
            self.ask_counts = grown(self.ask_counts, self.size)
            self._owned_counts = True
        return row

    def _relabel(self, row: int, old: Labels, new: Labels) -> None:
        bit = 1 << row
        for key in dict.fromkeys((*old, *new)):
            before, after = old.get(key), new.get(key)
            if before == after:
                continue
            if before is not None:
                entry = RowSet.without_row(self.with_value.read(key)[before], row)
                if entry:
                    self.with_value.write(key)[before] = entry
                else:
                    self.with_value.drop(key, before)
            if after is not None:
                values = self.with_value.write(key)
                values[after] = RowSet.with_row(values.get(after), row)
            if (before is None) != (after is None):
                carrying = self.with_key.map.get(key, 0) ^ bit
                if carrying:
                    self.with_key.write()[key] = carrying
                else:
                    del self.with_key.write()[key]
            self.bump(Column("label", key), row)

    def _retaint(self, row: int, old: tuple[Taint, ...], new: tuple[Taint, ...]) -> None:
        if old == new:
            return
        bit = 1 << row
        for taint in sorted(set(old) ^ set(new)):
            nodes = self.taints.map.get(taint, 0) ^ bit
            if nodes:
                self.taints.write()[taint] = nodes
            else:
                del self.taints.write()[taint]
        self.bump(TAINTS, row)

    def _restock(self, row: int, old: tuple[tuple[str, int], ...], new: tuple[tuple[str, int], ...]) -> None:
        """Update the index of images."""
        if old == new:
            return
        images, bit, kept = self.images.write(), 1 << row, dict(new)
        for name in [name for name, _ in old if name not in kept]:
            size, nodes = images[name]
            if nodes == bit:
                del images[name]
            else:
                images[name] = size, nodes & ~bit
        for name, size in new:
            known = images.get(name)
            images[name] = (size, bit) if known is None else (known[0], known[1] | bit)
        self.bump(IMAGES, news=False)

    def _relimit(self, row: int, old: tuple[tuple[str, int], ...], new: tuple[tuple[str, int], ...]) -> None:
        for column in self.limits.set(row, old, new) if old != new else ():
            self.bump(column, row)

    def estimate(self, row: int, amounts: Iterable[tuple[str, int]], step: int) -> None:
        """Work with these estimates was placed (+1) or removed (-1)."""
        for resource, units in amounts:
            self.estimated(resource)[row] += step * units

    def _resize(self, row: int, capacity: Resources) -> None:
        for resource, column in self.amounts.map.items():
            total = usable(resource, capacity.get(resource))
            if int(column.total[row]) != total:
                self._own_amount(resource).resize(row, total)
                self.touched.add(row)
                self.bump(Column("total", resource), row)

    def _own_amount(self, resource: str) -> Amount:
        if resource not in self._owned_amounts:
            self.amounts.write()[resource] = self.amount(resource).copy()
            self._owned_amounts.add(resource)
        return self.amounts.map[resource]

    def _own_counts(self) -> Amounts:
        if not self._owned_counts:
            self.ask_counts = self.ask_counts.copy()
            self._owned_counts = True
        return self.ask_counts


def _taint_order(item: tuple[Taint, Nodes]) -> tuple[str, str, str]:
    """The same order as comparing taints, but much faster."""
    return item[0].key, item[0].value, item[0].effect
