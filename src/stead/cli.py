"""The command line: `stead sim`, `stead replay`, `stead why`; on Ray `stead start`, `stead up`, and `ray_commands`.

Rule: a command parses its words, calls one function and prints the result. What a command needs is
imported when it runs, so that `stead --help` answers at once. Exit codes: 0 done, 1 refused or not
found, 2 wrong usage, 130 interrupted. An error is one sentence on stderr, never a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from stead.errors import Invalid
from stead.ray_commands import COMMANDS

DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130


def _moment(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """A moment of the simulation: ``90``, ``90s``, ``5m``."""
    from stead.sim.scenario import seconds

    if value is None:
        return None
    number: float | str = value
    with suppress(ValueError):
        number = float(value)
    try:
        return seconds(number)
    except Invalid as error:
        raise click.BadParameter(str(error), context, option) from None


_until = click.option(
    "--until", metavar="TIME", callback=_moment, help="Stop at this moment of the simulation: 90, 90s, 5m, 2h."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stead", message="%(prog)s %(version)s")
def stead() -> None:
    """stead puts work in its place, and says in plain words why something waits.

    \b
    Examples:
      stead demo
      stead taint nodes 1a2b3c4d5e6f gpu_node=true:NoSchedule
      stead sim scenarios/demo.yaml
      stead why --scenario scenarios/demo.yaml render
    """


@stead.command(short_help="Run a scenario in virtual time.")
@click.argument("scenario")
@_until
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--journal", metavar="FILE", help="Write every fact and decision to this new file, for `stead replay`.")
@click.option("--seed", type=int, help="The seed of the random policy, instead of the scenario's.")
def sim(scenario: str, until: float | None, as_json: bool, journal: str | None, seed: int | None) -> int:
    """Run the nodes and work of SCENARIO (a YAML file) in virtual time, and show where everything went.

    \b
    Examples:
      stead sim scenarios/demo.yaml
      stead sim scenarios/demo.yaml --until 5m --json
      stead sim scenarios/demo.yaml --journal demo.journal
    """
    from dataclasses import replace

    from stead.sim.cluster import run
    from stead.sim.report import as_json_text, as_text, show
    from stead.sim.scenario import load

    loaded = load(scenario)
    if seed is not None:
        loaded = replace(loaded, settings=replace(loaded.settings, seed=seed))
    if journal is None:
        outcome = run(loaded, until)
    else:
        from stead.journal import Journal

        if Path(journal).exists():
            raise Invalid(f"{journal} already exists; a run needs a new journal, so give another name")
        with Journal.open(journal, loaded.settings) as written:
            outcome = run(loaded, until, written)
    if as_json:
        click.echo(as_json_text(outcome))
    elif _is_terminal():
        show(outcome)
    else:
        click.echo(as_text(outcome))
    return DONE


@stead.command(short_help="Decide a journal again and compare.")
@click.argument("journal")
def replay(journal: str) -> int:
    """Decide everything in JOURNAL again, and check that every decision is byte-equal to the written one.

    \b
    Example:
      stead replay demo.journal
    """
    from stead.journal import Journal
    from stead.journal import replay as decide_again

    with Journal.reading(journal) as opened:
        decide_again(opened)
        click.echo(f"{journal}: {len(opened)} steps decided again, every decision byte-equal.")
    return DONE


@stead.command(short_help="Say why something waits, or is where it is.")
@click.option("--scenario", required=True, metavar="FILE", help="The scenario to run first.")
@_until
@click.argument("ask")
def why(scenario: str, ask: str, until: float | None) -> int:
    """Say why ASK (an ask or a group) waits, and what would let it in; or why it is where it is.

    \b
    Example:
      stead why --scenario scenarios/demo.yaml render
    """
    from stead.sim.cluster import run
    from stead.sim.report import why_text
    from stead.sim.scenario import load

    click.echo(why_text(run(load(scenario), until), ask))
    return DONE


@stead.command(
    short_help="Start a Ray node with labels and taints.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@click.option(
    "--labels", metavar="LABELS", help="Labels of the node: zone=a,disk=ssd or a JSON map. Wins over the file."
)
@click.option("--labels-file", metavar="FILE", help="Labels of the node, from a YAML file.")
@click.option("--taints", metavar="TAINTS", help="Taints of the node: gpu_node=true:NoSchedule or a JSON map.")
@click.option(
    "--rare-resource-isolation", metavar="NAMES", help="On the head: taint every node that has one of these resources."
)
@click.argument("ray_options", nargs=-1, type=click.UNPROCESSED, metavar="[RAY OPTIONS]...")
def start(
    labels: str | None,
    labels_file: str | None,
    taints: str | None,
    rare_resource_isolation: str | None,
    ray_options: tuple[str, ...],
) -> int:
    """Start a node of a Ray cluster: `ray start`, with labels, taints, and stead in every worker.

    Everything else is passed to `ray start` as written.

    \b
    Examples:
      stead start --head --rare-resource-isolation=gpu
      stead start --address=10.0.0.1:6379 --labels zone=a,disk=ssd
      stead start --address=10.0.0.1:6379 --taints='{"gpu_node": "true"}' --num-gpus=1
    """
    from stead.ray.start import Options, ray_start, require_ray, run, surroundings_of

    require_ray("stead start")
    options = Options(labels, labels_file, taints, rare_resource_isolation, ray_options)
    return run(ray_start(options, os.environ, surroundings_of(os.environ)))


@stead.command(short_help="Run several Ray nodes on this machine.")
@click.option("--nodes", required=True, metavar="FILE", help="The nodes, a YAML list; the first is the head.")
@click.option("--dashboard", is_flag=True, help="Run Ray's dashboard too.")
def up(nodes: str, dashboard: bool) -> int:
    """Run a Ray cluster of several real nodes on this machine until Ctrl-C, which leaves nothing behind.

    \b
    Example:
      stead up --nodes cluster.yaml

    \b
    The file:
      - {num_cpus: 2}
      - {num_cpus: 2, labels: {zone: a}, taints: {gpu_node: "true"}, resources: {disk: 1}}
    """
    from threading import Event

    from stead.ray.local import NotStarted, local_cluster, read_cluster_file, table

    written, rare = read_cluster_file(nodes)
    try:
        with local_cluster(written, rare, include_dashboard=dashboard) as cluster:
            click.echo(table(cluster))
            click.echo(f"\nAttach with stead.init(address={cluster.address!r}) or RAY_ADDRESS={cluster.address}.")
            if cluster.dashboard_url:
                click.echo(f"Ray's dashboard is at {cluster.dashboard_url}.")
            click.echo("Ctrl-C ends it.")
            with suppress(KeyboardInterrupt):
                Event().wait()
    except NotStarted as error:
        raise Invalid(str(error)) from None
    return DONE


for _command in COMMANDS:
    stead.add_command(_command)


def _is_terminal() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        code = stead.main(args=arguments, prog_name="stead", standalone_mode=False)
        return code if isinstance(code, int) else DONE
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.UsageError as error:
        where = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        click.echo(f"stead: {error.format_message()}{where}", err=True)
        return USAGE
    except Invalid as error:
        click.echo(f"stead: {error}", err=True)
        return REFUSED
    except OSError as error:
        click.echo(f"stead: {error.filename or 'the output'} cannot be used: {error.strerror}", err=True)
        return REFUSED
    except (MemoryError, OverflowError):
        click.echo("stead: this is too large for the memory of this machine; take smaller counts", err=True)
        return REFUSED
    except (click.Abort, KeyboardInterrupt):
        click.echo("stead: interrupted", err=True)
        return INTERRUPTED
