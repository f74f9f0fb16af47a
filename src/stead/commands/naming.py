"""What nodes and work are called for people: their names, else the beginning of an id. And what time it is there.

Rule: for people only; scripts get whole ids. Names and the moment are fetched once, when they are first needed.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from stead.commands.words import SHORT, all_nodes, short_id
from stead.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stead.operate.desk import Desk
    from stead.operate.views import NodeView

_WHOLE_ID = re.compile(r"\b[0-9a-f]{56}\b")


class Names:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @cached_property
    def nodes(self) -> Mapping[str, str]:
        """By id, the name of each node or the beginning of its id."""
        return {view.id: view.title for view in all_nodes(self._desk)}

    @cached_property
    def work(self) -> Mapping[str, str]:
        """By id, the name of work and groups that have one; of a great cluster, of what is listed first."""
        from stead.operate.snapshot import PAGE_MAX, Query

        pages = self._desk.groups(Query(limit=PAGE_MAX)), self._desk.work(Query(limit=PAGE_MAX))
        return {view.id: view.name for page in pages for view in page.items if view.name}

    def now(self) -> float:
        """The moment of the cluster."""
        return self._at

    @cached_property
    def _at(self) -> float:
        return self._desk.summary().at

    def node(self, id: str) -> str:
        return self.nodes.get(id, id[:SHORT]) if id else ""

    def of(self, id: str) -> str:
        """What a node, a piece of work or a group is called. Words, such as ``web-1, db``, stay as they are."""
        if " " in id or ".." in id:
            return id
        return self.nodes.get(id) or self.work.get(id) or short_id(id)

    def text(self, text: str) -> str:
        """Text in which ids of nodes stand, with names instead; nothing in it moves a terminal's cursor."""
        return _WHOLE_ID.sub(lambda found: self.node(found[0]), printable(text, keep="\n"))


def unique_names(views: Iterable[NodeView], everyone: Sequence[NodeView]) -> dict[str, str]:
    """By id, a name that means this node and no other: its own, or its id where others have that name too."""
    taken: dict[str, int] = {}
    for view in everyone:
        taken[view.name] = taken.get(view.name, 0) + 1
    return {view.id: view.name if view.name and taken.get(view.name) == 1 else view.id for view in views}
