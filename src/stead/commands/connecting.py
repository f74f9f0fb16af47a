"""Connects to a cluster, and returns its desk.

Rule: never guesses. An address is a service (http://... or the name of a context) or a Ray cluster; without one,
STEAD_ADDRESS, the default context, RAY_ADDRESS, or the only Ray cluster on this machine is used. If there are several
Ray clusters, the error lists them. A question may be about a scenario instead, which is simulated in this process.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stead.commands.arguments import moment_of_scenario
from stead.commands.destinations import Destination, credentials, destination
from stead.commands.saved_services import saved_names
from stead.errors import Invalid

if TYPE_CHECKING:
    from stead.operate.audit import Author
    from stead.operate.desk import Desk

Command = TypeVar("Command", bound=Callable[..., Any])

CONNECT_SECONDS_MAX = 5.0


def addressed(command: Command) -> Command:
    """The option that chooses the cluster."""
    text = (
        "A Ray cluster (HOST:PORT), a service (http://HOST:PORT) or a context's name; else STEAD_ADDRESS, the default "
        "context, RAY_ADDRESS, or the only Ray cluster on this machine. Attaching to Ray takes 2 to 3 s; a service "
        "answers at once."
    )
    return click.option("--address", metavar="ADDRESS", help=text, shell_complete=saved_names)(command)


@dataclass(frozen=True, slots=True)
class Where:
    """What a question is about: the cluster at an address, or a simulated scenario."""

    address: str | None = None
    scenario: str | None = None
    until: float | None = None


def asked(command: Command) -> Command:
    """The options of a command that only reads: which cluster or scenario; the command gets them as `where`."""

    @wraps(command)
    def call(*, address: str | None, scenario: str | None, until: float | None, **given: Any) -> Any:
        if scenario is not None and address is not None:
            raise click.UsageError("give --scenario or --address, not both")
        if scenario is None and until is not None:
            raise click.UsageError("--until needs a scenario; give --scenario FILE too")
        return command(where=Where(address, scenario, until), **given)

    options = [
        click.option("--scenario", metavar="FILE", help="Use a simulation of this scenario instead of a cluster."),
        click.option(
            "--until",
            metavar="TIME",
            callback=moment_of_scenario,
            help="Stop the simulation at this time: 90, 90s, 5m, 2h.",
        ),
        addressed,
    ]
    found: Callable[..., Any] = call
    for option in reversed(options):
        found = option(found)
    return cast(Command, found)


@contextmanager
def reached(what: str, where: Where | str | None) -> Iterator[Desk]:
    """The desk of the cluster at an address or of a scenario, inside a `with` block."""
    if isinstance(where, Where) and where.scenario is not None:
        with simulated(where.scenario, where.until) as desk:
            yield desk
        return
    to = destination(where.address if isinstance(where, Where) else where)
    if to.is_service:
        yield service(to)
        return
    with attached(what, to.address):
        from stead.ray.remote_desk import remote_desk

        yield remote_desk()


@contextmanager
def simulated(scenario: str, until: float | None) -> Iterator[Desk]:
    """The desk of a simulated scenario whose clock is paused at the end; times count from its start."""
    import tempfile
    from pathlib import Path

    from stead.sim.desk import SimDesk
    from stead.sim.scenario import load

    with tempfile.TemporaryDirectory(prefix="stead-simulation-") as folder:
        desk = SimDesk(load(scenario), Path(folder), until, speed=0.0, began=0.0)
        try:
            yield desk
        finally:
            desk.close()


def service(to: Destination, timeout_s: float | None = None) -> Desk:
    """The desk of a service; reads its token now."""
    from stead.operate.http_client import TIMEOUT_S, HttpDesk

    assert to.address is not None
    shown = credentials(to)
    return HttpDesk(to.address, shown.token, timeout_s or TIMEOUT_S, shown.ca, shown.insecure)


@contextmanager
def attached(what: str, address: str | None) -> Iterator[None]:
    """Connected to a Ray cluster, inside a `with` block."""
    from stead.ray.local.start import require_ray

    require_ray(f"stead {what}")
    import ray

    from stead.ray import api

    was_attached = ray.is_initialized()
    if not was_attached:
        api.attach(ray_address(address))
    try:
        yield
    except ray.exceptions.RayError as error:
        first = str(error).strip().partition("\n")[0]
        raise Invalid(f"the controller of the cluster did not answer ({first}); try again") from None
    finally:
        if not was_attached:
            ray.shutdown()


def ray_address(address: str | None) -> str | None:
    """The address of the Ray cluster that is meant, if it can be reached; None leaves the choice to Ray."""
    _check_address(address or os.environ.get("RAY_ADDRESS", ""))
    return address or _the_only_one()


def _the_only_one() -> str | None:
    """Refuses if there are several Ray clusters on this machine."""
    if os.environ.get("RAY_ADDRESS"):
        return None
    import ray

    found = sorted(ray._private.services.find_gcs_addresses())
    if len(found) > 1:
        raise Invalid(f"there are {len(found)} Ray clusters here: {', '.join(found)}; choose one: --address {found[0]}")
    return None


def _check_address(address: str) -> None:
    """Refuse an unreachable address at once; Ray would retry for minutes, with warnings."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS_MAX).close()
    except (OSError, OverflowError):
        raise Invalid(f"there is no Ray cluster at {address}; start one with: stead start --head") from None


def author() -> Author:
    """The user who runs this command, on this machine."""
    from stead.operate.audit import Author

    who = ""
    with suppress(KeyError, OSError):
        who = getpass.getuser()
    return Author(who or f"user {os.getuid()}", socket.gethostname(), "cli")
