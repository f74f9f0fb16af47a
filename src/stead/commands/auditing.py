"""`stead audit`, `undo`: who changed what, and taking it back.

Rule: the audit is shown as it was written; whether it was touched since is said whenever it is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stead.commands.output import columns, formatted, moment, shortened, structured, unconfirmed_text
from stead.commands.reach import addressed, author, reached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stead.operate.audit import Entry


@click.command(short_help="Show who changed what.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="The last so many.")
@click.option("--after", metavar="NUMBER", type=click.IntRange(0), help="The first so many after this entry instead.")
@click.option("--verify", is_flag=True, help="Only check that no entry was changed, taken out or put in.")
@formatted
@addressed
def audit(limit: int, after: int | None, verify: bool, form: str, address: str | None) -> int:
    """Show who changed which node, when, from where, and what; the newest last. `stead undo` takes one back.

    \b
    Examples:
      stead audit
      stead audit --limit 10 --format json
      stead audit --verify
    """
    from stead.operate.audit import entry_json

    with reached("audit", address) as desk:
        count = desk.verify()
        if verify:
            if not structured(form, {"entries": count, "verified": True}):
                click.echo(f"{count} {'entry' if count == 1 else 'entries'}, none was touched")
            return 0
        found = desk.audit(max(0, count - limit) if after is None else after, limit)
    if not structured(form, [entry_json(entry) for entry in found]):
        click.echo(_table(found) if found else "no change")
    return 0


def _table(entries: Sequence[Entry]) -> str:
    rows = [("NUMBER", "AT", "WHO", "FROM", "VIA", "NODE", "ACTION", "CHANGES")]
    for each in entries:
        who = (each.author, each.origin or "-", each.via)
        rows.append((str(each.number), moment(each.at), *who, _short(each.title), each.action, each.changes))
    return columns(rows)


def _short(node: str) -> str:
    return shortened(node)


@click.command(short_help="Take a change back.")
@click.argument("number", type=click.IntRange(1, 2**62))
@formatted
@addressed
def undo(number: int, form: str, address: str | None) -> int:
    """Take back the change with this NUMBER of `stead audit`. Refused if what it changed was changed again since.

    \b
    Example:
      stead undo 3
    """
    from stead.operate.desk import carried_json

    with reached("undo", address) as desk:
        carried = desk.undo(number, author())
    if not structured(form, carried_json(carried)):
        for view in carried.nodes:
            click.echo(f"node {_short(view.id)}: {number} is undone: {carried.entry.changes}")
        for line in unconfirmed_text(carried):
            click.echo(line)
    return 0
