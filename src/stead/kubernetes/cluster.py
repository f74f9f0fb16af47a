"""Kubernetes as a `Cluster`: objects of the API server become facts, decisions become API calls.

Rule: it decides nothing and does no I/O. The watches call `pods_changed`, `nodes_changed` and `bound`; the commands go
to a `Writes`. It keeps what the engine cannot know: the last version of every pod, because a fact depends on what was
reported before; which pods a node has, because a pod can name a node that does not exist (yet), and the engine ignores
such a pod until the node joins; which pods are being bound, because their changes must wait for the outcome; and the
pods of gangs (`gang_members`).
Kubernetes' own controller evicts pods from tainted nodes, so `evict` does nothing.
"""

from __future__ import annotations

import time
from calendar import timegm
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from stead.engine.decisions import (
    Decision,
    Evicted,
    GroupPlaced,
    GroupReleased,
    NominationEnded,
    Placed,
    Preempted,
    Refused,
    Waiting,
)
from stead.engine.facts import (
    AskChanged,
    AskEnded,
    AskEnding,
    AskLost,
    AskNominated,
    AskRunning,
    AskSubmitted,
    BudgetChanged,
    BudgetEnded,
    EvictionFailed,
    Fact,
    GroupChanged,
    NodeJoined,
    NodeLeft,
)
from stead.kubernetes.api.binding import BindResult, Outcome
from stead.kubernetes.api_objects import Problem
from stead.kubernetes.gang_members import GangMembers
from stead.kubernetes.gangs import GangKind, GangSize, Membership, SizeKey
from stead.kubernetes.storage import Limits, Storage
from stead.kubernetes.templates import Pod
from stead.language.asks import Ask, GroupId
from stead.language.budgets import Budget
from stead.language.nodes import Node, NodeId

SUCCEEDED = "Succeeded"
FINISHED = (SUCCEEDED, "Failed")
"""Phases of pods that use nothing any more."""

PodKey = str
"""``namespace/name``, which is also the id of the pod's ask."""


class Writes(Protocol):
    """What the cluster asks others to do. Each call returns at once."""

    def bind(self, pod: Pod, node: NodeId) -> None:
        """Bind the pod; the result comes to `KubeCluster.bound`."""

    def preempt(self, pod: Pod, node: NodeId, victims: Sequence[Pod]) -> None:
        """Nominate the pod for the node, and delete the victims; what fails comes to `KubeCluster.not_evicted`."""

    def end_nomination(self, pod: Pod) -> None:
        """The pod does not wait for a node any more."""

    def report_pending(self, pods: Sequence[Pod], gang: GroupId | None = None) -> None:
        """No node fits these equal pods now, or these pods of a gang: tell their owners why."""

    def report_problem(self, pod: Pod, problem: Problem) -> None:
        """The pod cannot be scheduled, for this reason."""

    def report_bound(self, pod: Pod, node: NodeId, seconds: float, waited_s: float) -> None:
        """The pod is bound, `seconds` after the decision, and `waited_s` after it arrived."""

    def forget(self, pod: Pod) -> None:
        """The pod is gone: nothing more needs to be reported about it."""

    def look_again(self, pod: Pod) -> None:
        """Read the pod from the API server and call `KubeCluster.read_again`."""

    def try_later(self, pod: Pod, message: str) -> None:
        """Call `KubeCluster.released` for the pod after a while. `message` says why its binding failed."""


class Reported(NamedTuple):
    """What the engine was told about a pod: pending (no node), or placed on a node."""

    pod: Pod
    node: NodeId | None


class KubeCluster:
    """The facts of one Kubernetes cluster. Pods of the schedulers `names` are placed, all others only counted."""

    def __init__(self, writes: Writes, names: Collection[str]) -> None:
        self.names = names
        self.writes = writes
        self.pods: dict[PodKey, Pod] = {}
        """The last version of every pod that is not finished."""
        self.nodes: dict[NodeId, Node] = {}
        self._reported: dict[PodKey, Reported] = {}
        self._pods_of: dict[NodeId, set[PodKey]] = {}
        self._binding: dict[PodKey, str] = {}  # with the uid of the pod, until the watch shows its node
        self._pending: set[PodKey] = set()  # reported, without a node
        self._arrived: dict[PodKey, float] = {}  # when a pod was first reported without a node, until it is bound
        self._gated: set[PodKey] = set()
        self._unschedulable: set[PodKey] = set()
        self._refused: dict[PodKey, Problem | None] = {}  # pods with a problem that was reported
        self._budgets: dict[str, Budget] = {}
        self._gangs = GangMembers()
        self.storage = Storage()
        """Claims, volumes and classes, and the facts about claims."""
        self._facts: list[Fact] = []
        self._nominations: list[Fact] = []  # they come last: pods of gangs are submitted with their gangs
        self._now = 0.0

    # -- what the watches report

    def nodes_changed(self, changed: Iterable[Node]) -> None:
        """Nodes were added or changed."""
        for node in map(self.storage.with_limits, changed):
            if self.nodes.get(node.id) is node:
                continue
            is_new = node.id not in self.nodes
            self.nodes[node.id] = node
            self._facts.append(NodeJoined(node))
            if is_new:
                for key in sorted(self._pods_of.get(node.id, ())):
                    self._report(self.pods[key])

    def nodes_deleted(self, deleted: Iterable[NodeId]) -> None:
        for id in deleted:
            if self.nodes.pop(id, None) is None:
                continue
            # Pods of a deleted node are not placed again: Kubernetes deletes them.
            for key in sorted(self._pods_of.get(id, ())):
                self._forget(key)
            self._facts.append(NodeLeft(id))

    def all_nodes(self, listed: Sequence[Node]) -> None:
        """These are all nodes."""
        current = {node.id for node in listed}
        self.nodes_deleted([id for id in self.nodes if id not in current])
        self.nodes_changed(listed)

    def pods_changed(self, changed: Iterable[Pod]) -> None:
        """Pods were added or changed."""
        for pod in changed:
            known = self.pods.get(pod.key)
            if known is not None and known.uid != pod.uid:
                self.pods_deleted([pod.key])
            if pod.phase in FINISHED:
                self.pods_finished([pod])
                continue
            self.pods[pod.key] = pod
            if pod.claims[1]:
                self.storage.expect(pod.claims[1], pod.key, pod.uid)
            if pod.is_gated and pod.scheduler_name in self.names:
                self._gated.add(pod.key)
            elif self._gated:
                self._gated.discard(pod.key)
            if pod.node_name:
                self._pods_of.setdefault(pod.node_name, set()).add(pod.key)
            self._report(pod)

    def pods_finished(self, finished: Iterable[Pod]) -> None:
        """Pods ended, or were deleted before that; these are their last versions."""
        for pod in finished:
            if pod.phase == SUCCEEDED and not pod.is_deleting:
                self._gangs.leave(pod.key, has_succeeded=True)
            self.pods_deleted([pod.key])

    def pods_deleted(self, deleted: Iterable[PodKey]) -> None:
        for key in deleted:
            pod = self.pods.pop(key, None)
            if pod is None:
                continue
            self._forget(key)
            if pod.claims[0]:
                self.storage.pod_gone(pod.claims[0], pod.uid)
            self._binding.pop(key, None)
            self._arrived.pop(key, None)
            self._gated.discard(key)
            self._refused.pop(key, None)
            self._gangs.forget(key)
            self.writes.forget(pod)
            if pod.node_name:
                here = self._pods_of[pod.node_name]
                here.discard(key)
                if not here:
                    del self._pods_of[pod.node_name]

    def all_pods(self, listed: Sequence[Pod]) -> None:
        """These are all pods."""
        current = {pod.key for pod in listed}
        self.pods_deleted([key for key in self.pods if key not in current])
        self.pods_changed(listed)

    def bound(self, result: BindResult) -> None:
        """A binding has its outcome. Where it is not certain, the API server's word counts."""
        key = f"{result.namespace}/{result.name}"
        pod = self.pods.get(key)
        if pod is None or pod.uid != result.uid:
            return
        if result.outcome is Outcome.BOUND:
            now = time.monotonic()
            self.writes.report_bound(pod, result.node, result.seconds, now - self._arrived.pop(key, now))
            return
        self._binding.pop(key, None)
        if pod.node_name:
            return  # the watch was faster: somebody assigned it
        # Until the answer, its place stays reserved.
        if result.outcome is Outcome.LOST or result.outcome is Outcome.AMBIGUOUS:
            self.writes.look_again(pod)
        else:  # also if it was fenced: the fence opens again if the lease is renewed at the last moment
            self.writes.try_later(pod, result.message if result.outcome is Outcome.FAILED else "")

    def read_again(self, pod: Pod, found: Pod | None) -> None:
        """A pod was read from the API server; None if it does not exist. The watch may have shown something newer: then
        the answer is dropped."""
        current = self.pods.get(pod.key)
        if current is None or current.uid != pod.uid or current.node_name:
            return
        if found is None:
            self.pods_deleted([pod.key])
        elif found.uid == pod.uid:
            self.pods_changed([found])
            self.released(found)

    def released(self, pod: Pod) -> None:
        """A pod whose binding did not succeed may be placed again, unless it has a node by now."""
        current = self.pods.get(pod.key)
        if current is None or current.uid != pod.uid or current.node_name or pod.key in self._binding:
            return
        if pod.key in self._reported:
            self._facts.append(AskLost(pod.key))
            self._report(current)

    def not_evicted(self, pod: Pod, is_final: bool) -> None:
        """A pod was not deleted for another one."""
        current = self.pods.get(pod.key)
        if current is not None and current.uid == pod.uid and not current.is_deleting:
            self._facts.append(EvictionFailed(pod.key, is_final))

    def not_bound_here(self, pod: Pod) -> None:
        """A pod that was placed cannot get its claims on that node, as is clear before anything was written."""
        self._binding.pop(pod.key, None)
        self.released(pod)

    # -- limits of volumes

    def limits_changed(self, node: NodeId, limits: Limits) -> None:
        """A node may have so many volumes of each driver; () if there are no limits."""
        known = self.nodes.get(node)
        read = None if known is None else self.storage.as_read(known)
        self.storage.limits_changed(node, limits)
        if read is not None:
            self.nodes_changed([read])

    def all_limits(self, listed: Iterable[tuple[NodeId, Limits]]) -> None:
        """These are all limits."""
        current = dict(listed)
        for node in [node for node in self.storage.limited_nodes if node not in current]:
            self.limits_changed(node, ())
        for node, limits in current.items():
            self.limits_changed(node, limits)

    # -- budgets

    def budget_changed(self, budget: Budget) -> None:
        """A PodDisruptionBudget was added or changed."""
        if self._budgets.get(budget.id) != budget:
            self._budgets[budget.id] = budget
            self._facts.append(BudgetChanged(budget))

    def budget_deleted(self, id: str) -> None:
        if self._budgets.pop(id, None) is not None:
            self._facts.append(BudgetEnded(id))

    def all_budgets(self, listed: Sequence[Budget]) -> None:
        """These are all budgets."""
        current = {budget.id for budget in listed}
        for id in [id for id in self._budgets if id not in current]:
            self.budget_deleted(id)
        for budget in listed:
            self.budget_changed(budget)

    # -- sizes of gangs

    def gang_sizes_changed(self, found: Mapping[SizeKey, GangSize]) -> None:
        """Objects that say how large gangs are were added or changed."""
        for key in self._gangs.sizes_changed(found):
            if key in self.pods:
                self._report(self.pods[key])

    def gang_sizes_ended(self, keys: Iterable[SizeKey]) -> None:
        self._gangs.sizes_ended(keys)

    def all_gang_sizes(self, kind: GangKind, listed: Mapping[SizeKey, GangSize]) -> None:
        """These are all sizes of one kind."""
        self.gang_sizes_ended([key for key in self._gangs.sizes_known(kind) if key not in listed])
        self.gang_sizes_changed(listed)

    def start_over(self) -> None:
        """The next facts describe the whole cluster, for a new engine."""
        self._gangs.start_over()
        self._reported.clear()
        self._binding.clear()
        self._pending.clear()
        self._unschedulable.clear()
        self._refused.clear()
        self._nominations.clear()
        self._facts = [NodeJoined(node) for node in self.nodes.values()]
        self._facts += [BudgetChanged(budget) for budget in self._budgets.values()]
        self.storage.start_over()
        for pod in self.pods.values():
            self._report(pod)

    # -- how a pod is reported

    def _report(self, pod: Pod) -> None:
        """Tell the engine what changed about a pod."""
        if self._has_left_its_gang(pod):
            self._forget(pod.key)
            self._facts += self._gangs.facts()  # before what is now a fact about the pod alone
        before = self._reported.get(pod.key)
        problem = self._refused.pop(pod.key, None) if self._refused else None
        if pod.node_name:
            self._report_placed(pod, before)
        elif not self._is_ours(pod):
            self._forget(pod.key)
        elif pod.ask is None or (lacking := self._gangs.problem_of(pod.key, pod.gang)) is not None:
            self._forget(pod.key)
            found = pod.problem if pod.ask is None else lacking
            self._refused[pod.key] = found
            if found is not None and found != problem:
                self.writes.report_problem(pod, found)
        elif pod.key in self._binding:
            return  # a change of a pod that is being bound counts only if the binding fails
        elif before is None or before.node is not None:
            if before is not None:
                self._forget(pod.key)
            self._reported[pod.key] = Reported(pod, None)
            self._pending.add(pod.key)
            self._arrived.setdefault(pod.key, time.monotonic())
            self._submit(pod.ask, pod.gang)
            if pod.nominated:  # since before this process began to schedule
                self._nominations.append(AskNominated(pod.key, pod.nominated))
        elif before.pod.ask != pod.ask:
            self._reported[pod.key] = Reported(pod, None)
            if pod.gang is None:
                self._facts.append(AskEnded(pod.key))
            self._submit(pod.ask, pod.gang)

    def _submit(self, ask: Ask, gang: Membership | None) -> None:
        """A pod is pending. One of a gang is submitted with the gang."""
        if gang is None:
            self._facts.append(AskSubmitted(ask))
        else:
            self._join(ask, gang)

    def _join(self, ask: Ask, gang: Membership) -> None:
        if self._gangs.has_just_left(ask.id):
            self._facts += self._gangs.facts()  # the engine must know this before the pod is a member again
        self._gangs.join(ask, gang)

    def _has_left_its_gang(self, pod: Pod) -> bool:
        gang = self._gangs.gang_of(pod.key)
        return gang is not None and (pod.gang is None or pod.gang.gang != gang)

    def _report_placed(self, pod: Pod, before: Reported | None) -> None:
        node = pod.node_name
        self._binding.pop(pod.key, None)
        if node not in self.nodes:
            self._forget(pod.key)
            return
        assert pod.ask is not None, "a pod with a node is read leniently"
        self._reported[pod.key] = Reported(pod, node)
        if before is None or before.node != node:
            self._unschedulable.discard(pod.key)
            self._pending.discard(pod.key)
            self.writes.forget(pod)
            self._facts.append(AskRunning(pod.ask, node, _started(pod)))
        else:
            if before.pod.ask != pod.ask:
                self._facts.append(AskChanged(pod.ask))
            if before.pod.start_time != pod.start_time:
                self._facts.append(AskRunning(pod.ask, node, _started(pod)))
        if pod.gang is not None and pod.scheduler_name in self.names and self._gangs.has_size(pod.gang):
            self._join(pod.ask, pod.gang)
        if pod.is_deleting and not (before is not None and before.pod.is_deleting):
            self._facts.append(AskEnding(pod.key))

    def _is_ours(self, pod: Pod) -> bool:
        return pod.scheduler_name in self.names and not pod.is_deleting and not pod.is_gated

    def _forget(self, key: PodKey) -> None:
        self._gangs.leave(key)
        reported = self._reported.pop(key, None)
        if reported is not None:
            self._pending.discard(key)
            self._unschedulable.discard(key)
            self.writes.forget(reported.pod)
            self._facts.append(AskEnded(key))

    # -- the `Cluster` protocol

    def now(self) -> float:
        self._now = max(self._now, time.time())
        return self._now

    def facts(self) -> Iterable[Fact]:
        facts = [*self.storage.facts(), *self._facts, *self._gangs.facts(), *self._nominations]
        self._facts, self._nominations = [], []
        return facts

    @property
    def has_facts(self) -> bool:
        return bool(self._facts) or self._gangs.has_facts or self.storage.has_facts

    def bind(self, placed: Placed | GroupPlaced) -> None:
        pairs = ((placed.ask, placed.node),) if isinstance(placed, Placed) else placed.members
        for key, node in pairs:
            pod = self.pods.get(key)
            if pod is not None and not pod.node_name:
                self._binding[key] = pod.uid
                self._unschedulable.discard(key)
                self.writes.bind(pod, node)

    def evict(self, evicted: Evicted) -> None:
        """Kubernetes' own taint eviction controller does this."""

    def preempt(self, preempted: Preempted) -> None:
        pod = self.pods.get(preempted.ask)
        victims = [self.pods[key] for key in preempted.victims if key in self.pods]
        if pod is not None:
            self.writes.preempt(pod, preempted.node, victims)

    def end_nomination(self, ended: NominationEnded) -> None:
        pod = self.pods.get(ended.ask)
        if pod is not None:
            self.writes.end_nomination(pod)

    def release(self, released: GroupReleased) -> None:
        """Pods whose binding failed give up their places at once. A bound pod stays: it could only be deleted."""
        for key in released.members:
            if key in self.pods:
                self.released(self.pods[key])

    def refuse(self, refused: Refused) -> None:
        """Pods have no deadline, and name nodes only by labels and fields, so none is refused."""

    def tell(self, happened: Sequence[Fact | Decision]) -> None:
        said: set[GroupId] = set()
        for each in happened:
            if isinstance(each, Waiting):
                self._tell_waiting([self.pods[key] for key in each.asks if key in self.pods])
                for gang in each.asks:
                    self._tell_waiting(self._pending_in(gang), gang)
                    said.add(gang)
        for each in happened:  # the engine does not repeat a reason for pods that join later
            if isinstance(each, GroupChanged) and each.group.id not in said:
                left = self._pending_in(each.group.id)
                if any(pod.key not in self._unschedulable for pod in left):
                    self._tell_waiting(left, each.group.id)

    def _pending_in(self, gang: GroupId) -> list[Pod]:
        """The pods of a gang that have no place."""
        members = self._gangs.members(gang)
        return [self.pods[key] for key in members if key in self._pending and key not in self._binding]

    def _tell_waiting(self, pods: Sequence[Pod], gang: GroupId | None = None) -> None:
        if pods:
            self._unschedulable.update(pod.key for pod in pods)
            self.writes.report_pending(pods, gang)

    def problem_of(self, key: PodKey) -> Problem | None:
        """Why a pod without a node is not submitted, if it has a problem."""
        return self._refused.get(key)

    # -- numbers

    @property
    def binding(self) -> Mapping[PodKey, str]:
        """Pods whose binding has no outcome yet."""
        return self._binding

    def queues(self) -> dict[str, int]:
        """How many pods of these schedulers wait: to be tried, for a change (of the cluster, or of a pod that cannot be
        scheduled as it is), or for their gates."""
        active = len(self._pending) - len(self._binding) - len(self._unschedulable)
        waiting = len(self._unschedulable) + len(self._refused)
        return {"active": max(active, 0), "unschedulable": waiting, "gated": len(self._gated)}


def _started(pod: Pod) -> float | None:
    """When the pod started; None if that is not known. The API server writes 2026-05-04T12:30:00Z."""
    if not pod.start_time:
        return None
    try:
        return float(timegm(time.strptime(pod.start_time, "%Y-%m-%dT%H:%M:%SZ")))
    except ValueError:
        return None
