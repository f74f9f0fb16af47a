"""`stead what-if`: changes tried on a copy of the cluster, side by side with the cluster now.

Rule: options and files become one document of changes, which `operate.what_if` reads. Nothing is changed, except with
--apply: that makes exactly the previewed changes, as one change, after the user has agreed. `--dry-run` prints its
preview in the same form.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stead.commands.arguments import Target, label_changes
from stead.commands.completing import node_ids
from stead.commands.connecting import Where, asked, author, reached
from stead.commands.output import (
    SPEC_FIELDS,
    columns,
    for_scripts,
    formatted,
    parsed_spec,
    structured,
    unconfirmed_text,
)
from stead.errors import Invalid
from stead.language.resources import as_written, parse_resources
from stead.text import first_few, plural, printable, short_id

if TYPE_CHECKING:
    from stead.commands.naming import Names
    from stead.operate.desk import Desk
    from stead.operate.what_if import Difference, Fate, Stays

NEW = "new"
SHOWN_MAX = 20

KINDS = {
    "placed": "would be placed",
    "moved": "would run elsewhere",
    "stranded": "would lose its place and be pending",
    "blocked": "would be pending, but could be placed now",
    "refused": "would fail",
    "unplaced": "is new, and would be pending",
    "waiting": "would still be pending",
}

COMPARED = {
    "stays": "would keep running, but could not be placed there again",
    "harms": "would lose something, in total",
}

Command = TypeVar("Command", bound=Callable[..., Any])


def _node(name: str, text: str) -> Callable[[Command], Command]:
    return click.option(name, multiple=True, metavar="NODE", help=text, shell_complete=node_ids)


@click.command(short_help="Preview changes without applying them.")
@click.argument("files", nargs=-1, metavar="[FILE...]")
@click.option(
    "--add", multiple=True, metavar="NODE", help="Add a node: CPU=8,GPU=1 or {capacity: {CPU: 8}, labels: {...}}."
)
@_node("--add-like", "Add a node like this one.")
@click.option("--add-kind", multiple=True, metavar="KIND", help="Add a node of this kind of the autoscaler.")
@click.option(
    "--count", type=click.IntRange(1, 100_000), help="Number of nodes for each --add, --add-like and --add-kind."
)
@_node("--remove", "Remove this node.")
@_node("--drain", "Stop scheduling new work on it.")
@_node("--evict", "Stop scheduling new work on it, and evict running work.")
@_node("--uncordon", "Schedule work on it again.")
@click.option(
    "--taint", nargs=2, multiple=True, metavar="NODE TAINT", help="Set this taint: gpu-1 team=blue:NoSchedule."
)
@click.option("--untaint", nargs=2, multiple=True, metavar="NODE KEY", help="Remove this taint: gpu-1 team.")
@click.option("--label", nargs=2, multiple=True, metavar="NODE LABEL", help="Set or remove a label: gpu-1 disk=ssd.")
@click.option(
    "--spec", "--work", "specs", multiple=True, metavar="FILE", help="Work, groups and changes in YAML; - is stdin."
)
@click.option("--compare", metavar="FILE", help="Also try the changes in this file, and show both side by side.")
@click.option("--apply", "applies", is_flag=True, help="After the preview, make the changes, as one change.")
@click.option("--yes", "-y", "agreed", is_flag=True, help="With --apply: do not ask for confirmation.")
@formatted
@asked
def what_if(
    files: tuple[str, ...],
    specs: tuple[str, ...],
    compare: str | None,
    applies: bool,
    agreed: bool,
    form: str,
    where: Where,
    **options: Any,
) -> int:
    """Show what would happen to all work if nodes were added, removed, drained, tainted or labelled, or if there were
    more work. You can mix options and files; without --apply nothing is changed.

    NODE is an id, the beginning of one, an address, a name, or a selector such as zone=a for all nodes that match.

    \b
    Examples:
      stead what-if --drain gpu-1
      stead what-if --add-like gpu-1 --count 2 --work work.yaml
      stead what-if --add CPU=8,GPU=1 --taint zone=a repair=true:NoExecute
      stead what-if changes.yaml --compare others.yaml
      stead what-if --drain gpu-1 --label gpu-1 repair=true --apply
      stead what-if changes.yaml --scenario cluster.yaml -o json
    """
    _check_apply(applies, agreed, compare, where)
    document = _merged((*files, *specs))
    document["changes"] += _changes(**options)
    if not any(document.values()):
        raise click.UsageError("give a change, for example --drain NODE, --add CPU=8 or --spec FILE")
    others = None if compare is None else _merged((compare,))
    from stead.commands.naming import Names
    from stead.operate.what_if import difference_json

    with reached("what-if", where) as desk:
        if applies:
            return _apply(desk, _meant(desk, document), agreed, form)
        found = desk.what_if(_meant(desk, document))
        if others is not None and compare is not None:
            titles = _titles([*files, *specs], compare)
            _compared(dict(zip(titles, (found, desk.what_if(_meant(desk, others))), strict=True)), form)
        elif not structured(form, dict(difference_json(found))):
            click.echo(f"{difference_text(found, Names(desk))}\n\nNothing was changed.")
    return 0


def _meant(desk: Desk, document: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The document with nodes in place of selectors, and without empty fields."""
    changes = [_with_selectors(desk, change) for change in document["changes"]]
    return {name: value for name, value in {**document, "changes": changes}.items() if value}


# -- applying


def can_answer() -> bool:
    """Whether there is a terminal to ask on."""
    return sys.stdin is not None and sys.stdin.isatty()


def _check_apply(applies: bool, agreed: bool, compare: str | None, where: Where) -> None:
    if agreed and not applies:
        raise click.UsageError("--yes confirms a change; give --apply too")
    if not applies:
        return
    if compare is not None:
        raise click.UsageError("give --apply or --compare, not both")
    if where.scenario is not None:
        raise click.UsageError("--apply changes a cluster, not a scenario; leave out --scenario or --apply")
    if not agreed and not can_answer():
        raise click.UsageError("--apply asks for confirmation, but there is no terminal; give --yes")


def _apply(desk: Desk, document: Mapping[str, Any], agreed: bool, form: str) -> int:
    from stead.commands.naming import Names
    from stead.operate.applying import changes_in
    from stead.operate.desk import carried_json
    from stead.operate.what_if import difference_json

    changes = changes_in(document, lambda name: Target(name).on(desk)[0].id)
    found = desk.blast(*changes)
    names = Names(desk)
    click.echo(difference_text(found, names), err=for_scripts(form))
    if not agreed:
        nodes = printable(first_few(names.node(change.node) for change in changes))
        if not click.confirm(f"\nChange {nodes}?", err=True):
            click.echo("Nothing was changed.", err=True)
            return 1
    carried = desk.change(changes, author())
    if not structured(form, {**carried_json(carried), "difference": dict(difference_json(found))}):
        nodes = printable(first_few(view.title for view in carried.nodes))
        done = (
            f"Changed {nodes}: {names.spelled(carried.entry.changes)}. Undo it with: stead undo {carried.entry.number}"
        )
        click.echo("\n".join(["", printable(done), *unconfirmed_text(carried)]))
    return 0


# -- comparing


def _titles(files: Sequence[str], compared: str) -> tuple[str, str]:
    """The names of the files, or the paths if the names are equal."""
    first = [PurePath(path).name for path in files]
    pair = " + ".join(first) or "options", PurePath(compared).name
    return pair if pair[0] != pair[1] else (" + ".join(files), f"{compared} (compared)")


def _compared(found: Mapping[str, Difference], form: str) -> None:
    from stead.operate.what_if import difference_json

    parts = [{"name": name, "difference": dict(difference_json(each))} for name, each in found.items()]
    if structured(form, {"compared": parts}):
        return
    rows: list[Sequence[str]] = [("WHAT", *found)]
    rows.append(("nodes", *(str(each.nodes_after) for each in found.values())))
    for kind in KINDS:
        counts = [sum(fate.count for fate in getattr(each, kind)) for each in found.values()]
        if any(counts):
            rows.append((kind, *map(str, counts)))
    stays = [sum(len(stays.ids) for stays in each.stays) for each in found.values()]
    if any(stays):
        rows.append(("stays", *map(str, stays)))
    rows.append(("harms", *(str(each.harms) for each in found.values())))
    kinds = {row[0] for row in rows}
    legend = [f"{kind}: {words}" for kind, words in (KINDS | COMPARED).items() if kind in kinds]
    click.echo("\n".join([columns(rows, whole=True), "", *legend, "", "Nothing was changed."]))


# -- the document


def _merged(paths: Sequence[str]) -> dict[str, list[Any]]:
    """The content of all files together."""
    found: dict[str, list[Any]] = {name: [] for name in SPEC_FIELDS}
    for path in paths:
        for name, value in parsed_spec(path).items():
            found[name] += value if isinstance(value, list) else [value]
    return found


def _changes(
    add: Sequence[str],
    add_like: Sequence[str],
    add_kind: Sequence[str],
    count: int | None,
    remove: Sequence[str],
    drain: Sequence[str],
    evict: Sequence[str],
    uncordon: Sequence[str],
    taint: Sequence[tuple[str, str]],
    untaint: Sequence[tuple[str, str]],
    label: Sequence[tuple[str, str]],
) -> list[dict[str, Any]]:
    """The changes that the options describe."""
    changes = [*_added(add, add_like, add_kind, count), *_taints(taint), *_untaints(untaint), *_labels(label)]
    changes += [{verb: node} for verb, given in (("leave", remove), ("drain", drain)) for node in given]
    changes += [{"undrain": node} for node in uncordon]
    return changes + [{"drain": node, "evict": True} for node in evict]


def _added(
    described: Sequence[str], like: Sequence[str], kinds: Sequence[str], count: int | None
) -> Iterator[dict[str, Any]]:
    if count is not None and not described and not like and not kinds:
        raise click.UsageError("--count is the number of nodes to add; give --add, --add-like or --add-kind too")
    wanted = [*map(_described, described), *({"like": node} for node in like), *({"kind": kind} for kind in kinds)]
    for number, fields in enumerate(wanted, start=1):
        if count is not None:
            fields.setdefault("count", count)
        fields.setdefault("id", NEW if len(wanted) == 1 else f"{NEW}{number}")
        yield {"join": fields}


def _described(text: str) -> dict[str, Any]:
    """``CPU=8,GPU=1`` is a capacity; a map has the fields of a node in a scenario."""
    if text.lstrip().startswith("{"):
        from stead.specs.sections import load_yaml

        try:
            found = load_yaml(text)
        except Invalid as error:
            raise Invalid(f"--add {text!r}: {error}") from None
        if isinstance(found, dict) and all(isinstance(name, str) for name in found):
            return dict(found)
        raise Invalid(f"--add {text!r} must look like CPU=8,GPU=1 or {{capacity: {{CPU: 8}}, labels: {{zone: a}}}}")
    return {"capacity": as_written(parse_resources(text, "--add"))}


def _taints(given: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    from stead.language.arguments import parse_taints, taint_text

    for node, text in given:
        for taint in parse_taints(text):
            yield {"taint": node, "taints": taint_text(taint)}


def _untaints(given: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    from stead.language.arguments import effect_text, parse_taint_change

    for node, text in given:
        change = parse_taint_change(text.strip().removesuffix("-") + "-")
        found: dict[str, Any] = {"untaint": node, "key": change.key}
        yield found if change.effect is None else {**found, "effect": effect_text(change.effect)}


def _labels(given: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    for node, text in given:
        change = label_changes([part for part in text.split(",") if part], (), ())
        if not change.labels and not change.remove:
            raise Invalid(f"--label {node} {text!r} has no label; good ones are disk=ssd and disk-")
        found: dict[str, Any] = {"label": node, "labels": change.labels, "remove": list(change.remove)}
        yield {name: value for name, value in found.items() if value}


def _with_selectors(desk: Desk, change: Any) -> Any:
    """A change whose node is a selector becomes a change of all nodes that match."""
    from stead.operate.what_if import TRIED

    if not isinstance(change, dict):
        return change
    verb = next((verb for verb in TRIED if verb in change and verb != "join"), None)
    if verb is None or not isinstance(change[verb], str) or not _is_selector(change[verb]):
        return change
    from stead.language.selectors import parse_selector
    from stead.operate.snapshot import PAGE_MAX, Query

    chosen = parse_selector(change[verb])
    found = [view.id for view in desk.nodes(Query(selector=chosen, limit=PAGE_MAX)).items]
    if not found:
        raise Invalid(f"no node has {chosen}; `stead nodes` lists them with their labels")
    return {**change, verb: found}


def _is_selector(node: str) -> bool:
    return "=" in node or " " in node.strip()


# -- as text


def difference_text(found: Difference, names: Names) -> str:
    """Now and with the changes, side by side: what happens to work, and why work would be pending."""
    parts = [f"{plural(found.nodes_before, 'node')} now, {found.nodes_after:,} with the changes."]
    parts.append(_side_by_side(found, names, tuple(KINDS)) or "All work stays as it is.")
    parts += [_reasons(found, names, tuple(KINDS)), _staying(found, names)]
    return "\n\n".join(filter(None, parts))


def blast_text(found: Difference, names: Names) -> str:
    """What a change of nodes would do to work: what it strands, what it blocks, what could not be placed there
    again."""
    kinds = tuple(kind for kind in KINDS if kind != "waiting")
    parts = [_side_by_side(found, names, kinds), _reasons(found, names, kinds), _staying(found, names)]
    return "\n\n".join(filter(None, parts)) or "No work would be affected."


def _side_by_side(found: Difference, names: Names, kinds: Sequence[str]) -> str:
    rows = [("WHAT", "WORK", "NOW", "AFTER")]
    for kind in kinds:
        fates: Sequence[Fate] = getattr(found, kind)
        rows += [
            (kind, _who(fate), _place(fate.before, names), _place(fate.after, names)) for fate in fates[:SHOWN_MAX]
        ]
        if len(fates) > SHOWN_MAX:
            rest = sum(fate.count for fate in fates[SHOWN_MAX:])
            rows.append((kind, f"and {rest} more; use -o json to see all", "-", "-"))
    if len(rows) == 1:
        return ""
    legend = [f"{kind}: {KINDS[kind]}" for kind in kinds if getattr(found, kind)]
    return "\n".join([columns(rows, whole=True), "", *legend])


def _who(fate: Fate | Stays) -> str:
    """The ids, and their name unless they end with it, as those of pods do."""
    name = f" ({fate.name})" if fate.name and not fate.ids[0].endswith(f"/{fate.name}") else ""
    return f"{first_few(map(short_id, fate.ids), 3)}{name}"


def _place(node: str, names: Names) -> str:
    return names.node(node) or "-"


def _reasons(found: Difference, names: Names, kinds: Sequence[str]) -> str:
    """Why work would be pending, in the engine's words, each reason once."""
    reasons: dict[str, list[str]] = {}
    for kind in kinds:
        for fate in getattr(found, kind)[:SHOWN_MAX]:
            if fate.why:
                reasons.setdefault(fate.why, []).extend(fate.ids)
    lines = [f"{first_few(map(short_id, ids), 3)}: " + why.replace("\n", "\n  ") for why, ids in reasons.items()]
    return names.text("\n".join(lines))


def _staying(found: Difference, names: Names) -> str:
    lines = []
    for each in found.stays[:SHOWN_MAX]:
        verb = "keeps" if len(each.ids) == 1 else "keep"
        it = "it" if len(each.ids) == 1 else "them"
        others = f"{plural(each.nodes, 'other node')} could take {it}" if each.nodes else f"no node could take {it}"
        lines.append(
            f"{_who(each)} {verb} running on {_place(each.node, names)}, but could not be placed there again; {others}."
        )
    if len(found.stays) > SHOWN_MAX:
        lines.append(f"... and {len(found.stays) - SHOWN_MAX} more like this; use -o json to see all.")
    return "\n".join(lines)
