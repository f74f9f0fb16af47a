"""Amounts, moments and addresses as pages show them.

Rule: moments are UTC, so that two people who look at one page speak of the same one. Nothing here is read back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

from stead.operate.views import Event, NodeView, Summary
from stead.operate.what_if import Difference, Fate
from stead.taints import Effect, Taint

BYTES = ("memory", "object_store_memory")
FIRST_RESOURCES = ("CPU", "GPU", "memory")
ID_SHOWN = 28
TIMES = "\N{MULTIPLICATION SIGN}"
ALARMS = ("evicted", "refused")
UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def amount(value: float, name: str) -> str:
    """``12``, ``0.5``, ``64 GiB``."""
    if name in BYTES:
        for unit, size in UNITS:
            if abs(value) >= size:
                return f"{value / size:.3g} {unit}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.6g}"


def amounts(resources: Mapping[str, float]) -> str:
    """``8 CPU, 1 GPU, 64 GiB memory``."""
    return ", ".join(f"{amount(resources[name], name)} {name}" for name in ordered(resources)) or "nothing"


def ordered(names: Iterable[str]) -> list[str]:
    """CPU, GPU and memory first."""
    return sorted(names, key=lambda name: (FIRST_RESOURCES.index(name) if name in FIRST_RESOURCES else 9, name))


def foremost(names: Iterable[str]) -> list[str]:
    """The few resources that most people mean."""
    return [name for name in ordered(names) if name != "object_store_memory"][:4]


def share(total: float, available: float) -> int:
    """How much is in use, in per cent; what is hardly used is still more than nothing."""
    if total <= 0:
        return 0
    used = 100 * (total - available) / total
    return max(0, min(100, 1 if 0 < used < 1 else 99 if 99 < used < 100 else round(used)))


def step(per_cent: int) -> int:
    """The same in steps of five, rounded up: there is one class for each."""
    return -(-per_cent // 5) * 5


def outside(summary: Summary, kind: str, id: str) -> str:
    """Where the cluster's own dashboard shows it; "" if it has none."""
    pattern = summary.links.get(kind, "")
    return pattern.replace("{id}", quote(id, safe="")) if pattern.startswith(("http://", "https://")) else ""


def age(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3 h 20 min``, ``5 d``."""
    left = max(0, int(seconds))
    if left < 120:
        return f"{left} s"
    if left < 7200:
        return f"{left // 60} min"
    if left < 172_800:
        return f"{left // 3600} h {left % 3600 // 60} min"
    return f"{left // 86_400} d"


def ago(moment: float | None, now: float) -> str:
    if moment is None:
        return ""
    return f"in {age(moment - now)}" if moment > now + 1 else f"{age(now - moment)} ago"


def moment(at: float | None) -> str:
    """``2026-11-15 16:20:03``, in UTC."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def link(*parts: str, **query: str | int | None) -> str:
    """``/ui/nodes/gpu%2F1?do=drain``: the address of a page."""
    path = "/".join(quote(part, safe="") for part in parts)
    given = {name.rstrip("_"): value for name, value in query.items() if value not in (None, "")}
    return f"/ui/{path}{f'?{urlencode(given)}' if given else ''}"


_REPAIR = re.compile(r"(?<![a-z0-9])repair(?![a-z0-9])", re.IGNORECASE)


def tone(taint: Taint) -> str:
    """How loud a taint is: an alarm where work is ended or a node is in repair; else it only reserves the node."""
    if taint.effect is Effect.NO_EXECUTE or _REPAIR.search(taint.key):
        return "alarm"
    return "reserved" if taint.effect.refuses else "soft"


def state(node: NodeView) -> str:
    """What a node lets in, in one sentence."""
    keys = ", ".join(dict.fromkeys(str(taint) for taint in node.taints if taint.effect.refuses))
    ends = any(taint.effect is Effect.NO_EXECUTE for taint in node.taints)
    if node.draining:
        return f"Drains: it takes no new work; what runs there {'is evicted' if ends else 'stays'}."
    if keys:
        return f"Takes only work that tolerates {keys}" + ("; other work is evicted." if ends else ".")
    if node.taints:
        return "Takes any work, as a last resort."
    return "Takes any work that fits."


def event_text(event: Event) -> str:
    """The words of an event, where its kind stands before them."""
    return event.text.removeprefix(event.kind).lstrip(" :")


def event_tone(event: Event) -> str:
    """The same for an event. Its words name the taint."""
    if event.kind in ALARMS:
        return "alarm"
    if event.kind == "tainted":
        return "alarm" if Effect.NO_EXECUTE in event.text or _REPAIR.search(event.text) else "reserved"
    return f"k-{event.kind}"


def title(node: NodeView) -> str:
    """What to call a node: its name, its id if that is short, or the beginning of it."""
    return node.name or short(node.id)


def short(id: str) -> str:
    """An id as it is, or its beginning; of a member the number too."""
    if len(id) <= ID_SHOWN:
        return id
    head, slash, tail = id.rpartition("/")
    return f"{short(head)}/{tail}" if slash and tail.isdecimal() else f"{id[:12]}…"


def entry_name(id: str) -> str:
    """What numbered copies have in common: ``web`` for ``web-12``."""
    head, dash, tail = id.rpartition("-")
    return head if dash and head and tail.isdecimal() else id


def names(ids: Iterable[str], most: int = 4) -> str:
    """Each name once, with how many there are: web, cache, and so on."""
    counted: dict[str, list[str]] = {}
    for id in ids:
        counted.setdefault(entry_name(short(id)), []).append(short(id))
    said = [each[0] if len(each) == 1 else f"{name} {TIMES}{len(each)}" for name, each in counted.items()]
    more = len(said) - most
    return ", ".join(said[:most]) + (f" and {more} more" if more > 0 else "")


def listed(ids: Sequence[str]) -> str:
    """``web-1``, ``web-1 and web-2``, ``web-1 to web-9 (9)``."""
    if len(ids) < 3:
        return " and ".join(map(short, ids))
    if len({entry_name(id) for id in ids}) == 1:
        return f"{short(ids[0])} to {short(ids[-1])} ({len(ids)})"
    return f"{short(ids[0])} and {len(ids) - 1} more"


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def total(fates: Iterable[Fate]) -> int:
    return sum(fate.count for fate in fates)


def outcome(found: Difference) -> str:
    """A difference in one sentence."""
    parts = [
        (total(found.placed), "would start", ""),
        (total(found.moved), "would move", ""),
        (total(found.stranded), "would lose its place and wait", "would lose their places and wait"),
        (total(found.blocked), "would wait that could start now", ""),
        (total(found.unplaced), "is new and would wait", "are new and would wait"),
        (total(found.refused), "would fail", ""),
        (sum(len(each.ids) for each in found.stays), "would run on but could not come back", ""),
    ]
    said = [(count, many if count > 1 and many else one) for count, one, many in parts if count]
    if not said:
        return "No work would be affected"
    first = f"{plural(said[0][0], 'piece')} of work {said[0][1]}"
    return "; ".join([first, *(f"{count:,} {verb}" for count, verb in said[1:])])


def mood(found: Difference) -> str:
    """Whether a difference is good news: bad, warn or good."""
    return "bad" if found.harms else "warn" if found.unplaced or found.stays else "good"
