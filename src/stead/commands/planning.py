"""`stead plan`: which new nodes pending work needs.

Rule: a dry run; nothing is started. The desk makes the plan, and this module only prints it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stead.commands.connecting import Where, asked, reached
from stead.commands.output import formatted, parsed_spec, structured
from stead.language.resources import Resources, as_written
from stead.text import first_few, plural, printable

if TYPE_CHECKING:
    from stead.commands.naming import Names
    from stead.operate.plans import NewNodes, PlanView, StillPending

SHOWN_MAX = 5
"""How many pieces of work are named in a line."""


@click.command(short_help="Show which new nodes pending work needs.")
@click.option(
    "--nodes",
    metavar="FILE",
    help="The kinds of nodes to choose from, as YAML; - is standard input. By default, the kinds that the cluster has.",
)
@formatted
@asked
def plan(nodes: str | None, form: str, where: Where) -> int:
    """Show which new nodes pending work needs, what would run on them, and what would stay pending even then.

    Nothing is started. Nodes with equal resources and labels are of one kind. A file can describe other kinds, with
    prices and maximum numbers.

    \b
    Examples:
      stead plan
      stead plan --nodes kinds.yaml
      stead plan --scenario scenarios/demo.yaml
      stead plan -o json
    """
    described = None if nodes is None else parsed_spec(nodes, ("nodes",))
    from stead.commands.naming import Names
    from stead.operate.plans import plan_json

    with reached("plan", where) as desk:
        found = desk.plan(described)
        if not structured(form, plan_json(found)):
            for line in lines(found, Names(desk)):
                click.echo(line)
    return 0


def lines(found: PlanView, names: Names) -> list[str]:
    lines = []
    if found.fits:
        lines.append(f"On existing nodes: {_work(found.fits, names)}.")
    lines += [_launch(each, names) for each in found.new_nodes]
    if found.price:
        lines.append(f"Price: {found.price:g}.")
    if found.pending:
        lines.append("Pending even then:")
        lines += [_left(each, names) for each in found.pending]
    return lines or ["No work is pending."]


def _launch(each: NewNodes, names: Names) -> str:
    what = ", ".join(f"{name} {amount}" for name, amount in as_written(Resources.of(each.resources)).items())
    kind = f"like {printable(each.name)}" if each.is_like else f"of the kind {printable(each.name)}"
    limit = ", the maximum," if each.at_limit else ""
    nodes = plural(each.count, "new node")
    return f"{nodes} {kind}{limit} ({what}) would run {_work(each.serves, names)}."


def _left(each: StillPending, names: Names) -> str:
    return f"  {_work(each.ids, names)}: the nearest kind is {printable(each.nearest)}: {names.text(each.why)}."


def _work(ids: tuple[str, ...], names: Names) -> str:
    return first_few([names.of(id) for id in ids], SHOWN_MAX)
