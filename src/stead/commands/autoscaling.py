"""`stead autoscale`: launches nodes for pending work, and retires nodes that nothing needs.

Rule: it only starts the loop (`stead.scaling.loop`) and prints what is decided. Decisions go to stdout, as text or one
line of JSON each; everything else goes to stderr.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stead.commands.connecting import attached
from stead.commands.destinations import destination
from stead.errors import Invalid
from stead.language.times import duration_text, moment_text
from stead.text import first_few, plural, printable

if TYPE_CHECKING:
    from stead.engine.scaling.decisions import ScaleDecision
    from stead.language.nodes import NodeTemplate
    from stead.operate.snapshot import Snapshot
    from stead.scaling.catalog import ClusterFile
    from stead.scaling.loop import Autoscaler
    from stead.scaling.provider import Provider

ENDS_S = 60.0
"""How long `--down` waits for nodes to end, and `--once` for launches to begin."""

CALLS_S = 120.0

PROVIDERS = ("raylets", "kuberay")


@click.command(short_help="Launch nodes for pending work, and retire idle nodes.")
@click.option("--config", required=True, metavar="FILE", help="The kinds of nodes: a cluster file as for `ray up`.")
@click.option(
    "--address",
    metavar="HOST:PORT",
    help="The Ray cluster; else STEAD_ADDRESS, RAY_ADDRESS, or the only Ray cluster on this machine.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be launched now, and change nothing.")
@click.option("--once", is_flag=True, help="Launch what is needed now, and end.")
@click.option("--down", is_flag=True, help="End every node that was launched, also those with work, and end.")
@click.option("--down-on-exit", is_flag=True, help="After Ctrl-C, end every node that was launched.")
@click.option(
    "-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the decisions."
)
def autoscale(
    config: str, address: str | None, dry_run: bool, once: bool, down: bool, down_on_exit: bool, form: str
) -> int:
    """Launch nodes for pending work, and retire nodes that nothing needs, until Ctrl-C or SIGTERM.

    Launched nodes stay when it ends, and the next autoscaler of the cluster takes them over. It may be killed at any
    time: no node is forgotten, and none is launched twice.

    \b
    Examples:
      stead autoscale --config cluster.yaml --dry-run
      stead autoscale --config cluster.yaml
      stead autoscale --config cluster.yaml --address 10.0.0.1:6379 -o json
      stead autoscale --config cluster.yaml --down

    \b
    The file:
      provider: {type: raylets}
      available_node_types:
        gpu: {resources: {CPU: 4, GPU: 1}, labels: {zone: a}, max_workers: 3, price: 2.5}
    """
    given = [name for name, on in (("--dry-run", dry_run), ("--once", once), ("--down", down)) if on]
    if len(given) > 1:
        raise click.UsageError(f"give {given[0]} or {given[1]}, not both")
    if given and down_on_exit:
        raise click.UsageError(f"{given[0]} ends by itself, so it takes no --down-on-exit")
    from stead.scaling.catalog import read_cluster

    file = read_cluster(config)
    if file.provider not in PROVIDERS:
        raise Invalid(_refused(config, file))
    to = destination(address)
    if to.is_service:
        raise Invalid(f"{to.address} is a service; give the Ray cluster itself, for example --address 10.0.0.1:6379")
    with attached("autoscale", to.address):
        provider = _provider(file, by_force=down or down_on_exit, read_only=dry_run)
        if down:
            with _alone():
                return _end_all(provider)
        kinds = _kinds(file, provider)
        if dry_run:
            return _try(file, kinds, provider, form)
        with _alone():
            return _run(file, kinds, provider, once, down_on_exit, form)


def _refused(config: str, file: ClusterFile) -> str:
    good = " and ".join(PROVIDERS)
    return (
        f"{config}: provider.type: stead launches nodes with {good}, not with {printable(file.provider)}; on a cluster "
        f"of `ray up`, Ray's own autoscaler launches what stead plans, so run nothing there, and preview it with: "
        f"stead plan --config {config}"
    )


def _provider(file: ClusterFile, by_force: bool, read_only: bool) -> Provider:
    if file.provider == "kuberay":
        from stead.kubernetes.ray_scaling.provider import ray_cluster_provider

        return ray_cluster_provider(file.provider_fields, read_only)
    from stead.ray.local.raylet_provider import raylet_provider

    return raylet_provider(file.provider_fields, by_force=by_force)


def _kinds(file: ClusterFile, provider: Provider) -> tuple[NodeTemplate, ...]:
    """The kinds of the file, or else those that the provider knows."""
    own = getattr(provider, "catalog", None)
    return file.catalog or (() if own is None else tuple(own()))


@contextmanager
def _alone() -> Iterator[None]:
    """Refuses a second autoscaler of the same cluster on this machine. A killed one holds nothing."""
    import ray

    from stead.ray.wire.node_page import open_folder

    path = Path(open_folder(ray._private.worker._global_node.get_session_dir_path())) / "autoscaler"
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(number, 20, 0).decode(errors="replace").strip()
            how = f", for example with: kill {printable(other)}" if other else ""  # it has not written its id yet
            raise Invalid(
                f"another autoscaler scales this cluster, process {printable(other) or 'unknown'}; end it first{how}"
            ) from None
        os.truncate(number, 0)
        os.pwrite(number, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(number)


def _autoscaler(
    file: ClusterFile,
    kinds: Sequence[NodeTemplate],
    provider: Provider,
    decided: Callable[[ScaleDecision, Snapshot], None],
    at_once: bool,
) -> Autoscaler:
    from stead.operate.audit import Author
    from stead.planner.scaler import Scaler
    from stead.ray.remote_desk import remote_desk
    from stead.scaling.loop import Autoscaler

    settings = replace(file.settings, settle_s=0.0) if at_once else file.settings
    scaler = Scaler(kinds, settings, file.limits)
    here = Author.here("autoscaler")
    return Autoscaler(remote_desk(), provider, scaler, here, decided=decided, troubled=_warn)


def _run(
    file: ClusterFile,
    kinds: Sequence[NodeTemplate],
    provider: Provider,
    once: bool,
    down_on_exit: bool,
    form: str,
) -> int:
    from threading import Event

    from stead.engine.explain.events import event_of
    from stead.operate.views import event_json
    from stead.scaling.catalog import SETTLE_S

    def decided(decision: ScaleDecision, snapshot: Snapshot) -> None:
        titles = {id: node.title for id, node in snapshot.by_id.items()}
        event = event_of(decision, time.time(), titles)
        if form == "json":
            click.echo(json.dumps(event_json(event)))
        else:
            named = replace(event, subject=titles.get(event.subject, event.subject))
            click.echo(f"{moment_text(event.at)}  {printable(str(named))}")

    loop = _autoscaler(file, kinds, provider, decided, at_once=once)
    for place in file.unused:
        _warn(f"{place} has no effect here")
    if once:
        time.sleep(SETTLE_S)
        return 0 if loop.once(CALLS_S) else 1
    most = first_few((f"{each.name} {each.count_min} to {each.count_max}" for each in kinds), 10)
    click.echo(f"Scaling with {provider.title}: {most}. Press Ctrl-C to stop; nodes stay.", err=form == "json")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            loop.run(Event())
    finally:
        signal.signal(signal.SIGTERM, before)
    if down_on_exit:
        return _end_all(provider)
    left = plural(len(provider.list()), "launched node stays", "launched nodes stay")
    click.echo(f"{left}; end nodes with: stead autoscale --config FILE --down", err=True)
    return 0


def _end_all(provider: Provider) -> int:
    """End what was launched. Nodes that the provider would replace stay."""
    from stead.scaling.loop import beyond, end_all

    own = getattr(provider, "catalog", None)
    keep = {} if own is None else {kind.name: kind.count_min for kind in own()}
    count = len(beyond(provider.list(), keep))
    if not end_all(provider, ENDS_S, _warn, keep):
        left = len(beyond(provider.list(), keep))
        raise Invalid(f"{plural(left, 'node')} did not end within {duration_text(ENDS_S)}; try again")
    click.echo(f"Ended {plural(count, 'node')}." if count else "No node was launched.", err=True)
    return 0


def _try(file: ClusterFile, kinds: Sequence[NodeTemplate], provider: Provider, form: str) -> int:
    """Print what would be launched now."""
    from stead.commands.naming import Names
    from stead.commands.planning import plan_lines
    from stead.operate.plans import plan_json, plan_view
    from stead.planner.scaler import Scaler, Seen
    from stead.ray.remote_desk import remote_desk
    from stead.scaling.catalog import SETTLE_S

    time.sleep(SETTLE_S)
    desk = remote_desk()
    at_once = replace(
        file.settings, settle_s=0.0, launches_per_minute=sys.maxsize
    )  # however many were launched just now
    scaler = Scaler(kinds, at_once, file.limits)
    scaler.step(Seen(time.time(), desk.snapshot().to_plan, provider.list()))
    assert scaler.plan is not None
    found = plan_view(scaler.plan, is_like=False)
    if form == "json":
        click.echo(json.dumps(plan_json(found), indent=2))
    else:
        for line in plan_lines(found, Names(desk)):
            click.echo(line)
    return 0


def _warn(text: str) -> None:
    click.echo(f"stead: {printable(text)}", err=True)
