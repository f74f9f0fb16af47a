"""Connects to a cluster, and returns its desk.

Rule: never guesses. An address is a service (http://... or a name saved by `stead context`) or a Ray cluster; without
one, STEAD_ADDRESS, the default saved service, RAY_ADDRESS, or the only Ray cluster on this machine is used. If there
are several Ray clusters, the error lists them. A context of a kubeconfig file is a Kubernetes cluster; so is
STEAD_CONTEXT, if there is no address. A question may be about a scenario instead, which is simulated in this process.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stead.commands.arguments import moment_of_scenario
from stead.commands.destinations import Destination, credentials, destination
from stead.commands.kubernetes import (
    NO_KUBE_OPTIONS,
    KubeOptions,
    chosen_by_variable,
    kube_options,
    kubernetes_desk,
    namespace_options,
)
from stead.commands.saved_services import saved_names
from stead.errors import Invalid

if TYPE_CHECKING:
    from stead.operate.audit import Author
    from stead.operate.desk import Desk

Command = TypeVar("Command", bound=Callable[..., Any])

CONNECT_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Where:
    """What a command is about: the cluster at an address, a Kubernetes cluster, or a simulated scenario."""

    address: str | None = None
    scenario: str | None = None
    until: float | None = None
    kube: KubeOptions = NO_KUBE_OPTIONS

    def __post_init__(self) -> None:
        if len(self.given) > 1:
            raise click.UsageError(f"give {self.given[0]} or {self.given[1]}, not both")
        if self.scenario is None and self.until is not None:
            raise click.UsageError("--until needs a scenario; give --scenario FILE too")

    @property
    def given(self) -> list[str]:
        """The options that choose a cluster."""
        return [
            *(["--scenario"] if self.scenario is not None else []),
            *(["--address"] if self.address is not None else []),
            *self.kube.given[:1],
        ]

    @property
    def is_kubernetes(self) -> bool:
        """Whether this is a Kubernetes cluster, by an option or by the variable STEAD_CONTEXT."""
        return bool(self.kube.given) or (
            self.scenario is None and self.address is None and chosen_by_variable() is not None
        )

    @property
    def shows_namespaces(self) -> bool:
        """Whether a list has pods of several namespaces."""
        return not self.is_kubernetes or self.kube.all_namespaces

    @property
    def of_everything(self) -> Where:
        """The same, with the pods of all namespaces unless one is named."""
        return replace(self, kube=replace(self.kube, is_for_nodes=True))

    def of_pod(self, id: str) -> Where:
        """The same for this piece of work: the name of a pod means a Kubernetes cluster, unless there is a service or a
        Ray cluster to ask."""
        from stead.kubernetes.desk.references import is_pod

        if not is_pod(id) or self.scenario is not None or self.is_kubernetes or os.environ.get("RAY_ADDRESS"):
            return self
        if destination(self.address).address is not None:
            return self
        return replace(self, kube=replace(self.kube, is_meant=True))


def addressed(command: Command) -> Command:
    """The options that choose the cluster; the command gets them as `where`."""
    return _choosing(command, [*_cluster_options()])


def asked(command: Command) -> Command:
    """The options of a command that only reads: which cluster or scenario, and which pods; the command gets them as
    `where`."""
    options = [
        click.option("--scenario", metavar="FILE", help="Use a simulation of this scenario instead of a cluster."),
        click.option(
            "--until",
            metavar="TIME",
            callback=moment_of_scenario,
            help="Stop the simulation at this time: 90, 90s, 5m, 2h.",
        ),
        *_cluster_options(),
        *namespace_options(),
    ]
    return _choosing(command, options)


def served(command: Command) -> Command:
    """The options of the command that serves a cluster or a scenario; the command gets them as `where`."""
    options = [
        click.option("--scenario", metavar="FILE", help="Serve a simulation of this scenario instead of a cluster."),
        click.option(
            "--until",
            metavar="TIME",
            callback=moment_of_scenario,
            help="Start at this time of the scenario: 90, 90s, 5m, 2h.",
        ),
        click.option(
            "--address",
            metavar="HOST:PORT",
            help="The Ray cluster; else STEAD_ADDRESS, RAY_ADDRESS, or the only Ray cluster on this machine.",
        ),
        *kube_options(),
        namespace_options()[0],
    ]
    return _choosing(command, options)


def _cluster_options() -> list[Callable[[Any], Any]]:
    text = (
        "A Ray cluster (HOST:PORT), a service (http://HOST:PORT), or the name of a saved service (`stead context`); "
        "else STEAD_ADDRESS, the default saved service, RAY_ADDRESS, or the only Ray cluster on this machine. "
        "Attaching to Ray takes 2 to 3 s; a service answers at once."
    )
    return [
        click.option("--address", metavar="ADDRESS", help=text, shell_complete=saved_names),
        *kube_options(),
    ]


def _choosing(command: Command, options: Sequence[Callable[[Any], Any]]) -> Command:
    @wraps(command)
    def call(
        *,
        address: str | None = None,
        scenario: str | None = None,
        until: float | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        namespace: str | None = None,
        all_namespaces: bool | None = None,
        **given: Any,
    ) -> Any:
        kube = KubeOptions(context, kubeconfig, namespace, bool(all_namespaces), all_namespaces is None)
        return command(where=Where(address, scenario, until, kube), **given)

    found: Callable[..., Any] = call
    for option in reversed(options):
        found = option(found)
    return cast(Command, found)


@contextmanager
def reached(what: str, where: Where) -> Iterator[Desk]:
    """The desk of the cluster at an address or of a scenario, inside a `with` block."""
    if where.scenario is not None:
        with simulated(where.scenario, where.until) as desk:
            yield desk
        return
    if where.is_kubernetes:
        with kubernetes_desk(what, where.kube) as desk:
            yield desk
        return
    to = destination(where.address)
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
