"""Events: what happened, for people and for monitoring programs.

Rule: facts and decisions become events here and nowhere else. An event has a kind, which programs may rely on, and one
sentence: the subject, then the text. Kinds that only one type of cluster reports (a node does not answer) are here too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never, overload

from stead.engine.decisions import (
    BatchDecided,
    Decision,
    Evicted,
    GroupPlaced,
    GroupReleased,
    Moved,
    NodeUnknown,
    NominationEnded,
    Placed,
    Preempted,
    Refused,
    TaintExpired,
    Verdict,
    Waiting,
)
from stead.engine.explain import wording
from stead.engine.explain.wording import NO_NAMES, Names
from stead.engine.facts import (
    AskChanged,
    AskEnded,
    AskEnding,
    AskLost,
    AskNominated,
    AskRunning,
    AsksSubmitted,
    AskSubmitted,
    BudgetChanged,
    BudgetEnded,
    ClaimChanged,
    ClaimEnded,
    ClockAdvanced,
    EvictionFailed,
    Fact,
    GroupChanged,
    GroupEnded,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
    NodeUntainted,
    NodeUsed,
)
from stead.engine.scaling.decisions import (
    LaunchEnded,
    NodeArrived,
    NodeLost,
    NodeRequested,
    NodeRetired,
    RetirementBegun,
    RetirementCancelled,
    ScaleDecision,
)
from stead.language.asks import Group
from stead.language.nodes import NodeId
from stead.language.times import duration_text
from stead.text import plural, short_id

NAMES_MAX = 50
"""The maximum number of names, or runs of numbered names, in a subject."""


class EventKind(StrEnum):
    """What happened: facts about nodes and work, decisions, what an autoscaler does, reports of a cluster about itself.

    Attributes:
        JOINED: A node joined.
        LEFT: A node left.
        LABELLED: Labels of a node were set or removed.
        TAINTED: A taint was set.
        UNTAINTED: A taint was removed, or expired.
        DRAINED: A node takes no new work.
        UNCORDONED: A drained node takes work again.
        RESIZED: The capacity of a node changed.
        USED: The use of a node by work that stead does not manage changed.
        SUBMITTED: Work was submitted.
        CHANGED: Work is described differently now; members joined or left a group, or its minimum changed.
        RUNNING: Work runs.
        ENDED: Work ended.
        ENDING: Work is being stopped.
        NOT_EVICTED: Work could not be evicted for other work.
        BUDGET: A budget changed: how much work of a kind may be evicted.
        CLAIM: A claim changed: it was bound, or other nodes can use it; or it was removed.
        LOST: Work lost its node and must be placed again.
        PLACED: Work was placed.
        WAITING: Work is pending, for reasons that are new.
        REFUSED: Work will not be placed.
        EVICTED: Work was evicted.
        PREEMPTED: Work is evicted for work of a higher priority.
        NOMINATED: A place is kept for pending work until other work there has ended, or is no longer kept.
        RELEASED: A group did not have its minimum in time: its members give up their nodes.
        BATCH: A batch was decided.
        MOVED: Running work moves to another node.
        LAUNCHING: The autoscaler launches a node.
        LAUNCHED: The node of a launch joined.
        NOT_LAUNCHED: A launch was given up.
        RETIRING: The autoscaler drains a node that nothing needs.
        NOT_RETIRED: A node that was drained to be retired is needed again.
        RETIRED: A drained node is ended.
        GONE: A launched node is gone, but the autoscaler did not retire it.
        UNCONFIRMED: A node does not answer, so it did not confirm a change.
        UNHEARD: A node did not confirm the latest rules in time.
        RESTORED: The controller restored its state from a copy.
        UNREADABLE: Saved state of the controller cannot be used.
        DIVERGED: This version of stead would decide differently from what the journal holds.
        COPY: The copy of the controller's state is too large to be complete.

    Example:
        ```python
        [event for event in stead.events() if event.kind is EventKind.WAITING]
        ```
    """

    JOINED = "joined"
    LEFT = "left"
    LABELLED = "labelled"
    TAINTED = "tainted"
    UNTAINTED = "untainted"
    DRAINED = "drained"
    UNCORDONED = "uncordoned"
    RESIZED = "resized"
    USED = "used"
    SUBMITTED = "submitted"
    CHANGED = "changed"
    RUNNING = "running"
    ENDED = "ended"
    ENDING = "ending"
    NOT_EVICTED = "not-evicted"
    BUDGET = "budget"
    CLAIM = "claim"
    LOST = "lost"

    PLACED = "placed"
    WAITING = "waiting"
    REFUSED = "refused"
    EVICTED = "evicted"
    PREEMPTED = "preempted"
    NOMINATED = "nominated"
    RELEASED = "released"
    BATCH = "batch"
    MOVED = "moved"

    LAUNCHING = "launching"
    LAUNCHED = "launched"
    NOT_LAUNCHED = "not-launched"
    RETIRING = "retiring"
    NOT_RETIRED = "not-retired"
    RETIRED = "retired"
    GONE = "gone"

    UNCONFIRMED = "unconfirmed"
    UNHEARD = "unheard"
    RESTORED = "restored"
    UNREADABLE = "unreadable"
    DIVERGED = "diverged"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a node or to work.

    Attributes:
        number: Its number among the events of the cluster, from 1.
        at: When, in seconds since 1970.
        kind: What happened. Programs may rely on it.
        subject: The id of the node or work; several are listed, such as ``web-1..3, db``.
        text: What happened, in words.
        count: How many pieces of work it concerns.

    Example:
        ```python
        for event in stead.events(after=100):
            print(event)
        ```
    """

    number: int
    at: float
    kind: EventKind
    subject: str
    text: str
    count: int = 1

    def __str__(self) -> str:
        many = f" ({self.count})" if self.count > 1 else ""
        return f"{self.kind:9} {self.subject}{many}: {self.text}"

    def is_about(self, id: str) -> bool:
        """Whether the event concerns this `id`."""
        if self.subject == id:
            return True
        if ", " not in self.subject and ".." not in self.subject:
            return False
        numbered = _NUMBERED.fullmatch(id)
        for part in self.subject.split(", "):
            first, _, last = part.partition("..")
            found = _NUMBERED.fullmatch(first)
            if part == id:
                return True
            if last.isdecimal() and numbered and found and numbered[1] == found[1]:
                if int(found[2]) <= int(numbered[2]) <= int(last):
                    return True
        return False


Happened = Fact | Decision | ScaleDecision


@overload
def event_of(what: Decision | ScaleDecision, at: float, names: Names = NO_NAMES, number: int = 0) -> Event: ...
@overload
def event_of(what: Happened, at: float, names: Names = NO_NAMES, number: int = 0) -> Event | None: ...
def event_of(what: Happened, at: float, names: Names = NO_NAMES, number: int = 0) -> Event | None:
    """The event of a fact or decision; None for `ClockAdvanced`. `names` are the names of nodes."""
    found = _described(what, at, names)
    if found is None:
        return None
    kind, subject, text = found
    return Event(number, at, kind, subject, text, _count(what))


def _count(what: Happened) -> int:
    match what:
        case Waiting(asks):
            return len(asks)
        case Preempted(_, _, victims):
            return max(1, len(victims))
        case AsksSubmitted(_, _, count):
            return count
        case _:
            return 1


def ids_of(decision: Decision) -> tuple[str, ...]:
    """The asks and groups that a decision concerns."""
    match decision:
        case Placed(id) | Refused(id) | Evicted(id) | Moved(id) | NominationEnded(id):
            return (id,)
        case Preempted(id, _, victims):
            return (id, *victims)
        case GroupPlaced(id, _, members):
            return (id, *(member for member, _ in members))
        case GroupReleased(id, released):
            return (id, *released)
        case Waiting(ids):
            return ids
        case BatchDecided() | TaintExpired():
            return ()


def listed(ids: Sequence[str]) -> str:
    """``web-1..3, db``: runs of numbered names are joined."""
    parts: list[str] = []
    index = 0
    while index < len(ids) and len(parts) < NAMES_MAX:
        end, found = index + 1, _NUMBERED.fullmatch(ids[index])
        while found and end < len(ids) and ids[end] == f"{found[1]}{int(found[2]) + end - index}":
            end += 1
        last = end - 1
        parts.append(f"{ids[index]}..{int(found[2]) + last - index}" if found and last > index else ids[index])
        index = end
    return ", ".join(parts)


_NUMBERED = re.compile(r"(.*-)([1-9][0-9]{0,17})")

Described = tuple[EventKind, str, str]


def _described(what: Happened, at: float, names: Names) -> Described | None:
    """Kind, subject and text of what happened."""
    if isinstance(what, ScaleDecision):
        return _scaled(what, at, names)
    match what:
        case ClockAdvanced():
            return None
        case NodeJoined(node):
            return EventKind.JOINED, node.id, "joined"
        case NodeLeft(node):
            return EventKind.LEFT, node, "left"
        case NodeLabelled(node, labels, removed):
            text = " and ".join([f"labelled {labels}"] * bool(labels) + [f"label {key} removed" for key in removed])
            return EventKind.LABELLED, node, text
        case NodeTainted():
            return EventKind.TAINTED, what.node, _tainted(what, at)
        case NodeUntainted(node, key, effect, reason):
            text = f"untainted {key}" + (f":{effect}" if effect else "") + (f": {reason}" if reason else "")
            return EventKind.UNTAINTED, node, text
        case NodeDrained(node, draining):
            return (EventKind.DRAINED, node, "drained") if draining else (EventKind.UNCORDONED, node, "uncordoned")
        case NodeResized(node, capacity):
            return EventKind.RESIZED, node, f"resized to {capacity}"
        case NodeUsed(node, amounts, pieces):
            return EventKind.USED, node, f"used by other work: {amounts}" if pieces else "no longer used by other work"
        case AskSubmitted(item) | GroupSubmitted(item):
            return EventKind.SUBMITTED, item.id, "submitted"
        case GroupChanged(group):
            members = len(group.alternatives[0])
            return EventKind.CHANGED, group.id, f"has {plural(members, 'member')}{_minimum(group)}"
        case AsksSubmitted(item, first, count):
            return EventKind.SUBMITTED, f"{item.id}#{first}..{first + count - 1}", "submitted"
        case AskEnded(id) | GroupEnded(id):
            return EventKind.ENDED, id, "ended"
        case AskLost(id):
            return EventKind.LOST, id, "lost, pending again"
        case AskChanged(ask):
            return EventKind.CHANGED, ask.id, "changed"
        case AskEnding(id):
            return EventKind.ENDING, id, "being stopped"
        case EvictionFailed(id):
            return EventKind.NOT_EVICTED, id, "could not be evicted"
        case AskNominated(id, node):
            return EventKind.NOMINATED, id, f"waits for work to end on {_called(node, names)}"
        case BudgetChanged(budget):
            return EventKind.BUDGET, budget.id, f"allows {budget.allowed} evictions of {budget.selector}"
        case BudgetEnded(id):
            return EventKind.BUDGET, id, "removed"
        case ClaimChanged(claim):
            return EventKind.CLAIM, claim.id, wording.claim(claim, names)
        case ClaimEnded(id):
            return EventKind.CLAIM, id, "removed"
        case AskRunning(ask, node):
            return EventKind.RUNNING, ask.id, f"running on {_called(node, names)}"
    return _decided(what, names)


def _minimum(group: Group) -> str:
    return "" if group.min_available is None else f" and needs {group.min_available} at once"


def _tainted(fact: NodeTainted, at: float) -> str:
    text = f"tainted {fact.taint}"
    text += "" if fact.until is None else f" for {duration_text(max(0.0, fact.until - at))}"
    text += f" until job {fact.job} ends" if fact.job else ""
    return text + (f" by {fact.owner}" if fact.owner else "")


def _decided(what: Decision, names: Names) -> Described:
    match what:
        case Placed(id, node, choice):
            return (
                EventKind.PLACED,
                id,
                f"placed on {_called(node, names)}" + (f" with fallback {choice}" if choice else ""),
            )
        case GroupPlaced(id, alternative, members):
            where = ", ".join(f"{member} on {_called(node, names)}" for member, node in members)
            return EventKind.PLACED, id, f"placed{f' with fallback {alternative}' if alternative else ''}: {where}"
        case Waiting(ids, verdicts, member, more):
            why = f" {wording.more_members(more)}" if more else f": {_why(verdicts, names, member)}"
            return EventKind.WAITING, listed(ids), f"waiting{why}"
        case Refused(id, cause):
            if isinstance(cause, NodeUnknown):
                return (
                    EventKind.REFUSED,
                    id,
                    f"refused: no node {listed([_called(node, names) for node in cause.nodes])} is alive",
                )
            why = f": {_why(cause.verdicts, names)}" if cause.verdicts else ""
            return EventKind.REFUSED, id, f"refused: its deadline passed{why}"
        case Evicted(id, node, taint):
            return EventKind.EVICTED, id, f"evicted from {_called(node, names)}: tainted {taint}"
        case Preempted(id, node, victims):
            if not victims:
                return EventKind.NOMINATED, id, f"waits for work to end on {_called(node, names)}"
            return EventKind.PREEMPTED, listed(victims), f"evicted from {_called(node, names)} for {id}"
        case NominationEnded(id, node):
            return EventKind.NOMINATED, id, f"no longer waits for {_called(node, names)}"
        case GroupReleased(id, members):
            return EventKind.RELEASED, id, f"released after its time-out, below its minimum: {listed(members)}"
        case TaintExpired(node, taint):
            return EventKind.UNTAINTED, node, f"untainted {taint}: expired"
        case BatchDecided():
            return EventKind.BATCH, what.policy, wording.batch(what)
        case Moved(id, source, target, gain):
            return (
                EventKind.MOVED,
                id,
                f"moved from {_called(source, names)} to {_called(target, names)} (cost reduced by {gain})",
            )
        case _:
            assert_never(what)


def _scaled(what: ScaleDecision, at: float, names: Names) -> Described:
    """What an autoscaler has decided. A launch is the subject until its node has joined."""
    match what:
        case NodeRequested(launch, template, serves):
            purpose = plural(serves, "piece") + " of work" if serves else "the minimum of its kind"
            return EventKind.LAUNCHING, launch, f"launching a node of kind {template.name} for {purpose}"
        case NodeArrived(launch, kind, node):
            return EventKind.LAUNCHED, launch, f"joined as {_called(node, names)}, of kind {kind}"
        case LaunchEnded(launch, kind, why, retry_at):
            rest = max(0.0, retry_at - at)
            pause = f"; no launch of kind {kind} for {duration_text(rest)}" if rest else ""
            return EventKind.NOT_LAUNCHED, launch, f"given up: {why}{pause}"
        case RetirementBegun(launch, kind, node, idle_s):
            text = f"retiring {launch} of kind {kind}: nothing has needed it for {duration_text(idle_s)}"
            return EventKind.RETIRING, node, text
        case RetirementCancelled(launch, kind, node, why):
            return EventKind.NOT_RETIRED, node, f"{launch} of kind {kind} is not retired: {why}"
        case NodeRetired(launch, kind, node):
            return EventKind.RETIRED, node, f"{launch} of kind {kind} is drained and ended"
        case NodeLost(launch, kind, node):
            return EventKind.GONE, node, f"{launch} of kind {kind} is gone, and nobody retired it"
        case _:
            assert_never(what)


def _called(node: NodeId, names: Names) -> str:
    return names.get(node) or short_id(node)


def _why(verdicts: Sequence[Verdict], names: Names, member: str = "") -> str:
    """Why work is pending: a sentence per choice, or about the member of a group that fits no node."""
    if not verdicts:
        return "its members do not fit together"
    texts = [wording.verdict(each, names) for each in verdicts]
    if len(texts) > 1:
        texts = [f"choice {number}: {each}" for number, each in enumerate(texts, start=1)]
    return f"{member}: {texts[0]}" if member else " ".join(texts)
