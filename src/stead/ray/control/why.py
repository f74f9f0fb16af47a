"""Explains work that no snapshot lists: Ray does not know it yet, it has just started, or it has ended.

Rule: the last step of the desk's `why`, used only for work that is not in a current snapshot. It looks up the work in
Ray's tables, then in what the calling process recalls, and lets the snapshot's engine explain it.
"""

from __future__ import annotations

import re

from stead.engine.explain.explanations import Explanation
from stead.engine.facts import AskRunning
from stead.errors import Invalid
from stead.operate.changes import Absent
from stead.operate.snapshot import Snapshot
from stead.ray.control.ray_work import RayWork
from stead.ray.control.state_store import StateStore
from stead.ray.submit.messages import Recalled
from stead.ray.wire.gcs import ControlStore, TaskRow
from stead.ray.wire.tables import ACTOR_DIGITS, GROUP_DIGITS, TASK_DIGITS, ActorRow
from stead.text import short_id

RAY_ID = re.compile("[0-9a-f]+")
MISSING = {
    ACTOR_DIGITS: "Ray has no actor {}",
    TASK_DIGITS: "task {} is unknown; call stead.why in the program that submitted it",
    GROUP_DIGITS: "Ray has no placement group {}",
}


class Unlisted:
    def __init__(self, work: RayWork, store: ControlStore, state_store: StateStore) -> None:
        self._work, self._store, self._state_store = work, store, state_store

    def why(self, id: str, snapshot: Snapshot, recalled: Recalled) -> Explanation:
        timed = self._state_store.timed_of(id)
        if timed is not None and timed.refused is not None:
            return snapshot.engine.explain(timed.ask)
        row = self._row(id)
        if recalled.has_ended or (row is not None and _has_ended(row)):
            kind = "actor" if len(id) == ACTOR_DIGITS else "task"
            raise Invalid(f"{kind} {short_id(id)} has ended, so it is not pending")
        group = recalled.group if row is None else row.group
        if group:
            return snapshot.why_inside(group)
        if row is None and recalled.ask is None:
            if RAY_ID.fullmatch(id) and len(id) in MISSING:
                raise Absent(MISSING[len(id)].format(short_id(id)))
            id = snapshot.existing(id)
        ask = self._work.ask_recalled(id, recalled) if row is None else self._work.ask_of(row)
        if row is None or not row.node_id or row.node_id not in snapshot.by_id:
            return snapshot.engine.explain(ask)
        fork = snapshot.engine.fork()
        fork.apply(AskRunning(ask, row.node_id))
        return fork.explain(id)

    def _row(self, id: str) -> ActorRow | TaskRow | None:
        if not RAY_ID.fullmatch(id):
            return None
        if len(id) == ACTOR_DIGITS:
            return self._work.tables.actor(id)
        return self._store.task(id) if len(id) == TASK_DIGITS else None


def _has_ended(row: ActorRow | TaskRow) -> bool:
    return row.state == "DEAD" if isinstance(row, ActorRow) else row.has_ended
