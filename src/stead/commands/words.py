"""What the words of a command name: nodes, taints, labels, lengths of time; kubectl's form and the seeds'.

Rule: understood before anything is attached to, so that a slip costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING

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
from stead.labelling import check_key
from stead.taints import Effect, Taint

if TYPE_CHECKING:
    from stead.labelling import Selector
    from stead.operate.desk import Desk
    from stead.operate.views import NodeView

SHORT = 12
"""So much of a node's id is shown; six characters of it or more name the node again."""

ID_MAX = 36
"""An id of work up to this length is shown whole: as long as one of a group on Ray."""

_NODES = ("nodes", "node", "no")


@dataclass(frozen=True)
class Target:
    """The node that a command names: by an option, or by a word that may be an id, an ip or a name."""

    said: str
    by: str = ""  # "node_id", "node_ip", or "" for whatever fits
    everyone: bool = False

    def on(self, desk: Desk) -> list[NodeView]:
        """The nodes that are meant. One by its id is asked for alone, so that it is quick on a great cluster too."""
        if self.by != "node_ip" and not self.everyone:
            with suppress(Invalid):
                found = desk.node(self.said)
                if self._is_id_of(found):
                    return [found]
        return self.among(all_nodes(desk))

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


@dataclass(frozen=True)
class Targets:
    """All nodes that a command names: one after the other, or by a selector."""

    each: tuple[Target, ...]
    selector: str | None = None

    @property
    def said(self) -> str:
        """The node as it was named, where it is one."""
        return self.each[0].said if self.each else ""

    def on(self, desk: Desk) -> list[NodeView]:
        if self.selector is None:
            return list({view.id: view for target in self.each for view in target.on(desk)}.values())
        from stead.selectors import parse_selector

        chosen = parse_selector(self.selector)
        found = all_nodes(desk, chosen)
        if not found:
            raise Invalid(f"no node has {chosen}; `stead nodes` lists them with their labels")
        return found


def all_nodes(desk: Desk, selector: Selector | None = None) -> list[NodeView]:
    """Every node, or all that a selector matches, page by page."""
    from stead.operate.snapshot import PAGE_MAX, Query

    page = desk.nodes(Query(selector=selector, limit=PAGE_MAX))
    found = list(page.items)
    while page.items and len(found) < page.total:
        page = desk.nodes(Query(selector=selector, offset=len(found), limit=PAGE_MAX))
        found += page.items
    return found


def targets_of(
    words: Sequence[str],
    node_id: str | None,
    node_ip: str | None,
    everyone: bool,
    selector: str | None,
    is_said: bool,
) -> tuple[Targets, Sequence[str]]:
    """The nodes of both forms (``--node-id X`` and kubectl's ``nodes X Y ...``) or of ``-l SELECTOR``; and the words
    after them, which say what is to change. `is_said`: options say it, so there may be no such words."""
    given = [
        Target(said, by, everyone) for said, by in ((node_id, "node_id"), (node_ip, "node_ip")) if said is not None
    ]
    if words and words[0] not in _NODES:
        raise click.UsageError(f"{words[0]!r} stands where 'nodes' was expected, as in: nodes NODE {words[-1]}")
    rest = words[1:]
    if words and selector is None:
        if not rest:
            raise click.UsageError("name a node after 'nodes'; `stead nodes` lists them")
        named = [rest[0], *takewhile(_is_node, rest[1:])]
        if len(named) == len(rest) > 1 and not is_said:
            named.pop()  # what cannot be read as a taint or label is to be told, not looked for as a node
        rest = rest[len(named) :]
        given += [Target(said, "", everyone) for said in named]
    return targets(given, selector), rest


def targets(given: Sequence[Target], selector: str | None) -> Targets:
    if bool(given) == (selector is not None):
        raise click.UsageError("name nodes, or give a selector by -l, for example: -l zone=a")
    if len(given) > 1 and any(target.by for target in given):
        raise click.UsageError("name one node by --node-id or --node-ip, or several as in: nodes NODE NODE")
    return Targets(tuple(given), selector)


def _is_node(word: str) -> bool:
    """Whether a word of kubectl's form names a node: taints and labels have a sign in them."""
    return not ("=" in word or ":" in word or word.endswith("-"))


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
    for taint in taints_set(changes):
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


def taints_set(changes: Sequence[TaintChange]) -> list[Taint]:
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


def duration(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """A length of time: ``90``, ``90s``, ``5m``, ``2h``."""
    if value is None:
        return None
    with suppress(Invalid):
        if found := _seconds(value):
            return found
    raise click.BadParameter(f"{value!r} is no length of time; good ones are '90s', '5m' and '2h'", context, option)


def rate(context: click.Context, option: click.Parameter, value: str | None) -> float:
    """How often in a second: ``10``, ``10/s``, ``30/m``."""
    if value is None:
        return 0.0
    number, _, unit = value.partition("/")
    with suppress(ValueError, ZeroDivisionError):
        found = float(number) / {"": 1, "s": 1, "m": 60, "h": 3600}.get(unit, 0)
        if 0 < found < float("inf"):
            return found
    raise click.BadParameter(f"{value!r} is not a rate; good ones are '10/s' and '30/m'", context, option)


def moment_of_scenario(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """A moment of a simulation: ``90``, ``90s``, ``5m``."""
    try:
        return None if value is None else _seconds(value)
    except Invalid as error:
        raise click.BadParameter(str(error), context, option) from None


def _seconds(value: str) -> float:
    from stead.specs import seconds

    number: float | str = value
    with suppress(ValueError):
        number = float(value)
    return seconds(number)


@dataclass(frozen=True)
class Moment:
    """A moment of the past as somebody says it: by a clock, or how long ago."""

    seconds: float
    is_length: bool = False

    def before(self, now: float) -> float:
        return max(0.0, now - self.seconds) if self.is_length else self.seconds


def past_moment(context: click.Context, option: click.Parameter, value: str | None) -> Moment | None:
    """``2026-01-31 12:00:00`` (in UTC unless it says otherwise), a number of seconds by the clock, or ``5m`` ago."""
    if value is None:
        return None
    with suppress(Invalid):
        return Moment(_seconds(value), is_length=value.strip()[-1:].isalpha())
    with suppress(ValueError, OverflowError):
        said = datetime.fromisoformat(value.strip())
        found = (said if said.tzinfo else said.replace(tzinfo=UTC)).timestamp()
        if found >= 0:
            return Moment(found)
    good = "'2026-01-31 12:00:00' (UTC), '5m' for five minutes ago, or seconds since 1970"
    raise click.BadParameter(f"{value!r} is no moment; good ones are {good}", context, option)


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


def short_id(id: str) -> str:
    """An id of work, as tables show it: the beginning of a long one, and what comes after it in a group."""
    begin, slash, rest = id.partition("/")
    return id if len(id) <= ID_MAX else f"{begin[:SHORT]}{slash}{rest}"
