"""The page of pending work: equal work once, equal groups once, each with its reasons and the smallest change.

Rule: `operate/pending.py` decides what is equal; every reason is the engine's own. The first in the queue comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from starlette.requests import Request

from stead.operate.changes import Absent
from stead.operate.desk import Desk
from stead.operate.pending import Alike, pending_alike
from stead.service.pages.about import explanation_of
from stead.service.pages.frame import Frame
from stead.text import short_id

SHAPES = 20
NAMES_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of pending work, with its explanation; None if it has just started or ended."""

    alike: Alike
    why: Mapping[str, Any] | None

    @property
    def room(self) -> str:
        return "groups" if self.alike.members else "work"

    @property
    def listed(self) -> Sequence[tuple[str, str]]:
        """Ids and names to list, up to a maximum."""
        pairs = zip(self.alike.ids, self.alike.names, strict=True)
        return [(id, short_id(name)) for id, name in pairs][:NAMES_SHOWN]


def add_waiting(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    @pages.get("/ui/waiting")
    def waiting(request: Request, offset: int = 0) -> HTMLResponse:
        everything, kinds = pending_alike(desk)
        offset = max(0, offset)
        return frame.page(
            request,
            "waiting.html",
            section="waiting",
            cards=[card_of(desk, each) for each in kinds[offset : offset + SHAPES]],
            all_shapes=len(kinds),
            looked_at=len(everything.items),
            total=everything.total,
            offset=offset,
            page_size=SHAPES,
        )


def card_of(desk: Desk, alike: Alike) -> Card:
    try:
        return Card(alike, explanation_of(desk, alike.id))
    except Absent:
        return Card(alike, None)
