"""The scheduler's metrics in Prometheus' text format, under kube-scheduler's names where it has them.

Rule: counting is cheap; text is made only when somebody reads it. Dashboards and alerts made for kube-scheduler read
the same names; names that begin with `stead_` have no counterpart there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from stead.engine.decisions import Decision, GroupPlaced, Placed, Waiting
from stead.kubernetes.api.binding import Outcome

if TYPE_CHECKING:
    from stead.kubernetes.scheduler import Scheduler

ATTEMPT_BOUNDS_S = tuple(0.001 * 2**n for n in range(15))
SLI_BOUNDS_S = tuple(0.01 * 2**n for n in range(20))
VICTIM_BOUNDS = tuple(float(2**n) for n in range(7))
"""Upper bounds of the buckets, as upstream has them."""

UNSUCCESSFUL = tuple(outcome.value for outcome in Outcome if outcome is not Outcome.BOUND)


class Histogram:
    """Counts by upper bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        total = 0
        comma = "," if labels else ""
        for bound, count in zip((*map(_number, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {total}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self.sum:.6f}"
        yield f"{name}_count{braces} {total}"


class Metrics:
    """What a scheduler counts since it started."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter({"scheduled": 0, "unschedulable": 0, "error": 0})
        self.not_bound_by_outcome: Counter[str] = Counter(dict.fromkeys(UNSUCCESSFUL, 0))
        self.attempt_s = {result: Histogram(ATTEMPT_BOUNDS_S) for result in ("scheduled", "unschedulable")}
        self.binding_s = Histogram(ATTEMPT_BOUNDS_S)
        self.waited_s = Histogram(SLI_BOUNDS_S)
        self.announcements_dropped = 0
        self.preemptions = 0
        self.victims = Histogram(VICTIM_BOUNDS)

    def decided(self, decisions: Iterable[Decision], seconds: float) -> None:
        """A step made these decisions; its time is shared among them."""
        placed = unschedulable = 0
        for decision in decisions:
            match decision:
                case Placed():
                    placed += 1
                case GroupPlaced(members=members):
                    placed += len(members)
                case Waiting(asks):
                    unschedulable += len(asks)
        each = seconds / max(placed + unschedulable, 1)
        for result, count in (("scheduled", placed), ("unschedulable", unschedulable)):
            self.attempts[result] += count
            if count:
                self.attempt_s[result].add(each, count)

    def refused(self) -> None:
        """A pod cannot be scheduled as it is written."""
        self.attempts["error"] += 1

    def bound(self, binding_s: float, waited_s: float) -> None:
        """A pod was bound, this long after the decision, and after it arrived."""
        self.binding_s.add(binding_s)
        self.waited_s.add(waited_s)

    def preempts(self, victims: int) -> None:
        """Room is made for a pod by evicting so many others."""
        self.preemptions += 1
        self.victims.add(victims)

    def not_bound(self, outcome: str) -> None:
        self.not_bound_by_outcome[outcome] += 1


def text(scheduler: Scheduler) -> str:
    """The metrics of a scheduler now."""
    return "\n".join((*_lines(scheduler), ""))


def _lines(scheduler: Scheduler) -> Iterator[str]:
    metrics, cluster = scheduler.metrics, scheduler.cluster
    yield from _head("scheduler_pending_pods", "gauge", "Pods that wait, by queue.")
    for queue, count in cluster.queues().items():
        yield f'scheduler_pending_pods{{queue="{queue}"}} {count}'
    yield from _head("scheduler_schedule_attempts_total", "counter", "Attempts to schedule pods, by result.")
    profile = next(iter(cluster.names))
    for result, count in metrics.attempts.items():
        yield f'scheduler_schedule_attempts_total{{profile="{profile}",result="{result}"}} {count}'
    name = "scheduler_scheduling_attempt_duration_seconds"
    yield from _head(name, "histogram", "Time of a decision for one pod.")
    for result, histogram in metrics.attempt_s.items():
        yield from histogram.lines(name, f'profile="{profile}",result="{result}"')
    name = "scheduler_pod_scheduling_sli_duration_seconds"
    yield from _head(name, "histogram", "Time from the arrival of a pod in the queue to its binding.")
    yield from metrics.waited_s.lines(name)
    name = "stead_binding_duration_seconds"
    yield from _head(name, "histogram", "Time from a decision to its binding.")
    yield from metrics.binding_s.lines(name)
    yield from _head("stead_bindings_failed_total", "counter", "Bindings without success, by outcome.")
    for outcome, count in sorted(metrics.not_bound_by_outcome.items()):
        yield f'stead_bindings_failed_total{{outcome="{outcome}"}} {count}'
    yield from _head("scheduler_preemption_attempts_total", "counter", "Pods for which others were evicted.")
    yield f"scheduler_preemption_attempts_total {metrics.preemptions}"
    yield from _head("scheduler_preemption_victims", "histogram", "Pods that were evicted for one pod.")
    yield from metrics.victims.lines("scheduler_preemption_victims")
    yield from _head("scheduler_scheduler_cache_size", "gauge", "Nodes, pods and pods that are being bound.")
    sizes = {"nodes": len(cluster.nodes), "pods": len(cluster.pods), "assumed_pods": len(cluster.binding)}
    for kind, count in sizes.items():
        yield f'scheduler_scheduler_cache_size{{type="{kind}"}} {count}'
    yield from _head("stead_bindings_queued", "gauge", "Bindings that wait to be sent.")
    yield f"stead_bindings_queued {scheduler.binder.queued}"
    yield from _head("stead_reports_total", "counter", "Conditions and events that were written.")
    yield f"stead_reports_total {scheduler.reporter.writes}"
    yield from _head("stead_reports_dropped_total", "counter", "Reports dropped because there were too many.")
    yield f'stead_reports_dropped_total{{kind="pending"}} {scheduler.reporter.failures_dropped}'
    dropped = scheduler.reporter.scheduled_dropped + metrics.announcements_dropped
    yield f'stead_reports_dropped_total{{kind="scheduled"}} {dropped}'
    yield from _head("stead_nodes_refused", "gauge", "Nodes that are not used, because a part of them does not parse.")
    yield f"stead_nodes_refused {len(scheduler.watches.nodes_refused)}"
    yield from _head("stead_watch_relists_total", "counter", "Complete lists after the first one, by resource.")
    for watched in scheduler.watches.all:
        yield f'stead_watch_relists_total{{path="{watched.path}"}} {watched.relists}'
    yield from _head("leader_election_master_status", "gauge", "1 if this process is the leader.")
    name = profile if scheduler.lease is None else scheduler.lease.name
    yield f'leader_election_master_status{{name="{name}"}} {int(scheduler.is_leader)}'


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def _number(bound: float) -> str:
    return f"{bound:g}"
