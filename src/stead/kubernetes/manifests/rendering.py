"""Fills in the manifests of the scheduler.

Rule: every value is checked before it is written into YAML, so that no value can change the meaning of the text around
it. The result is always the same for the same values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template

from stead.errors import Invalid
from stead.language.asks import PolicyName
from stead.text import quoted

HEADER = """\
# A Kubernetes scheduler, printed by `stead scheduler manifests`. Review it, then apply it with `kubectl apply -f -`.
"""

NAMESPACE = "stead-system"
REPLICAS_MAX = 100

NAMESPACE_LENGTH_MAX, NAME_LENGTH_MAX, IMAGE_LENGTH_MAX = 63, 253, 500

_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_PART = "[a-z0-9]+(?:(?:[.]|_{1,2}|-+)[a-z0-9]+)*"
_IS_NAMESPACE = re.compile(_LABEL)
_IS_NAME = re.compile(rf"{_LABEL}(?:[.]{_LABEL})*")
_IS_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9](?:[-.A-Za-z0-9]*[A-Za-z0-9])?(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][-.\w]{0,127})?(?:@[a-z0-9]+:[0-9a-f]{32,128})?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Installation:
    """How the scheduler is installed.

    Attributes:
        image: The container image, for example ``registry.example.com/stead:0.1.0``.
        namespace: The namespace of the scheduler and its Lease.
        names: Pods with one of these as `spec.schedulerName` are scheduled. The first one is also the Lease's name.
        policy: The policy of pods without the annotation `stead.dev/policy`.
        replicas: How many pods run. One of them schedules, and the others wait to take over.
    """

    image: str
    namespace: str = NAMESPACE
    names: Sequence[str] = ("stead",)
    policy: PolicyName = PolicyName.KUBE
    replicas: int = 2

    def __post_init__(self) -> None:
        check_namespace(self.namespace)
        check_image(self.image)
        for name in self.names:
            check_scheduler_name(name)
        if not self.names:
            raise Invalid("a scheduler needs at least one name, for example 'stead'")
        if not 1 <= self.replicas <= REPLICAS_MAX:
            raise Invalid(f"the number of replicas must be between 1 and {REPLICAS_MAX}, not {self.replicas}")


def check_namespace(name: str) -> None:
    if not _IS_NAMESPACE.fullmatch(name) or len(name) > NAMESPACE_LENGTH_MAX:
        raise Invalid(
            f"{quoted(name)} is not a name for a namespace; use up to {NAMESPACE_LENGTH_MAX} lowercase letters, digits "
            f"and '-', for example 'stead-system'"
        )


def check_scheduler_name(name: str) -> None:
    """The API server accepts other names too, but the first name is also that of the Lease."""
    if not _IS_NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise Invalid(
            f"{quoted(name)} is not a name for a scheduler; use up to {NAME_LENGTH_MAX} lowercase letters, digits, "
            f"'-' and '.', for example 'stead'"
        )


def check_lease_name(name: str) -> None:
    if not _IS_NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise Invalid(
            f"{quoted(name)} is not a name for a Lease; use up to {NAME_LENGTH_MAX} lowercase letters, digits, '-' and "
            f"'.', for example 'stead'"
        )


def check_image(image: str) -> None:
    if not _IS_IMAGE.fullmatch(image) or len(image) > IMAGE_LENGTH_MAX:
        raise Invalid(f"{quoted(image)} is not a container image; use a name like 'registry.example.com/stead:0.1.0'")


def manifests(installation: Installation) -> str:
    """The YAML to apply. Namespaces of Kubernetes itself are not part of it: they exist, and must not be changed.

    A single replica has no disruption budget, because that would block every drain of its node.
    """
    names = tuple(dict.fromkeys(installation.names))
    values = {
        "image": installation.image,
        "lease": names[0],
        "namespace": installation.namespace,
        "policy": installation.policy.value,
        "replicas": str(installation.replicas),
        "scheduler_names": "\n            ".join(f"- --scheduler-name={name}" for name in names),
    }
    is_new = installation.namespace != "default" and not installation.namespace.startswith("kube-")
    parts = [
        *(["namespace.yaml"] if is_new else []),
        "scheduler.yaml",
        *(["disruption_budget.yaml"] if installation.replicas > 1 else []),
    ]
    folder = files("stead.kubernetes.manifests")
    return HEADER + "".join(Template((folder / part).read_text(encoding="utf-8")).substitute(values) for part in parts)
