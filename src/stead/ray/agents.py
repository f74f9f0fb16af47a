"""Getting the page to every node: a file on the controller's own machine, an agent on every other.

Rule: `write` returns when every live node has the page, or names the nodes that did not say so in time. A node that
does not answer holds up nothing but this one call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stead.ray.page import Page, Writer, folder_of

CONFIRM_S = 5.0
AGENTS = "STEAD_AGENTS"
"""Set to ``all``, every node but the controller's gets an agent, also on the same machine (for tests)."""


class PageAgent:
    """Writes the page on its own node."""

    def __init__(self) -> None:
        worker = ray._private.worker.global_worker
        session = worker.node.get_session_dir_path()
        self._writer = Writer(folder_of(session, worker.core_worker.get_current_node_id().hex()))

    def write(self, page: Page) -> int:
        self._writer.write(page)
        return page.count


class Pages:
    def __init__(self, session: Path, ip: str, node_id: str) -> None:
        self._session, self._ip, self._home = session, ip, node_id
        self._writers: dict[str, Writer] = {node_id: Writer(folder_of(session, node_id))}
        self._agents: dict[str, Any] = {}

    @property
    def last_count(self) -> int:
        """The count of the last page that any controller of this cluster wrote."""
        return self._writers[self._home].count

    def missing(self, node_ips: Mapping[str, str]) -> bool:
        """Whether a node has no page yet."""
        return bool(node_ips.keys() - self._writers.keys() - self._agents.keys())

    def write(self, page: Page, node_ips: Mapping[str, str]) -> list[str]:
        """Give the page to every node; returns those that did not confirm it in time."""
        for gone in (self._writers.keys() | self._agents.keys()) - node_ips.keys() - {self._home}:
            self._writers.pop(gone, None)
            self._agents.pop(gone, None)
        calls = {}
        for node_id, ip in node_ips.items():
            if self._is_here(node_id, ip):
                if node_id not in self._writers:
                    self._writers[node_id] = Writer(folder_of(self._session, node_id))
                self._writers[node_id].write(page)
            else:
                if node_id not in self._agents:
                    self._agents[node_id] = _agent_on(node_id)
                calls[self._agents[node_id].write.remote(page)] = node_id
        if not calls:
            return []
        _, late = ray.wait(list(calls), num_returns=len(calls), timeout=CONFIRM_S)
        return [calls[call] for call in late]

    def _is_here(self, node_id: str, ip: str) -> bool:
        if node_id == self._home:
            return True
        return ip == self._ip and os.environ.get(AGENTS) != "all"


def _agent_on(node_id: str) -> Any:
    there = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": there}
    return ray.remote(PageAgent).options(**options).remote()
