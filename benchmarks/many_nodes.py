"""A controller of 1,000 nodes: what it needs, what a round costs, and what a taint costs.

Rule: engine, journal and passes are real, in a process of their own; Ray's tables, its call for amounts and its groups
are simulated, because one machine cannot run so many raylets. Calls are counted by node, so that it shows whom a taint
concerns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import Row
from stead.controller import Controller
from stead.engine.engine import Engine
from stead.engine.facts import Fact, NodeTainted
from stead.journal import Journal
from stead.language.taints import Taint
from stead.ray.control.admission import nodes_allowed
from stead.ray.control.cluster import RayCluster
from stead.ray.control.passes import ASSERTED_S, Passes
from stead.ray.submit.compile import Pass, route
from stead.ray.wire.resource_grants import Outcome
from stead.ray.wire.tables import NodeRow, Status

NODES, PASSES, TAINTS = 1000, 16, 20
CALL_S, PLUG_S = 0.002, 0.005
"""All nodes answer at once after this; groups are placed one after another."""


def many_nodes() -> list[Row]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "benchmarks.many_nodes"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    who = f"controller with {NODES:,} simulated nodes and {PASSES} passes"
    calls, seconds = found["calls"], found["taint_s"]
    return [
        Row(who, found["megabytes"], "MB", found["megabytes_before"], None, "", None),
        Row(f"{who}: a round in which nothing happens", found["round_ms"], "ms", None, None, "", None),
        Row(f"{who}: nodes called for a taint, worst of {TAINTS}", calls, "nodes", None, None, "1", calls == 1),
        Row(f"{who}: a taint, worst of {TAINTS}", seconds, "s", None, None, "< 1 s", seconds < 1),
    ]


class Nodes:
    """Ray's tables, the call for amounts, and the plugs."""

    def __init__(self) -> None:
        self.totals: dict[str, dict[str, float]] = {f"{n:056x}": {"CPU": 16.0, "memory": 64e9} for n in range(NODES)}
        self.plugs: dict[tuple[str, str], float] = {}
        self.called: set[str] = set()

    def status(self) -> Status:
        rows = {}
        held: dict[str, dict[str, float]] = {}
        for (node, name), amount in self.plugs.items():
            held.setdefault(node, {})[name] = amount
        for index, (id, total) in enumerate(self.totals.items()):
            available = {name: amount - held.get(id, {}).get(name, 0.0) for name, amount in total.items()}
            labels = {"zone": f"z{index % 3}", "team": f"t{index % 20}"}
            rows[id] = NodeRow(id, "10.0.0.1", labels, dict(total), available, False)
        return Status(rows, ())

    def set_many(self, changes: Mapping[str, Mapping[str, float]]) -> dict[str, Outcome]:
        time.sleep(CALL_S)
        self.called |= changes.keys()
        for node, amounts in changes.items():
            for name, amount in amounts.items():
                self.totals[node][name] = amount
                if not amount:
                    del self.totals[node][name]
        return dict.fromkeys(changes, Outcome.ANSWERED)

    def add(self, places: Mapping[tuple[str, str], float]) -> None:
        time.sleep(PLUG_S * len(places))
        self.plugs.update(places)

    def remove(self, places: Iterable[tuple[str, str]]) -> None:
        for place in list(places):
            self.plugs.pop(place, None)

    def placed(self) -> dict[tuple[str, str], float]:
        return dict(self.plugs)

    def asked(self) -> set[tuple[str, str]]:
        return set(self.plugs)


class Idle:
    """Nothing is asked for singly here, so there is nothing to carry out."""

    def bind(self, placed: Any) -> None: ...
    def evict(self, evicted: Any) -> None: ...
    def preempt(self, preempted: Any) -> None: ...
    def refuse(self, refused: Any) -> None: ...
    def tell(self, happened: Any) -> None: ...
    def launch(self, wanted: Any) -> None: ...
    def retire(self, node: Any) -> None: ...


class Rounds:
    """The part of the controller's round that deals with passes."""

    def __init__(self, nodes: Nodes, folder: Path) -> None:
        self._nodes, self._engine, self._allowed = nodes, Engine(), dict[str, set[str]]()
        journal = Journal.open(folder / "journal.sqlite", self._engine.settings)
        self._cluster = RayCluster(Idle())
        self._controller = Controller(self._cluster, self._engine, journal)
        self._passes = Passes(nodes, nodes, nodes.status, journal.check)
        self._passes.issue(Pass())
        for number in range(PASSES - 1):
            self._passes.issue(route({"label_selector": {"team": f"t{number}"}}).wish.admits)

    def once(self, *facts: Fact) -> float:
        """A round; returns the seconds it took, without the time that the simulation needs to say what is there."""
        status, begun = self._nodes.status(), time.perf_counter()
        before = self._engine.nodes
        self._cluster.look(status, {}, before)
        self._cluster.report(*facts)
        self._controller.step()
        if self._engine.nodes != before:
            rules = {key: issued.rule for key, issued in self._passes.issued.items()}
            self._allowed = {key: nodes_allowed(self._engine, rule) for key, rule in rules.items()}
        self._passes.note_use(status, lambda key: None)
        self._passes.settle(status, self._allowed, lambda away: None, thorough=bool(facts))
        return time.perf_counter() - begun


def main() -> None:
    before, nodes = megabytes(), Nodes()
    with tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(nodes, Path(folder))
        for _ in range(3):
            rounds.once()
        time.sleep(ASSERTED_S)
        quiet = [rounds.once() for _ in range(6)][1:]
        taints, calls = [], []
        for id in list(nodes.totals)[:TAINTS]:
            nodes.called.clear()
            taints.append(rounds.once(NodeTainted(id, Taint("mine", "yes"))) + rounds.once())
            calls.append(len(nodes.called))
    found = {"megabytes_before": before, "megabytes": megabytes(), "round_ms": sum(quiet) / len(quiet) * 1e3}
    sys.stdout.write(json.dumps({**found, "calls": max(calls), "taint_s": max(taints)}) + "\n")


def megabytes() -> float:
    """Of this process now; the peak that the kernel tells begins with the parent's."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return float(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
