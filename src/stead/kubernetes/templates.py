"""Reads pods from JSON fast: most pods of a cluster are copies of a few templates.

Rule: pods whose scheduling-relevant bytes are equal share one translation, made by `ask_of`, and differ only in their
ids. A template is translated again only if what it depends on has changed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from stead.errors import Invalid, Unsupported
from stead.kubernetes.api_objects import (
    ANYTHING,
    ENCODER,
    POD,
    POD_EVENT,
    POD_PAGE,
    UNREADABLE,
    EventKind,
    PodObject,
    Problem,
    Recent,
    decoded,
    error_in,
)
from stead.kubernetes.claims import claims_in
from stead.kubernetes.default_spread import SYSTEM_SPREADS, DefaultSpreads, OwnerKind, Owners, Stamp, controller_of
from stead.kubernetes.fields import Fields
from stead.kubernetes.gangs import GANG_ANNOTATIONS, KUBE_SCHEDULER, OF_KUBERNETES, Membership, membership_of
from stead.kubernetes.podspec import CLAIMS, OWN_ANNOTATIONS, POLICY_ANNOTATION, UNSUPPORTED_VOLUMES, ask_of
from stead.language.asks import Ask, PolicyName
from stead.language.claims import ClaimId

TEMPLATES_MAX = 20_000
"""How many templates are kept. A template that has not been used for long is dropped first."""

PARTS_MAX = 100_000
"""How many parts of asks are shared between equal ones."""

READ_BYTES = re.compile(f'"(?:{re.escape(OWN_ANNOTATIONS)}|(?:{"|".join(map(re.escape, GANG_ANNOTATIONS))})")'.encode())
"""How the annotations of a pod begin that are read."""

VOLUMES_THAT_MATTER = UNSUPPORTED_VOLUMES | CLAIMS | {"image"}

Claims = tuple[tuple[ClaimId, ...], tuple[ClaimId, ...]]
"""The claims of a pod, and those of its ephemeral volumes among them."""

NO_CLAIMS: Claims = ((), ())


class Pod(msgspec.Struct, frozen=True, gc=False):
    """A pod, as far as a scheduler needs it.

    Either `ask` or `problem` is None. A pod that has a node, or belongs to another scheduler, has a problem only if its
    JSON is not a pod's at all: see `lenient` of `ask_of`.
    """

    key: str
    """``namespace/name``, which is also the id of the ask."""
    namespace: str
    name: str
    uid: str
    node_name: str
    phase: str
    scheduler_name: str
    is_deleting: bool
    is_gated: bool
    nominated: str
    """The node where others are being evicted for it."""
    start_time: str
    """When it started, as the API server writes it; "" before that."""
    ask: Ask | None
    problem: Problem | None
    template: Template
    created: str = ""
    """When it was created, as the API server writes it."""
    claims: Claims = NO_CLAIMS
    """Its claims: they differ between the pods of a StatefulSet, so they are not part of the template."""

    @property
    def gang(self) -> Membership | None:
        """The gang that it belongs to, as far as its scheduler knows gangs of this kind."""
        found = self.template.gang
        is_known = found is None or self.scheduler_name != KUBE_SCHEDULER or found.size_key[0] in OF_KUBERNETES
        return found if is_known else None

    @property
    def depends_on_namespaces(self) -> bool:
        """Whether it must be read again when the labels of a namespace change."""
        return self.template.depends_on_namespaces

    @property
    def depends_on_owners(self) -> bool:
        """Whether it must be read again when a service or a controller of its namespace changes."""
        return self.template.depends_on_owners


class PodEvent(NamedTuple):
    """A line of a watch of pods. `code` and `message` are those of an error, for example 410 if a relist is needed."""

    kind: EventKind
    pod: Pod | None
    resource_version: str
    code: int = 0
    message: str = ""


class PodPage(NamedTuple):
    """A page of a list of pods. `continue_token` is empty on the last page."""

    pods: list[Pod]
    resource_version: str
    continue_token: str


_SETTERS = {name: getattr(Ask, name).__set__ for name in Ask.__dataclass_fields__}
_SET_ID = _SETTERS.pop("id")
_SET_CLAIMS = _SETTERS["claims"]


class _Translation:
    """An ask without an id, or a problem."""

    __slots__ = ("_values", "problem")

    def __init__(self, ask: Ask | None, problem: Problem | None) -> None:
        self._values = [(setter, getattr(ask, name)) for name, setter in _SETTERS.items()] if ask else []
        self.problem = problem

    def named(self, id: str, claims: tuple[ClaimId, ...]) -> Ask | None:
        """The ask with this id and claims. Its slots are set directly: everything was checked when the template was
        translated."""
        if self.problem is not None:
            return None
        ask = object.__new__(Ask)
        _SET_ID(ask, id)
        for setter, value in self._values:
            setter(ask, value)
        if claims:
            _SET_CLAIMS(ask, claims)
        return ask


class Template:
    """What all pods with the same scheduling-relevant bytes have in common."""

    __slots__ = (
        "controller",
        "depends_on_namespaces",
        "depends_on_owners",
        "gang",
        "lenient",
        "namespace",
        "namespaces_version",
        "source",
        "stamp",
        "strict",
    )

    def __init__(self, source: bytes, pod: Fields, default_spreads: DefaultSpreads) -> None:
        self.source = source
        """These bytes: a JSON list of the namespace, whether the pod is being deleted, labels, annotations for stead,
        owner references and the cleared spec. So a template can be translated again at any time, without the pod."""
        self.namespace: str = pod["metadata"]["namespace"]
        self.controller = controller_of(pod["metadata"])
        self.gang = _gang_of(pod)
        self.depends_on_namespaces = b'"namespaceSelector"' in source
        self.depends_on_owners = bool(default_spreads.constraints) and not pod["spec"].get("topologySpreadConstraints")
        self.namespaces_version = 0
        self.stamp: Stamp = (0, None)
        self.strict: _Translation | None = None
        self.lenient: _Translation | None = None


def _pod_in(source: bytes) -> Fields:
    """A pod in API form whose scheduling-relevant bytes are `source`, with a name of one space."""
    namespace, is_deleting, labels, annotations, owner_references, spec = ANYTHING.decode(source)
    metadata = {"name": " ", "namespace": namespace, "labels": labels, "ownerReferences": owner_references}
    if is_deleting:
        metadata["deletionTimestamp"] = "now"
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": spec}


def _claims_and_others(
    volumes: list[dict[str, msgspec.Raw]], namespace: str, name: str
) -> tuple[Claims, list[dict[str, msgspec.Raw]]]:
    """The claims of a pod's volumes, and its other volumes."""
    using = [volume for volume in volumes if not CLAIMS.isdisjoint(volume)]
    if not using:
        return NO_CLAIMS, volumes
    found = [{key: ANYTHING.decode(value) for key, value in volume.items()} for volume in using]
    try:
        return claims_in(found, namespace, name), [volume for volume in volumes if CLAIMS.isdisjoint(volume)]
    except Invalid:
        return NO_CLAIMS, volumes  # so that the problem is found where the template is translated


def _gang_of(pod: Fields) -> Membership | None:
    """Its gang; None also if that does not parse: then its strict translation is a problem."""
    try:
        return membership_of(pod["metadata"], pod["spec"])
    except Invalid:
        return None


def _annotations_read(annotations: bytes) -> Mapping[str, Any] | None:
    """Those that are read; None if there are none. Others can be large and differ between equal pods."""
    if not READ_BYTES.search(annotations):
        return None
    found = ANYTHING.decode(annotations)
    return {key: found[key] for key in sorted(found) if key.startswith(OWN_ANNOTATIONS) or key in GANG_ANNOTATIONS}


class Templates:
    """Reads pods, and remembers how their templates are translated.

    Args:
        scheduler_names: The `schedulerName` of the pods that stead places. Other pods are read leniently.
        policy: The policy of pods without the annotation `stead.dev/policy`.
        default_spreads: The topology spread constraints of pods that have none of their own.
        templates_max: How many templates are kept.
        has_solver: Whether pods may use a policy that decides in batches.
    """

    def __init__(
        self,
        scheduler_names: Collection[str] = ("stead",),
        policy: PolicyName = PolicyName.KUBE,
        default_spreads: DefaultSpreads = SYSTEM_SPREADS,
        templates_max: int = TEMPLATES_MAX,
        has_solver: bool = True,
    ) -> None:
        self._scheduler_names = scheduler_names
        self._policy = policy
        self._has_solver = has_solver
        self._default_spreads = default_spreads
        self._templates: Recent[bytes, Template] = Recent(templates_max)
        self._parts: Recent[Any, Any] = Recent(PARTS_MAX)
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._namespaces_version = 0
        self._owners = Owners()

    def __len__(self) -> int:
        """How many templates are kept."""
        return len(self._templates)

    # -- what translations depend on

    def namespace_changed(self, name: str, labels: Mapping[str, str] | None) -> bool:
        """Set the labels of a namespace; None if it is deleted.

        Returns:
            Whether pods with `depends_on_namespaces` must be read again, with `reread`.
        """
        if self._namespaces.get(name) == labels:
            return False
        if labels is None:
            del self._namespaces[name]
        else:
            self._namespaces[name] = dict(labels)
        self._namespaces_version += 1
        return True

    def owner_changed(self, kind: OwnerKind, namespace: str, name: str, selector: Fields | None) -> bool:
        """Set the `spec.selector` of a service or a controller; None if it has none or is deleted.

        Returns:
            Whether pods of the namespace with `depends_on_owners` must be read again, with `reread`.
        """
        return self._owners.put(kind, namespace, name, selector)

    def reread(self, pod: Pod) -> Pod:
        """The same pod, translated by what is known now; `pod` itself if that changes nothing."""
        translation = self._translation(pod.template, self._is_lenient(pod.node_name, pod.scheduler_name))
        ask = translation.named(pod.key, pod.claims[0])
        if ask == pod.ask and translation.problem == pod.problem:
            return pod
        return msgspec.structs.replace(pod, ask=ask, problem=translation.problem)

    def lenient(self, pod: Pod) -> Ask | None:
        """The ask of a pod without the parts that do not parse or are not supported; None if nothing is left."""
        return self._translation(pod.template, lenient=True).named(pod.key, pod.claims[0])

    # -- reading

    def decode_event(self, line: bytes) -> PodEvent:
        """A line of a watch of pods; `Invalid` if it is not one."""
        try:
            event = POD_EVENT.decode(line)
        except UNREADABLE as error:
            code, message = error_in(line, error, "a watch event of pods")
            return PodEvent(EventKind.ERROR, None, "", code, message)
        if event.type is EventKind.BOOKMARK:
            return PodEvent(event.type, None, event.object.metadata.resource_version)
        return PodEvent(event.type, self._pod(event.object), event.object.metadata.resource_version)

    def decode_page(self, body: bytes) -> PodPage:
        """A page of a list of pods; `Invalid` if it is not one."""
        page = decoded(POD_PAGE, body, "a list of pods")
        pods = [self._pod(item) for item in page.items or ()]
        return PodPage(pods, page.metadata.resource_version, page.metadata.token)

    def decode_pod(self, body: bytes) -> Pod:
        """One pod; `Invalid` if it is not one."""
        return self._pod(decoded(POD, body, "a pod"))

    def _pod(self, found: PodObject) -> Pod:
        metadata, spec = found.metadata, found.spec
        if not metadata.name:
            raise Invalid("a pod must have a name such as 'web-0' under metadata.name, but one has none")
        namespace = metadata.namespace or ""
        node_name, scheduler_name = sys.intern(spec.node_name or ""), sys.intern(spec.scheduler_name or "")
        is_deleting, is_gated = bool(metadata.deletion_timestamp), bool(spec.scheduling_gates)
        spec.node_name = spec.scheduler_name = spec.scheduling_gates = None
        claims = NO_CLAIMS
        if spec.volumes:
            volumes = [volume for volume in spec.volumes if not VOLUMES_THAT_MATTER.isdisjoint(volume)]
            claims, spec.volumes = _claims_and_others(volumes, namespace, metadata.name) if volumes else (claims, [])
        parts = (
            namespace,
            is_deleting,
            metadata.labels,
            _annotations_read(bytes(metadata.annotations)),
            metadata.owner_references,
            spec,
        )
        source = ENCODER.encode(parts)
        template, pod = self._templates.get(source), None
        if template is None:
            pod = _pod_in(source)
            template = Template(source, pod, self._default_spreads)
            self._templates.put(source, template)
        translation = self._translation(template, self._is_lenient(node_name, scheduler_name), pod)
        key = f"{namespace}/{metadata.name}"
        return Pod(
            key,
            sys.intern(namespace),
            metadata.name,
            metadata.uid or "",
            node_name,
            sys.intern(found.status.phase),
            scheduler_name,
            is_deleting,
            is_gated,
            found.status.nominated_node_name or "",
            found.status.start_time or "",
            translation.named(key, claims[0]),
            translation.problem,
            template,
            metadata.creation_timestamp or "",
            claims,
        )

    def _is_lenient(self, node_name: str, scheduler_name: str) -> bool:
        return bool(node_name) or scheduler_name not in self._scheduler_names

    # -- translating

    def _translation(self, template: Template, lenient: bool, pod: Fields | None = None) -> _Translation:
        """The translation of a template by what is known now. `pod` is what its bytes say, if that is at hand."""
        if template.depends_on_namespaces and template.namespaces_version != self._namespaces_version:
            template.strict = template.lenient = None
        if template.depends_on_owners and not self._owners.is_current(
            template.namespace, template.controller, template.stamp
        ):
            template.strict = template.lenient = None
        # Pods that have been placed and pods that have not get the same objects wherever the strict reading succeeds.
        found = template.strict
        if found is None:
            template.namespaces_version = self._namespaces_version
            template.stamp = self._owners.stamp(template.namespace, template.controller)
            found = template.strict = self._translated(pod or _pod_in(template.source), lenient=False)
        if not lenient or found.problem is None:
            return found
        if template.lenient is None:
            template.lenient = self._translated(pod or _pod_in(template.source), lenient=True)
        return template.lenient

    def _translated(self, pod: Fields, lenient: bool) -> _Translation:
        try:
            ask = ask_of(
                pod,
                self._namespaces,
                policy=self._policy,
                owners=self._owners,
                default_spreads=self._default_spreads,
                lenient=lenient,
            )
            if ask.policy.in_batches and not self._has_solver and not lenient:
                raise Unsupported(
                    f"the policy {ask.policy} needs OR-tools, which this scheduler does not have; use "
                    f"{POLICY_ANNOTATION}: kube, or install stead[flow]"
                )
        except Invalid as error:
            return _Translation(None, Problem.of(error))
        return _Translation(self._shared(ask), None)

    def _shared(self, ask: Ask) -> Ask:
        """The same ask made of parts that equal asks share. So templates that differ only in a label stay small."""
        for name, setter in _SETTERS.items():
            part = getattr(ask, name)
            if not part:  # most parts are empty, and an empty part needs no memory
                continue
            shared = self._parts.get(part)
            if shared is None:
                self._parts.put(part, part)
            elif type(shared) is type(part):
                setter(ask, shared)
        return ask
