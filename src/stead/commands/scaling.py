"""`stead scale`: what the autoscaler does, as its page shows it.

Rule: it only prints what the autoscaler reported to the desk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stead.commands.connecting import Where, asked, reached
from stead.commands.output import columns, for_scripts, formatted, pairs, watching, written
from stead.language.resources import amounts_text
from stead.language.times import duration_text, moment_text
from stead.text import first_few, plural, price_text, short_id

if TYPE_CHECKING:
    from stead.commands.naming import Names
    from stead.operate.desk import Desk
    from stead.operate.scale import KindView, LaunchView, MoveView, ScaledNodeView, ScaleView

NONE = "-"
MOVES_SHOWN = 3


@click.command(short_help="Show what the autoscaler does, and what nodes cost.")
@click.option("--watch", "-w", is_flag=True, help="Keep running, and print again after each change.")
@formatted
@asked
def scale(watch: bool, form: str, where: Where) -> int:
    """Show what the autoscaler does: the kinds of nodes, with prices and limits, and why a kind rests; launches in
    flight; every launched node, what it costs and why it is kept; the plan; and proposals.

    `stead autoscale` is the autoscaler. Without one, `stead plan` shows which new nodes pending work needs.

    \\b
    Examples:
      stead scale
      stead scale --watch
      stead scale -o jsonpath={.autoscaler.price}
    """
    from stead.operate.scale import scale_json

    with reached("scale", where) as desk:

        def show() -> str:
            view = desk.scale()
            return written(form, scale_json(view)) if for_scripts(form) else _text(view, desk)

        watching(watch, show)
    return 0


def _text(view: ScaleView | None, desk: Desk) -> str:
    from stead.commands.naming import Names
    from stead.commands.planning import plan_lines

    if view is None:
        return "No autoscaler has reported to this cluster; start one with: stead autoscale --config cluster.yaml"
    names = Names(desk)
    now = names.now()
    price = f" for {price_text(view.price)} per hour" if view.price else ""
    head = f"{plural(len(view.nodes), 'launched node')} from {view.provider}{price}."
    if view.is_silent:
        since = f"{moment_text(view.at)} UTC ({duration_text(max(0.0, now - view.at))} ago)"
        head = f"The autoscaler has not reported since {since}; this is what it reported then.\n{head}"
    parts = [names.text(head), columns([KINDS, *(_kind(each, now) for each in view.kinds)])]
    if view.launches:
        parts.append(columns([LAUNCHES, *(_launch(each, now) for each in view.launches)]))
    if view.nodes:
        parts.append(columns([NODES, *(_node(each, now) for each in view.nodes)]))
    if view.plan is not None:
        parts.append("\n".join(["Latest plan:", *(f"  {line}" for line in plan_lines(view.plan, names))]))
    if view.proposals:
        parts.append("\n".join(["Proposals:", *(f"  {_proposal(each, names)}" for each in view.proposals)]))
    return "\n\n".join(parts)


KINDS = ("KIND", "EACH HAS", "LABELS", "TAINTS", "PRICE", "RUNNING", "COMING", "MIN", "MAX", "STATE")
LAUNCHES = ("LAUNCH", "KIND", "STATE", "AGE", "TIME LEFT", "PROBLEM")
NODES = ("NODE", "KIND", "PRICE", "STATE", "IDLE FOR", "KEPT BECAUSE")


def _kind(each: KindView, now: float) -> list[str]:
    counts = [str(number) for number in (each.running, each.coming, each.count_min, each.count_max)]
    has = [amounts_text(each.resources), pairs(each.labels) or NONE, ",".join(each.taints) or NONE]
    return [each.name, *has, _price(each.price), *counts, _state(each, now)]


def _state(each: KindView, now: float) -> str:
    if each.rests_until is not None:
        return f"rests for {duration_text(max(0.0, each.rests_until - now))}: {each.why}"
    return "at maximum" if each.running + each.coming >= each.count_max else NONE


def _launch(each: LaunchView, now: float) -> list[str]:
    left = duration_text(each.deadline - now) if each.deadline > now else "overdue"
    return [
        short_id(each.id),
        each.kind,
        each.state,
        duration_text(max(0.0, now - each.since)),
        left,
        each.problem or NONE,
    ]


def _node(each: ScaledNodeView, now: float) -> list[str]:
    idle = NONE if each.idle_since is None else duration_text(max(0.0, now - each.idle_since))
    return [each.title, each.kind, _price(each.price), each.state, idle, each.kept or NONE]


def _price(price: float) -> str:
    return price_text(price) if price else NONE


def _proposal(each: MoveView, names: Names) -> str:
    moves = [f"{names.of(id)} moved to {names.node(node)}" for id, node in each.moves]
    nodes = first_few(map(names.node, each.nodes))
    saves = f" ({price_text(each.saves)} per hour less)" if each.saves else ""
    return f"{nodes} would not be needed{saves} if {first_few(moves, MOVES_SHOWN)}."
