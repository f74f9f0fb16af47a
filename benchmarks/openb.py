"""The openb trace: how much of a real GPU cluster is in use when more work has come than it holds.

Rule: nothing is timed. Every way of placing sees the same nodes and the same pods in the same order, drawn by numpy
from the published list. The authors' sampler is not published, so their means are a reference to come near to; the
comparison that counts is one pod at a time against batches, by the same cost, in the same run.

`python -m benchmarks.openb` shows all of it; with seeds as arguments, only those.
"""

from __future__ import annotations

import csv
import io
import lzma
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks import Row
from stead import solver
from stead.engine.batch import fragmentation
from stead.engine.decisions import Placed
from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskSubmitted, NodeJoined
from stead.engine.fleet import Fleet
from stead.language.asks import Ask, Choice, PolicyName
from stead.language.labels import ANYWHERE, Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.resources import GPU, UNIT, Resources

TRACE = Path(__file__).resolve().parent / "openb_data"
WORKLOADS = ("default", "gpuspec33")
SEEDS = range(42, 52)
ARRIVALS = 1.3
"""Of all GPUs: work comes until it wants so much."""
DRAWN = 40_000
BATCH = 100

PAGE = Path(__file__).resolve().parent.parent / "docs" / "fragmentation.md"
BEGIN, END = "<!-- openb: written by benchmarks/openb.py -->", "<!-- /openb -->"

SIZES = ("no GPU", "a share", "one GPU", "more GPUs")


@dataclass(frozen=True, slots=True)
class Way:
    """A way of placing.

    The authors' BestFit looks at CPU and GPU only. flow-pack looks at all that asks name, so asks that are to be placed
    as theirs do not name their memory; then some nodes get more of it than they have. Their FGD says nothing of which
    of several nodes a pod without GPU takes if it strands nothing on any of them; `plain` is that, and without it
    stead's own cost, which then looks for a full node.
    """

    name: str
    policy: PolicyName
    batch: int
    memory: bool = True
    plain: bool = False
    published: tuple[float, float] | None = None
    """Means of ten seeds, of the two workloads."""
    alone: str = ""
    """The way that takes the same cost one at a time."""


BEST_FIT = Way("BestFit", PolicyName.FLOW_PACK, 1, memory=False, published=(93.08, 93.09))
WITH_MEMORY = Way("BestFit by memory too", PolicyName.FLOW_PACK, 1)
FGD = Way("FGD", PolicyName.FLOW_FGD, 1, plain=True, published=(95.39, 94.55))
OURS = Way("flow-fgd", PolicyName.FLOW_FGD, 1, published=(95.39, 94.55))
WAYS = (
    BEST_FIT,
    WITH_MEMORY,
    FGD,
    Way(f"FGD in batches of {BATCH}", PolicyName.FLOW_FGD, BATCH, plain=True, alone=FGD.name),
    OURS,
    Way(f"flow-fgd in batches of {BATCH}", PolicyName.FLOW_FGD, BATCH, alone=OURS.name),
)


@dataclass(slots=True)
class Outcome:
    """What became of the pods of one seed."""

    allocated: float
    """Per cent of all GPUs."""
    unplaced: Counter[str] = field(default_factory=Counter)
    """Pods by size."""
    missed: float = 0
    """GPUs that the unplaced pods wanted."""


def _read(name: str) -> list[dict[str, str]]:
    text = lzma.decompress((TRACE / f"openb_{name}.csv.xz").read_bytes()).decode()
    return list(csv.DictReader(io.StringIO(text)))


@cache
def nodes() -> list[Node]:
    return [
        Node(
            row["sn"],
            Resources.of({"CPU": f"{row['cpu_milli']}m", "memory": f"{row['memory_mib']}Mi", GPU: int(row["gpu"])}),
            Labels({"model": row["model"]}),
        )
        for row in _read("node_list_gpu_node")
    ]


@cache
def choices(workload: str, memory: bool) -> list[Choice]:
    """What each pod of the workload wants."""
    found = []
    for row in _read(f"pod_list_{workload}"):
        wants = {"CPU": f"{row['cpu_milli']}m", GPU: f"{int(row['num_gpu']) * int(row['gpu_milli'] or 0)}m"}
        if memory:
            wants["memory"] = f"{row['memory_mib']}Mi"
        models = sorted({model for model in row["gpu_spec"].split("|") if model})
        selector = Selector.all_of(Requirement.is_in("model", *models)) if models else ANYWHERE
        found.append(Choice(Resources.of(wants), selector))
    return found


def arrivals(workload: str, seed: int) -> list[int]:
    """The pods that come, in order, by their places in the list: drawn with replacement until they want enough."""
    wanted = np.array([choice.resources.get(GPU) for choice in choices(workload, True)])
    drawn = np.random.default_rng(seed).integers(0, len(wanted), DRAWN)
    enough = ARRIVALS * sum(node.capacity[GPU] for node in nodes())
    found: list[int] = drawn[: int(np.searchsorted(np.cumsum(wanted[drawn]), enough)) + 1].tolist()
    return found


def size_of(choice: Choice) -> str:
    gpus = choice.resources.get(GPU)
    return SIZES[0 if not gpus else 1 if gpus < UNIT else 2 if gpus == UNIT else 3]


def _all_alike(fleet: Fleet, resources: Sequence[str], rows: NDArray[np.intp]) -> NDArray[np.int64]:
    return np.zeros(len(rows), np.int64)


def run(workload: str, seed: int, way: Way) -> Outcome:
    """Place the pods of one seed. A pod that finds no place in its batch is dropped."""
    with patch.object(fragmentation, "_left", _all_alike) if way.plain else nullcontext():
        return _run(workload, seed, way)


def _run(workload: str, seed: int, way: Way) -> Outcome:
    engine = Engine(solver=solver.needed())
    engine.apply(*map(NodeJoined, nodes()))
    wants = choices(workload, way.memory)
    asks = [Ask(f"p{i}", (wants[pod],), policy=way.policy) for i, pod in enumerate(arrivals(workload, seed))]
    outcome, used = Outcome(0), 0
    for begin in range(0, len(asks), way.batch):
        batch = asks[begin : begin + way.batch]
        engine.apply(*map(AskSubmitted, batch))
        placed = {decision.ask for decision in engine.decide() if isinstance(decision, Placed)}
        for ask in batch:
            (choice,) = ask.choices
            if ask.id in placed:
                used += choice.resources.get(GPU)
            else:
                outcome.unplaced[size_of(choice)] += 1
                outcome.missed += choice.resources.get(GPU) / UNIT
                engine.apply(AskEnded(ask.id))
    outcome.allocated = 100 * used / sum(node.capacity[GPU] for node in nodes())
    return outcome


Outcomes = dict[tuple[str, str], list[Outcome]]
"""By workload and way, one for each seed."""


def outcomes(seeds: Sequence[int] = SEEDS) -> Outcomes:
    """All of it, on all processors: nothing is timed."""
    todo = [(workload, seed, way) for workload in WORKLOADS for way in WAYS for seed in seeds]
    found: Outcomes = {}
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for (workload, _, way), outcome in zip(todo, pool.map(run, *zip(*todo, strict=True)), strict=True):
            found.setdefault((workload, way.name), []).append(outcome)
    return found


def allocated(found: Sequence[Outcome]) -> float:
    return mean(outcome.allocated for outcome in found)


def unplaced(found: Sequence[Outcome]) -> float:
    return mean(outcome.unplaced.total() for outcome in found)


def rows(found: Outcomes) -> list[Row]:
    made = []
    for index, workload in enumerate(WORKLOADS):
        for way in WAYS:
            ours = found[workload, way.name]
            if way.published is not None:
                reached, theirs = allocated(ours), way.published[index]
                name = f"openb {workload}: GPUs in use, {way.name} one at a time (reference: published)"
                made.append(Row(name, reached, "%", theirs, None, "within 1.0 point", abs(reached - theirs) <= 1))
            if way.alone:
                alone = found[workload, way.alone]
                reached, theirs = allocated(ours), allocated(alone)
                name = f"openb {workload}: GPUs in use, {way.name} (reference: one at a time)"
                goal, met = (">= 1.0 point more", reached - theirs >= 1) if way.plain else ("", None)
                made.append(Row(name, reached, "%", theirs, None, goal, met))
                reached, theirs = unplaced(ours), unplaced(alone)
                name = f"openb {workload}: pods unplaced, {way.name} (reference: one at a time)"
                made.append(Row(name, reached, "pods", theirs, None, "no more", reached <= theirs))
    return made


def openb() -> list[Row]:
    found = outcomes()
    write_page(found)
    return rows(found)


HEADS = ("workload", "way", "GPUs in use %", "least", "most", "published", "pods unplaced", *SIZES, "GPUs they wanted")


def lines(found: Outcomes) -> Iterator[list[str]]:
    """The table, line by line."""
    for (workload, name), results in found.items():
        (way,) = [way for way in WAYS if way.name == name]
        in_use = [outcome.allocated for outcome in results]
        yield [
            workload,
            name,
            *(f"{number:.2f}" for number in (mean(in_use), min(in_use), max(in_use))),
            f"{way.published[WORKLOADS.index(workload)]:.2f}" if way.published else "",
            f"{unplaced(results):,.0f}",
            *(f"{mean(outcome.unplaced[size] for outcome in results):,.0f}" for size in SIZES),
            f"{mean(outcome.missed for outcome in results):,.0f}",
        ]


def write_page(found: Outcomes) -> None:
    """Put the table between its marks on the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    table = [HEADS, ["---"] * 2 + ["---:"] * (len(HEADS) - 2), *lines(found)]
    written = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    PAGE.write_text(f"{before}{BEGIN}\n\n{written}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> None:
    seeds = [int(seed) for seed in sys.argv[1:]]
    found = outcomes(seeds or SEEDS)
    if not seeds:
        write_page(found)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    table = Table(*HEADS, title=f"openb, means of {len(seeds or SEEDS)} seeds")
    for cells in lines(found):
        table.add_row(*cells)
    console.print(table)
    for row in rows(found):
        met = {None: "no goal", True: f"{row.goal}: met", False: f"{row.goal}: NOT met"}[row.met]
        console.print(f"{row.name}: {row.ours:,.2f} to {row.reference:,.2f} {row.unit}; {met}")


if __name__ == "__main__":
    main()
