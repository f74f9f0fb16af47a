"""The owners of work, each with what its work uses and requests.

Rule: an owner is listed while it has running or waiting work. The snapshot has what the cluster knows about an owner
(a name, whether it still runs); otherwise only the id is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from stead.operate.rows import KnownOwner, Rows
from stead.operate.views import OwnerView

UNKNOWN = KnownOwner(kind="owner")


class _Sums:
    def __init__(self) -> None:
        self.running = self.waiting = self.groups = 0
        self.uses: dict[str, float] = defaultdict(float)
        self.asks_for: dict[str, float] = defaultdict(float)


def owners_of(rows: Rows) -> Sequence[OwnerView]:
    """Owners with the most work first. Work without an owner is not counted."""
    sums: dict[str, _Sums] = defaultdict(_Sums)
    for ids, runs in ((rows.running, True), (rows.waiting, False)):
        for id in ids:
            owner = rows.owner(id)
            if not owner:
                continue
            count, found = rows.of(id).count, sums[owner]
            found.running += count * runs
            found.waiting += count * (not runs)
            amounts = found.uses if runs else found.asks_for
            for name, amount in rows.requested(rows.ask(id)).resources.items():
                amounts[name] += amount * count
    for id, group in rows.groups.items():
        owner = rows.of(id).owner or group.owner
        if owner:
            sums[owner].groups += 1
    views = [_view(owner, each, rows.owners) for owner, each in sums.items()]
    return sorted(views, key=lambda view: (-view.running - view.waiting, view.title, view.id))


def _view(id: str, sums: _Sums, owners: Mapping[str, KnownOwner]) -> OwnerView:
    known = owners.get(id, UNKNOWN)
    return OwnerView(
        id,
        known.kind,
        known.name,
        known.state,
        known.since,
        sums.running,
        sums.waiting,
        sums.groups,
        {name: round(amount, 4) for name, amount in sums.uses.items()},
        {name: round(amount, 4) for name, amount in sums.asks_for.items()},
    )
