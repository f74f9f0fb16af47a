"""Serialises pages of lists to JSON, fast.

Rule: the JSON is that of `views`; what many rows share is serialised once, and what has not changed since the last page
is reused. Lists of 100 rows are most of a service's load.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from stead.operate.views import NodeView, Page, WorkView, node_json

KEPT_MAX = 20_000


def written(value: Any) -> str:
    """JSON in ASCII: text that is not valid UTF-8, as JSON from outside may hold it, also survives."""
    return json.dumps(value, separators=(",", ":"))


def page_text(page: Page[Any], rows: Iterable[str]) -> str:
    return f'{{"items":[{",".join(rows)}],"total":{page.total},"offset":{page.offset}}}'


class NodeTexts:
    """Nodes as text; an unchanged node is not serialised again."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[NodeView, str]] = {}

    def page(self, page: Page[NodeView]) -> str:
        return page_text(page, map(self._text, page.items))

    def _text(self, view: NodeView) -> str:
        kept = self._kept.get(view.id)
        if kept is None or kept[0] is not view:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            kept = self._kept[view.id] = (view, written(node_json(view)))
        return kept[1]


def work_page(page: Page[WorkView]) -> str:
    """Equal work shares its request, so that is serialised once for the whole page."""
    shared: dict[tuple[int, int, int], str] = {}
    return page_text(page, [_work(view, shared) for view in page.items])


def _work(view: WorkView, shared: dict[tuple[int, int, int], str]) -> str:
    key = id(view.resources), id(view.rules), id(view.labels)
    request = shared.get(key)
    if request is None:
        resources, rules, labels = written(dict(view.resources)), written(view.rules), written(dict(view.labels))
        request = shared[key] = f'"resources":{resources},"rules":{rules},"labels":{labels}'
    text = _TEXT
    return (
        f'{{"id":{text(view.id)},"kind":{text(view.kind)},"name":{text(view.name)},"state":{text(view.state)},'
        f'"node":{text(view.node)},"namespace":{text(view.namespace)},"owner":{text(view.owner)},'
        f'"group":{text(view.group)},"owner_name":{text(view.owner_name)},{request},'
        f'"since":{"null" if view.since is None else repr(view.since)},"count":{view.count}}}'
    )


_TEXT: Callable[[str], str] = json.encoder.encode_basestring_ascii
