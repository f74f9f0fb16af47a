"""What commands print: tables for people, JSON and YAML for scripts.

Rule: the same rows in every form. Plain text where nobody looks at a terminal, or NO_COLOR is set; the JSON form is
stable (`docs/json.md`). Ids of nodes are shortened for people only.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stead.commands.words import SHORT, short_id
from stead.errors import Invalid, printable
from stead.labelling import IDENTITY_KEYS

if TYPE_CHECKING:
    from stead.operate.desk import Carried
    from stead.operate.views import Event, NodeView, WorkView

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = ("default", "table", "json", "yaml")
WATCH_S = 1.0
WIDTH_MAX = 60
SPEC_FIELDS = ("work", "groups", "changes")

_WHOLE_ID = re.compile(r"\b[0-9a-f]{56}\b")


def formatted(command: Command) -> Command:
    """The options by which a command is told how to print."""
    options = [
        click.option(
            "--format",
            "-o",
            "form",
            type=click.Choice(FORMATS),
            default="default",
            help="How to print; json is stable.",
        ),
        click.option("--json", "form", flag_value="json", help="As --format json."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def listed(command: Command) -> Command:
    """The options of lists, as `ray list` has them."""
    options = [
        click.option(
            "--filter", "-f", "filters", multiple=True, metavar="KEY=VALUE", help="Only these; also KEY!=VALUE."
        ),
        click.option(
            "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="So many at most."
        ),
        click.option("--detail", is_flag=True, help="Show all that is known."),
        click.option("--watch", "-w", is_flag=True, help="Go on, and print again when something has changed."),
    ]
    for option in reversed(options):
        command = option(command)
    return formatted(command)


def for_scripts(form: str) -> bool:
    return form in ("json", "yaml")


def written(form: str, value: Any) -> str:
    """A value as JSON or YAML."""
    if form == "json":
        return json.dumps(value, indent=2)
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True)).rstrip()


def structured(form: str, value: Any) -> bool:
    """Print a value for scripts, if that is what is wanted."""
    if not for_scripts(form):
        return False
    click.echo(written(form, value))
    return True


def detailed(found: Iterable[Mapping[str, Any]]) -> str:
    """All that is known of each, as YAML with a line between."""
    return "\n\n".join(written("yaml", dict(each)) for each in found)


def columns(rows: Sequence[Sequence[str]], whole: bool = False) -> str:
    """Rows as text, a line each; the first is the head. A column of nothing but dashes is left out, unless `whole`."""
    rows = [[printable(cell) for cell in row] for row in rows]
    kept = [column for column in zip(*rows, strict=True) if whole or len(rows) == 1 or set(column[1:]) != {"-"}]
    widths = [max(map(len, column)) for column in kept]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*kept, strict=True)]
    if lines and is_terminal():
        lines[0] = click.style(lines[0], bold=True)
    return "\n".join(lines)


def is_terminal() -> bool:
    """Whether a person looks at it, who wants it to look well."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def more(shown: int, total: int) -> None:
    """Say that there is more than is shown; to people, not to scripts."""
    if total > shown:
        click.echo(f"{shown} of {total} shown; see more by --limit {min(total, 10_000)}, or less by --filter", err=True)


def watching(again: bool, show: Callable[[], str]) -> None:
    """Print once, or again and again where it has changed."""
    text = show()
    click.echo(text)
    while again:
        time.sleep(WATCH_S)
        if (fresh := show()) != text:
            text = fresh
            if is_terminal():
                click.clear()
            else:
                click.echo()
            click.echo(text)


def shortened(text: str) -> str:
    """Text for people: ids of nodes are short, and nothing in it moves a terminal's cursor."""
    return _WHOLE_ID.sub(lambda found: found[0][:SHORT], printable(text, keep="\n"))


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def time_text(seconds: float) -> str:
    """``2h``, ``1h30m``, ``45s``: the two greatest units, rounded to the lesser."""
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    whole = max(1, round(seconds))
    first = next(index for index, (_, size) in enumerate(units) if whole >= size)
    said = ""
    for name, size in units[first : first + 2]:
        count, whole = divmod(whole, size)
        said += f"{count}{name}" if count else ""
    return said


def amounts_text(amounts: Mapping[str, float]) -> str:
    """``1 CPU, 2 GiB memory``; memory is counted in bytes."""
    return ", ".join(f"{_amount(name, value)} {name}" for name, value in amounts.items()) or "nothing"


def _amount(name: str, value: float) -> str:
    if "memory" not in name or value < 1024:
        return f"{value:g}"
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:g}"


# -- nodes


def shown_labels(view: NodeView) -> dict[str, str]:
    """The labels of a node without those that only say which node it is."""
    return {key: value for key, value in sorted(view.labels.items()) if key not in IDENTITY_KEYS}


def pairs(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def node_table(views: Sequence[NodeView], now: float) -> str:
    """One line each; a name is shown where a node has one of its own."""
    rows = [("NODE", "NAME", "IP", "CPU", "GPU", "RUNS", "LABELS", "TAINTS")]
    rows += [
        (
            view.id[:SHORT],
            view.name or "-",
            view.ip or "-",
            _free(view, "CPU"),
            _free(view, "GPU"),
            str(view.runs) if view.runs else "-",
            pairs(shown_labels(view)) or "-",
            ", ".join([*taint_texts(view, now), *(["draining"] if view.draining else [])]) or "-",
        )
        for view in views
    ]
    return columns(rows)


def _free(view: NodeView, resource: str) -> str:
    total = view.total.get(resource, 0.0)
    return f"{view.available.get(resource, 0.0):g}/{total:g}" if total else "-"


def taint_texts(view: NodeView, now: float) -> Iterator[str]:
    ends = {(end.key, end.effect): end for end in view.ends}
    for taint in view.taints:
        end = ends.get((taint.key, taint.effect))
        left = None if end is None or end.until is None else f"{time_text(end.until - now)} left"
        said = ending(left, end.job, end.owner) if end else ""
        yield f"{taint} ({said.strip()})" if said else str(taint)


def ending(until: str | None, job: str, owner: str) -> str:
    """`` for 2h, by blue``, or nothing."""
    said = [until or "", f"until job {job} ends" if job else "", f"by {owner}" if owner else ""]
    return "".join(f" {words}" if index == 0 else f", {words}" for index, words in enumerate(filter(None, said)))


# -- work and events


def work_table(views: Sequence[WorkView], names: Mapping[str, str], now: float) -> str:
    rows = [("ID", "KIND", "NAME", "STATE", "NODE", "COUNT", "ASKS FOR", "RULES", "AGE")]
    rows += [
        (
            short_id(view.id),
            view.kind,
            view.name or "-",
            view.state,
            names.get(view.node, view.node[:SHORT]) or "-",
            str(view.count) if view.count > 1 else "-",
            amounts_text(view.resources),
            cut("; ".join(view.rules)) or "-",
            time_text(now - view.since) if view.since is not None and now > view.since else "-",
        )
        for view in views
    ]
    return columns(rows)


def cut(text: str) -> str:
    return text if len(text) <= WIDTH_MAX else f"{text[: WIDTH_MAX - 3]}..."


def event_line(event: Event) -> str:
    """``2026-01-31 12:00:00  tainted   1a2b3c4d5e6f: gpu_node=true``, in UTC."""
    return f"{moment(event.at)}  {shortened(str(event))}"


def unconfirmed_text(carried: Carried) -> list[str]:
    """A line for each node that has not confirmed a change."""
    return [f"node {id[:SHORT]} does not answer; the change holds there once it does" for id in carried.unconfirmed]


def parsed_spec(path: str) -> dict[str, Any]:
    """What a file that somebody wrote says of work, groups and changes; ``-`` is standard input."""
    from stead.sections import Section, load_yaml

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Invalid(f"{path} cannot be read: {reason}") from None
    try:
        return Section(load_yaml(text), "", SPEC_FIELDS).fields
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from None


def joined(ids: Iterable[str], most: int = 4) -> str:
    """The first few, and how many more."""
    known = list(ids)
    rest = len(known) - most
    return ", ".join(known[:most]) + (f" and {rest} more" if rest > 0 else "")
