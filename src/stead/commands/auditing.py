"""`stead audit`, `undo`: who changed what, and how to undo it.

Rule: the audit is verified whenever it is shown; an audit that was tampered with is refused.
"""

from __future__ import annotations

import click

from stead.commands.connecting import Where, addressed, author, reached
from stead.commands.output import formatted, say, sortable, structured, unconfirmed_text
from stead.text import plural, printable


@click.command(short_help="Show who changed what.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum number of entries."
)
@click.option("--after", metavar="NUMBER", type=click.IntRange(0), help="Show the entries after this one.")
@click.option("--verify", is_flag=True, help="Only check that no entry was changed, removed or inserted.")
@sortable
@addressed
def audit(limit: int, after: int | None, verify: bool, order: str | None, form: str, where: Where) -> int:
    """Show who changed which node, when, from where, and how; the newest change is last. `stead undo` undoes one.

    \b
    Examples:
      stead audit
      stead audit --limit 10 -o json
      stead audit --sort-by who -o csv
      stead audit --verify
    """
    from stead.commands.lists import FOR_PEOPLE
    from stead.commands.naming import Names
    from stead.commands.tables import entry_listing

    with reached("audit", where) as desk:
        count = desk.verify()
        if verify:
            if not structured(form, {"entries": count, "verified": True}):
                click.echo(f"{plural(count, 'entry', 'entries')}, none was tampered with")
            return 0
        found = desk.audit(max(0, count - limit) if after is None else after, limit)
        listing = entry_listing(Names(desk))
        if order is not None:
            found = listing.sorted(found, order)
        say("no changes" if not found and form in FOR_PEOPLE else listing.text(form, found))
    return 0


@click.command(short_help="Undo a change.")
@click.argument("number", type=click.IntRange(1, 2**62))
@formatted
@addressed
def undo(number: int, form: str, where: Where) -> int:
    """Undo the change with this NUMBER in `stead audit`. Refused if the same thing was changed again since.

    \b
    Example:
      stead undo 3
    """
    from stead.commands.naming import Names
    from stead.operate.desk import carried_json

    with reached("undo", where) as desk:
        carried = desk.undo(number, author())
        changes = Names(desk).spelled(carried.entry.changes)
    if not structured(form, carried_json(carried)):
        for view in carried.nodes:
            click.echo(printable(f"node {view.title}: entry {number} is undone: {changes}"))
        for line in unconfirmed_text(carried):
            click.echo(line)
    return 0
