"""`stead why`, `lint`, `replay`: why work is pending, which requests match nothing, and what was decided.

Rule: nothing is changed and nothing is submitted. A past decision is shown only after its replay was byte-equal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from stead.commands.arguments import Moment, past_moment
from stead.commands.completing import work_ids
from stead.commands.connecting import Where, addressed, asked, reached
from stead.commands.output import (
    for_scripts,
    formatted,
    parsed_spec,
    say,
    sortable,
    structured,
    written,
)
from stead.language.times import moment_text
from stead.text import plural, printable, short_id, with_names

if TYPE_CHECKING:
    from stead.journal import Journal
    from stead.operate.history import Replayed

STEPS_LONG = 200
"""A longer journal shows a progress bar on a terminal."""

spec_option = click.option("--spec", metavar="FILE", help="A YAML file that describes work; - is standard input.")


# -- why


@click.command(short_help="Explain why work is pending, or why it runs where it does.")
@click.argument("words", nargs=-1, metavar="[ID]", shell_complete=work_ids)
@spec_option
@formatted
@asked
def why(words: tuple[str, ...], spec: str | None, form: str, where: Where) -> int:
    """Explain why ID is pending and what would place it, or why it runs where it does. ID is the id or name of a task,
    an actor or a group, or on Kubernetes a pod of any scheduler: pod/NAME.

    With --spec, explain work that is not submitted.

    \b
    Examples:
      stead why trainer
      stead why pod/web-0
      stead why pod/web-0 --context staging -n shop
      stead why --spec work.yaml
      stead why --scenario scenarios/demo.yaml render
    """
    id = _named(words)
    if (id is None) == (spec is None):
        raise click.UsageError("give the id of one piece of work, or --spec FILE")
    where = where if id is None else where.of_pod(id)
    described = None if spec is None else parsed_spec(spec)
    if where.scenario is not None and id is not None and not for_scripts(form):
        return _in_scenario(id, where.scenario, where.until)
    from stead.commands.naming import Names
    from stead.operate.views import explanation_json

    with reached("why", where) as desk:
        names = Names(desk)
        if spec is not None:
            found = list(desk.why_spec(described))
            if not structured(form, [explanation_json(each) for each in found]):
                for each in found:
                    click.echo(names.text(f"{each.id}: {_indented(str(each))}"))
            return 0
        one = desk.why(str(id))
        if not structured(form, explanation_json(one)):
            click.echo(names.text(str(one)))
    return 0


def _named(words: Sequence[str]) -> str | None:
    """``pod/web`` also in two words, as kubectl accepts it."""
    if len(words) == 2 and words[0] in ("pod", "pods", "po"):
        return f"pod/{words[1]}"
    if len(words) > 1:
        raise click.UsageError(f"give the id of one piece of work, not {len(words)}: {' '.join(words)}")
    return words[0] if words else None


def _in_scenario(id: str, scenario: str, until: float | None) -> int:
    """The simulator's own text also covers work that has ended or was refused."""
    from stead.sim.cluster import run
    from stead.sim.report import why_text
    from stead.sim.scenario import load

    click.echo(why_text(run(load(scenario), until), id))
    return 0


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


# -- lint


@click.command(short_help="Find what work asks for and no node has.")
@spec_option
@sortable
@asked
def lint(spec: str | None, order: str | None, form: str, where: Where) -> int:
    """Find labels, values and resources that pending work (or the work of a spec) requests and no node has, with the
    most similar names. Exit code 1 if there are findings.

    \b
    Examples:
      stead lint
      stead lint --spec work.yaml
      stead lint --spec work.yaml --scenario cluster.yaml
      stead lint -o name
    """
    described = None if spec is None else parsed_spec(spec)
    from stead.commands.lists import FOR_PEOPLE
    from stead.commands.naming import Names
    from stead.commands.tables import finding_listing

    with reached("lint", where) as desk:
        found = desk.lint(described)
        listing = finding_listing(Names(desk))
        if order is not None:
            found = listing.sorted(found, order)
        nothing = "nothing found: the cluster has everything that is requested"
        say(nothing if not found and form in FOR_PEOPLE else listing.text(form, found))
    return 1 if found else 0


# -- replay


@click.command(short_help="Replay past decisions and compare.")
@click.argument("journal", required=False, metavar="[JOURNAL]")
@click.option(
    "--ask", metavar="ID", default="", help="Replay the last decision about this work.", shell_complete=work_ids
)
@click.option(
    "--at",
    metavar="TIME",
    callback=past_moment,
    help="Replay the last decision at or before this time: 2026-01-31 12:00:00 (UTC), 5m (ago), or seconds.",
)
@formatted
@addressed
def replay(journal: str | None, ask: str, at: Moment | None, form: str, where: Where) -> int:
    """Replay a past decision from the journal, check that it is byte-equal to the original, and explain it.

    Choose one decision of a cluster with --ask, --at, or both. With JOURNAL (a file), replay that file instead; without
    --ask and --at, replay every decision in it. In the journal of a simulation, --at counts from its start.

    \b
    Examples:
      stead replay --ask 1a2b3c4d5e6f
      stead replay --at '2026-01-31 12:00:00'
      stead replay demo.journal
      stead replay demo.journal --ask render --at 90s
      stead replay stead.journal --ask pod/web-0
    """
    if journal is not None:
        if where.address is not None or where.kube.chooses_cluster:
            chosen = "--address" if where.address is not None else where.kube.given[0]
            raise click.UsageError(f"give a journal file or {chosen}, not both")
        return _of_file(journal, ask, at, form)
    if not ask and at is None:
        raise click.UsageError("choose a decision with --ask ID, --at TIME or both; or give a journal file")
    with reached("replay", where) as desk:
        before = None if at is None else at.before(desk.summary().at)
        found = desk.replay(ask, before)
    _tell(found, form)
    return 0


def _of_file(path: str, ask: str, at: Moment | None, form: str) -> int:
    from stead.journal import Journal
    from stead.journal import replay as decide_again
    from stead.kubernetes.desk.references import is_pod, pod_id
    from stead.operate.history import how_far_back, replay_decision

    ask = pod_id(ask, "default") if is_pod(ask) else ask
    with Journal.reading(path) as journal:
        if ask or at is not None:
            with _progress(journal) as progress:
                found = replay_decision(journal, ask, None if at is None else at.seconds, progress)
            _tell(found, form)
            return 0
        with _progress(journal) as progress:
            decide_again(journal, progress=progress)
        last, oldest = journal.last(), journal.kept_after + 1
        steps = last.step if last else 0
        if not structured(form, {"journal": path, "steps": steps, "oldest": oldest, "equal": True}):
            count = steps - oldest + 1
            click.echo(f"{path}: {plural(count, 'step')} replayed, every decision byte-equal{how_far_back(journal)}.")
    return 0


def is_interactive() -> bool:
    return sys.stderr.isatty()


@contextmanager
def _progress(journal: Journal) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on stderr, for a long journal on a terminal."""
    steps, base = len(journal), journal.kept_after
    if steps <= STEPS_LONG or not is_interactive():
        yield None
        return
    with click.progressbar(length=steps, label="replaying", file=sys.stderr) as bar:
        yield lambda step: bar.update(step - base - bar.pos)


def _tell(found: Replayed, form: str) -> None:
    if for_scripts(form):
        click.echo(written(form, replayed_json(found)))
        return
    from stead.engine.explain.events import event_of

    when = moment_text(found.moment)
    back = f" (the journal goes back to step {found.oldest})" if found.oldest > 1 else ""
    click.echo(f"step {found.step} of {found.steps}, at {when}: replayed, byte-equal{back}.")
    for decision in found.decisions:
        event = event_of(decision, found.moment, found.names)
        click.echo(with_names(printable(f"  {event.subject}: {event.text}")))
    if found.explanation is not None:
        click.echo(printable(f"\n{short_id(found.ask)}, at that time: {_indented(str(found.explanation))}", keep="\n"))


def replayed_json(found: Replayed) -> dict[str, Any]:
    from stead.codec import plain
    from stead.operate.views import explanation_json

    return {
        "step": found.step,
        "steps": found.steps,
        "at": found.moment,
        "decisions": [plain(decision) for decision in found.decisions],
        "ask": found.ask,
        "explanation": explanation_json(found.explanation) if found.explanation else None,
        "oldest": found.oldest,
    }
