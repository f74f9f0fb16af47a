"""The node types that Ray's autoscaler may launch, read from the file that it was started with.

Rule: read-only. `stead.scaling.catalog` reads what the file means to the planner. Here are only what Ray's autoscaler
knows of a new node before it joins (its labels and resources in the file), the demand that only nodes of one type
satisfy, and where the file is. A cluster without such a file has no node types here.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stead.errors import Invalid
from stead.language.labels import Labels, check_value
from stead.language.nodes import NodeTemplate
from stead.language.taints import Taint
from stead.operate.views import amounts
from stead.planner.plans import Limits
from stead.planner.scaler import ScaleSettings
from stead.ray.submit.native_selectors import words
from stead.ray.wire.taint_labels import plain_labels, taints_in
from stead.scaling.catalog import cluster_of
from stead.specs.sections import load_yaml
from stead.specs.values import capacity_of

MONITOR = "monitor.py"
"""The file name of the program of Ray's autoscaler."""

LOOK_S = 60.0
"""How often to look for the autoscaler's process while none is found."""

MEMORY = ("memory", "object_store_memory")
"""Resources of which a node may have a little less than its type declares."""

ANY_ROOM = (("CPU", 0.0001),)
"""The demand of work without amounts: a bundle cannot be empty."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a demand needs on a new node: amounts, and labels in Ray's syntax."""

    amounts: tuple[tuple[str, float], ...]
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """What Ray's autoscaler knows of a new node of one type."""

    amounts: Mapping[str, float]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeTypes:
    """The node types of a cluster.

    Attributes:
        catalog: Those that may be launched.
        limits: What plans must respect.
        settings: How long a type rests after a failed launch, and how long a launch may take.
        known: What Ray knows of each type, also of the head's.
        minimums: The minimum number of nodes of each type, which Ray's autoscaler keeps.
        demands: For each type, the demand that a new node of this type satisfies and no other. Where two types have
            equal labels, their resources decide: Ray chooses the type that the demand fills.
    """

    catalog: tuple[NodeTemplate, ...]
    limits: Limits
    settings: ScaleSettings
    known: Mapping[str, Known]
    demands: Mapping[str, Wanted]
    minimums: Mapping[str, int] = field(default_factory=dict)

    def added_to(self, kind: str) -> tuple[Labels, tuple[Taint, ...]]:
        """What the file says of nodes of this type that Ray does not give them: labels that only stead knows, and
        taints."""
        template = next((each for each in self.catalog if each.name == kind), None)
        if template is None:
            return Labels(), ()
        native = self.known[kind].labels
        return Labels({key: value for key, value in template.labels.items() if key not in native}), template.taints


def read_node_types(text: str) -> NodeTypes:
    """The node types in the text of a cluster file.

    Raises:
        Invalid: The file has no node types that stead understands; the message names the part.
    """
    written = load_yaml(text)
    file = cluster_of(written)
    types: Mapping[str, Mapping[str, Any]] = written.get("available_node_types") or {}
    known = {
        name: Known(amounts(capacity_of(name, fields.get("resources") or {})), dict(fields.get("labels") or {}))
        for name, fields in types.items()
    }
    catalog = tuple(_as_it_joins(template) for template in file.catalog)
    launched = {each.name: known[each.name] for each in catalog}
    demands = {name: _demand(name, launched) for name in launched}
    minimums = {each.name: each.count_min for each in file.catalog}
    return NodeTypes(catalog, file.limits, file.settings, known, demands, minimums)


def _as_it_joins(template: NodeTemplate) -> NodeTemplate:
    """With taints that are written as labels, as the cluster reads them when a node joins. Ray itself keeps the minimum
    of a type, so plans need not."""
    taints = {(taint.key, taint.effect): taint for taint in (*taints_in(template.labels), *template.taints)}
    return replace(template, labels=Labels(plain_labels(template.labels)), taints=tuple(taints.values()), count_min=0)


def _demand(name: str, known: Mapping[str, Known]) -> Wanted:
    """Nearly all of a node, so that two demands never share one. Its labels match no type with other labels: each that
    this type has is required, and each that only others have is excluded."""
    own, rest = known[name], [each for each in known if each != name]
    others: dict[str, set[str]] = {}
    for each in rest:
        for key, value in known[each].labels.items():
            if key not in own.labels:
                others.setdefault(key, set()).add(value)
    labels = {key: words(True, [value]) for key, value in own.labels.items() if _is_expressible(value)}
    labels |= {
        key: words(False, found) for key, values in others.items() if (found := set(filter(_is_expressible, values)))
    }
    has_twin = any(known[each].labels == own.labels for each in rest)
    given = [(key, amount) for key, amount in sorted(own.amounts.items()) if amount > 0]
    firm = [each for each in given if each[0] not in MEMORY]
    if has_twin or not firm:
        firm = [each for each in given if each[0] != MEMORY[1]]
    return Wanted(tuple(firm) or ANY_ROOM, tuple(sorted(labels.items())))


def _is_expressible(value: object) -> bool:
    """Whether Ray reads the value unchanged in a selector."""
    with suppress(Invalid):
        return isinstance(value, str) and bool(check_value(value))
    return False


class NodeTypesFile:
    """The file of the autoscaler of this session, read again when it changes.

    Args:
        logs: The folder of the session's logs, by which the autoscaler's process is recognised.
        report: Called with one sentence if the file cannot be used.
    """

    def __init__(self, logs: str, report: Callable[[str], None] = log.warning) -> None:
        self._logs, self._report = logs, report
        self._path: Path | None = None
        self._looked = -LOOK_S
        self._read: tuple[tuple[int, int], NodeTypes | None] | None = None

    def types(self) -> NodeTypes | None:
        """The node types; None if the cluster has no autoscaler with a file, or stead cannot use the file."""
        if self._path is None and time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            self._path = config_of(processes(), self._logs)
        if self._path is None:
            return None
        try:
            state = self._path.stat()
            version = (state.st_mtime_ns, state.st_size)
            if self._read is None or self._read[0] != version:
                self._read = (version, self._types(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read: %s", self._path, error)
            self._path = None
            return None
        return self._read[1]

    def _types(self, text: str) -> NodeTypes | None:
        try:
            found = read_node_types(text)
            return found if found.catalog else None
        except Invalid as error:
            self._report(f"{self._path} is not used to choose node types, so Ray chooses them: {error}")
            return None


def config_of(processes: Iterable[tuple[Path, Sequence[str]]], logs: str) -> Path | None:
    """The file in the command line of the autoscaler with these logs, among processes with their working directory."""
    for directory, command in processes:
        options = dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)
        is_monitor = any(word.endswith(MONITOR) for word in command)
        if is_monitor and options.get("--logs-dir") == logs and options.get("--autoscaling-config"):
            return directory / Path(options["--autoscaling-config"]).expanduser()
    return None


def processes() -> Iterable[tuple[Path, list[str]]]:
    """The working directories and command lines of this user's processes on this machine."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if place.stat().st_uid != os.getuid():
                continue
            command = (place / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if command[0]:
                yield (place / "cwd").resolve(), command
