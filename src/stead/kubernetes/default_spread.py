"""The default topology spread: of pods that have no constraints of their own, but a service or a controller.

Rule: the pods to count are found as kube-scheduler finds them: by the selectors of all services that select the pod,
and of the replication controller, replica set or stateful set that controls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from stead.errors import Invalid
from stead.kubernetes.fields import Fields, label_key, parts_in
from stead.kubernetes.selecting import equal_labels, is_soft, pod_selector_of, spread_of
from stead.language.asks import Preference, Spread
from stead.language.labels import ANYWHERE, NOWHERE, Selector


class OwnerKind(StrEnum):
    """The kinds of objects whose selectors count, under the names that Kubernetes gives them."""

    SERVICE = "Service"
    REPLICATION_CONTROLLER = "ReplicationController"
    REPLICA_SET = "ReplicaSet"
    STATEFUL_SET = "StatefulSet"


CONTROLLERS = {
    ("v1", "ReplicationController"): OwnerKind.REPLICATION_CONTROLLER,
    ("apps/v1", "ReplicaSet"): OwnerKind.REPLICA_SET,
    ("apps/v1", "StatefulSet"): OwnerKind.STATEFUL_SET,
}
"""Controllers by the apiVersion and kind of an owner reference. Pods of other controllers have no default spread."""


Controller = tuple[OwnerKind, str, str]
"""Kind, namespace and name."""

Stamp = tuple[int, Fields | None]
"""The version of a namespace's services, and the selector of a pod's controller."""


class Owners:
    """The known services and controllers of a cluster, with their selectors in API form."""

    def __init__(self) -> None:
        self._services: dict[str, dict[str, Fields]] = {}
        self._services_versions: dict[str, int] = {}
        self._controllers: dict[Controller, Fields] = {}

    def put(self, kind: OwnerKind, namespace: str, name: str, selector: Fields | None) -> bool:
        """Add or replace a service or a controller by its `spec.selector`; says whether that changed anything.

        Without a selector, it matches no pod, and counts as removed.
        """
        if selector is None:
            return self.remove(kind, namespace, name)
        if kind is not OwnerKind.SERVICE:
            if self._controllers.get((kind, namespace, name)) == selector:
                return False
            self._controllers[kind, namespace, name] = selector
            return True
        services = self._services.setdefault(namespace, {})
        if services.get(name) == selector:
            return False
        services[name] = selector
        self._services_versions[namespace] = self._services_versions.get(namespace, 0) + 1
        return True

    def remove(self, kind: OwnerKind, namespace: str, name: str) -> bool:
        """Remove a service or a controller; says whether it was known."""
        if kind is not OwnerKind.SERVICE:
            return self._controllers.pop((kind, namespace, name), None) is not None
        if self._services.get(namespace, {}).pop(name, None) is None:
            return False
        self._services_versions[namespace] = self._services_versions.get(namespace, 0) + 1
        return True

    def stamp(self, namespace: str, controller: Controller | None) -> Stamp:
        """A value that stays current as long as the default selector of such pods cannot have changed.

        Only services of the namespace and the pod's own controller count, so a new replica set does not affect other
        pods.
        """
        return self._services_versions.get(namespace, 0), self._controllers.get(controller) if controller else None

    def is_current(self, namespace: str, controller: Controller | None, stamp: Stamp) -> bool:
        """Whether `stamp` is still the stamp of such pods. An unchanged selector stays the same object."""
        version, selector = self.stamp(namespace, controller)
        return version == stamp[0] and selector is stamp[1]

    def default_selector(self, metadata: Fields, labels: Mapping[str, str]) -> Selector | None:
        """The pods to spread a pod among, by its `metadata` and its labels (from `labels_of`); None if there are none.

        All labels that services and a replication controller select are merged. The requirements of a replica set or a
        stateful set are added; those that do not parse are ignored.
        """
        equal: dict[str, str] = {}
        for selected in self._services.get(metadata.get("namespace") or "", {}).values():
            if all(labels.get(label_key(key)) == value for key, value in selected.items()):
                equal.update(selected)
        controller = controller_of(metadata)
        found = self._controllers.get(controller) if controller else None
        if controller is None or found is None:
            selector = Selector.all_of(*equal_labels(equal))
        elif controller[0] is OwnerKind.REPLICATION_CONTROLLER:
            selector = Selector.all_of(*equal_labels({**equal, **found}))
        else:
            selector = Selector.all_of(*equal_labels(equal)) & _parsed(found)
        return None if selector == ANYWHERE else selector


def _parsed(selector: Fields) -> Selector:
    try:
        found = pod_selector_of(selector)
    except Invalid:
        return ANYWHERE
    return ANYWHERE if found == NOWHERE else found


def controller_of(metadata: Fields) -> Controller | None:
    """The controller of a pod, if it is of a kind whose selector counts."""
    for owner in parts_in(metadata, "ownerReferences"):
        if owner.get("controller"):
            kind = CONTROLLERS.get((owner.get("apiVersion") or "", owner.get("kind") or ""))
            return (kind, metadata.get("namespace") or "", owner.get("name") or "") if kind else None
    return None


@dataclass(frozen=True, slots=True)
class DefaultSpreads:
    """The constraints of pods that have none of their own, in API form without a labelSelector.

    Attributes:
        constraints: The constraints.
        needs_key: Whether a soft constraint gives nodes without its topology key the lowest score.

    Example:
        ```python
        DefaultSpreads.configured([{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}])
        ```
    """

    constraints: tuple[Fields, ...] = ()
    needs_key: bool = True

    @staticmethod
    def configured(constraints: Iterable[Fields]) -> DefaultSpreads:
        """Constraints that an administrator configured instead of Kubernetes' own; `Invalid` if one is not valid."""
        found = tuple(constraints)
        for constraint in found:
            if constraint.get("labelSelector") is not None:
                raise Invalid(
                    "a default topology spread constraint must not have a labelSelector: services and controllers "
                    "select the pods; remove it"
                )
            if not constraint.get("topologyKey"):
                raise Invalid("a default topology spread constraint needs a topologyKey, for example 'zone'")
            if constraint.get("whenUnsatisfiable") not in ("DoNotSchedule", "ScheduleAnyway"):
                raise Invalid(
                    f"whenUnsatisfiable must be DoNotSchedule or ScheduleAnyway, not "
                    f"{constraint.get('whenUnsatisfiable')!r}"
                )
            spread_of(constraint, NOWHERE)
        return DefaultSpreads(found)

    def of(self, selector: Selector) -> tuple[tuple[Spread, ...], tuple[Preference, ...]]:
        """The hard constraints and the soft ones of a pod whose default selector is `selector`."""
        spreads = [(is_soft(each), spread_of(each, selector, self.needs_key)) for each in self.constraints]
        strict = tuple(spread for soft, spread in spreads if not soft)
        return strict, tuple(Preference(spread) for soft, spread in spreads if soft)


def _soft(topology: str, max_skew: int) -> Fields:
    return {"topologyKey": topology, "maxSkew": max_skew, "whenUnsatisfiable": "ScheduleAnyway"}


SYSTEM_SPREADS = DefaultSpreads(
    (_soft("kubernetes.io/hostname", 3), _soft("topology.kubernetes.io/zone", 5)), needs_key=False
)
"""Kubernetes' own defaults. Nodes without a zone are still spread over by host name."""

NO_SPREADS = DefaultSpreads()
