"""Tickets: passes for one piece of work each, on the node that the engine chose.

Rule: a ticket can be used on one node at a time, and once. An actor needs two parts of its ticket to be placed, and
holds one of them while it runs. So two parts are granted on the chosen node. Once the actor has started, the grant is
revoked, and Ray leaves the part that is held. That is not enough to be placed again, so a restart waits until the
engine has placed the actor again.

An unused grant is revoked with a plug, a placement group that takes both parts. If it gets them, the work cannot start
there, but does not fail either, because the node stays feasible. If it does not get them, the work is starting.

An actor may die before the grant that it used was revoked, and restart with it unnoticed. So before an actor is
reported as lost, its ticket must be gone from every node, as the nodes themselves confirm.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from stead.ray.wire.node_page import BOTH, ONE, SYNC_S
from stead.ray.wire.own_names import TICKET, TICKET_PLUGS
from stead.ray.wire.resource_grants import Grants, Outcome
from stead.ray.wire.tables import Status, group_on, handle

SETTLES_S = 10.0
REVOKE_S = 1
"""In whole seconds: Ray 2.60 truncates the timeout, and would not wait at all with 0.5."""
SHOWN_S = 2 * SYNC_S
"""After this time, Ray's tables show a change on a node, even if they are late once."""


@dataclass(slots=True)
class Ticket:
    id: str
    name: str
    wanted: str = ""  # the node that the engine chose
    open: set[str] = field(default_factory=set)  # nodes with a grant that was not revoked
    plugs: dict[str, Any] = field(default_factory=dict)  # node -> the placement group that holds the ticket there
    changed: float = 0.0  # when it was last changed on a node


class Tickets:
    def __init__(
        self, grants: Grants | None, check: Callable[[], None], plugs: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._grants, self._check = grants, check
        self.by_id: dict[str, Ticket] = {}
        self.by_name: dict[str, Ticket] = {}
        self._left_over: dict[str, dict[str, float]] = defaultdict(dict)
        self._held: dict[tuple[str, str], float] = {}  # (node, name) that was revoked -> when: work may still hold it
        self._changed = time.monotonic()
        self._old_plugs = [
            (name.split("/", 2)[1], f"{TICKET}{name.split('/', 2)[2]}", row)
            for name, row in ((row["name"], row) for row in plugs.values())
            if name.startswith(TICKET_PLUGS)
        ]

    def add(self, id: str, name: str) -> Ticket:
        if id not in self.by_id:
            self.by_id[id] = self.by_name[name] = Ticket(id, name, changed=time.monotonic())
        return self.by_id[id]

    def recover(self, status: Status) -> None:
        """After a restart: find grants and plugs of known tickets, and remove those of unknown ones."""
        for node_id, name, row in self._old_plugs:
            group = handle(row["id"])
            if name in self.by_name and row["state"] == "CREATED":
                self.by_name[name].plugs[node_id] = group
            else:
                ray.util.remove_placement_group(group)
        self._old_plugs = []
        for node in status.nodes.values():
            for name, total in node.total.items():
                if name.startswith(TICKET) and "_group_" not in name:
                    ticket = self.by_name.get(name)
                    self._held[node.id, name] = time.monotonic()
                    if ticket is None:
                        self._left_over[node.id][name] = 0.0
                    elif total > ONE * 1.5:
                        ticket.open.add(node.id)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to remove. What work holds can be removed only when it is released."""
        return not self._left_over and not self._held and time.monotonic() > self._changed + SETTLES_S

    def want(self, id: str, node: str) -> None:
        """The engine chose this node; `carry_out` then grants the ticket."""
        if id in self.by_id:
            self.by_id[id].wanted = node

    def carry_out(self, status: Status) -> None:
        """Grant what is wanted, one call per node. If a ticket is open on another node, close it there first."""
        changes = {node: dict(amounts) for node, amounts in self._left_over.items() if node in status.nodes}
        self._left_over.clear()
        for ticket in self.by_id.values():
            ticket.open &= status.nodes.keys()
            for node in ticket.plugs.keys() - status.nodes.keys():
                _remove(ticket.plugs.pop(node))
            if not ticket.wanted or ticket.wanted not in status.nodes:
                continue
            shut = all(self.revoke(ticket.id, node) for node in sorted(ticket.open - {ticket.wanted}))
            if not shut:
                continue
            if ticket.wanted in ticket.plugs:
                _remove(ticket.plugs.pop(ticket.wanted))
            if ticket.wanted not in ticket.open:
                ticket.open.add(ticket.wanted)
                changes.setdefault(ticket.wanted, {})[ticket.name] = BOTH
        for node, outcome in self._set_many(changes).items() if changes else ():
            self._learn(node, changes[node], outcome)

    def _learn(self, node: str, amounts: Mapping[str, float], outcome: Outcome) -> None:
        """What was not sent to a node is sent in the next round. What was sent and not answered may still be applied,
        so it is not granted again, but revoked again."""
        for name, amount in amounts.items():
            ticket = self.by_name.get(name)
            if ticket is not None:
                ticket.changed = time.monotonic()
            if not amount and outcome is Outcome.ANSWERED:
                self._held[node, name] = time.monotonic()
            elif not amount:
                self._left_over[node][name] = 0.0
            elif amount and ticket is not None and outcome is Outcome.NOT_ASKED:
                ticket.open.discard(node)

    def revoke(self, id: str, node: str) -> bool:
        """Close an unused grant. Returns False if it is being used."""
        ticket = self.by_id[id]
        if node in ticket.plugs or node not in ticket.open:
            return True
        try:
            group = group_on(node, f"{TICKET_PLUGS}{node}/{ticket.name.removeprefix(TICKET)}", ticket.name, BOTH)
        except ValueError:  # an old group of this name is still being removed
            return False
        if not group.wait(REVOKE_S):
            _remove(group)
            return False
        ticket.plugs[node] = group
        if ticket.wanted == node:
            ticket.wanted = ""
        return True

    def started(self, ids: Iterable[str]) -> None:
        """Revoke their grants: what is held stays, and cannot be used to start again."""
        for id in ids:
            ticket = self.by_id.get(id)
            if ticket is not None:
                self._close(ticket)

    def is_granted(self, id: str, node: str) -> bool:
        ticket = self.by_id.get(id)
        return ticket is not None and node in ticket.open

    def is_open(self, id: str) -> str:
        """The node where a ticket can be used and has not been used yet; "" if there is none."""
        ticket = self.by_id.get(id)
        return ticket.wanted if ticket and ticket.wanted in ticket.open else ""

    def lost(self, id: str) -> bool:
        """The work died. Returns True if its ticket is open nowhere, so it cannot start before the engine places it
        again."""
        ticket = self.by_id.get(id)
        if ticket is None:
            return True
        return all(self.revoke(id, node) for node in sorted(ticket.open))

    def take_back(self, id: str, node: str) -> None:
        """Revoke what may have been granted on a node before the controller restarted."""
        self._left_over[node][self.by_id[id].name] = 0.0

    def is_being_taken_back(self, id: str) -> bool:
        ticket = self.by_id.get(id)
        return ticket is not None and any(ticket.name in amounts for amounts in self._left_over.values())

    def is_gone(self, id: str, status: Status) -> bool:
        """Whether dead work cannot restart: no ticket is left. A used ticket may belong to its next start."""
        ticket = self.by_id.get(id)
        if ticket is None:
            return True
        if self.is_being_taken_back(id) or time.monotonic() - ticket.changed < SHOWN_S:
            return False
        there = [row for row in status.nodes.values() if ticket.name in row.total and row.id not in ticket.plugs]
        unused = [row.id for row in there if row.available.get(ticket.name, 0.0) > ONE * 1.5]
        return len(unused) == len(there) and all(node in ticket.open and self.revoke(id, node) for node in unused)

    def ended(self, id: str) -> None:
        ticket = self.by_id.pop(id, None)
        if ticket is not None:
            del self.by_name[ticket.name]
            self._close(ticket)

    def _close(self, ticket: Ticket) -> None:
        for group in ticket.plugs.values():
            _remove(group)
        for node in ticket.open | ticket.plugs.keys():
            self._left_over[node][ticket.name] = 0.0
        ticket.plugs, ticket.open, ticket.wanted = {}, set(), ""

    def sweep(self, status: Status) -> None:
        """Remove what is left of tickets of ended work, or of work that died on a node."""
        now = time.monotonic()
        for place, at in list(self._held.items()):
            row = status.nodes.get(place[0])
            if row is None or (place[1] not in row.total and now - at > SETTLES_S):  # Ray's tables lag
                del self._held[place]
        for node in status.nodes.values():
            for name, total in node.total.items():
                if not name.startswith(TICKET) or "_group_" in name:
                    continue
                ticket = self.by_name.get(name)
                is_shut = ticket is None or node.id not in ticket.open
                if is_shut and node.available.get(name, 0.0) >= total:  # no work holds it
                    self._left_over[node.id][name] = 0.0

    def _set_many(self, changes: Mapping[str, Mapping[str, float]]) -> Mapping[str, Outcome]:
        if self._grants is None:
            return dict.fromkeys(changes, Outcome.ANSWERED)  # without grants, no work is registered
        self._changed = time.monotonic()
        self._check()
        return self._grants.set_many(changes)


def _remove(group: Any) -> None:
    ray.util.remove_placement_group(group)
