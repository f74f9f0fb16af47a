"""`stead why`, `lint`, `replay`: questions about what waits, what is written wrongly, and what was decided.

Rule: nothing is changed and nothing submitted. A past decision is shown only after it was made again, byte-equal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from stead.commands.completing import work_ids
from stead.commands.output import (
    columns,
    for_scripts,
    formatted,
    joined,
    moment,
    parsed_spec,
    shortened,
    structured,
    written,
)
from stead.commands.reach import addressed, reached
from stead.commands.simulating import until
from stead.commands.words import Moment, past_moment

if TYPE_CHECKING:
    from stead.journal import Journal
    from stead.operate.history import Replayed

CLOCK_MIN = 1e8
"""A journal's moment below this is one of a simulation, which begins at 0."""

STEPS_LONG = 200
"""A journal with more steps shows how far it is, to somebody who looks."""

spec_option = click.option("--spec", metavar="FILE", help="Work as a YAML file describes it; - is standard input.")


# -- why


@click.command(short_help="Say why something waits, or is where it is.")
@click.argument("id", required=False, metavar="[ID]", shell_complete=work_ids)
@spec_option
@click.option("--scenario", metavar="FILE", help="Run this scenario first, and answer for it.")
@until
@formatted
@addressed
def why(
    id: str | None, spec: str | None, scenario: str | None, until: float | None, form: str, address: str | None
) -> int:
    """Say why ID (a task, an actor, a group) waits, and what would let it in; or why it is where it is.

    With --spec the same of work that was never submitted, and is not.

    \b
    Examples:
      stead why 1a2b3c4d5e6f
      stead why --spec work.yaml
      stead why --scenario scenarios/demo.yaml render
    """
    if scenario is not None:
        return _of_scenario(id, spec, scenario, until, form)
    if (id is None) == (spec is None):
        raise click.UsageError("name one piece of work by its id, or give --spec FILE")
    if until is not None:
        raise click.UsageError("--until is for a scenario; give --scenario FILE too")
    described = None if spec is None else parsed_spec(spec)
    from stead.operate.views import explanation_json

    with reached("why", address) as desk:
        if spec is not None:
            found = list(desk.why_spec(described))
            if not structured(form, [explanation_json(each) for each in found]):
                for each in found:
                    click.echo(shortened(f"{each.id}: {_indented(str(each))}"))
            return 0
        one = desk.why(str(id))
        if not structured(form, explanation_json(one)):
            click.echo(shortened(str(one)))
    return 0


def _of_scenario(id: str | None, spec: str | None, scenario: str, until: float | None, form: str) -> int:
    if id is None or spec is not None:
        raise click.UsageError("name one piece of work of the scenario by its id, for example: --scenario FILE train")
    if for_scripts(form):
        raise click.UsageError("a scenario is told in words only; `stead sim --json` has all of it for scripts")
    from stead.sim.cluster import run
    from stead.sim.report import why_text
    from stead.sim.scenario import load

    click.echo(why_text(run(load(scenario), until), id))
    return 0


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


# -- lint


@click.command(short_help="Find what work asks for and nothing has.")
@spec_option
@formatted
@addressed
def lint(spec: str | None, form: str, address: str | None) -> int:
    """Find what waiting work (or that of a spec) asks for and no node has today: labels, values, resources; with the
    word that was perhaps meant. Exit code 1 if there is something.

    \b
    Examples:
      stead lint
      stead lint --spec work.yaml
    """
    described = None if spec is None else parsed_spec(spec)
    from stead.operate.lint import finding_json

    with reached("lint", address) as desk:
        found = desk.lint(described)
    if not structured(form, [*map(finding_json, found)]):
        rows = [("CODE", "WORK", "FINDING")]
        rows += [(each.code, joined(map(shortened, each.ids)), each.text) for each in found]
        click.echo(columns(rows) if found else "nothing found: everything that is asked for is there")
    return 1 if found else 0


# -- replay


@click.command(short_help="Decide something of the past again and compare.")
@click.argument("journal", required=False, metavar="[JOURNAL]")
@click.option(
    "--ask", metavar="ID", default="", help="The last decision about this piece of work.", shell_complete=work_ids
)
@click.option(
    "--at",
    metavar="TIME",
    callback=past_moment,
    help="The last decision at or before this moment: 2026-01-31 12:00:00 (UTC), 5m (ago), or seconds.",
)
@formatted
@addressed
def replay(journal: str | None, ask: str, at: Moment | None, form: str, address: str | None) -> int:
    """Decide something of the past again from the journal, check that it is byte-equal to what was decided then, and
    explain it as of then.

    Of a cluster, one decision: --ask, --at, or both. With JOURNAL (a file) the same of that file; without both
    options every decision in it. In the journal of a simulation --at counts from its start.

    \b
    Examples:
      stead replay --ask 1a2b3c4d5e6f
      stead replay --at '2026-01-31 12:00:00'
      stead replay demo.journal
      stead replay demo.journal --ask render --at 90s
    """
    if journal is not None:
        if address is not None:
            raise click.UsageError("give the file of a journal or --address, not both")
        return _of_file(journal, ask, at, form)
    if not ask and at is None:
        raise click.UsageError("say which decision: --ask ID, --at TIME or both; or name the file of a journal")
    with reached("replay", address) as desk:
        before = None if at is None else at.before(desk.summary().at)
        found = desk.replay(ask, before)
    _tell(found, form)
    return 0


def _of_file(path: str, ask: str, at: Moment | None, form: str) -> int:
    from stead.journal import Journal
    from stead.journal import replay as decide_again
    from stead.operate.history import how_far_back, replay_decision

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
            click.echo(f"{path}: {count} steps decided again, every decision byte-equal{how_far_back(journal)}.")
    return 0


def is_looked_at() -> bool:
    return sys.stderr.isatty()


@contextmanager
def _progress(journal: Journal) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr, where somebody looks at it and it takes a while."""
    steps, base = len(journal), journal.kept_after
    if steps <= STEPS_LONG or not is_looked_at():
        yield None
        return
    with click.progressbar(length=steps, label="deciding again", file=sys.stderr) as bar:
        yield lambda step: bar.update(step - base - bar.pos)


def _tell(found: Replayed, form: str) -> None:
    if for_scripts(form):
        click.echo(written(form, replayed_json(found)))
        return
    from stead.sim.report import sentence

    when = moment(found.moment) if found.moment >= CLOCK_MIN else f"{found.moment:g} s"
    back = f" (the journal goes back to step {found.oldest})" if found.oldest > 1 else ""
    click.echo(f"step {found.step} of {found.steps}, at {when}: decided again, byte-equal{back}.")
    for decision in found.decisions:
        who, said = sentence(decision)
        click.echo(shortened(f"  {who}: {said}"))
    if found.explanation is not None:
        click.echo(shortened(f"\n{found.ask}, as of then: {_indented(str(found.explanation))}"))


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
