"""The desk of a Ray cluster for all processes except its controller: commands, the service, programs.

Rule: a question is answered in the process that asks it, from the controller's snapshot, which is fetched once per
version. So a long question does not block the controller. Changes, and lookups that only the controller can make, go to
the controller.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import ray

from stead import solver
from stead.controller import Tally
from stead.engine.explain.events import Event
from stead.engine.explain.explanations import Explanation
from stead.engine.scaling.decisions import ScaleDecision
from stead.operate.audit import Author, Entry
from stead.operate.changes import NodeChange
from stead.operate.desk import Answering, Carried, Changes, Unanswered
from stead.operate.history import Replayed
from stead.operate.scale import ScaleView
from stead.operate.snapshot import Snapshot
from stead.operate.what_if import Difference, what_if
from stead.ray.submit.connection import Connection, NoController, connection
from stead.ray.submit.messages import Recalled


class RemoteDesk(Answering):
    def __init__(self) -> None:
        self._fetching = threading.Lock()
        self._name, self._snapshot = "", None  # type: str, Snapshot | None
        self._tally = Tally()

    def snapshot(self) -> Snapshot:
        with self._fetching:
            name, content = _ask("packed", self._name)
            if self._snapshot is None or content:
                self._snapshot, self._tally = pickle.loads(content)
                self._name = name
                self._snapshot.engine.solver = solver.found()
            return self._snapshot

    @property
    def tally(self) -> Tally:
        """Counts of the controller's decisions since it started, as of the snapshot."""
        self.snapshot()
        return self._tally

    def why(self, id: str, recalled: Recalled | None = None) -> Explanation:
        """The controller looks up work that the snapshot does not list, such as a task submitted a moment ago.
        `recalled` is what this process knows about the work; the controller adds it to what it knows."""
        if recalled is None:
            snapshot = self.snapshot()
            id = snapshot.work_id(id)
            if snapshot.rows.knows(id):
                return snapshot.why(id)
        found: Explanation = _ask("why", id, *([] if recalled is None else [recalled]))
        return found

    def blast(self, *changes: NodeChange) -> Difference:
        resolved: list[NodeChange] = _ask("resolved", changes)
        snapshot = self.snapshot()
        now = snapshot.engine.now
        return what_if(snapshot, [fact for each in resolved for fact in each.facts(snapshot.find(each.node), now)])

    def change(self, changes: Changes, author: Author) -> Carried:
        carried: Carried = _ask("change", changes, author)
        return carried

    def undo(self, number: int, author: Author) -> Carried:
        carried: Carried = _ask("undo", number, author)
        return carried

    def scale(self) -> ScaleView | None:
        found: ScaleView | None = _ask("scale")
        return found

    def report_scale(self, view: ScaleView, decisions: Sequence[ScaleDecision]) -> None:
        _ask("report_scale", view, decisions)

    def events(self, after: int, limit: int) -> Sequence[Event]:
        found: Sequence[Event] = _ask("events", after, limit)
        return found

    def audit(self, after: int = 0, limit: int = 1000) -> Sequence[Entry]:
        found: Sequence[Entry] = _ask("audit", after, limit)
        return found

    def verify(self) -> int:
        return int(_ask("verify"))

    def replay(self, ask: str = "", at: float | None = None) -> Replayed:
        found: Replayed = _ask("replay", ask, at)
        return found


def _ask(what: str, *given: Any) -> Any:
    try:
        return connection().ask("desk", what, given)
    except (NoController, ray.exceptions.RayError) as error:
        first = str(error).strip().partition("\n")[0]
        raise Unanswered(f"the controller of the cluster did not answer ({first}); try again") from None


_desks: WeakKeyDictionary[Connection, RemoteDesk] = WeakKeyDictionary()


def remote_desk() -> RemoteDesk:
    """The desk of the cluster that this process is connected to. It is shared, so that each snapshot is fetched
    once."""
    return _desks.setdefault(connection(), RemoteDesk())
