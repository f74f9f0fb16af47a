"""`stead plan`: which new nodes pending work needs.

Rule: a dry run; nothing is started. Options and files become one document, the desk makes the plan, and this module
only prints it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from stead.commands.asking import spec_option
from stead.commands.connecting import Where, asked, reached, simulated
from stead.commands.output import formatted, parsed_spec, read_text, structured
from stead.errors import Invalid
from stead.language.resources import Resources, as_written
from stead.text import first_few, plural, price_text, printable

if TYPE_CHECKING:
    from stead.commands.naming import Names
    from stead.operate.desk import Desk
    from stead.operate.plans import NewNodes, PlanView, StillPending

SHOWN_MAX = 5
"""How many pieces of work are named in a line."""


@click.command(short_help="Show which new nodes pending work needs.")
@click.option(
    "--nodes",
    metavar="FILE",
    help="The kinds of nodes to choose from, and limits, as YAML; - is standard input. By default, the kinds of the "
    "autoscaler, or else those that the cluster has.",
)
@click.option(
    "--config", metavar="FILE", help="The same from a cluster file, as `ray up` and `stead autoscale` read it."
)
@spec_option
@click.option(
    "--snapshot", metavar="FILE", help="Use a cluster that was saved with --save, or a scenario as it begins."
)
@click.option("--empty", is_flag=True, help="Use a cluster without nodes.")
@click.option("--save", metavar="FILE", help="Also save the cluster to this file, for --snapshot.")
@formatted
@asked
def plan(
    nodes: str | None,
    config: str | None,
    spec: str | None,
    snapshot: str | None,
    empty: bool,
    save: str | None,
    form: str,
    where: Where,
) -> int:
    """Show which new nodes pending work needs, what they cost, what would run on them, and what would stay pending even
    then. With --spec, also for work that is not submitted.

    Nothing is started. Nodes with equal resources and labels are of one kind. A file can describe other kinds, with
    prices, maximum numbers and limits. With --snapshot or --empty, no cluster is needed.

    \b
    Examples:
      stead plan
      stead plan --spec work.yaml
      stead plan --nodes kinds.yaml
      stead plan --config cluster.yaml --spec work.yaml --empty
      stead plan --save monday.json
      stead plan --snapshot monday.json --config cluster.yaml
      stead plan --scenario scenarios/demo.yaml
    """
    document = _document(nodes, config, spec)
    if snapshot is not None or empty:
        _refuse_a_cluster(snapshot, empty, where)
        if empty and "nodes" not in document:
            raise click.UsageError("a cluster without nodes has no kinds of nodes; give --config FILE or --nodes FILE")
    from stead.commands.naming import Names
    from stead.operate.plans import plan_json

    with _desk(snapshot, empty, where) as desk:
        found = desk.plan(document or None)
        if save is not None:
            _save(desk, save)
        if not structured(form, plan_json(found)):
            for line in plan_lines(found, Names(desk)):
                click.echo(line)
    return 0


def _document(nodes: str | None, config: str | None, spec: str | None) -> dict[str, Any]:
    """Kinds of nodes, limits and work from files."""
    from stead.operate.plans import LIMITED, WORK, described

    if nodes is not None and config is not None:
        raise click.UsageError("give --nodes or --config, not both")
    document: dict[str, Any] = {} if nodes is None else dict(parsed_spec(nodes, LIMITED))
    if config is not None:
        from stead.scaling.catalog import read_cluster

        cluster = read_cluster(config)
        document = described(cluster.catalog, cluster.limits)
    if spec is not None:
        work = parsed_spec(spec)
        if "changes" in work:
            raise Invalid(f"{spec}: a spec of work has no changes; good fields are {' and '.join(WORK)}")
        document |= work
    return document


def _refuse_a_cluster(snapshot: str | None, empty: bool, where: Where) -> None:
    if snapshot is not None and empty:
        raise click.UsageError("give --snapshot or --empty, not both")
    if where.given:
        option = "--empty" if empty else "--snapshot"
        raise click.UsageError(f"{option} needs no cluster; leave it out, or leave out {where.given[0]}")


@contextmanager
def _desk(snapshot: str | None, empty: bool, where: Where) -> Iterator[Desk]:
    """The desk of a cluster, of a saved one, of a scenario at its start, or of a cluster without nodes."""
    if snapshot is None and not empty:
        with reached("plan", where) as desk:
            yield desk
        return
    from stead.operate.saved import is_saved, opened, without_nodes

    if snapshot is None:
        yield without_nodes()
        return
    text = read_text(snapshot)
    if not is_saved(text):
        with simulated(snapshot, 0.0) as desk:
            yield desk
        return
    try:
        found = opened(text)
    except Invalid as error:
        raise Invalid(f"{snapshot}: {error}") from None
    yield found


def _save(desk: Desk, path: str) -> None:
    from pathlib import Path

    from stead.operate.saved import save

    text = save(desk)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Invalid(f"{path} cannot be written: {error.strerror}") from None
    click.echo(
        f"Saved the cluster to {printable(path)}; plan with it by: stead plan --snapshot {printable(path)}", err=True
    )


def plan_lines(found: PlanView, names: Names) -> list[str]:
    """A plan as sentences."""
    lines = []
    if found.fits:
        lines.append(f"On existing nodes: {_work(found.fits, names)}.")
    lines += [_coming(each, names) for each in found.coming]
    lines += [_launch(each, names) for each in found.new_nodes]
    if found.price:
        lines.append(f"Price: {price_text(found.price)} per hour.")
    kinds = {each.name for each in found.new_nodes}
    if reached := [printable(name) for name in found.limits if name not in kinds]:
        lines.append(f"Limits reached: {', '.join(reached)}.")
    if found.pending:
        lines.append("Pending even then:")
        lines += [_left(each, names) for each in found.pending]
    return lines or ["No work is pending."]


def _launch(each: NewNodes, names: Names) -> str:
    what = ", ".join(f"{name} {amount}" for name, amount in as_written(Resources.of(each.resources)).items())
    kind = f"like {printable(each.name)}" if each.is_like else f"of the kind {printable(each.name)}"
    limit = "; the maximum" if each.at_limit else ""
    price = f"; {price_text(each.price)} per hour" + (" each" if each.count > 1 else "") if each.price else ""
    purpose = f"would run {_work(each.serves, names)}" if each.serves else _for_the_minimum(each.count)
    return f"{plural(each.count, 'new node')} {kind} ({what}{price}{limit}) {purpose}."


def _for_the_minimum(count: int) -> str:
    return "is for the minimum of this kind" if count == 1 else "are for the minimum of this kind"


def _coming(each: NewNodes, names: Names) -> str:
    verb = "is coming" if each.count == 1 else "are coming"
    runs = f" and would run {_work(each.serves, names)}" if each.serves else ""
    return f"{plural(each.count, 'node')} of the kind {printable(each.name)} {verb}{runs}."


def _left(each: StillPending, names: Names) -> str:
    nearest = f"the nearest kind is {printable(each.nearest)}: " if each.nearest else ""
    return f"  {_work(each.ids, names)}: {nearest}{names.text(each.why)}."


def _work(ids: tuple[str, ...], names: Names) -> str:
    return first_few([names.of(id) for id in ids], SHOWN_MAX)
