"""The process of `stead scheduler`: configuration, signals, probes, one run.

Rule: the first SIGTERM or Ctrl-C finishes the bindings that were decided and releases the lease; the second one ends at
once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from uuid import uuid4

from stead.kubernetes.api.config import ApiConfig
from stead.kubernetes.api.http import ApiClient
from stead.kubernetes.health import HealthServer
from stead.kubernetes.metrics import text
from stead.kubernetes.scheduler import Options, Scheduler

REPORTS_AND_LISTS = 32
"""How many connections there are besides those of the bindings."""

LOG = logging.getLogger("stead.kubernetes")


def unique_identity() -> str:
    """The name of this process as a holder of the lease."""
    return f"{socket.gethostname()}_{uuid4().hex[:8]}"


def run(config: ApiConfig, options: Options, listen: tuple[str, int] | None) -> None:
    """Schedule until a signal. uvloop would be faster, but it sends later than it is told to, after the fence."""
    asyncio.run(_run(config, options, listen))


async def _run(config: ApiConfig, options: Options, listen: tuple[str, int] | None) -> None:
    client, lease_client = ApiClient(config, options.in_flight_max + REPORTS_AND_LISTS), ApiClient(config, 2)
    scheduler = Scheduler(client, options, lease_client)
    health = HealthServer(
        {
            "/healthz": lambda: (200, "ok\n"),
            "/readyz": lambda: _readiness(scheduler),
            "/metrics": lambda: (200, text(scheduler)),
        }
    )
    _stop_on_signals(scheduler)
    try:
        if listen is not None:
            port = await health.listen(*listen)
            LOG.info("serving /healthz, /readyz and /metrics", extra={"address": f"{listen[0]}:{port}"})
        LOG.info("starting", extra={"server": config.address, "identity": options.identity})
        await scheduler.run()
        LOG.info("stopped")
    finally:
        await health.close()
        await client.close()
        await lease_client.close()


def _readiness(scheduler: Scheduler) -> tuple[int, str]:
    if scheduler.is_ready and scheduler.lease is not None and scheduler.lease.problem and not scheduler.is_leader:
        return 503, f"{scheduler.lease.problem}\n"
    if scheduler.is_ready:
        return 200, "ok\n" if scheduler.is_leader else "ok: waiting to take over\n"
    missing = [each.path for each in scheduler.watches.all if not each.is_synced]
    return 503, f"not listed yet: {', '.join(missing)}\n" if missing else "the journal cannot be written\n"


def _stop_on_signals(scheduler: Scheduler) -> None:
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        LOG.info("stopping: finishing the bindings that were decided", extra={"signal": signal.Signals(number).name})
        scheduler.stop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
            signal.signal(each, lambda *_: os._exit(130))

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop, each)
