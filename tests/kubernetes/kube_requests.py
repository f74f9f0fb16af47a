"""What a pod asks of a node: quantities, the sum of its containers, and host ports.

Rule: amounts are exact fractions until kube-scheduler itself rounds them, once per pod and resource, upwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import ceil

from tests.kubernetes.kube_selectors import Fields, key_errors, spec_of

Amounts = dict[str, Fraction]

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
QUANTITY = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?((?:[numkMGTPE]|[KMGTPE]i)?|[eE][+-]?[0-9]+)")

DEFAULT_REQUESTS: Mapping[str, Fraction] = {"cpu": Fraction(1, 10), "memory": Fraction(200 * 2**20)}
"""What a container that requests no cpu or memory counts for in the least-allocated score."""

NO_DEFAULTS: Mapping[str, Fraction] = {}


# -- quantities


def quantity(text: str | int | float) -> Fraction:
    """The exact value of a quantity such as `1.5Gi`, `100m` or `3e2`. Smaller steps than a billionth round up."""
    found = QUANTITY.fullmatch(str(text))
    if not found or not (found[2] or found[3]):
        raise ValueError(f"{text!r} is not a quantity")
    sign, whole, part, suffix = found.groups()
    number = Fraction(int((whole or "0") + (part or "")), 10 ** len(part or ""))
    if suffix in BINARY:
        number = min(number * 2 ** BINARY[suffix], Fraction(2**63 - 1))
    elif suffix in DECIMAL:
        number *= Fraction(10) ** DECIMAL[suffix]
    else:
        number *= Fraction(10) ** int(suffix[1:])
    number = rounded_up(number, 10**9)
    return -number if sign == "-" else number


def rounded_up(number: Fraction, parts: int) -> Fraction:
    return Fraction(ceil(number * parts), parts)


def amounts(fields: Fields | None) -> Amounts:
    return {name: quantity(text) for name, text in (fields or {}).items()}


# -- resource names


def is_native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def is_extended(name: str) -> bool:
    return not is_native(name) and not name.startswith("requests.") and not key_errors(f"requests.{name}")


def is_hugepages(name: str) -> bool:
    return name.startswith("hugepages-")


def is_counted(name: str) -> bool:
    """Whether kube-scheduler counts this resource, besides cpu, memory, ephemeral-storage and pods."""
    return is_extended(name) or is_hugepages(name) or "kubernetes.io/" in name or name.startswith("attachable-volumes-")


def is_pod_level(name: str) -> bool:
    """Whether a pod as a whole can request this resource in `spec.resources`."""
    return name in ("cpu", "memory") or is_hugepages(name)


def whole_units(resources: Amounts) -> dict[str, int]:
    """The integers kube-scheduler compares: cpu in thousandths, the others in units. What it ignores is left out."""
    found = {}
    for name, amount in resources.items():
        if name == "cpu":
            found[name] = ceil(amount * 1000)
        elif name in ("memory", "ephemeral-storage", "pods") or is_counted(name):
            found[name] = ceil(amount)
    return found


# -- the requests of a pod


def is_sidecar(container: Fields) -> bool:
    return container.get("restartPolicy") == "Always"


def add(total: Amounts, more: Mapping[str, Fraction]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount


def largest(*lists: Mapping[str, Fraction]) -> Amounts:
    """The largest amount of each resource that any of the lists names."""
    found: Amounts = {}
    for each in lists:
        for name, amount in each.items():
            found[name] = max(found.get(name, amount), amount)
    return found


def container_amounts(
    pod: Fields, kind: str = "requests", defaults: Mapping[str, Fraction] = NO_DEFAULTS, placed: bool = False
) -> Amounts:
    """What the containers of a pod need together, at the moment when they need most.

    Containers and sidecars run together. An init container runs beside the sidecars that stand before it.
    """
    total: Amounts = {}
    for container in spec_of(pod).get("containers") or ():
        add(total, one_container(pod, container, kind, defaults, placed))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec_of(pod).get("initContainers") or ():
        needs = one_container(pod, container, kind, defaults, placed and is_sidecar(container))
        if is_sidecar(container):
            add(total, needs)
            add(sidecars, needs)
            peak = largest(peak, sidecars)
        else:
            add(needs, sidecars)
            peak = largest(peak, needs)
    return largest(total, peak)


def one_container(pod: Fields, container: Fields, kind: str, defaults: Mapping[str, Fraction], placed: bool) -> Amounts:
    """What one container needs. For a placed pod also what it still holds while it is resized."""
    needs = amounts((container.get("resources") or {}).get(kind))
    status = status_of(pod, container) if placed else {}
    if status.get("resources") is not None:
        needs = being_resized(pod, needs, status["resources"], status)
    return {**defaults, **needs}


def status_of(pod: Fields, container: Fields) -> Fields:
    status = pod.get("status") or {}
    found: Fields = {}
    for each in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        if each.get("name") == container.get("name"):
            found = each
    return found


def being_resized(pod: Fields, needs: Amounts, actual: Fields, status: Fields) -> Amounts:
    """The most of what is wanted, allocated and in use. A resize that is infeasible is not wanted any more."""
    held = largest(amounts(actual.get("requests")), amounts(status.get("allocatedResources")))
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodResizePending":
            return held if condition.get("reason") == "Infeasible" else largest(needs, held)
    return largest(needs, held)


def pod_requests(pod: Fields) -> Fields:
    """The requests of the pod as a whole, if it has any."""
    return (spec_of(pod).get("resources") or {}).get("requests") or {}


def requests(
    pod: Fields,
    *,
    defaults: Mapping[str, Fraction] = NO_DEFAULTS,
    pod_level: bool = True,
    placed: bool = False,
) -> Amounts:
    """What a pod requests: its containers, or what the pod as a whole requests instead, and its overhead."""
    total = container_amounts(pod, "requests", defaults, placed)
    if pod_level:
        whole = {name: amount for name, amount in amounts(pod_requests(pod)).items() if is_pod_level(name)}
        status = pod.get("status") or {}
        if placed and status.get("resources") is not None:
            resized = being_resized(pod, amounts(pod_requests(pod)), status["resources"], status)
            whole = {name: resized.get(name, Fraction(0)) for name in whole}
        total.update(whole)
    add(total, amounts(spec_of(pod).get("overhead")))
    return total


def requested(pod: Fields) -> dict[str, int]:
    """What a pending pod requests, in the integers that decide whether it fits."""
    found = whole_units(requests(pod))
    found.pop("pods", None)
    return found


def held_by(pod: Fields) -> dict[str, int]:
    """What a placed pod holds of its node."""
    found = whole_units(requests(pod, placed=True))
    found.pop("pods", None)
    return found


def counted_for_score(pod: Fields) -> dict[str, int]:
    """The cpu and memory of a placed pod in the least-allocated score.

    Containers without a request count for the defaults, unless the pod as a whole says how much it requests.
    """
    plain = requests(pod, placed=True)
    whole = any(is_pod_level(name) for name in pod_requests(pod))
    missing = {name: amount for name, amount in DEFAULT_REQUESTS.items() if not whole or name not in plain}
    found = whole_units(requests(pod, defaults=missing, placed=True))
    return {name: found.get(name, 0) for name in DEFAULT_REQUESTS}


# -- host ports


def host_ports(pod: Fields) -> set[tuple[str, str, int]]:
    """Address, protocol and port of every host port the pod holds while it runs."""
    spec = spec_of(pod)
    running = [each for each in spec.get("initContainers") or () if is_sidecar(each)]
    return {
        (port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP", port["hostPort"])
        for container in (*running, *(spec.get("containers") or ()))
        for port in container.get("ports") or ()
        if (port.get("hostPort") or 0) > 0
    }


def ports_conflict(one: tuple[str, str, int], other: tuple[str, str, int]) -> bool:
    """The same port of the same protocol, on the same address or with 0.0.0.0 on one side."""
    same_address = one[0] == other[0] or "0.0.0.0" in (one[0], other[0])
    return same_address and one[1:] == other[1:]
