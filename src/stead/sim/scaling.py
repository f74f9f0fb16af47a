"""The `scaling` section of a scenario: kinds of nodes, limits, settings, and what goes wrong at the provider.

Rule: values only. `provider.py` does what they say, and the planner's scaler decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import Any

from stead.errors import Invalid, absent
from stead.language.arguments import labels_of
from stead.language.labels import EMPTY
from stead.language.nodes import NodeTemplate
from stead.language.times import parse_duration
from stead.planner.plans import NO_LIMITS, Limits, Quota
from stead.planner.scaler import ScaleSettings
from stead.specs.documents import Reader
from stead.specs.sections import Misplaced, Section, at
from stead.specs.values import COUNT_MAX, count_in, resources_in, some_text, whole
from stead.text import quoted

TIMES = ("idle", "settle", "join", "retry", "retry_max", "stock_out")
SCALING = ("kinds", "quotas", "price_max", "launches_per_minute", *TIMES, "faults")
NODE = ("id", "capacity", "labels", "taints")
KIND = (*NODE, "min", "max", "price", "launch")
QUOTA = ("name", "labels", "nodes", "resources")
FAULT = ("at", "for", "kind", "fault", "count")

DEFAULTS = ScaleSettings()

LAUNCH_S = 60.0
"""How long a launch takes by default."""

NODES_MAX = 10
"""The maximum number of nodes of a kind by default."""


class FaultKind(StrEnum):
    """What can go wrong.

    Attributes:
        STOCK_OUT: The provider has no more nodes of the kind.
        FAIL: Launches fail.
        HANG: Launches start, and their nodes do not join.
        INCOMPLETE: Nodes join without their labels and taints.
        LOSS: Running nodes are taken back, those first that were launched first.
    """

    STOCK_OUT = "stock-out"
    FAIL = "fail"
    HANG = "hang"
    INCOMPLETE = "incomplete"
    LOSS = "loss"

    @staticmethod
    def of(value: Any) -> FaultKind:
        try:
            return FaultKind(some_text(value))
        except ValueError:
            raise Invalid(f"must be one of {', '.join(FaultKind)}, not {quoted(value)}") from None


@dataclass(frozen=True, slots=True)
class Fault:
    """Something goes wrong with a kind from `begin` to `end`. `count` is how many nodes are lost; None means all."""

    begin: float
    kind: str
    fault: FaultKind
    end: float = inf
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a simulated cluster is scaled.

    Attributes:
        catalog: The kinds of nodes.
        settings: How fast to launch and retire.
        limits: Quotas and the maximum price.
        launch_s: How long a launch takes, by kind.
        faults: What goes wrong, in order of time.
    """

    catalog: tuple[NodeTemplate, ...]
    settings: ScaleSettings = DEFAULTS
    limits: Limits = NO_LIMITS
    launch_s: Mapping[str, float] | None = None
    faults: tuple[Fault, ...] = ()

    def takes(self, kind: str) -> float:
        """How long a launch of this kind takes."""
        return (self.launch_s or {}).get(kind, LAUNCH_S)


def scaling_of(value: Any) -> Scaling:
    """The section as it is written in the scenario."""
    file = Section(value, "scaling", SCALING)
    kinds = list(_kinds(file))
    if not kinds:
        raise Misplaced("scaling.kinds: is missing; a good value is [{id: cpu, capacity: {CPU: 4}, max: 10}]")
    catalog = tuple(kind for kind, _ in kinds)
    faults = sorted(_faults(file, [kind.name for kind in catalog]), key=lambda fault: fault.begin)
    return Scaling(
        catalog,
        _settings(file),
        Limits(tuple(_quotas(file)), file.read("price_max", _number, None)),
        {kind.name: launch_s for kind, launch_s in kinds},
        tuple(faults),
    )


def _kinds(file: Section) -> Iterator[tuple[NodeTemplate, float]]:
    """Each kind, and how long its launches take."""
    reader = Reader()
    for section in file.sections("kinds", KIND):
        described = {name: value for name, value in section.fields.items() if name in NODE}
        (joined,) = reader.joined(
            Section(described, section.path, (*NODE, "count", "ip", "name", "draining", "volumes"))
        )
        least, most = section.read("min", _count, 0), section.read("max", _count, NODES_MAX)
        if least > most:
            raise Misplaced(f"{section.place('min')}: must be at most max, which is {most}, not {least}")
        node, price = joined.node, section.read("price", _number, 0.0)
        template = NodeTemplate(node.id, node.capacity, node.labels, node.taints, least, most, price)
        yield template, section.read("launch", parse_duration, LAUNCH_S)


def _settings(file: Section) -> ScaleSettings:
    times = {f"{name}_s": file.read(name, parse_duration, None) for name in TIMES}
    given: dict[str, Any] = {name: value for name, value in times.items() if value is not None}
    launches = file.read("launches_per_minute", count_in, DEFAULTS.launches_per_minute)
    return replace(DEFAULTS, launches_per_minute=launches, **given)


def _quotas(file: Section) -> Iterator[Quota]:
    for section in file.sections("quotas", QUOTA):
        name = section.need("name", some_text, "zone-a")
        nodes, most = section.read("nodes", _count, None), section.read("resources", resources_in, None)
        if nodes is None and most is None:
            raise Misplaced(f"{section.path}: limits nothing; give nodes: 10 or resources: {{GPU: 16}}")
        yield Quota(name, section.read("labels", labels_of, EMPTY), nodes, most)


def _faults(file: Section, kinds: Sequence[str]) -> Iterator[Fault]:
    for section in file.sections("faults", FAULT):
        begin, fault = section.read("at", parse_duration, 0.0), section.need("fault", FaultKind.of, "stock-out")
        if fault is FaultKind.LOSS and "for" in section:
            raise Misplaced(f"{section.place('for')}: nodes are lost at one moment; leave it out")
        if fault is not FaultKind.LOSS and "count" in section:
            raise Misplaced(f"{section.place('count')}: is only for the fault 'loss'; leave it out")
        length = section.read("for", parse_duration, inf)
        count = section.read("count", count_in, None)
        for name, path in section.each("kind") if "kind" in section else [(kind, "") for kind in kinds]:
            if name not in kinds:
                with at(path):
                    raise Invalid(absent("kind", some_text(name), kinds, where=""))
            yield Fault(begin, name, fault, begin + length, count)


def _count(value: Any) -> int:
    if not 0 <= whole(value) <= COUNT_MAX:
        raise Invalid(f"must be from 0 to {COUNT_MAX}, for example 10, not {quoted(value)}")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        raise Invalid(f"must be a number such as 2.5, from 0 up, not {quoted(value)}")
    return float(value)
