"""`stead scheduler`: a Kubernetes scheduler, and its manifests.

Rule: the libraries for Kubernetes are imported when the command runs; without them, the error says in one sentence what
to install. The manifests need none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource

from stead.errors import Invalid
from stead.language.asks import PolicyName

if TYPE_CHECKING:
    from stead.kubernetes.default_spread import DefaultSpreads

T = TypeVar("T", str, str | None, tuple[str, ...])

POLICIES = sorted((policy.value for policy in PolicyName), key=lambda name: name != PolicyName.KUBE)
"""The default comes first."""

NAMES = ("stead",)
"""The names of the scheduler if none are given."""

DEFAULT_SCHEDULER = "default-scheduler"
"""The name of kube-scheduler."""


def _checked(check: str) -> Callable[[click.Context, click.Parameter, T], T]:
    """A callback that checks an option with a function of `manifests.rendering`, which is imported when it runs."""

    def callback(_running: click.Context, option: click.Parameter, value: T) -> T:
        from stead.kubernetes.manifests import rendering

        for each in (value,) if isinstance(value, str) else value or ():
            try:
                getattr(rendering, check)(each)
            except Invalid as error:
                raise click.BadParameter(str(error), param=option) from None
        return value

    return callback


def _checked_times(
    _running: click.Context, option: click.Parameter, value: tuple[float, float, float]
) -> tuple[float, float, float]:
    """A callback that checks the times of the Lease, if its library is installed."""
    if find_spec("msgspec") is None:
        return value
    from stead.kubernetes.api.leases import check_times

    try:
        check_times(*value)
    except Invalid as error:
        raise click.BadParameter(str(error), param=option) from None
    return value


_named = click.option(
    "--scheduler-name",
    "names",
    multiple=True,
    metavar="NAME",
    callback=_checked("check_scheduler_name"),
    help="Schedule pods whose spec.schedulerName is NAME. Can be repeated. [default: stead]",
)

_by_policy = click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default=PolicyName.KUBE.value,
    show_default=True,
    help="How to choose among the nodes that fit. The annotation stead.dev/policy of a pod overrides it.",
)


@click.group(short_help="Schedule the pods of a Kubernetes cluster.", invoke_without_command=True)
@click.option("--kubeconfig", metavar="FILE", help="The kubeconfig file. [default: $KUBECONFIG, then ~/.kube/config]")
@click.option("--context", metavar="NAME", help="The context in the kubeconfig file. [default: the current context]")
@click.option("--in-cluster", is_flag=True, help="Use the service account of the pod that this process runs in.")
@_named
@_by_policy
@click.option("--leader-elect", is_flag=True, help="Schedule only while this process holds the Lease.")
@click.option(
    "--lease-namespace",
    metavar="NAME",
    callback=_checked("check_namespace"),
    help="Namespace of the Lease. [default: that of the context or pod]",
)
@click.option(
    "--lease-name",
    metavar="NAME",
    callback=_checked("check_lease_name"),
    help="Name of the Lease. [default: the first scheduler name]",
)
@click.option(
    "--identity",
    metavar="NAME",
    help="Name of this process in the Lease and in events. [default: the host name and a random part]",
)
@click.option(
    "--lease-seconds",
    nargs=3,
    type=float,
    default=(15.0, 10.0, 2.0),
    metavar="DURATION DEADLINE RETRY",
    callback=_checked_times,
    help="Seconds: how long the Lease is valid, when the leader gives up renewing it, and the time between tries. "
    "[default: 15 10 2]",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    default="127.0.0.1:10259",
    show_default=True,
    help="Address for /healthz, /readyz and /metrics, or 'none'.",
)
@click.option("--journal", metavar="FILE", help="Record every fact and decision in this file, for `stead replay`.")
@click.option(
    "--default-spread",
    metavar="FILE",
    help="YAML list of the topology spread constraints for pods that have none. [default: those of kube-scheduler]",
)
@click.option(
    "--volume-timeout",
    "volume_timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    metavar="SECONDS",
    help="How long the volumes of a pod may take to be bound, before the pod is placed again. [default: 600]",
)
@click.option("--no-scheduled-events", is_flag=True, help="Do not create an event for each pod that is bound.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format of the log."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level that is logged.",
)
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
    volume_timeout_s: float,
    no_scheduled_events: bool,
    log_format: str,
    log_level: str,
) -> None:
    """Schedule the pods of a Kubernetes cluster that have `schedulerName: stead`, until Ctrl-C or SIGTERM.

    It follows kube-scheduler's rules, decides many pods at once, and reports why a pod is pending and the smallest
    change that would make it fit. At the end, it finishes the bindings that it has decided.

    \b
    Examples:
      stead scheduler
      stead scheduler --context staging --scheduler-name stead --scheduler-name batch
      stead scheduler --policy flow --log-format json
      stead scheduler --leader-elect --lease-namespace kube-system
      stead scheduler manifests --image registry.example.com/stead:0.1.0 | kubectl apply -f -
    """
    if running.invoked_subcommand is not None:
        _refuse_misplaced_options(running)
        return
    require_libraries()
    from stead.kubernetes import logs, process
    from stead.kubernetes.api.config import load
    from stead.kubernetes.scheduler import Options

    address = address_of(listen)
    names = _distinct(names)
    if journal is not None and not Path(journal).absolute().parent.is_dir():
        raise Invalid(f"the folder of {journal} does not exist; create it, or give a file such as --journal ./stead.db")
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
        volumes_timeout_s=volume_timeout_s,
    )
    logs.set_up(logs.LogFormat(log_format), log_level)
    if DEFAULT_SCHEDULER in names:
        process.LOG.warning(
            "kube-scheduler has this name too: stop it, or both bind the same pods",
            extra={"scheduler": DEFAULT_SCHEDULER},
        )
    process.run(config, options, address)


def _refuse_misplaced_options(running: click.Context) -> None:
    """An option before the name of the subcommand belongs to the scheduler, and would have no effect."""
    for option in running.command.params:
        if running.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            where = running.invoked_subcommand
            raise click.UsageError(f"Put {option.opts[0]} after {where!r}: 'stead scheduler {where} ...'.", running)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """The names of the scheduler, each once."""
    return tuple(dict.fromkeys(names)) or NAMES


def require_libraries(what: str = "stead scheduler") -> None:
    for name in ("msgspec", "httptools", "kubernetes"):
        if find_spec(name) is None:
            raise Invalid(f"{what} needs {name}, which is not installed; try: pip install 'stead[kubernetes]'")


def address_of(text: str) -> tuple[str, int] | None:
    """``127.0.0.1:10259`` as host and port."""
    if text == "none":
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdecimal()):
        raise click.BadParameter(
            f"{text!r} is not an address with a port, such as 127.0.0.1:10259", param_hint="'--listen'"
        )
    if int(port) > 65535:
        raise click.BadParameter(
            f"the port of {text!r} is larger than 65535; a good value is 127.0.0.1:10259", param_hint="'--listen'"
        )
    return host, int(port)


def spreads_of(path: str | None) -> DefaultSpreads:
    """The default constraints in a file, or kube-scheduler's."""
    from stead.kubernetes.default_spread import SYSTEM_SPREADS, DefaultSpreads

    if path is None:
        return SYSTEM_SPREADS
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise Invalid("it must be a list of constraints such as [{topologyKey: zone, maxSkew: 1, ...}]")
        return DefaultSpreads.configured(found)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}; give a YAML file with a list of constraints"
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = f"is not YAML{f' in line {mark.line + 1}' if mark else ''}; write a list of constraints"
    except Invalid as error:
        problem = f"is not valid: {error}"
    raise Invalid(f"the file {path} of --default-spread {problem}")


@scheduler.command(short_help="Print YAML that installs the scheduler in a cluster.")
@click.option(
    "--namespace",
    metavar="NAME",
    default="stead-system",
    show_default=True,
    callback=_checked("check_namespace"),
    help="Namespace of the scheduler.",
)
@click.option(
    "--image",
    metavar="IMAGE",
    callback=_checked("check_image"),
    help="Container image of the scheduler. [default: stead:VERSION]",
)
@_named
@_by_policy
@click.option(
    "--replicas",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    help="Number of pods. One of them schedules, and the others take over if it fails.",
)
def manifests(namespace: str, image: str | None, names: tuple[str, ...], policy: str, replicas: int) -> None:
    """Print the YAML that installs the scheduler in a cluster, for `kubectl apply -f -`.

    It contains a namespace, a service account with the rights that the scheduler needs and no others, a Deployment,
    and a PodDisruptionBudget if there are several replicas. It does not contact a cluster.

    \b
    Examples:
      stead scheduler manifests --image registry.example.com/stead:0.1.0 | kubectl apply -f -
      stead scheduler manifests --image registry.example.com/stead:0.1.0 --replicas 1 > stead.yaml
      stead scheduler manifests --namespace batch-system --scheduler-name batch --policy flow
    """
    from stead import __version__
    from stead.kubernetes.manifests import rendering

    installation = rendering.Installation(
        image=image or f"stead:{__version__.replace('+', '-')}",
        namespace=namespace,
        names=_distinct(names),
        policy=PolicyName.of(policy),
        replicas=replicas,
    )
    click.echo(rendering.manifests(installation), nl=False)
