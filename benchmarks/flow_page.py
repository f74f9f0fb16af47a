"""The page about flow's speed: its picture and its tables, written from what was just measured.

Rule: `docs/flow-speed.md` holds the words and, between marks, tables; nothing outside the marks is touched. The
picture is plain SVG with its own ground, so that it can be read on light and dark pages.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks import Row

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "flow-speed.md"
PICTURE = DOCS / "images" / "flow-growth.svg"

WIDTH, HEIGHT = 920, 372
LEFT, TOP, PANEL_WIDTH, PANEL_HEIGHT, GAP = 64, 74, 370, 260, 76

STYLE = """
  .ground { fill: #ffffff } .grid { stroke: #d8dee4 } .axis { stroke: #57606a }
  text { font: 13px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600 }
  .s0 { stroke: #b35900; fill: #b35900 } .s1 { stroke: #6e5494; fill: #6e5494 } .s2 { stroke: #0550ae; fill: #0550ae }
  polyline { fill: none !important; stroke-width: 2.2 }
  .s0.line { stroke-dasharray: 7 4 } .s1.line { stroke-dasharray: 2 4 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } .grid { stroke: #30363d } .axis { stroke: #8b949e } text { fill: #e6edf3 }
    .s0 { stroke: #ffa657; fill: #ffa657 } .s1 { stroke: #d2a8ff; fill: #d2a8ff } .s2 { stroke: #79c0ff; fill: #79c0ff }
  }
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """What it is drawn against, and lines of (x, milliseconds)."""

    title: str
    lines: dict[str, list[tuple[float, float]]]


def draw(panels: Sequence[Panel], path: Path = PICTURE) -> None:
    """Panels side by side, both axes logarithmic, with one scale of time for all."""
    times = [ms for panel in panels for line in panel.lines.values() for _, ms in line]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    label = "Time of a batch against machines and against classes"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}"/>',
    ]
    for number, name in enumerate(panels[0].lines):
        x = LEFT + number * 285
        parts.append(f'<polyline class="s{number} line" points="{x},26 {x + 34},26"/>{_mark(number, x + 17, 26)}')
        parts.append(f'<text x="{x + 42}" y="30">{name}</text>')
    for index, panel in enumerate(panels):
        parts += _panel(panel, LEFT + index * (PANEL_WIDTH + GAP), low, high)
    parts.append("</svg>\n")
    path.write_text("\n".join(parts))


def _panel(panel: Panel, left: float, low: int, high: int) -> list[str]:
    ticks = [x for x, _ in next(iter(panel.lines.values()))]
    first, last = math.log10(ticks[0]), math.log10(ticks[-1])
    bottom = TOP + PANEL_HEIGHT

    def across(x: float) -> float:
        return left + 14 + (PANEL_WIDTH - 28) * (math.log10(x) - first) / (last - first)

    def up(ms: float) -> float:
        return bottom - PANEL_HEIGHT * (math.log10(ms) - low) / (high - low)

    parts = [f'<text class="title" x="{left}" y="{TOP - 16}">ms against {panel.title}</text>']
    for power in range(low, high + 1):
        y = up(10**power)
        parts.append(f'<line class="grid" x1="{left}" x2="{left + PANEL_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{10**power:,g}</text>')
    for x in ticks:
        at = across(x)
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 5}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 21}" text-anchor="middle">{x:,}</text>')
    parts.append(f'<polyline class="axis" points="{left},{TOP} {left},{bottom} {left + PANEL_WIDTH},{bottom}"/>')
    for number, line in enumerate(panel.lines.values()):
        points = [(across(x), up(ms)) for x, ms in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="s{number} line" points="{path}"/>')
        parts += [_mark(number, x, y) for x, y in points]
    return parts


def _mark(number: int, x: float, y: float) -> str:
    """A shape of its own for each line, so that colour is not all that tells them apart."""
    if number == 0:
        return f'<rect class="s0" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'
    if number == 1:
        return f'<polygon class="s1" points="{x:.1f},{y - 5:.1f} {x + 5:.1f},{y + 4:.1f} {x - 5:.1f},{y + 4:.1f}"/>'
    return f'<circle class="s{number}" cx="{x:.1f}" cy="{y:.1f}" r="4.2"/>'


def fill(sections: Mapping[str, Sequence[Row]], load: float) -> None:
    """Write each section's rows as a table between its marks."""
    page = PAGE.read_text()
    for name, rows in sections.items():
        page = _between(page, name, _table(rows))
    page = _between(page, "machine", _machine(load))
    PAGE.write_text(page)


def _between(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- measured: {name} -->", f"<!-- end: {name} -->"
    assert begin in page and end in page, f"{PAGE.name} has no place for {name!r}: {begin} ... {end}"
    return re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n\n{text}\n\n{end}", page, flags=re.S)


def _table(rows: Sequence[Row]) -> str:
    goals = any(row.goal for row in rows)
    lines = ["| what | ours | reference | ratio |" + (" goal | met |" if goals else "")]
    lines.append("|---|---:|---:|---:|" + ("---|---|" if goals else ""))
    for row in rows:
        other = "" if row.reference is None else _number(row.reference, row.unit)
        ratio = "" if row.ratio is None else f"{row.ratio:,.2f}x" if row.ratio < 10 else f"{row.ratio:,.0f}x"
        cells = [row.name.removeprefix("flow: "), _number(row.ours, row.unit), other, ratio]
        if goals:
            cells += [row.goal, "" if row.met is None else "yes" if row.met else "NO"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float, unit: str) -> str:
    shown = (
        f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:.2f}"
    )
    return f"{shown} {unit}".strip()


def _machine(load: float) -> str:
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()) if _on_linux() else None
    cpu = model.group(1).strip() if model else platform.processor() or platform.machine()
    now = os.getloadavg()[0]
    return (
        f"Measured on {os.cpu_count()} cores of {cpu}, Python {platform.python_version()}, numpy {version('numpy')}, "
        f"OR-tools {version('ortools')}; load average {load:.1f} at the beginning and {now:.1f} at the end."
    )


def _on_linux() -> bool:
    return Path("/proc/cpuinfo").exists()
