"""`stead submit`: submits the work of a file to Ray, Kubernetes or the simulator, and follows it.

Rule: reads the file, chooses the cluster and prints. What a cluster can do is that cluster's own code, imported when
the command runs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from stead.commands.arguments import moment_of_scenario
from stead.commands.output import for_scripts, formatted, parsed_spec, structured
from stead.errors import Invalid
from stead.text import plural, printable

if TYPE_CHECKING:
    from stead.specs.following import Line, Target, Update
    from stead.specs.submissions import Submission

CLUSTERS = ("ray", "kubernetes", "sim")

OPTIONS = {
    "ray": ("address",),
    "kubernetes": ("kubeconfig", "context", "namespace", "scheduler_name"),
    "sim": ("scenario", "until"),
}
"""The options that only one kind of cluster takes."""

SCHEDULER = "stead"
"""The default scheduler of submitted pods."""


@click.command(short_help="Submit work from a file, and follow it.")
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--to", "to", type=click.Choice(CLUSTERS), required=True, help="The kind of cluster.")
@click.option("--watch", "-w", is_flag=True, help="Follow the work until all of it has ended; Ctrl-C cancels it.")
@click.option("--dry-run", is_flag=True, help="Check the file and print what would be submitted.")
@click.option("--address", metavar="HOST:PORT", help="Ray: the cluster. [default: as for stead.init('auto')]")
@click.option("--kubeconfig", metavar="FILE", help="Kubernetes: the kubeconfig file. [default: $KUBECONFIG]")
@click.option("--context", metavar="NAME", help="Kubernetes: the context in the kubeconfig file.")
@click.option(
    "--namespace", "-n", metavar="NAME", help="Namespace of work that names none. [default: that of the cluster]"
)
@click.option("--scheduler-name", metavar="NAME", help="Kubernetes: the scheduler of the pods. [default: stead]")
@click.option("--scenario", metavar="FILE", help="Simulator: the scenario that has the nodes.")
@click.option(
    "--until", metavar="TIME", callback=moment_of_scenario, help="Simulator: stop at this time: 90, 90s, 5m, 2h."
)
@formatted
def submit(file: str, to: str, watch: bool, dry_run: bool, namespace: str | None, form: str, **given: Any) -> int:
    """Submit the work and groups in FILE (YAML; - is standard input). The same file works for every kind of cluster.

    With -w, print why work is pending, where it runs and what it prints, until all of it has ended. The exit code is 0
    if all of it succeeded, and 1 if any failed. Ctrl-C cancels everything that this command submitted; a second Ctrl-C
    leaves at once. Without -w, the work continues after the command.

    \b
    Examples:
      stead submit --to sim work.yaml --scenario cluster.yaml -w
      stead submit --to ray work.yaml -w
      stead submit --to kubernetes work.yaml -n vision --context staging
      stead submit --to kubernetes work.yaml --dry-run
    """
    _check_options(to, {**given, "namespace": namespace if to == "sim" else None})
    written = parsed_spec(file)
    with _named(file):
        target = _target(to, written, namespace, watch, {**given, "dry_run": dry_run})
        try:
            ids = target.check() if dry_run else _submitted(target)
            if dry_run or not watch:
                _tell(ids, "would be submitted" if dry_run else "submitted", to, form)
                return 0
            return _followed(target, form)
        finally:
            target.close()


def _submitted(target: Target) -> Sequence[str]:
    try:
        return target.submit()
    except KeyboardInterrupt:  # all or nothing, also then
        target.cancel()
        raise


@contextmanager
def _named(file: str) -> Iterator[None]:
    """Errors about a position in the file also name the file."""
    from stead.specs.sections import Misplaced

    try:
        yield
    except Misplaced as error:
        raise Invalid(f"{file}: {error}") from None


def _check_options(to: str, given: dict[str, Any]) -> None:
    for kind, names in OPTIONS.items():
        for name in names:
            if kind != to and given.get(name) is not None:
                option = name.replace("_", "-")
                raise click.UsageError(f"--{option} is for --to {kind}, but the work goes to {to}")
    if to == "sim" and given["scenario"] is None:
        raise click.UsageError("--to sim needs nodes; give --scenario FILE too")


def _target(to: str, written: dict[str, Any], namespace: str | None, watch: bool, given: dict[str, Any]) -> Target:
    from stead.specs.submissions import read_submission

    if to == "sim":
        from stead.sim.scenario import load
        from stead.sim.submitting import SimTarget, ids_of

        scenario = load(given["scenario"])
        return SimTarget(scenario, read_submission(written, used=ids_of(scenario).__contains__), given["until"])
    work = read_submission(written)
    if to == "ray":
        return _ray(work, namespace, watch, given)
    return _kubernetes(work, namespace, watch, given)


def _ray(work: Submission, namespace: str | None, watch: bool, given: dict[str, Any]) -> Target:
    from stead.ray.local.start import require_ray

    require_ray("stead submit --to ray")
    from stead.commands.connecting import ray_address
    from stead.ray.running.target import RayTarget

    address = None if given["dry_run"] else ray_address(given["address"])
    return RayTarget(work, address, namespace, watch)


def _kubernetes(work: Submission, namespace: str | None, watch: bool, given: dict[str, Any]) -> Target:
    from stead.commands.scheduling import require_libraries

    require_libraries("stead submit --to kubernetes")
    from stead.kubernetes.running.target import KubernetesTarget

    where = given["kubeconfig"], given["context"], namespace
    return KubernetesTarget(work, *where, given["scheduler_name"] or SCHEDULER, watch)


def _tell(ids: Iterable[str], what: str, to: str, form: str) -> None:
    if not structured(form, [{"id": id, "cluster": to} for id in ids]):
        for id in ids:
            click.echo(printable(f"{id} {what}"))


# -- following


def _followed(target: Target, form: str) -> int:
    """Print what happens until all work has ended. Returns the exit code."""
    from stead.specs.following import Update

    last: dict[str, Update] = {}
    screen = Screen(quiet=for_scripts(form))
    try:
        for news in target.follow():
            if isinstance(news, Update):
                last[news.id] = news
            screen.show(news, last)
    except KeyboardInterrupt:
        screen.say("cancelling; press Ctrl-C again to leave at once")
        target.cancel()
        raise
    finally:
        screen.end()
    structured(form, [_plain(update) for update in last.values()])
    failed = sum(update.code != 0 for update in last.values())
    if not for_scripts(form):
        done = f"{plural(len(last) - failed, 'piece')} succeeded"
        click.echo(f"{done}, {failed} failed" if failed else done)
    return 1 if failed else 0


def _plain(update: Update) -> dict[str, Any]:
    return {
        "id": update.id,
        "state": update.state.value,
        "node": update.node or None,
        "code": update.code,
        "reason": update.reason or None,
        "at": update.at,
    }


class Screen:
    """Prints one line for everything that happens. On a terminal, the last line counts the pieces by their state."""

    def __init__(self, quiet: bool) -> None:
        """With `quiet`, the lines go to stderr, because stdout is for a script."""
        self._stream = sys.stderr if quiet else sys.stdout
        self._counts = ""

    @property
    def _is_live(self) -> bool:
        return self._stream.isatty()

    def show(self, news: Update | Line, last: dict[str, Update]) -> None:
        self.say(printable(text_of(news), keep="\t"))
        if self._is_live:
            self._counts = counts_text(last.values())
            self._write(self._counts, end="")

    def say(self, text: str) -> None:
        self._clear()
        self._write(text, end="\n")

    def end(self) -> None:
        self._clear()
        self._counts = ""

    def _clear(self) -> None:
        if self._counts:
            self._write("\r\x1b[2K", end="")

    def _write(self, text: str, end: str) -> None:
        self._stream.write(text + end)
        self._stream.flush()


def counts_text(updates: Iterable[Update]) -> str:
    """``2 pending, 1 running, 3 succeeded``."""
    from stead.specs.following import State

    counts = Counter(update.state for update in updates)
    return ", ".join(f"{counts[state]} {state}" for state in State if counts[state])


def text_of(news: Update | Line) -> str:
    from stead.specs.following import Line, State

    if isinstance(news, Line):
        return f"{news.id} | {news.text}" if news.id else news.text
    texts: dict[State, Callable[[], str]] = {
        State.PENDING: lambda: f"pending: {news.reason}" if news.reason else "pending",
        State.RUNNING: lambda: f"running on {news.node}",
        State.SUCCEEDED: lambda: "succeeded",
        State.FAILED: lambda: f"failed: {news.reason}" if news.reason else f"failed with exit status {news.code}",
    }
    when = "" if news.at is None else f"{news.at:g} s  "
    return f"{when}{news.id}: {texts[news.state]()}"
