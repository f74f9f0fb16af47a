"""Arguments that commands share: nodes, taints, labels, durations; as kubectl writes them and as options.

Rule: parsed before a command connects, so that a typo costs no time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

import click

from stead.errors import Invalid
from stead.language.arguments import (
    TaintChange,
    effect_text,
    labels_of,
    parse_effect,
    parse_labels,
    parse_taint_change,
    parse_taints,
)
from stead.language.labels import check_key
from stead.language.taints import Effect, Taint
from stead.language.times import parse_duration, parse_moment

if TYPE_CHECKING:
    from stead.language.labels import Selector
    from stead.operate.desk import Desk
    from stead.operate.views import NodeView

_NODES = ("nodes", "node", "no")


@dataclass(frozen=True)
class Target:
    """One node: named by an option, or by a word that may be an id, an ip or a name."""

    name: str
    by: str = ""  # "node_id", "node_ip", or "" for any of them
    everyone: bool = False

    def on(self, desk: Desk) -> list[NodeView]:
        """The node that matches, or with `everyone` all nodes that match. A single node is looked up alone, which is
        fast on a large cluster too."""
        from stead.operate.changes import Conflict
        from stead.operate.identifying import NodeNames

        if self.by != "node_ip" and not self.everyone:
            with suppress(Invalid):
                found = desk.node(self.name)
                if not self.by or found.id.startswith(self.name):
                    return [found]
        views = {view.id: view for view in all_nodes(desk)}
        names = NodeNames(views.values())
        try:
            ids = names.meant(self.name, self.by) if self.everyone else [names.one(self.name, self.by)]
        except Conflict as error:
            raise Conflict(f"{error}, or --all") from None
        return [views[id] for id in ids]


@dataclass(frozen=True)
class Targets:
    """All nodes that a command names: one by one, or by a selector."""

    each: tuple[Target, ...]
    selector: str | None = None

    @property
    def given_name(self) -> str:
        """The name of the node as given, if there is only one."""
        return self.each[0].name if self.each else ""

    def on(self, desk: Desk) -> list[NodeView]:
        if self.selector is None:
            return list({view.id: view for target in self.each for view in target.on(desk)}.values())
        from stead.language.selectors import parse_selector

        chosen = parse_selector(self.selector)
        found = all_nodes(desk, chosen)
        if not found:
            raise Invalid(f"no node has {chosen}; `stead nodes` lists them with their labels")
        return found


def all_nodes(desk: Desk, selector: Selector | None = None) -> list[NodeView]:
    """Every node, or every node that a selector matches, page by page."""
    from stead.operate.snapshot import PAGE_MAX, Query, every

    return every(desk.nodes, Query(selector=selector, limit=PAGE_MAX))


def targets_of(
    words: Sequence[str],
    node_id: str | None,
    node_ip: str | None,
    everyone: bool,
    selector: str | None,
    has_options: bool,
) -> tuple[Targets, Sequence[str]]:
    """The nodes (``--node-id X``, kubectl's ``nodes X Y ...``, or ``-l SELECTOR``) and the words after them, which say
    what to change. `has_options`: options say what to change, so there may be no such words."""
    given = [
        Target(name, by, everyone) for name, by in ((node_id, "node_id"), (node_ip, "node_ip")) if name is not None
    ]
    if words and words[0] not in _NODES:
        node = words[0] if len(words) > 1 and "=" not in words[0] else "NODE"
        raise click.UsageError(f"{words[0]!r} is not expected here; write: nodes {node} {words[-1]}")
    rest = words[1:]
    if words and selector is None:
        if not rest:
            raise click.UsageError("name a node after 'nodes'; `stead nodes` lists them")
        named = [rest[0], *takewhile(_is_node, rest[1:])]
        if len(named) == len(rest) > 1 and not has_options:
            named.pop()  # parse it as a taint or label, so that the error is about that and not about a missing node
        rest = rest[len(named) :]
        given += [Target(name, "", everyone) for name in named]
    return targets(given, selector), rest


def targets(given: Sequence[Target], selector: str | None) -> Targets:
    if bool(given) == (selector is not None):
        raise click.UsageError("name nodes, or give a selector, for example: -l zone=a")
    if len(given) > 1 and any(target.by for target in given):
        raise click.UsageError("name one node with --node-id or --node-ip, or several as in: nodes NODE NODE")
    return Targets(tuple(given), selector)


def _is_node(word: str) -> bool:
    """Whether a word of kubectl's form is a node: taints and labels contain '=', ':' or a trailing '-'."""
    return not ("=" in word or ":" in word or word.endswith("-"))


def taint_changes(
    words: Sequence[str], append: Sequence[str], remove: Sequence[str], effect: Effect | None
) -> list[TaintChange]:
    """The taints that `stead taint` sets and removes, from kubectl's form and from --append and --remove."""
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


def taints_set(changes: Sequence[TaintChange]) -> list[Taint]:
    return [change.taint for change in changes if change.taint is not None]


@dataclass(frozen=True)
class LabelChanges:
    """Labels to set, and those to remove: by key, or only where the value is equal."""

    labels: dict[str, str]
    remove: dict[str, str | None]


def label_changes(words: Sequence[str], append: Sequence[str], remove: Sequence[str]) -> LabelChanges:
    """The labels that `stead label` sets and removes, from kubectl's form and from --append and --remove."""
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
    labels_of(dict.fromkeys(gone, ""))  # refuses labels that stead itself sets
    return LabelChanges(wanted, gone)


def duration(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """A duration above 0: ``90``, ``90s``, ``5m``, ``1h30m``."""
    found = moment_of_scenario(context, option, value)
    if found == 0:
        raise click.BadParameter("must be longer than 0 seconds, for example '90s'", context, option)
    return found


def rate(context: click.Context, option: click.Parameter, value: str | None) -> float:
    """A rate per second: ``10``, ``10/s``, ``30/m``."""
    if value is None:
        return 0.0
    number, _, unit = value.partition("/")
    with suppress(ValueError, ZeroDivisionError):
        found = float(number) / {"": 1, "s": 1, "m": 60, "h": 3600}.get(unit, 0)
        if 0 < found < float("inf"):
            return found
    raise click.BadParameter(f"{value!r} is not a rate; good ones are '10/s' and '30/m'", context, option)


def moment_of_scenario(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """A time of a simulation: ``90``, ``90s``, ``5m``."""
    try:
        return None if value is None else parse_duration(value)
    except Invalid as error:
        raise click.BadParameter(str(error), context, option) from None


@dataclass(frozen=True)
class Moment:
    """A past time: absolute, or how long ago."""

    seconds: float
    is_length: bool = False

    def before(self, now: float) -> float:
        return max(0.0, now - self.seconds) if self.is_length else self.seconds


def past_moment(context: click.Context, option: click.Parameter, value: str | None) -> Moment | None:
    """``2026-01-31 12:00:00`` (UTC unless it has an offset), seconds since 1970, or ``5m`` ago."""
    if value is None:
        return None
    with suppress(Invalid):
        return Moment(parse_duration(value), is_length=value.strip()[-1:].isalpha())
    try:
        return Moment(parse_moment(value))
    except Invalid as error:
        raise click.BadParameter(f"{error}, or '5m' for five minutes ago", context, option) from None


class Kubectl(click.Command):
    """A command that also takes kubectl's ``--dry-run=client``, ``=server`` and ``=none``."""

    def parse_args(self, context: click.Context, words: list[str]) -> list[str]:
        meant = {"--dry-run=client": ["--dry-run"], "--dry-run=server": ["--dry-run"], "--dry-run=none": []}
        return super().parse_args(context, [each for word in words for each in meant.get(word, [word])])


def effect_option(context: click.Context, option: click.Parameter, value: str | None) -> Effect | None:
    try:
        return None if value is None else parse_effect(value)
    except Invalid as error:
        raise click.BadParameter(str(error), context, option) from None
