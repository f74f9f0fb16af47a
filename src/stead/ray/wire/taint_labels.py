"""Static Ray labels that carry a node's taints, rare resources and default policy when it joins.

Rule: a taint given at start is a label of the node, because labels arrive together with the node: it is never known
without its taint. A taint is one label ``<effect>.taint.stead.io/<name>`` with the taint's value
(``<prefix>.<effect>.taint.stead.io/<name>`` if its key has a prefix). A rare resource is the label
``rare.stead.io/<name>=true`` of the head. The cluster's default policy is its label ``policy.stead.io/default``.
Reading returns exactly what was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from stead.errors import Invalid
from stead.language.asks import PolicyName
from stead.language.labels import NAME_LENGTH_MAX, PREFIX_LENGTH_MAX, check_value
from stead.language.resources import DEVICES
from stead.language.taints import Effect, Taint

TAINT_DOMAIN = "taint.stead.io"
RARE_DOMAIN = "rare.stead.io"
POLICY = "policy.stead.io/default"

_PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


def marks_of(taints: Iterable[Taint], rare: Iterable[str] = (), policy: PolicyName | None = None) -> dict[str, str]:
    """The labels for these taints and, on a head, for these rare resources and this default policy."""
    marks: dict[str, str] = {}
    for taint in taints:
        label = _label_of(taint)
        value = check_value(taint.value, f"the value of taint {taint.key!r},")
        if marks.setdefault(label, value) != value:
            both = f"{marks[label]!r} and {value!r}"
            raise Invalid(f"taint {taint.key!r} has the two values {both}; give one, for example '{taint}'")
    for name in rare:
        marks[f"{RARE_DOMAIN}/{_checked_rare(name)}"] = "true"
    if policy is not None:
        marks[POLICY] = policy.value
    return marks


def taints_in(labels: Mapping[str, str]) -> tuple[Taint, ...]:
    """The taints in the labels of a node, in order of key."""
    return tuple(sorted(taint for key, value in labels.items() if (taint := _taint_of(key, value))))


def rare_in(labels: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the rare resources in the labels of a head, in order."""
    return tuple(sorted(name for key, value in labels.items() if value == "true" and (name := _rare_of(key))))


def policy_in(labels: Mapping[str, str]) -> PolicyName | None:
    """The default policy in the labels of a head."""
    return PolicyName(labels[POLICY]) if _is_policy(POLICY, labels.get(POLICY, "")) else None


def plain_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that carry no taint, rare resource or policy."""
    return {
        key: value
        for key, value in labels.items()
        if _taint_of(key, value) is None and not (value == "true" and _rare_of(key)) and not _is_policy(key, value)
    }


def rare_taint(name: str) -> Taint:
    """The taint of every node that has a rare resource of this name."""
    return Taint(f"rare_resource.ray.io/{name}", "true")


def rare_resource(name: str) -> str:
    """The resource that a rare name means: users write ``gpu`` for Ray's ``GPU``."""
    return name.upper() if name.upper() in DEVICES else name


def _label_of(taint: Taint) -> str:
    prefix, slash, name = taint.key.rpartition("/")
    domain = f"{prefix}.{taint.effect}.{TAINT_DOMAIN}" if slash else f"{taint.effect}.{TAINT_DOMAIN}"
    # Slightly stricter than Ray's rule for label keys: it checks each part of the prefix, so that Ray accepts the whole
    # key.
    parts_fit = all(len(part) <= NAME_LENGTH_MAX and _PART.fullmatch(part) for part in domain.split("."))
    if not parts_fit or len(domain) > PREFIX_LENGTH_MAX:
        longest = PREFIX_LENGTH_MAX - len(f".{taint.effect}.{TAINT_DOMAIN}")
        raise Invalid(
            f"taint {taint.key!r} has the prefix {prefix!r}, which a Ray label cannot carry: at most {longest} "
            f"characters and {NAME_LENGTH_MAX} between dots are allowed, for example 'example.com/gpu_node'"
        )
    if len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise Invalid(f"taint key {taint.key!r} is not a valid Ray label key; a good one is 'gpu_node'")
    return f"{domain}/{name}"


def _taint_of(key: str, value: str) -> Taint | None:
    domain, _, name = key.rpartition("/")
    body = domain.removesuffix(f".{TAINT_DOMAIN}")
    prefix, _, effect = body.rpartition(".")
    if body == domain or effect not in {known.value for known in Effect}:
        return None
    return Taint(f"{prefix}/{name}" if prefix else name, value, Effect(effect))


def _checked_rare(name: object) -> str:
    if not isinstance(name, str) or len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise Invalid(f"rare resource {name!r} must be the name of a resource, for example 'gpu' or 'my_rare_resource'")
    return name


def _rare_of(key: str) -> str:
    domain, _, name = key.rpartition("/")
    return name if domain == RARE_DOMAIN else ""


def _is_policy(key: str, value: str) -> bool:
    return key == POLICY and value in {known.value for known in PolicyName}
