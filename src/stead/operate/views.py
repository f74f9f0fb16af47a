"""What people see of a cluster: nodes, work, groups, events; each a plain value with one JSON form.

Rule: a view is complete and never changes. Times are seconds since 1970; amounts are plain numbers, not units. The JSON
form is a promise to scripts (`docs/json.md`): fields are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Generic, TypeVar

from stead.codec import plain
from stead.engine.decisions import Refusal, Verdict
from stead.engine.explain import wording
from stead.engine.explain.events import Event
from stead.engine.explain.explanations import Explanation
from stead.engine.explain.smallest_change import AddCapacity, Drop, Edit, FreeUp
from stead.engine.timing.taint_times import TaintEnd
from stead.language.asks import Affinity, Ask, Group, Preference, Spread
from stead.language.labels import ANYWHERE
from stead.language.resources import UNIT, Resources
from stead.language.taints import Taint
from stead.text import short_id

T = TypeVar("T")


def holds_results(resource: str) -> bool:
    """Whether it is object store memory: results fill it, so its use does not show how much work a node has."""
    return resource == "object_store_memory"


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node: every label with its source, taints with owner and end, what is free.

    Attributes:
        id: Its id.
        ip: Its IP address.
        name: Its name, or the empty string.
        labels: All of its labels.
        sources: Where each label comes from: ``start``, ``run time`` or ``stead``.
        taints: Its taints.
        ends: The owner and the end of each taint.
        draining: Whether it takes no new work.
        total: What it has, by resource.
        available: What is free now, by resource.
        runs: How many pieces of work are known to run there.
        title: A display name that no other node has.

    Example:
        ```python
        [node.title for node in stead.nodes() if node.available.get("GPU", 0) >= 1]
        ```
    """

    id: str
    ip: str
    name: str
    labels: Mapping[str, str]
    sources: Mapping[str, str]  # label key -> "start", "run time" or "stead"
    taints: tuple[Taint, ...]
    ends: tuple[TaintEnd, ...]
    draining: bool
    total: Mapping[str, float]
    available: Mapping[str, float]
    runs: int = 0  # pieces of work that are known to run there
    title: str = field(default="", compare=False)  # a display name that no other node has (`Titles`)

    def __post_init__(self) -> None:
        if not self.title:
            object.__setattr__(self, "title", self.name or short_id(self.id))


@dataclass(slots=True)
class WorkView:
    """One piece of work, or `count` equal ones that cannot be distinguished. Do not change one; it is not frozen
    because a list has thousands of them, and frozen ones take five times as long to create."""

    id: str
    kind: str  # task, actor, pod, ask or member (of a group)
    name: str
    state: str  # running or waiting
    node: str  # the id of its node, "" while it waits
    resources: Mapping[str, float]
    rules: tuple[str, ...]  # what it requires in addition to resources, as text
    labels: Mapping[str, str]
    namespace: str
    owner: str  # a job, a program, a team
    group: str
    since: float | None  # when it was submitted, or placed
    count: int = 1
    owner_name: str = ""

    @property
    def owner_title(self) -> str:
        """The display name of its owner."""
        return self.owner_name or self.owner

    @property
    def state_title(self) -> str:
        """Its state in the words of its cluster."""
        return POD_STATES.get(self.state, self.state) if self.kind == "pod" else self.state


POD_STATES = {"waiting": "Pending", "running": "Running"}
"""The states of pods, as Kubernetes calls them."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """Work that is placed together or not at all."""

    id: str
    name: str
    state: str  # placed or waiting
    strategy: str
    members: tuple[tuple[str, str], ...]  # (id of a member, id of its node or "")
    resources: tuple[Mapping[str, float], ...]
    owner: str
    since: float | None
    owner_name: str = ""
    min_available: int | None = None  # how many members must be placed at once; None means all
    timeout_s: float | None = None

    @property
    def owner_title(self) -> str:
        """The display name of its owner."""
        return self.owner_name or self.owner


@dataclass(frozen=True, slots=True)
class OwnerView:
    """An owner of work: a job, a program, a team. What it uses and what its waiting work requests are sums."""

    id: str
    kind: str  # job, or owner if the cluster knows only its id
    name: str
    state: str  # running or ended; "" if unknown
    since: float | None
    running: int
    waiting: int
    groups: int
    uses: Mapping[str, float]
    asks_for: Mapping[str, float]

    @property
    def title(self) -> str:
        return self.name or self.id


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list; `total` is the length of the whole list."""

    items: tuple[T, ...]
    total: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """The cluster in numbers."""

    title: str
    kind: str  # ray, simulation, kubernetes
    at: float
    nodes: int
    tainted: int
    draining: int
    running: int
    waiting: int
    groups: int
    groups_waiting: int
    total: Mapping[str, float] = field(default_factory=dict)
    available: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    """Where the cluster's own dashboard shows a job, a node, an actor or the logs of a node: a URL for each of them,
    with ``{id}`` in place of the id."""


# -- text


def amounts(resources: Resources) -> dict[str, float]:
    """Amounts (not units) by resource: 0.5, 4."""
    return {name: units / UNIT for name, units in resources.items()}


def rules_of(ask: Ask) -> tuple[str, ...]:
    """What an ask requires in addition to resources, as text, one part for each rule."""
    found = []
    for number, choice in enumerate(ask.choices):
        if choice.selector != ANYWHERE:
            found.append(f"{'fallback: ' if number else ''}{choice.selector}")
        elif number:
            found.append("fallback: anywhere")
    if ask.tolerations:
        found.append(f"tolerates {', '.join(map(str, ask.tolerations))}")
    found += [" and ".join(map(wording.relation, term)) for term in ask.affinities]
    found += map(_spread, ask.spreads)
    found += [_preferred(preference) for preference in ask.prefers]
    if ask.policy != "hybrid":
        found.append(f"policy {ask.policy}")
    return tuple(found)


def _spread(spread: Spread) -> str:
    return f"spread over {spread.topology}, maximum skew {spread.max_skew}"


def _preferred(preference: Preference) -> str:
    want = preference.want
    text = wording.relation(want) if isinstance(want, Affinity) else str(want)
    if isinstance(want, Spread):
        text = f"a {_spread(want)}"
    return f"prefers {text} (weight {preference.weight})"


# -- JSON


def node_json(view: NodeView) -> dict[str, Any]:
    ends = {(end.key, end.effect): end for end in view.ends}
    return {
        "id": view.id,
        "ip": view.ip,
        "name": view.name,
        "labels": dict(view.labels),
        "sources": dict(view.sources),
        "taints": [taint_json(taint, ends.get((taint.key, taint.effect))) for taint in view.taints],
        "draining": view.draining,
        "total": dict(view.total),
        "available": dict(view.available),
        "runs": view.runs,
    }


def taint_json(taint: Taint, end: TaintEnd | None) -> dict[str, Any]:
    return {
        "key": taint.key,
        "value": taint.value,
        "effect": taint.effect.value,
        "since": end.since if end else None,
        "until": end.until if end else None,
        "until_job": end.job if end else "",
        "owner": end.owner if end else "",
    }


def work_json(view: WorkView) -> dict[str, Any]:
    return {
        **{
            name: getattr(view, name) for name in ("id", "kind", "name", "state", "node", "namespace", "owner", "group")
        },
        "owner_name": view.owner_name,
        "resources": dict(view.resources),
        "rules": list(view.rules),
        "labels": dict(view.labels),
        "since": view.since,
        "count": view.count,
    }


def group_json(view: GroupView) -> dict[str, Any]:
    return {
        **{name: getattr(view, name) for name in ("id", "name", "state", "strategy", "owner", "owner_name", "since")},
        "members": [{"id": id, "node": node} for id, node in view.members],
        "bundles": [dict(each) for each in view.resources],
        "min_available": view.min_available,
        "timeout_s": view.timeout_s,
    }


def owner_json(view: OwnerView) -> dict[str, Any]:
    return asdict(view)


def event_json(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in _EVENT_FIELDS}


_EVENT_FIELDS = tuple(field.name for field in fields(Event))


def summary_json(summary: Summary) -> dict[str, Any]:
    return asdict(summary)


REFUSALS_MAX = 100
"""Maximum number of reasons for each choice: there may be as many as nodes, if each has its own taint."""


def explanation_json(found: Explanation) -> dict[str, Any]:
    """The JSON form: stable codes with their texts."""
    document: dict[str, Any] | None = getattr(found, "document", None)
    if document is not None:  # it came from a service
        return document

    def refusal(each: Refusal) -> dict[str, Any]:
        return {
            "code": each.reason.code,
            "nodes": each.nodes,
            "alone": each.alone,
            "text": wording.refusal(each, found.names),
        }

    def verdict(each: Verdict) -> dict[str, Any]:
        shown = each.leading(REFUSALS_MAX)
        return {
            "nodes": each.nodes,
            "candidates": each.candidates,
            "feasible": each.feasible,
            "refusals": [*map(refusal, shown.refusals)],
            "other_reasons": shown.other_reasons,
            "other_nodes": shown.other_nodes,
        }

    return {
        "id": found.id,
        "text": str(found),
        "fits": found.fits,
        "placed": found.chosen is not None,
        "choices": [*map(verdict, found.verdicts)],
        "change": None
        if found.change is None
        else {
            "text": found.change_text,
            "edits": [edit_json(edit, found.names) for edit in found.change.edits],
        },
        "chosen": None if found.chosen is None else asdict(found.chosen),
        "runners_up": [asdict(score) for score in found.runners_up],
        "members": [explanation_json(member) for member in found.members],
        "together": found.together,
        "quorum": None if found.quorum is None else {**asdict(found.quorum), "more_members": found.quorum.more_members},
        "hints": list(found.hints),
    }


def edit_json(edit: Edit, names: wording.Names = wording.NO_NAMES) -> dict[str, Any]:
    """One part of a smallest change: its kind (`is`), its subject, and its text."""
    text = wording.edit(edit, names)
    match edit:
        case Drop():
            return {"is": "Drop", "what": text.removeprefix("dropping "), "text": text}
        case FreeUp(node, resource, amount) | AddCapacity(node, resource, amount):
            kind = type(edit).__name__
            return {"is": kind, "node": node, "resource": resource, "amount": amount / UNIT, "text": text}
    return {**plain(edit), "text": text}


def resources_of(item: Ask | Group) -> tuple[dict[str, float], ...]:
    members: Iterable[Ask] = item.alternatives[0] if isinstance(item, Group) else (item,)
    return tuple(amounts(member.choices[0].resources) for member in members)
