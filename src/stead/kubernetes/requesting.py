"""Converts what a pod takes from a node: resources, host ports and images.

Rule: amounts are exact, and rounded up as Kubernetes does it: CPU to thousandths, everything else to whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from stead.errors import Invalid
from stead.kubernetes.fields import Fields, fields_in, number_in, parts_in, text_in
from stead.language.asks import HostPort
from stead.language.resources import AMOUNT_MAX, CPU, MEMORY, NOTHING, UNIT, Resources, units

PODS = "pods"
"""The resource for the number of pods on a node; every pod uses one."""

CPU_STEP = UNIT // 1000

DEFAULTS = Resources.of({CPU: "100m", MEMORY: "200Mi"})
"""What kube-scheduler assumes for a container without a request, but only to score nodes."""

ALL_ADDRESSES = ("", "0.0.0.0")
"""Values of hostIP that mean every address of the node."""


Units = dict[str, int]
"""Amounts in units by resource, zeros included: a request of 0 is a request."""


CAPACITY_MAX = AMOUNT_MAX - UNIT
"""The most that a node counts with, 419 TiB of memory. A request of more counts as `AMOUNT_MAX`, which fits nowhere."""


def amounts_of(quantities: Fields, lenient: bool = False, most: int = AMOUNT_MAX) -> Units:
    """Amounts by resource, not rounded; more than `most` counts as `most`. With `lenient`, amounts that are not valid
    are left out."""
    found: Units = {}
    for name, quantity in quantities.items():
        try:
            found[CPU if name == "cpu" else name] = units(quantity, f"the amount of {name!r}", most)
        except Invalid:
            if not lenient:
                raise
    return found


def rounded(amounts: Mapping[str, int]) -> Units:
    """The amounts, rounded up: CPU to thousandths, everything else to whole numbers."""
    rounded_up = ((name, -(-amount // step) * step) for name, amount in amounts.items() for step in (_step(name),))
    return {name: min(amount, AMOUNT_MAX) for name, amount in rounded_up}


def _step(name: str) -> int:
    return CPU_STEP if name == CPU else UNIT


def needs_of(spec: Fields, lenient: bool = False) -> tuple[Resources, Resources]:
    """What a pod uses on a node, including 1 of `pods`, and its estimates: what scores add to that.

    Containers run together with the sidecars (init containers that always restart). The other init containers run
    before, one after another, each beside the sidecars started so far. The pod needs the larger of the two. Requests of
    the pod as a whole override that.

    Estimates are CPU and memory of containers that do not request them; a request of 0 counts as a request. If the pod
    as a whole has requests, only a resource that neither the pod nor any of its containers requests is estimated.
    """
    containers = [(each, _requested(each, lenient)) for each in parts_in(spec, "containers")]
    inits = [(each, _requested(each, lenient)) for each in parts_in(spec, "initContainers")]
    whole = {name: amount for name, amount in _requested(spec, lenient).items() if _is_of_pods(name)}
    overhead = amounts_of(fields_in(spec, "overhead"), lenient)
    total = _total(containers, inits, whole, overhead, NOTHING)
    requests = Resources({**rounded(total), PODS: UNIT})
    missing: Mapping[str, int] = DEFAULTS
    if whole:
        missing = {name: amount for name, amount in DEFAULTS.items() if name not in total}
    if all(missing.keys() <= requested.keys() for _, requested in (*containers, *inits)):
        return requests, NOTHING
    assumed = rounded(_total(containers, inits, whole, overhead, missing))
    more = {name: assumed.get(name, 0) - requests.get(name) for name in (CPU, MEMORY)}
    return requests, Resources(more)


Requested = list[tuple[Fields, Units]]
"""Containers with what they request."""


def _total(containers: Requested, inits: Requested, whole: Units, overhead: Units, missing: Mapping[str, int]) -> Units:
    """The amounts of a pod; a container that does not request a resource in `missing` gets the amount there."""
    together: Units = {}
    sidecars: Units = {}
    peak: Units = {}
    for _, requested in containers:
        _add(together, {**missing, **requested})
    for container, requested in inits:
        own = {**missing, **requested}
        need = dict(sidecars)
        _add(need, own)
        if _is_sidecar(container):
            _add(together, own)
            sidecars = need
        for name, amount in need.items():
            peak[name] = max(peak.get(name, 0), amount)
    for name, amount in peak.items():
        together[name] = max(together.get(name, 0), amount)
    together.update(whole)
    _add(together, overhead)
    return together


def _add(total: Units, more: Units) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _is_of_pods(name: str) -> bool:
    """Whether a pod as a whole can request this resource."""
    return name in (CPU, MEMORY) or name.startswith("hugepages-")


def _requested(part: Fields, lenient: bool) -> Units:
    return amounts_of(fields_in(fields_in(part, "resources"), "requests"), lenient)


def _containers(spec: Fields) -> list[Fields]:
    return [*parts_in(spec, "initContainers"), *parts_in(spec, "containers")]


def _is_sidecar(container: Fields) -> bool:
    return bool(container.get("restartPolicy") == "Always")


def ports_of(spec: Fields) -> tuple[HostPort, ...]:
    """The host ports of a pod's sidecars and containers. Other init containers end before the pod runs.

    A pod with ``hostNetwork: true`` needs no special case: the API server sets its host ports.
    """
    running = (*filter(_is_sidecar, parts_in(spec, "initContainers")), *parts_in(spec, "containers"))
    ports = (port for container in running for port in parts_in(container, "ports"))
    return tuple(dict.fromkeys(_host_port(port) for port in ports if number_in(port, "hostPort") > 0))


def _host_port(port: Fields) -> HostPort:
    ip = text_in(port, "hostIP")
    return HostPort(port["hostPort"], text_in(port, "protocol") or "TCP", "" if ip in ALL_ADDRESSES else ip)


def images_of(spec: Fields) -> tuple[str, ...]:
    """The images of a pod, one entry for each init container, container and image volume."""
    volumes = (fields_in(volume, "image") for volume in parts_in(spec, "volumes") if volume.get("image") is not None)
    references = [text_in(container, "image") for container in _containers(spec)]
    return tuple(map(image_name, (*references, *(text_in(volume, "reference") for volume in volumes))))


def image_name(reference: str) -> str:
    """The name under which a node lists an image: with the tag ``latest`` if it has none."""
    return reference if reference.rfind(":") > reference.rfind("/") else f"{reference}:latest"
