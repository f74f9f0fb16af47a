"""Two what-ifs side by side: what each would do to the cluster as it is now, in one table.

Rule: both are written as for `stead what-if` and tried one after the other; nothing is changed. The table shows work
that either of them would change; equal fates are one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse
from starlette.requests import Request

from stead.errors import Invalid
from stead.operate.desk import Desk
from stead.operate.ordering import entry_name
from stead.operate.what_if import Difference
from stead.service.disconnects import WHILE_WANTED
from stead.service.pages.frame import Frame, first, may_compute, read_form
from stead.service.pages.what_if import EXAMPLE, TEXT_MAX, read_written, titles_in
from stead.service.pages.wording import total

SIDES = ("first", "second")
ROWS_MAX = 100
SECOND_EXAMPLE = "changes:\n- drain: cpu-1\n"
COUNTS = (
    ("placed", "Would start"),
    ("moved", "Would move"),
    ("stranded", "Would lose its place and be pending"),
    ("blocked", "Could start now, and would be pending"),
    ("unplaced", "Is new, and would be pending"),
    ("refused", "Would fail"),
)
Fate = tuple[str, str]
NO_FATE: Fate = ("", "")


@dataclass(frozen=True, slots=True)
class Both:
    """What happens to equal work in each what-if: (kind, node) for each; ("", "") if nothing changes."""

    ids: Sequence[str]
    name: str
    before: str
    fates: tuple[Fate, Fate]

    @property
    def differs(self) -> bool:
        return self.fates[0] != self.fates[1]


def add_comparing(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    def show(request: Request, given: Mapping[str, str], asks: bool) -> HTMLResponse:
        texts = [given.get(side, "")[:TEXT_MAX] for side in SIDES]
        tried, problems = both_tried(desk, texts) if asks else ([], ["", ""])
        rows = compared(*tried) if len(tried) == len(SIDES) else []
        verbs = dict(COUNTS)
        titles = {id: text for each in tried for id, text in titles_in(desk, each).items()}
        return frame.page(
            request,
            "compare.html",
            status=400 if any(problems) else 200,
            section="what-if",
            texts=texts,
            examples=(EXAMPLE, SECOND_EXAMPLE),
            problems=problems,
            tried=tried if rows or len(tried) == len(SIDES) else [],
            counts=[(text, [total(getattr(each, kind)) for each in tried]) for kind, text in COUNTS],
            rows=rows[:ROWS_MAX],
            verbs=verbs,
            left_out=max(0, len(rows) - ROWS_MAX),
            titles=titles,
            added={id for each in tried for id in each.added},
        )

    @pages.get("/ui/compare")
    def look(request: Request) -> HTMLResponse:
        given = dict(request.query_params)
        return show(request, given, all(given.get(side) for side in SIDES) and may_compute(request))

    @pages.post("/ui/ask/compare", dependencies=[WHILE_WANTED])
    def ask(request: Request, form: Annotated[list[tuple[str, str]], Depends(read_form)]) -> HTMLResponse:
        return show(request, first(form), asks=True)


def both_tried(desk: Desk, texts: Sequence[str]) -> tuple[list[Difference], list[str]]:
    """What each would do, and what is wrong with each."""
    found, problems = [], []
    for text in texts:
        try:
            if not text.strip():
                raise Invalid("is empty; write a change, for example changes: [{drain: cpu-1}]")
            found.append(desk.what_if(read_written(text)))
            problems.append("")
        except Invalid as error:
            problems.append(str(error))
    return found, problems


def compared(one: Difference, other: Difference) -> list[Both]:
    """Work that either of the two would change; work on which they differ comes first."""
    sides = (dict(_fates(one)), dict(_fates(other)))
    same: dict[tuple[str, str, Fate, Fate], list[str]] = {}
    for id in dict.fromkeys([*sides[0], *sides[1]]):
        known = sides[0].get(id) or sides[1][id]
        left, right = (side[id][:2] if id in side else NO_FATE for side in sides)
        same.setdefault((entry_name(known[2] or id), known[3], left, right), []).append(id)
    rows = [Both(ids, name, before, (left, right)) for (name, before, left, right), ids in same.items()]
    return sorted(rows, key=lambda row: not row.differs)


def _fates(found: Difference) -> Iterator[tuple[str, tuple[str, str, str, str]]]:
    """For each piece of work: what happens to it, its node then, its name, and its node now."""
    for kind, _ in COUNTS:
        for fate in getattr(found, kind):
            now = "" if kind in ("blocked", "placed") else fate.before
            yield from ((id, (kind, fate.after, fate.name, now)) for id in fate.ids)
