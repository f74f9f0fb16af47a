"""The autoscaler's loop: look at the cluster and at the provider, let the scaler decide, and carry it out.

Rule: it decides nothing, and it may be killed at any moment: a launch is known from the provider's list as soon as it
exists, and a retirement from a label of the node, which is set together with its drain, before anything is ended.
Nothing is decided on a list or a cluster that could not be read. A problem is said once, when it begins, and does not
end the loop.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stead.engine.scaling.decisions import (
    LaunchEnded,
    LaunchId,
    NodeLost,
    NodeRequested,
    NodeRetired,
    RetirementBegun,
    RetirementCancelled,
    ScaleDecision,
)
from stead.errors import sentence
from stead.language.labels import Labels
from stead.operate.audit import Author
from stead.operate.changes import Absent, NodeChange
from stead.operate.desk import Carried, Changes
from stead.operate.scale import REPORT_S, Proposing, ScaleView, scale_view
from stead.operate.snapshot import Snapshot
from stead.planner.instances import Instance, InstanceState, LaunchFailed
from stead.planner.scaler import RETIRING, Scaler, Seen
from stead.scaling.calls import Calls, Outcome
from stead.scaling.provider import OutOfStock, Provider

TURN_S = 1.0
"""The time between two looks at the cluster."""

ANSWERS_S = 60.0
"""How long a call of the provider may take. Its result is used even if it comes later."""

GONE_AFTER = 3
"""An instance is gone if so many lists in a row do not have it: a provider may forget one for a moment."""

AGAIN_S, AGAIN_MAX_S = 2.0, 60.0
"""The pause before a retirement that failed is tried again. It doubles each time, up to the second value."""

ENDING_S = 0.2
"""The pause of `end_all` between two looks at nodes that are ending."""

LIST = "list"


class ScaledDesk(Protocol):
    """What the loop needs of a desk."""

    def snapshot(self) -> Snapshot: ...
    def change(self, changes: Changes, author: Author) -> Carried: ...
    def report_scale(self, view: ScaleView, decisions: Sequence[ScaleDecision]) -> None: ...


@dataclass(slots=True)
class Ending:
    """An instance that is to be ended: when to try next, and how long to wait after that."""

    instance: Instance
    due: float = 0.0
    pause_s: float = AGAIN_S


class Autoscaler:
    """Turns of a scaler.

    Args:
        desk: The desk of the cluster.
        provider: Where nodes come from.
        scaler: What decides.
        author: Who the changes of nodes are attributed to.
        decided: Called with each decision, and the snapshot that it is based on.
        troubled: Called with a sentence when something begins to fail, and with the same again when it fails again
            after it had worked.
        clock: The time in seconds since 1970.
        answers_s: How long a call of the provider may take.
    """

    def __init__(
        self,
        desk: ScaledDesk,
        provider: Provider,
        scaler: Scaler,
        author: Author,
        *,
        decided: Callable[[ScaleDecision, Snapshot], None] = lambda decision, snapshot: None,
        troubled: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.time,
        answers_s: float = ANSWERS_S,
    ) -> None:
        self.desk, self.provider, self.scaler, self.author = desk, provider, scaler, author
        self._decided, self._troubled, self._clock, self._answers_s = decided, troubled, clock, answers_s
        self._calls, self._lists = Calls(), Calls(1)  # launches that hang must not keep the provider from listing
        self._troubles: set[str] = set()
        self._instances: dict[LaunchId, Instance] = {}
        self._missed: dict[LaunchId, int] = {}  # for how many lists an instance was missing
        self._to_launch: deque[NodeRequested] = deque()
        self._under_way: dict[LaunchId, str] = {}  # the kind of each launch for which the provider has not answered
        self._late: set[LaunchId] = set()  # those of them that were reported as failed for that
        self._failures: list[LaunchFailed] = []
        self._changes: dict[str, NodeChange] = {}  # of nodes, to be made
        self._endings: dict[LaunchId, Ending] = {}
        self._unreported: list[ScaleDecision] = []
        self._proposing = Proposing()
        self._reported, self._last_state = -REPORT_S, None  # type: float, object

    def run(self, stop: threading.Event, turn_s: float = TURN_S) -> None:
        """Take turns until `stop` is set."""
        while not stop.is_set():
            self.turn()
            moment = self.scaler.next_moment
            left = turn_s if moment is None else min(turn_s, max(0.1, moment - self._clock()))
            stop.wait(left)

    def turn(self) -> list[ScaleDecision]:
        """Look once, and carry out what is decided. Calls of the provider may still be under way afterwards."""
        snapshot = self._looked()
        if snapshot is None or not self._listed():
            return []
        self._take_results()
        seen = Seen(self._clock(), snapshot.to_plan, tuple(self._instances.values()), tuple(self._failures))
        self._failures.clear()
        decisions = self.scaler.step(seen)
        for decision in decisions:
            self._note(decision)
            self._decided(decision, snapshot)
        self._change_nodes()
        self._launch()
        self._end()
        self._unreported += decisions
        self._report(snapshot)
        return decisions

    def wait(self, seconds: float) -> bool:
        """Start the launches that wait, and wait for the provider's answers; False if some are still missing."""
        until = time.monotonic() + seconds
        while self._calls.wait_for_all(max(0.0, until - time.monotonic())):
            if not self._to_launch:
                return self._lists.wait_for_all(max(0.0, until - time.monotonic()))
            self._launch()
        return False

    def once(self, seconds: float) -> bool:
        """One turn and the provider's answers, for a caller that takes no other turn. Says which launches failed; False
        if anything failed or is missing."""
        self.turn()
        is_done = self.wait(seconds)
        self._take_results()
        for failure in self._failures:
            self._troubled(f"{failure.launch} failed: {failure.why}")
        return is_done and not self._failures and not self._troubles

    # -- looking

    def _looked(self) -> Snapshot | None:
        try:
            found = self.desk.snapshot()
        except Exception as error:
            self._trouble("cluster", f"the cluster cannot be read: {sentence(error)}")
            return None
        self._works("cluster")
        return found

    def _listed(self) -> bool:
        """Read the provider's list, after the cluster: so no node is in the cluster without its instance."""
        self._lists.wait(LIST, 0.0)  # a list that came too late is too old
        self._lists.start(LIST, self.provider.list)
        outcome = self._lists.wait(LIST, self._answers_s)
        if outcome is None:
            self._trouble(LIST, f"{self.provider.title} did not list its nodes within {self._answers_s:g} s")
            return False
        if outcome.error is not None:
            self._trouble(LIST, f"{self.provider.title} cannot list its nodes: {sentence(outcome.error)}")
            return False
        self._works(LIST)
        self._take_list(list(outcome.result))
        return True

    def _take_list(self, listed: Sequence[Instance]) -> None:
        found: dict[LaunchId, Instance] = {}
        for instance in listed:
            twice = found.get(instance.launch)
            if twice is None or _rank(instance) > _rank(twice):
                found[instance.launch] = instance
        if len(found) < len(listed):
            self._trouble("twice", f"{self.provider.title} lists a launch twice; one of the two counts")
        else:
            self._works("twice")
        for id, instance in self._instances.items():
            missed = self._missed.get(id, 0) + 1
            if id not in found and missed < GONE_AFTER and id not in self._endings and _is_alive(instance):
                found[id], self._missed[id] = instance, missed
            else:
                self._missed.pop(id, None)
        self._instances = found
        self._endings = {id: each for id, each in self._endings.items() if id in found or not each.due}

    def _take_results(self) -> None:
        """What became of calls of the provider."""
        for outcome in self._calls.taken():
            what, id = outcome.key if isinstance(outcome.key, tuple) else (outcome.key, "")
            if what == "launch":
                self._take_launch(id, outcome)
            elif what == "retire" and outcome.error is not None:
                ending = self._endings.get(id)
                if ending is not None:
                    ending.due, ending.pause_s = self._clock() + ending.pause_s, min(2 * ending.pause_s, AGAIN_MAX_S)
                    self._trouble(f"retire {id}", f"{id} is not ended yet: {sentence(outcome.error)}")
            elif what == "retire":
                self._works(f"retire {id}")
        for key, age in self._calls.ages().items():
            if isinstance(key, tuple) and key[0] == "launch" and age > self._answers_s and key[1] not in self._late:
                self._late.add(key[1])
                why = f"{self.provider.title} did not answer within {self._answers_s:g} s"
                self._failures.append(LaunchFailed(key[1], why))

    def _take_launch(self, id: LaunchId, outcome: Outcome) -> None:
        was_late, kind = id in self._late, self._under_way.pop(id, "")
        self._late.discard(id)
        if outcome.error is None and was_late:  # it was given up meanwhile
            self._endings[id] = Ending(self._instances.get(id, Instance(id, kind, InstanceState.STARTING)))
        elif outcome.error is not None and not was_late:
            is_stock_out = isinstance(outcome.error, OutOfStock)
            why = sentence(outcome.error) or type(outcome.error).__name__
            self._failures.append(LaunchFailed(id, why, is_stock_out))

    # -- carrying out

    def _note(self, decision: ScaleDecision) -> None:
        """Plan the calls for a decision. A later decision about the same node or launch replaces an earlier one."""
        match decision:
            case NodeRequested():
                self._to_launch.append(decision)
            case RetirementBegun(launch, _, node):
                self._changes[node] = NodeChange(node, draining=True, labels=Labels({RETIRING: launch}))
            case RetirementCancelled(_, _, node):
                self._changes[node] = NodeChange(node, draining=False, unlabels=(RETIRING,), missing_ok=True)
            case NodeRetired(launch, kind) | LaunchEnded(launch, kind) | NodeLost(launch, kind):
                self._to_launch = deque(each for each in self._to_launch if each.launch != launch)
                starting = Instance(launch, kind, InstanceState.STARTING)
                ending = self._endings.setdefault(launch, Ending(self._instances.get(launch, starting)))
                ending.due = 0.0

    def _change_nodes(self) -> None:
        """Drain and uncordon nodes. What fails is tried again in the next turn."""
        for node, change in list(self._changes.items()):
            try:
                self.desk.change(change, self.author)
            except Absent:
                pass  # the node has left
            except Exception as error:
                self._trouble("change", f"nodes cannot be changed: {sentence(error)}")
                continue
            self._works("change")
            del self._changes[node]

    def _launch(self) -> None:
        while self._to_launch:
            wanted = self._to_launch[0]
            if not self._calls.start(("launch", wanted.launch), self.provider.launch, wanted.launch, wanted.template):
                self._trouble("calls", f"{self.provider.title} answers too slowly, so launches wait")
                return
            self._under_way[wanted.launch] = wanted.template.name
            self._to_launch.popleft()
        self._works("calls")

    def _end(self) -> None:
        now = self._clock()
        for id, ending in self._endings.items():
            instance = self._instances.get(id, ending.instance)
            if ending.due <= now and self._calls.start(("retire", id), self.provider.retire, instance):
                ending.due, ending.instance = now + AGAIN_MAX_S, instance

    def _report(self, snapshot: Snapshot) -> None:
        """Report what was decided, and at least from time to time that this autoscaler works."""
        now = self._clock()
        scaler = self.scaler
        state = (scaler.plan, scaler.in_flight, scaler.standing, scaler.rests)
        if not self._unreported and now < self._reported + REPORT_S and state == self._last_state:
            return
        try:
            proposals = self._proposing.proposals(scaler, snapshot.engine)
            view = scale_view(scaler, snapshot.engine, self.provider.title, now, proposals=proposals)
            self.desk.report_scale(view, tuple(self._unreported))
        except Exception as error:
            self._trouble("report", f"the cluster does not take reports: {sentence(error)}")
            return
        self._works("report")
        self._unreported.clear()
        self._reported, self._last_state = now, state

    # -- problems

    def _trouble(self, what: str, text: str) -> None:
        if what not in self._troubles:
            self._troubles.add(what)
            self._troubled(text)

    def _works(self, what: str) -> None:
        self._troubles.discard(what)


def end_all(
    provider: Provider, seconds: float, said: Callable[[str], None], keep: Mapping[str, int] | None = None
) -> bool:
    """End every node of a provider; False if some are left after this time. `said` is called with each problem. `keep`
    is how many nodes of each kind stay, because the provider itself would replace them."""
    calls, until = Calls(), time.monotonic() + seconds
    while time.monotonic() < until:
        left = beyond(provider.list(), keep or {})
        if not left:
            return True
        for instance in left:
            calls.start(instance.launch, provider.retire, instance)
        calls.wait_for_all(until - time.monotonic())
        for outcome in calls.taken():
            if outcome.error is not None:
                said(sentence(outcome.error))
        time.sleep(min(ENDING_S, max(0.0, until - time.monotonic())))
    return not beyond(provider.list(), keep or {})


def beyond(instances: Iterable[Instance], keep: Mapping[str, int]) -> list[Instance]:
    """The instances without the first ones of each kind that stay."""
    left, found = Counter(keep), []
    for instance in instances:
        if instance.state is not InstanceState.ENDING and left[instance.kind] > 0:
            left[instance.kind] -= 1
        else:
            found.append(instance)
    return found


def _rank(instance: Instance) -> tuple[bool, bool]:
    return bool(instance.node), _is_alive(instance)


def _is_alive(instance: Instance) -> bool:
    return instance.state in (InstanceState.STARTING, InstanceState.RUNNING)
