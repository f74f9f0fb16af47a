"""`stead top`: the fullest nodes, and the owners that use the most.

Rule: what a node has and is not free is used. A node is ranked by the resource with the highest percentage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from stead.commands.connecting import Where, asked, reached
from stead.commands.output import sortable, watching
from stead.errors import did_you_mean
from stead.language.resources import in_order, quantity_text

if TYPE_CHECKING:
    from stead.commands.lists import Column, Listing
    from stead.operate.describing import Use
    from stead.operate.desk import Desk
    from stead.operate.views import NodeView

WHAT = ("nodes", "owners")


@click.command(short_help="Show the fullest nodes, or who uses the most resources.")
@click.argument("what", default="nodes", metavar="[nodes|owners]")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number of rows.")
@click.option("--watch", "-w", is_flag=True, help="Keep running, and print again after each change.")
@sortable
@asked
def top(what: str, limit: int, watch: bool, order: str | None, form: str, where: Where) -> int:
    """Show what is used on each node, the fullest first; or with `owners`, what the work of each owner uses and waits
    for, the owners with the most work first.

    \b
    Examples:
      stead top
      stead top --sort-by -gpu% --limit 10
      stead top owners
      stead top owners -o csv
    """
    if what not in WHAT:
        raise click.UsageError(f"{what!r} cannot be shown{did_you_mean(what, WHAT)}; give nodes or owners")
    show = _nodes if what == "nodes" else _owners
    with reached("top", where) as desk:
        watching(watch, lambda: show(desk, limit, order, form))
    return 0


def _owners(desk: Desk, limit: int, order: str | None, form: str) -> str:
    from stead.commands.lists import page_text
    from stead.commands.tables import owner_listing
    from stead.operate.snapshot import PAGE_MAX, Query

    everyone = desk.owners(Query(limit=PAGE_MAX)).items
    named = in_order({name for view in everyone for name in (*view.uses, *view.asks_for)})
    listing = owner_listing(named)
    page = listing.page(desk.owners, Query(limit=limit), order)
    return page_text(listing, page, form, False, "no work has an owner")


def _nodes(desk: Desk, limit: int, order: str | None, form: str) -> str:
    from stead.commands.arguments import all_nodes
    from stead.commands.lists import page_text
    from stead.commands.naming import for_scripts, titles
    from stead.operate.views import Page

    views = all_nodes(desk)
    named = in_order({name for view in views for name in view.total if view.total[name]})
    listing = node_use_listing(named, titles(views), for_scripts(views))
    ordered = listing.sorted(views, "-most" if order is None else order)
    return page_text(listing, Page(tuple(ordered[:limit]), len(ordered)), form, False, "no nodes")


def node_use_json(view: NodeView) -> dict[str, Any]:
    from stead.operate.describing import use_json, uses_of

    uses = uses_of(view)
    return {
        "id": view.id,
        "name": view.name,
        "uses": [use_json(each) for each in uses],
        "most": most(uses),
        "runs": view.runs,
    }


def most(uses: Sequence[Use]) -> float:
    """The percentage of the resource that is used the most. Object store memory does not count."""
    from stead.operate.views import holds_results

    return max((each.percent for each in uses if not holds_results(each.resource)), default=0.0)


def node_use_listing(
    resources: Sequence[str], titles: Mapping[str, str], names: Mapping[str, str]
) -> Listing[NodeView]:
    from stead.commands.lists import Column, Listing
    from stead.commands.tables import none_if_zero

    return Listing(
        (
            Column("NODE", lambda view: titles[view.id]),
            Column("ID", lambda view: view.id, wide=True),
            *(column for resource in resources for column in _columns(resource)),
            Column("RUNS", lambda view: str(view.runs), none_if_zero, key=lambda view: view.runs),
        ),
        lambda view: names[view.id],
        node_use_json,
    )


def _columns(resource: str) -> tuple[Column[NodeView], Column[NodeView]]:
    """``3/8`` and ``38%``."""
    from stead.commands.lists import Column
    from stead.operate.describing import uses_of

    def use(view: NodeView) -> Use | None:
        return next((each for each in uses_of(view) if each.resource == resource), None)

    def amounts(view: NodeView) -> str:
        found = use(view)
        return f"{quantity_text(resource, found.used)}/{quantity_text(resource, found.total)}" if found else ""

    def percent(view: NodeView) -> str:
        found = use(view)
        return f"{found.percent:.0f}%" if found else ""

    def used(view: NodeView) -> float | None:
        found = use(view)
        return found.used if found else None

    title = resource.upper()
    return Column(title, amounts, key=used), Column(f"{title}%", percent, key=lambda view: _part(use(view)))


def _part(use: Use | None) -> float | None:
    return None if use is None else use.percent
