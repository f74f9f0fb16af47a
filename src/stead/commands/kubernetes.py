"""The options that choose a Kubernetes cluster and its pods, and the desk of that cluster.

Rule: the rights are those of the user of the chosen context, and nothing is installed in the cluster. The libraries for
Kubernetes are imported when a command uses such a cluster.
"""

from __future__ import annotations

import gc
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from stead.errors import Invalid

if TYPE_CHECKING:
    from stead.kubernetes.desk.desk import KubeDesk

CONTEXT, ADDRESS = "STEAD_CONTEXT", "STEAD_ADDRESS"


@dataclass(frozen=True, slots=True)
class KubeOptions:
    """What the command line says about a Kubernetes cluster."""

    context: str | None = None
    kubeconfig: str | None = None
    namespace: str | None = None
    all_namespaces: bool = False
    is_for_nodes: bool = True
    """Whether the command is about nodes, which are in no namespace."""
    is_meant: bool = False
    """Whether something else than an option shows that a Kubernetes cluster is meant, such as the name of a pod."""

    @property
    def given(self) -> list[str]:
        """The options that were given; any of them means a Kubernetes cluster."""
        found = {
            "--context": self.context is not None,
            "--kubeconfig": self.kubeconfig is not None,
            "--namespace": self.namespace is not None,
            "--all-namespaces": self.all_namespaces,
            "a pod": self.is_meant,
        }
        return [name for name, is_given in found.items() if is_given]

    @property
    def chooses_cluster(self) -> bool:
        return self.context is not None or self.kubeconfig is not None


NO_KUBE_OPTIONS = KubeOptions()


def kube_options() -> list[Callable[[Any], Any]]:
    """Which Kubernetes cluster."""
    return [
        click.option(
            "--context",
            metavar="NAME",
            help="A Kubernetes cluster: this context of the kubeconfig file. [default: $STEAD_CONTEXT, or with another "
            "option for Kubernetes the current context]",
        ),
        click.option(
            "--kubeconfig", metavar="FILE", help="The kubeconfig file. [default: $KUBECONFIG, then ~/.kube/config]"
        ),
    ]


def namespace_options() -> list[Callable[[Any], Any]]:
    """Which pods of it."""
    return [
        click.option("--namespace", "-n", metavar="NAME", help="The namespace of pods. [default: that of the context]"),
        click.option("--all-namespaces", "-A", is_flag=True, help="Pods of all namespaces."),
    ]


def chosen_by_variable() -> str | None:
    """The context in STEAD_CONTEXT. It is refused if STEAD_ADDRESS names another cluster."""
    found = os.environ.get(CONTEXT) or None
    if found is not None and os.environ.get(ADDRESS):
        raise Invalid(
            f"{CONTEXT} is {found!r} and {ADDRESS} is {os.environ[ADDRESS]!r}; unset one of them, or give --context or "
            "--address"
        )
    return found


@contextmanager
def kubernetes_desk(command: str, options: KubeOptions, is_served: bool = False) -> Iterator[KubeDesk]:
    """The desk of a Kubernetes cluster, inside a `with` block. A served one follows the cluster from the start."""
    from stead.commands.scheduling import require_libraries

    require_libraries(f"stead {command}")
    from stead.kubernetes.api.config import load
    from stead.kubernetes.desk.desk import KubeDesk, Scope
    from stead.service.keys import home

    if options.namespace is not None and options.all_namespaces:
        raise click.UsageError("give --namespace or --all-namespaces, not both")
    context = options.context or (chosen_by_variable() if options.kubeconfig is None else None)
    config = load(options.kubeconfig, context)
    everywhere = options.all_namespaces or (options.namespace is None and (options.is_for_nodes or is_served))
    scope = Scope(options.namespace or config.namespace, everywhere, options.all_namespaces)
    cluster = hashlib.sha256(f"{config.address}{config.path_prefix}".encode()).hexdigest()[:16]
    with _without_collections():
        desk = KubeDesk(config, home() / f"kubernetes-{cluster}", scope, _say, _tell)
    try:
        if is_served:
            desk.follow()
        yield desk
    finally:
        desk.close()


@contextmanager
def _without_collections() -> Iterator[None]:
    """What a large cluster needs stays in memory: the garbage collector would look through it again and again."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _tell(sentence: str) -> None:
    """Progress, for people who look at it."""
    if sys.stderr.isatty():
        _say(sentence)


def _say(sentence: str) -> None:
    """Notes for people; scripts read stdout."""
    click.echo(f"stead: {sentence}", err=True)
    sys.stderr.flush()
