"""Reaching a cluster: which one is meant, and its desk.

Rule: never guesses. An address says whether it is a service (http://... or the name of a context) or a Ray cluster;
without one it is STEAD_ADDRESS, the default context, RAY_ADDRESS, or the only Ray cluster on this machine; where there
are several, they are named. A question may be about a scenario instead, which is simulated in this process.
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

from stead.commands.destinations import Destination, credentials, destination
from stead.commands.saved_services import saved_names
from stead.commands.words import moment_of_scenario
from stead.errors import Invalid

if TYPE_CHECKING:
    from stead.operate.audit import Author
    from stead.operate.desk import Desk

Command = TypeVar("Command", bound=Callable[..., Any])

CONNECT_SECONDS_MAX = 5.0


def addressed(command: Command) -> Command:
    """The option by which a command is told the cluster."""
    said = (
        "A Ray cluster (HOST:PORT), a service (http://HOST:PORT) or a context's name; else STEAD_ADDRESS, the default "
        "context, RAY_ADDRESS, or the only Ray cluster on this machine. Attaching to Ray takes 2 to 3 s; a service "
        "answers at once."
    )
    return click.option("--address", metavar="ADDRESS", help=said, shell_complete=saved_names)(command)


@dataclass(frozen=True, slots=True)
class Where:
    """What a question is about: the cluster at an address, or a scenario that is simulated."""

    address: str | None = None
    scenario: str | None = None
    until: float | None = None


def asked(command: Command) -> Command:
    """The options by which a command that changes nothing is told what to look at; it gets them as `where`."""

    @wraps(command)
    def call(*, address: str | None, scenario: str | None, until: float | None, **given: Any) -> Any:
        if scenario is not None and address is not None:
            raise click.UsageError("give --scenario or --address, not both")
        if scenario is None and until is not None:
            raise click.UsageError("--until is for a scenario; give --scenario FILE too")
        return command(where=Where(address, scenario, until), **given)

    options = [
        click.option("--scenario", metavar="FILE", help="Simulate this scenario and answer for it; needs no cluster."),
        click.option(
            "--until",
            metavar="TIME",
            callback=moment_of_scenario,
            help="Stop at this moment of the simulation: 90, 90s, 5m, 2h.",
        ),
        addressed,
    ]
    found: Callable[..., Any] = call
    for option in reversed(options):
        found = option(found)
    return cast(Command, found)


@contextmanager
def reached(what: str, where: Where | str | None) -> Iterator[Desk]:
    """The desk of the cluster at an address or of a scenario, for the length of a block."""
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
    """The desk of a scenario that was played and whose time then stands still; moments count from its start."""
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
    """The desk of a service; its token is looked up now."""
    from stead.operate.afar import TIMEOUT_S, HttpDesk

    assert to.address is not None
    shown = credentials(to)
    return HttpDesk(to.address, shown.token, timeout_s or TIMEOUT_S, shown.ca, shown.insecure)


@contextmanager
def attached(what: str, address: str | None) -> Iterator[None]:
    """Connected to a Ray cluster."""
    from stead.ray.start import require_ray

    require_ray(f"stead {what}")
    import ray

    from stead.ray import api

    was_attached = ray.is_initialized()
    if not was_attached:
        _check_address(address or os.environ.get("RAY_ADDRESS", ""))
        api.attach(address or _the_only_one())
    try:
        yield
    except ray.exceptions.RayError as error:
        first = str(error).strip().partition("\n")[0]
        raise Invalid(f"the controller of the cluster did not answer ({first}); try again") from None
    finally:
        if not was_attached:
            ray.shutdown()


def _the_only_one() -> str | None:
    """Refuses where it would have to guess."""
    if os.environ.get("RAY_ADDRESS"):
        return None
    import ray

    found = sorted(ray._private.services.find_gcs_addresses())
    if len(found) > 1:
        raise Invalid(f"there are {len(found)} Ray clusters here: {', '.join(found)}; say which: --address {found[0]}")
    return None


def _check_address(address: str) -> None:
    """Refuse an address at which nobody listens at once; Ray would try for minutes, with warnings."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS_MAX).close()
    except (OSError, OverflowError):
        raise Invalid(f"there is no Ray cluster at {address} to attach to; start one by: stead start --head") from None


def author() -> Author:
    """Whoever runs this command, on this machine."""
    from stead.operate.audit import Author

    who = ""
    with suppress(KeyError, OSError):
        who = getpass.getuser()
    return Author(who or f"user {os.getuid()}", socket.gethostname(), "cli")
