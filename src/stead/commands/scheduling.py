"""`stead scheduler`: a Kubernetes scheduler, and its manifests.

Rule: the libraries for Kubernetes are imported when the command runs; without them, the error says in one sentence what
to install.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml

from stead.errors import Invalid
from stead.language.asks import PolicyName

if TYPE_CHECKING:
    from stead.kubernetes.default_spread import DefaultSpreads

POLICIES = [policy.value for policy in PolicyName]


@click.group(short_help="Schedule the pods of a Kubernetes cluster.", invoke_without_command=True)
@click.option("--kubeconfig", metavar="FILE", help="The kubeconfig file. [default: $KUBECONFIG, ~/.kube/config]")
@click.option("--context", metavar="NAME", help="The context of the kubeconfig file. [default: its current context]")
@click.option("--in-cluster", is_flag=True, help="Use the service account of the pod that this runs in.")
@click.option(
    "--scheduler-name", "names", multiple=True, metavar="NAME", help="Schedule pods with this name; may be repeated."
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default=PolicyName.KUBE.value,
    show_default=True,
    help="How to choose among nodes that fit. The annotation stead.dev/policy of a pod overrides it.",
)
@click.option("--leader-elect", is_flag=True, help="Several copies may run: only the holder of a Lease schedules.")
@click.option("--lease-namespace", metavar="NAME", help="Namespace of the Lease. [default: the context's]")
@click.option("--lease-name", metavar="NAME", help="Name of the Lease. [default: the first scheduler name]")
@click.option("--identity", metavar="NAME", help="The holder of the Lease. [default: host name and a random part]")
@click.option(
    "--lease-seconds",
    nargs=3,
    type=float,
    default=(15.0, 10.0, 2.0),
    show_default=True,
    metavar="LASTS RENEW RETRY",
    help="How long the Lease lasts, until when it must be renewed, and how often that is tried.",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    default="127.0.0.1:10259",
    show_default=True,
    help="Where to serve /healthz, /readyz and /metrics; 'none' serves nothing.",
)
@click.option("--journal", metavar="FILE", help="Record facts and decisions here, for `stead replay`.")
@click.option(
    "--default-spread",
    metavar="FILE",
    help="Topology spread constraints of pods without any, a YAML list. [default: kube-scheduler's]",
)
@click.option("--no-scheduled-events", is_flag=True, help="Write no event for pods that are bound.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@click.pass_context
def scheduler(
    running: click.Context,
    kubeconfig: str | None,
    context: str | None,
    in_cluster: bool,
    names: tuple[str, ...],
    policy: str,
    leader_elect: bool,
    lease_namespace: str | None,
    lease_name: str | None,
    identity: str | None,
    lease_seconds: tuple[float, float, float],
    listen: str,
    journal: str | None,
    default_spread: str | None,
    no_scheduled_events: bool,
    log_format: str,
    log_level: str,
) -> None:
    """Schedule the pods of a Kubernetes cluster that have `schedulerName: stead`.

    It applies kube-scheduler's rules, decides many pods at once, and reports why a pod is pending and the smallest
    change that would make it fit. It runs until Ctrl-C or SIGTERM, and then finishes what it has decided.

    \b
    Examples:
      stead scheduler
      stead scheduler --context staging --scheduler-name stead --scheduler-name batch
      stead scheduler --policy flow --log-format json
      stead scheduler --leader-elect --lease-namespace kube-system
      stead scheduler manifests | kubectl apply -f -
    """
    if running.invoked_subcommand is not None:
        return
    require_libraries()
    from stead.kubernetes import logs, process
    from stead.kubernetes.api.config import load
    from stead.kubernetes.scheduler import Options

    address = address_of(listen)
    names = tuple(dict.fromkeys(names)) or ("stead",)
    config = load(kubeconfig, context, True if in_cluster else None)
    lease = (lease_namespace or config.namespace, lease_name or names[0]) if leader_elect else None
    options = Options(
        names=names,
        policy=PolicyName.of(policy),
        default_spreads=spreads_of(default_spread),
        lease=lease,
        identity=identity or process.unique_identity(),
        lease_times=lease_seconds,
        journal=journal,
        reports_scheduled=not no_scheduled_events,
    )
    logs.set_up(logs.LogFormat(log_format), log_level)
    process.run(config, options, address)


def require_libraries() -> None:
    for name in ("msgspec", "httptools", "kubernetes"):
        try:
            import_module(name)
        except ImportError:
            raise Invalid(
                f"stead scheduler needs {name}, which is not installed; try: pip install 'stead[kubernetes]'"
            ) from None


def address_of(text: str) -> tuple[str, int] | None:
    """``127.0.0.1:10259`` as host and port."""
    if text == "none":
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(
            f"{text!r} is not an address with a port, such as 127.0.0.1:10259", param_hint="--listen"
        )
    return host, int(port)


def spreads_of(path: str | None) -> DefaultSpreads:
    """The default constraints in a file, or kube-scheduler's."""
    from stead.kubernetes.default_spread import SYSTEM_SPREADS, DefaultSpreads

    if path is None:
        return SYSTEM_SPREADS
    try:
        found = yaml.safe_load(Path(path).read_text())
    except yaml.YAMLError as error:
        raise Invalid(f"{path} is not YAML: {error}") from None
    if not isinstance(found, list):
        raise Invalid(f"{path} must be a list of constraints such as [{{topologyKey: zone, maxSkew: 1, ...}}]")
    return DefaultSpreads.configured(found)
