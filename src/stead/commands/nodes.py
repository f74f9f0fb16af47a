"""`stead nodes`, `taint`, `label`, `drain`, `uncordon`.

Rule: a change of several nodes is one change: checked on all of them before the first is changed, with one entry of the
audit and one undo. One sentence for each node says what now holds there. With --dry-run the same is tried, and what it
would do to work is shown instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stead.commands.completing import node_ids, node_words
from stead.commands.output import (
    ending,
    for_scripts,
    formatted,
    listed,
    pairs,
    shown_labels,
    structured,
    time_text,
    unconfirmed_text,
    watching,
)
from stead.commands.reach import Where, addressed, asked, author, reached
from stead.commands.words import (
    Kubectl,
    LabelChanges,
    Target,
    Targets,
    all_nodes,
    duration,
    effect_option,
    label_changes,
    rate,
    taint_changes,
    taints_set,
    targets,
    targets_of,
)
from stead.errors import Invalid, printable
from stead.labelling import Labels
from stead.taints import Effect, Taint

if TYPE_CHECKING:
    from stead.arguments import TaintChange
    from stead.operate.changes import NodeChange
    from stead.operate.desk import Desk
    from stead.operate.snapshot import Query
    from stead.operate.views import NodeView

Command = TypeVar("Command", bound=Callable[..., Any])


def _on_a_node(command: Command) -> Command:
    """The options by which both forms name a node."""
    options = [
        click.option(
            "--node-id", metavar="ID", help="The node, by its id or the beginning of it.", shell_complete=node_ids
        ),
        click.option("--node-ip", metavar="IP", help="The node, by its address."),
        click.option("--all", "everyone", is_flag=True, help="All nodes at that address, where there are several."),
        _selector,
        _dry_run,
        addressed,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _selector(command: Command) -> Command:
    said = "All nodes with these labels: 'zone in [a, b] and not spot'."
    return click.option("--selector", "-l", metavar="SELECTOR", help=said)(command)


def _dry_run(command: Command) -> Command:
    said = "Change nothing; show whom it would strand, and what waiting work it would block."
    return formatted(click.option("--dry-run", is_flag=True, help=said)(command))


@dataclass(frozen=True)
class Told:
    """What a command says of a node that it has changed: in stead's words, and for kubectl's form in kubectl's."""

    sentence: str
    word: str = ""  # tainted, untainted, modified, labeled, unlabeled
    ends: str = ""

    def of(self, said: str, view: NodeView, dry_run: bool) -> str:
        if self.word:
            return f"node/{said} {self.word}{self.ends}{' (dry run)' if dry_run else ''}"
        return f"node {view.title}: {'would be so: ' if dry_run else ''}{self.sentence}"


@click.command(cls=Kubectl, short_help="Set and remove taints of a running node.")
@click.argument("words", nargs=-1, metavar="[nodes NODE... TAINT...]", shell_complete=node_words)
@click.option("--append", multiple=True, metavar="TAINTS", help="Set these taints; those of the same key are replaced.")
@click.option("--apend", multiple=True, hidden=True)
@click.option(
    "--remove", "--delete", multiple=True, metavar="TAINTS", help="Remove these; with a value, only if it is equal."
)
@click.option(
    "--effect", metavar="EFFECT", callback=effect_option, help="NoSchedule (default), PreferNoSchedule, NoExecute."
)
@click.option("--overwrite", is_flag=True, help="Let kubectl's form change the value of a taint.")
@click.option("--for", "for_s", metavar="TIME", callback=duration, help="Remove them after this time: 90s, 5m, 2h.")
@click.option("--until-job", metavar="ID", default="", help="Remove them when this job of Ray's ends.")
@click.option("--owner", metavar="NAME", default="", help="Whose they are; shown by `stead nodes`.")
@_on_a_node
def taint(
    words: tuple[str, ...],
    append: tuple[str, ...],
    apend: tuple[str, ...],
    remove: tuple[str, ...],
    effect: Effect | None,
    overwrite: bool,
    for_s: float | None,
    until_job: str,
    owner: str,
    node_id: str | None,
    node_ip: str | None,
    everyone: bool,
    selector: str | None,
    dry_run: bool,
    form: str,
    address: str | None,
) -> int:
    """Set and remove taints: work that does not tolerate them keeps off the node from then on.

    \b
    Examples:
      stead taint --node-id 1a2b3c4d5e6f --append '{"gpu_node": "true"}'
      stead taint --node-ip 10.0.0.7 --remove '{"gpu_node": "true"}'
      stead taint nodes 1a2b3c4d5e6f gpu_node=true:NoSchedule old-
      stead taint nodes 1a2b3c4d5e6f team=blue:NoSchedule --owner blue --for 2h
      stead taint nodes 1a2b3c4d5e6f team=blue:NoExecute --dry-run
    """
    from stead.operate.changes import NodeChange, Removal

    targets, rest = targets_of(words, node_id, node_ip, everyone, selector, bool(append or apend or remove))
    changes = taint_changes(rest, (*append, *apend), remove, effect)
    wanted, removals = taints_set(changes), [change for change in changes if change.removes]
    if not changes:
        raise click.UsageError("name a taint to set or to remove, for example gpu_node=true:NoSchedule or gpu_node-")
    if not wanted and (for_s is not None or until_job or owner):
        raise click.UsageError("--for, --until-job and --owner are for taints that are set, and none is")
    kubectl = bool(rest)
    with reached("taint", address) as desk:
        views = targets.on(desk)
        for view in views:
            _check_taints(view, wanted, removals, may_change=overwrite or not kubectl)
        gone = {view.id: [each for each in view.taints if any(c.matches(each) for c in removals)] for view in views}
        made = [
            NodeChange(
                view.id,
                tuple(wanted),
                tuple(Removal(each.key, each.value, each.effect) for each in removals),
                for_s=for_s,
                until_job=until_job,
                owner=owner,
                overwrite=overwrite or not kubectl,
            )
            for view in views
        ]
        ends = ending(None if for_s is None else f"for {time_text(for_s)}", until_job, owner)
        word = "modified" if overwrite or (wanted and removals) else "tainted" if wanted else "untainted"

        def told(view: NodeView) -> Told:
            sentence = _sentence(
                _listed("tainted", wanted) + ends if wanted else "", _listed("no longer tainted", gone[view.id])
            )
            return Told(sentence, word if kubectl else "", ends)

        return _carry_out(desk, made, views, targets.said, told, dry_run, form)


def _check_taints(view: NodeView, wanted: Sequence[Taint], removals: Sequence[TaintChange], may_change: bool) -> None:
    for change in removals:
        if not any(change.matches(taint) for taint in view.taints):
            said = str(change).removesuffix("-")
            has = ", ".join(map(str, view.taints)) or "no taints"
            raise Invalid(f"node {view.title} has no taint {said}; it has {has}")
    for taint in () if may_change else wanted:
        for there in view.taints:
            if (there.key, there.effect) == (taint.key, taint.effect) and there.value != taint.value:
                raise Invalid(f"node {view.title} is tainted {there}; to make it {taint}, give --overwrite")


@click.command(cls=Kubectl, short_help="Set and remove labels of a running node.")
@click.argument("words", nargs=-1, metavar="[nodes NODE... LABEL...]", shell_complete=node_words)
@click.option("--append", multiple=True, metavar="LABELS", help="Set these labels; those of the same key are replaced.")
@click.option("--apend", multiple=True, hidden=True)
@click.option("--remove", "--delete", multiple=True, metavar="KEYS", help="Remove these; of a JSON map, if equal.")
@click.option("--overwrite", is_flag=True, help="Let kubectl's form change the value of a label.")
@_on_a_node
def label(
    words: tuple[str, ...],
    append: tuple[str, ...],
    apend: tuple[str, ...],
    remove: tuple[str, ...],
    overwrite: bool,
    node_id: str | None,
    node_ip: str | None,
    everyone: bool,
    selector: str | None,
    dry_run: bool,
    form: str,
    address: str | None,
) -> int:
    """Set and remove labels; they override those the node was started with, and waiting work reacts.

    \b
    Examples:
      stead label nodes 1a2b3c4d5e6f disk=ssd old-
      stead label --node-id 1a2b3c4d5e6f --append '{"disk": "ssd"}' --remove old
    """
    from stead.operate.changes import NodeChange

    targets, rest = targets_of(words, node_id, node_ip, everyone, selector, bool(append or apend or remove))
    changes = label_changes(rest, (*append, *apend), remove)
    if not changes.labels and not changes.remove:
        raise click.UsageError("name a label to set or to remove, for example disk=ssd or disk-")
    kubectl = bool(rest)
    with reached("label", address) as desk:
        views = targets.on(desk)
        for view in views:
            _check_labels(view, changes, may_change=overwrite or not kubectl)
        made = [
            NodeChange(
                view.id,
                labels=Labels(changes.labels),
                unlabels=tuple(changes.remove),
                overwrite=overwrite or not kubectl,
            )
            for view in views
        ]
        wanted = [f"{key}={value}" for key, value in changes.labels.items()]
        sentence = _sentence(_listed("labelled", wanted), _listed("no longer labelled", list(changes.remove)))

        def told(view: NodeView) -> Told:
            has_all = all(view.labels.get(key) == value for key, value in changes.labels.items())
            word = ("unlabeled" if changes.remove else "not labeled") if has_all else "labeled"
            return Told(sentence, word if kubectl else "")

        return _carry_out(desk, made, views, targets.said, told, dry_run, form)


def _check_labels(view: NodeView, changes: LabelChanges, may_change: bool) -> None:
    for key, value in changes.remove.items():
        if key not in view.labels or value not in (None, view.labels[key]):
            said = key if value is None else f"{key}={value}"
            has = pairs(shown_labels(view)) or "no labels"
            raise Invalid(f"node {view.title} has no label {said}; it has {has}")
    for key, value in () if may_change else changes.labels.items():
        if view.labels.get(key, value) != value:
            there = f"{key}={view.labels[key]}"
            raise Invalid(f"node {view.title} is labelled {there}; to make it {key}={value}, give --overwrite")


@click.command(cls=Kubectl, short_help="Let a node take no new work.")
@click.argument("names", nargs=-1, metavar="[NODE...]", shell_complete=node_ids)
@click.option("--evict", is_flag=True, help="Move what runs there to other nodes; it is pending until one has room.")
@click.option("--rate", metavar="RATE", callback=rate, help="Evict no more work than this: 10/s, 30/m.")
@click.option("--wait", is_flag=True, help="Return when the node is empty.")
@click.option("--timeout", metavar="TIME", callback=duration, help="Stop waiting after this time: 90s, 10m, 2h.")
@click.option("--all", "everyone", is_flag=True, help="All nodes at that address, where there are several.")
@_selector
@_dry_run
@addressed
def drain(
    names: tuple[str, ...],
    evict: bool,
    rate: float,
    wait: bool,
    timeout: float | None,
    everyone: bool,
    selector: str | None,
    dry_run: bool,
    form: str,
    address: str | None,
) -> int:
    """Let every NODE (an id, the beginning of one, an address or a name) take no new work, until `stead uncordon`.

    \b
    Examples:
      stead drain 1a2b3c4d5e6f
      stead drain gpu-1 gpu-2
      stead drain -l zone=a --dry-run
      stead drain 1a2b3c4d5e6f --evict --dry-run
      stead drain 1a2b3c4d5e6f --evict --rate 10/s --wait --timeout 10m
    """
    from stead.operate.changes import NodeChange

    if rate and not evict:
        raise click.UsageError("--rate limits evictions; give --evict too")
    if timeout is not None and not wait:
        raise click.UsageError("--timeout limits the wait; give --wait too")
    named = targets([Target(said, everyone=everyone) for said in names], selector)
    with reached("drain", address) as desk:
        views = named.on(desk)
        made = [NodeChange(view.id, draining=True, evict=evict, rate=rate) for view in views]
        told = Told("takes no new work" + (", and what runs there is evicted" if evict else ""))
        waited = Waiting(timeout) if wait and not dry_run else None
        return _carry_out(desk, made, views, named.said, lambda _: told, dry_run, form, waited)


@dataclass(frozen=True)
class Waiting:
    """Waits until drained nodes are empty, all of them within one time."""

    timeout_s: float | None

    def for_all(self, desk: Desk, views: Sequence[NodeView], form: str) -> dict[str, int]:
        """By node, how many pieces of work are left on it."""
        from stead.operate.draining import left_on

        end = None if self.timeout_s is None else time.monotonic() + self.timeout_s
        left = {}
        for view in views:
            left[view.id] = left_on(desk, view.id, None if end is None else max(0.0, end - time.monotonic()))
            if not for_scripts(form):
                said = f"{left[view.id]} pieces of work are left" if left[view.id] else "empty"
                click.echo(printable(f"node {view.title}: {said}"))
        return left


@click.command(cls=Kubectl, short_help="Let a drained node take work again.")
@click.argument("names", nargs=-1, metavar="[NODE...]", shell_complete=node_ids)
@click.option("--all", "everyone", is_flag=True, help="All nodes at that address, where there are several.")
@_selector
@_dry_run
@addressed
def uncordon(
    names: tuple[str, ...], everyone: bool, selector: str | None, dry_run: bool, form: str, address: str | None
) -> int:
    """Let every NODE (an id, the beginning of one, an address or a name) take work again.

    \b
    Examples:
      stead uncordon 1a2b3c4d5e6f
      stead uncordon -l zone=a
    """
    from stead.operate.changes import NodeChange

    named = targets([Target(said, everyone=everyone) for said in names], selector)
    with reached("uncordon", address) as desk:
        views = named.on(desk)
        made = [NodeChange(view.id, draining=False) for view in views]
        return _carry_out(desk, made, views, named.said, lambda _: Told("takes work again"), dry_run, form)


@click.command(short_help="List the nodes: labels, taints, what is free.")
@click.argument("names", nargs=-1, metavar="[NODE...]", shell_complete=node_ids)
@click.option(
    "--selector", "-l", metavar="SELECTOR", help="Only those with these labels: 'zone in [a, b] and not spot'."
)
@listed
@asked
def nodes(
    names: tuple[str, ...],
    selector: str | None,
    filters: tuple[str, ...],
    limit: int,
    detail: bool,
    watch: bool,
    order: str | None,
    form: str,
    where: Where,
) -> int:
    """List the live nodes with their labels, their taints (whose, until when), and what is free of what they have; or
    only every NODE that is named: by an id, the beginning of one, an address or a name.

    \b
    Examples:
      stead nodes
      stead nodes gpu-1 gpu-2 -o wide
      stead nodes --selector 'zone in [a, b] and not spot' --sort-by -cpu
      stead nodes --filter draining=true -o name
    """
    from stead.operate.snapshot import Query
    from stead.selectors import parse_selector

    if names and (selector is not None or filters):
        raise click.UsageError("name nodes, or choose them by --selector and --filter, not both")
    chosen = None if selector is None else parse_selector(selector)
    query = Query(filters, chosen, 0, limit)
    with reached("nodes", where) as desk:
        watching(watch, lambda: _listing(desk, query, names, order, detail, form))
    return 0


def _listing(desk: Desk, query: Query, names: Sequence[str], order: str | None, detail: bool, form: str) -> str:
    from stead.commands.lists import page_text
    from stead.commands.naming import Names, unique_names
    from stead.commands.tables import node_listing
    from stead.operate.views import Page

    def fetch(query: Query) -> Page[NodeView]:
        if not names:
            return desk.nodes(query)
        found = Targets(tuple(Target(said, everyone=True) for said in names)).on(desk)
        return Page(tuple(found), len(found))

    called: dict[str, str] = {}
    listing = node_listing(Names(desk).now, lambda view: called[view.id])
    page = listing.page(fetch, query, order)
    if form == "name":
        called.update(unique_names(page.items, all_nodes(desk)))
    nothing = "no node" if query.selector is None else f"no node has {query.selector}"
    return page_text(listing, page, form, detail, nothing)


def _carry_out(
    desk: Desk,
    changes: Sequence[NodeChange],
    views: Sequence[NodeView],
    said: str,
    told: Callable[[NodeView], Told],
    dry_run: bool,
    form: str,
    waiting: Waiting | None = None,
) -> int:
    """Make the changes, or try them. Returns 1 if it was waited for empty nodes, and some are not."""
    from stead.commands.trying import blast_text
    from stead.operate.desk import carried_json
    from stead.operate.what_if import difference_json

    lines = [told(view).of(said if len(views) == 1 and said else view.title, view, dry_run) for view in views]
    if dry_run:
        found = desk.blast(*changes)
        nodes = {"node": views[0].id} if len(views) == 1 else {"nodes": [view.id for view in views]}
        result = {**nodes, "dry_run": True, "difference": difference_json(found)}
        lines.append(blast_text(found, {each.id: each.title for each in all_nodes(desk)}))
    else:
        carried = desk.change(changes, author())
        result = carried_json(carried)
        lines += unconfirmed_text(carried)
    if not for_scripts(form):
        click.echo(printable("\n".join(lines), keep="\n"))
    left = waiting.for_all(desk, views, form) if waiting is not None else {}
    if left:
        result["left"] = left[views[0].id] if len(views) == 1 else left
    structured(form, [result])
    return 1 if any(left.values()) else 0


def _sentence(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _listed(what: str, things: Sequence[object]) -> str:
    return f"{what} {', '.join(map(str, things))}" if things else ""
