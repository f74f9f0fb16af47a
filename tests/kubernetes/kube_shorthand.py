"""Short ways to write the objects that the oracle's own tests are about.

Rule: a default is what most cases need: a pod of the app `web` without requests, and a node with room for it.
"""

from __future__ import annotations

from typing import Any

from tests.kubernetes.kube_selectors import Fields

Object = dict[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"
WEB = {"matchLabels": {"app": "web"}}


def node(name: str = "a", labels: Fields | None = None, allocatable: Fields | None = None, **spec: Any) -> Object:
    room = {"cpu": "4", "memory": "8Gi", "pods": "110"} if allocatable is None else allocatable
    return {
        "metadata": {"name": name, "labels": {HOSTNAME: name, **(labels or {})}},
        "spec": spec,
        "status": {"allocatable": room},
    }


def pod(
    on: str = "", app: str = "web", namespace: str = "default", metadata: Fields | None = None, **spec: Any
) -> Object:
    where = {"nodeName": on} if on else {}
    return {
        "metadata": {"name": f"{app}-{on}", "namespace": namespace, "labels": {"app": app}, **(metadata or {})},
        "spec": {"containers": [container()], **where, **spec},
    }


def container(**requests: str) -> Object:
    return {
        "name": "main",
        "resources": {"requests": {name.replace("_", "-"): text for name, text in requests.items()}},
    }


def needs(*terms: Fields | None) -> Object:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def expression(key: str, operator: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def names(operator: str, *values: str) -> Object:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(values)}]}


def near(*terms: Fields) -> Object:
    return {"affinity": {"podAffinity": {REQUIRED: list(terms)}}}


def apart(*terms: Fields) -> Object:
    return {"affinity": {"podAntiAffinity": {REQUIRED: list(terms)}}}


def term(selector: Fields | None = WEB, key: str = "zone", **more: Any) -> Object:
    return {"labelSelector": selector, "topologyKey": key, **more}


def spread(selector: Fields | None = WEB, key: str = "zone", **more: Any) -> Object:
    constraint = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return {"topologySpreadConstraints": [{**constraint, **more}]}


def port(number: int, **more: Any) -> Object:
    return {"containers": [{"name": "main", "ports": [{"containerPort": number, "hostPort": number, **more}]}]}


def taint(effect: str = "NoSchedule", value: str = "yes") -> Object:
    return {"taints": [{"key": "gpu", "value": value, "effect": effect}]}


def tolerate(**toleration: str) -> Object:
    return {"tolerations": [toleration]}


A, B, C = node("a", {"zone": "1"}), node("b", {"zone": "2"}), node("c")
"""Two zones of one node each, and a node without a zone."""
