"""The commands for a Ray cluster that runs: `stead taint`, `label`, `drain`, `uncordon`, `nodes`, `events`.

Rule: a command understands its words before it attaches, so that a slip costs nothing; then it calls what a program
would call (`stead.taint` and its kin) and prints one sentence for each node of what now holds there. Everything
is checked on every node before the first one is changed.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stead.arguments import (
    TaintChange,
    effect_text,
    labels_of,
    parse_effect,
    parse_labels,
    parse_taint_change,
    parse_taints,
)
from stead.errors import Invalid
from stead.labelling import IDENTITY_KEYS, check_key
from stead.taints import Effect, Taint

if TYPE_CHECKING:
    from stead.ray.answers import NodeView
    from stead.ray.book import Event

SHORT = 12
"""So much of a node's id is shown; six characters of it or more name the node again."""

CONNECT_SECONDS_MAX = 5.0

_WHOLE_ID = re.compile(r"\b[0-9a-f]{56}\b")
_NODES = ("nodes", "node", "no")

Command = TypeVar("Command", bound=Callable[..., Any])


# -- what the words of a command name


@dataclass(frozen=True)
class Target:
    """The node that a command names: by an option, or by a word that may be an id, an ip or a name."""

    said: str
    by: str = ""  # "node_id", "node_ip", or "" for whatever fits
    everyone: bool = False

    def among(self, views: Sequence[NodeView]) -> list[NodeView]:
        """The nodes that are meant: one, or with `everyone` all that answer to it."""
        found = [view for view in views if self._is_id_of(view)]
        if not found and self.by != "node_id":
            names_too = self.by == ""
            found = [view for view in views if self.said == view.ip or (names_too and self.said == view.name)]
        if len(found) == 1 or (found and self.everyone):
            return found
        if found:
            ids = ", ".join(view.id[:SHORT] for view in found)
            raise Invalid(f"{self.said!r} is {len(found)} nodes: {ids}; give the id of one, or --all")
        example = f", for example {views[0].id[:SHORT]!r}" if views else ""
        raise Invalid(f"there is no node {self.said!r} in this cluster; `stead nodes` lists them{example}")

    def _is_id_of(self, view: NodeView) -> bool:
        if self.by == "node_ip":
            return False
        return self.said == view.id or (len(self.said) >= 6 and view.id.startswith(self.said))


def target_of(words: Sequence[str], node_id: str | None, node_ip: str | None, everyone: bool) -> Target:
    """The node of the seeds' form (``--node-id X``) or of kubectl's (``nodes X ...``)."""
    given = [(said, by) for said, by in ((node_id, "node_id"), (node_ip, "node_ip")) if said is not None]
    if words and words[0] not in _NODES:
        raise click.UsageError(f"{words[0]!r} stands where 'nodes' was expected, as in: nodes NODE {words[-1]}")
    if words and len(words) == 1:
        raise click.UsageError("name a node after 'nodes'; `stead nodes` lists them")
    if words:
        given.append((words[1], ""))
    if len(given) != 1:
        raise click.UsageError("name one node, by --node-id, by --node-ip, or as in: nodes NODE")
    return Target(*given[0], everyone)


def taint_changes(
    words: Sequence[str], append: Sequence[str], remove: Sequence[str], effect: Effect | None
) -> list[TaintChange]:
    """What a `stead taint` sets and removes, from kubectl's words and the seeds' options."""
    changes = [parse_taint_change(_with_effect(word, effect)) for word in words]
    for text in append:
        if text.lstrip().startswith("{"):
            taints = [replace(taint, effect=effect or taint.effect) for taint in parse_taints(text)]
        else:
            taints = list(parse_taints(",".join(_with_effect(part, effect) for part in _parts(text))))
        changes += [TaintChange(taint.key, taint.value, taint.effect) for taint in taints]
    for text in remove:
        if text.lstrip().startswith("{"):
            changes += [TaintChange(taint.key, taint.value, effect, removes=True) for taint in parse_taints(text)]
        else:
            parts = (part.removesuffix("-") + "-" for part in _parts(text))
            changes += [parse_taint_change(_with_effect(part, effect)) for part in parts]
    values: dict[tuple[str, Effect], str] = {}
    for taint in _set(changes):
        if values.setdefault((taint.key, taint.effect), taint.value) != taint.value:
            raise Invalid(f"taint {taint.key!r} is given twice; give it once, for example '{taint}'")
        if any(gone.removes and gone.key == taint.key and gone.effect in (None, taint.effect) for gone in changes):
            raise Invalid(f"taint {taint} is set and removed at once; say what is to hold, for example '{taint.key}-'")
    return changes


def _with_effect(word: str, effect: Effect | None) -> str:
    if effect is None:
        return word
    if ":" in word:
        raise Invalid(f"the effect of taint {word!r} is given twice; leave out --effect or {word[word.index(':') :]!r}")
    removes = word.endswith("-")
    return f"{word.removesuffix('-')}:{effect_text(effect)}{'-' if removes else ''}"


def _parts(text: str) -> list[str]:
    return [part for part in re.split(r"[,\s]+", text) if part]


def _set(changes: Sequence[TaintChange]) -> list[Taint]:
    return [change.taint for change in changes if change.taint is not None]


@dataclass(frozen=True)
class LabelChanges:
    """Labels to set, and those to remove: by key, or only where the value is equal."""

    labels: dict[str, str]
    remove: dict[str, str | None]


def label_changes(words: Sequence[str], append: Sequence[str], remove: Sequence[str]) -> LabelChanges:
    """What a `stead label` sets and removes, from kubectl's words and the seeds' options."""
    wanted: dict[str, str] = {}
    gone: dict[str, str | None] = {}
    keys = [word.removesuffix("-") for word in words if word.endswith("-") and "=" not in word]
    for text in [*append, *(word for word in words if not (word.endswith("-") and "=" not in word))]:
        for key, value in parse_labels(text).items():
            if wanted.setdefault(key, value) != value:
                raise Invalid(f"label {key!r} is given twice; give it once, for example '{key}={value}'")
    for text in remove:
        if text.lstrip().startswith("{"):
            gone.update(parse_labels(text))
        else:
            keys += [part.removesuffix("-") for part in _parts(text)]
    gone.update({check_key(key): None for key in keys})
    labels_of(dict.fromkeys(gone, ""))  # those that stead sets by itself stay
    for key in wanted.keys() & gone.keys():
        raise Invalid(f"label {key!r} is set and removed at once; say what is to hold, for example '{key}-'")
    return LabelChanges(wanted, gone)


def _duration(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """A length of time: ``90``, ``90s``, ``5m``, ``2h``."""
    from stead.sim.scenario import seconds

    if value is None:
        return None
    number: float | str = value
    with suppress(ValueError):
        number = float(value)
    try:
        if found := seconds(number):
            return found
    except Invalid:
        pass
    raise click.BadParameter(f"{value!r} is no length of time; good ones are '90s', '5m' and '2h'", context, option)


def _effect(context: click.Context, option: click.Parameter, value: str | None) -> Effect | None:
    try:
        return None if value is None else parse_effect(value)
    except Invalid as error:
        raise click.BadParameter(str(error), context, option) from None


# -- attaching


@contextmanager
def _attached(what: str, address: str | None) -> Iterator[Any]:
    """The functions of `stead.ray.api`, connected to a cluster for the length of a block."""
    from stead.ray.start import require_ray

    require_ray(f"stead {what}")
    import ray

    from stead.ray import api

    was_attached = ray.is_initialized()
    if not was_attached:
        _check_address(address or os.environ.get("RAY_ADDRESS", ""))
        api.attach(address)
    try:
        yield api
    except ray.exceptions.RayError as error:
        first = str(error).strip().partition("\n")[0]
        raise Invalid(f"the controller of the cluster did not answer ({first}); try again") from None
    finally:
        if not was_attached:
            ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse an address at which nobody listens at once; Ray would try for minutes, with warnings."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS_MAX).close()
    except (OSError, OverflowError):
        raise Invalid(f"there is no Ray cluster at {address} to attach to; start one by: stead start --head") from None


def _attaching(command: Command) -> Command:
    return click.option("--address", metavar="ADDRESS", help="The cluster; else RAY_ADDRESS, else the one here.")(
        command
    )


def _on_a_node(command: Command) -> Command:
    """The options by which both forms name a node."""
    options = [
        click.option("--node-id", metavar="ID", help="The node, by its id or the beginning of it."),
        click.option("--node-ip", metavar="IP", help="The node, by its address."),
        click.option("--all", "everyone", is_flag=True, help="All nodes at that address, where there are several."),
        _attaching,
    ]
    for option in reversed(options):
        command = option(command)
    return command


# -- the commands


@click.command(short_help="Set and remove taints of a running node.")
@click.argument("words", nargs=-1, metavar="[nodes NODE TAINT...]")
@click.option("--append", multiple=True, metavar="TAINTS", help="Set these taints; those of the same key are replaced.")
@click.option("--apend", multiple=True, hidden=True)
@click.option(
    "--remove", "--delete", multiple=True, metavar="TAINTS", help="Remove these; with a value, only if it is equal."
)
@click.option("--effect", metavar="EFFECT", callback=_effect, help="NoSchedule (default), PreferNoSchedule, NoExecute.")
@click.option("--overwrite", is_flag=True, help="Let kubectl's form change the value of a taint.")
@click.option("--for", "for_s", metavar="TIME", callback=_duration, help="Remove them after this time: 90s, 5m, 2h.")
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
    address: str | None,
) -> int:
    """Set and remove taints: work that does not tolerate them keeps off the node from then on.

    \b
    Examples:
      stead taint --node-id 1a2b3c4d5e6f --append '{"gpu_node": "true"}'
      stead taint --node-ip 10.0.0.7 --remove '{"gpu_node": "true"}'
      stead taint nodes 1a2b3c4d5e6f gpu_node=true:NoSchedule old-
      stead taint nodes 1a2b3c4d5e6f team=blue:NoSchedule --owner blue --for 2h
    """
    target = target_of(words, node_id, node_ip, everyone)
    changes = taint_changes(words[2:], (*append, *apend), remove, effect)
    wanted, removals = _set(changes), [change for change in changes if change.removes]
    if not changes:
        raise click.UsageError("name a taint to set or to remove, for example gpu_node=true:NoSchedule or gpu_node-")
    if not wanted and (for_s is not None or until_job or owner):
        raise click.UsageError("--for, --until-job and --owner are for taints that are set, and none is")
    with _attached("taint", address) as api:
        views = target.among(api.nodes())
        for view in views:
            # Somebody else may change the node between this look and the change; the last one then stands.
            _check_taints(view, wanted, removals, may_change=overwrite or len(words) <= 2)
        for view in views:
            for each in dict.fromkeys(taint.effect for taint in wanted):
                pairs = {taint.key: taint.value for taint in wanted if taint.effect is each}
                api.taint(view.id, pairs, each, for_s=for_s, owner=owner, until_job=until_job)
            gone = [taint for taint in view.taints if any(change.matches(taint) for change in removals)]
            for each in dict.fromkeys(taint.effect for taint in gone):
                api.untaint(view.id, {taint.key: taint.value for taint in gone if taint.effect is each}, each)
            ends = ending(None if for_s is None else f"for {time_text(for_s)}", until_job, owner)
            _tell(view, [_listed("tainted", wanted) + ends if wanted else "", _listed("no longer tainted", gone)])
    return 0


def _check_taints(view: NodeView, wanted: Sequence[Taint], removals: Sequence[TaintChange], may_change: bool) -> None:
    for change in removals:
        if not any(change.matches(taint) for taint in view.taints):
            said = str(change).removesuffix("-")
            has = ", ".join(map(str, view.taints)) or "no taints"
            raise Invalid(f"node {view.id[:SHORT]} has no taint {said}; it has {has}")
    for taint in () if may_change else wanted:
        for there in view.taints:
            if (there.key, there.effect) == (taint.key, taint.effect) and there.value != taint.value:
                raise Invalid(f"node {view.id[:SHORT]} is tainted {there}; to make it {taint}, give --overwrite")


@click.command(short_help="Set and remove labels of a running node.")
@click.argument("words", nargs=-1, metavar="[nodes NODE LABEL...]")
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
    address: str | None,
) -> int:
    """Set and remove labels; they override those the node was started with, and waiting work reacts.

    \b
    Examples:
      stead label nodes 1a2b3c4d5e6f disk=ssd old-
      stead label --node-id 1a2b3c4d5e6f --append '{"disk": "ssd"}' --remove old
    """
    target = target_of(words, node_id, node_ip, everyone)
    changes = label_changes(words[2:], (*append, *apend), remove)
    if not changes.labels and not changes.remove:
        raise click.UsageError("name a label to set or to remove, for example disk=ssd or disk-")
    with _attached("label", address) as api:
        views = target.among(api.nodes())
        for view in views:
            # Somebody else may change the node between this look and the change; the last one then stands.
            _check_labels(view, changes, may_change=overwrite or len(words) <= 2)
        for view in views:
            api.label(view.id, changes.labels, list(changes.remove))
            wanted = [f"{key}={value}" for key, value in changes.labels.items()]
            _tell(view, [_listed("labelled", wanted), _listed("no longer labelled", list(changes.remove))])
    return 0


def _check_labels(view: NodeView, changes: LabelChanges, may_change: bool) -> None:
    for key, value in changes.remove.items():
        if key not in view.labels or value not in (None, view.labels[key]):
            said = key if value is None else f"{key}={value}"
            has = _pairs(shown_labels(view)) or "no labels"
            raise Invalid(f"node {view.id[:SHORT]} has no label {said}; it has {has}")
    for key, value in () if may_change else changes.labels.items():
        if view.labels.get(key, value) != value:
            there = f"{key}={view.labels[key]}"
            raise Invalid(f"node {view.id[:SHORT]} is labelled {there}; to make it {key}={value}, give --overwrite")


@click.command(short_help="Let a node take no new work.")
@click.argument("node")
@click.option("--evict", is_flag=True, help="End what runs there too; it may start again elsewhere.")
@click.option("--all", "everyone", is_flag=True, help="All nodes at that address, where there are several.")
@_attaching
def drain(node: str, evict: bool, everyone: bool, address: str | None) -> int:
    """Let NODE (an id, the beginning of one, an address or a name) take no new work, until `stead uncordon`.

    \b
    Examples:
      stead drain 1a2b3c4d5e6f
      stead drain 1a2b3c4d5e6f --evict
    """
    with _attached("drain", address) as api:
        for view in Target(node, everyone=everyone).among(api.nodes()):
            api.drain(view.id, evict)
            _tell(view, ["takes no new work" + (", and what runs there is ended" if evict else "")])
    return 0


@click.command(short_help="Let a drained node take work again.")
@click.argument("node")
@click.option("--all", "everyone", is_flag=True, help="All nodes at that address, where there are several.")
@_attaching
def uncordon(node: str, everyone: bool, address: str | None) -> int:
    """Let NODE (an id, the beginning of one, an address or a name) take work again.

    \b
    Example:
      stead uncordon 1a2b3c4d5e6f
    """
    with _attached("uncordon", address) as api:
        for view in Target(node, everyone=everyone).among(api.nodes()):
            api.uncordon(view.id)
            _tell(view, ["takes work again"])
    return 0


@click.command(short_help="List the nodes: labels, taints, what is free.")
@click.option("--selector", metavar="SELECTOR", help="Only the nodes with these labels: 'zone in [a, b] and not spot'.")
@click.option("--json", "as_json", is_flag=True, help="Print all that is known, as JSON.")
@_attaching
def nodes(selector: str | None, as_json: bool, address: str | None) -> int:
    """List the live nodes with their labels, their taints (whose, until when), and what is free of what they have.

    \b
    Examples:
      stead nodes
      stead nodes --selector 'zone in [a, b] and not spot'
    """
    from stead.selectors import parse_selector

    chosen = None if selector is None else parse_selector(selector)
    with _attached("nodes", address) as api:
        views = sorted(api.nodes(chosen), key=lambda view: (view.ip, view.name, view.id))
    if as_json:
        click.echo(json.dumps([node_json(view) for view in views], indent=2))
    elif views:
        click.echo(table(views, time.time()))
    else:
        click.echo("no node" if selector is None else f"no node has {chosen}")
    return 0


@click.command(short_help="Tell what happened: what waits and why, taints, labels.")
@click.option("--after", metavar="NUMBER", type=int, default=0, help="Only what came after the event of this number.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON, with their numbers.")
@_attaching
def events(after: int, as_json: bool, address: str | None) -> int:
    """Tell what happened, oldest first: work that waits and why, taints, labels, evictions, deadlines.

    \b
    Examples:
      stead events
      stead events --json --after 120
    """
    with _attached("events", address) as api:
        found = api.events(after)
    if as_json:
        click.echo(json.dumps([asdict(event) for event in found], indent=2))
    else:
        for event in found:
            click.echo(event_line(event))
    return 0


@click.command(short_help="Show it all on five Ray nodes on this machine.")
def demo() -> int:
    """Start five labelled and tainted Ray nodes on this machine, place work with every kind of rule, and show where
    each piece went, what waits and why. It takes half a minute and leaves nothing behind, also after Ctrl-C.

    \b
    Example:
      stead demo
    """
    from stead.ray.start import require_ray

    require_ray("stead demo")
    from stead.ray.demo import show

    show()
    return 0


COMMANDS = (taint, label, drain, uncordon, nodes, events, demo)


# -- what is printed


def _tell(view: NodeView, sentences: Sequence[str]) -> None:
    click.echo(f"node {view.id[:SHORT]}: {'; '.join(said for said in sentences if said)}")


def _listed(what: str, things: Sequence[object]) -> str:
    return f"{what} {', '.join(map(str, things))}" if things else ""


def ending(until: str | None, job: str, owner: str) -> str:
    """`` for 2h, by blue``, or nothing."""
    said = [until or "", f"until job {job} ends" if job else "", f"by {owner}" if owner else ""]
    return "".join(f" {words}" if index == 0 else f", {words}" for index, words in enumerate(filter(None, said)))


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


def shown_labels(view: NodeView) -> dict[str, str]:
    """The labels of a node without those that only say which node it is."""
    return {key: value for key, value in sorted(view.labels.items()) if key not in IDENTITY_KEYS}


def table(views: Sequence[NodeView], now: float) -> str:
    """The nodes as text, one line each; a name is shown where a node has one of its own."""
    rows = [("NODE", "NAME", "IP", "CPU", "GPU", "LABELS", "TAINTS")]
    rows += [
        (
            view.id[:SHORT],
            view.name or "-",
            view.ip,
            _free(view, "CPU"),
            _free(view, "GPU"),
            _pairs(shown_labels(view)) or "-",
            ", ".join([*_taints(view, now), *(["draining"] if view.draining else [])]) or "-",
        )
        for view in views
    ]
    columns = [column for column in zip(*rows, strict=True) if column[0] != "NAME" or set(column[1:]) != {"-"}]
    widths = [max(map(len, column)) for column in columns]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*columns, strict=True)]
    return "\n".join(lines)


def _free(view: NodeView, resource: str) -> str:
    total = view.total.get(resource, 0.0)
    return f"{view.available.get(resource, 0.0):g}/{total:g}" if total else "-"


def _taints(view: NodeView, now: float) -> Iterator[str]:
    ends = {(end.key, end.effect): end for end in view.ends}
    for taint in view.taints:
        end = ends.get((taint.key, taint.effect))
        left = None if end is None or end.until is None else f"{time_text(end.until - now)} left"
        said = ending(left, end.job, end.owner) if end else ""
        yield f"{taint} ({said.strip()})" if said else str(taint)


def _pairs(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def node_json(view: NodeView) -> dict[str, Any]:
    """A node as a program wants it; moments are seconds since 1970."""
    ends = {(end.key, end.effect): end for end in view.ends}
    taints = []
    for taint in view.taints:
        end = ends.get((taint.key, taint.effect))
        taints.append(
            {
                "key": taint.key,
                "value": taint.value,
                "effect": taint.effect.value,
                "since": end.since if end else None,
                "until": end.until if end else None,
                "until_job": end.job if end else "",
                "owner": end.owner if end else "",
            }
        )
    return {
        "id": view.id,
        "ip": view.ip,
        "name": view.name,
        "labels": dict(view.labels),
        "sources": dict(view.sources),
        "taints": taints,
        "draining": view.draining,
        "total": dict(view.total),
        "available": dict(view.available),
    }


def event_line(event: Event) -> str:
    """``2026-01-31 12:00:00  tainted   1a2b3c4d5e6f: gpu_node=true``, in UTC."""
    moment = datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{moment}  {_WHOLE_ID.sub(lambda found: found[0][:SHORT], str(event))}"
