"""Ray in virtual time, as far as slots need it: slots, anchors and engine are real, raylets and tasks are simulated.

It behaves like real Ray: a total never shrinks below what is in use, a task starts wherever its name and its CPUs are
free, and queued work fails when the last node that could run it loses its name. Workers on a node that a name was
withdrawn from do not run what Ray sends them (see `stead.ray.submit.workers`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stead.engine.decisions import Evicted, Placed, Waiting
from stead.engine.engine import Engine
from stead.engine.facts import ClockAdvanced, NodeJoined, NodeLeft, NodeTainted, NodeUntainted
from stead.language.asks import Ask
from stead.language.nodes import Node
from stead.language.taints import Effect, Taint
from stead.ray.control.anchors import Anchors
from stead.ray.control.slots import Slots
from stead.ray.submit.messages import SlotShape
from stead.ray.wire.node_page import ONE
from stead.ray.wire.own_names import SLOT, read_slot, slot_name
from stead.ray.wire.resource_grants import Outcome
from stead.ray.wire.tables import NodeRow, PendingRow, Status
from stead.solver import found as solver

TICK_S = 0.05
HEAD = "head"


@dataclass
class Raylet:
    cpus: float
    total: dict[str, float] = field(default_factory=dict)
    held: Counter[str] = field(default_factory=Counter)  # by running tasks and groups, in smallest parts
    blocked: int = 0  # running tasks that wait for others
    running: list[tuple[float, str, str]] = field(default_factory=list)  # end, name, program

    def available(self) -> dict[str, float]:
        return {**{name: self.free(name) for name in self.total}, "CPU": self.free_cpus}

    def free(self, name: str) -> float:
        return self.total.get(name, 0.0) - self.held[name] * ONE

    @property
    def free_cpus(self) -> float:
        return self.cpus - len(self.running) + self.blocked


class HeldBySimulation(Anchors):
    def __init__(self, ray: SimulatedRay) -> None:
        super().__init__(HEAD, dict, lambda: ray.now)
        self._ray = ray

    def _hold(self, name: str, node: str) -> Any:
        self._ray.raylets[node].held[name] += 1
        return name, node

    def _release(self, group: Any) -> None:
        name, node = group
        if node in self._ray.raylets:
            self._ray.raylets[node].held[name] -= 1


class SimulatedRay:
    """Also `Grants` and `Shapes`."""

    def __init__(self, cpus: Mapping[str, float], seed: int = 0) -> None:
        self.now, self.rng = 1000.0, random.Random(seed)
        self.raylets = {HEAD: Raylet(0.0), **{node: Raylet(each) for node, each in cpus.items()}}
        self.pending: Counter[str] = Counter()
        self.started: Counter[str] = Counter()
        self.places: Counter[tuple[str, str]] = Counter()
        self.failed: list[str] = []
        self.lengths: dict[str, float] = {}
        self.shapes: dict[str, SlotShape] = {}
        self.silent: set[str] = set()
        self.listed_s = self.heard_s = (
            0.0  # how late Ray's table lists pending work, and raylets learn about each other
        )
        self.pulled_s = self.found_s = 0.0  # how often that table is updated, and how late tasks find a slot
        self.pulled: tuple[float, tuple[PendingRow, ...]] = (0.0, ())
        self.raised: dict[tuple[str, str], float] = {}  # (node, name), and when it last got more of it
        self.idle_s = self.idle_most_s = 0.0  # how long nothing has run while work waited
        self.waits_since: dict[str, float] = {}
        self.whole_since: dict[tuple[str, str], float] = {}  # (node, name) with a whole unit
        self.calls: Counter[str] = Counter()
        self.engine = Engine(solver=solver())
        self.engine.apply(*(NodeJoined(Node.of(node, {"CPU": raylet.cpus})) for node, raylet in self.raylets.items()))
        self.slots = Slots(self, self.engine, self, HeldBySimulation(self), lambda: None, lambda: self.now)
        self.messages = 0
        self.waiting: dict[str, float] = {}
        self.world = 0

    # -- the interface for slots

    def slot_shape(self, key: str) -> SlotShape | None:
        return self.shapes.get(key)

    def keep_slot_shape(self, shape: SlotShape) -> None:
        self.shapes[shape.key] = shape

    def set_many(self, changes: Mapping[str, Mapping[str, float]]) -> dict[str, Outcome]:
        return {
            node: Outcome.SILENT if node in self.silent else self._resize(node, amounts)
            for node, amounts in changes.items()
        }

    def shrink(self, changes: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
        outcomes = self.set_many(changes)
        return {node: dict(self.raylets[node].total) for node in changes if outcomes[node] is Outcome.ANSWERED}

    def _resize(self, node: str, amounts: Mapping[str, float]) -> Outcome:
        self.calls[node] += 1
        raylet = self.raylets[node]
        for name, amount in amounts.items():
            was_feasible = self._is_feasible(node, name)
            if amount > raylet.total.get(name, 0.0):
                self.raised[node, name] = self.now
            raylet.total[name] = max(amount, raylet.held[name] * ONE)
            if raylet.total[name] >= 1.0:
                self.whole_since.setdefault((node, name), self.now)
            else:
                self.whole_since.pop((node, name), None)
            if not raylet.total[name]:
                del raylet.total[name]
            if was_feasible and self.pending[name] and not self._is_feasible(node, name):
                self.failed.append(name)
        return Outcome.ANSWERED

    def _is_feasible(self, node: str, name: str) -> bool:
        """Whether a raylet knows a node that could run it. Raylets learn late about each other."""
        return any(
            other == node or self.now - since >= self.heard_s
            for (other, granted), since in self.whole_since.items()
            if granted == name and self.raylets[other].cpus >= 1.0
        )

    def _can_start(self, name: str, raylet: Raylet) -> bool:
        return self.pending[name] > 0 and raylet.free_cpus > 0 and raylet.free(name) >= 1.0

    # -- what programs do

    def shape(self, key: str, **rest: Any) -> str:
        self.keep_slot_shape(SlotShape(key, Ask.of(key, {"CPU": 1}, **rest)))
        return key

    def submit(self, key: str, count: int, length: float = 0.1, counted: bool = True) -> None:
        name = slot_name(key, self.slots.generations.get(key, 0))
        self.pending[name] += count
        self.lengths[key] = length
        if counted:
            self.messages += 1
            self.slots.count("program", self.messages, {key: count})

    # -- time

    def status(self) -> Status:
        rows = {
            node: NodeRow(node, "", {}, {**raylet.total, "CPU": raylet.cpus}, raylet.available(), False)
            for node, raylet in self.raylets.items()
        }
        counts = {name: count for name, count in self.pending.items() if count}
        self.waits_since = {name: self.waits_since.get(name, self.now) for name in counts}
        listed = {name: count for name, count in counts.items() if self.now - self.waits_since[name] >= self.listed_s}
        if self.now - self.pulled[0] >= self.pulled_s:
            pending = tuple(PendingRow({name: 1.0, "CPU": 1.0}, (), count) for name, count in listed.items())
            self.pulled = (self.now, pending)
        return Status(rows, self.pulled[1])

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += TICK_S
            self._run_tasks()
            is_idle = sum(self.pending.values()) and not any(raylet.running for raylet in self.raylets.values())
            self.idle_s = self.idle_s + TICK_S if is_idle else 0.0
            self.idle_most_s = max(self.idle_most_s, self.idle_s)
            self._round()

    def _round(self) -> None:
        status = self.status()
        known = set(self.engine.waiting)
        self.waiting = {id: since for id, since in self.waiting.items() if id in known}
        waits = {(read_slot(id.rpartition("#")[0]) or ("",))[0]: self.now - since for id, since in self.waiting.items()}
        self.engine.apply(ClockAdvanced(self.now), *self.slots.facts(status, waits, lambda _: False))
        for decision in self.engine.decide():
            if isinstance(decision, Placed):
                self.slots.bind(decision)
            elif isinstance(decision, Evicted):
                self.slots.evict(decision)
            elif isinstance(decision, Waiting):
                self.waiting.update({id: self.waiting.get(id, self.now) for id in decision.asks})
        self.slots.check_rules(self.world)
        self.slots.carry_out(status)

    def _run_tasks(self) -> None:
        for raylet in self.raylets.values():
            for task in [task for task in raylet.running if task[0] <= self.now]:
                raylet.running.remove(task)
                raylet.held[task[1]] -= round(1 / ONE)
        names = [name for name, count in self.pending.items() if count]
        self.rng.shuffle(names)
        withdrawn = set(self.slots.pools.withdrawn())
        for name in names:
            for node, raylet in self.raylets.items():
                if self.now - self.raised.get((node, name), self.now) < self.found_s:
                    continue
                while (node, name) not in withdrawn and self._can_start(name, raylet):
                    found = read_slot(name)
                    assert found is not None
                    self.pending[name] -= 1
                    self.started[name] += 1
                    self.places[found[0], node] += 1
                    raylet.held[name] += round(1 / ONE)
                    raylet.running.append((self.now + self.lengths[found[0]], name, "program"))

    def until_done(self, most_s: float = 120.0) -> None:
        end = self.now + most_s
        while sum(self.pending.values()) or any(raylet.running for raylet in self.raylets.values()):
            assert self.now < end, f"{self.pending} still wait"
            self.tick()

    def granted(self) -> set[tuple[str, str]]:
        """(node, name) with a unit that a task could take."""
        return {
            (node, name)
            for node, raylet in self.raylets.items()
            for name, amount in raylet.available().items()
            if name.startswith(SLOT) and amount >= 1.0
        }

    def kill(self, node: str) -> None:
        """Ray retries what ran there, and queued work moves to other nodes."""
        for _, name, _ in self.raylets.pop(node).running:
            self.pending[name] += 1
        self.whole_since = {place: since for place, since in self.whole_since.items() if place[0] != node}
        self.engine.apply(NodeLeft(node))
        self.world += 1
        could_run = [other for other, raylet in self.raylets.items() if raylet.cpus >= 1.0]
        queued = {name for name, count in self.pending.items() if count and self.waits_since.get(name)}
        self.failed += [name for name in queued for other in could_run[:1] if not self._is_feasible(other, name)]

    def taint(self, node: str, effect: Effect = Effect.NO_SCHEDULE) -> None:
        self.engine.apply(NodeTainted(node, Taint("t", "yes", effect)))
        self.world += 1

    def untaint(self, node: str) -> None:
        self.engine.apply(NodeUntainted(node, "t", Effect.NO_SCHEDULE))
        self.world += 1
