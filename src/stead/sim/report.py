"""The report of a simulated run: tables on a terminal, plain text in a pipe, or JSON for programs.

Rule: tables and text show the same rows; JSON has the same content as values. All sentences come from the engine's
explanations and events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from stead.codec import plain
from stead.engine.decisions import GroupPlaced, Placed, Refusal, Waiting
from stead.engine.explain import wording
from stead.engine.explain.events import event_of, listed
from stead.engine.explain.explanations import Explanation
from stead.errors import absent
from stead.language.asks import Ask, Group
from stead.language.resources import UNIT, quantity_text
from stead.operate.changes import Absent
from stead.operate.snapshot import Snapshot
from stead.sim.cluster import Happening, Outcome
from stead.text import aligned, plural

TIMELINE_LINES_MAX = 200

KIND_COLUMNS = ("kind", "nodes", "launched", "failed", "retired", "lost", "spent")


@dataclass(frozen=True, slots=True)
class Waiter:
    """Equal asks (or groups) that are pending for the same reasons."""

    ids: tuple[str, ...]
    explanation: Explanation


def waiters(outcome: Outcome) -> list[Waiter]:
    """All pending work, in the order in which it will be tried; equal work is explained once."""
    by_shape: dict[Any, list[str]] = {}
    for id in outcome.engine.waiting:
        by_shape.setdefault(outcome.submitted[id].shape_key, []).append(id)
    snapshot = Snapshot(outcome.engine, outcome.moment)
    return [Waiter(tuple(ids), snapshot.explain(ids[0])) for ids in by_shape.values()]


def summary(outcome: Outcome) -> str:
    """``demo at 90 s: 6 nodes; 12 asks placed, 4 waiting, 1 refused, 3 ended``."""
    engine = outcome.engine
    counts = [
        f"{len(engine.placed)} asks placed",
        f"{len(engine.waiting)} waiting",
        f"{len(outcome.refused)} refused",
        f"{len(outcome.ended)} ended",
    ]
    nodes = plural(len(engine.nodes), "node")
    return f"{outcome.scenario.title} at {outcome.moment:g} s: {nodes}; {', '.join(counts)}"


# The rows that all forms show.


def node_rows(outcome: Outcome) -> Iterator[tuple[str, str, str, str]]:
    """Node, its labels and taints, used and total resources, and its work."""
    runs = _runs(outcome)
    for id, node in outcome.engine.nodes.items():
        marks = [str(node.labels)] if node.labels else []
        marks += [f"tainted {taint}" for taint in node.taints] + (["draining"] if node.draining else [])
        free = outcome.engine.free(id)
        used = [_used(name, total - free.get(name, 0), total) for name, total in node.capacity.items()]
        yield id, "; ".join(marks), ", ".join(used), listed(runs.get(id, ()))


def _runs(outcome: Outcome) -> dict[str, list[str]]:
    """Placed work by node; nodes without work are left out."""
    runs: dict[str, list[str]] = {}
    for ask, where in outcome.engine.placed.items():
        runs.setdefault(where, []).append(ask)
    return runs


def _used(name: str, used: int, total: int) -> str:
    return f"{quantity_text(name, used / UNIT)}/{quantity_text(name, total / UNIT)} {name}"


def kind_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Each kind of node of an autoscaler: nodes now, and what it launched, gave up, retired, lost and spent."""
    for kind in outcome.kinds:
        counts = (kind.nodes, kind.launched, kind.failed, kind.retired, kind.lost)
        yield kind.kind, *map(str, counts), f"{kind.spent:.2f}"
    if outcome.kinds:
        yield "all", *("" for _ in KIND_COLUMNS[2:]), f"{sum(kind.spent for kind in outcome.kinds):.2f}"


def waiting_rows(outcome: Outcome) -> Iterator[tuple[str, str]]:
    for waiter in waiters(outcome):
        yield listed(waiter.ids), str(waiter.explanation)


def timeline_rows(timeline: Iterable[Happening]) -> Iterator[tuple[str, str]]:
    """Time and sentence. Consecutive events with the same time and text are one line."""
    events = (event_of(happening.what, happening.moment) for happening in _news(timeline))
    parts = ((event.at, event.subject, event.text) for event in events if event is not None)
    for (moment, text), lines in groupby(parts, key=lambda line: (line[0], line[2])):
        yield f"{moment:g} s", f"{listed([subject for _, subject, _ in lines])} {text}"


def _news(timeline: Iterable[Happening]) -> Iterator[Happening]:
    """The timeline without repeated reasons: reasons may differ in a count that the sentence does not show."""
    last: dict[str, str] = {}
    for happening in timeline:
        match happening.what:
            case Waiting(ids) as waiting:
                text = event_of(waiting, happening.moment).text
                if all(last.get(id) == text for id in ids):
                    continue
                last.update(dict.fromkeys(ids, text))
            case Placed(id) | GroupPlaced(id):
                last.pop(id, None)
        yield happening


# The three forms.


def as_text(outcome: Outcome) -> str:
    """Plain text, the same on every machine."""
    lines = [summary(outcome), "", *aligned([("NODE", "LABELS", "USED", "WORK"), *node_rows(outcome)])]
    if kinds := list(kind_rows(outcome)):
        lines += ["", *aligned([tuple(column.upper() for column in KIND_COLUMNS), *kinds])]
    if waiting := list(waiting_rows(outcome)):
        lines += ["", "WAITING", *(f"{who}:{_indented(reason)}" for who, reason in waiting)]
    shown, hidden = _shortened(outcome.timeline)
    lines += ["", "TIMELINE", *aligned(shown), *hidden]
    return "\n".join(lines)


def _indented(reason: str) -> str:
    """On the same line if it is one line, else indented below."""
    return f" {reason}" if "\n" not in reason else "".join(f"\n    {line}" for line in reason.splitlines())


def _shortened(timeline: Sequence[Happening]) -> tuple[list[tuple[str, str]], list[str]]:
    rows = list(timeline_rows(timeline))
    hidden = len(rows) - TIMELINE_LINES_MAX
    return rows[:TIMELINE_LINES_MAX], [f"... and {hidden} more lines; --json shows all"] if hidden > 0 else []


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
        ("Scaling", KIND_COLUMNS, kind_rows(outcome)),
        ("Waiting", ("who", "why"), waiting_rows(outcome)),
        ("Timeline", ("when", "what"), shown),
    ]
    for title, heads, rows in tables:
        table = Table(title=title, title_justify="left", title_style="bold", show_lines=title == "Waiting")
        for number, column in enumerate(heads):
            table.add_column(column, style="cyan" if number == 0 else None, no_wrap=number == 0)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        if table.row_count:
            console.print(table)
    for line in hidden:
        console.print(line, markup=False)


def as_json_text(outcome: Outcome) -> str:
    """JSON for programs: ids and stable codes, with the sentences."""
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
        **({"scaling": [asdict(kind) for kind in outcome.kinds]} if outcome.kinds else {}),
        "timeline": [{"moment": line.moment, **plain(line.what)} for line in outcome.timeline],
    }
    return json.dumps(result, indent=2, sort_keys=True)


def _reasons(found: Explanation) -> dict[str, Any]:
    return {
        "choices": [[_refusal(refusal) for refusal in verdict.refusals] for verdict in found.verdicts],
        "change": wording.change(found.change, names=found.names) if found.change else None,
        "members": [{"id": member.id, **_reasons(member)} for member in found.members],
    }


def _refusal(refusal: Refusal) -> dict[str, Any]:
    reason = refusal.reason
    return {"code": reason.code, "nodes": refusal.nodes, "alone": refusal.alone, "reason": plain(reason)}


def why_text(outcome: Outcome, id: str) -> str:
    """Why an ask or group is pending, is on its node, or was refused, or that it has ended."""
    if id in outcome.ended:
        return f"{id} has ended."
    for refused in outcome.refused:
        if refused.id == id:
            return f"{id} {event_of(refused, outcome.moment).text}."
    known = {*outcome.submitted, *_members(outcome.submitted.values())}
    if id not in known:
        raise Absent(absent("work", id, known, "in this scenario"))
    return f"{id}:{_indented(str(Snapshot(outcome.engine, outcome.moment).explain(id)))}"


def _members(submitted: Iterable[Ask | Group]) -> Iterator[str]:
    for item in submitted:
        if isinstance(item, Group):
            yield from (member.id for members in item.alternatives for member in members)
