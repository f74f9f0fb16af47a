"""Percentages, times, names and URLs as pages show them.

Rule: texts that commands print too come from `stead.text` and `language`, so that a page and a command say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote, urlencode

from stead.engine.explain.events import Event
from stead.language.arguments import effect_text
from stead.language.resources import in_order
from stead.language.taints import Effect, Taint
from stead.language.times import duration_text, moment_text
from stead.operate.ordering import entry_name
from stead.operate.views import NodeView, Summary, holds_results
from stead.operate.what_if import Difference, Fate
from stead.text import first_few, plural, short_id

TIMES = "\N{MULTIPLICATION SIGN}"
ALARMS = ("evicted", "refused", "not-launched", "gone")


def foremost(names: Iterable[str]) -> list[str]:
    """The most common resources."""
    return [name for name in in_order(names) if not holds_results(name)][:4]


def share(total: float, available: float) -> int:
    """How much is used, in percent; a little use is never shown as 0."""
    if total <= 0:
        return 0
    used = 100 * (total - available) / total
    return max(0, min(100, 1 if 0 < used < 1 else 99 if 99 < used < 100 else round(used)))


def step(per_cent: int) -> int:
    """The same in steps of five, rounded up: there is one CSS class for each."""
    return -(-per_cent // 5) * 5


def outside(summary: Summary, kind: str, id: str) -> str:
    """The URL in the cluster's own dashboard; "" if it has none."""
    pattern = summary.links.get(kind, "")
    return pattern.replace("{id}", quote(id, safe="")) if pattern.startswith(("http://", "https://")) else ""


def ago(moment: float | None, now: float) -> str:
    if moment is None:
        return ""
    return f"in {duration_text(moment - now)}" if moment > now + 1 else f"{duration_text(max(0, now - moment))} ago"


def moment(at: float | None) -> str:
    return "" if at is None else moment_text(at)


def link(*parts: str, **query: str | int | None) -> str:
    """``/ui/nodes/gpu%2F1?do=drain``: the URL of a page."""
    path = "/".join(quote(part, safe="") for part in parts)
    given = {name.rstrip("_"): value for name, value in query.items() if value not in (None, "")}
    return f"/ui/{path}{f'?{urlencode(given)}' if given else ''}"


_REPAIR = re.compile(r"(?<![a-z0-9])repair(?![a-z0-9])", re.IGNORECASE)


def tone(taint: Taint) -> str:
    """The style of a taint: alarm if it evicts work or the node is in repair; otherwise the node is only reserved."""
    if taint.effect is Effect.NO_EXECUTE or _REPAIR.search(taint.key):
        return "alarm"
    return "reserved" if taint.effect.refuses else "soft"


def state(node: NodeView) -> str:
    """Which work a node takes, in one sentence."""
    keys = ", ".join(dict.fromkeys(str(taint) for taint in node.taints if taint.effect.refuses))
    ends = any(taint.effect is Effect.NO_EXECUTE for taint in node.taints)
    if node.draining:
        return f"Draining: it takes no new work; running work {'is evicted' if ends else 'stays'}."
    if keys:
        return f"Takes only work that tolerates {keys}" + ("; other work is evicted." if ends else ".")
    if node.taints:
        return "Takes any work, but only as a last resort."
    return "Takes any work that fits."


def effect(taint: Taint, kind: str) -> str:
    """The effect of a taint, as this kind of cluster spells it."""
    return effect_text(taint.effect) if kind == "kubernetes" else taint.effect.value


def event_text(event: Event) -> str:
    """The text of an event, to show next to its kind."""
    return event.text.removeprefix(event.kind).lstrip(" :")


def event_tone(event: Event) -> str:
    """The style of an event. Its text names the taint."""
    if event.kind in ALARMS:
        return "alarm"
    if event.kind == "tainted":
        return "alarm" if Effect.NO_EXECUTE in event.text or _REPAIR.search(event.text) else "reserved"
    return f"k-{event.kind}"


def names(ids: Iterable[str], most: int = 4) -> str:
    """Each name once, with its number: web, cache, and so on."""
    counted: dict[str, list[str]] = {}
    for id in ids:
        counted.setdefault(entry_name(short_id(id)), []).append(short_id(id))
    parts = [each[0] if len(each) == 1 else f"{name} {TIMES}{len(each)}" for name, each in counted.items()]
    return first_few(parts, most)


def listed(ids: Sequence[str]) -> str:
    """``web-1``, ``web-1 and web-2``, ``web-1 to web-9 (9)``."""
    if len(ids) < 3:
        return " and ".join(map(short_id, ids))
    if len({entry_name(id) for id in ids}) == 1:
        return f"{short_id(ids[0])} to {short_id(ids[-1])} ({len(ids)})"
    return f"{short_id(ids[0])} and {len(ids) - 1} more"


def total(fates: Iterable[Fate]) -> int:
    return sum(fate.count for fate in fates)


def outcome(found: Difference) -> str:
    """A difference in one sentence."""
    parts = [
        (total(found.placed), "would start", ""),
        (total(found.moved), "would move", ""),
        (total(found.stranded), "would lose its place and be pending", "would lose their places and be pending"),
        (total(found.blocked), "would be pending that could start now", ""),
        (total(found.unplaced), "is new and would be pending", "are new and would be pending"),
        (total(found.refused), "would fail", ""),
        (sum(len(each.ids) for each in found.stays), "would keep running but could not be placed there again", ""),
    ]
    texts = [(count, many if count > 1 and many else one) for count, one, many in parts if count]
    if not texts:
        return "No work would be affected"
    first = f"{plural(texts[0][0], 'piece')} of work {texts[0][1]}"
    return "; ".join([first, *(f"{count:,} {verb}" for count, verb in texts[1:])])


def mood(found: Difference) -> str:
    """The style of a difference: bad, warn or good."""
    return "bad" if found.harms else "warn" if found.unplaced or found.stays else "good"
