"""Prometheus metrics of the cluster: gauges of the current state, counters and a histogram of decisions.

Rule: few series, and their labels are bounded: by resource and by reason, never by the id of work or node. The counts
come from the controller (`Tally`); a desk without one omits them. Expensive numbers are computed once for each
snapshot, and never by two requests at the same time.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import get_args

from stead.controller import DECISION_BOUNDS_S, NO_REASON, Tally
from stead.engine.reasons import Reason
from stead.errors import Unready
from stead.operate.desk import Desk, Unanswered
from stead.operate.pending import Pending
from stead.operate.plans import KINDS_MAX
from stead.operate.scale import ScaleView
from stead.operate.snapshot import Snapshot
from stead.operate.usage import stranded
from stead.operate.views import Summary
from stead.text import printable

PENDING_BOUNDS_S = (60, 300, 600, 1800, 3600, 21_600, 86_400)
CODES = (*(kind.code for kind in get_args(Reason)), "deadline-passed", "node-unknown", NO_REASON)
SILENT = (Unanswered, Unready, ConnectionError, TimeoutError)

COSTLY_S = 0.05
PAUSE = 10
"""After a computation that took longer than `COSTLY_S`, the next one waits this many times as long."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What must look at all work: pending work by age and by reason, and stranded resources."""

    longer_than: Mapping[int, int]
    by_reason: Mapping[str, int]
    oldest_s: float
    stranded: Mapping[str, float]


def standing_of(snapshot: Snapshot) -> Standing:
    pending = Pending(snapshot)
    ages = {seconds: pending.longer_than(seconds) for seconds in PENDING_BOUNDS_S}
    return Standing(ages, pending.by_reason, pending.oldest_s, stranded(snapshot))


class Metrics:
    """The metrics of a desk. If the cluster does not answer, they only say that."""

    def __init__(self, desk: Desk) -> None:
        self._desk, self._looking = desk, threading.Lock()
        self._seen: weakref.ref[Snapshot] | None = None
        self._found: Standing | None = None
        self._again_at = 0.0

    def text(self) -> str:
        try:
            lines = [*_answers(True), *_gauges(self._desk.summary())]
            snapshot = getattr(self._desk, "snapshot", None)
            if snapshot is not None:
                lines += _of_pending(self._standing(snapshot()))
            lines += _of_scale(self._desk.scale())
            tally = getattr(self._desk, "tally", None)
            if tally is not None:
                lines += _counts(tally)
        except SILENT:
            lines = [*_answers(False)]
        return "\n".join([*lines, ""])

    def _standing(self, snapshot: Snapshot) -> Standing:
        """Of this snapshot, or of an earlier one if computing it would cost too much now."""
        found = self._found
        if not self._looking.acquire(blocking=found is None) and found is not None:
            return found
        try:
            is_old = (self._seen is None or self._seen() is not snapshot) and time.monotonic() >= self._again_at
            if self._found is None or is_old:
                began = time.thread_time()
                self._seen, self._found = weakref.ref(snapshot), standing_of(snapshot)
                took = time.thread_time() - began
                self._again_at = time.monotonic() + (PAUSE * took if took > COSTLY_S else 0.0)
            return self._found
        finally:
            self._looking.release()


def _answers(is_so: bool) -> Iterator[str]:
    text = "Whether the controller of the cluster answers: 1 or 0."
    yield from _family("stead_cluster_answers", "gauge", text, {"": is_so})


def _gauges(summary: Summary) -> Iterator[str]:
    yield from _family("stead_nodes", "gauge", "Live nodes.", {"": summary.nodes})
    yield from _family("stead_nodes_tainted", "gauge", "Nodes with a taint.", {"": summary.tainted})
    yield from _family("stead_nodes_draining", "gauge", "Nodes that take no new work.", {"": summary.draining})
    states = {"running": summary.running, "waiting": summary.waiting}
    yield from _family("stead_work", "gauge", "Pieces of work.", _by("state", states))
    groups = {"placed": summary.groups - summary.groups_waiting, "waiting": summary.groups_waiting}
    yield from _family("stead_groups", "gauge", "Groups of work.", _by("state", groups))
    yield from _family("stead_resource_total", "gauge", "Total of all nodes.", _by("resource", summary.total))
    yield from _family("stead_resource_available", "gauge", "Free on all nodes.", _by("resource", summary.available))


def _of_pending(found: Standing) -> Iterator[str]:
    text = "Free on nodes where no work that requests it could use it now."
    yield from _family("stead_resource_stranded", "gauge", text, _by("resource", found.stranded))
    text = "How long the oldest waiting work has been pending."
    yield from _family("stead_waiting_oldest_seconds", "gauge", text, {"": found.oldest_s})
    text = "Pieces of work that have been pending for longer than this many seconds."
    yield from _family("stead_pending_longer_than", "gauge", text, _by("seconds", found.longer_than))
    text = "Pieces of pending work by the reasons why nodes refuse them; a piece counts once for each of its reasons."
    yield from _family("stead_pending_by_reason", "gauge", text, _by("reason", found.by_reason))


def _of_scale(view: ScaleView | None) -> Iterator[str]:
    """Without an autoscaler there are none of these."""
    if view is None:
        return
    text = "Whether the autoscaler has reported lately: 1 or 0."
    yield from _family("stead_autoscaler_reports", "gauge", text, {"": not view.is_silent})
    kinds = view.kinds[:KINDS_MAX]
    for name, text, values in (
        ("stead_scale_nodes", "Nodes by kind.", {each.name: each.running for each in kinds}),
        ("stead_scale_coming", "Launches in flight by kind.", {each.name: each.coming for each in kinds}),
        (
            "stead_scale_rests",
            "Whether the kind rests, because launches of it failed: 1 or 0.",
            {each.name: each.rests_until is not None for each in kinds},
        ),
    ):
        yield from _family(name, "gauge", text, _by("kind", values))
    text = "The price of all launched nodes, in one hour."
    yield from _family("stead_scale_price_per_hour", "gauge", text, {"": view.price})
    tallied = view.tallied
    for name, text, count in (
        ("stead_scale_launches_total", "Launches whose node joined.", tallied.launched),
        ("stead_scale_launch_failures_total", "Launches that were given up.", tallied.failed),
        ("stead_scale_retirements_total", "Nodes that were retired.", tallied.retired),
        ("stead_scale_losses_total", "Launched nodes that are gone, but were not retired.", tallied.lost),
    ):
        yield from _family(name, "counter", text, {"": count})


def _counts(tally: Tally) -> Iterator[str]:
    """Since the controller started; Prometheus treats a lower count as a restart."""
    for name, text, count in (
        ("stead_placements_total", "Pieces of work that were placed.", tally.placed),
        ("stead_moves_total", "Pieces of running work that were moved.", tally.moved),
        ("stead_evictions_total", "Pieces of work that were evicted.", tally.evicted),
    ):
        yield from _family(name, "counter", text, {"": count})
    text = "Decisions that work stays pending or is refused, by reason; a decision counts once for each of its reasons."
    refusals = {**dict.fromkeys(CODES, 0), **tally.refusals}
    yield from _family("stead_refusals_total", "counter", text, _by("reason", refusals))
    name, text = "stead_decision_seconds", "How long each decision step of the engine took."
    bounds = [*map(_number, DECISION_BOUNDS_S), "+Inf"]
    buckets = dict(zip(bounds, accumulate(tally.took), strict=True))
    yield from _family(name, "histogram", text, {f"_bucket{each}": count for each, count in _by("le", buckets).items()})
    yield f"{name}_sum {_number(tally.seconds)}"
    yield f"{name}_count {sum(tally.took)}"


def _family(name: str, kind: str, text: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values.items():
        yield f"{name}{labels} {_number(value)}"


def _by(label: str, values: Mapping[str, float] | Mapping[int, float]) -> dict[str, float]:
    return {f'{{{label}="{_escaped(str(key))}"}}': value for key, value in values.items()}


def _number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


def _escaped(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
