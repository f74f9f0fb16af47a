"""`stead start`, `up`, `demo`: Ray nodes with labels and taints.

Rule: Ray is imported when a command runs; without Ray, the error says in one sentence what to install.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import click

from stead.errors import Invalid


@click.command(
    short_help="Start a Ray node with labels and taints.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@click.option(
    "--labels", metavar="LABELS", help="Labels of the node: zone=a,disk=ssd or a JSON map. Overrides the file."
)
@click.option("--labels-file", metavar="FILE", help="Labels of the node, from a YAML file or Kubernetes' downward API.")
@click.option("--taints", metavar="TAINTS", help="Taints of the node: gpu_node=true:NoSchedule or a JSON map.")
@click.option(
    "--taints-file",
    metavar="FILE",
    help="Taints of the node, from a file: as in --taints, or a pod's annotations from Kubernetes' downward API.",
)
@click.option(
    "--rare-resource-isolation", metavar="NAMES", help="On the head: taint every node that has one of these resources."
)
@click.option(
    "--policy", metavar="POLICY", help="On the head: the placement policy of work that sets none: flow, pack ..."
)
@click.argument("ray_options", nargs=-1, type=click.UNPROCESSED, metavar="[RAY OPTIONS]...")
def start(
    labels: str | None,
    labels_file: str | None,
    taints: str | None,
    taints_file: str | None,
    rare_resource_isolation: str | None,
    policy: str | None,
    ray_options: tuple[str, ...],
) -> int:
    """Start a node of a Ray cluster: `ray start` with labels, taints, and stead in every worker.

    All other options are passed on to `ray start`.

    \b
    Examples:
      stead start --head --rare-resource-isolation=gpu
      stead start --address=10.0.0.1:6379 --labels zone=a,disk=ssd
      stead start --address=10.0.0.1:6379 --taints='{"gpu_node": "true"}' --num-gpus=1
    """
    from stead.ray.local.start import Options, ray_start, require_ray, run, surroundings_of

    require_ray("stead start")
    options = Options(labels, labels_file, taints, taints_file, rare_resource_isolation, policy, ray_options)
    return run(ray_start(options, os.environ, surroundings_of(os.environ)))


@click.command(short_help="Run several Ray nodes on this machine.")
@click.option("--nodes", required=True, metavar="FILE", help="The nodes, a YAML list; the first is the head.")
@click.option("--dashboard", is_flag=True, help="Run Ray's dashboard too.")
@click.option("--serve", is_flag=True, help="Also run `stead serve`: the REST API and the web pages.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the service; 0 is any free port.")
def up(nodes: str, dashboard: bool, serve: bool, port: int | None) -> int:
    """Run a Ray cluster of several real nodes on this machine until Ctrl-C. It leaves nothing behind.

    \b
    Examples:
      stead up --nodes cluster.yaml
      stead up --nodes cluster.yaml --serve

    \b
    The file:
      - {num_cpus: 2}
      - {num_cpus: 2, labels: {zone: a}, taints: {gpu_node: "true"}, resources: {disk: 1}}
    """
    from threading import Event

    from stead.ray.local.local_cluster import NotStarted, local_cluster, read_cluster_file, table

    if port is not None and not serve:
        raise click.UsageError("--port is the port of the service; give --serve too")
    written, rare = read_cluster_file(nodes)
    try:
        with local_cluster(written, rare, include_dashboard=dashboard) as cluster, ExitStack() as stack:
            click.echo(table(cluster))
            click.echo(f"\nAttach with stead.init(address={cluster.address!r}) or RAY_ADDRESS={cluster.address}.")
            if cluster.dashboard_url:
                click.echo(f"Ray's dashboard is at {cluster.dashboard_url}.")
            if serve:
                stack.enter_context(_service(cluster.address, port))
            click.echo("Press Ctrl-C to stop.")
            with suppress(KeyboardInterrupt):
                Event().wait()
    except NotStarted as error:
        raise Invalid(str(error)) from None
    return 0


@contextmanager
def _service(address: str, port: int | None) -> Iterator[None]:
    """Runs `stead serve` in its own process, which prints its address, until the block ends."""
    import subprocess

    words = [sys.executable, "-c", "import sys; from stead.cli import main; sys.exit(main())", "serve", "--quiet"]
    words += ["--address", address, *([] if port is None else ["--port", str(port)])]
    process = subprocess.Popen(words, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@click.command(short_help="Run a demo on five Ray nodes on this machine.")
def demo() -> int:
    """Start five labelled and tainted Ray nodes on this machine, place work with every kind of rule, and show where
    each piece was placed, what is pending and why. It takes half a minute and leaves nothing behind, also after Ctrl-C.

    \b
    Example:
      stead demo
    """
    from stead.ray.local.start import require_ray

    require_ray("stead demo")
    from stead.ray.local.demo import show

    show()
    return 0
