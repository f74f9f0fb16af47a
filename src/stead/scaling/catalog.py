"""Cluster files: the kinds of nodes and the limits of an autoscaler, in Ray's own format for `ray up`.

Rule: only this file reads them. What Ray's schema has no field for (taints, prices, quotas) is in `metadata.stead`,
which Ray accepts; taints and prices may also be written beside the resources of a node type. Ray's other fields are
accepted and not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from stead.errors import Invalid
from stead.language.arguments import labels_of
from stead.language.labels import EMPTY, Labels, check_value
from stead.language.nodes import NodeTemplate
from stead.language.resources import NOTHING, Resources
from stead.language.taints import Taint
from stead.language.times import parse_duration
from stead.operate.plans import NODE_GROUP, PRICE_MAX
from stead.planner.plans import Limits, Quota
from stead.planner.scaler import ScaleSettings
from stead.specs.sections import Misplaced, Section, at, load_yaml
from stead.specs.values import capacity_of, resources_in, some_text, taints_in, whole
from stead.text import quoted

MAX_WORKERS = "max_workers"
"""The name of the quota over all launched nodes, and its field in the file."""

WORKERS_DEFAULT = 2
"""Ray's default for the maximum number of nodes."""

SETTLE_S = 2.0
"""How late Ray's tables may show that pending work has started."""

WORKERS_MAX = 100_000
MINUTES_MAX = 1_000_000

WITH_OWN_KINDS = frozenset({"kuberay"})
"""Providers that know the kinds of nodes themselves, so the file need not describe them."""

_COMMANDS = ("initialization_commands", "worker_setup_commands")
RAYS_FIELDS = (
    *("cluster_name", MAX_WORKERS, "upscaling_speed", "idle_timeout_minutes", "provider", "auth", "docker"),
    *("available_node_types", "head_node_type", "head_node", "worker_nodes", "metadata", "no_restart"),
    *("file_mounts", "cluster_synced_files", "file_mounts_sync_continuously", "rsync_exclude", "rsync_filter"),
    *("setup_commands", "head_setup_commands", "head_start_ray_commands", "worker_start_ray_commands"),
    *_COMMANDS,
)
_OURS = ("taints", "price")
_NO_TAINTS: tuple[Taint, ...] = ()
KIND = (
    *("resources", "labels", "min_workers", MAX_WORKERS, *_OURS),
    *("node_config", "docker", "idle_timeout_s", "priority", *_COMMANDS),
)
MORE_OF_KIND = ("resources", "labels", *_OURS)
TIMES = ("settle", "join", "retry", "retry_max", "stock_out")
STEAD = ("node_types", "quotas", "price_max", "launches_per_minute", *TIMES)
QUOTA = ("name", "labels", "nodes", "resources")


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """What a cluster file says.

    Attributes:
        name: The name of the cluster.
        catalog: The kinds of nodes that may be launched; empty if the provider knows them.
        settings: How fast to launch and retire.
        limits: The quotas and the maximum price.
        provider: The type of the provider, for example ``raylets``.
        provider_fields: The other fields of the provider.
        head: The type of the head node, which is not launched; empty if the file names none.
        unused: Fields that people may expect to work, and that have no effect here, as places in the file.
    """

    name: str
    catalog: tuple[NodeTemplate, ...]
    settings: ScaleSettings
    limits: Limits
    provider: str = ""
    provider_fields: Mapping[str, Any] = field(default_factory=dict)
    head: str = ""
    unused: tuple[str, ...] = ()


def read_cluster(path: str | Path) -> ClusterFile:
    """The cluster file at a path.

    Raises:
        Invalid: It cannot be read; the message names the file and the part.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Invalid(f"{path} cannot be read: {reason}") from None
    try:
        return cluster_of(load_yaml(text))
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from None


def cluster_of(written: Any) -> ClusterFile:
    """A cluster file that is already parsed as YAML."""
    file = Section(written, "", RAYS_FIELDS)
    metadata = file.read("metadata", lambda value: dict(_map(value, "{stead: {price_max: 10}}")), {})
    stead = Section(metadata.get("stead") or {}, "metadata.stead", STEAD)
    provider = dict(file.need("provider", lambda value: _map(value, "{type: raylets}"), "{type: raylets}"))
    if "type" not in provider:
        raise Misplaced("provider.type: is missing; a good value is raylets")
    with at("provider.type"):
        kind = some_text(provider.pop("type"))
    head = file.read("head_node_type", some_text, "")
    workers = file.read(MAX_WORKERS, _workers, None)
    has_kinds = "available_node_types" in file or kind not in WITH_OWN_KINDS
    sections = list(_kinds(file, "available_node_types")) if has_kinds else []
    catalog = tuple(_catalog(sections, stead, head, WORKERS_DEFAULT if workers is None else workers))
    if head and sections and head not in (names := [name for name, _ in sections]):
        raise Misplaced(f"head_node_type: must be one of available_node_types, for example {names[0]}, not {head}")
    quotas = [] if workers is None else [Quota(MAX_WORKERS, nodes_max=workers, only_launched=True)]
    return ClusterFile(
        file.read("cluster_name", some_text, "default"),
        catalog,
        _settings(file, stead),
        Limits((*quotas, *_quotas(stead)), stead.read("price_max", _price, None)),
        kind,
        provider,
        head,
        tuple(
            section.place(name)
            for _, section in sections
            for name in ("idle_timeout_s", "priority")
            if section.fields.get(name) is not None
        ),
    )


def _kinds(file: Section, name: str, known: tuple[str, ...] = KIND) -> Iterator[tuple[str, Section]]:
    """The entries of a map from the name of a node type."""
    good = "{cpu: {resources: {CPU: 4}, max_workers: 10}}"
    place = file.place(name)
    written = file.need(name, lambda value: _map(value, good), good)
    if not written:
        raise Misplaced(f"{place}: has no node type; a good value is {good}")
    for kind, fields in written.items():
        with at(place):
            check_value(kind if isinstance(kind, str) else str(kind), "the name of a node type,")
            if not isinstance(kind, str) or not kind:
                raise Invalid(f"the name of a node type must be text such as 'cpu', not {quoted(kind)}")
        yield kind, Section(fields, f"{place}.{kind}", known)


def _catalog(sections: list[tuple[str, Section]], stead: Section, head: str, workers: int) -> Iterator[NodeTemplate]:
    more = dict(_kinds(stead, "node_types", MORE_OF_KIND)) if "node_types" in stead else {}
    known = [name for name, _ in sections]
    for name, section in more.items():
        if name not in known:
            raise Misplaced(f"{section.path}: is not in available_node_types, which has {', '.join(known)}")
    for name, section in sections:
        template = _template(name, section, more.get(name), 0 if name == head else workers)
        if name != head or template.count_max:  # Ray, too, launches nodes of the head's type only with `max_workers`
            yield template


def _template(name: str, section: Section, more: Section | None, workers: int) -> NodeTemplate:
    least, most = section.read("min_workers", _workers, 0), section.read(MAX_WORKERS, _workers, workers)
    if least > most:
        raise Misplaced(
            f"{section.place('min_workers')}: must be at most max_workers, which is {most}, not {least}; "
            f"a good value is {most}"
        )
    sections = [section] if more is None else [section, more]
    for own in _OURS:
        if len(places := [each.place(own) for each in sections if own in each]) > 1:
            raise Misplaced(f"{places[1]}: is also at {places[0]}; give one of them")
    if not any("resources" in each for each in sections):
        raise Misplaced(f"{section.place('resources')}: is missing; a good value is {{CPU: 4}}")
    capacity, labels, taints, price = NOTHING, Labels({NODE_GROUP: name}), _NO_TAINTS, 0.0
    for each in sections:
        capacity = Resources({**capacity, **each.read("resources", partial(capacity_of, name), NOTHING)})
        labels = labels.changed(each.read("labels", labels_of, EMPTY))
        taints = each.read("taints", taints_in, taints)
        price = each.read("price", _price, price)
    return NodeTemplate(name, capacity, labels, taints, least, most, price)


def _settings(file: Section, stead: Section) -> ScaleSettings:
    found = ScaleSettings(settle_s=SETTLE_S)
    minutes = file.read("idle_timeout_minutes", _minutes, None)
    if minutes is not None:
        found = replace(found, idle_s=60 * minutes)
    times = {f"{name}_s": stead.read(name, parse_duration, None) for name in TIMES}
    launches = stead.read("launches_per_minute", _launches, found.launches_per_minute)
    given: dict[str, Any] = {name: value for name, value in times.items() if value is not None}
    found = replace(found, launches_per_minute=launches, **given)
    if "join" in stead and not found.join_s:
        raise Misplaced(f"{stead.place('join')}: must be more than 0 s, for example 10m")
    if found.retry_max_s < max(found.retry_s, found.stock_out_s):
        if "retry_max" in stead:
            raise Misplaced(f"{stead.place('retry_max')}: must be at least retry and stock_out, for example 30m")
        found = replace(found, retry_max_s=max(found.retry_s, found.stock_out_s))
    return found


def _quotas(stead: Section) -> Iterator[Quota]:
    seen = {MAX_WORKERS}
    for section in stead.sections("quotas", QUOTA):
        name = section.need("name", some_text, "zone-a")
        if name in seen:
            raise Misplaced(f"{section.place('name')}: {quoted(name)} is taken; each quota has its own name")
        seen.add(name)
        nodes, most = section.read("nodes", _workers, None), section.read("resources", resources_in, None)
        if nodes is None and most is None:
            raise Misplaced(f"{section.path}: limits nothing; give nodes: 10 or resources: {{GPU: 16}}")
        yield Quota(name, section.read("labels", labels_of, EMPTY), nodes, most)


def _map(value: Any, good: str) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise Invalid(f"must be a map such as {good}, not {quoted(value)}")
    return value


def _workers(value: Any) -> int:
    if not 0 <= whole(value) <= WORKERS_MAX:
        raise Invalid(f"must be from 0 to {WORKERS_MAX:,}, for example 10, not {quoted(value)}")
    return int(value)


def _launches(value: Any) -> int:
    if whole(value) < 1:
        raise Invalid(f"must be at least 1, for example 60, not {quoted(value)}")
    return int(value)


def _number(value: Any, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise Invalid(f"must be a number such as 2.5, from 0 up, not {quoted(value)}")
    return float(value)


def _minutes(value: Any) -> float:
    return _number(value, MINUTES_MAX)


def _price(value: Any) -> float:
    return _number(value, PRICE_MAX)
