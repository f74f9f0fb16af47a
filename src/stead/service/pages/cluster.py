"""The cluster page: every node as a tile, grouped by a label and filled by usage; or as a table.

Rule: usable with ten nodes and with ten thousand. The more nodes, the smaller a tile: a card that shows what runs
there, a tile with a name, or a dot. If nothing has changed, nothing is sent.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response
from starlette.requests import Request

from stead.errors import Invalid
from stead.language.labels import IDENTITY_KEYS, Selector
from stead.language.resources import in_order, quantity_text
from stead.language.selectors import parse_selector
from stead.operate.changes import Absent, Conflict
from stead.operate.describing import find_group
from stead.operate.desk import Desk, Unanswered
from stead.operate.snapshot import PAGE_MAX, Query
from stead.operate.views import NodeView, Page, Summary
from stead.service.pages.about import is_known
from stead.service.pages.frame import Frame, go_to, is_part
from stead.service.pages.many_nodes import EFFECT_CHOICES, VERBS
from stead.service.pages.sorting import Column, heads, known, ordered_by
from stead.service.pages.wording import link, names, share, step, tone

CARDS_MAX = 60
TILES_MAX = 600
ROWS = 100
LISTED_WORK_MAX = 5000
GROUPS_MAX = 60
USUAL = ("zone", "ray.io/availability-zone", "topology.kubernetes.io/zone", "ray.io/node-group", "type")
EVERYTHING = "none"
TEXT_MAX = 1000


@dataclass(frozen=True, slots=True)
class Tile:
    """One node on the map."""

    id: str
    title: str
    use: int | None  # percentage of the chosen resource; None if the node has none
    text: str  # as text, for those who cannot see or hover
    marks: str  # CSS classes
    node: NodeView
    work: str = ""

    @property
    def step(self) -> int:
        return step(self.use or 0)


@dataclass(frozen=True, slots=True)
class Cut:
    """The nodes with one value of the label that they are grouped by."""

    value: str
    tiles: Sequence[Tile]
    use: int | None


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user wants to see of the cluster."""

    by: str = ""
    of: str = ""
    q: str = ""
    view: str = "map"
    offset: int = 0
    sort: str = ""

    def link(self, **other: Any) -> str:
        mine = {"by": self.by, "of": self.of, "q": self.q, "view": self.view, "offset": self.offset, "sort": self.sort}
        given = {**mine, **other}
        return link("", **{name: value for name, value in given.items() if value and (name, value) != ("view", "map")})


def add_cluster(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    @pages.get("/ui/")
    def cluster(
        request: Request,
        by: str = "",
        of: str = "",
        q: str = "",
        view: str = "map",
        offset: int = 0,
        sort: str = "",
        seen: str = "",
    ) -> Response:
        wish = Wish(by, of, q[:TEXT_MAX].strip(), "table" if view == "table" else "map", max(0, offset), sort)
        values = seen_by(desk, wish)
        if not is_part(request, "map"):
            return frame.page(request, "cluster.html", section="cluster", **values)
        if values["problem"]:  # keep the map as it was
            answer: Response = frame.part("match.html", **values)
            answer.headers.update({"hx-retarget": "#match", "hx-reswap": "outerHTML", "hx-replace-url": "false"})
            return answer
        if seen == values["mark"]:  # the browser has this already
            return Response(status_code=204)
        return frame.part("map.html", **values)

    @pages.get("/ui")
    def bare() -> Response:
        return go_to("/ui/")

    @pages.get("/ui/strip")
    def strip() -> HTMLResponse:
        return frame.part("strip.html", summary=desk.summary())

    @pages.get("/ui/find")
    def find(id: str) -> Response:
        """The node, work or group with this id, address or name."""
        name, refusals = id.strip(), list[Invalid]()
        for room, ask in (("nodes", desk.node), ("work", desk.one), ("groups", partial(find_group, desk))):
            try:
                return go_to(link(room, ask(name).id))
            except Unanswered:
                raise
            except Invalid as error:
                refusals.append(error)
        if is_known(frame, name):
            return go_to(link("about", name))
        nothing = Absent(f"There is nothing called {name!r}: {refusals[0]}.")
        raise next((each for each in refusals if isinstance(each, Conflict)), nothing)


def seen_by(desk: Desk, wish: Wish) -> dict[str, Any]:
    """Everything that the page shows."""
    summary, labels = desk.summary(), desk.labels()
    keys = choices_of(labels, summary.nodes)
    by = wish.by if wish.by in labels or wish.by == EVERYTHING else next((key for key in USUAL if key in keys), "")
    resources = [name for name in in_order(summary.total) if summary.total[name]]
    of = wish.of if wish.of in resources else next(iter(resources), "")
    columns = columns_of(by, resources)
    sort = known(columns, wish.sort) if wish.view == "table" else ""
    wish = Wish(by if wish.by else "", of if wish.of else "", wish.q, wish.view, wish.offset, sort)
    selector, problem = understood(wish.q)
    nodes: Page[NodeView] = Page((), 0)
    if not problem:
        part = (ROWS, wish.offset) if wish.view == "table" and not sort else (PAGE_MAX, 0)
        nodes = desk.nodes(Query(selector=selector, limit=part[0], offset=part[1]))
    if sort:
        rows = ordered_by(nodes.items, columns, sort)[wish.offset : wish.offset + ROWS]
        nodes = Page(tuple(rows), nodes.total, wish.offset)
    size = size_of(nodes.total)
    work = work_by_node(desk, summary) if size == "cards" and wish.view == "map" else {}
    tiles = [tile(node, of, size, work.get(node.id, ())) for node in nodes.items]
    return {
        "summary": summary,
        "wish": wish,
        "by": by,
        "of": of,
        "keys": keys,
        "resources": resources,
        "problem": problem,
        "matched": nodes.total,
        "filtered": bool(wish.q),
        "size": size,
        "cuts": cut(tiles, by, of) if wish.view == "map" else (),
        "rows": tiles,
        "heads": heads(columns, sort, lambda order: wish.link(sort=order, offset=0)),
        "verbs": VERBS,
        "effects": EFFECT_CHOICES,
        "offset": wish.offset,
        "page_size": ROWS,
        "quick": summary.nodes <= TILES_MAX,
        "mark": mark_of(tiles, wish, problem, summary.nodes),
    }


def columns_of(by: str, resources: Sequence[str]) -> list[Column[NodeView]]:
    """The columns of the table of nodes."""
    found: list[Column[NodeView]] = [Column("node", "Node", lambda view: view.title)]
    if by and by != EVERYTHING:
        found.append(Column("label", by, lambda view: view.labels.get(by, "")))
    found += [Column(f"use.{name}", f"{name} used", _used(name), is_number=True) for name in resources[:3]]
    found.append(Column("running", "Running", lambda view: view.runs, is_number=True))
    found.append(Column("state", "Taints and state", lambda view: (view.draining, len(view.taints), *view.taints)))
    return found


def _used(name: str) -> Callable[[NodeView], float | None]:
    return lambda view: view.total[name] - view.available.get(name, 0.0) if view.total.get(name) else None


def mark_of(tiles: Iterable[Tile], *rest: object) -> str:
    """A digest of what the map shows."""
    shown = "\n".join(f"{each.id} {each.text} {each.work}" for each in tiles)
    return hashlib.sha256(f"{shown}{rest!r}".encode()).hexdigest()[:16]


def understood(text: str) -> tuple[Selector | None, str]:
    """The selector, or what is wrong with it."""
    if not text:
        return None, ""
    try:
        return parse_selector(text), ""
    except Invalid as error:
        return None, str(error)


def size_of(count: int) -> str:
    return "cards" if count <= CARDS_MAX else "tiles" if count <= TILES_MAX else "dots"


def choices_of(labels: Mapping[str, Mapping[str, Sequence[str]]], nodes: int) -> list[str]:
    """Label keys that are useful to group by: not one group for each node."""
    most = max(2, min(GROUPS_MAX, nodes // 2))
    return sorted(key for key, values in labels.items() if key not in IDENTITY_KEYS and len(values) <= most)


def work_by_node(desk: Desk, summary: Summary) -> Mapping[str, Sequence[str]]:
    """The names of what runs on each node; empty if that would be a long list."""
    found: dict[str, list[str]] = defaultdict(list)
    if summary.running <= LISTED_WORK_MAX:
        for work in desk.work(Query(filters=("state=running",), limit=LISTED_WORK_MAX)).items:
            found[work.node] += [work.name or work.id] * work.count
    return found


def tile(node: NodeView, of: str, size: str, work: Sequence[str]) -> Tile:
    total = node.total.get(of, 0.0)
    use = share(total, node.available.get(of, 0.0)) if total else None
    marks = []
    name = node.title
    parts = [name]
    if use is None:
        parts.append(f"no {of}" if of else "no resources")
        marks.append("none")
    else:
        parts.append(f"{use} % of {quantity_text(of, total)} {of}")
    if node.runs:
        parts.append(f"{node.runs} running")
    if node.draining:
        parts.append("draining")
        marks.append("draining")
    if node.taints:
        parts.append("tainted " + " ".join(map(str, node.taints)))
        tones = {tone(taint) for taint in node.taints}
        marks.append(next(each for each in ("alarm", "reserved", "soft") if each in tones))
    shown = names(work) if size == "cards" else ""
    return Tile(node.id, name, use, ", ".join(parts), " ".join(marks), node, shown)


def cut(tiles: Iterable[Tile], by: str, of: str) -> list[Cut]:
    """The groups of the map; nodes without the label are last."""
    found: dict[str, list[Tile]] = defaultdict(list)
    for each in tiles:
        found[each.node.labels.get(by, "") if by and by != EVERYTHING else ""].append(each)
    return [Cut(value, found[value], _use(found[value], of)) for value in sorted(found, key=lambda v: (not v, v))]


def _use(tiles: Sequence[Tile], of: str) -> int | None:
    total = sum(each.node.total.get(of, 0.0) for each in tiles)
    return share(total, sum(each.node.available.get(of, 0.0) for each in tiles)) if total else None
