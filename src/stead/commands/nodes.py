"""`stead nodes`, `taint`, `label`, `drain`, `uncordon`.

Rule: a command that changes several nodes makes one change: it is checked on all nodes before the first is changed, and
it has one audit entry and one undo. It prints one sentence for each node. With --dry-run it only shows what would
happen to the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stead.commands.arguments import (
    Kubectl,
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
from stead.commands.completing import node_ids, node_words
from stead.commands.connecting import Where, addressed, asked, author, reached
from stead.commands.output import (
    ending,
    for_scripts,
    formatted,
    listed,
    structured,
    unconfirmed_text,
    watching,
)
from stead.language.labels import Labels
from stead.language.taints import Effect
from stead.language.times import duration_text
from stead.text import plural, printable

if TYPE_CHECKING:
    from stead.operate.changes import NodeChange
    from stead.operate.desk import Desk
    from stead.operate.snapshot import Query
    from stead.operate.views import NodeView

Command = TypeVar("Command", bound=Callable[..., Any])


def _on_a_node(command: Command) -> Command:
    """The options that name a node."""
    options = [
        click.option(
            "--node-id", metavar="ID", help="The node, by its id or the beginning of it.", shell_complete=node_ids
        ),
        click.option("--node-ip", metavar="IP", help="The node, by its address."),
        click.option("--all", "everyone", is_flag=True, help="Every node with the given address or name."),
        _selector,
        _dry_run,
        addressed,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _selector(command: Command) -> Command:
    text = "All nodes with these labels: 'zone in [a, b] and not spot'."
    return click.option("--selector", "-l", metavar="SELECTOR", help=text)(command)


def _dry_run(command: Command) -> Command:
    text = "Change nothing; show which work it would evict or block."
    return formatted(click.option("--dry-run", is_flag=True, help=text)(command))


@dataclass(frozen=True)
class Result:
    """What a command prints about a node that it has changed: stead's sentence, or kubectl's word for kubectl's
    form."""

    sentence: str
    word: str = ""  # tainted, untainted, modified, labeled, unlabeled
    ends: str = ""

    def text(self, name: str, view: NodeView, dry_run: bool) -> str:
        suffix = " (dry run)" if dry_run else ""
        if self.word:
            return f"node/{name} {self.word}{self.ends}{suffix}"
        return f"node {view.title}: {self.sentence}{suffix}"


@click.command(cls=Kubectl, short_help="Set or remove taints of running nodes.")
@click.argument("words", nargs=-1, metavar="[nodes NODE... TAINT...]", shell_complete=node_words)
@click.option("--append", multiple=True, metavar="TAINTS", help="Set these taints; replace those with the same key.")
@click.option("--apend", multiple=True, hidden=True)
@click.option(
    "--remove",
    "--delete",
    multiple=True,
    metavar="TAINTS",
    help="Remove these taints; with a value, only if it is equal.",
)
@click.option(
    "--effect",
    metavar="EFFECT",
    callback=effect_option,
    help="Effect: NoSchedule (default), PreferNoSchedule, NoExecute.",
)
@click.option("--overwrite", is_flag=True, help="Allow kubectl's form to change the value of a taint.")
@click.option("--for", "for_s", metavar="TIME", callback=duration, help="Remove them after this time: 90s, 5m, 2h.")
@click.option("--until-job", metavar="ID", default="", help="Remove them when this Ray job ends.")
@click.option("--owner", metavar="NAME", default="", help="Their owner; `stead nodes` shows it.")
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
    where: Where,
) -> int:
    """Set and remove taints. New work is scheduled on the node only if it tolerates its taints.

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
    wanted = taints_set(changes)
    removals = tuple(Removal(each.key, each.value, each.effect) for each in changes if each.removes)
    if not changes:
        raise click.UsageError("name a taint to set or to remove, for example gpu_node=true:NoSchedule or gpu_node-")
    if not wanted and (for_s is not None or until_job or owner):
        raise click.UsageError("--for, --until-job and --owner are for taints that you set, and you set none")
    kubectl = bool(rest)
    change = NodeChange(
        "",
        tuple(wanted),
        removals,
        for_s=for_s,
        until_job=until_job,
        owner=owner,
        overwrite=overwrite or not kubectl,
    )
    change.check()
    with reached("taint", where) as desk:
        views = targets.on(desk)
        gone = {view.id: [each for each in view.taints if any(c.matches(each) for c in removals)] for view in views}
        made = [replace(change, node=view.id) for view in views]
        ends = ending(None if for_s is None else f"for {duration_text(for_s)}", until_job, owner)
        word = "modified" if overwrite or (wanted and removals) else "tainted" if wanted else "untainted"

        def result(view: NodeView) -> Result:
            sentence = _sentence(
                _listed("tainted", wanted) + ends if wanted else "", _listed("no longer tainted", gone[view.id])
            )
            return Result(sentence, word if kubectl else "", ends)

        return _carry_out(desk, made, views, targets.given_name, result, dry_run, form)


@click.command(cls=Kubectl, short_help="Set or remove labels of running nodes.")
@click.argument("words", nargs=-1, metavar="[nodes NODE... LABEL...]", shell_complete=node_words)
@click.option("--append", multiple=True, metavar="LABELS", help="Set these labels; replace those with the same key.")
@click.option("--apend", multiple=True, hidden=True)
@click.option(
    "--remove", "--delete", multiple=True, metavar="KEYS", help="Remove these keys; of a JSON map, only equal labels."
)
@click.option("--overwrite", is_flag=True, help="Allow kubectl's form to change the value of a label.")
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
    where: Where,
) -> int:
    """Set and remove labels. They override those that the node was started with; pending work is tried again.

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
    change = NodeChange(
        "",
        labels=Labels(changes.labels),
        unlabels=tuple(changes.remove),
        unlabel_values=Labels({key: value for key, value in changes.remove.items() if value is not None}),
        overwrite=overwrite or not kubectl,
    )
    change.check()
    with reached("label", where) as desk:
        views = targets.on(desk)
        made = [replace(change, node=view.id) for view in views]
        wanted = [f"{key}={value}" for key, value in changes.labels.items()]
        sentence = _sentence(_listed("labelled", wanted), _listed("no longer labelled", list(changes.remove)))

        def result(view: NodeView) -> Result:
            has_all = all(view.labels.get(key) == value for key, value in changes.labels.items())
            word = ("unlabeled" if changes.remove else "not labeled") if has_all else "labeled"
            return Result(sentence, word if kubectl else "")

        return _carry_out(desk, made, views, targets.given_name, result, dry_run, form)


@click.command(cls=Kubectl, short_help="Stop placing new work on a node.")
@click.argument("names", nargs=-1, metavar="[NODE...]", shell_complete=node_ids)
@click.option("--evict", is_flag=True, help="Move running work to other nodes; it is pending until one has room.")
@click.option("--rate", metavar="RATE", callback=rate, help="Maximum rate of evictions: 10/s, 30/m.")
@click.option("--wait", is_flag=True, help="Return when the node is empty.")
@click.option("--timeout", metavar="TIME", callback=duration, help="Stop waiting after this time: 90s, 10m, 2h.")
@click.option("--all", "everyone", is_flag=True, help="Every node with the given address or name.")
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
    where: Where,
) -> int:
    """Stop scheduling new work on each NODE (an id, the beginning of one, an address or a name) until `stead uncordon`.

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
    named = targets([Target(name, everyone=everyone) for name in names], selector)
    with reached("drain", where) as desk:
        views = named.on(desk)
        made = [NodeChange(view.id, draining=True, evict=evict, rate=rate) for view in views]
        result = Result("takes no new work" + (", and running work is evicted" if evict else ""))
        waited = Waiting(timeout) if wait and not dry_run else None
        return _carry_out(desk, made, views, named.given_name, lambda _: result, dry_run, form, waited)


@dataclass(frozen=True)
class Waiting:
    """Waits until all drained nodes are empty, with one timeout for all."""

    timeout_s: float | None

    def for_all(self, desk: Desk, views: Sequence[NodeView], form: str) -> dict[str, int]:
        """How many pieces of work are left, by node."""
        from stead.operate.draining import left_on

        end = None if self.timeout_s is None else time.monotonic() + self.timeout_s
        left = {}
        for view in views:
            left[view.id] = left_on(desk, view.id, None if end is None else max(0.0, end - time.monotonic()))
            if not for_scripts(form):
                text = f"{plural(left[view.id], 'piece')} of work left" if left[view.id] else "empty"
                click.echo(printable(f"node {view.title}: {text}"))
        return left


@click.command(cls=Kubectl, short_help="Let a drained node take new work again.")
@click.argument("names", nargs=-1, metavar="[NODE...]", shell_complete=node_ids)
@click.option("--all", "everyone", is_flag=True, help="Every node with the given address or name.")
@_selector
@_dry_run
@addressed
def uncordon(
    names: tuple[str, ...], everyone: bool, selector: str | None, dry_run: bool, form: str, where: Where
) -> int:
    """Schedule work on each NODE (an id, the beginning of one, an address or a name) again.

    \b
    Examples:
      stead uncordon 1a2b3c4d5e6f
      stead uncordon -l zone=a
    """
    from stead.operate.changes import NodeChange

    named = targets([Target(name, everyone=everyone) for name in names], selector)
    with reached("uncordon", where) as desk:
        views = named.on(desk)
        made = [NodeChange(view.id, draining=False) for view in views]
        return _carry_out(desk, made, views, named.given_name, lambda _: Result("takes work again"), dry_run, form)


@click.command(short_help="List nodes with labels, taints and free resources.")
@click.argument("names", nargs=-1, metavar="[NODE...]", shell_complete=node_ids)
@click.option(
    "--selector", "-l", metavar="SELECTOR", help="Only nodes with these labels: 'zone in [a, b] and not spot'."
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
    """List the live nodes with their labels, their taints (with owner and end), and their free and total resources.
    Give NODEs to list only those: by an id, the beginning of one, an address or a name.

    \b
    Examples:
      stead nodes
      stead nodes gpu-1 gpu-2 -o wide
      stead nodes --selector 'zone in [a, b] and not spot' --sort-by -cpu
      stead nodes --filter draining=true -o name
    """
    from stead.language.selectors import parse_selector
    from stead.operate.snapshot import Query

    if names and (selector is not None or filters):
        raise click.UsageError("name nodes, or choose them with --selector and --filter, not both")
    chosen = None if selector is None else parse_selector(selector)
    query = Query(filters, chosen, 0, limit)
    with reached("nodes", where) as desk:
        watching(watch, lambda: _listing(desk, query, names, order, detail, form))
    return 0


def _listing(desk: Desk, query: Query, names: Sequence[str], order: str | None, detail: bool, form: str) -> str:
    from stead.commands.lists import page_text
    from stead.commands.naming import Names, for_scripts
    from stead.commands.tables import node_listing
    from stead.operate.views import Page

    def fetch(query: Query) -> Page[NodeView]:
        if not names:
            return desk.nodes(query)
        found = Targets(tuple(Target(name, everyone=True) for name in names)).on(desk)
        return Page(tuple(found), len(found))

    called: dict[str, str] = {}
    listing = node_listing(Names(desk), lambda view: called[view.id])
    page = listing.page(fetch, query, order)
    if form == "name":
        called.update(for_scripts(all_nodes(desk)))
    nothing = "no nodes" if query.selector is None else f"no node has {query.selector}"
    return page_text(listing, page, form, detail, nothing)


def _carry_out(
    desk: Desk,
    changes: Sequence[NodeChange],
    views: Sequence[NodeView],
    name: str,
    result_of: Callable[[NodeView], Result],
    dry_run: bool,
    form: str,
    waiting: Waiting | None = None,
) -> int:
    """Make or preview the changes. Returns 1 if it waited for empty nodes and some are not empty."""
    from stead.commands.naming import Names
    from stead.commands.what_if import blast_text
    from stead.operate.desk import carried_json
    from stead.operate.what_if import difference_json

    lines = [result_of(view).text(name if len(views) == 1 and name else view.title, view, dry_run) for view in views]
    if dry_run:
        found = desk.blast(*changes)
        nodes = {"node": views[0].id} if len(views) == 1 else {"nodes": [view.id for view in views]}
        result = {**nodes, "dry_run": True, "difference": difference_json(found)}
        lines.append(blast_text(found, Names(desk)))
    else:
        carried = desk.change(changes, author())
        result = carried_json(carried)
        lines += unconfirmed_text(carried)
    if not for_scripts(form):
        click.echo(printable(Names(desk).spelled("\n".join(lines)), keep="\n"))
    left = waiting.for_all(desk, views, form) if waiting is not None else {}
    if left:
        result["left"] = left[views[0].id] if len(views) == 1 else left
    structured(form, [result])
    return 1 if any(left.values()) else 0


def _sentence(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _listed(what: str, things: Sequence[object]) -> str:
    return f"{what} {', '.join(map(str, things))}" if things else ""
