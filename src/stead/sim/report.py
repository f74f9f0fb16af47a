"""How a simulated run ended: as tables on a terminal, as plain text in a pipe, as JSON for programs.

Rule: all three show the same rows. Reasons come from the engine's explanations and are worded there; here
only lines about facts and decisions are made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from stead.asks import Ask, Group
from stead.codec import plain
from stead.engine import wording
from stead.engine.decisions import (
    BatchDecided,
    Decision,
    Evicted,
    GroupPlaced,
    Moved,
    NodeUnknown,
    Placed,
    Refusal,
    Refused,
    Waiting,
)
from stead.engine.explain import Explanation
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    AsksSubmitted,
    AskSubmitted,
    ClockAdvanced,
    Fact,
    GroupEnded,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
    NodeUntainted,
)
from stead.errors import Invalid, did_you_mean
from stead.resources import MEMORY, memory_text, text
from stead.sim.cluster import Happening, Outcome

TIMELINE_LINES_MAX = 200


@dataclass(frozen=True, slots=True)
class Waiter:
    """Equal asks (or groups) that wait for the same reasons."""

    ids: tuple[str, ...]
    explanation: Explanation


def waiters(outcome: Outcome) -> list[Waiter]:
    """All that waits, in the order in which it will be tried; equal work is explained once."""
    by_shape: dict[Any, list[str]] = {}
    for id in outcome.engine.waiting:
        by_shape.setdefault(outcome.submitted[id].shape_key, []).append(id)
    return [Waiter(tuple(ids), outcome.engine.explain(ids[0])) for ids in by_shape.values()]


def summary(outcome: Outcome) -> str:
    """``demo at 90 s: 6 nodes; 12 asks placed, 4 waiting, 1 refused, 3 ended``."""
    engine = outcome.engine
    counts = [
        f"{len(engine.placed)} asks placed",
        f"{len(engine.waiting)} waiting",
        f"{len(outcome.refused)} refused",
        f"{len(outcome.ended)} ended",
    ]
    nodes = "1 node" if len(engine.nodes) == 1 else f"{len(engine.nodes)} nodes"
    return f"{outcome.scenario.title} at {outcome.moment:g} s: {nodes}; {', '.join(counts)}"


# The rows that all forms show.


def node_rows(outcome: Outcome) -> Iterator[tuple[str, str, str, str]]:
    """Node, what is special about it, what is used of what it has, and who is there."""
    runs = _runs(outcome)
    for id, node in outcome.engine.nodes.items():
        marks = [str(node.labels)] if node.labels else []
        marks += [f"tainted {taint}" for taint in node.taints] + (["draining"] if node.draining else [])
        free = outcome.engine.free(id)
        used = [_used(name, total - free.get(name, 0), total) for name, total in node.capacity.items()]
        yield id, "; ".join(marks), ", ".join(used), names(runs.get(id, ()))


def _runs(outcome: Outcome) -> dict[str, list[str]]:
    """What is placed, by node; a node without work is not in it."""
    runs: dict[str, list[str]] = {}
    for ask, where in outcome.engine.placed.items():
        runs.setdefault(where, []).append(ask)
    return runs


def _used(name: str, used: int, total: int) -> str:
    write = memory_text if name == MEMORY else text
    return f"{write(used)}/{write(total)} {name}"


def waiting_rows(outcome: Outcome) -> Iterator[tuple[str, str]]:
    for waiter in waiters(outcome):
        yield names(waiter.ids), str(waiter.explanation)


def timeline_rows(timeline: Iterable[Happening]) -> Iterator[tuple[str, str]]:
    """Moment and sentence. What happens to several at once in the same words is one line."""
    told = ((happening.moment, *sentence(happening.what)) for happening in _news(timeline))
    for (moment, words), lines in groupby(told, key=lambda line: (line[0], line[2])):
        yield f"{moment:g} s", f"{names([subject for _, subject, _ in lines])} {words}"


def _news(timeline: Iterable[Happening]) -> Iterator[Happening]:
    """Without reasons that read the same as the last ones: a count that no sentence shows may have changed."""
    last: dict[str, str] = {}
    for happening in timeline:
        match happening.what:
            case Waiting(ids):
                words = sentence(happening.what)[1]
                if all(last.get(id) == words for id in ids):
                    continue
                last.update(dict.fromkeys(ids, words))
            case Placed(id) | GroupPlaced(id):
                last.pop(id, None)
        yield happening


def sentence(what: Fact | Decision) -> tuple[str, str]:
    """Who, and what happened to it."""
    match what:
        case NodeJoined(node):
            return node.id, "joined"
        case NodeLeft(node):
            return node, "left"
        case NodeLabelled(node, labels, removed):
            return node, " and ".join([f"labelled {labels}"] * bool(labels) + [f"lost {key}" for key in removed])
        case NodeTainted(node, taint):
            return node, f"tainted {taint}"
        case NodeUntainted(node, key, effect):
            return node, f"untainted {key}" + (f":{effect}" if effect else "")
        case NodeDrained(node, draining):
            return node, "drained" if draining else "takes work again"
        case NodeResized(node, capacity):
            return node, f"resized to {capacity}"
        case AskSubmitted(item) | GroupSubmitted(item):
            return item.id, "submitted"
        case AsksSubmitted(item, first, count):
            return f"{item.id}#{first}..{first + count - 1}", "submitted"
        case AskEnded(id) | GroupEnded(id):
            return id, "ended"
        case AskLost(id):
            return id, "lost the place"
        case AskRunning(ask, node):
            return ask.id, f"runs on {node}"
        case ClockAdvanced():
            return "the clock", "advanced"
    return _decided(what)


def _decided(what: Decision) -> tuple[str, str]:
    match what:
        case Placed(id, node, choice):
            return id, f"placed on {node}" + (f" by fallback {choice}" if choice else "")
        case GroupPlaced(id, alternative, members):
            where = ", ".join(f"{member} on {node}" for member, node in members)
            return id, f"placed{f' by fallback {alternative}' if alternative else ''}: {where}"
        case Waiting(ids, refusals):
            reasons = wording.reasons(refusals)
            return names(ids), f"waiting: {reasons or 'its members do not fit together'}"
        case Refused(id, cause):
            if isinstance(cause, NodeUnknown):
                return id, f"refused: no node {names(cause.nodes)} is alive"
            return id, f"refused: its deadline passed at {cause.deadline:g} s"
        case Evicted(id, node, taint):
            return id, f"evicted from {node}: tainted {taint}"
        case BatchDecided():
            return what.policy, wording.batch(what)
        case Moved(id, source, target, gain):
            return id, f"moved from {source} to {target}, which gains {gain}"


def names(ids: Sequence[str]) -> str:
    """``web-1..3, db``: runs of numbered names are drawn together."""
    parts: list[str] = []
    numbered = [re.fullmatch(r"(.*-)([1-9][0-9]*)", id) for id in ids]
    index = 0
    while index < len(ids):
        end, found = index + 1, numbered[index]
        while found and end < len(ids) and ids[end] == f"{found[1]}{int(found[2]) + end - index}":
            end += 1
        last = end - 1
        parts.append(f"{ids[index]}..{int(found[2]) + last - index}" if found and last > index else ids[index])
        index = end
    return ", ".join(parts)


# The three forms.


def as_text(outcome: Outcome) -> str:
    """Plain text, the same on every machine."""
    lines = [summary(outcome), "", *_columns([("NODE", "LABELS", "USED", "WORK"), *node_rows(outcome)])]
    if waiting := list(waiting_rows(outcome)):
        lines += ["", "WAITING", *(f"{who}:{_indented(reason)}" for who, reason in waiting)]
    shown, hidden = _shortened(outcome.timeline)
    lines += ["", "TIMELINE", *_columns(shown), *hidden]
    return "\n".join(lines)


def _indented(reason: str) -> str:
    """On the same line if it is one line, else below and moved in."""
    return f" {reason}" if "\n" not in reason else "".join(f"\n    {line}" for line in reason.splitlines())


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _shortened(timeline: Sequence[Happening]) -> tuple[list[tuple[str, str]], list[str]]:
    rows = list(timeline_rows(timeline))
    hidden = len(rows) - TIMELINE_LINES_MAX
    return rows[:TIMELINE_LINES_MAX], [f"... and {hidden} more lines, all of them in --json"] if hidden > 0 else []


def show(outcome: Outcome) -> None:
    """The same, as tables on the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.print(Text(summary(outcome), style="bold"))
    shown, hidden = _shortened(outcome.timeline)
    tables: list[tuple[str, tuple[str, ...], Iterable[tuple[str, ...]]]] = [
        ("Nodes", ("node", "labels", "used", "work"), node_rows(outcome)),
        ("Waiting", ("who", "why"), waiting_rows(outcome)),
        ("Timeline", ("when", "what"), shown),
    ]
    for title, columns, rows in tables:
        table = Table(title=title, title_justify="left", title_style="bold", show_lines=title == "Waiting")
        for number, column in enumerate(columns):
            table.add_column(column, style="cyan" if number == 0 else None, no_wrap=number == 0)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        if table.row_count:
            console.print(table)
    for line in hidden:
        console.print(line, markup=False)


def as_json_text(outcome: Outcome) -> str:
    """For programs: ids and stable codes first, words beside them."""
    runs = _runs(outcome)
    result = {
        "title": outcome.scenario.title,
        "moment": outcome.moment,
        "nodes": [
            {**plain(node), "free": dict(outcome.engine.free(id)), "runs": runs.get(id, [])}
            for id, node in outcome.engine.nodes.items()
        ],
        "waiting": [
            {"ids": waiter.ids, "text": str(waiter.explanation), **_reasons(waiter.explanation)}
            for waiter in waiters(outcome)
        ],
        "refused": [plain(refused) for refused in outcome.refused],
        "ended": outcome.ended,
        "timeline": [{"moment": line.moment, **plain(line.what)} for line in outcome.timeline],
    }
    return json.dumps(result, indent=2, sort_keys=True)


def _reasons(found: Explanation) -> dict[str, Any]:
    return {
        "choices": [[_refusal(refusal) for refusal in verdict.refusals] for verdict in found.verdicts],
        "change": wording.change(found.change) if found.change else None,
        "members": [{"id": member.id, **_reasons(member)} for member in found.members],
    }


def _refusal(refusal: Refusal) -> dict[str, Any]:
    reason = refusal.reason
    return {"code": reason.code, "nodes": refusal.nodes, "alone": refusal.alone, "reason": plain(reason)}


def why_text(outcome: Outcome, id: str) -> str:
    """Why an ask or group waits, is where it is, or is gone."""
    if id in outcome.ended:
        return f"{id} has ended."
    for refused in outcome.refused:
        if refused.id == id:
            return f"{id} {_decided(refused)[1]}."
    known = {*outcome.submitted, *_members(outcome.submitted.values())}
    if id not in known:
        raise Invalid(f"nothing named {id!r} was submitted{did_you_mean(id, known)}")
    return f"{id}:{_indented(str(outcome.engine.explain(id)))}"


def _members(submitted: Iterable[Ask | Group]) -> Iterator[str]:
    for item in submitted:
        if isinstance(item, Group):
            yield from (member.id for members in item.alternatives for member in members)
