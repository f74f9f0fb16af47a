"""The columns of every list: nodes, work, groups, events, changes, findings, and what is used.

Rule: a column says one thing of one view and asks nobody. What it needs beside the view (names, the moment of now) is
given when the listing is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stead.commands.lists import Column, Listing
from stead.commands.output import amount_text, amounts_text, cut, joined, moment, pairs, shown_labels, taint_texts
from stead.commands.output import time_text as duration_text
from stead.commands.words import SHORT, short_id

if TYPE_CHECKING:
    from stead.commands.naming import Names
    from stead.operate.audit import Entry
    from stead.operate.lint import Finding
    from stead.operate.views import Event, GroupView, NodeView, OwnerView, WorkView

Now = Callable[[], float]
"""The moment of the cluster, asked for when the first age is shown."""

WELL_KNOWN = ("CPU", "GPU", "memory")
"""Resources that come first, in this order."""


def _short(id: str) -> str:
    return id[:SHORT]


def none_if_zero(number: str) -> str:
    return "" if number == "0" else number


def _none_if_one(number: str) -> str:
    return "" if number == "1" else number


def _age(now: Now, since: float | None) -> str:
    return duration_text(now() - since) if since is not None and now() > since else ""


def _newest_last(since: float | None) -> float | None:
    """To sort by age: the youngest first."""
    return None if since is None else -since


# -- nodes


def node_listing(now: Now, name: Callable[[NodeView], str]) -> Listing[NodeView]:
    from stead.operate.views import node_json

    return Listing(
        (
            Column("NODE", lambda view: view.id, _short),
            Column("NAME", lambda view: view.name),
            Column("IP", lambda view: view.ip),
            _free("CPU"),
            _free("GPU"),
            _free("memory", wide=True),
            Column("OTHER", _others, wide=True),
            Column("RUNS", lambda view: str(view.runs), none_if_zero, key=lambda view: view.runs),
            Column("LABELS", lambda view: pairs(shown_labels(view))),
            Column("TAINTS", lambda view: ", ".join([*taint_texts(view, now()), *["draining"] * view.draining])),
        ),
        name,
        node_json,
    )


def _free(resource: str, wide: bool = False) -> Column[NodeView]:
    """``3/8``: what is free of what the node has."""

    def text(view: NodeView) -> str:
        total = view.total.get(resource, 0.0)
        free = amount_text(resource, view.available.get(resource, 0.0))
        return f"{free}/{amount_text(resource, total)}" if total else ""

    return Column(resource.upper(), text, wide=wide, key=lambda view: view.available.get(resource))


def _others(view: NodeView) -> str:
    names = [name for name in view.total if name not in WELL_KNOWN and view.total[name]]
    return ", ".join(f"{view.available.get(name, 0.0):g}/{view.total[name]:g} {name}" for name in names)


# -- work and groups


def work_listing(names: Names, now: Now) -> Listing[WorkView]:
    from stead.operate.views import work_json

    return Listing(
        (
            Column("ID", lambda view: view.id, short_id),
            Column("KIND", lambda view: view.kind),
            Column("NAME", lambda view: view.name),
            Column("STATE", lambda view: view.state),
            Column("NODE", lambda view: names.node(view.node)),
            Column("COUNT", lambda view: str(view.count), _none_if_one, key=lambda view: view.count),
            Column("ASKS FOR", lambda view: amounts_text(view.resources)),
            Column("RULES", lambda view: "; ".join(view.rules), cut),
            Column("OWNER", lambda view: view.owner_title, wide=True),
            Column("GROUP", lambda view: view.group, wide=True),
            Column("NAMESPACE", lambda view: view.namespace, wide=True),
            Column("LABELS", lambda view: pairs(view.labels), wide=True),
            Column("AGE", lambda view: _age(now, view.since), key=lambda view: _newest_last(view.since)),
        ),
        lambda view: view.id,
        work_json,
    )


def group_listing(names: Names, now: Now) -> Listing[GroupView]:
    from stead.operate.views import group_json

    def nodes(view: GroupView) -> str:
        return joined(dict.fromkeys(names.node(node) for _, node in view.members if node))

    return Listing(
        (
            Column("ID", lambda view: view.id),
            Column("NAME", lambda view: view.name),
            Column("STATE", lambda view: view.state),
            Column("STRATEGY", lambda view: view.strategy),
            Column("BUNDLES", lambda view: str(len(view.members)), key=lambda view: len(view.members)),
            Column("NODES", nodes),
            Column("ASKS FOR", lambda view: "; ".join(map(amounts_text, view.resources)), wide=True),
            Column("OWNER", lambda view: view.owner_title, wide=True),
            Column("AGE", lambda view: _age(now, view.since), wide=True, key=lambda view: _newest_last(view.since)),
        ),
        lambda view: view.id,
        group_json,
    )


# -- what happened


def event_listing(names: Names) -> Listing[Event]:
    from stead.operate.views import event_json

    return Listing(
        (
            Column("NUMBER", lambda event: str(event.number), key=lambda event: event.number),
            Column("AT", lambda event: moment(event.at), key=lambda event: event.at),
            Column("KIND", lambda event: event.kind),
            Column("SUBJECT", lambda event: names.of(event.subject)),
            Column("ID", lambda event: event.subject, wide=True),
            Column("COUNT", lambda event: str(event.count), _none_if_one, key=lambda event: event.count),
            Column("TEXT", lambda event: names.text(event.text)),
        ),
        lambda event: event.subject,
        event_json,
    )


def entry_listing(names: Names) -> Listing[Entry]:
    from stead.operate.audit import entry_json

    return Listing(
        (
            Column("NUMBER", lambda entry: str(entry.number), key=lambda entry: entry.number),
            Column("AT", lambda entry: moment(entry.at), key=lambda entry: entry.at),
            Column("WHO", lambda entry: entry.author),
            Column("FROM", lambda entry: entry.origin),
            Column("VIA", lambda entry: entry.via),
            Column("NODE", lambda entry: changed_nodes(entry, names)),
            Column("ID", lambda entry: ", ".join(entry.states), wide=True),
            Column("ACTION", lambda entry: entry.action),
            Column("CHANGES", lambda entry: entry.changes),
            Column("REQUEST", lambda entry: entry.request, wide=True),
        ),
        lambda entry: str(entry.number),
        entry_json,
    )


def changed_nodes(entry: Entry, names: Names) -> str:
    """The name of the node, or how many there are."""
    return names.node(entry.node) or entry.title


def finding_listing(names: Names) -> Listing[Finding]:
    from stead.operate.lint import finding_json

    def who(found: Finding, most: int) -> str:
        return joined(dict.fromkeys(map(names.of, found.ids)), most)

    return Listing(
        (
            Column("CODE", lambda found: found.code),
            Column("WORK", lambda found: who(found, 4)),
            Column("IDS", lambda found: ", ".join(found.ids), wide=True),
            Column("FINDING", lambda found: found.text),
        ),
        lambda found: found.ids,
        finding_json,
    )


# -- what is used


def resources_in_order(found: Iterable[str]) -> list[str]:
    """CPU, GPU and memory first, then the others as they come."""
    names = dict.fromkeys(found)
    return [*(name for name in WELL_KNOWN if name in names), *(name for name in names if name not in WELL_KNOWN)]


def owner_listing(resources: Sequence[str]) -> Listing[OwnerView]:
    from stead.operate.views import owner_json

    def amount(field: str, resource: str) -> tuple[Callable[[OwnerView], str], Callable[[OwnerView], Any]]:
        def value(view: OwnerView) -> Any:
            return getattr(view, field).get(resource)

        return lambda view: amount_text(resource, value(view)) if value(view) else "", value

    sums: list[Column[OwnerView]] = []
    for resource in resources:
        text, key = amount("uses", resource)
        sums.append(Column(resource.upper(), text, key=key))
        text, key = amount("asks_for", resource)
        sums.append(Column(f"{resource.upper()} WAITING", text, key=key))
    return Listing(
        (
            Column("OWNER", lambda view: view.title),
            Column("ID", lambda view: view.id, wide=True),
            Column("KIND", lambda view: view.kind, wide=True),
            Column("RUNS", lambda view: str(view.running), none_if_zero, key=lambda view: view.running),
            Column("WAITS", lambda view: str(view.waiting), none_if_zero, key=lambda view: view.waiting),
            *sums,
        ),
        lambda view: view.id,
        owner_json,
    )
