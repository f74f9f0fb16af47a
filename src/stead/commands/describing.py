"""`stead describe`: everything that is known about a node, a piece of work or a group.

Rule: `operate.describing` collects it; this module only formats it. Empty sections are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from stead.commands.completing import described
from stead.commands.connecting import Where, asked, reached
from stead.commands.output import ending, formatted, pairs, say, structured
from stead.errors import did_you_mean
from stead.language.labels import IDENTITY_KEYS
from stead.language.resources import amounts_text, quantity_text
from stead.language.times import duration_text, moment_text
from stead.text import plural, printable, short_id

if TYPE_CHECKING:
    from stead.commands.naming import Names
    from stead.operate.describing import Description
    from stead.operate.views import GroupView, NodeView, WorkView

KINDS = {"node": "node", "nodes": "node", "work": "work", "group": "group", "groups": "group"}


@click.command(short_help="Show all details of a node, a piece of work or a group.")
@click.argument("kind", metavar="node|work|group", shell_complete=described)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=described)
@formatted
@asked
def describe(kind: str, names: tuple[str, ...], form: str, where: Where) -> int:
    """Show everything about each NAME, a node, a piece of work or a group: state, age, labels and their sources,
    taints, what is used, what runs there, why it is pending, events, and who changed it. A NAME may be an id.

    \b
    Examples:
      stead describe node gpu-1
      stead describe work trainer
      stead describe group ring -o json
      stead describe node cpu-a --scenario scenarios/demo.yaml
    """
    if kind not in KINDS:
        raise click.UsageError(f"{kind!r} cannot be described{did_you_mean(kind, KINDS)}; give node, work or group")
    from stead.commands.naming import Names
    from stead.operate.describing import describe as look_at
    from stead.operate.describing import description_json

    with reached("describe", where) as desk:
        found = [look_at(desk, KINDS[kind], name) for name in names]
        documents = [description_json(each) for each in found]
        if not structured(form, documents[0] if len(documents) == 1 else documents):
            say("\n\n".join(description_text(each, Names(desk)) for each in found))
    return 0


def description_text(found: Description, names: Names) -> str:
    from stead.operate.views import GroupView, NodeView

    match found.subject:
        case NodeView() as node:
            facts, parts = _node_facts(node), _node_parts(found, node, names)
        case GroupView() as group:
            facts, parts = _group_facts(group), _work_parts(found, names)
        case work:
            facts, parts = _work_facts(work, names), _work_parts(found, names)
    age = "" if found.age is None else f"{duration_text(found.age)}, since {moment_text(found.since or 0.0)}"
    first = [(found.kind.capitalize(), found.name or found.id), ("Id", found.id if found.name else "")]
    state = getattr(found.subject, "state_title", found.state)
    lines = [*first, ("State", state), ("Age", age), *facts]
    head = [f"{title + ':':<11}{text}" for title, text in lines if text]
    texts = [f"{title}:\n" + "\n".join(f"  {line}" for line in body) for title, body in parts if body]
    return printable("\n".join([*head, *texts]), keep="\n")


Facts = Sequence[tuple[str, str]]
Parts = Iterator[tuple[str, list[str]]]


def _node_facts(view: NodeView) -> Facts:
    return [("Address", view.ip), ("Runs", f"{plural(view.runs, 'piece')} of work")]


def _node_parts(found: Description, view: NodeView, names: Names) -> Parts:
    labels = [key for key in sorted(view.labels) if key not in IDENTITY_KEYS]
    yield "Labels", [f"{key}={view.labels[key]}  ({view.sources.get(key, 'start')})" for key in labels]
    yield "Taints", _taints(found, view)
    yield (
        "Used",
        [
            f"{quantity_text(use.resource, use.used)}/{quantity_text(use.resource, use.total)} {use.resource}"
            f" ({use.percent:.0f}%)"
            for use in found.uses
        ],
    )
    yield from _work_parts(found, names)


def _taints(found: Description, view: NodeView) -> list[str]:
    ends = {(end.key, end.effect): end for end in view.ends}
    lines = []
    for taint in view.taints:
        end = ends.get((taint.key, taint.effect))
        text = ""
        if end is not None:
            until = (
                f"until {moment_text(end.until)} ({duration_text(end.until - found.at)} left)" if end.until else None
            )
            text = f" since {moment_text(end.since)}{',' if until or end.job or end.owner else ''}"
            text += ending(until, end.job, end.owner)
        lines.append(f"{taint}{text}")
    return lines


def _work_facts(view: WorkView, names: Names) -> Facts:
    return [
        ("Kind", view.kind),
        ("Node", names.node(view.node)),
        ("Owner", view.owner_title),
        ("Group", names.of(view.group) if view.group else ""),
        ("Namespace", view.namespace),
        ("Count", str(view.count) if view.count > 1 else ""),
        ("Asks for", amounts_text(view.resources)),
        ("Rules", names.text("; ".join(view.rules))),
        ("Labels", pairs(view.labels)),
    ]


def _group_facts(view: GroupView) -> Facts:
    return [
        ("Strategy", view.strategy),
        ("Minimum", "" if view.min_available is None else str(view.min_available)),
        ("Time-out", "" if view.timeout_s is None else duration_text(view.timeout_s)),
        ("Owner", view.owner_title),
        ("Asks for", _bundles(view)),
    ]


def _bundles(view: GroupView) -> str:
    counts = Counter(map(amounts_text, view.resources))
    return "; ".join(f"{count} x {text}" for text, count in counts.items())


def _work_parts(found: Description, names: Names) -> Parts:
    """The sections that every kind has: devices, work, the explanation, events and changes."""
    yield (
        "Devices",
        [
            f"{quantity_text(each.resource, each.amount)} {each.resource}: {each.name or names.of(each.work)}"
            for each in found.shares
        ],
    )
    rest = found.work_total - len(found.work)
    yield (
        "Work" if found.kind == "node" else "Members",
        [
            *(_row(view, "" if found.kind == "node" else names.node(view.node)) for view in found.work),
            *[f"and {rest} more"] * (rest > 0),
        ],
    )
    yield "Why", [] if found.why is None else names.text(str(found.why)).split("\n")
    yield "Events", [names.event(event) for event in found.events]
    yield (
        "Changes",
        [
            f"{entry.number}  {moment_text(entry.at)}  {entry.author}  {entry.action}: {entry.changes}"
            for entry in found.changes
        ],
    )


def _row(view: WorkView, node: str) -> str:
    many = f" ({view.count})" if view.count > 1 else ""
    called = f"{view.name} ({short_id(view.id)})" if view.name else short_id(view.id)
    place = f" on {node}" if node else ""
    return f"{called}{many}: {view.state_title}{place}, {amounts_text(view.resources)}"
