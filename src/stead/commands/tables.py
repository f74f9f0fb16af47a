"""The columns of every list: nodes, work, groups, events, changes, findings, and usage.

Rule: a column shows one part of one view and sends no request. What else it needs (names, the current time) is passed
in when the listing is created.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stead.commands.lists import Column, Listing
from stead.commands.output import cut, pairs, shown_labels, taint_texts
from stead.language.resources import amounts_text, in_order, quantity_text
from stead.language.times import duration_text, moment_text
from stead.text import first_few, short_id

if TYPE_CHECKING:
    from stead.commands.naming import Names
    from stead.engine.explain.events import Event
    from stead.operate.audit import Entry
    from stead.operate.lint import Finding
    from stead.operate.views import GroupView, NodeView, OwnerView, WorkView

Now = Callable[[], float]
"""The cluster's current time, fetched when the first age is shown."""

WELL_KNOWN = ("CPU", "GPU", "memory")
"""Resources with their own column."""


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


def node_listing(names: Names, name: Callable[[NodeView], str]) -> Listing[NodeView]:
    from stead.operate.views import node_json

    def taints(view: NodeView) -> str:
        return names.spelled(", ".join([*taint_texts(view, names.now()), *["draining"] * view.draining]))

    return Listing(
        (
            Column("NODE", lambda view: view.id, short_id),
            Column("NAME", lambda view: "" if view.name == view.id else view.name),
            Column("IP", lambda view: view.ip),
            _free("CPU"),
            _free("GPU"),
            _free("memory", wide=True),
            Column("OTHER", _others, wide=True),
            Column("RUNS", lambda view: str(view.runs), none_if_zero, key=lambda view: view.runs),
            Column("LABELS", lambda view: pairs(shown_labels(view))),
            Column("TAINTS", taints),
        ),
        name,
        node_json,
    )


def _free(resource: str, wide: bool = False) -> Column[NodeView]:
    def text(view: NodeView) -> str:
        return _part(view, resource) if view.total.get(resource) else ""

    return Column(resource.upper(), text, wide=wide, key=lambda view: view.available.get(resource))


def _part(view: NodeView, resource: str) -> str:
    """``3/8``: what is free, and what the node has."""
    free, total = view.available.get(resource, 0.0), view.total[resource]
    return f"{quantity_text(resource, free)}/{quantity_text(resource, total)}"


def _others(view: NodeView) -> str:
    names = in_order(name for name in view.total if name not in WELL_KNOWN and view.total[name])
    return ", ".join(f"{_part(view, name)} {name}" for name in names)


# -- work and groups


def work_listing(names: Names, now: Now, namespaces: bool = True) -> Listing[WorkView]:
    """Pods are listed as kubectl lists them; of several namespaces, with a column for them."""
    from stead.operate.views import work_json

    are_pods = names.are_pods
    is_shown = are_pods and namespaces
    namespace: Column[WorkView] = Column("NAMESPACE", lambda view: view.namespace, wide=not is_shown)
    return Listing(
        (
            *([namespace] if are_pods else []),
            Column("ID", lambda view: view.id, short_id, wide=are_pods),
            Column("KIND", lambda view: view.kind, wide=are_pods),
            Column("NAME", lambda view: view.name),
            Column("STATE", lambda view: view.state_title),
            Column("NODE", lambda view: names.node(view.node)),
            Column("COUNT", lambda view: str(view.count), _none_if_one, key=lambda view: view.count),
            Column("ASKS FOR", lambda view: amounts_text(view.resources)),
            Column("RULES", lambda view: names.text("; ".join(view.rules)), cut),
            Column("OWNER", lambda view: view.owner_title, wide=True),
            Column("GROUP", lambda view: view.group, wide=True),
            *([] if are_pods else [namespace]),
            Column("LABELS", lambda view: pairs(view.labels), wide=True),
            Column("AGE", lambda view: _age(now, view.since), key=lambda view: _newest_last(view.since)),
        ),
        lambda view: view.id,
        work_json,
    )


def _minimum(view: GroupView) -> int:
    """How many members of a group must be placed at once."""
    return len(view.members) if view.min_available is None else view.min_available


def group_listing(names: Names, now: Now) -> Listing[GroupView]:
    from stead.operate.views import group_json

    def nodes(view: GroupView) -> str:
        return ", ".join(dict.fromkeys(names.node(node) for _, node in view.members if node))

    return Listing(
        (
            Column("ID", lambda view: view.id, short_id),
            Column("NAME", lambda view: view.name),
            Column("STATE", lambda view: view.state),
            Column("STRATEGY", lambda view: view.strategy),
            Column("BUNDLES", lambda view: str(len(view.members)), key=lambda view: len(view.members)),
            Column("MINIMUM", lambda view: str(_minimum(view)), key=_minimum, wide=True),
            Column("NODES", nodes, lambda text: first_few(text.split(", "))),
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
            Column("AT", lambda event: moment_text(event.at), key=lambda event: event.at),
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
            Column("AT", lambda entry: moment_text(entry.at), key=lambda entry: entry.at),
            Column("WHO", lambda entry: entry.author),
            Column("FROM", lambda entry: entry.origin),
            Column("VIA", lambda entry: entry.via),
            Column("NODE", lambda entry: changed_nodes(entry, names)),
            Column("ID", lambda entry: ", ".join(entry.states), wide=True),
            Column("ACTION", lambda entry: entry.action),
            Column("CHANGES", lambda entry: names.spelled(entry.changes)),
            Column("REQUEST", lambda entry: entry.request, wide=True),
        ),
        lambda entry: str(entry.number),
        entry_json,
    )


def changed_nodes(entry: Entry, names: Names) -> str:
    """The name of the node, or the number of nodes."""
    return names.node(entry.node) or entry.title


def finding_listing(names: Names) -> Listing[Finding]:
    from stead.operate.lint import finding_json

    return Listing(
        (
            Column("CODE", lambda found: found.code),
            Column("WORK", lambda found: first_few(dict.fromkeys(map(names.of, found.ids)))),
            Column("IDS", lambda found: ", ".join(found.ids), wide=True),
            Column("FINDING", lambda found: names.text(found.text)),
        ),
        lambda found: found.ids,
        finding_json,
    )


# -- usage


def owner_listing(resources: Sequence[str]) -> Listing[OwnerView]:
    from stead.operate.views import owner_json

    def amount(field: str, resource: str) -> tuple[Callable[[OwnerView], str], Callable[[OwnerView], Any]]:
        def value(view: OwnerView) -> Any:
            return getattr(view, field).get(resource)

        return lambda view: quantity_text(resource, value(view)) if value(view) else "", value

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
