"""What people see of a cluster: nodes, work, groups, events; each a plain value with one JSON form.

Rule: a view is complete and holds nothing that lives. Moments are seconds since 1970, amounts are as people write
them. The JSON form is a promise to scripts (`docs/json.md`): fields are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Generic, TypeVar

from stead.asks import Affinity, Ask, Group, Preference
from stead.codec import plain
from stead.engine import wording
from stead.engine.changes import AddCapacity, Drop, Edit, FreeUp
from stead.engine.decisions import Refusal
from stead.engine.explain import Explanation, Verdict
from stead.labelling import ANYWHERE
from stead.resources import UNIT, Resources
from stead.taints import Taint

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaintEnd:
    """Whose a taint is, since when it stands, and when it goes by itself."""

    node: str
    key: str
    effect: str
    since: float
    until: float | None = None
    job: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as people see it: every label with its source, taints with owner and end, what is free."""

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
    runs: int = 0  # pieces of work that are known to be there

    @property
    def title(self) -> str:
        """What to call it: its name, or the beginning of its id."""
        return self.name or self.id[:12]


@dataclass(slots=True)
class WorkView:
    """One piece of work, or `count` equal ones that nobody can tell apart. Nobody changes one; it is not frozen because
    a list has thousands of them, and frozen ones take five times as long to make."""

    id: str
    kind: str  # task, actor, pod, ask, member (of a group), or other: in use by something that is not listed
    name: str
    state: str  # running or waiting
    node: str  # the id of its node, "" while it waits
    resources: Mapping[str, float]
    rules: tuple[str, ...]  # what it asks for beside resources, in words
    labels: Mapping[str, str]
    namespace: str
    owner: str  # a job, a program, a team
    group: str
    since: float | None  # when it was submitted, or took its place
    count: int = 1
    owner_name: str = ""

    @property
    def owner_title(self) -> str:
        """What to call its owner."""
        return self.owner_name or self.owner


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

    @property
    def owner_title(self) -> str:
        """What to call its owner."""
        return self.owner_name or self.owner


@dataclass(frozen=True, slots=True)
class OwnerView:
    """Whose work it is: a job, a program, a team. What it uses and what its waiting work asks for are sums."""

    id: str
    kind: str  # job, or owner where the cluster knows no more than its id
    name: str
    state: str  # running or ended; "" where nobody can say
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
class Event:
    """Something that happened to a node or to work. `kind` is stable: programs may rely on it."""

    number: int
    at: float
    kind: str
    subject: str
    text: str
    count: int = 1

    def __str__(self) -> str:
        many = f" ({self.count})" if self.count > 1 else ""
        return f"{self.kind:9} {self.subject}{many}: {self.text}"


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list: `total` is how many there are in all."""

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
    """Where the cluster's own dashboard shows a job, a node, an actor or the logs of a node: an address for each of
    them, with ``{id}`` where the id goes."""


# -- words


def amounts(resources: Resources) -> dict[str, float]:
    """As people write them: 0.5, 4."""
    return {name: units / UNIT for name, units in resources.items()}


def rules_of(ask: Ask) -> tuple[str, ...]:
    """What an ask wants beside resources, in words, a sentence part each."""
    found = []
    for number, choice in enumerate(ask.choices):
        if choice.selector != ANYWHERE:
            found.append(f"{'else ' if number else ''}{choice.selector}")
        elif number:
            found.append("else anywhere")
    if ask.tolerations:
        found.append(f"tolerates {', '.join(map(str, ask.tolerations))}")
    found += [" and ".join(map(wording.relation, term)) for term in ask.affinities]
    found += [f"spread over {spread.topology}, at most {spread.max_skew} apart" for spread in ask.spreads]
    found += [_preferred(preference) for preference in ask.prefers]
    if ask.policy != "hybrid":
        found.append(f"policy {ask.policy}")
    return tuple(found)


def _preferred(preference: Preference) -> str:
    want = preference.want
    said = wording.relation(want) if isinstance(want, Affinity) else str(want)
    return f"rather {said} (weight {preference.weight})"


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
    }


def owner_json(view: OwnerView) -> dict[str, Any]:
    return asdict(view)


def event_json(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in _EVENT_FIELDS}


_EVENT_FIELDS = tuple(field.name for field in fields(Event))


def summary_json(summary: Summary) -> dict[str, Any]:
    return asdict(summary)


REFUSALS_MAX = 100
"""Of each choice, an answer lists so many reasons: there may be as many as nodes, where each has a taint of its own."""


def explanation_json(found: Explanation) -> dict[str, Any]:
    """Stable codes first, words beside them."""
    told: dict[str, Any] | None = getattr(found, "told", None)
    if told is not None:  # a service has said it so
        return told

    def refusal(each: Refusal) -> dict[str, Any]:
        return {"code": each.reason.code, "nodes": each.nodes, "alone": each.alone, "text": wording.refusal(each)}

    def verdict(each: Verdict) -> dict[str, Any]:
        shown, others, nodes = wording.leading(each.refusals, REFUSALS_MAX)
        return {
            "nodes": each.nodes,
            "candidates": each.candidates,
            "refusals": [*map(refusal, shown)],
            "other_reasons": others,
            "other_nodes": nodes,
        }

    return {
        "id": found.id,
        "text": str(found),
        "fits": found.fits,
        "placed": found.chosen is not None,
        "choices": [*map(verdict, found.verdicts)],
        "change": None
        if found.change is None
        else {"text": wording.change(found.change), "edits": [*map(edit_json, found.change.edits)]},
        "chosen": None if found.chosen is None else asdict(found.chosen),
        "runners_up": [asdict(score) for score in found.runners_up],
        "members": [explanation_json(member) for member in found.members],
        "together": found.together,
    }


def edit_json(edit: Edit) -> dict[str, Any]:
    """One part of a smallest change: its kind (`is`), what it is about, and words."""
    text = wording.edit(edit)
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
