"""The what-if page: a change built row by row, and what it would do, side by side with now.

Rule: the page has no language of its own: its rows become a document as `stead what-if` reads it from a file, and you
can also write that document here. Rows are in the URL, so that you can send a what-if to a colleague. A what-if that
only changes nodes can be applied, as one change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import urlencode

import yaml
from fastapi import APIRouter, Depends
from fastapi.responses import Response
from starlette.requests import Request

from stead.errors import Invalid
from stead.language.arguments import parse_labels
from stead.language.resources import as_written, parse_resources
from stead.operate.applying import changes_in
from stead.operate.changes import NodeChange
from stead.operate.desk import Desk
from stead.operate.snapshot import Query
from stead.operate.views import explanation_json
from stead.operate.what_if import Difference
from stead.service.api import author_of
from stead.service.disconnects import WHILE_WANTED
from stead.service.pages.about import address_of_change, is_there, titles_of
from stead.service.pages.frame import Frame, go_to, may_compute, read_form
from stead.service.pages.wording import link
from stead.specs.sections import load_yaml

ROWS_MAX = 50
TEXT_MAX = 20_000
NAMES_MAX = 300
ADDRESS_TEXT_MAX = 2000
FATES_SHOWN = 50
VALUES_MAX = 50_000


@dataclass(frozen=True, slots=True)
class Field:
    """One input of a row."""

    name: str
    label: str
    example: str = ""
    needed: bool = True
    wide: bool = False
    names: str = ""  # "nodes": the browser suggests nodes


NODE = Field("node", "Node", "gpu-1", names="nodes")
KINDS: Mapping[str, tuple[str, tuple[Field, ...]]] = {
    "taint": ("Taint a node", (NODE, Field("taints", "Taint", "team=blue:NoSchedule"))),
    "untaint": ("Remove a taint", (NODE, Field("key", "Taint key", "team"))),
    "label": ("Label a node", (NODE, Field("labels", "Labels", "disk=ssd,zone=a"))),
    "drain": ("Drain a node", (NODE,)),
    "undrain": ("Uncordon a node", (NODE,)),
    "leave": ("Remove a node", (NODE,)),
    "join": (
        "Add nodes",
        (
            Field("count", "How many", "1"),
            Field("like", "Like the node", "gpu-1", needed=False, names="nodes"),
            Field("capacity", "or with", "CPU=8, GPU=1, memory=64Gi", needed=False),
            Field("labels", "Labels", "zone=a", needed=False),
            Field("taints", "Taints", "gpu=true", needed=False),
        ),
    ),
    "work": (
        "Add work",
        (
            Field("count", "How many", "1"),
            Field("id", "Name", "trial", needed=False),
            Field("resources", "Each needs", "CPU=4, GPU=1"),
            Field("selector", "On nodes with", "gpu_type in [A100, H100]", needed=False),
            Field("tolerations", "Tolerates", "gpu=true", needed=False),
        ),
    ),
    "suggested": ("Smallest change for pending work", (Field("id", "Work", "train-1"),)),
    "written": ("As a file", (Field("text", "Changes and work, in YAML", wide=True),)),
}
EXAMPLE = "changes:\n- drain: [cpu-1, cpu-2]\nwork:\n- {id: trial, count: 3, resources: {CPU: 4}}\n"


@dataclass(frozen=True, slots=True)
class Row:
    kind: str
    values: Mapping[str, str]

    @property
    def title(self) -> str:
        return KINDS[self.kind][0]

    @property
    def fields(self) -> Sequence[Field]:
        return KINDS[self.kind][1]


def add_what_if(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    def show(request: Request, rows: Sequence[Row], ask: bool, fresh: int | None = None) -> Response:
        difference, problem = tried(desk, rows) if ask else (None, "")
        nodes = desk.nodes(Query(limit=NAMES_MAX)).items
        return frame.page(
            request,
            "what_if.html",
            status=400 if problem else 200,
            section="what-if",
            rows=rows,
            kinds=KINDS,
            fresh=fresh,
            difference=difference,
            problem=problem,
            notes=notes_of(desk, rows) if ask else {},
            titles=titles_in(desk, difference),
            unapplied=why_not_applied(desk, rows) if difference else "",
            new_work=new_work_in(desk, difference),
            compare=compare_address(rows) if difference else "",
            nodes=[node.name or node.id for node in nodes],
            example=EXAMPLE,
            address=address_of(rows),
        )

    @pages.get("/ui/what-if")
    def look(request: Request) -> Response:
        rows = rows_of(request.query_params.multi_items())
        return show(request, rows, ask=bool(rows) and may_compute(request))

    @pages.post("/ui/ask/what-if", dependencies=[WHILE_WANTED])
    def ask(request: Request, form: Annotated[list[tuple[str, str]], Depends(read_form)]) -> Response:
        what, _, which = dict(form).get("do", "try").partition(":")
        rows = rows_of(form)
        if what == "add":
            if which not in KINDS or len(rows) >= ROWS_MAX:
                raise Invalid(f"a what-if has up to {ROWS_MAX} rows of the kinds {', '.join(KINDS)}")
            added = {"text": EXAMPLE} if which == "written" else {"count": "1"}
            return show(request, [*rows, Row(which, added)], ask=False, fresh=len(rows))
        if what == "drop" and which.isdecimal():
            return show(request, [row for index, row in enumerate(rows) if index != int(which)], ask=False)
        return show(request, rows, ask=True)

    @pages.post("/ui/do/what-if")
    def apply(request: Request, form: Annotated[list[tuple[str, str]], Depends(read_form)]) -> Response:
        carried = desk.change(node_changes(desk, rows_of(form)), author_of(request, "page"))
        return go_to(address_of_change([each.id for each in carried.nodes], carried.entry.number))


def node_changes(desk: Desk, rows: Sequence[Row]) -> list[NodeChange]:
    """The node changes of a what-if that has nothing else. What it removes may be gone already."""
    found = changes_in(written_by(rows), lambda name: desk.node(name).id)
    return [replace(change, missing_ok=True) for change in found]


def why_not_applied(desk: Desk, rows: Sequence[Row]) -> str:
    """Why a what-if cannot be applied; "" if it can."""
    try:
        node_changes(desk, rows)
    except Invalid as error:
        return str(error)
    return ""


def compare_address(rows: Sequence[Row]) -> str:
    """The URL that compares this what-if with another one; "" if it is too long."""
    text = yaml.safe_dump(written_by(rows), sort_keys=False, allow_unicode=True, default_flow_style=None)
    return link("compare", first=text) if len(text) <= ADDRESS_TEXT_MAX else ""


def notes_of(desk: Desk, rows: Sequence[Row]) -> dict[str, str]:
    """The smallest change, as text, for each piece of work that a row names."""
    return {row.values.get("id", ""): note for row in rows if row.kind == "suggested" if (note := noted(desk, row))}


def noted(desk: Desk, row: Row) -> str:
    with suppress(Invalid):
        why = explanation_json(desk.why(row.values.get("id", "")))
        found = [why["change"], *(member["change"] for member in why["members"])]
        return next((str(change["text"]) for change in found if change), "")
    return ""


def rows_of(form: Iterable[tuple[str, str]]) -> list[Row]:
    """Consecutive rows: each starts with its `kind`."""
    found: list[tuple[str, dict[str, str]]] = []
    for name, value in form:
        if name == "kind":
            if value not in KINDS:
                raise Invalid(f"there is no row of kind {value!r}; good values are {', '.join(KINDS)}")
            found.append((value, {}))
        elif found and name in {field.name for field in KINDS[found[-1][0]][1]}:
            found[-1][1][name] = value.strip()[:TEXT_MAX]
    return [Row(kind, values) for kind, values in found[:ROWS_MAX]]


def address_of(rows: Sequence[Row]) -> str:
    pairs = [("kind", row.kind) if name == "kind" else (name, value) for row in rows for name, value in _pairs(row)]
    return f"/ui/what-if?{urlencode(pairs)}" if pairs else "/ui/what-if"


def _pairs(row: Row) -> list[tuple[str, str]]:
    return [("kind", row.kind), *((name, value) for name, value in row.values.items() if value)]


# -- rows as a document


def tried(desk: Desk, rows: Sequence[Row]) -> tuple[Difference | None, str]:
    """What the rows would do, or what is wrong with them."""
    try:
        return desk.what_if(written_by(rows)), ""
    except Invalid as error:
        return None, str(error)


def written_by(rows: Sequence[Row]) -> dict[str, list[Any]]:
    if not rows:
        raise Invalid("there is nothing to try yet; add a change, for example a taint")
    found: dict[str, list[Any]] = {"changes": [], "work": [], "groups": []}
    for number, row in enumerate(rows, start=1):
        try:
            part = _written(row, number)
        except Invalid as error:
            raise Invalid(f"row {number} ({row.title.lower()}): {error}") from None
        for name, entries in part.items():
            if name not in found:
                raise Invalid(f"row {number}: {name!r} is not a field here; good fields are {', '.join(found)}")
            found[name] += entries if isinstance(entries, list) else [entries]
    return {name: entries for name, entries in found.items() if entries}


def _written(row: Row, number: int) -> dict[str, Any]:
    for field in row.fields:
        if field.needed and not row.values.get(field.name):
            raise Invalid(
                f"{field.label.lower()} is missing" + (f", for example {field.example}" * bool(field.example))
            )
    given, node = row.values, row.values.get("node", "")
    match row.kind:
        case "taint":
            return {"changes": [{"taint": node, "taints": given["taints"]}]}
        case "untaint":
            key, _, effect = given["key"].partition(":")
            return {"changes": [{"untaint": node, "key": key, **({"effect": effect} if effect else {})}]}
        case "label":
            return {"changes": [{"label": node, "labels": dict(parse_labels(given["labels"]))}]}
        case "drain" | "undrain" | "leave":
            return {"changes": [{row.kind: node}]}
        case "join":
            return {"changes": [{"join": _joined(given, number)}]}
        case "work":
            return {"work": [_work(given, number)]}
        case "suggested":
            return {"changes": [{"suggested": given["id"]}]}
    return read_written(given["text"])


def read_written(text: str) -> dict[str, Any]:
    """A what-if document."""
    written = load_yaml(text, VALUES_MAX)
    if not isinstance(written, dict):
        raise Invalid("must have the fields changes, work or groups, for example changes: [{drain: cpu-1}]")
    return written


def _joined(given: Mapping[str, str], number: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": f"new-{number}", "count": _count(given)}
    if given.get("like"):
        return {**entry, "like": given["like"]}
    if not given.get("capacity"):
        raise Invalid("name a node to copy, or give a capacity, for example CPU=8, GPU=1")
    return {**entry, **_some(given, capacity=_amounts, labels=lambda text: dict(parse_labels(text)), taints=str)}


def _work(given: Mapping[str, str], number: int) -> dict[str, Any]:
    entry = {"id": given.get("id") or f"trial-{number}", "count": _count(given)}
    return {**entry, **_some(given, resources=_amounts, selector=str, tolerations=str)}


def _some(given: Mapping[str, str], **read: Callable[[str], Any]) -> dict[str, Any]:
    return {name: reader(given[name]) for name, reader in read.items() if given.get(name)}


def _count(given: Mapping[str, str]) -> int:
    text = given.get("count", "1") or "1"
    if not text.isdecimal() or not 1 <= int(text[:9]) <= 10_000:
        raise Invalid(f"how many must be a number from 1 to 10000, for example 3, not {text!r}")
    return int(text)


def _amounts(text: str) -> dict[str, int | float | str]:
    return as_written(parse_resources(text))


def titles_in(desk: Desk, difference: Difference | None) -> Mapping[str, str]:
    """The display names of the nodes in a difference."""
    if difference is None:
        return {}
    fates = (*difference.placed, *difference.moved, *difference.stranded, *difference.blocked, *difference.refused)
    ids = [id for fate in fates for id in (fate.before, fate.after)]
    return titles_of(desk, [*ids, *(each.node for each in difference.stays)])


def new_work_in(desk: Desk, difference: Difference | None) -> frozenset[str]:
    """Ids of new work in a difference, to which no link can lead."""
    if difference is None:
        return frozenset()
    fates = (fate for kind in (difference.placed, difference.refused) for fate in kind[:FATES_SHOWN])
    return frozenset(fate.ids[0] for fate in fates if not is_there(desk, fate.ids[0]))
