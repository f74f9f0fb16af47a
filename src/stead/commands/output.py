"""What commands print: tables for people; JSON, YAML and JSONPath for scripts.

Rule: the same rows in every form. Plain text if stdout is not a terminal or NO_COLOR is set; the JSON form is stable
(`docs/json.md`). Node ids are shortened only for people.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stead.errors import Invalid, did_you_mean
from stead.language.labels import IDENTITY_KEYS
from stead.language.times import duration_text
from stead.text import aligned, printable, short_id

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from stead.operate.desk import Carried
    from stead.operate.views import NodeView

Command = TypeVar("Command", bound=Callable[..., Any])

FORMS = ("table", "json", "yaml")
LIST_FORMS = ("table", "wide", "name", "json", "yaml", "csv")
JSON_PATH = "jsonpath="
WATCH_S = 1.0
WIDTH_MAX = 60
SPEC_FIELDS = ("work", "groups", "changes")


class Form(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """An output form: one of the known ones, or ``jsonpath=EXPRESSION``."""

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
    """The options that choose the output form."""
    options = [
        click.option(
            "-o",
            "--output",
            "--format",
            "form",
            type=Form(forms),
            metavar="FORM",
            default="default",
            help=f"Output form: {', '.join(forms)} or {JSON_PATH}EXPR; the fields of json are stable.",
        ),
        click.option("--json", "form", flag_value="json", help="The same as -o json."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def sortable(command: Command) -> Command:
    """The options of a command that prints a list."""
    text = "Sort by a column or a JSON field, such as name, total.CPU or -total.CPU for the largest first."
    return formatted(click.option("--sort-by", "order", metavar="FIELD", help=text)(command), LIST_FORMS)


def listed(command: Command) -> Command:
    """The options of lists, as `ray list` has them."""
    options = [
        click.option(
            "--filter",
            "-f",
            "filters",
            multiple=True,
            metavar="KEY=VALUE",
            help="Only rows that match; also KEY!=VALUE.",
        ),
        click.option(
            "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number of rows."
        ),
        click.option("--detail", is_flag=True, help="Show all fields of each row."),
        click.option("--watch", "-w", is_flag=True, help="Keep running, and print again after each change."),
    ]
    for option in reversed(options):
        command = option(command)
    return sortable(command)


def for_scripts(form: str) -> bool:
    return form in ("json", "yaml") or form.startswith(JSON_PATH)


def written(form: str, value: Any) -> str:
    """A value as JSON or YAML, or the parts that a JSONPath selects."""
    if form == "json":
        return json.dumps(value, indent=2)
    if form.startswith(JSON_PATH):
        from stead.commands import json_paths

        picked = json_paths.filled(json_paths.template(form.removeprefix(JSON_PATH)), value)
        return printable(picked, keep="\n\t").removesuffix("\n")
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True)).rstrip()


def structured(form: str, value: Any) -> bool:
    """Print a value for scripts; False if the form is for people."""
    if not for_scripts(form):
        return False
    say(written(form, value))
    return True


def say(text: str) -> None:
    """Print a text; nothing if it is empty, so that a script gets no empty line."""
    if text:
        click.echo(text)


def detailed(found: Iterable[Mapping[str, Any]]) -> str:
    """All fields of each item, as YAML with a line between items."""
    return "\n\n".join(written("yaml", dict(each)) for each in found)


def columns(rows: Sequence[Sequence[str]], whole: bool = False) -> str:
    """Rows as text, one line each; the first is the header. Columns with only dashes are omitted, unless `whole`."""
    rows = [[printable(cell) for cell in row] for row in rows]
    kept = [column for column in zip(*rows, strict=True) if whole or len(rows) == 1 or set(column[1:]) != {"-"}]
    lines = aligned([*zip(*kept, strict=True)])
    if lines and is_terminal():
        lines[0] = click.style(lines[0], bold=True)
    return "\n".join(lines)


def is_terminal() -> bool:
    """Whether stdout is a terminal, so that the output may have colors."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def more(shown: int, total: int) -> None:
    """Tell people on stderr that there is more than is shown."""
    if total > shown:
        click.echo(
            f"{shown} of {total} shown; see more with --limit {min(total, 10_000)}, or less with --filter", err=True
        )


def watching(again: bool, show: Callable[[], str]) -> None:
    """Print once, or again after each change."""
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


# -- nodes


def shown_labels(view: NodeView) -> dict[str, str]:
    """The labels of a node without those that only identify the node."""
    return {key: value for key, value in sorted(view.labels.items()) if key not in IDENTITY_KEYS}


def pairs(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def taint_texts(view: NodeView, now: float) -> Iterator[str]:
    ends = {(end.key, end.effect): end for end in view.ends}
    for taint in view.taints:
        end = ends.get((taint.key, taint.effect))
        left = None if end is None or end.until is None else f"{duration_text(end.until - now)} left"
        text = ending(left, end.job, end.owner) if end else ""
        yield f"{taint} ({text.strip()})" if text else str(taint)


def ending(until: str | None, job: str, owner: str) -> str:
    """`` for 2h, by blue``, or nothing."""
    parts = [until or "", f"until job {job} ends" if job else "", f"by {owner}" if owner else ""]
    return "".join(f" {words}" if index == 0 else f", {words}" for index, words in enumerate(filter(None, parts)))


# -- work


def cut(text: str) -> str:
    return text if len(text) <= WIDTH_MAX else f"{text[: WIDTH_MAX - 3]}..."


def unconfirmed_text(carried: Carried) -> list[str]:
    """A line for each node that has not confirmed a change."""
    titles = {view.id: view.title for view in carried.nodes}
    return [
        f"node {titles.get(id) or short_id(id)} does not answer; the change takes effect there when it does"
        for id in carried.unconfirmed
    ]


def parsed_spec(path: str, known: Sequence[str] = SPEC_FIELDS) -> dict[str, Any]:
    """The work, groups and changes (or other `known` fields) in a YAML file; ``-`` is standard input."""
    from stead.specs.sections import Section, load_yaml

    text = read_text(path)
    try:
        loaded = load_yaml(text)
        if known is SPEC_FIELDS and isinstance(loaded, Mapping) and "apiVersion" in loaded:  # manifests are work
            return {"work": loaded.get("items") or [] if loaded.get("kind") in ("List", "PodList") else [loaded]}
        return Section(loaded, "", known).fields
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from None


def read_text(path: str) -> str:
    """The text of a file; ``-`` is standard input."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Invalid(f"{path} cannot be read: {reason}") from None
