"""Converts KubeRay's RayClusters to node templates: one per worker group, for the planner.

Rule: pure. A template has what a Ray node of the group would report: the resources that KubeRay passes to `ray start`,
the labels and taints that `stead start` reads. An autoscaler gives up a node that joins with less.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import ceil, inf, nan
from typing import Any

from stead.errors import Invalid
from stead.kubernetes.fields import Fields, fields_in, items_in, number_in, text_in
from stead.language.arguments import parse_labels, parse_taints
from stead.language.labels import Labels
from stead.language.nodes import NodeTemplate
from stead.language.resources import UNIT, Resources
from stead.language.taints import Taint
from stead.text import quoted

TAINTS_ANNOTATION = "stead/taints"
"""The annotation of a group's pod template with the taints of its nodes. `stead start` reads it, too."""

GROUP, CLUSTER, NODE_TYPE, RAY_GROUP = "ray.io/group", "ray.io/cluster", "ray.io/node-type", "ray.io/node-group"
"""Labels of KubeRay's pods; the last one is Ray's own label for the group."""

PRICE_ANNOTATION = "stead/price"
"""The annotation of a group's pod template with the price of one of its nodes."""

LABELS_FILE = "--labels-file"
"""The option of `stead start` with which a node gets the labels of its pod."""

REPLICAS_MAX = 2**31 - 1
"""KubeRay's default for `maxReplicas`."""

_ACCELERATORS = {"aws.amazon.com/neuroncore": "neuron_cores", "google.com/tpu": "TPU"}
_SIZES = {"num-cpus": "CPU", "num-gpus": "GPU", "memory": "memory"}


def node_templates(cluster: Fields) -> tuple[NodeTemplate, ...]:
    """A template for each worker group of a RayCluster, with the number of nodes that KubeRay would run at least and at
    most. A group with several hosts per replica has that many nodes for each replica.

    Args:
        cluster: The RayCluster, as the API returns it.

    Returns:
        The templates, in the order of the groups. A suspended group has no nodes.

    Raises:
        Invalid: A part of the RayCluster cannot be read; the message names the group.
    """
    name = text_in(fields_in(cluster, "metadata"), "name")
    groups = items_in(fields_in(cluster, "spec"), "workerGroupSpecs")
    return tuple(_template(name, group) for group in groups)


def _template(cluster: str, group: Fields) -> NodeTemplate:
    name = text_in(group, "groupName")
    try:
        template = fields_in(group, "template")
        hosts = 0 if group.get("suspend") else number_in(group, "numOfHosts", 1) or 1
        return NodeTemplate(
            name,
            _capacity(group, fields_in(template, "spec")),
            _labels(cluster, name, group, template),
            _taints(fields_in(template, "metadata")),
            count_min=number_in(group, "minReplicas") * hosts,
            count_max=number_in(group, "maxReplicas", REPLICAS_MAX) * hosts,
            price=_price(fields_in(template, "metadata")),
        )
    except Invalid as error:
        raise Invalid(f"the worker group {quoted(name)}: {error}") from None


def _capacity(group: Fields, spec: Fields) -> Resources:
    """What KubeRay passes to `ray start`: the group's own resources, else `rayStartParams`, else what the first
    container may use. Amounts of CPUs are rounded up."""
    params, own = fields_in(group, "rayStartParams"), fields_in(group, "resources")
    containers = items_in(spec, "containers")
    container = fields_in(containers[0], "resources") if containers else {}
    limits, requests = fields_in(container, "limits"), fields_in(container, "requests")
    found: dict[str, Any] = {}
    if (cpu := limits.get("cpu") or requests.get("cpu")) is not None:
        found["CPU"] = _whole("cpu", cpu)
    if limits.get("memory") is not None:
        found["memory"] = limits["memory"]
    custom = _custom(params)
    for key in sorted(limits):
        if _is_gpu(key):
            found.setdefault("GPU", _whole(key, limits[key]))
        elif key in _ACCELERATORS and not custom.keys() & set(_ACCELERATORS.values()):
            custom[_ACCELERATORS[key]] = limits[key]
    found |= {_SIZES[key]: value for key, value in params.items() if key in _SIZES}
    for key, value in own.items():
        sized = {"cpu": "CPU", "memory": "memory"}.get(key.lower()) or ("GPU" if _is_gpu(key.lower()) else "")
        found[sized or key] = _whole(key, value) if sized in ("CPU", "GPU") else value
        custom = {} if not sized else custom  # the group's own custom resources replace those of `rayStartParams`
    return Resources.of({**custom, **found})


def _custom(params: Fields) -> dict[str, Any]:
    """The custom resources of `rayStartParams`, which are JSON in quotes."""
    written = params.get("resources")
    if written is None:
        return {}
    try:
        found = json.loads(str(written).strip("'\"` ").replace('\\"', '"'))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Invalid(f"rayStartParams.resources must be a JSON map such as '{{\"disk\": 1}}', not {quoted(written)}")
    return found


def _whole(name: str, amount: Any) -> int:
    return ceil(Resources.of({name: amount}).get(name) / UNIT)


def _is_gpu(key: str) -> bool:
    return key.endswith("gpu") or key.startswith("nvidia.com/mig-")


def _labels(cluster: str, name: str, group: Fields, template: Fields) -> Labels:
    """The group's own labels, which override `--labels`, and Ray's label for the group. With `--labels-file`, also the
    labels of the pods."""
    own = fields_in(group, "labels")
    written = own or parse_labels(str(fields_in(group, "rayStartParams").get("labels") or ""))
    of_pod = {
        **fields_in(fields_in(template, "metadata"), "labels"),
        CLUSTER: cluster,
        NODE_TYPE: "worker",
        GROUP: name,
    }
    labels: Mapping[str, Any] = {
        **(of_pod if _reads_labels(fields_in(template, "spec")) else {}),
        RAY_GROUP: name,
        **written,
    }
    return Labels.checked(labels)


def _reads_labels(spec: Fields) -> bool:
    """Whether the node is started with the file that has the labels of its pod."""
    containers = items_in(spec, "containers")[:1]
    words = (word for each in containers for key in ("command", "args") for word in items_in(each, key))
    return any(LABELS_FILE in str(word) for word in words)


def _taints(metadata: Fields) -> tuple[Taint, ...]:
    written = fields_in(metadata, "annotations").get(TAINTS_ANNOTATION) or ""
    try:
        return parse_taints(written)
    except Invalid as error:
        raise Invalid(f"the annotation {TAINTS_ANNOTATION!r}: {error}") from None


def _price(metadata: Fields) -> float:
    written = fields_in(metadata, "annotations").get(PRICE_ANNOTATION)
    return 0.0 if written is None else price_of(written, f"the annotation {PRICE_ANNOTATION!r}")


def price_of(written: object, what: str) -> float:
    """A price, from a number or its text. `what` names it in the error message.

    Raises:
        Invalid: It is not a number, or negative.
    """
    try:
        found = nan if isinstance(written, bool) else float(str(written))
    except ValueError:
        found = nan
    if not 0 <= found < inf:
        raise Invalid(f"{what} must be a number such as 2.5, not {quoted(written)}")
    return found
