"""Tickets: passes for one piece of work each, where the engine itself chose the node.

Rule: a ticket can be used on one node at a time, and once. An actor asks for two parts of its ticket to be placed and
holds one of them while it lives. What is granted is therefore two parts on the chosen node; once the actor has started
the grant is taken back, and Ray leaves the part that is held. That part is not enough to be placed again, so a restart
waits until the engine has decided anew. A task has no such second amount: it asks for one part and holds it.

A grant that was not used yet is revoked by a plug, a placement group that takes both parts: if it gets them, the work
cannot start there any more and is not failed either, because the node stays feasible; if it does not, the work is on
its way.

An actor may die before the grant it started by was taken back, and start again by it, unseen. So whoever says that it
is lost first asks whether its ticket is gone: from every node, as the nodes themselves say after they were told.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from stead.ray.grants import Grants, Outcome
from stead.ray.page import BOTH, ONE, SYNC_S, TICKET
from stead.ray.tables import Status, handle

SETTLES_S = 10.0
REVOKE_S = 1
"""Whole seconds: of others Ray 2.60 takes only the whole part, and with 0.5 would not wait at all."""
PLUG = "stead-ticket"
HEARD_S = 2 * SYNC_S
"""After this Ray's tables show what a node was told, also when they are late once."""


@dataclass(slots=True)
class Ticket:
    id: str
    name: str
    wanted: str = ""  # the node the engine chose and where it may be used
    open: set[str] = field(default_factory=set)  # nodes with a grant that was not taken back
    plugs: dict[str, Any] = field(default_factory=dict)  # node -> the group that holds it there
    told: float = 0.0  # when a node was last told something of it


class Tickets:
    def __init__(
        self, grants: Grants | None, check: Callable[[], None], plugs: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._grants, self._check = grants, check
        self.by_id: dict[str, Ticket] = {}
        self.by_name: dict[str, Ticket] = {}
        self._left_over: dict[str, dict[str, float]] = defaultdict(dict)
        self._held: dict[tuple[str, str], float] = {}  # (node, name) that was taken back, and when: work may hold it
        self._changed = time.monotonic()
        self._old_plugs = [
            (name.split("/", 2)[1], f"{TICKET}{name.split('/', 2)[2]}", row)
            for name, row in plugs.items()
            if name.startswith(f"{PLUG}/")
        ]

    def add(self, id: str, name: str) -> Ticket:
        if id not in self.by_id:
            self.by_id[id] = self.by_name[name] = Ticket(id, name, told=time.monotonic())
        return self.by_id[id]

    def recover(self, status: Status) -> None:
        """After a restart: where grants and plugs of known tickets stand; what belongs to nobody is taken away."""
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
        """Whether nothing is left to be taken away. What work holds can be taken away only when it is released."""
        return not self._left_over and not self._held and time.monotonic() > self._changed + SETTLES_S

    def want(self, id: str, node: str) -> None:
        """The engine chose this node; `carry_out` then grants it."""
        if id in self.by_id:
            self.by_id[id].wanted = node

    def carry_out(self, status: Status) -> None:
        """Grant what is wanted, in one call for each node; where a ticket is open elsewhere, only once that is shut."""
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
        """What a node was not asked for is asked for in the next round; what it was asked for and did not answer may
        still happen, so it is not granted again, but taken back again."""
        for name, amount in amounts.items():
            ticket = self.by_name.get(name)
            if ticket is not None:
                ticket.told = time.monotonic()
            if not amount and outcome is Outcome.ANSWERED:
                self._held[node, name] = time.monotonic()
            elif not amount:
                self._left_over[node][name] = 0.0
            elif amount and ticket is not None and outcome is Outcome.NOT_ASKED:
                ticket.open.discard(node)

    def revoke(self, id: str, node: str) -> bool:
        """Shut a grant that was not used yet. False: it is being used."""
        ticket = self.by_id[id]
        if node in ticket.plugs or node not in ticket.open:
            return True
        try:
            group = ray.util.placement_group(
                [{ticket.name: BOTH}],
                name=f"{PLUG}/{node}/{ticket.name.removeprefix(TICKET)}",
                lifetime="detached",
                bundle_label_selector=[{"ray.io/node-id": node}],
            )
        except ValueError:  # one that was removed a moment ago is still there
            return False
        if not group.wait(REVOKE_S):
            _remove(group)
            return False
        ticket.plugs[node] = group
        if ticket.wanted == node:
            ticket.wanted = ""
        return True

    def started(self, ids: Iterable[str]) -> None:
        """Take their grants back: what is held stays, and nothing can start by it again."""
        for id in ids:
            ticket = self.by_id.get(id)
            if ticket is not None:
                self._close(ticket)

    def is_granted(self, id: str, node: str) -> bool:
        ticket = self.by_id.get(id)
        return ticket is not None and node in ticket.open

    def is_open(self, id: str) -> str:
        """The node where a ticket may be used now and was not yet; "" if there is none."""
        ticket = self.by_id.get(id)
        return ticket.wanted if ticket and ticket.wanted in ticket.open else ""

    def lost(self, id: str) -> bool:
        """The work died. True: nothing of its ticket is open, so it starts nowhere before the engine decides."""
        ticket = self.by_id.get(id)
        if ticket is None:
            return True
        return all(self.revoke(id, node) for node in sorted(ticket.open))

    def take_back(self, id: str, node: str) -> None:
        """Whatever was granted on a node, before a restart of the controller that knew of it."""
        self._left_over[node][self.by_id[id].name] = 0.0

    def is_being_taken_back(self, id: str) -> bool:
        ticket = self.by_id.get(id)
        return ticket is not None and any(ticket.name in amounts for amounts in self._left_over.values())

    def is_gone(self, id: str, status: Status) -> bool:
        """Whether work that died has nothing left to start by. What is in use may be by its next start."""
        ticket = self.by_id.get(id)
        if ticket is None:
            return True
        if self.is_being_taken_back(id) or time.monotonic() - ticket.told < HEARD_S:
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
        """Take away what is left of tickets that are over, or of work that died on a node."""
        now = time.monotonic()
        for place, at in list(self._held.items()):
            row = status.nodes.get(place[0])
            if row is None or (place[1] not in row.total and now - at > SETTLES_S):  # the tables are late
                del self._held[place]
        for node in status.nodes.values():
            for name, total in node.total.items():
                if not name.startswith(TICKET) or "_group_" in name:
                    continue
                ticket = self.by_name.get(name)
                is_shut = ticket is None or node.id not in ticket.open
                if is_shut and node.available.get(name, 0.0) >= total:  # nobody holds it
                    self._left_over[node.id][name] = 0.0

    def _set_many(self, changes: Mapping[str, Mapping[str, float]]) -> Mapping[str, Outcome]:
        if self._grants is None:
            return dict.fromkeys(changes, Outcome.ANSWERED)  # then nothing is registered
        self._changed = time.monotonic()
        self._check()
        return self._grants.set_many(changes)


def _remove(group: Any) -> None:
    ray.util.remove_placement_group(group)
