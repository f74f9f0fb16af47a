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
from stead.operate.views import amounts
from stead.planner.planning import plan
from stead.planner.plans import Plan
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
    says what it lacks."""

    ids: tuple[str, ...]
    nearest: str
    why: str


@dataclass(frozen=True, slots=True)
class PlanView:
    """New nodes for pending work. `fits` would run on existing nodes; `price` is that of all new nodes."""

    fits: tuple[str, ...]
    new_nodes: tuple[NewNodes, ...]
    pending: tuple[StillPending, ...]
    price: float


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
    new = tuple(
        NewNodes(
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
        for each in found.launches
    )
    left = []
    for each in found.unserved:
        if each.verdict is None or not each.verdict.candidates:
            why = "" if each.verdict is None else _reasons(each.verdict)
        elif each.nearest in found.limits:
            why = "the maximum number of such nodes is reached"
        else:
            why = "such a node alone would do, but not beside the work that runs"
        left.append(StillPending(each.ids, each.nearest, why))
    return PlanView(found.fits, new, tuple(left), found.price)


def _reasons(verdict: Verdict) -> str:
    """Why a single node does not take work: the reasons without the number of nodes, which is 1."""
    return "; ".join(wording.refusal(each).removeprefix("1 ") for each in verdict.refusals if each.nodes)


def plan_json(found: PlanView) -> dict[str, Any]:
    return {
        "fits": list(found.fits),
        "new_nodes": [
            {
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
            for each in found.new_nodes
        ],
        "pending": [{"ids": list(each.ids), "nearest": each.nearest, "why": each.why} for each in found.pending],
        "price": found.price,
    }


def plan_of(found: Mapping[str, Any]) -> PlanView:
    """From the JSON of a service."""

    def texts(value: Sequence[str]) -> tuple[str, ...]:
        return tuple(value)

    new = tuple(
        NewNodes(
            each["name"],
            each["count"],
            each["is_like"],
            each["resources"],
            each["labels"],
            texts(each["taints"]),
            each["price"],
            texts(each["serves"]),
            each["at_limit"],
        )
        for each in found["new_nodes"]
    )
    left = tuple(StillPending(texts(each["ids"]), each["nearest"], each["why"]) for each in found["pending"])
    return PlanView(texts(found["fits"]), new, left, found["price"])
