"""What a spec means on Kubernetes: manifests of pods among its work, and GPUs by their name there.

Rule: a manifest means what it would mean if it were created now, in the namespace that it names, or else the user's.
Other work needs what its pod would need if it were submitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stead.engine.facts import AsksSubmitted, AskSubmitted, Fact, GroupSubmitted
from stead.errors import Invalid, did_you_mean
from stead.kubernetes.api_objects import ENCODER
from stead.kubernetes.fields import Fields, fields_in
from stead.kubernetes.pod_manifest import KUBE_GPU
from stead.kubernetes.templates import Templates
from stead.language.asks import Ask
from stead.language.resources import GPU, Resources

Manifests = list[tuple[str, Fields]]
"""With their places in the spec, for messages."""


def taken_out(written: Any) -> tuple[Any, Manifests]:
    """A spec without its manifests, and these."""
    if not isinstance(written, Mapping):
        return written, []
    work = written.get("work")
    if not isinstance(work, list):
        return written, []
    found = [(f"work[{index}]", each) for index, each in enumerate(work) if is_manifest(each)]
    if not found:
        return written, []
    rest = {**written, "work": [each for each in work if not is_manifest(each)]}
    return {name: value for name, value in rest.items() if value}, found


def is_manifest(each: Any) -> bool:
    return isinstance(each, Mapping) and ("apiVersion" in each or "kind" in each)


def ask_in(pod: Fields, path: str, templates: Templates, namespace: str) -> Ask:
    """The ask of a manifest."""
    kind = pod.get("kind")
    if kind != "Pod":
        hint = did_you_mean(str(kind), ["Pod"])
        raise Invalid(f"{path}: kind {kind!r} cannot be explained{hint}; give a Pod, for example the template of a Job")
    metadata = fields_in(pod, "metadata")
    name = metadata.get("name") or str(metadata.get("generateName") or "new-").rstrip("-")
    named = {**metadata, "name": name, "namespace": metadata.get("namespace") or namespace}
    spec = {**fields_in(pod, "spec"), "nodeName": None, "schedulingGates": None}
    try:
        read = templates.decode_pod(ENCODER.encode({"metadata": named, "spec": spec, "status": {}}))
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from None
    if read.ask is None:
        assert read.problem is not None
        raise Invalid(f"{path}: {read.problem.sentence}")
    return read.ask


def with_gpus_of_pods(fact: Fact) -> Fact:
    """The same fact; work that needs `GPU` needs it under the name that it has on Kubernetes."""
    match fact:
        case AskSubmitted(ask):
            return AskSubmitted(_renamed(ask))
        case AsksSubmitted(ask):
            return replace(fact, ask=_renamed(ask))
        case GroupSubmitted(group):
            alternatives = tuple(tuple(map(_renamed, members)) for members in group.alternatives)
            return GroupSubmitted(replace(group, alternatives=alternatives))
        case _:
            return fact


def _renamed(ask: Ask) -> Ask:
    if not any(GPU in each.resources for each in ask.choices):
        return ask
    choices = (
        replace(each, resources=Resources({KUBE_GPU if name == GPU else name: n for name, n in each.resources.items()}))
        for each in ask.choices
    )
    return replace(ask, choices=tuple(choices))
