"""Tasks that the engine places, beside tasks with one custom resource, on a real Ray cluster in the same run.

Rule: rounds of all kinds are interleaved on one cluster, so that whatever else the machine does falls on all of them
alike; a ratio is the median over rounds, and a goal is met if its 90 % interval reaches it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import Row
from benchmarks.on_ray import KEEP_WORKERS, percentile, ratio
from stead.ray.local.local_cluster import LocalCluster, local_cluster

TASKS, ROUNDS = 5_000, 3
SHAPES = (1, 20)
BURST = 10_000
SINGLE = 40
SUBMISSIONS, CPUS = 100, 4
LEAST, MORE_US = 0.7, 25.0
STREAM_S, STREAM_RATE, STREAM_TASKS = 20.0, 400.0, 100_000
NODES, PENDING, MANY_SHAPES = 1_000, 10_000, 200
NODE: dict[str, Any] = {"num_cpus": 2, "resources": {"bench": 1000}, "labels": {"zone": "a"}}
HOME: dict[str, Any] = {**NODE, "resources": {"bench": 1000, "home": 1000}, "labels": {"zone": "a", "home": "yes"}}
"""Where the actor is that tasks have to be near to."""

REFERENCE, REFERENCE_AT_HOME = "one custom resource", "one custom resource of one node"
KEPT = KEEP_WORKERS | {"num_workers_soft_limit": 2}
"""No more workers than CPUs: Ray starts as many as it may, and on two cores that takes a minute."""

NEAR = "near an actor"
Options = Callable[[int], dict[str, Any]]


def slots() -> list[Row]:
    """Throughput, latency, and what the controller pays."""
    import ray

    import stead
    from stead.ray.submit.connection import connection
    from stead.ray.wire.node_page import FOLDER

    rows = []
    with local_cluster([{**NODE, "num_cpus": 0, "labels": {}}, HOME, NODE], system_config=KEPT) as cluster:
        stead.init(cluster.address, log_to_driver=False, logging_level="error", namespace="bench")
        task = ray.remote(num_cpus=1, max_retries=0)(_now)
        ray.get([task.remote() for _ in range(50)])
        pid = connection().ask("hello")["pid"]
        journal = next(Path(cluster.temp_dir).rglob(f"{FOLDER}/journal.sqlite"))
        before, cpu, began, count = _bytes(journal), _cpu_seconds(pid), time.perf_counter(), 0
        with _resident() as actor:
            for shapes in SHAPES:
                found, more = _throughput(task, _kinds(actor), shapes)
                rows += found
                count += more
            rows += _submitting(task, _kinds(actor))
        wall = time.perf_counter() - began
        used = (_cpu_seconds(pid) - cpu) / wall
        rows.append(
            _row("journal for each task that the engine places", (_bytes(journal) - before) / count, "bytes", 50)
        )
        rows.append(_row("controller during these bursts, of one core", used * 100, "%"))
        rows += _latency(task)
        rows += _other_callers(cluster, task)
        name = f"controller after {count + ROUNDS * BURST:,} such tasks, OR-tools loaded"
        rows.append(_row(name, _resident_megabytes(pid), "MB"))
        ray.shutdown()
    rows += _steadily()
    rows += many_shapes()
    return rows


def _steadily() -> list[Row]:
    """A stream of tasks that comes evenly, and then very many."""
    import ray

    import stead
    from stead.ray.submit.connection import connection

    with local_cluster([{**NODE, "num_cpus": 0, "labels": {}}, NODE, NODE], system_config=KEPT) as cluster:
        stead.init(cluster.address, log_to_driver=False, logging_level="error", namespace="bench")
        task = ray.remote(num_cpus=1, max_retries=0)(_now)
        made = [task.options(labels={"stream": f"n{number}"}) for number in range(4)]
        ray.get([each.remote() for each in made])
        pid = connection().ask("hello")["pid"]
        cpu, began, count = _cpu_seconds(pid), time.perf_counter(), 0
        while (wall := time.perf_counter() - began) < STREAM_S:
            ray.get([made[number % 4].remote() for number in range(20)])
            count += 20
            time.sleep(max(0.0, count / STREAM_RATE - (time.perf_counter() - began)))
        used = (_cpu_seconds(pid) - cpu) / wall * 100
        rows = [_row("controller in a stream of tasks, of one core", used, "%", 10, f"{count / wall:.0f} tasks/s")]
        while count < STREAM_TASKS:
            ray.get([made[number % 4].remote() for number in range(5_000)])
            count += 5_000
        name = f"controller after {STREAM_TASKS:,} tasks"
        rows.append(_row(name, _resident_megabytes(pid), "MB", 150, f"{count:,}"))
        ray.shutdown()
    return rows


def _now(*_: Any) -> float:
    return time.time()


class _Home:
    def here(self) -> bool:
        return True


@contextmanager
def _resident() -> Iterator[Any]:
    import ray

    actor = ray.remote(num_cpus=0)(_Home).options(labels={"role": "anchor"}, label_selector={"home": "yes"}).remote()
    ray.get(actor.here.remote())
    yield actor
    ray.kill(actor)


def _kinds(actor: Any) -> dict[str, Options]:
    """Options of the n-th shape of each kind."""
    from stead import actor_affinity, affinity, label_not_in

    return {
        REFERENCE: lambda number: {"resources": {"bench": 0.001 + number / 10_000}},
        REFERENCE_AT_HOME: lambda number: {"resources": {"home": 0.001 + number / 10_000}},
        "labels": lambda number: {"labels": {"shape": f"n{number}"}},
        NEAR: lambda number: {
            "scheduling_strategy": actor_affinity(affinity(actor)),
            "labels": {"near": f"n{number}"},
        },
        "apart from a label": lambda number: {
            "scheduling_strategy": actor_affinity(label_not_in("role", [f"other-{number}"])),
        },
        "spread": lambda number: {"labels": {"even": f"n{number}"}, "spread": {"node_id": 1}},
        "flow": lambda number: {"policy": "flow", "labels": {"flow": f"n{number}"}},
    }


def _throughput(task: Any, kinds: Mapping[str, Options], shapes: int) -> tuple[list[Row], int]:
    import ray

    speed: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(ROUNDS):
        order = list(kinds)
        random.Random(turn).shuffle(order)
        for kind in order:
            made = [task.options(**kinds[kind](number)) for number in range(shapes)]
            begun = time.perf_counter()
            ray.get([made[index % shapes].remote() for index in range(TASKS)])
            speed[kind].append(TASKS / (time.perf_counter() - begun))
    rows = []
    placed = [kind for kind in kinds if kind not in (REFERENCE, REFERENCE_AT_HOME)]
    for kind in placed:
        reference = REFERENCE_AT_HOME if kind == NEAR else REFERENCE
        which = ratio(speed[kind], speed[reference])
        name = f"{TASKS:,} tasks of {shapes} shape{'s' * (shapes > 1)}, {kind}, beside {reference}"
        ours, theirs, met = median(speed[kind]), median(speed[reference]), which.high >= LEAST
        rows.append(Row(name, ours, "tasks/s", theirs, which.middle, f">= {LEAST}", met, str(which)))
    return rows, TASKS * ROUNDS * len(placed)


def _submitting(task: Any, kinds: Mapping[str, Options]) -> list[Row]:
    """What `.remote()` costs while no CPU is free, so that no task runs beside it: in alternation, so that the machine
    falls on all kinds alike."""
    import ray

    holders = [ray.remote(num_cpus=1)(_Home).options(label_selector={"zone": "a"}).remote() for _ in range(CPUS)]
    ray.get([each.here.remote() for each in holders])
    made = {kind: task.options(**options(0)) for kind, options in kinds.items()}
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    refs = [each.remote() for each in made.values()]
    for turn in range(SUBMISSIONS):
        order = list(kinds)
        random.Random(turn).shuffle(order)
        for kind in order:
            begun = time.perf_counter()
            more = [made[kind].remote() for _ in range(20)]
            took[kind].append((time.perf_counter() - begun) / 20 * 1e6)
            refs += more
    for each in holders:
        ray.kill(each)
    ray.get(refs)
    reference, _ = median(took.pop(REFERENCE)), took.pop(REFERENCE_AT_HOME)
    return [
        Row(
            f".remote(), {kind}, over one custom resource",
            over,
            "us",
            reference,
            None,
            f"< {MORE_US:g} us",
            over < MORE_US,
        )
        for kind, times in took.items()
        for over in (median(times) - reference,)
    ]


def _latency(task: Any) -> list[Row]:
    """One task after the other, with pauses after which its slot is gone or still there."""
    import ray

    made, waits = task.options(labels={"shape": "single"}), []
    ray.get([task.remote() for _ in range(2 * CPUS)])  # starting a worker takes Ray up to a second
    for number in range(SINGLE):
        time.sleep((number % 4) * 0.9)
        begun = time.time()
        waits.append(ray.get(made.remote()) - begun)
    return [
        _row(f"pending to started, {name} of {SINGLE}", percentile(waits, share) * 1e3, "ms", goal)
        for name, share, goal in (("p50", 0.5, 150), ("p99", 0.99, 500))
    ]


def _other_callers(cluster: LocalCluster, task: Any) -> list[Row]:
    """What another program waits for the controller while this one submits bursts."""
    import ray

    code = "from benchmarks.slots import call_until_told; import sys; call_until_told(sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", code, cluster.address]
    with subprocess.Popen(
        words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        while other.stdout.readline().strip() != "ready":
            assert other.poll() is None, "the other program did not start"
        made = [task.options(labels={"burst": f"n{number}"}) for number in range(20)]
        for _ in range(ROUNDS):
            ray.get([made[number % 20].remote() for number in range(BURST)])
        other.stdin.write("end\n")
        other.stdin.flush()
        line = next(line for line in other.stdout if line.startswith("["))
    times, plain = json.loads(line)
    bursts = f"{ROUNDS} bursts of {BURST:,} tasks"
    name = f"a call by another program during {bursts}, p99, beside a plain actor's"
    ours, reference = percentile(times, 0.99) * 1e3, percentile(plain, 0.99) * 1e3
    return [Row(name, ours, "ms", reference, ours / reference, "< 50 ms", ours < 50, f"{len(times):,} calls")]


def call_until_told(address: str) -> None:
    import threading

    import ray

    import stead

    stead.init(address, log_to_driver=False, logging_level="error")
    end = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        end.set()

    threading.Thread(target=listen, daemon=True).start()
    stead.nodes()
    actor = ray.remote(num_cpus=0)(_Home).remote()
    ray.get(actor.here.remote())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    times, plain = [], []
    while not end.wait(0.02):
        begun = time.perf_counter()
        stead.nodes()
        middle = time.perf_counter()
        ray.get(actor.here.remote())
        times.append(middle - begun)
        plain.append(time.perf_counter() - middle)
    sys.stdout.write(json.dumps([times, plain]) + "\n")
    sys.stdout.flush()
    ray.shutdown()


class SimulatedRaylets:
    """Grants and shapes for slots; every node answers at once."""

    def __init__(self, totals: dict[str, dict[str, float]], shapes: Mapping[str, Any]) -> None:
        self._totals, self._shapes = totals, shapes

    def slot_shape(self, key: str) -> Any:
        return self._shapes.get(key)

    def keep_slot_shape(self, shape: Any) -> None: ...

    def set_many(self, changes: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        from stead.ray.wire.resource_grants import Outcome

        for node, amounts in changes.items():
            self._totals[node].update(amounts)
        return dict.fromkeys(changes, Outcome.ANSWERED)

    def shrink(self, changes: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
        self.set_many(changes)
        return {node: self._totals[node] for node in changes}


def many_shapes() -> list[Row]:
    """A large cluster under a queue of many shapes: real engine, journal and slots; raylets are simulated."""
    from stead.engine.decisions import Placed
    from stead.engine.engine import Engine
    from stead.engine.facts import ClockAdvanced, NodeJoined, NodeTainted
    from stead.journal import Journal
    from stead.language.asks import Ask
    from stead.language.labels import Labels
    from stead.language.nodes import Node
    from stead.language.taints import Taint
    from stead.ray.control.anchors import Anchors
    from stead.ray.control.slots import Slots
    from stead.ray.submit.messages import SlotShape
    from stead.ray.wire.own_names import slot_name
    from stead.ray.wire.tables import NodeRow, PendingRow, Status

    class SimulatedAnchors(Anchors):
        """No group is created: the part of a unit that it would hold stays free."""

        def _hold(self, name: str, node: str) -> Any:
            return name, node

        def _release(self, group: Any) -> None: ...

    totals: dict[str, dict[str, float]] = {f"{number:056x}": {"CPU": 4.0} for number in range(NODES)}
    shapes = {
        f"s{number}": SlotShape(f"s{number}", Ask.of(f"s{number}", {"CPU": 1}, labels=Labels({"n": f"n{number}"})))
        for number in range(MANY_SHAPES)
    }

    def status() -> Status:
        rows = {
            node: NodeRow(node, "", {}, amounts, {"CPU": 0.0} | dict.fromkeys(set(amounts) - {"CPU"}, 0.0), False)
            for node, amounts in totals.items()
        }
        each = PENDING // MANY_SHAPES
        return Status(rows, tuple(PendingRow({slot_name(key, 0): 1.0}, (), each) for key in shapes))

    times = []
    with tempfile.TemporaryDirectory() as folder:
        engine, simulated = Engine(), SimulatedRaylets(totals, shapes)
        engine.apply(*(NodeJoined(Node.of(node, {"CPU": 4.0})) for node in totals))
        journal = Journal.open(Path(folder) / "journal.sqlite", engine.settings)
        made = Slots(simulated, engine, simulated, SimulatedAnchors("nowhere", dict), lambda: None)

        def round_once(world: int) -> float:
            seen = status()
            begun = time.perf_counter()
            facts = [ClockAdvanced(time.time()), *made.facts(seen, {}, lambda _: False)]
            engine.apply(*facts)
            decisions = engine.decide()
            if len(facts) > 1 or decisions:
                journal.append(facts, decisions)
            for decision in decisions:
                if isinstance(decision, Placed):
                    made.bind(decision)
            made.check_rules(world)
            made.carry_out(seen)
            return time.perf_counter() - begun

        first = round_once(0)
        times = [round_once(0) for _ in range(20)]
        engine.apply(NodeTainted(f"{0:056x}", Taint("bench", "yes")))
        taint = round_once(1)
    where = f"{NODES:,} simulated nodes, {PENDING:,} pending tasks of {MANY_SHAPES} shapes"
    return [
        _row(f"{where}: the round that places", first * 1e3, "ms", None),
        _row(f"{where}: a round while they wait", median(times) * 1e3, "ms", 100),
        _row(f"{where}: the round of a taint", taint * 1e3, "ms", 1000),
    ]


def _row(name: str, ours: float, unit: str, goal: float | None = None, detail: str = "") -> Row:
    return Row(
        name,
        ours,
        unit,
        None,
        None,
        "" if goal is None else f"< {goal:g} {unit}",
        None if goal is None else ours < goal,
        detail,
    )


def _bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))


def _cpu_seconds(pid: int) -> float:
    fields: Sequence[str] = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_megabytes(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return float(line.split()[1]) / 1024
