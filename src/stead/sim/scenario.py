"""Scenarios: nodes, work and events of a simulated cluster, from YAML.

Rule: a scenario becomes settings, facts with their times, and the durations of work; nothing else. The simulated
cluster reports each fact at its time. `specs` defines the fields of nodes, work and events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stead.engine.facts import Fact
from stead.engine.settings import Settings, Unscheduled
from stead.errors import Invalid
from stead.language.asks import PolicyName
from stead.language.times import parse_duration
from stead.sim.scaling import Scaling, scaling_of
from stead.specs.documents import CLAIM, EVENT, GROUP, NODE, WORK, Reader, policy_of
from stead.specs.sections import Section, load_yaml
from stead.specs.values import some_text, whole
from stead.text import quoted

FILE = ("title", "until", "settings", "nodes", "claims", "work", "groups", "events", "scaling")
SETTINGS = ("patience", "hybrid_threshold", "seed", "unscheduled", "moves", "policy")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens in a simulation, and when. `load` and `parse` read one from YAML.

    Attributes:
        title: Its title.
        settings: The settings of the engine.
        moments: The facts, each with its time in seconds.
        durations: How long asks and groups run, in seconds; those without a duration never end.
        until: When to stop; with None, it stops when nothing more can happen.
        scaling: How nodes are launched and retired; with None, there is no autoscaler.
    """

    title: str
    settings: Settings
    moments: tuple[tuple[float, Fact], ...]
    durations: Mapping[str, float]
    until: float | None = None
    scaling: Scaling | None = None


def load(path: Path | str, policy: PolicyName | None = None) -> Scenario:
    """Read a scenario from a YAML file.

    Args:
        path: The file.
        policy: The policy of work that does not name one; it overrides the default policy of the file.

    Returns:
        The scenario.

    Raises:
        Invalid: The file cannot be read, or is not a scenario.

    Example:
        ```python
        load("scenarios/demo.yaml")
        ```
    """
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
    """Read a scenario from YAML.

    Args:
        text: The YAML.
        title: The title, if the YAML has none.
        policy: The policy of work that does not name one; it overrides the default policy of the file.

    Returns:
        The scenario.

    Raises:
        Invalid: It is not a scenario; the message names the bad part.

    Example:
        ```python
        parse("nodes: [{id: node-1, capacity: {CPU: 4}}]")
        ```
    """
    file = Section(load_yaml(text), "", FILE)
    settings, default = file.read("settings", _settings, (Settings(), PolicyName.HYBRID))
    reader = Reader(policy=policy or default)
    for section in file.sections("nodes", NODE):
        reader.nodes(section, section.read("at", parse_duration, 0.0))
    for section in file.sections("claims", CLAIM):
        reader.claim(section)
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
        file.read("until", parse_duration, None),
        file.read("scaling", scaling_of, None),
    )


def _settings(value: Any) -> tuple[Settings, PolicyName]:
    """The engine's settings, and the default policy."""
    section = Section(value, "settings", SETTINGS)
    plain = Settings()
    settings = Settings(
        section.read("patience", lambda given: None if given is None else parse_duration(given), plain.patience),
        section.read("hybrid_threshold", _share, plain.hybrid_threshold),
        section.read("seed", whole, plain.seed),
        section.read("unscheduled", Unscheduled.of, plain.unscheduled),
        section.read("moves", _moves, plain.moves),
    )
    return settings, section.read("policy", policy_of, PolicyName.HYBRID)


def _moves(value: Any) -> int:
    if whole(value) < 0:
        raise Invalid(f"must be at least 0, for example 3, not {quoted(value)}")
    return int(value)


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise Invalid(f"must be a number from 0 to 1, not {quoted(value)}")
    return float(value)
