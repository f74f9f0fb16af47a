"""What-if: changes tried on a fork, and the difference to now.

Rule: nothing is changed. The engine decides both sides, with and without the changes, so the difference shows only what
the changes cause. Evicted work loses its place and is placed again, as on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from stead.engine.decisions import Decision, Evicted, Refused
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskSubmitted,
    Fact,
    GroupEnded,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeTainted,
)
from stead.errors import Invalid
from stead.language.asks import Ask, Group
from stead.language.labels import Labels
from stead.language.nodes import Node
from stead.operate.applying import CHANGED, EVENT, FIELDS, SUGGESTED, VERBS, NodeEvent, node_changes
from stead.operate.cancellation import still_wanted
from stead.operate.plans import kind_called
from stead.operate.rows import Shapes
from stead.operate.scale import ScaleView
from stead.operate.snapshot import Snapshot
from stead.operate.suggested import suggested
from stead.specs.documents import GROUP, JOINED, WORK, Reader, node_facts
from stead.specs.sections import Misplaced, Section, at
from stead.specs.values import some_text

ROUNDS_MAX = 100
QUESTION_MAX = 10_000
"""Maximum number of changes, and of new nodes and pieces of work, in one question."""

KINDS = ("placed", "moved", "stranded", "blocked", "unplaced", "waiting", "refused")
TRIED = ("join", "leave", "drain", "undrain", "taint", "untaint", "label", "resize")


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to a piece of work, or to `count` equal ones: where it is now, and where it would be."""

    ids: tuple[str, ...]
    name: str
    before: str  # a node's id; "" if it is pending or new
    after: str
    why: str = ""  # the engine's explanation, for work that would be pending

    @property
    def count(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Stays:
    """Work that keeps running but could not be placed on its node again; `nodes` could take it if they were empty."""

    ids: tuple[str, ...]
    name: str
    node: str
    nodes: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The cluster now and with the changes, side by side."""

    placed: tuple[Fate, ...]  # pending or new, and would be placed
    moved: tuple[Fate, ...]  # runs now, and would run elsewhere
    stranded: tuple[Fate, ...]  # runs now, and would be pending
    blocked: tuple[Fate, ...]  # would be placed without the changes, and would be pending with them
    unplaced: tuple[Fate, ...]  # new, and would be pending
    waiting: tuple[Fate, ...]  # pending with and without the changes
    refused: tuple[Fate, ...]  # would fail: every node that it requires is gone
    stays: tuple[Stays, ...]  # keeps running, but could not be placed there again
    nodes_before: int
    nodes_after: int
    added: tuple[str, ...] = ()  # ids of new nodes

    @property
    def harms(self) -> int:
        """The number of pieces of work that would be stranded, blocked or refused."""
        return sum(fate.count for fate in (*self.stranded, *self.blocked, *self.refused))


# -- changes as people write them


def read_changes(written: Any, snapshot: Snapshot, report: Callable[[], ScaleView | None] = lambda: None) -> list[Fact]:
    """``{changes: [{taint: gpu-1, taints: team=blue}, {join: {capacity: {CPU: 8}}}], work: [...]}`` as facts. `report`
    has the kinds of nodes of the autoscaler."""
    file = Section(written, "", FIELDS)
    reader = Reader(used=lambda id: id in snapshot.by_id or snapshot.rows.knows(id), most=QUESTION_MAX)
    facts: list[Fact] = []
    events: list[NodeEvent] = []
    for section in file.sections("changes", EVENT):
        if SUGGESTED in section:
            only = Section(section.fields, section.path, (SUGGESTED,))
            with at(only.place(SUGGESTED)):
                facts += suggested(only.need(SUGGESTED, some_text, "'train-1'"), snapshot)
            continue
        verbs = [verb for verb in VERBS if verb in section]
        if len(verbs) != 1 or verbs[0] not in TRIED:
            given = " and ".join(verbs) or "none"
            raise Misplaced(f"{section.path}: needs exactly one of {', '.join(TRIED)}, but has {given}")
        verb = verbs[0]
        if verb == "join":
            facts += _joined(section, reader, snapshot, report)
            continue
        section = Section(section.fields, section.path, (verb, *VERBS[verb]))
        for item, path in section.each(verb):
            with at(path):
                node = snapshot.find(some_text(item)).id
            if verb in CHANGED:
                events.append((node, verb, section))
            else:
                facts += node_facts(verb, node, section)
            _check_size(len(facts) + len(events), path)
    for change in node_changes(events):
        facts += change.facts(snapshot.by_id[change.node], snapshot.engine.now)
        _check_size(len(facts), "changes")
    for section in file.sections("work", WORK):
        reader.work(section)
    for section in file.sections("groups", GROUP):
        reader.group(section)
    return [*facts, *(fact for _, fact in reader.moments)]


def _check_size(count: int, place: str) -> None:
    if count > QUESTION_MAX:
        raise Misplaced(f"{place}: a what-if may have at most {QUESTION_MAX:,} changes; give fewer")


def _joined(
    section: Section, reader: Reader, snapshot: Snapshot, report: Callable[[], ScaleView | None]
) -> Iterable[Fact]:
    """New nodes: described, like an existing one, or of a kind of the autoscaler."""
    for joined in section.sections("join", (*JOINED, "like", "kind")):
        fields = dict(joined.fields)
        fields.setdefault("id", "new")
        if "like" in fields:
            with at(joined.place("like")):
                like = snapshot.find(some_text(fields.pop("like")))
            yield from _like(snapshot, like, Section(fields, joined.path, ("id", "count")), reader)
        elif "kind" in fields:
            with at(joined.place("kind")):
                template = kind_called(some_text(fields.pop("kind")), report())
            fields = {"id": template.name, **joined.fields}
            del fields["kind"]
            for id in reader.names(Section(fields, joined.path, ("id", "count"))):
                yield NodeJoined(replace(template.node(id), name=id))
        else:
            yield from reader.joined(Section(fields, joined.path, JOINED))


def _like(snapshot: Snapshot, node: Node, section: Section, reader: Reader) -> Iterable[Fact]:
    """Copies of a node as a new one of its kind would start: without labels that were set at run time and without
    taints that have an owner or an end, each with its own name."""
    view = snapshot.view(node)
    labels = Labels({key: value for key, value in node.labels.items() if view.sources[key] == "start"})
    lent = {(end.key, end.effect) for end in view.ends if end.owner or end.job or end.until is not None}
    taints = tuple(taint for taint in node.taints if (taint.key, taint.effect.value) not in lent)
    for id in reader.names(section):
        yield NodeJoined(Node(id, node.capacity, labels, taints, name=id))


# -- trying them


def what_if(snapshot: Snapshot, facts: Sequence[Fact]) -> Difference:
    """What these facts would change."""
    now, then = snapshot.engine.fork(), snapshot.engine.fork()
    decided = _settle(now)
    before = now.placed if decided else snapshot.rows.placed
    then.apply(*facts)
    refused = {decision.id for decision in _settle(then) if isinstance(decision, Refused)}
    still_wanted()
    return _difference(snapshot, before, then, facts, refused)


def _settle(engine: Engine) -> list[Decision]:
    """Decide until nothing changes any more; returns all decisions."""
    decided: list[Decision] = []
    for _ in range(ROUNDS_MAX):
        still_wanted()
        decisions = engine.decide()
        decided += decisions
        lost = [AskLost(decision.ask) for decision in decisions if isinstance(decision, Evicted)]
        if not lost:
            break
        engine.apply(*lost)
    return decided


def _difference(
    snapshot: Snapshot, before: Mapping[str, str], then: Engine, facts: Sequence[Fact], refused: set[str]
) -> Difference:
    rows, shapes = snapshot.rows, Shapes()
    current, after = rows.placed, then.placed
    fates: dict[str, dict[tuple[Any, ...], list[str]]] = {}

    def note(kind: str, id: str, start: str, end: str) -> None:
        key = (_shape(shapes, then, snapshot.engine, id), start, end)
        fates.setdefault(kind, {}).setdefault(key, []).append(id)

    for id, node in current.items():
        end = after.get(id)
        if end == node:
            continue
        kind = "refused" if id in refused else "stranded" if end is None else "moved"
        note(kind, id, node, end or "")
    groups = [snapshot.rows.groups[id] for id in snapshot.rows.in_line if id in snapshot.rows.waiting_groups]
    groups += [fact.group for fact in facts if isinstance(fact, GroupSubmitted)]
    group_of = {**snapshot.rows.group_of, **{member.id: group.id for group in groups for member in group.all_members}}
    new = set(_new(facts))
    for id in dict.fromkeys(_in_line(snapshot, facts, after, groups)):
        if id in current:
            continue
        if id in refused:
            note("refused", id, "", "")
        elif id in after:
            if before.get(id) != after[id]:
                note("placed", id, "", after[id])
        elif id in before:
            note("blocked", id, before[id], "")
        else:
            note("unplaced" if id in new else "waiting", id, "", "")
    by_kind = {
        kind: tuple(_fate(snapshot, then, ids, start, end, group_of) for (_, start, end), ids in found.items())
        for kind, found in fates.items()
    }
    return Difference(
        **{kind: by_kind.get(kind, ()) for kind in KINDS},
        stays=_staying(snapshot, then, after, facts),
        nodes_before=len(snapshot.by_id),
        nodes_after=len(then.nodes),
        added=tuple(id for id in then.nodes if id not in snapshot.by_id),
    )


def _new(facts: Iterable[Fact]) -> Iterable[str]:
    """Work that does not exist now. A suggestion ends and resubmits existing work, which is not new."""
    ended = {fact.ask for fact in facts if isinstance(fact, AskEnded)}
    ended |= {fact.group for fact in facts if isinstance(fact, GroupEnded)}
    for fact in facts:
        if isinstance(fact, AskSubmitted) and fact.ask.id not in ended:
            yield fact.ask.id
        elif isinstance(fact, GroupSubmitted) and fact.group.id not in ended:
            yield from (member.id for member in fact.group.all_members)


def _in_line(
    snapshot: Snapshot, facts: Sequence[Fact], after: Mapping[str, str], groups: Sequence[Group]
) -> Iterable[str]:
    """Asks that are pending or new. For a group: those of the alternative that would be placed, else of its first."""
    yield from (id for id in snapshot.rows.in_line if id not in snapshot.rows.waiting_groups)
    yield from (fact.ask.id for fact in facts if isinstance(fact, AskSubmitted))
    for group in groups:
        taken = (each for each in group.alternatives if any(member.id in after for member in each))
        yield from (member.id for member in next(taken, group.alternatives[0]))


def _shape(shapes: Shapes, then: Engine, now: Engine, id: str) -> int | str:
    for engine in (then, now):
        with suppress(Invalid):
            return shapes.of(engine.item(id))
    return id


def _fate(
    snapshot: Snapshot, then: Engine, ids: Sequence[str], before: str, after: str, group_of: Mapping[str, str]
) -> Fate:
    """A member of a group gets the explanation of the group: alone it might fit."""
    why = ""
    if not after:
        try:
            why = str(snapshot.explained_by(then, group_of.get(ids[0], ids[0])))
        except Invalid:
            why = "every node that it may use is gone"
    return Fate(tuple(ids), snapshot.of(ids[0]).name, before, after, why)


def _staying(snapshot: Snapshot, then: Engine, after: Mapping[str, str], facts: Sequence[Fact]) -> tuple[Stays, ...]:
    """Work on nodes that get a taint or are drained: it keeps running, but could it be placed there again?"""
    touched = {fact.node for fact in facts if isinstance(fact, NodeTainted | NodeDrained)}
    touched -= {fact.node for fact in facts if isinstance(fact, NodeLeft)}
    shapes = Shapes()
    found: dict[tuple[int, str], list[str]] = {}
    nodes: dict[tuple[int, str], int] = {}
    for node in sorted(touched):
        for id in snapshot.by_node.get(node, ()):
            if after.get(id) != node:
                continue
            ask = snapshot.engine.item(id)
            assert isinstance(ask, Ask)
            key = (shapes.of(ask), node)
            if key not in nodes:
                feasible = then.feasible(ask)
                nodes[key] = -1 if node in feasible else len(feasible)
            if nodes[key] >= 0:
                found.setdefault(key, []).append(id)
    return tuple(Stays(tuple(ids), snapshot.of(ids[0]).name, key[1], nodes[key]) for key, ids in found.items())


def difference_json(found: Difference) -> Mapping[str, Any]:
    def fate(each: Fate) -> dict[str, Any]:
        return {
            "ids": list(each.ids),
            "name": each.name,
            "count": each.count,
            "before": each.before,
            "after": each.after,
            "why": each.why,
        }

    return {
        **{kind: [fate(each) for each in getattr(found, kind)] for kind in KINDS},
        "stays": [
            {"ids": list(each.ids), "name": each.name, "node": each.node, "nodes": each.nodes} for each in found.stays
        ],
        "nodes_before": found.nodes_before,
        "nodes_after": found.nodes_after,
        "added": list(found.added),
        "harms": found.harms,
    }
