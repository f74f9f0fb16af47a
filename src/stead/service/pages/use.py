"""The usage page: pending work, and used and stranded resources over the last day, as line charts.

Rule: charts are SVG paths that the service draws, without any script. Each has a sentence with the same content, and
the page has a table; a gap in the samples is a gap in the line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from starlette.requests import Request

from stead.language.resources import BYTE_UNITS, in_order, is_bytes, quantity_text
from stead.language.times import duration_text
from stead.operate.usage import DAY_S, INTERVAL_S, History, Sample
from stead.service.pages.frame import Frame
from stead.service.pages.wording import share
from stead.text import plural

STEP_S = 300.0
STEPS = int(DAY_S / STEP_S)
HEIGHT = 100
HOUR_S = 3600.0
CHARTS_MAX = 8
FRESH_S = 3 * INTERVAL_S
MISSED = 0.01
"""The page mentions missing samples only above this share of the expected ones."""

Heights = Sequence[float | None]
Number = Callable[[Sample], float]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart; `style` is its CSS class, and `name` its name in the legend."""

    style: str
    name: str
    path: str
    area: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    sentence: str
    top: str
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class Hour:
    """The highest values of an hour; `amounts` are texts by resource: used, and stranded."""

    begins: str
    pending: str
    amounts: Sequence[tuple[str, str]]


def add_use(pages: APIRouter, frame: Frame, history: History) -> None:
    @pages.get("/ui/use")
    def use(request: Request) -> HTMLResponse:
        now = time.time()
        samples = history.samples(now - DAY_S)
        names = shown(samples)
        return frame.page(
            request,
            "use.html",
            section="use",
            charts=charts(samples, names, now),
            steps=STEPS,
            height=HEIGHT,
            names=names,
            hours=hours(samples, names),
            gaps=gaps(samples, now),
        )


def shown(samples: Sequence[Sample]) -> list[str]:
    """The resources that get a chart: those of the last sample, the most common ones first."""
    return in_order(samples[-1].total)[:CHARTS_MAX] if samples else []


def charts(samples: Sequence[Sample], names: Sequence[str], now: float) -> list[Chart]:
    if not samples:
        return []
    return [_pending(samples, now), *(_resource(samples, name, now) for name in names)]


def _pending(samples: Sequence[Sample], now: float) -> Chart:
    heights = highest(samples, lambda each: each.pending, now)
    last, most = samples[-1], max(samples, key=lambda each: each.pending)
    found = f"{plural(last.pending, 'piece')} of work pending {_when(last, now)}"
    if most.pending:
        found += f"; at most {most.pending:,}, at {_clock(most.at)}"
    top = round_up(most.pending, 1.0)
    line = Line("pending", "pending", path(heights, top), area(heights, top))
    return Chart("Pending work", f"{found}.", quantity_text("", top), [line])


def _resource(samples: Sequence[Sample], name: str, now: float) -> Chart:
    def used(sample: Sample) -> float:
        return sample.used.get(name, 0.0)

    def total(sample: Sample) -> float:
        return sample.total.get(name, 0.0)

    def lost(sample: Sample) -> float:
        return sample.stranded.get(name, 0.0)

    last, most = samples[-1], max(samples, key=used)
    per_cent = share(total(last), total(last) - used(last))
    found = f"{quantity_text(name, used(last))} of {quantity_text(name, total(last))} used"
    found += f" {_when(last, now)} ({per_cent} %)"
    if used(most):
        found += f"; at most {quantity_text(name, used(most))}, at {_clock(most.at)}"
    found += f". {quantity_text(name, lost(last))} stranded." if lost(last) else ". Nothing stranded."
    unit = next((size for _, size in BYTE_UNITS if total(last) >= size), 1) if is_bytes(name) else 1
    top = round_up(max(map(total, samples)), unit)
    in_use = highest(samples, used, now)
    lines = [
        Line("used", "used", path(in_use, top), area(in_use, top)),
        Line("total", "total", path(highest(samples, total, now), top)),
        Line("stranded", "stranded", path(highest(samples, lost, now), top)),
    ]
    return Chart(name, found, quantity_text(name, top), lines)


def highest(samples: Sequence[Sample], number: Number, now: float) -> Heights:
    """The highest number in every step of the last day; None in a step without a sample."""
    end = math.floor(now / STEP_S) + 1
    found: list[float | None] = [None] * STEPS
    for sample in samples:
        step = STEPS - end + math.floor(sample.at / STEP_S)
        if 0 <= step < STEPS:
            found[step] = max(number(sample), found[step] or 0.0)
    return found


def round_up(most: float, unit: float) -> float:
    """The next round number of units, from 1 up: 1, 2, 4, 5, 8, 10, 20, ..."""
    least = max(1.0, most / unit)
    power = 10.0 ** math.floor(math.log10(least))
    return unit * power * next(each for each in (1, 2, 4, 5, 8, 10) if each * power >= least * (1 - 1e-9))


def path(heights: Heights, top: float) -> str:
    """Steps, as the path of a line: ``M3,50H4V20H6``."""
    return "".join(
        f"M{begin}," + "V".join(f"{_y(value, top)}H{end}" for value, end in run) for begin, run in _runs(heights)
    )


def area(heights: Heights, top: float) -> str:
    """The same, closed at the bottom."""
    return "".join(
        f"M{begin},{HEIGHT}" + "".join(f"V{_y(value, top)}H{end}" for value, end in run) + f"V{HEIGHT}Z"
        for begin, run in _runs(heights)
    )


def _runs(heights: Heights) -> list[tuple[int, list[tuple[float, int]]]]:
    """Runs without a gap: where each starts, and its values with the step where each ends."""
    found: list[tuple[int, list[tuple[float, int]]]] = []
    for step, value in enumerate(heights):
        if value is None:
            continue
        if not step or heights[step - 1] is None:
            found.append((step, [(value, step + 1)]))
        elif found[-1][1][-1][0] == value:
            found[-1][1][-1] = (value, step + 1)
        else:
            found[-1][1].append((value, step + 1))
    return found


def _y(value: float, top: float) -> str:
    return f"{HEIGHT - HEIGHT * value / top:.4g}"


def hours(samples: Sequence[Sample], names: Sequence[str]) -> list[Hour]:
    """The newest first."""
    by_hour: dict[int, list[Sample]] = {}
    for sample in samples:
        by_hour.setdefault(math.floor(sample.at / HOUR_S), []).append(sample)
    return [_hour(number, found, names) for number, found in sorted(by_hour.items(), reverse=True)]


def _hour(number: int, samples: Sequence[Sample], names: Sequence[str]) -> Hour:
    begins = datetime.fromtimestamp(number * HOUR_S, UTC).strftime("%Y-%m-%d %H:%M")
    amounts = []
    for name in names:
        used = max(each.used.get(name, 0.0) for each in samples)
        lost = max(each.stranded.get(name, 0.0) for each in samples)
        amounts.append((quantity_text(name, used), quantity_text(name, lost)))
    return Hour(begins, f"{max(each.pending for each in samples):,}", amounts)


def gaps(samples: Sequence[Sample], now: float) -> str:
    """How much of the time since the first sample has no samples, as text; "" if it is little."""
    if not samples:
        return ""
    expected = (now - samples[0].at) / INTERVAL_S
    missing = expected - len(samples)
    return duration_text(missing * INTERVAL_S) if missing > max(2.0, MISSED * expected) else ""


def _when(sample: Sample, now: float) -> str:
    return "now" if now - sample.at <= FRESH_S else f"at {_clock(sample.at)}"


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M} UTC"
