"""A cluster saved to a file, to ask about it later without the cluster.

Rule: the file has the engine's state between two steps, as its checkpoint, and the names of work: everything that an
answer needs, and no secret. It is JSON, so reading one runs no code. A file that was changed or is damaged is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from stead import solver
from stead.codec import dumps, loads
from stead.engine.engine import Engine
from stead.engine.restart.checkpoints import Checkpoint
from stead.engine.settings import Settings
from stead.errors import Invalid
from stead.operate.desk import Answering, Desk
from stead.operate.scale import ScaleView, scale_json, scale_of
from stead.operate.snapshot import Known, Snapshot

VERSION = 1
"""The version of the file. Increase it with every change; a file of another version is refused."""

MARK = "stead_snapshot"
"""The field with the version, which tells such a file from others."""

SUM = "sum"
"""The field with the checksum of all other fields."""


def save(desk: Desk) -> str:
    """The cluster as the text of a file. Refuses a desk that has no snapshot, such as a service."""
    take = getattr(desk, "snapshot", None)
    if take is None:
        raise Invalid(
            "a service cannot save its cluster; use --address HOST:PORT of the Ray cluster, or --scenario FILE"
        )
    snapshot: Snapshot = take()
    if snapshot.kind == "kubernetes":
        raise Invalid(
            "a Kubernetes cluster cannot be saved; ask it directly, or describe its nodes and work in a scenario"
        )
    engine = snapshot.engine.fork()
    engine.decide()  # a checkpoint is possible between two steps only
    document = {
        MARK: VERSION,
        "title": snapshot.title,
        "kind": snapshot.kind,
        "at": snapshot.at,
        "settings": json.loads(dumps(engine.settings)),
        "state": json.loads(dumps(engine.checkpoint())),
        "work": {id: [each.kind, each.name, each.count] for id, each in snapshot.rows.known.items()},
        "scale": scale_json(desk.scale()),
    }
    return json.dumps({**document, SUM: _sum_of(document)}) + "\n"


def _sum_of(document: Mapping[str, Any]) -> str:
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def is_saved(text: str) -> bool:
    """Whether this is the text of such a file."""
    return text.lstrip().startswith("{") and f'"{MARK}"' in text[:100]


def opened(text: str) -> Desk:
    """The cluster in the text of a file."""
    try:
        found: Mapping[str, Any] = json.loads(text)
        if found[MARK] != VERSION:
            raise Invalid(f"it has version {found[MARK]}, but this version of stead reads {VERSION}; save it again")
        if found[SUM] != _sum_of({name: value for name, value in found.items() if name != SUM}):
            raise Invalid("it was changed after it was saved, or is damaged; save it again")
        state = loads(json.dumps(found["state"]), Checkpoint)
        engine = Engine.restored(state, loads(json.dumps(found["settings"]), Settings), solver.found())
        known = {id: Known(kind, name, count=count) for id, (kind, name, count) in found["work"].items()}
        snapshot = Snapshot(engine, found["at"], known, title=found["title"], kind=found["kind"])
        return SavedDesk(snapshot, scale_of(found["scale"]))
    except Invalid:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Invalid(f"it is not a cluster that this version of stead saved ({error}); save it again") from None


def without_nodes() -> Desk:
    """A cluster without nodes and work."""
    return SavedDesk(Snapshot(Engine(solver=solver.found()), 0.0, title="empty"), None)


class SavedDesk(Answering):
    """Answers from a snapshot. It cannot be changed, and has no history."""

    def __init__(self, snapshot: Snapshot, view: ScaleView | None) -> None:
        self._saved, self._view = snapshot, view

    def snapshot(self) -> Snapshot:
        return self._saved

    def scale(self) -> ScaleView | None:
        return self._view

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise Invalid("this is not a cluster that runs, so it has no history and cannot be changed")

    change = undo = report_scale = events = audit = verify = replay = _refuse
