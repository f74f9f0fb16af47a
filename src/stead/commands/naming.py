"""Display names of nodes and work: their names, or else the beginning of an id. Also the cluster's current time.

Rule: only for people; scripts get full ids. Names and the time are fetched once, on first use.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from stead.commands.arguments import all_nodes
from stead.language.arguments import kubectl_spelling
from stead.language.times import moment_text
from stead.text import Titles, printable, short_id, with_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stead.engine.explain.events import Event
    from stead.operate.desk import Desk
    from stead.operate.views import Summary
from stead.operate.views import NodeView


class Names:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @cached_property
    def nodes(self) -> Mapping[str, str]:
        """The display name of each node, by id."""
        return titles(all_nodes(self._desk))

    @cached_property
    def work(self) -> Mapping[str, str]:
        """The names of work and groups, by id; in a large cluster only those listed first. Pods keep their ids,
        which have the namespace."""
        from stead.operate.snapshot import PAGE_MAX, Query

        pages = self._desk.groups(Query(limit=PAGE_MAX)), self._desk.work(Query(limit=PAGE_MAX))
        return {
            view.id: view.name
            for page in pages
            for view in page.items
            if view.name and not view.id.endswith(f"/{view.name}")
        }

    def now(self) -> float:
        """The cluster's current time."""
        return self._summary.at

    @cached_property
    def _summary(self) -> Summary:
        return self._desk.summary()

    @property
    def are_pods(self) -> bool:
        """Whether the work is pods."""
        return self._summary.kind == "kubernetes"

    def node(self, id: str) -> str:
        return (self.nodes.get(id) or short_id(id)) if id else ""

    def of(self, id: str) -> str:
        """The display name of a node, a piece of work or a group. Other text, such as ``web-1, db``, is unchanged."""
        if " " in id or ".." in id:
            return id
        return self.nodes.get(id) or self.work.get(id) or short_id(id)

    def text(self, text: str) -> str:
        """Text with names in place of node ids, and without terminal control characters."""
        return self.spelled(with_names(printable(text, keep="\n"), self.node))

    def spelled(self, text: str) -> str:
        """Text with effects of taints as the cluster spells them."""
        found = kubectl_spelling(text)
        return found if found != text and self.are_pods else text

    def event(self, event: Event) -> str:
        """``2026-01-31 12:00:00  tainted   gpu-1: gpu_node=true``, in UTC."""
        named = replace(event, subject=self.of(event.subject), text=event.text)
        return f"{moment_text(event.at)}  {self.text(str(named))}"


def titles(views: Iterable[NodeView]) -> dict[str, str]:
    """The display name of each node, by id; these must be all nodes of the cluster."""
    names = {view.id: view.name for view in views}
    called = Titles(names)
    return {id: called[id] for id in names}


def for_scripts(views: Iterable[NodeView]) -> dict[str, str]:
    """The same for scripts: a name that no other node has, or the full id."""
    views = list(views)
    called = titles(views)
    return {view.id: view.name if called[view.id] == view.name else view.id for view in views}
