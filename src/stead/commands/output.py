"""What commands print: tables for people; JSON, YAML and JSONPath for scripts.

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

from stead.commands.words import SHORT
from stead.errors import Invalid, did_you_mean, printable
from stead.labelling import IDENTITY_KEYS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from stead.operate.desk import Carried
    from stead.operate.views import Event, NodeView

Command = TypeVar("Command", bound=Callable[..., Any])

FORMS = ("table", "json", "yaml")
LIST_FORMS = ("table", "wide", "name", "json", "yaml", "csv")
JSON_PATH = "jsonpath="
WATCH_S = 1.0
CLOCK_MIN = 1e8
"""A moment below this is one of a simulation, which begins at 0."""

WIDTH_MAX = 60
SPEC_FIELDS = ("work", "groups", "changes")

_WHOLE_ID = re.compile(r"\b[0-9a-f]{56}\b")


class Form(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """How to print: one of some forms, or ``jsonpath=EXPRESSION``."""

    name = "form"

    def __init__(self, known: Sequence[str]) -> None:
        self.known = known

    def convert(self, value: str, parameter: click.Parameter | None, at: click.Context | None) -> str:
        if value.startswith(JSON_PATH):
            from stead.commands import json_paths

            try:
                json_paths.template(value.removeprefix(JSON_PATH))
            except Invalid as error:
                self.fail(str(error), parameter, at)
        elif value not in (*self.known, "default"):
            good = ", ".join([*self.known, f"{JSON_PATH}EXPR"])
            self.fail(
                f"{value!r} is not an output form{did_you_mean(value, self.known)}; good ones are {good}", parameter, at
            )
        return value

    def shell_complete(self, at: click.Context, parameter: click.Parameter, begin: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(each) for each in (*self.known, JSON_PATH) if each.startswith(begin)]


def formatted(command: Command, forms: Sequence[str] = FORMS) -> Command:
    """The options by which a command is told how to print."""
    options = [
        click.option(
            "-o",
            "--output",
            "--format",
            "form",
            type=Form(forms),
            metavar="FORM",
            default="default",
            help=f"{', '.join(forms)} or {JSON_PATH}EXPR; the fields of json are stable.",
        ),
        click.option("--json", "form", flag_value="json", help="The same as -o json."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def sortable(command: Command) -> Command:
    """The options of a command that prints a list."""
    said = "Sort by a column or a JSON field, such as name, total.CPU or -total.CPU for the largest first."
    return formatted(click.option("--sort-by", "order", metavar="FIELD", help=said)(command), LIST_FORMS)


def listed(command: Command) -> Command:
    """The options of lists, as `ray list` has them."""
    options = [
        click.option(
            "--filter", "-f", "filters", multiple=True, metavar="KEY=VALUE", help="Only these; also KEY!=VALUE."
        ),
        click.option(
            "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number of rows."
        ),
        click.option("--detail", is_flag=True, help="Show all that is known."),
        click.option("--watch", "-w", is_flag=True, help="Go on, and print again when something has changed."),
    ]
    for option in reversed(options):
        command = option(command)
    return sortable(command)


def for_scripts(form: str) -> bool:
    return form in ("json", "yaml") or form.startswith(JSON_PATH)


def written(form: str, value: Any) -> str:
    """A value as JSON or YAML, or what a JSONPath picks of it."""
    if form == "json":
        return json.dumps(value, indent=2)
    if form.startswith(JSON_PATH):
        from stead.commands import json_paths

        picked = json_paths.filled(json_paths.template(form.removeprefix(JSON_PATH)), value)
        return printable(picked, keep="\n\t").removesuffix("\n")
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True)).rstrip()


def structured(form: str, value: Any) -> bool:
    """Print a value for scripts, if that is what is wanted."""
    if not for_scripts(form):
        return False
    say(written(form, value))
    return True


def say(text: str) -> None:
    """Print it; nothing at all if it is empty, so that a script gets no empty line."""
    if text:
        click.echo(text)


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
    say(text)
    while again:
        time.sleep(WATCH_S)
        if (fresh := show()) != text:
            text = fresh
            if is_terminal():
                click.clear()
            else:
                click.echo()
            say(text)


def shortened(text: str) -> str:
    """Text for people: ids of nodes are short, and nothing in it moves a terminal's cursor."""
    return _WHOLE_ID.sub(lambda found: found[0][:SHORT], printable(text, keep="\n"))


def moment(at: float) -> str:
    """In UTC; of a scenario, the seconds since its start."""
    if at < CLOCK_MIN:
        return f"{at:g} s"
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
    return ", ".join(f"{amount_text(name, value)} {name}" for name, value in amounts.items()) or "nothing"


def amount_text(name: str, value: float) -> str:
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


def cut(text: str) -> str:
    return text if len(text) <= WIDTH_MAX else f"{text[: WIDTH_MAX - 3]}..."


def event_line(event: Event) -> str:
    """``2026-01-31 12:00:00  tainted   gpu-1: gpu_node=true``, in UTC."""
    return f"{moment(event.at)}  {shortened(str(event))}"


def unconfirmed_text(carried: Carried) -> list[str]:
    """A line for each node that has not confirmed a change."""
    titles = {view.id: view.title for view in carried.nodes}
    return [
        f"node {titles.get(id, id[:SHORT])} does not answer; the change holds there once it does"
        for id in carried.unconfirmed
    ]


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
