"""The cluster in Prometheus' text form.

Rule: few series whose labels cannot grow without end: by resource and by reason, never by the id of work or node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stead.operate.views import Page, Summary, WorkView


def metrics(summary: Summary, waiting: Page[WorkView]) -> str:
    return "\n".join([*_lines(summary, waiting), ""])


def _lines(summary: Summary, waiting: Page[WorkView]) -> Iterator[str]:
    yield from _gauge("stead_nodes", "Live nodes.", {"": summary.nodes})
    yield from _gauge("stead_nodes_tainted", "Nodes with a taint.", {"": summary.tainted})
    yield from _gauge("stead_nodes_draining", "Nodes that take no new work.", {"": summary.draining})
    states = {'{state="running"}': summary.running, '{state="waiting"}': summary.waiting}
    yield from _gauge("stead_work", "Pieces of work.", states)
    placed = summary.groups - summary.groups_waiting
    groups = {'{state="placed"}': placed, '{state="waiting"}': summary.groups_waiting}
    yield from _gauge("stead_groups", "Groups of work.", groups)
    for name, said, amounts in (
        ("stead_resource_total", "What all nodes have.", summary.total),
        ("stead_resource_available", "What is free of it.", summary.available),
    ):
        yield from _gauge(name, said, {f'{{resource="{_escaped(key)}"}}': value for key, value in amounts.items()})
    since = [view.since for view in waiting.items if view.since is not None]
    oldest = max(0.0, summary.at - min(since)) if since else 0.0
    yield from _gauge("stead_waiting_oldest_seconds", "How long the oldest waiting work has waited.", {"": oldest})


def _gauge(name: str, said: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP {name} {said}"
    yield f"# TYPE {name} gauge"
    for labels, value in values.items():
        yield f"{name}{labels} {value:g}" if abs(value) < 1e6 else f"{name}{labels} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
