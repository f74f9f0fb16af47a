"""`stead work`, `groups`, `status`, `events`: what runs, what waits, and what happened.

Rule: a list is the same rows in every form, and goes on where somebody watches.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from stead.commands.output import (
    amounts_text,
    columns,
    detailed,
    event_line,
    for_scripts,
    formatted,
    joined,
    listed,
    more,
    shortened,
    structured,
    time_text,
    watching,
    work_table,
    written,
)
from stead.commands.reach import addressed, reached
from stead.commands.words import SHORT, all_nodes

if TYPE_CHECKING:
    from stead.operate.desk import Desk
    from stead.operate.views import GroupView, Summary, WorkView

FOLLOW_S = 0.5
LONGEST_SHOWN = 5


def node_names(desk: Desk) -> dict[str, str]:
    return {view.id: view.title for view in all_nodes(desk)}


@click.command(short_help="List the work: what waits, then what runs.")
@click.option("--waiting", "state", flag_value="waiting", help="Only what waits.")
@click.option("--running", "state", flag_value="running", help="Only what runs.")
@click.option("--selector", "-l", metavar="SELECTOR", help="Only work with these labels: 'role in [trainer]'.")
@listed
@addressed
def work(
    state: str | None,
    selector: str | None,
    filters: tuple[str, ...],
    limit: int,
    detail: bool,
    watch: bool,
    form: str,
    address: str | None,
) -> int:
    """List the work: what waits, in the order in which it will be tried, then what runs and where.

    \b
    Examples:
      stead work --waiting
      stead work --filter kind=actor --filter node=1a2b3c4d5e6f
      stead work --format json
    """
    from stead.operate.snapshot import Query
    from stead.operate.views import work_json
    from stead.selectors import parse_selector

    conditions = (*filters, *([f"state={state}"] if state else []))
    query = Query(conditions, None if selector is None else parse_selector(selector), 0, limit)
    with reached("work", address) as desk:

        def show() -> str:
            page = desk.work(query)
            if for_scripts(form):
                return written(form, [work_json(view) for view in page.items])
            more(len(page.items), page.total)
            if not page.items:
                return "no work"
            if detail:
                return detailed(map(work_json, page.items))
            names = node_names(desk) if any(view.node for view in page.items) else {}
            return work_table(page.items, names, desk.summary().at)

        watching(watch, show)
    return 0


@click.command(short_help="List the groups.")
@listed
@addressed
def groups(filters: tuple[str, ...], limit: int, detail: bool, watch: bool, form: str, address: str | None) -> int:
    """List the groups: work that is placed together or not at all.

    \b
    Examples:
      stead groups
      stead groups --filter state=waiting
    """
    from stead.operate.snapshot import Query
    from stead.operate.views import group_json

    query = Query(filters, None, 0, limit)
    with reached("groups", address) as desk:

        def show() -> str:
            page = desk.groups(query)
            if for_scripts(form):
                return written(form, [group_json(view) for view in page.items])
            more(len(page.items), page.total)
            if not page.items:
                return "no group"
            return detailed(map(group_json, page.items)) if detail else group_table(page.items, node_names(desk))

        watching(watch, show)
    return 0


def group_table(views: Sequence[GroupView], names: Mapping[str, str]) -> str:
    rows = [("ID", "NAME", "STATE", "STRATEGY", "BUNDLES", "NODES")]
    for view in views:
        nodes = dict.fromkeys(names.get(node, node[:SHORT]) for _, node in view.members if node)
        bundles = str(len(view.members))
        rows.append((view.id, view.name or "-", view.state, view.strategy, bundles, joined(nodes) or "-"))
    return columns(rows)


@click.command(short_help="The cluster in numbers.")
@click.option("--watch", "-w", is_flag=True, help="Go on, and print again when something has changed.")
@formatted
@addressed
def status(watch: bool, form: str, address: str | None) -> int:
    """The cluster in numbers: nodes, work, what is free, and what waits for the longest.

    \b
    Examples:
      stead status
      stead status --format json
    """
    from stead.operate.views import summary_json

    with reached("status", address) as desk:

        def show() -> str:
            return written(form, summary_json(desk.summary())) if for_scripts(form) else _status(desk)

        watching(watch, show)
    return 0


def _status(desk: Desk) -> str:
    found = desk.summary()
    marks = [f"{found.tainted} tainted"] * bool(found.tainted) + [f"{found.draining} draining"] * bool(found.draining)
    lines = [
        f"{found.kind} {found.title}".strip(),
        f"nodes    {found.nodes}" + (f" ({', '.join(marks)})" if marks else ""),
        f"work     {found.running} running, {found.waiting} waiting",
        f"groups   {found.groups - found.groups_waiting} placed, {found.groups_waiting} waiting",
    ]
    free = {name: found.available.get(name, 0.0) for name in found.total if "object_store" not in name}
    lines.append(f"free     {amounts_text(free)}")
    return "\n".join([*lines, *_waiting(desk, found)])


def _waiting(desk: Desk, summary: Summary) -> list[str]:
    """Why work waits: the kinds that wait for the longest, and how many others there are."""
    from stead.operate.snapshot import PAGE_MAX, Query

    page = desk.work(Query(("state=waiting",), None, 0, PAGE_MAX))
    kinds: dict[str, list[WorkView]] = {}
    for view in page.items:  # members of a group wait as one, and those that ask for the same wait for the same
        kind = view.group or repr((view.resources, view.rules, view.labels, view.namespace, view.kind))
        kinds.setdefault(kind, []).append(view)
    ordered = sorted(kinds.values(), key=lambda alike: min(view.since or summary.at for view in alike))
    told: dict[str, dict[str, WorkView]] = {}
    for alike in ordered[:LONGEST_SHOWN]:
        why = str(desk.why(alike[0].group or alike[0].id)).replace("\n", " ")
        same = told.setdefault(why, {})
        for view in alike:
            same.setdefault(view.group or view.id, view)
    lines = ["", "Waiting:"] if told else []
    lines += [f"  {_ages(same, summary.at)}: {shortened(said)}" for said, same in told.items()]
    rest = ordered[LONGEST_SHOWN:]
    count = sum(view.count for alike in rest for view in alike) + page.total - len(page.items)
    if count:
        more = f"and {count:,} more, of {len(rest):,} other kinds"
        lines.append(f"  {more}; list them with: stead work --filter state=waiting")
    return lines


def _ages(alike: Mapping[str, WorkView], now: float) -> str:
    """``train-1, train-2 (8), for 5m``: who, how many in all, and the longest."""
    many = sum(view.count for view in alike.values())
    since = [view.since for view in alike.values() if view.since]
    age = f", for {time_text(now - min(since))}" if since and min(since) < now else ""
    return f"{joined(map(shortened, alike))}{f' ({many})' if many > len(alike) else ''}{age}"


@click.command(short_help="Tell what happened: what waits and why, taints, labels.")
@click.option("--after", metavar="NUMBER", type=click.IntRange(0), default=0, help="Only what came after this event.")
@click.option("--limit", type=click.IntRange(1, 1000), default=1000, show_default=True, help="So many at most.")
@click.option("--follow", "-f", is_flag=True, help="Go on, and print what happens.")
@formatted
@addressed
def events(after: int, limit: int, follow: bool, form: str, address: str | None) -> int:
    """Tell what happened, oldest first: work that waits and why, taints, labels, evictions, deadlines.

    \b
    Examples:
      stead events
      stead events -f
      stead events --json --after 120
    """
    from stead.operate.views import event_json

    with reached("events", address) as desk:
        found = desk.events(after, limit)
        if not follow and structured(form, [event_json(event) for event in found]):
            return 0
        while True:
            for event in found:
                after = event.number
                click.echo(_line(form, event_json(event)) if for_scripts(form) else event_line(event))
            if not follow:
                return 0
            time.sleep(FOLLOW_S)
            found = desk.events(after, limit)


def _line(form: str, event: dict[str, Any]) -> str:
    """One event of a stream: a line of JSON, or a document of YAML."""
    return json.dumps(event) if form == "json" else f"---\n{written(form, event)}"
