"""Converts Kubernetes' pods (the dicts of its JSON API) to asks.

Rule: required conditions mean exactly what they mean to kube-scheduler, special cases included. Only the dicts passed
in are read: no client library, no clock, no cluster. A null field counts as missing. What kube-scheduler respects and
stead does not support is refused in one sentence, never ignored silently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from stead.errors import Invalid, Unsupported, did_you_mean, one_of
from stead.kubernetes.claims import claims_in
from stead.kubernetes.default_spread import SYSTEM_SPREADS, DefaultSpreads, Owners
from stead.kubernetes.fields import Fields, fields_in, items_in, labels_of, number_in, parts_in, text_in
from stead.kubernetes.gangs import COUNT_ANNOTATION, membership_of
from stead.kubernetes.nodes import node_of
from stead.kubernetes.requesting import PODS, images_of, needs_of, ports_of
from stead.kubernetes.selecting import (
    DELETING,
    PREFERRED,
    REQUIRED,
    Namespaces,
    NamespacesMissing,
    apart_of,
    near_of,
    pod_preferences_of,
    preferences_of,
    selector_of,
    spreads_of,
    tolerations_of,
)
from stead.language.asks import Affinity, Ask, Choice, PolicyName, Preference, Spread
from stead.language.claims import ClaimId
from stead.language.labels import ANYWHERE, Labels, Selector
from stead.language.taints import Toleration
from stead.text import quoted

__all__ = ["PODS", "REQUIRED", "ask_of", "is_gated", "node_of", "pod_id"]

P = ParamSpec("P")
T = TypeVar("T")

OWN_ANNOTATIONS = "stead.dev/"
"""The prefix of annotations that are meant for stead."""

POLICY_ANNOTATION = f"{OWN_ANNOTATIONS}policy"
"""The annotation that gives a pod another policy, for example ``flow-pack``."""

KNOWN_ANNOTATIONS = (POLICY_ANNOTATION, COUNT_ANNOTATION)

DEFAULT_SCHEDULER = "create the pod again with schedulerName: default-scheduler"
"""The scheduler of a pod cannot be changed."""

CLAIMS = frozenset({"persistentVolumeClaim", "ephemeral"})
"""Volumes that only some nodes can mount, depending on claims, storage classes and drivers."""

UNSUPPORTED_VOLUMES = frozenset(
    "awsElasticBlockStore azureDisk azureFile cinder gcePersistentDisk iscsi portworxVolume rbd vsphereVolume".split()
)
"""Volumes that kube-scheduler limits: two pods on a node may not share the disk, or a node attaches a few at most."""

LOWER_PRIORITY, NEVER = "PreemptLowerPriority", "Never"
"""Values of `spec.preemptionPolicy`."""


def ask_of(
    pod: Fields,
    namespaces: Namespaces | None = None,
    *,
    policy: PolicyName = PolicyName.KUBE,
    owners: Owners | None = None,
    default_spreads: DefaultSpreads = SYSTEM_SPREADS,
    lenient: bool = False,
) -> Ask:
    """The ask of a pod, whether it has a node or not.

    It ignores `nodeName` and scheduling gates: do not submit a gated pod.

    Args:
        pod: The pod, as the API returns it.
        namespaces: The labels of all namespaces. Without them, a `namespaceSelector` is refused.
        policy: The policy of pods without the annotation `stead.dev/policy`.
        owners: The services and controllers that are known. Without them, no pod gets the default spread.
        default_spreads: The constraints of pods that have none of their own.
        lenient: For pods that stead does not place, such as those that have a node: parts that do not parse or are not
            supported are left out. A pod that can be read without it gives the same ask with it.

    Returns:
        The ask; its id is ``namespace/name``.

    Raises:
        Unsupported: The pod has a field that kube-scheduler respects and stead does not support.
        Invalid: A part of the pod does not parse.
    """
    metadata, spec = fields_in(pod, "metadata"), fields_in(pod, "spec")
    attempt = _left_out if lenient else _strictly
    if not lenient:
        _refuse_the_unsupported(spec)
        membership_of(metadata, spec)
    labels = pod_labels_of(metadata, lenient)
    affinity = attempt({}, fields_in, spec, "affinity")
    node = attempt({}, fields_in, affinity, "nodeAffinity")
    around = (metadata.get("namespace") or "", labels, namespaces)
    others = _others(affinity, *around, attempt) if affinity else _Others()
    spreads, soft_spreads = attempt(((), ()), _spreads, metadata, spec, labels, owners, default_spreads)
    requests, estimates = needs_of(spec, lenient)
    return Ask(
        pod_id(pod),
        (Choice(requests, attempt(ANYWHERE, _node_selector, spec, node)),),
        tolerations=attempt((), _tolerations, spec),
        affinities=(others.required,) if others.required else (),
        spreads=spreads,
        prefers=(*attempt((), _node_preferences, node), *others.preferred, *soft_spreads),
        labels=labels,
        namespace=metadata.get("namespace") or "",
        policy=attempt(policy, policy_of, metadata, policy),
        priority=attempt(0, number_in, spec, "priority"),
        owner=owner_of(metadata),
        ports=attempt((), ports_of, spec),
        images=attempt((), images_of, spec),
        estimates=estimates,
        pulls=(*others.preferred, *others.pulls),
        preempts=attempt(True, preempts, spec),
        preemptible=True,
        claims=attempt((), _claims, spec, metadata),
    )


class _Attempt(Protocol):
    def __call__(self, instead: T, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


class _Others(NamedTuple):
    """What a pod says about other pods."""

    required: tuple[Affinity, ...] = ()
    preferred: tuple[Preference, ...] = ()
    pulls: tuple[Preference, ...] = ()


def _others(
    affinity: Fields, namespace: str, labels: Labels, namespaces: Namespaces | None, attempt: _Attempt
) -> _Others:
    """Each of the four lists is read on its own: if one does not parse, the others still count."""
    near = attempt({}, fields_in, affinity, "podAffinity")
    apart = attempt({}, fields_in, affinity, "podAntiAffinity")
    if not near and not apart:
        return _Others()
    around = (namespace, labels, namespaces)
    together, pulls = attempt(((), ()), near_of, near, *around)
    return _Others(
        together + attempt((), apart_of, apart, *around),
        attempt((), pod_preferences_of, near, True, *around) + attempt((), pod_preferences_of, apart, False, *around),
        pulls,
    )


def _strictly(instead: T, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return read(*args, **kwargs)


def _left_out(instead: T, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """A part of the pod, or `instead` if it cannot be read."""
    try:
        return read(*args, **kwargs)
    except NamespacesMissing:
        raise  # a mistake of the caller, not of the pod
    except Invalid:
        return instead


def pod_id(pod: Fields) -> str:
    """The id of a pod's ask: ``namespace/name``."""
    metadata = fields_in(pod, "metadata")
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise Invalid(f"a pod must have a name such as 'web-0' under metadata.name, not {name!r}")
    return f"{metadata.get('namespace') or ''}/{name}"


def pod_labels_of(metadata: Fields, lenient: bool = False) -> Labels:
    """The labels of a pod, with a private one if the pod is being deleted: topology spread does not count it then."""
    labels = labels_of(metadata, lenient)
    return labels.changed({DELETING: "true"}) if metadata.get("deletionTimestamp") else labels


def is_gated(pod: Fields) -> bool:
    """Whether a pod has scheduling gates: it must not be placed before they are removed."""
    return bool(items_in(fields_in(pod, "spec"), "schedulingGates"))


def policy_of(metadata: Fields, usual: PolicyName) -> PolicyName:
    """The policy that the pod's annotation names, or `usual`. Other annotations of stead are refused."""
    annotations = fields_in(metadata, "annotations")
    for key in annotations:
        if key.startswith(OWN_ANNOTATIONS) and key not in KNOWN_ANNOTATIONS:
            hint, known = did_you_mean(key, KNOWN_ANNOTATIONS), " and ".join(map(repr, KNOWN_ANNOTATIONS))
            raise Invalid(f"the annotation {quoted(key)} is unknown{hint}; stead reads {known}")
    name = annotations.get(POLICY_ANNOTATION)
    return usual if name is None else one_of(PolicyName, name, f"the annotation {POLICY_ANNOTATION}:")


def preempts(spec: Fields) -> bool:
    """Whether pods of a lower priority may be evicted for the pod."""
    policy = spec.get("preemptionPolicy")
    if policy not in (None, NEVER, LOWER_PRIORITY):
        raise Invalid(f"spec.preemptionPolicy must be {LOWER_PRIORITY!r} or {NEVER!r}, not {policy!r}")
    return policy != NEVER


def owner_of(metadata: Fields) -> str:
    """The pod's owner, such as ``ReplicaSet/web-5d9``, or "". The controlling owner comes first."""
    owners = sorted(parts_in(metadata, "ownerReferences"), key=lambda owner: not owner.get("controller"))
    return f"{owners[0].get('kind')}/{owners[0].get('name')}" if owners else ""


def _spreads(
    metadata: Fields, spec: Fields, labels: Labels, owners: Owners | None, default_spreads: DefaultSpreads
) -> tuple[tuple[Spread, ...], tuple[Preference, ...]]:
    """The pod's own constraints, or the default ones if it has none at all."""
    constraints = parts_in(spec, "topologySpreadConstraints")
    if constraints:
        return spreads_of(constraints, labels)
    if owners is None or not default_spreads.constraints:
        return (), ()
    selector = owners.default_selector(metadata, labels)
    return ((), ()) if selector is None else default_spreads.of(selector)


def _claims(spec: Fields, metadata: Fields) -> tuple[ClaimId, ...]:
    volumes = parts_in(spec, "volumes")
    return claims_in(volumes, text_in(metadata, "namespace"), text_in(metadata, "name"))[0] if volumes else ()


def _node_selector(spec: Fields, node_affinity: Fields) -> Selector:
    required = None if node_affinity.get(REQUIRED) is None else fields_in(node_affinity, REQUIRED)
    return selector_of(fields_in(spec, "nodeSelector"), required)


def _node_preferences(node_affinity: Fields) -> tuple[Preference, ...]:
    return preferences_of(parts_in(node_affinity, PREFERRED))


def _tolerations(spec: Fields) -> tuple[Toleration, ...]:
    return tolerations_of(parts_in(spec, "tolerations"))


def _refuse_the_unsupported(spec: Fields) -> None:
    """Refuse fields that kube-scheduler respects and stead does not support."""
    if items_in(spec, "resourceClaims"):
        raise Unsupported(
            f"spec.resourceClaims (dynamic resource allocation) is not supported yet; request devices under "
            f"resources.requests, for example nvidia.com/gpu, or {DEFAULT_SCHEDULER}"
        )
    for volume in parts_in(spec, "volumes"):
        for kind in UNSUPPORTED_VOLUMES & volume.keys():
            if volume[kind] is not None:
                raise Unsupported(
                    f"spec.volumes[{volume.get('name')}].{kind} is not supported yet; use another kind of volume, for "
                    f"example emptyDir, or {DEFAULT_SCHEDULER}"
                )
