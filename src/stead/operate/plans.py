"""Plans: which new nodes pending work needs.

Rule: `stead.planner` decides. Here are the kinds of nodes that it may choose from (those in a document, those of the
autoscaler, or those that the cluster has), their limits, and the plan as plain values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stead.engine.decisions import Verdict
from stead.engine.explain import wording
from stead.engine.facts import Fact
from stead.errors import Invalid, absent
from stead.language.arguments import labels_of
from stead.language.labels import EMPTY, Labels
from stead.language.nodes import Node, NodeId, NodeTemplate
from stead.language.resources import Resources, as_written
from stead.operate.cancellation import still_wanted
from stead.operate.known_fields import picked
from stead.operate.views import amounts
from stead.planner.planning import plan
from stead.planner.plans import NO_LIMITS, NO_STOCK, PRICE, Launch, Limits, Plan, Quota, Stock, Unserved
from stead.specs.documents import Reader
from stead.specs.sections import Misplaced, Section
from stead.specs.values import flag, resources_in, some_text, taints_in, whole
from stead.text import quoted

if TYPE_CHECKING:
    from stead.operate.scale import KindView, ScaleView
    from stead.operate.snapshot import Snapshot

NEW_MAX = 1_000
"""The maximum number of new nodes of a kind, if nothing else is said."""

COUNT_MAX = 100_000
"""The largest number of nodes that somebody may give."""

PRICE_MAX = 1e12
"""The largest price that somebody may give."""

NODE = ("id", "capacity", "labels", "taints")
KIND = (*NODE, "min", "max", "price")
QUOTA = ("name", "labels", "nodes", "resources", "only_launched")
LIMITED, WORK = ("nodes", "quotas", "price_max"), ("work", "groups")

NODE_GROUP = "ray.io/node-group"
"""Ray's label of a node with the name of its kind. Every provider sets it."""

COMING = ("starting", "running")
"""The states of launches whose node should join."""

NOTHING_RESTS: Mapping[str, str] = {}

ReadWork = Callable[[Any, "Snapshot"], Iterable[Fact]]

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


def planned(
    snapshot: Snapshot, written: Any | None, read: ReadWork, report: Callable[[], ScaleView | None] = lambda: None
) -> PlanView:
    """The plan for all pending work of a cluster, and for the work in a document, which `read` reads. The document may
    also have kinds of nodes and limits; without them, those of the autoscaler count, or else the kinds that the cluster
    has."""
    file = Section({} if written is None else written, "", (*LIMITED, *WORK))
    engine = snapshot.to_plan
    if work := {name: file.fields[name] for name in WORK if name in file}:
        engine = engine.fork()
        engine.apply(*read(work, snapshot))
    if any(name in file for name in LIMITED):
        own = [set(_own_keys(node)) for node in snapshot.by_id.values()]
        given = {name: file.fields[name] for name in LIMITED if name in file}
        found = read_catalog(given, tuple(sorted(set.intersection(*own))) if own else ())
        new = [replace(each, capacity=snapshot.capacity_of_new(each.capacity)) for each in found.kinds]
        catalog = replace(found, kinds=tuple(new), stock=Stock(_in_group(snapshot, {each.name for each in new})))
    elif (view := report()) is not None:
        catalog = catalog_of(view, snapshot)
    elif kinds := kinds_of(snapshot):
        catalog = Catalog(tuple(kinds), is_like=True)
    else:
        raise Invalid("the cluster has no node, so describe kinds of nodes: nodes: [{id: cpu, capacity: {CPU: 8}}]")
    still_wanted()
    return plan_view(plan(engine, catalog.kinds, catalog.limits, catalog.stock), catalog.is_like, catalog.resting)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The kinds of nodes that a plan may use, their limits, and the nodes that count. If `is_like`, each kind has the
    name of one of its nodes. Kinds that are `resting`, for these reasons, have no more nodes than they have now."""

    kinds: tuple[NodeTemplate, ...]
    limits: Limits = NO_LIMITS
    stock: Stock = NO_STOCK
    is_like: bool = False
    resting: Mapping[str, str] = field(default_factory=dict)


def read_catalog(written: Any, own_keys: tuple[str, ...] = ()) -> Catalog:
    """``{nodes: [{id: gpu, capacity: {GPU: 8}, labels: ..., taints: ..., min: 1, max: 10, price: 2.5}], price_max: 50,
    quotas: [{name: zone-a, labels: {zone: a}, nodes: 20, resources: {GPU: 16}}]}``"""
    file, reader = Section(written, "", LIMITED), Reader(most=KINDS_MAX)
    found = []
    for section in file.sections("nodes", KIND):
        described = {name: value for name, value in section.fields.items() if name in NODE}
        for joined in reader.joined(Section(described, section.path, (*NODE, "count"))):
            node, most = joined.node, section.read("max", _most, NEW_MAX)
            least = section.read("min", partial(_least, most=most), 0)
            price = section.read("price", _price, 0.0)
            found.append(
                NodeTemplate(node.id, node.capacity, node.labels, node.taints, least, most, price, own_keys=own_keys)
            )
    if not found:
        raise Invalid("there is no kind of node; a good file is nodes: [{id: cpu, capacity: {CPU: 8}}]")
    quotas = tuple(_quota(section) for section in file.sections("quotas", QUOTA))
    return Catalog(tuple(found), Limits(quotas, file.read("price_max", _price, None)))


def _quota(section: Section) -> Quota:
    found = Quota(
        section.need("name", some_text, "'zone-a'"),
        section.read("labels", labels_of, EMPTY),
        section.read("nodes", _least, None),
        section.read("resources", resources_in, None),
        section.read("only_launched", flag, False),
    )
    if found.nodes_max is None and found.resources_max is None:
        raise Misplaced(f"{section.path}: limits nothing; give nodes: 10 or resources: {{GPU: 16}}")
    return found


def described(kinds: Iterable[NodeTemplate], limits: Limits = NO_LIMITS) -> dict[str, Any]:
    """Kinds of nodes and limits as a document, which `read_catalog` reads."""
    nodes = [
        {
            "id": each.name,
            "capacity": dict(as_written(each.capacity)),
            "labels": dict(each.labels),
            "taints": [str(taint) for taint in each.taints],
            "min": each.count_min,
            "max": each.count_max,
            "price": each.price,
        }
        for each in kinds
    ]
    quotas = [
        {
            "name": each.name,
            "labels": dict(each.labels),
            "only_launched": each.only_launched,
            **({} if each.nodes_max is None else {"nodes": each.nodes_max}),
            **({} if each.resources_max is None else {"resources": dict(as_written(each.resources_max))}),
        }
        for each in limits.quotas
    ]
    price = {} if limits.price_max is None else {"price_max": limits.price_max}
    return {"nodes": nodes, **({"quotas": quotas} if quotas else {}), **price}


def catalog_of(view: ScaleView, snapshot: Snapshot) -> Catalog:
    """The kinds of the autoscaler, as it may use them now: none is launched of a kind that rests."""
    reported = {each.node: each.kind for each in view.nodes if each.node in snapshot.by_id}
    running = {**_in_group(snapshot, {each.name for each in view.kinds}), **reported}
    joined = Counter(kind for node, kind in running.items() if node not in reported)  # since the report
    coming = Counter(each.kind for each in view.launches if each.state in COMING) - joined
    counts = Counter(running.values()) + coming
    kinds = tuple(
        _template(each, each.count_max if each.rests_until is None else min(each.count_max, counts[each.name]))
        for each in view.kinds
    )
    resting = {each.name: each.why for each in view.kinds if each.rests_until is not None}
    return Catalog(kinds, view.limits, Stock(running, coming), resting=resting)


def _template(kind: KindView, count_max: int) -> NodeTemplate:
    taints = taints_in(list(kind.taints))
    capacity = Resources.of(kind.resources)
    return NodeTemplate(kind.name, capacity, Labels(kind.labels), taints, kind.count_min, count_max, kind.price)


def kind_called(name: str, view: ScaleView | None) -> NodeTemplate:
    """The kind of the autoscaler with this name."""
    if view is None:
        raise Invalid(
            "there is no autoscaler and so no kind; describe the node instead, for example capacity: {CPU: 8}"
        )
    kinds = {kind.name: kind for kind in view.kinds}
    if name not in kinds:
        raise Invalid(absent("kind", name, kinds, where=""))
    return _template(kinds[name], kinds[name].count_max)


def _in_group(snapshot: Snapshot, kinds: Container[str]) -> dict[NodeId, str]:
    """The nodes that say by their label of which kind they are."""
    groups = ((id, node.labels.get(NODE_GROUP, "")) for id, node in snapshot.by_id.items())
    return {id: group for id, group in groups if group in kinds}


def _most(value: Any) -> int:
    if not 1 <= whole(value) <= COUNT_MAX:
        raise Invalid(f"must be from 1 to {COUNT_MAX}, not {quoted(value)}")
    return int(value)


def _least(value: Any, most: int = COUNT_MAX) -> int:
    if not 0 <= whole(value) <= most:
        raise Invalid(f"must be from 0 to {most}, not {quoted(value)}")
    return int(value)


def _price(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= PRICE_MAX:
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


def plan_view(found: Plan, is_like: bool, resting: Mapping[str, str] = NOTHING_RESTS) -> PlanView:
    """A plan as plain values. If `is_like`, its kinds have names of nodes. `resting` says why kinds are not launched
    now: that is no limit of theirs."""

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
            each.template.name in limits,
        )

    limits = tuple(name for name in found.limits if name not in resting)

    return PlanView(
        found.fits,
        tuple(map(nodes, _by_kind(found.launches))),
        tuple(_left(each, resting) for each in found.unserved),
        found.price,
        tuple(map(nodes, found.coming)),
        limits,
    )


def _by_kind(launches: Iterable[Launch]) -> Iterator[Launch]:
    """One launch for each kind: all waves together."""
    alike: dict[str, list[Launch]] = {}
    for each in launches:
        alike.setdefault(each.template.name, []).append(each)
    for waves in alike.values():
        serves = tuple(id for each in waves for id in each.serves)
        yield replace(waves[0], count=sum(each.count for each in waves), serves=serves)


def _left(each: Unserved, resting: Mapping[str, str]) -> StillPending:
    if each.verdict is None:
        why = ""
    elif not each.verdict.candidates:
        why = _reasons(each.verdict)
    elif not each.limit:
        why = "such a node alone would do, but not beside the work that runs"
    elif each.limit in resting:
        why = f"{'it' if each.limit == each.nearest else each.limit} rests: {resting[each.limit]}"
    elif each.limit == each.nearest:
        why = "the maximum number of such nodes is reached"
    elif each.limit == PRICE:
        why = "the maximum price is reached"
    else:
        why = f"the limit {each.limit} is reached"
    return StillPending(each.ids, each.nearest, why, each.limit)


def _reasons(verdict: Verdict) -> str:
    """Why a single node does not take work: every reason, without the number of nodes, which is 1."""
    return "; ".join(wording.refusal(replace(each, nodes=1)).removeprefix("1 ") for each in verdict.refusals)


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
            "only_launched": each.only_launched,
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
            each["only_launched"],
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
