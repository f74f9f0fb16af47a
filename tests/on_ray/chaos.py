"""The chaos run: drivers submit work of every kind while workers, nodes and the controller are killed at random.

``python -m tests.on_ray.chaos --seed 1 --kills 200`` (``make chaos``) prints each kill and, at the end, what the
checkers found. The seed decides what is submitted and killed; the exact timing depends on the machine.

It checks that no hard rule is broken at a start, nothing is lost, nothing exists twice, everything that fits is placed,
and no grant is left at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import ray

import stead
from stead.engine.decisions import Placed
from stead.journal import Journal
from stead.ray.local.local_cluster import LocalCluster, NotStarted
from stead.ray.submit.connection import connection
from stead.ray.wire.node_page import FOLDER
from stead.ray.wire.own_names import ANCHORS, TICKET

LOAD = Path(__file__).parent / "drivers" / "chaos_load.py"
NODES, CPUS = 3, 2
DRIVERS, ROLES, MEMBERS = 2, 1, 2
"""Members of a role stay apart from each other, and there are fewer of them than nodes, so all of them fit. The numbers
are small, because every killed process restarts, which takes time on a small machine."""

BETWEEN_S = 1.5
STARTS_MAX = 3
WORK_MIN = 5
"""How many tasks and actors start before the first kill."""

FINISH_S, FINISHES_S = 120.0, 1800.0
"""At the end, some work must finish within the first time, and all of it within the second."""


QUICK_TO_NOTICE = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
}


@dataclass
class Found:
    """What the checkers found: every list is empty after a good run."""

    broken: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    misplaced: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)

    @property
    def problems(self) -> dict[str, list[str]]:
        named = ("broken", "failed", "lost", "doubled", "misplaced", "left_over")
        return {name: getattr(self, name) for name in named if getattr(self, name)}


def run(seed: int, kills: int, say: Callable[[str], None] = lambda _: None) -> Found:
    rng, found = random.Random(seed), Found()
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster([{"num_cpus": 0}, *[{"num_cpus": CPUS}] * NODES], environment=QUICK_TO_NOTICE)
        try:
            stead.init(cluster.address, namespace="chaos", log_to_driver=False, logging_level="critical")
            names = [f"d{number}" for number in range(DRIVERS)]
            drivers = [_driver(cluster, folder, name, seed) for name in names]
            try:
                _wait_for_work(Path(folder))
                _kill_at_random(cluster, Path(folder), rng, kills, found, say)
                for driver in drivers:  # end all of them before waiting for any: they share the nodes
                    _end(driver)
                said = [
                    _finished(driver, Path(folder) / f"{name}.json")
                    for driver, name in zip(drivers, names, strict=True)
                ]
            finally:
                for driver in drivers:
                    driver.kill()
            _check(Path(folder), said, found)
            _check_journal(cluster, Path(folder), found)
            _check_nothing_is_left(found)
        finally:
            ray.shutdown()
            cluster.close()
    return found


def _driver(cluster: LocalCluster, folder: str, name: str, seed: int) -> subprocess.Popen[str]:
    words = [sys.executable, str(LOAD), cluster.address, folder, name, *map(str, (seed, ROLES, MEMBERS, FINISH_S))]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, text=True)


def _end(driver: subprocess.Popen[str]) -> None:
    assert driver.stdin is not None
    driver.stdin.write("end\n")
    driver.stdin.flush()


def _finished(driver: subprocess.Popen[str], told: Path) -> dict[str, Any]:
    driver.communicate(timeout=FINISHES_S)
    if driver.returncode:
        raise AssertionError(f"a driver of the chaos run ended with {driver.returncode}")
    said: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    return said


def _wait_for_work(folder: Path) -> None:
    """Kill only when there is something to kill: on a busy machine, drivers take long to start."""
    until, pause = time.monotonic() + FINISH_S, Event()
    while len({line["kind"] for line in _lines(folder)}) < 2 or len(_lines(folder)) < WORK_MIN:
        assert time.monotonic() < until, "the drivers of the chaos run submit nothing"
        pause.wait(0.2)


# -- kills


def _kill_at_random(
    cluster: LocalCluster, folder: Path, rng: random.Random, kills: int, found: Found, say: Callable[[str], None]
) -> None:
    pause, began = Event(), time.monotonic()
    for number in range(kills):
        pause.wait(BETWEEN_S * (0.5 + rng.random()))
        kind = rng.choices(["worker", "node", "controller", "taint"], [6, 2, 2, 2])[0]
        if kind == "worker":
            _kill_worker(folder, rng)
        elif kind == "controller":
            _kill_controller()
        elif kind == "node":
            _kill_node(cluster, rng)
        else:
            kind = "worker, while a node is tainted"
            node = rng.choice([each for each in cluster.nodes[1:] if each.alive])
            with _unless_given_up(node.node_id):
                stead.taint(node.node_id, {"chaos": "yes"})
                _kill_worker(folder, rng)
                stead.untaint(node.node_id, ["chaos"])
        found.figures[f"kills: {kind}"] += 1
        say(f"{time.monotonic() - began:6.1f} s  {number + 1:3} of {kills}: {kind}")


@contextmanager
def _unless_given_up(id: str) -> Iterator[None]:
    """Ray gives up a node that gets too little CPU time on a busy machine; then it cannot be tainted any more."""
    try:
        yield
    except stead.Invalid:
        if any(row["NodeID"] == id and row["Alive"] for row in ray.nodes()):
            raise


def _lines(folder: Path) -> list[dict[str, Any]]:
    """The lines that processes wrote. An incomplete line, of a killed process or one that is still writing, is
    skipped."""
    found = []
    for line in (folder / "lines").read_text().splitlines() if (folder / "lines").exists() else ():
        with suppress(ValueError):
            found += [json.loads(line)] if line else []
    return found


def _lives(process: str) -> bool:
    """Whether a process is alive, identified by its id and start time (as `drivers/chaos_load.py` writes them)."""
    number, _, began = process.partition("-")
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and fields[19] == began


def _kill_worker(folder: Path, rng: random.Random) -> None:
    alive = sorted({line["process"] for line in _lines(folder) if _lives(line["process"])})
    if alive:
        with suppress(ProcessLookupError):
            os.kill(int(rng.choice(alive).partition("-")[0]), signal.SIGKILL)


def _kill_controller() -> None:
    with suppress(ProcessLookupError):
        os.kill(connection().ask("hello")["pid"], signal.SIGKILL)


def _kill_node(cluster: LocalCluster, rng: random.Random) -> None:
    """Kill a node and add a new one. The head is never killed: `test_head_restart.py` tests that."""
    cluster.kill_node(rng.choice([index for index, node in enumerate(cluster.nodes) if index and node.alive]))
    for attempt in range(STARTS_MAX):
        try:
            cluster.add_node(num_cpus=CPUS)
            return
        except NotStarted:  # other programs keep the machine busy
            if attempt == STARTS_MAX - 1:
                raise


# -- checkers


def _check(folder: Path, said: list[dict[str, Any]], found: Found) -> None:
    lines = _lines(folder)
    for line in lines:
        if line.get("broken"):
            found.broken.append(f"{line['name']} started on {line['node']} beside {line['broken']}")
    for each in said:
        found.failed += each["failed"]
        found.lost += [*each["lost"], *each["silent"]]
        found.figures["tasks done"] += len(each["done"])
        found.figures["actors at the end"] += len(each["actors"])
        found.figures["groups done"] += each["groups"]
    found.figures["starts of actors"] = sum(line["kind"] == "actor" for line in lines)
    ran = {line["name"] for line in lines if line["kind"] == "task"}
    found.lost += [f"{name} is done but never ran" for each in said for name in each["done"] if name not in ran]
    alive = Counter(line["name"] for line in lines if line["kind"] == "actor" and _lives(line["process"]))
    found.doubled += [f"{name} lives {count} times" for name, count in alive.items() if count > 1]


def _check_journal(cluster: LocalCluster, folder: Path, found: Found) -> None:
    """Every actor started on the node where the engine last placed it."""
    path = next(Path(cluster.temp_dir).rglob(f"{FOLDER}/journal.sqlite"))
    placed: dict[str, list[tuple[float, str]]] = {}
    with Journal.reading(path) as journal:
        for entry in journal.read():
            now = next((fact.now for fact in entry.facts if hasattr(fact, "now")), 0.0)
            for decision in entry.decisions:
                if isinstance(decision, Placed):
                    placed.setdefault(decision.ask, []).append((now, decision.node))
    for line in _lines(folder):
        if line["kind"] == "actor" and line["id"] in placed:
            before = [node for at, node in placed[line["id"]] if at <= line["at"]]
            if not before or before[-1] != line["node"]:
                found.misplaced.append(f"{line['name']} started on {line['node']}, placed on {before[-2:]}")


def _check_nothing_is_left(found: Found) -> None:
    until, pause = time.monotonic() + 40.0, Event()
    while True:
        totals = ray._private.state.state.total_resources_per_node()
        left = [f"{name} on {node}" for node, names in totals.items() for name in names if name.startswith(TICKET)]
        groups = list((ray.util.placement_group_table() or {}).values())
        # Names of slots and their anchors stay for a minute after the last task.
        groups = [row for row in groups if row["state"] != "REMOVED" and not row["name"].startswith(ANCHORS)]
        left += [row["name"] or "a group" for row in groups]
        left += [f"the controller still has {each}" for each in connection().ask("registered_ids")]
        if not left or time.monotonic() > until:
            found.left_over += left
            return
        pause.wait(0.5)


def main() -> None:
    words = argparse.ArgumentParser(description="Kill at random while work of every kind runs, and check.")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--kills", type=int, default=200)
    given = words.parse_args()

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    found = run(given.seed, given.kills, say)
    for name, count in sorted(found.figures.items()):
        say(f"{count:6} {name}")
    for name, problems in found.problems.items():
        say(f"{name}:")
        for problem in problems:
            say(f"  {problem}")
    again = f"python -m tests.on_ray.chaos --seed {given.seed} --kills {given.kills}"
    say(f"PROBLEMS; again: {again}" if found.problems else "no problems")
    sys.exit(1 if found.problems else 0)


if __name__ == "__main__":
    main()
