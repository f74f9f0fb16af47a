"""stead on a real Ray cluster, beside plain Ray in the same run.

Rule: rounds of the three kinds of driver are interleaved, so that whatever else the machine does falls on all of them
alike; a ratio is the median over rounds with its 90 % interval, and a goal is met if the interval reaches it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import Row
from stead.ray.local.local_cluster import local_cluster

ROUNDS = 15
TASKS = 300
CHANGES = 20
KILLS = 3
NODE = {"num_cpus": 2, "resources": {"bench": 1000}}
KEEP_WORKERS = {"idle_worker_killing_time_threshold_ms": 3_600_000, "num_workers_soft_limit": 16}
"""Three jobs take turns; none of them shall pay for starting its workers again in every round."""

KINDS = ("plain", "resource", "hooked")
DRIVER = Path(__file__).with_name("ray_driver.py")


@dataclass(frozen=True)
class Ratio:
    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The median of the rounds' ratios and the 90 % interval of that median, by resampling with a fixed seed."""
    each = [one / other for one, other in zip(ours, theirs, strict=True)]
    dice = random.Random(0)
    medians = sorted(median(dice.choices(each, k=len(each))) for _ in range(2000))
    return Ratio(median(each), medians[100], medians[1899])


@contextmanager
def driver(kind: str, address: str) -> Iterator[Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if kind == "hooked":
        environment["RAY_RUNTIME_ENV_HOOK"] = "stead.ray.hook"
    with subprocess.Popen(
        [sys.executable, DRIVER, kind, address],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "ready":
            assert process.poll() is None, f"the {kind} driver did not start"
        yield process
        process.kill()


def measured(process: Any, count: int) -> dict[str, float]:
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    while not (line := process.stdout.readline()).startswith("{"):  # Ray itself may have something to say
        assert line, "the driver has died"
        sys.stderr.write(line)
    answer: dict[str, float] = json.loads(line)
    return answer


def throughput() -> list[Row]:
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with (
        local_cluster([NODE], hooked=False, system_config=KEEP_WORKERS) as cluster,
        driver("plain", cluster.address) as plain,
        driver("resource", cluster.address) as custom,
        driver("hooked", cluster.address) as hooked,
    ):
        turns = dict(zip(KINDS, (plain, custom, hooked), strict=True))
        for number in range(ROUNDS + 1):
            order = list(KINDS)
            random.Random(number).shuffle(order)
            for kind in order:
                answer = measured(turns[kind], TASKS)
                if number:  # the first round warms up
                    found[kind].append(answer)
    rows = []
    speed = {kind: [answer["per_second"] for answer in answers] for kind, answers in found.items()}
    for other, words, least in (("plain", "plain Ray", 0.92), ("resource", "one custom resource", 0.98)):
        which = ratio(speed["hooked"], speed[other])
        ours, theirs = median(speed["hooked"]), median(speed[other])
        name = f"tasks under the hook beside {words}"
        rows.append(Row(name, ours, "tasks/s", theirs, which.middle, f">= {least}", which.high >= least, str(which)))
    submit = {kind: [answer["submit_us"] for answer in answers] for kind, answers in found.items()}
    for other, words, goal in (("plain", "plain Ray", ""), ("resource", "one custom resource", "< 20 us")):
        more = median(ours - theirs for ours, theirs in zip(submit["hooked"], submit[other], strict=True))
        met = more < 20.0 if goal else None
        rows.append(Row(f".remote() under the hook over {words}", more, "us", median(submit[other]), None, goal, met))
    return rows


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def changes() -> list[Row]:
    import ray

    import stead
    from stead.ray.submit.connection import connection

    rows = []
    with local_cluster([{"num_cpus": 1}, {"num_cpus": 1}, {"num_cpus": 1}]) as cluster:
        stead.init(cluster.address, log_to_driver=False, logging_level="error")
        ids = [node.node_id for node in cluster.nodes]

        @ray.remote  # type: ignore[untyped-decorator]
        def now() -> float:
            return time.time()

        ray.get([now.remote() for _ in range(20)])
        taints, starts = [], []
        for number in range(CHANGES):
            begun = time.perf_counter()
            stead.taint(ids[1 + number % 2], {"bench": "yes"})
            taints.append(time.perf_counter() - begun)
            stead.untaint(ids[1 + number % 2], ["bench"])
        for number in range(CHANGES):
            ref = now.options(label_selector={"turn": f"n{number}"}).remote()
            while connection().page().generations.get(_key(number)) is None:
                time.sleep(0.01)
            begun = time.time()
            stead.label(ids[0], {"turn": f"n{number}"})
            starts.append(ray.get(ref) - begun)
        for name, values in (("taint set to obeyed", taints), ("label changed to waiting task started", starts)):
            for which, share in (("p50", 0.5), ("p99", 0.99)):
                rows.append(
                    Row(f"{name}, {which} of {CHANGES}", percentile(values, share) * 1e3, "ms", None, None, "", None)
                )
        rows.append(recovery())
        ray.shutdown()
    return rows


def _key(number: int) -> str:
    from stead.ray.submit.compile import route

    return route({"label_selector": {"turn": f"n{number}"}}).wish.admits.key


def recovery() -> Row:
    import stead
    from stead.ray.submit.connection import connection

    times = []
    for _ in range(KILLS):
        os.kill(connection().ask("hello")["pid"], signal.SIGKILL)
        begun = time.perf_counter()
        stead.nodes()
        times.append(time.perf_counter() - begun)
    return Row(
        f"controller killed to answering, worst of {KILLS}", max(times), "s", None, None, "< 5 s", max(times) < 5
    )
