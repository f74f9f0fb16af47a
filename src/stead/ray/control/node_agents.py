"""Delivers the page to every node: as a file on the controller's machine, through an agent on every other node.

Rule: `write` returns when every live node has the page, or returns the nodes that did not confirm it in time. A node
that does not answer delays only one call. A node is on this machine only if its raylet answers here, because machines
can share an address (behind a router, or as containers of one host) without sharing files.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stead.ray.wire.folders import NotOurs, watch
from stead.ray.wire.node_page import FOLDER, Page, Writer, folder_of
from stead.ray.wire.own_names import NAMESPACE
from stead.ray.wire.tables import Raylet

CONFIRM_S, ANSWER_S = 1.0, 1.0
"""How long `write` waits for nodes to confirm the page. After a timeout, a node is not waited for until it answers."""

RETRY_S = 1.0
"""How long an agent waits before it retries to write a page."""

AGENTS = "STEAD_AGENTS"
"""``all`` gives every node except the controller's an agent, also on the same machine (for tests)."""


log = logging.getLogger(__name__)


class PageAgent:
    """Writes the page on its own node."""

    def __init__(self) -> None:
        worker = ray._private.worker.global_worker
        session = worker.node.get_session_dir_path()
        self._folder = folder_of(session, worker.core_worker.get_current_node_id().hex())
        self._writer: Writer | None = None
        self._said = ""

    def write(self, page: Page) -> int:
        """Returns once the page is written. Until then the node counts as not answering, also if another user has
        created a folder at the page's path."""
        while not self._try(page):
            time.sleep(RETRY_S)
        return page.count

    def _try(self, page: Page) -> bool:
        try:
            if self._writer is None:
                writer = Writer(self._folder)
                watch(self._folder.parent)
                self._writer = writer
            self._writer.write(page)
        except (NotOurs, OSError) as error:
            self._writer = None  # its folder may have been removed
            if self._said != str(error):
                self._said = str(error)
                log.warning("the page of this node cannot be written: %s; retrying every second", error)
            return False
        return True


class Pages:
    def __init__(self, session: Path, ip: str, node_id: str, raylets: Callable[[], Mapping[str, Raylet]]) -> None:
        self._session, self._ip, self._home, self._raylets = session, ip, node_id, raylets
        self._writers: dict[str, Writer] = {node_id: Writer(folder_of(session, node_id))}
        watch(session / FOLDER)
        self._agents: dict[str, Any] = {}
        self._unanswered: dict[str, Any] = {}  # node -> the last call that its agent has not answered
        self._confirmed: set[str] = set()  # nodes whose agents have answered once

    @property
    def last_count(self) -> int:
        """The count of the last page that any controller of this cluster wrote."""
        return self._writers[self._home].count

    def missing(self, node_ips: Mapping[str, str]) -> bool:
        """Whether a node has no page, and none is being written."""
        return bool(node_ips.keys() - self._writers.keys() - self._agents.keys())

    def has_page(self, node_id: str) -> bool:
        """Whether a node has a page, possibly an old one."""
        if node_id in self._unanswered and node_id not in self._confirmed:
            self._look()
        return node_id in self._writers or node_id in self._confirmed

    def write(self, page: Page, node_ips: Mapping[str, str]) -> list[str]:
        """Deliver the page to every node. Returns the nodes that did not confirm it in time. A node that has not
        answered before, because it hangs or has just started, is not waited for."""
        for gone in (self._writers.keys() | self._agents.keys()) - node_ips.keys() - {self._home}:
            self._writers.pop(gone, None)
            self._agents.pop(gone, None)
            self._unanswered.pop(gone, None)
            self._confirmed.discard(gone)
        self._meet(node_ips)
        self._look()
        prompt = self._confirmed - self._unanswered.keys()
        for node_id in self._writers.keys() & node_ips.keys():
            self._writers[node_id].write(page)
        self._unanswered = {node_id: agent.write.remote(page) for node_id, agent in self._agents.items()}
        waited = [self._unanswered[node_id] for node_id in prompt & self._unanswered.keys()]
        if waited:
            ray.wait(waited, num_returns=len(waited), timeout=CONFIRM_S)
        self._look()
        return sorted(self._confirmed & self._unanswered.keys())

    def _look(self) -> None:
        """Check which agents have answered meanwhile."""
        if self._unanswered:
            calls = {call: node_id for node_id, call in self._unanswered.items()}
            for call in ray.wait(list(calls), num_returns=len(calls), timeout=0)[0]:
                del self._unanswered[calls[call]]
                self._confirmed.add(calls[call])

    def _meet(self, node_ips: Mapping[str, str]) -> None:
        """Create a writer or an agent for every node that has none."""
        new = node_ips.keys() - self._writers.keys() - self._agents.keys()
        near = {node_id for node_id in new if node_ips[node_id] == self._ip and os.environ.get(AGENTS) != "all"}
        raylets = self._raylets() if near else {}
        for node_id in new:
            if node_id in near and is_here(node_id, self._home, raylets):
                self._writers[node_id] = Writer(folder_of(self._session, node_id))
            else:
                self._agents[node_id] = _agent_on(node_id)


def is_here(node_id: str, home: str, raylets: Mapping[str, Raylet]) -> bool:
    """Whether a node is on the same machine as the node `home`, which is on this one. It has the same session's files,
    and its raylet answers here, at a socket that no other node claims. The first raylet of every machine has the same
    name, so the socket of a remote node may exist here too; then it belongs to another node."""
    raylet, mine = raylets.get(node_id), raylets.get(home)
    if raylet is None or mine is None or raylet.session != mine.session:
        return False
    if sum(each.socket == raylet.socket for each in raylets.values()) > 1:
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(ANSWER_S)
        client.connect(raylet.socket)
        return True
    return False


def _agent_on(node_id: str) -> Any:
    there = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    agent = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, namespace=NAMESPACE)(PageAgent)
    return agent.options(scheduling_strategy=there).remote()
