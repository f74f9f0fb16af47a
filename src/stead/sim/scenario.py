"""Scenarios: nodes, work and events of a simulated cluster, from YAML.

Rule: a scenario comes to facts with their moments and to durations, and nothing else; the simulated
cluster tells the engine these facts when their moment comes. What nodes and work may say is in `specs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stead.asks import PolicyName
from stead.engine import Settings
from stead.engine.facts import Fact
from stead.engine.settings import Unscheduled
from stead.errors import Invalid
from stead.sections import Section, load_yaml, shown
from stead.specs import EVENT, GROUP, NODE, WORK, Reader, policy_of, seconds, some_text, whole

FILE = ("title", "until", "settings", "nodes", "work", "groups", "events")
SETTINGS = ("patience", "hybrid_threshold", "seed", "unscheduled", "moves", "policy")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens, and when. `durations` are of asks and groups, in seconds; what has none never ends."""

    title: str
    settings: Settings
    moments: tuple[tuple[float, Fact], ...]
    durations: Mapping[str, float]
    until: float | None = None


def load(path: Path | str, policy: PolicyName | None = None) -> Scenario:
    """The scenario in a file; work that says no policy has this one, or else the file's."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Invalid(f"the scenario {path} cannot be read: {reason}") from None
    try:
        return parse(text, Path(path).stem, policy)
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from None


def parse(text: str, title: str = "scenario", policy: PolicyName | None = None) -> Scenario:
    """The scenario that `text` describes."""
    file = Section(load_yaml(text), "", FILE)
    settings, default = file.read("settings", _settings, (Settings(), PolicyName.HYBRID))
    reader = Reader(policy=policy or default)
    for section in file.sections("nodes", NODE):
        reader.nodes(section, section.read("at", seconds, 0.0))
    events = list(file.sections("events", EVENT))
    joins = [section for section in events if "join" in section]
    about_work = [section for section in events if "end" in section or "lose" in section]
    others = [section for section in events if not section.fields.keys() & {"join", "end", "lose"}]
    for section in [*joins, *others]:
        reader.event(section)
    for section in file.sections("work", WORK):
        reader.work(section)
    for section in file.sections("groups", GROUP):
        reader.group(section)
    for section in about_work:
        reader.event(section)
    return Scenario(
        file.read("title", some_text, title),
        settings,
        tuple(sorted(reader.moments, key=lambda moment: moment[0])),
        reader.durations,
        file.read("until", seconds, None),
    )


def _settings(value: Any) -> tuple[Settings, PolicyName]:
    """The engine's settings, and the policy of work that says none."""
    section = Section(value, "settings", SETTINGS)
    plain = Settings()
    settings = Settings(
        section.read("patience", lambda given: None if given is None else seconds(given), plain.patience),
        section.read("hybrid_threshold", _share, plain.hybrid_threshold),
        section.read("seed", whole, plain.seed),
        section.read("unscheduled", Unscheduled.of, plain.unscheduled),
        section.read("moves", _moves, plain.moves),
    )
    return settings, section.read("policy", policy_of, PolicyName.HYBRID)


def _moves(value: Any) -> int:
    if whole(value) < 0:
        raise Invalid(f"must be at least 0, for example 3, not {shown(value)}")
    return int(value)


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise Invalid(f"must be a number from 0 to 1, not {shown(value)}")
    return float(value)
