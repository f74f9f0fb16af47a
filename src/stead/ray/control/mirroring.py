"""Updates Ray's autoscaler beside the controller's rounds, and reports to the desk what it does.

Rule: planning may take a while, so it has a thread of its own and a copy of the engine: a taint must not wait for it.
One update runs at a time. An error of the autoscaler stops nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from ray.autoscaler.v2.utils import is_autoscaler_v2

from stead.engine.engine import Engine
from stead.language.asks import Ask
from stead.operate.desk import Desk
from stead.ray.control.cluster import RayCluster
from stead.ray.control.commands import Placing
from stead.ray.control.node_types import NodeTypesFile
from stead.ray.control.ray_work import RayWork
from stead.ray.control.scale_reports import PROVIDER, scale_view
from stead.ray.wire.own_names import read_name
from stead.ray.wire.tables import Status

MIRROR_S = 2.0
SHARE_MAX = 0.25
"""The maximum share of the time for which updates may run: they take turns with the controller's rounds."""

log = logging.getLogger(__name__)


class Mirroring:
    """
    Args:
        logs: The folder of the session's logs.
        placing: Its `autoscaler` is updated.
        cluster: Gets the node types, once they are known.
    """

    def __init__(self, logs: str, placing: Placing, cluster: RayCluster) -> None:
        self._placing, self._cluster = placing, cluster
        self._file = NodeTypesFile(logs)
        self._thread, self._looked, self._pause = threading.Thread(), 0.0, MIRROR_S
        self._read_types()

    def look(self, status: Status, work: RayWork, desk: Desk) -> None:
        """Called in each round. Starts an update from time to time."""
        if time.monotonic() - self._looked < self._pause or self._thread.is_alive() or not is_autoscaler_v2():
            return
        self._looked = time.monotonic()
        try:
            demands = (row for row in status.pending if any(read_name(name) for name in row.resources))
            pending = [(work.ask_of_demand(row, "pending"), row.count) for row in demands]
            given = (status, self._placing.fork(status), pending, desk)
        except Exception:
            log.exception("the pending demand could not be read")
            return
        self._thread = threading.Thread(target=self._update, args=given, name="stead-mirror", daemon=True)
        self._thread.start()

    def _update(self, status: Status, engine: Engine, pending: Sequence[tuple[Ask, int]], desk: Desk) -> None:
        begun = time.monotonic()
        try:
            self._read_types()
            mirror = self._placing.autoscaler
            if _has_another(desk):
                mirror.clear()
                self._placing.kept_nodes.clear()
                return
            mirror.update(status, engine, pending)
            self._placing.kept_nodes.update(status, engine)
            if self._cluster.node_types is not None and mirror.plans.latest is not None:
                view = scale_view(mirror.plans.latest, status, engine.titles, self._placing.kept_nodes.why)
                desk.report_scale(view, mirror.plans.decided())
        except Exception:
            log.exception("the pending demand could not be sent to the autoscaler")
        finally:
            types, plans = self._cluster.node_types, self._placing.autoscaler.plans
            pause = MIRROR_S if types is None or not plans.is_settling else types.settings.settle_s
            self._pause = max(pause, (time.monotonic() - begun) / SHARE_MAX)

    def _read_types(self) -> None:
        self._cluster.node_types = self._file.types()
        self._placing.autoscaler.types = self._cluster.node_types


def _has_another(desk: Desk) -> bool:
    """Whether another autoscaler, `stead autoscale`, launches the nodes of this cluster."""
    found = desk.scale()
    return found is not None and found.provider != PROVIDER and not found.is_silent
