"""Plans: which new nodes pending work needs.

Rule: `stead.planner` decides. Here are the kinds of nodes it may choose from (those in a document, or those that the
cluster has), and the plan as plain values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stead.engine.decisions import Verdict
from stead.engine.explain import wording
from stead.errors import Invalid
from stead.language.labels import Labels
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import Resources
from stead.operate.cancellation import still_wanted
from stead.operate.known_fields import picked
from stead.operate.views import amounts
from stead.planner.planning import plan
from stead.planner.plans import Launch, Limits, Plan, Quota, Unserved
from stead.specs.documents import Reader
from stead.specs.sections import Section
from stead.specs.values import whole
from stead.text import quoted

if TYPE_CHECKING:
    from stead.operate.snapshot import Snapshot

NEW_MAX = 1_000
"""The maximum number of new nodes of a kind, if nothing else is said."""

NODE = ("id", "capacity", "labels", "taints")
KIND = (*NODE, "max", "price")

KINDS_MAX = 100
"""The maximum number of kinds of nodes in one question."""


@dataclass(frozen=True, slots=True)
class NewNodes:
    """`count` new nodes of one kind, and the work that would run on them. If `is_like`, `name` is a node of the cluster
    that is of this kind; else the kind comes from a document."""

    name: str
    count: int
    is_like: bool
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    taints: tuple[str, ...]
    price: float
    serves: tuple[str, ...]
    at_limit: bool


@dataclass(frozen=True, slots=True)
class StillPending:
    """Work that stays pending: equal asks, or a group. `nearest` is the kind of node that lacks the least, and `why`
    says what it lacks. `limit` names the kind or quota whose maximum is in the way."""

    ids: tuple[str, ...]
    nearest: str
    why: str
    limit: str = ""


@dataclass(frozen=True, slots=True)
class PlanView:
    """New nodes for pending work. `fits` would run on existing nodes; `price` is that of all new nodes. `coming` are
    nodes that were requested before. `limits` names the kinds and quotas of which the plan has the maximum."""

    fits: tuple[str, ...]
    new_nodes: tuple[NewNodes, ...]
    pending: tuple[StillPending, ...]
    price: float
    coming: tuple[NewNodes, ...] = ()
    limits: tuple[str, ...] = ()


def planned(snapshot: Snapshot, written: Any | None) -> PlanView:
    """The plan for all pending work of a cluster, with kinds of nodes from a document, or else those that it has."""
    if written is None:
        catalog = kinds_of(snapshot)
        if not catalog:
            raise Invalid("the cluster has no node, so describe kinds of nodes: nodes: [{id: cpu, capacity: {CPU: 8}}]")
    else:
        own = [set(_own_keys(node)) for node in snapshot.by_id.values()]
        described = read_catalog(written, tuple(sorted(set.intersection(*own))) if own else ())
        catalog = [replace(each, capacity=snapshot.capacity_of_new(each.capacity)) for each in described]
    still_wanted()
    return plan_view(plan(snapshot.engine, catalog), is_like=written is None)


def read_catalog(written: Any, own_keys: tuple[str, ...] = ()) -> list[NodeTemplate]:
    """``{nodes: [{id: gpu, capacity: {GPU: 8}, labels: ..., taints: ..., max: 10, price: 2.5}]}``"""
    file, reader = Section(written, "", ("nodes",)), Reader(most=KINDS_MAX)
    found = []
    for section in file.sections("nodes", KIND):
        described = {name: value for name, value in section.fields.items() if name in NODE}
        for joined in reader.joined(Section(described, section.path, (*NODE, "count"))):
            node, most = joined.node, section.read("max", _most, NEW_MAX)
            price = section.read("price", _price, 0.0)
            found.append(
                NodeTemplate(
                    node.id, node.capacity, node.labels, node.taints, count_max=most, price=price, own_keys=own_keys
                )
            )
    if not found:
        raise Invalid("there is no kind of node; a good file is nodes: [{id: cpu, capacity: {CPU: 8}}]")
    return found


def _most(value: Any) -> int:
    if not 1 <= whole(value) <= NEW_MAX:
        raise Invalid(f"must be from 1 to {NEW_MAX}, not {quoted(value)}")
    return int(value)


def _price(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise Invalid(f"must be a number such as 2.5, not {quoted(value)}")
    return float(value)


def kinds_of(snapshot: Snapshot) -> list[NodeTemplate]:
    """The kinds of nodes that the cluster has, each with the name of one of its nodes. Nodes with equal resources and
    labels are of one kind. A kind has the taints that all of its nodes have: a taint that was set on one of them says
    nothing about new ones. A label whose value is the node's own name does not tell kinds apart."""
    found: dict[tuple[Resources, Labels, tuple[str, ...]], list[Node]] = {}
    for node in snapshot.by_id.values():
        own = _own_keys(node)
        found.setdefault((node.capacity, node.labels.changed({}, own), own), []).append(node)
    catalog = []
    for (capacity, labels, own), (first, *others) in found.items():
        taints = tuple(taint for taint in first.taints if all(taint in other.taints for other in others))
        catalog.append(NodeTemplate(first.title, capacity, labels, taints, count_max=NEW_MAX, own_keys=own))
    return catalog[:KINDS_MAX]


def _own_keys(node: Node) -> tuple[str, ...]:
    return tuple(sorted(key for key, value in node.labels.items() if value in (node.id, node.name)))


def plan_view(found: Plan, is_like: bool) -> PlanView:
    """A plan as plain values. If `is_like`, its kinds have names of nodes."""

    def nodes(each: Launch) -> NewNodes:
        return NewNodes(
            each.template.name,
            each.count,
            is_like,
            amounts(each.template.capacity),
            dict(each.template.labels),
            tuple(map(str, each.template.taints)),
            each.template.price,
            each.serves,
            each.template.name in found.limits,
        )

    return PlanView(
        found.fits,
        tuple(map(nodes, found.launches)),
        tuple(_left(each, found.limits) for each in found.unserved),
        found.price,
        tuple(map(nodes, found.coming)),
        found.limits,
    )


def _left(each: Unserved, limits: Sequence[str]) -> StillPending:
    limit = each.limit or (each.nearest if each.nearest in limits else "")
    if each.verdict is None:
        why = ""
    elif not each.verdict.candidates:
        why, limit = _reasons(each.verdict), each.limit
    elif limit == each.nearest:
        why = "the maximum number of such nodes is reached"
    elif limit:
        why = f"the limit {limit} is reached"
    else:
        why = "such a node alone would do, but not beside the work that runs"
    return StillPending(each.ids, each.nearest, why, limit)


def _reasons(verdict: Verdict) -> str:
    """Why a single node does not take work: the reasons without the number of nodes, which is 1."""
    return "; ".join(wording.refusal(each).removeprefix("1 ") for each in verdict.refusals if each.nodes)


def plan_json(found: PlanView) -> dict[str, Any]:
    return {
        "fits": list(found.fits),
        "new_nodes": [_nodes_json(each) for each in found.new_nodes],
        "pending": [
            {"ids": list(each.ids), "nearest": each.nearest, "why": each.why, "limit": each.limit}
            for each in found.pending
        ],
        "price": found.price,
        "coming": [_nodes_json(each) for each in found.coming],
        "limits": list(found.limits),
    }


def _nodes_json(each: NewNodes) -> dict[str, Any]:
    return {
        "name": each.name,
        "count": each.count,
        "is_like": each.is_like,
        "resources": dict(each.resources),
        "labels": dict(each.labels),
        "taints": list(each.taints),
        "price": each.price,
        "serves": list(each.serves),
        "at_limit": each.at_limit,
    }


def limits_json(limits: Limits) -> dict[str, Any]:
    quotas = [
        {
            "name": each.name,
            "labels": dict(each.labels),
            "nodes_max": each.nodes_max,
            "resources_max": None if each.resources_max is None else amounts(each.resources_max),
        }
        for each in limits.quotas
    ]
    return {"quotas": quotas, "price_max": limits.price_max}


def limits_of(found: Mapping[str, Any]) -> Limits:
    """From the JSON of a service."""
    quotas = (
        Quota(
            each["name"],
            Labels(each["labels"]),
            each["nodes_max"],
            None if each["resources_max"] is None else Resources.of(each["resources_max"]),
        )
        for each in found["quotas"]
    )
    return Limits(tuple(quotas), found["price_max"])


def plan_of(found: Mapping[str, Any]) -> PlanView:
    """From the JSON of a service."""

    def nodes(each: Mapping[str, Any]) -> NewNodes:
        lists = {name: tuple(each[name]) for name in ("taints", "serves")}
        return NewNodes(**{**picked(each, NewNodes), **lists})

    return PlanView(
        tuple(found["fits"]),
        tuple(map(nodes, found["new_nodes"])),
        tuple(StillPending(**{**picked(each, StillPending), "ids": tuple(each["ids"])}) for each in found["pending"]),
        found["price"],
        tuple(map(nodes, found.get("coming", ()))),  # an older service has no such field
        tuple(found.get("limits", ())),
    )
