"""The demo: five real Ray nodes on this machine, work with every kind of rule, and a report of where it ran.

Rule: it uses only what your own program would use (`local_cluster`, `stead.init`, options of Ray's decorators), so you
can copy every line. On a terminal it shows a progress bar and tables, in a pipe plain lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import stead
from stead.errors import Invalid
from stead.language.taints import Taint
from stead.operate.views import NodeView
from stead.ray.local.local_cluster import LocalCluster, NotStarted, local_cluster

NODES: tuple[dict[str, Any], ...] = (
    {"name": "head", "num_cpus": 0},
    {"name": "cpu-a", "num_cpus": 1, "labels": {"zone": "a"}},
    {"name": "cpu-b", "num_cpus": 1, "labels": {"zone": "b"}},
    {"name": "spot-b", "num_cpus": 1, "labels": {"zone": "b", "market": "spot"}},
    {
        "name": "gpu-a",
        "num_cpus": 1,
        "num_gpus": 1,
        "labels": {"zone": "a", "gpu_type": "A100"},
        "taints": {"gpu_node": "true"},
    },
)

START_S = 60.0
"""How long work may take to start before the demo counts it as pending."""

BUSY_S = 1.0
"""How long plain work runs: long enough for each piece to need a node of its own."""

LOOK_S = 0.5
"""How long the demo watches work that should stay pending."""


@dataclass
class Piece:
    """One piece of work of the demo: its rule, and its node or the reason why it is pending."""

    name: str
    rule: str
    ref: Any
    place: str = ""
    reason: str = ""
    refused: bool = False


@dataclass
class Stage:
    """What the steps share: the cluster, and the pieces so far."""

    cluster: LocalCluster
    task: Any
    actor: Any
    pieces: list[Piece] = field(default_factory=list)

    def node_id(self, name: str) -> str:
        return next(node.node_id for node in self.cluster.nodes if node.spec.name == name)

    def submit(self, name: str, rule: str, seconds: float = 0.0, **options: Any) -> Piece:
        piece = Piece(name, rule, self.task.options(**{"num_cpus": 1, **options}).remote(seconds))
        self.pieces.append(piece)
        return piece

    def settle(self, *pieces: Piece) -> None:
        """Wait until these pieces have run, and record where."""
        names = {node.node_id: str(node.spec.name) for node in self.cluster.nodes}
        ray.wait([piece.ref for piece in pieces], num_returns=len(pieces), timeout=START_S)
        for piece in pieces:
            if ray.wait([piece.ref], timeout=0)[0]:
                piece.place = names[stead.get(piece.ref)]

    def watch(self, *pieces: Piece) -> None:
        """Check that these pieces stay pending."""
        ray.wait([piece.ref for piece in pieces], timeout=LOOK_S)


def plain(stage: Stage) -> None:
    """plain work avoids the tainted GPU node"""
    stage.settle(
        *(
            stage.submit(f"plain-{number}", "none", seconds=BUSY_S, scheduling_strategy="SPREAD")
            for number in range(1, 5)
        )
    )


def tolerations(stage: Stage) -> None:
    """an actor tolerates the taint; a task that needs a GPU does not"""
    trainer = stage.actor.options(num_cpus=0, num_gpus=1, tolerations={"gpu_node": stead.Exists()}).remote()
    piece = Piece("trainer", "tolerates gpu_node", trainer.place.remote())
    stage.pieces.append(piece)
    stage.settle(piece)
    ray.kill(trainer)
    stage.watch(stage.submit("infer", "1 GPU, no toleration", num_cpus=0, num_gpus=1))


def affinity(stage: Stage) -> None:
    """node affinity, hard and soft"""
    hard = stead.node_affinity([stead.label_in("zone", ["b"]), stead.label_does_not_exist("market")])
    soft = stead.node_affinity(stead.label_in("market", ["spot"], is_soft=True))
    wish = stead.node_affinity(stead.label_in("gpu_type", ["H100"], is_soft=True))
    stage.settle(
        stage.submit("steady", "zone in [b] and not market", scheduling_strategy=hard),
        stage.submit("cheap", "prefers market in [spot]", scheduling_strategy=soft),
        stage.submit("dreamer", "prefers gpu_type in [H100]", scheduling_strategy=wish),
    )


def fallback(stage: Stage) -> None:
    """a label selector with a fallback"""
    stage.settle(
        stage.submit(
            "flexible",
            "gpu_type = H100, else zone = a",
            label_selector={"gpu_type": "H100"},
            fallback_strategy=[{"label_selector": {"zone": "a"}}],
        )
    )


def together(stage: Stage) -> None:
    """actors near and apart from another one, and two tasks in a placement group"""
    cache = stage.actor.options(num_cpus=0, label_selector={"zone": "b"}).remote()
    near = stead.actor_affinity(stead.affinity(cache))
    apart = stead.actor_affinity(stead.anti_affinity(cache))
    beside = stage.actor.options(num_cpus=0, scheduling_strategy=near).remote()
    spare = stage.actor.options(num_cpus=0, scheduling_strategy=apart).remote()
    actors = [
        Piece("cache", "zone = b", cache.place.remote()),
        Piece("reader", "near cache", beside.place.remote()),
        Piece("spare", "apart from cache", spare.place.remote()),
    ]
    stage.pieces += actors
    group = stead.placement_group([{"CPU": 1}] * 2, "STRICT_SPREAD", bundle_label_selector=[{"zone": "b"}] * 2)
    members = [
        stage.submit(
            f"member-{index + 1}",
            "in a group: zone = b, one node each",
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
        )
        for index in range(2)
    ]
    stage.settle(*actors, *members)
    stead.remove_placement_group(group)


def labels_change(stage: Stage) -> None:
    """a label set on a running node starts pending work"""
    piece = stage.submit("scratch", "disk = ssd, set on cpu-b later", label_selector={"disk": "ssd"})
    stage.watch(piece)
    stead.label(stage.node_id("cpu-b"), {"disk": "ssd"})
    stage.settle(piece)


def taints_change(stage: Stage) -> None:
    """team blue reserves cpu-a for two hours: new work avoids it"""
    stead.taint(stage.node_id("cpu-a"), {"team": "blue"}, owner="blue", for_s=7200)
    stage.settle(
        stage.submit("later-1", "none, after the taint"),
        stage.submit(
            "blue-1",
            "zone = a, tolerates team",
            label_selector={"zone": "a"},
            tolerations={"team": stead.In("blue")},
        ),
    )
    stage.watch(stage.submit("stuck", "zone = a, after the taint", label_selector={"zone": "a"}))


def deadline(stage: Stage) -> None:
    """a deadline ends work that would stay pending"""
    piece = stage.submit("hurried", "gpu_type = H100, deadline 2 s", label_selector={"gpu_type": "H100"}, deadline_s=2)
    try:
        stead.get(piece.ref, timeout=START_S)
    except stead.Unplaced as error:
        piece.refused, piece.reason = True, error.explanation
    except ray.exceptions.GetTimeoutError:
        pass  # it is shown as pending


def reasons(stage: Stage) -> None:
    """explaining why the rest is pending"""
    for piece in stage.pieces:
        if not piece.place and not piece.refused:
            piece.reason = str(stead.why(piece.ref))


ACTS: tuple[Callable[[Stage], None], ...] = (
    plain,
    tolerations,
    affinity,
    fallback,
    together,
    labels_change,
    taints_change,
    deadline,
    reasons,
)


def show(console: Console | None = None) -> list[Piece]:
    """Run the demo and print the result. Returns the pieces."""
    console = console or Console(highlight=False)
    began = time.monotonic()
    try:
        with _progress(console, len(ACTS) + 2) as tell:
            tell(f"starting {len(NODES)} Ray nodes on this machine")
            with local_cluster(NODES) as cluster:
                tell("connecting, and starting the controller")
                stead.init(cluster.address, namespace="demo", log_to_driver=False, logging_level="error")
                stage = Stage(cluster, *_work())
                for act in ACTS:
                    tell(act.__doc__ or "")
                    act(stage)
                views = stead.nodes()
    except NotStarted as error:
        raise Invalid(str(error)) from None
    for table in (_nodes(views), _placed(stage.pieces), _waiting(stage.pieces)):
        console.print()
        _print(console, table)
    console.print(f"\n{time.monotonic() - began:.0f} s; everything has been stopped.")
    return stage.pieces


def _work() -> tuple[Any, Any]:
    """A task and an actor that return their node. Defined in a function, so that importing this module needs no Ray."""

    def place(seconds: float = 0.0) -> str:
        time.sleep(seconds)
        return str(ray.get_runtime_context().get_node_id())

    class Trainer:
        def place(self) -> str:
            return str(ray.get_runtime_context().get_node_id())

    # Ray serialises nested functions by value, so the workers import nothing.
    return ray.remote(place), ray.remote(Trainer)


@contextmanager
def _progress(console: Console, steps: int) -> Iterator[Callable[[str], None]]:
    """Shows each step: a bar on a terminal, a line with the elapsed seconds in a pipe."""
    if not console.is_terminal:
        began = time.monotonic()
        yield lambda text: console.print(f"{time.monotonic() - began:4.0f} s  {text}", soft_wrap=True, markup=False)
        return
    columns = (SpinnerColumn(), BarColumn(24), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=steps, completed=-1)

        def tell(text: str) -> None:
            progress.update(bar, advance=1, description=text)

        yield tell


Rows = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def _nodes(views: list[NodeView]) -> Rows:
    order = [node["name"] for node in NODES]
    rows: list[tuple[str, ...]] = [
        (
            view.name,
            ", ".join(f"{key}={value}" for key, value in sorted(view.labels.items()) if view.sources[key] != "stead"),
            ", ".join(f"{taint}{_owner(view, taint)}" for taint in view.taints),
        )
        for view in sorted(views, key=lambda view: order.index(view.name))
    ]
    return "The nodes at the end", ("node", "labels", "taints"), rows


def _owner(view: NodeView, taint: Taint) -> str:
    owners = [end.owner for end in view.ends if (end.key, end.effect) == (taint.key, taint.effect) and end.owner]
    return "".join(f" (of {owner}, for two hours)" for owner in owners)


def _placed(pieces: list[Piece]) -> Rows:
    rows: list[tuple[str, ...]] = [(piece.name, piece.rule, piece.place) for piece in pieces if piece.place]
    return "Where it ran", ("work", "rule", "node"), rows


def _waiting(pieces: list[Piece]) -> Rows:
    rows: list[tuple[str, ...]] = [
        (piece.name, piece.rule, ("ended at its deadline: " if piece.refused else "") + " ".join(piece.reason.split()))
        for piece in pieces
        if not piece.place
    ]
    return "What is pending, why, and what would change that", ("work", "rule", "why"), rows


def _print(console: Console, table: Rows) -> None:
    title, head, rows = table
    if console.is_terminal:
        drawn = Table(*head, title=title, title_justify="left")
        for row in rows:
            drawn.add_row(*map(Text, row))
        console.print(drawn)
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    console.print(f"{title}:")
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.print(f"  {line}".rstrip(), soft_wrap=True, markup=False)
