"""Reaching a cluster: which one is meant, and its desk.

Rule: never guesses. An address says whether it is a service (http://... or the name of a context) or a Ray cluster;
without one it is STEAD_ADDRESS, the default context, RAY_ADDRESS, or the only Ray cluster on this machine; where there
are several, they are named.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stead.commands.destinations import Destination, credentials, destination
from stead.commands.saved_services import saved_names
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


@contextmanager
def reached(what: str, address: str | None) -> Iterator[Desk]:
    """The desk of the cluster, for the length of a block."""
    to = destination(address)
    if to.is_service:
        yield service(to)
        return
    with attached(what, to.address):
        from stead.ray.remote_desk import remote_desk

        yield remote_desk()


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
