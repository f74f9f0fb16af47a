"""`make bench`: prints a table and writes benchmarks/results.json.

With names of steps (`python -m benchmarks flow openb`) only those are run; their rows replace those of the same steps.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from tests.oracle import Oracle  # the reference lives with the tests

from benchmarks import (
    Row,
    clusters,
    flow,
    kube_desk,
    many_nodes,
    on_ray,
    openb,
    planning,
    preempting,
    service,
    slots,
    together,
)
from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted, NodeJoined, NodeLabelled
from stead.language.asks import Ask
from stead.language.labels import Labels, Requirement, Selector
from stead.language.nodes import Node

HERE = Path(__file__).resolve().parent

SAMPLE = 30
"""Asks that the oracle is timed on."""


def seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """The median time of one call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times)


def oracle_of(nodes: Iterable[Node]) -> Oracle:
    oracle = Oracle()
    oracle.apply(*map(NodeJoined, nodes))
    return oracle


def oracle_seconds(oracle: Oracle, asks: Sequence[Ask]) -> float:
    """What one ask costs the oracle: find the best node, and place it there."""
    start = time.perf_counter()
    for ask in asks:
        found = oracle.best(ask)
        if found is not None:
            oracle.place(ask, min(found[1]), found[0])
    return (time.perf_counter() - start) / len(asks)


def submit_one_by_one(engine: Engine, asks: Sequence[Ask]) -> list[float]:
    times = []
    for ask in asks:
        start = time.perf_counter()
        engine.apply(AskSubmitted(ask))
        engine.decide()
        times.append(time.perf_counter() - start)
    return times


def single_asks(count: int, goals: tuple[float, float] | None) -> tuple[list[Row], float]:
    """One ask at a time: of shapes never seen, and of a known one; also the cost of the latter."""
    nodes = clusters.nodes(count)
    engine = clusters.joined(nodes)
    wants = clusters.choices(SAMPLE + 1)
    unseen = [Ask(f"new-{i}", want) for i, want in enumerate(wants[:SAMPLE])]
    known = [Ask(f"known-{i}", wants[SAMPLE]) for i in range(201)]
    new_cost = median(submit_one_by_one(engine, unseen))
    known_cost = median(submit_one_by_one(engine, known)[1:])
    rows = []
    if goals is not None:
        reference = oracle_seconds(oracle_of(nodes), [Ask(ask.id, ask.choices) for ask in unseen])
        for name, ours, goal in (("never seen", new_cost, goals[0]), ("known", known_cost, goals[1])):
            ratio = reference / ours
            label = f"one ask, shape {name}, {count:,} nodes"
            stated, met = (f">= {goal:g}x", ratio >= goal) if goal else ("", None)
            rows.append(Row(label, ours * 1e6, "us", reference * 1e6, ratio, stated, met))
    return rows, known_cost


def batch(count: int, asks_count: int, shapes: int) -> list[Row]:
    """Many asks of some shapes, applied and decided at once; shapes are new to the engine."""
    nodes = clusters.nodes(count)
    wants = clusters.choices(shapes)
    asks = [Ask(f"ask-{i}", wants[i % shapes]) for i in range(asks_count)]
    facts = [AskSubmitted(ask) for ask in asks]
    rates = []
    for _ in range(5):
        engine = clusters.joined(nodes)
        gc.collect()
        start = time.perf_counter()
        engine.apply(*facts)
        decisions = engine.decide()
        rates.append(asks_count / (time.perf_counter() - start))
        assert len(decisions) == asks_count, "the cluster is meant to hold all of them"
    reference = 1 / oracle_seconds(oracle_of(nodes), asks[:SAMPLE])
    name = f"{asks_count:,} asks of {shapes} shapes, {count:,} nodes"
    rows = []
    for which, rate in (("median of 5", median(rates)), ("best of 5", max(rates))):
        goal, met = ">= 100,000/s and >= 1000x", rate >= 100_000 and rate / reference >= 1000
        rows.append(Row(f"{name} ({which})", rate, "asks/s", reference, rate / reference, goal, met))
    return rows


def relative_to_other_work(count: int) -> list[Row]:
    nodes = clusters.nodes(count)
    rows = []
    for name, asks in (
        ("1,000 asks apart from each other", clusters.apart_from_each_other(1000)),
        ("5,000 asks each near an earlier one", clusters.each_near_an_earlier_one(5000)),
    ):
        engine = clusters.joined(nodes)
        facts = [AskSubmitted(ask) for ask in asks]
        start = time.perf_counter()
        engine.apply(*facts)
        engine.decide()
        rate = len(asks) / (time.perf_counter() - start)
        assert len(engine.placed) == len(asks), f"{name}: all of them fit"
        oracle = oracle_of(nodes)
        for ask, node in zip(asks[:100], nodes, strict=False):
            if not ask.affinities:
                oracle.place(ask, node.id)
        reference = 1 / oracle_seconds(oracle, [ask for ask in asks if ask.affinities][:SAMPLE])
        met = rate >= 3000
        rows.append(Row(f"{name}, {count:,} nodes", rate, "asks/s", reference, rate / reference, ">= 3,000/s", met))
    return rows


def answers(count: int) -> list[Row]:
    """Fork, explanation and smallest change, on a busy cluster."""
    nodes = clusters.nodes(count)
    engine, oracle = busy(nodes), oracle_of(nodes)
    fits = Ask.of("fits", {"CPU": 2, "memory": "4Gi"}, Selector.all_of(Requirement.exists("zone")))
    hopeless = Selector.all_of(Requirement.is_in("zone", "us-west4-a"), Requirement.is_in("team", "nobody"))
    stuck = Ask.of("stuck", {"CPU": 65, "GPU": 1}, hopeless)
    engine.explain(fits)
    copied, judged = seconds(oracle.copy), seconds(lambda: oracle.verdict(fits, 0), 5)
    rows = []
    for name, work, reference, repeats, goal_ms in (
        ("fork", engine.fork, copied, 100, 1),
        ("explanation", lambda: engine.explain(fits), judged, 50, 1),
        ("smallest change", lambda: engine.explain(stuck), judged, 20, 20),
    ):
        ours = seconds(work, repeats)
        label, met = f"{name}, {count:,} nodes", ours * 1e3 < goal_ms
        rows.append(Row(label, ours * 1e3, "ms", reference * 1e3, reference / ours, f"< {goal_ms} ms", met))
    return rows


def busy(nodes: list[Node]) -> Engine:
    engine = clusters.joined(nodes)
    wants = clusters.choices(200)
    engine.apply(*(AskSubmitted(Ask(f"ask-{i}", wants[i % 200])) for i in range(20_000)))
    engine.decide()
    return engine


def waking_nobody(count: int, waiting: int) -> list[Row]:
    """A label nobody reads changes while many asks of different shapes wait for other labels."""
    nodes = clusters.nodes(count)
    engine = busy(nodes)
    wanted = [Selector.all_of(Requirement.is_in("kind", f"k{i}")) for i in range(waiting)]
    engine.apply(*(AskSubmitted(Ask.of(f"wait-{i}", {"CPU": 1}, wanted[i])) for i in range(waiting)))
    all_tried = seconds(engine.decide)
    times = []
    for i in range(200):
        fact = NodeLabelled(nodes[i].id, Labels({"unrelated": str(i)}))
        start = time.perf_counter()
        engine.apply(fact)
        engine.decide()
        times.append(time.perf_counter() - start)
    ours = median(times)
    label = f"a change that concerns none of {waiting:,} waiting asks, {count:,} nodes"
    return [Row(label, ours * 1e6, "us", all_tried * 1e6, all_tried / ours, "< 1,000 us", ours < 1e-3)]


def memory(node_count: int, ask_count: int) -> list[Row]:
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    engine = clusters.joined(clusters.nodes(node_count))
    engine.apply(AskSubmitted(Ask.of("first", {"CPU": 1, "memory": "1Gi", "GPU": 1})))
    engine.decide()
    per_node = (tracemalloc.get_traced_memory()[0] - before) / node_count
    wants = clusters.choices(200)
    before = tracemalloc.get_traced_memory()[0]
    engine.apply(*(AskSubmitted(Ask(f"ask-{i}", wants[i % 200])) for i in range(ask_count)))
    engine.decide()
    gc.collect()
    per_ask = (tracemalloc.get_traced_memory()[0] - before) / ask_count
    tracemalloc.stop()
    return [
        Row(f"memory per node, {node_count:,} nodes", per_node / 1024, "KB", None, None, "< 4 KB", per_node < 4096),
        Row(f"memory per placed ask, {ask_count:,} asks", per_ask / 1024, "KB", None, None, "< 2 KB", per_ask < 2048),
    ]


def run(console: Console, only: Sequence[str] = ()) -> list[Row]:
    rows: list[Row] = []
    known: dict[int, float] = {}
    steps: list[tuple[str, Callable[[], list[Row]]]] = []

    def single(count: int, goals: tuple[float, float] | None) -> list[Row]:
        found, known[count] = single_asks(count, goals)
        return found

    for count in (1_000, 5_000, 10_000):
        goals = (30.0, 200.0) if count == 10_000 else (0.0, 0.0)
        steps.append((f"single asks, {count:,} nodes", partial(single, count, goals)))
    steps.append(("single asks, 100,000 nodes", lambda: single(100_000, None)))
    steps.append(("batch", lambda: batch(10_000, 50_000, 200)))
    steps.append(("near and apart", lambda: relative_to_other_work(5_000)))
    steps.append(("answers", lambda: answers(10_000)))
    steps.append(("waking nobody", lambda: waking_nobody(10_000, 10_000)))
    steps.append(("preempting", preempting.preempting))
    steps.append(("planning", planning.planning))
    steps.append(("memory", lambda: memory(10_000, 50_000) + memory(100_000, 50_000)[:1]))
    steps.append(("tasks on Ray, three drivers in turns", on_ray.throughput))
    steps.append(("changes on Ray", on_ray.changes))
    steps.append(("slots", slots.slots))
    steps.append(("together and apart on Ray", together.together))
    steps.append(("a controller of many nodes", many_nodes.many_nodes))
    steps.append(("explanations of pods", kube_desk.explanations))
    steps.append(("the service under load", service.load))
    steps.append(("the service beside hostile clients", service.beside_hostile_clients))
    steps.append(("the service of a large cluster", service.large))
    steps.append(("flow", flow.flow))
    steps.append(("openb", openb.openb))
    unknown = set(only) - {name for name, _ in steps}
    if unknown:
        sys.exit(f"there is no step {min(unknown)!r}; there are {', '.join(repr(name) for name, _ in steps)}")
    with console.status("measuring") as status:
        for name, step in steps:
            if only and name not in only:
                continue
            status.update(f"measuring: {name}")
            found = [replace(row, step=name) for row in step()]
            rows += found
            for row in found:
                console.print(f"{row.name}: {row.ours:,.4g} {row.unit}", style="dim", highlight=False)
            gc.collect()
    if only:
        return rows
    growth = known[100_000] / known[1_000]
    rows.append(
        Row(
            "cost of a known shape, 100,000 nodes over 1,000",
            known[100_000] * 1e6,
            "us",
            known[1_000] * 1e6,
            growth,
            "< 20x",
            growth < 20,
            step="growth",
        )
    )
    return rows


def show(console: Console, rows: Sequence[Row]) -> None:
    table = Table(title="stead (reference: the oracle, or plain Ray, doing the same work in this run)")
    for name in ("what", "ours", "reference", "ratio", "goal", "met"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for row in rows:
        reference = "" if row.reference is None else f"{row.reference:,.4g} {row.unit}"
        ratio = "" if row.ratio is None else f"{row.ratio:,.2f}x" if row.ratio < 10 else f"{row.ratio:,.0f}x"
        met = "" if row.met is None else ("yes" if row.met else "NO")
        name = f"{row.name}: {row.detail}" if row.detail else row.name
        table.add_row(name, f"{row.ours:,.4g} {row.unit}", reference, ratio, row.goal, met)
    console.print(table)


def main() -> None:
    console = Console() if sys.stdout.isatty() else Console(width=160)
    only = sys.argv[1:]
    rows = run(console, only)
    show(console, rows)
    path = HERE / "results.json"
    kept = [row for row in json.loads(path.read_text()) if row["step"] not in only] if only else []
    path.write_text(json.dumps([*kept, *map(asdict, rows)], indent=1) + "\n")
    console.print(f"written to {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
