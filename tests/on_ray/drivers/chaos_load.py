"""One driver of the chaos run: submits random work of every kind until its input ends, then reports the results.

Work writes a line to a folder that all processes of the machine share: which piece started where, in which process. A
piece that must be apart from its own kind checks at its start whether another one is alive on its node.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import stead
from stead import actor_affinity, affinity, label_not_in

PAUSE_S = 0.8
TASKS_AHEAD = 4
QUEUE = 150
"""Tasks in a queue that is submitted at once: more than the number of shapes in Ray's demand table."""

GROUPS_AHEAD = 1


def process(pid: int) -> str:
    """A live process, by its id and start time, because ids are reused; "" if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else f"{pid}-{fields[19]}"


def lives(one: str) -> bool:
    return process(int(one.partition("-")[0])) == one


def leave_a_line(folder: str, **said: Any) -> None:
    """Starts with a newline, because a kill may have cut off the previous line."""
    line = "\n" + json.dumps({"at": time.time(), "process": process(os.getpid()), **said}) + "\n"
    number = os.open(Path(folder) / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(number, line.encode())
    os.close(number)


def task(folder: str, name: str, seconds: float) -> str:
    node = str(ray.get_runtime_context().get_node_id())
    leave_a_line(folder, kind="task", name=name, node=node)
    threading.Event().wait(seconds)  # stands for work
    return node


class Member:
    """An actor that reports where it starts, and whether one of its kind is already there."""

    def __init__(self, folder: str, name: str, role: str) -> None:
        context = ray.get_runtime_context()
        self.node = str(context.get_node_id())
        near = Path(folder) / "nodes" / self.node / role if role else None
        others: list[str] = []
        if near is not None:
            near.mkdir(parents=True, exist_ok=True)
            own = process(os.getpid())
            (near / own).touch()
            others = [each.name for each in near.iterdir() if each.name != own]
        broken = [other for other in others if lives(other)]
        leave_a_line(
            folder, kind="actor", name=name, id=context.get_actor_id(), node=self.node, role=role, broken=broken
        )

    def where(self) -> str:
        return self.node


class Load:
    def __init__(self, folder: str, name: str, seed: int, roles: int, members: int) -> None:
        self.folder, self.name, self.rng = folder, name, random.Random(f"{seed}/{name}")
        self.task = ray.remote(task)
        self.member = ray.remote(Member)
        self.tasks: dict[Any, str] = {}
        self.done: dict[str, str] = {}
        self.near: dict[str, str] = {}  # task -> the actor it has to be near
        self.failed: list[str] = []
        self.actors: dict[str, Any] = {}
        self.followed: set[str] = set()  # actors that others have to be near
        self.groups: list[tuple[Any, Any]] = []
        self.ended_groups = 0
        self.most = roles * members
        self.roles = [f"{name}-{number}" for number in range(roles)]
        self.members, self.count = members, 0

    def run(self, until: threading.Event) -> None:
        while not until.wait(self.rng.random() * PAUSE_S):
            what = [self.add_tasks, self.add_tasks, self.add_queue, self.add_actor, self.add_group, self.end_actor]
            self.rng.choice(what)()
            self.gather(0.0)

    def add_tasks(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            if len(self.tasks) < TASKS_AHEAD:
                self.count += 1
                name = f"{self.name}/{self.count}"
                options: dict[str, Any] = {"max_retries": -1, "num_cpus": 0.5}
                if self.actors and self.rng.random() < 0.3:
                    target = self.rng.choice(list(self.actors))
                    options["scheduling_strategy"] = actor_affinity(affinity(self.actors[target]))
                    options["num_cpus"] = 0
                    self.near[name] = target
                self.tasks[self.task.options(**options).remote(self.folder, name, self.rng.random() / 4)] = name

    def add_queue(self) -> None:
        """Many equal tasks that the engine places. The next queue follows when this one is done."""
        if len(self.tasks) < TASKS_AHEAD:
            options: dict[str, Any] = {"max_retries": -1, "num_cpus": 0.5, "labels": {"queue": self.name}}
            queued = self.task.options(**options)
            for _ in range(QUEUE):
                self.count += 1
                name = f"{self.name}/{self.count}"
                self.tasks[queued.remote(self.folder, name, self.rng.random() / 20)] = name

    def add_actor(self) -> None:
        if len(self.actors) >= self.most:
            return
        self.count += 1
        name = f"{self.name}/{self.count}"
        options: dict[str, Any] = {"max_restarts": -1, "max_task_retries": -1, "num_cpus": 0.1}
        role = self.rng.choice(self.roles)
        if self.actors and self.rng.random() < 0.4:
            role, near, soft = "", self.rng.choice(list(self.actors)), self.rng.random() < 0.5
            options["scheduling_strategy"] = actor_affinity(affinity(self.actors[near], is_soft=soft))
            self.followed |= set() if soft else {near}
        elif sum(each.startswith(role) for each in self.actors) < self.members:
            name = f"{role}:{self.count}"
            options["labels"] = {"role": role}
            options["scheduling_strategy"] = actor_affinity(label_not_in("role", [role]))
        else:
            return
        self.actors[name] = self.member.options(**options).remote(self.folder, name, role)

    def end_actor(self) -> None:
        """End an actor, but none that other work waits to be near: that work would be pending forever."""
        idle = [name for name in self.actors if not any(self.near.get(task) == name for task in self.tasks.values())]
        idle = [name for name in idle if name not in self.followed]
        if idle and self.rng.random() < 0.3:
            ray.kill(self.actors.pop(self.rng.choice(idle)))

    def add_group(self) -> None:
        if len(self.groups) < GROUPS_AHEAD:
            self.count += 1
            group = stead.placement_group([{"CPU": 0.5}] * 2, strategy="STRICT_SPREAD")
            inside = PlacementGroupSchedulingStrategy(group, self.rng.randint(0, 1))
            name = f"{self.name}/{self.count}"
            options: dict[str, Any] = {"num_cpus": 0.5, "max_retries": -1, "scheduling_strategy": inside}
            self.groups.append((group, self.task.options(**options).remote(self.folder, name, 0.1)))

    def gather(self, seconds: float) -> None:
        finished, _ = (
            ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=seconds) if self.tasks else ([], 0)
        )
        for ref in finished:
            name = self.tasks.pop(ref)
            try:
                self.done[name] = ray.get(ref)
            except Exception as error:
                self.failed.append(f"{name}: {type(error).__name__}: {error}")
        for group, ref in list(self.groups):
            if ray.wait([ref], timeout=0)[0]:
                try:
                    ray.get(ref)
                except Exception as error:
                    self.failed.append(f"in a group: {type(error).__name__}: {error}")
                stead.remove_placement_group(group)
                self.groups.remove((group, ref))
                self.ended_groups += 1

    def finish(self, seconds: float) -> dict[str, Any]:
        """Wait for all work while some of it finishes within this many seconds; then end the rest."""
        end, ended = time.monotonic() + seconds, -1
        while (self.tasks or self.groups) and time.monotonic() < end:
            self.gather(0.5)
            if ended != len(self.done) + self.ended_groups:
                end, ended = time.monotonic() + seconds, len(self.done) + self.ended_groups
        where, silent = {}, []
        for name, actor in self.actors.items():
            try:
                where[name] = ray.get(actor.where.remote(), timeout=max(1.0, end - time.monotonic()))
            except Exception as error:
                why = ""
                with contextlib.suppress(Exception):
                    why = str(stead.why(actor))
                silent.append(f"{name} ({actor._actor_id.hex()}): {type(error).__name__}; {why}")
        lost = [f"{name}: {_why(ref)}" for ref, name in self.tasks.items()]
        lost += [f"group {group.id.hex()}: {_why(group)}" for group, _ in self.groups]
        lost += _room() if lost else []
        for actor in self.actors.values():
            ray.kill(actor)
        return {
            "done": self.done,
            "failed": self.failed,
            "lost": lost,
            "silent": silent,
            "actors": where,
            "groups": self.ended_groups,
        }


def _room() -> list[str]:
    """What is free on each node, and which bundles of removed groups it still holds."""
    state = ray._private.state
    free, groups = state.available_resources_per_node(), ray.util.placement_group_table()
    live = {id for id, group in groups.items() if group["state"] != "REMOVED"}
    found = []
    for node, total in state.total_resources_per_node().items():
        held = {name.rpartition("_")[2] for name in total if name.startswith("bundle_group_")}
        left = free.get(node, {}).get("CPU", 0.0)
        found.append(f"node {node}: {left} of {total.get('CPU', 0.0)} CPU is free; groups that are gone: {held - live}")
    return found


def _why(what: Any) -> str:
    try:
        return str(stead.why(what))
    except Exception as error:
        return str(error)


def main(address: str, folder: str, name: str, seed: int, roles: int, members: int, finish_s: float) -> None:
    stead.init(address, namespace="chaos", log_to_driver=False, logging_level="critical")
    load = Load(folder, name, seed, roles, members)
    until = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        until.set()

    threading.Thread(target=listen, daemon=True).start()
    load.run(until)
    said = json.dumps(load.finish(finish_s))  # into a file, because Ray also writes to the output, even within a line
    (Path(folder) / f"{name}.json").write_text(said, encoding="utf-8")


if __name__ == "__main__":
    main(
        sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]), float(sys.argv[7])
    )
