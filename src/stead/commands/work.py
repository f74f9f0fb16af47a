"""`stead work`, `groups`, `status`, `events`: running and waiting work, and what happened.

Rule: a list has the same rows in every form, and can be watched.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from stead.commands.connecting import Where, asked, reached
from stead.commands.output import (
    for_scripts,
    formatted,
    listed,
    say,
    sortable,
    watching,
    written,
)
from stead.language.resources import amounts_text
from stead.language.times import duration_text
from stead.text import first_few, plural, printable, short_id

if TYPE_CHECKING:
    from stead.commands.naming import Names
    from stead.engine.explain.events import Event
    from stead.operate.desk import Desk
    from stead.operate.pending import Alike
    from stead.operate.views import Summary

FOLLOW_S = 0.5
LONGEST_SHOWN = 5


@click.command(short_help="List work: pending first, then running.")
@click.option("--waiting", "state", flag_value="waiting", help="Only waiting work.")
@click.option("--running", "state", flag_value="running", help="Only running work.")
@click.option("--selector", "-l", metavar="SELECTOR", help="Only work with these labels: 'role in [trainer]'.")
@listed
@asked
def work(
    state: str | None,
    selector: str | None,
    filters: tuple[str, ...],
    limit: int,
    detail: bool,
    watch: bool,
    order: str | None,
    form: str,
    where: Where,
) -> int:
    """List the work: waiting work in the order in which it is tried, then running work and its nodes.

    \b
    Examples:
      stead work --waiting
      stead work --filter kind=actor --filter node=1a2b3c4d5e6f
      stead work --sort-by age -o wide
      stead work -o jsonpath='{.items[*].name}'
    """
    from stead.commands.lists import page_text
    from stead.commands.naming import Names
    from stead.commands.tables import work_listing
    from stead.language.selectors import parse_selector
    from stead.operate.snapshot import Query

    conditions = (*filters, *([f"state={state}"] if state else []))
    query = Query(conditions, None if selector is None else parse_selector(selector), 0, limit)
    with reached("work", where) as desk:

        def show() -> str:
            names = Names(desk)
            listing = work_listing(names, names.now, where.shows_namespaces)
            return page_text(listing, listing.page(desk.work, query, order), form, detail, "no work")

        watching(watch, show)
    return 0


@click.command(short_help="List groups.")
@listed
@asked
def groups(
    filters: tuple[str, ...],
    limit: int,
    detail: bool,
    watch: bool,
    order: str | None,
    form: str,
    where: Where,
) -> int:
    """List the groups: work that is placed together or not at all.

    \b
    Examples:
      stead groups
      stead groups --filter state=waiting
      stead groups --sort-by -bundles -o csv
    """
    from stead.commands.lists import page_text
    from stead.commands.naming import Names
    from stead.commands.tables import group_listing
    from stead.operate.snapshot import Query

    query = Query(filters, None, 0, limit)
    with reached("groups", where) as desk:

        def show() -> str:
            names = Names(desk)
            listing = group_listing(names, names.now)
            return page_text(listing, listing.page(desk.groups, query, order), form, detail, "no groups")

        watching(watch, show)
    return 0


@click.command(short_help="Show the cluster in numbers.")
@click.option("--watch", "-w", is_flag=True, help="Keep running, and print again after each change.")
@formatted
@asked
def status(watch: bool, form: str, where: Where) -> int:
    """Show a summary of the cluster: nodes, work, free resources, and the work that has been pending the longest.

    \b
    Examples:
      stead status
      stead status -o json
      stead status --scenario scenarios/demo.yaml --until 5m
    """
    from stead.operate.views import summary_json

    with reached("status", where.of_everything) as desk:

        def show() -> str:
            return written(form, summary_json(desk.summary())) if for_scripts(form) else _status(desk)

        watching(watch, show)
    return 0


def _status(desk: Desk) -> str:
    from stead.operate.views import holds_results

    found = desk.summary()
    marks = [f"{found.tainted} tainted"] * bool(found.tainted) + [f"{found.draining} draining"] * bool(found.draining)
    lines = [
        f"{found.kind} {found.title}".strip(),
        f"nodes    {found.nodes}" + (f" ({', '.join(marks)})" if marks else ""),
        f"work     {found.running} running, {found.waiting} waiting",
        f"groups   {found.groups - found.groups_waiting} placed, {found.groups_waiting} waiting",
    ]
    free = {name: found.available.get(name, 0.0) for name in found.total if not holds_results(name)}
    lines.append(f"free     {amounts_text(free)}")
    return "\n".join([*lines, *_waiting(desk, found)])


def _waiting(desk: Desk, summary: Summary) -> list[str]:
    """Why work is pending: the kinds that have been pending the longest, and the number of others."""
    from stead.commands.naming import Names
    from stead.operate.changes import Absent
    from stead.operate.desk import explained
    from stead.operate.pending import pending_alike

    page, kinds = pending_alike(desk)
    kinds.sort(key=lambda alike: summary.at if alike.oldest is None else alike.oldest)
    reasons: dict[str, list[Alike]] = {}
    for alike in kinds[:LONGEST_SHOWN]:
        with suppress(Absent):  # it has just started or ended
            reasons.setdefault(str(explained(desk, alike.id)).replace("\n", " "), []).append(alike)
    names = Names(desk)
    lines = ["", "Waiting:"] if reasons else []
    lines += [f"  {_ages(same, summary.at)}: {names.text(text)}" for text, same in reasons.items()]
    rest = kinds[LONGEST_SHOWN:]
    count = sum(alike.pieces for alike in rest) + page.total - len(page.items)
    if count:
        more = f"and {count:,} more, of {plural(len(rest), 'other kind')}"
        lines.append(f"  {more}; list them with: stead work --filter state=waiting")
    return lines


def _ages(same: Sequence[Alike], now: float) -> str:
    """``train-1, train-2 (8), for 5m``: the names, the total number, and the longest time."""
    many = sum(alike.count for alike in same)
    called = dict.fromkeys(short_id(name) for alike in same for name in alike.names)
    since = min((alike.oldest for alike in same if alike.oldest is not None), default=now)
    age = f", for {duration_text(now - since)}" if since < now else ""
    return f"{first_few(map(printable, called))}{f' ({many})' if many > len(called) else ''}{age}"


@click.command(short_help="Show events: pending work and why, taints, labels.")
@click.option("--after", metavar="NUMBER", type=click.IntRange(0), help="Only events after this one.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=1000,
    show_default=True,
    help="Maximum number of events; without --after, the latest.",
)
@click.option("--follow", "-f", is_flag=True, help="Keep running, and print new events.")
@sortable
@asked
def events(after: int | None, limit: int, follow: bool, order: str | None, form: str, where: Where) -> int:
    """Show what happened, oldest first: pending work and why, taints, labels, evictions, deadlines.

    \b
    Examples:
      stead events
      stead events -f
      stead events --sort-by kind -o csv
      stead events --json --after 120
    """
    from stead.commands.naming import Names
    from stead.commands.tables import event_listing

    if follow and (order is not None or form in ("wide", "csv")):
        raise click.UsageError("--follow prints each event when it happens, so it takes no --sort-by, wide or csv")
    with reached("events", where) as desk:
        found, names = desk.events(-limit if after is None else after, limit), Names(desk)
        listing = event_listing(names)
        if not follow:
            chosen = found if order is None else listing.sorted(found, order)
            lines = form in ("default", "table")
            say("\n".join(_line(form, event, names) for event in chosen) if lines else listing.text(form, chosen))
            return 0
        while True:
            for event in found:
                after = event.number
                click.echo(_line(form, event, names))
            time.sleep(FOLLOW_S)
            found = desk.events(after or 0, limit)
            names = Names(desk) if found else names


def _line(form: str, event: Event, names: Names) -> str:
    """One event of a stream: a line of document or JSON, or a YAML document."""
    from stead.operate.views import event_json

    if form == "name":
        return printable(event.subject)
    if not for_scripts(form):
        return names.event(event)
    document = event_json(event)
    return (
        json.dumps(document)
        if form == "json"
        else f"---\n{written(form, document)}"
        if form == "yaml"
        else written(form, document)
    )
