"""Random Kubernetes clusters for property tests, as objects in the API's JSON form.

Rule: everything is drawn from the generator that the caller seeds, so a seed replays its cluster. Objects look as users
write them: the API server's defaults (requests from limits, host ports of hostNetwork pods, merged matchLabelKeys) are
not applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar

Object = dict[str, Any]
T = TypeVar("T")

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

NAMESPACES: dict[str, dict[str, str]] = {
    "default": {},
    "shop": {"team": "red", "stage": "live"},
    "shop-test": {"team": "red", "stage": "test"},
    "bank": {"team": "blue", "stage": "live"},
}
UNLISTED = "forgotten"
"""A namespace that pods use and that is not among the namespaces of the cluster."""

APPS = ("web", "api", "db", "cache")
IMAGES = {
    "nginx:1.27": 70 << 20,
    "registry.example.com/api:v2": 450 << 20,
    "registry.example.com:5000/train:latest": 4000 << 20,
    "busybox:latest": 4 << 20,
}
WRITTEN_IMAGES = (*IMAGES, "busybox", "registry.example.com:5000/train", "unknown:1")
TOPOLOGY_KEYS = (*[HOSTNAME] * 4, *[ZONE] * 4, "rack", "rack", "missing")
TAINTS = (
    ("gpu", "yes"),
    ("gpu", ""),
    ("dedicated", "batch"),
    ("dedicated", "web"),
    ("node.kubernetes.io/not-ready", ""),
)
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
CPUS = ("0", "1m", "100m", "250m", "0.5", "1", "1.5", "2", "1e0", "1500m")
MEMORIES = ("0", "1", "64Mi", "128M", "200Mi", "0.5Gi", "1Gi", "1.5Gi", "3e8", "1000000k", "129e6", "123456789")
ADDRESSES = (None, "", "0.0.0.0", "127.0.0.1", "10.0.0.7")


class RandomCluster(NamedTuple):
    nodes: list[Object]
    placed: list[Object]
    pending: list[Object]
    namespaces: dict[str, dict[str, str]]
    services: list[Object]
    replicasets: list[Object]


def cluster(random: Random, size: int, broken: float = 0.02) -> RandomCluster:
    """A cluster of `size` nodes, three times as many placed pods and half as many pending ones, at least four.

    `broken` is the probability that a selector or an expression is not valid.
    """
    draw = Draw(random, broken)
    names = [f"node-{number}" for number in range(size)]
    nodes = [draw.node(name) for name in names]
    homes = [*names, *names, *names, "gone"]
    placed = [draw.placed(f"placed-{number}", names, random.choice(homes)) for number in range(3 * size)]
    pending = [draw.pod(f"pending-{number}", names) for number in range(max(4, size // 2))]
    services = [draw.service(f"service-{number}") for number in range(3)]
    replicasets = [draw.replicaset(app, namespace) for app in APPS[:2] for namespace in ("default", "shop")]
    return RandomCluster(nodes, placed, pending, dict(NAMESPACES), services, replicasets)


class Draw:
    """Draws one kind of object after the other from a seeded generator."""

    def __init__(self, random: Random, broken: float) -> None:
        self.random = random
        self.broken = broken
        self.app = APPS[0]  # of the pod that is being drawn: selectors prefer it, as they do in real clusters

    def often(self, probability: float) -> bool:
        return self.random.random() < probability

    def some(self, values: Sequence[T], most: int) -> list[T]:
        return self.random.sample(values, self.random.randint(0, min(most, len(values))))

    def many(self, draw: Callable[[], T], most: int) -> list[T]:
        return [draw() for _ in range(self.random.randint(0, most))]

    # -- nodes

    def node(self, name: str) -> Object:
        return {
            "metadata": {"name": name, "labels": self.node_labels(name)},
            "spec": self.node_spec(),
            "status": {**self.node_resources(), "images": self.node_images()},
        }

    def node_labels(self, name: str) -> Object:
        labels = {}
        if self.often(0.95):
            labels[HOSTNAME] = name
        if self.often(0.85):
            labels[ZONE] = self.random.choice(["a", "b", "c"])
        if self.often(0.5):
            labels["rack"] = self.random.choice(["r1", "r2", "r3", ""])
        if self.often(0.7):
            labels["disk"] = self.random.choice(["ssd", "hdd"])
        if self.often(0.6):
            labels["cores"] = self.random.choice(["4", "8", "16", "016", "many", "", "99999999999999999999"])
        return labels

    def node_spec(self) -> Object:
        spec: Object = {}
        if self.often(0.25):
            spec["taints"] = self.many(self.taint, 2)
        if self.often(0.06):
            spec["unschedulable"] = True
        return spec

    def taint(self) -> Object:
        key, value = self.random.choice(TAINTS)
        taint = {"key": key, "effect": self.random.choice(EFFECTS)}
        return {**taint, "value": value} if value or self.often(0.5) else taint

    def node_resources(self) -> Object:
        resources = {
            "cpu": self.random.choice(["4", "8", "3920m", "7.5", "1e1", "16", "1"]),
            "memory": self.random.choice(["8Gi", "16Gi", "7915Mi", "1e10", "4000000k", "2147483647"]),
            "pods": self.random.choice(["110", "110", "110", "110", "8", "3", "1"]),
        }
        if self.often(0.8):
            resources["ephemeral-storage"] = self.random.choice(["100Gi", "1G"])
        if self.often(0.5):
            resources["example.com/gpu"] = self.random.choice(["0", "1", "8"])
        if self.often(0.4):
            resources["hugepages-2Mi"] = self.random.choice(["0", "64Mi", "1Gi"])
        if self.often(0.05):
            del resources[self.random.choice(["cpu", "memory"])]
        if self.often(0.05):
            return {"capacity": resources}
        return {"capacity": resources, "allocatable": resources}

    def node_images(self) -> list[Object]:
        return [
            {"names": [name, f"{name.rpartition(':')[0]}@sha256:0"], "sizeBytes": IMAGES[name]}
            for name in self.some(list(IMAGES), 3)
        ]

    # -- pods

    def placed(self, name: str, nodes: Sequence[str], home: str) -> Object:
        pod = self.pod(name, nodes)
        pod["spec"]["nodeName"] = home
        pod["status"] = {"phase": self.random.choice(["Running"] * 8 + ["Pending", "Succeeded", "Failed"])}
        if self.often(0.1):
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return pod

    def pod(self, name: str, nodes: Sequence[str]) -> Object:
        self.app, namespace = self.random.choice(APPS), self.namespace()
        metadata: Object = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
        if self.often(0.95):
            metadata["labels"] = {"app": self.app, "version": self.random.choice(["1", "2"])}
            if self.often(0.4):
                metadata["labels"]["tier"] = self.random.choice(["front", "back", ""])
        if self.often(0.3):
            metadata["ownerReferences"] = [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{self.app}-set",
                    "controller": self.often(0.9),
                }
            ]
        spec: Object = {"containers": [self.container(f"main-{n}") for n in range(self.random.randint(1, 2))]}
        self.add_containers(spec)
        self.add_node_rules(spec, nodes)
        if self.often(0.4):
            spec["affinity"] = {**spec.get("affinity", {}), **self.pod_affinity()}
        if self.often(0.4):
            spec["topologySpreadConstraints"] = self.many(self.spread, 2)
        return {"metadata": metadata, "spec": spec}

    def namespace(self) -> str:
        return self.random.choice([*["default"] * 6, *["shop"] * 3, "shop-test", "bank", UNLISTED])

    def container(self, name: str, ports: float = 0.2) -> Object:
        container: Object = {"name": name, "image": self.random.choice(WRITTEN_IMAGES)}
        if self.often(0.8):
            container["resources"] = self.container_resources()
        if self.often(ports):
            container["ports"] = self.many(self.port, 2)
        return container

    def container_resources(self) -> Object:
        found: Object = {}
        if self.often(0.9):
            found["requests"] = self.amounts()
        if self.often(0.2):
            found["limits"] = self.amounts()
        return found

    def amounts(self) -> Object:
        amounts = {}
        if self.often(0.8):
            amounts["cpu"] = self.random.choice(CPUS)
        if self.often(0.8):
            amounts["memory"] = self.random.choice(MEMORIES)
        if self.often(0.06):
            amounts["ephemeral-storage"] = self.random.choice(["0", "100M", "2Gi"])
        if self.often(0.04):
            amounts["example.com/gpu"] = self.random.choice(["0", "1", "2"])
        if self.often(0.02):
            amounts["hugepages-2Mi"] = self.random.choice(["2Mi", "64Mi"])
        return amounts

    def port(self) -> Object:
        port: Object = {"containerPort": self.random.choice([80, 443, 8080])}
        if self.often(0.7):
            port["hostPort"] = self.random.choice([80, 443, 8080, 0])
        if (address := self.random.choice(ADDRESSES)) is not None:
            port["hostIP"] = address
        if self.often(0.5):
            port["protocol"] = self.random.choice(["TCP", "UDP"])
        return port

    def add_containers(self, spec: Object) -> None:
        """What a pod may have besides its containers: init containers, sidecars, overhead, resources as a whole."""
        if self.often(0.3):
            spec["initContainers"] = [self.container(f"init-{n}") for n in range(self.random.randint(1, 3))]
            for container in spec["initContainers"]:
                if self.often(0.4):
                    container["restartPolicy"] = "Always"
        if self.often(0.1):
            spec["overhead"] = {"cpu": "50m", "memory": "32Mi"}
        if self.often(0.1):
            spec["resources"] = {"requests": {"cpu": self.random.choice(CPUS)}}
            if self.often(0.5):
                spec["resources"]["limits"] = {"cpu": "2", "memory": "1Gi"}
        if self.often(0.1):
            spec["hostNetwork"] = True
        if self.often(0.05):
            image = {"reference": self.random.choice(WRITTEN_IMAGES)}
            spec["volumes"] = [{"name": "model", "image": image}, {"name": "scratch", "emptyDir": {}}]

    # -- rules about nodes

    def add_node_rules(self, spec: Object, nodes: Sequence[str]) -> None:
        if self.often(0.4):
            spec["tolerations"] = self.many(self.toleration, 3)
        if self.often(0.15):
            spec["nodeSelector"] = {"disk": self.random.choice(["ssd", "hdd"])} if self.often(0.9) else {}
        if not self.often(0.4):
            return
        affinity: Object = {}
        if self.often(0.4):
            affinity[REQUIRED] = self.required_nodes(nodes)
        if self.often(0.7):
            affinity[PREFERRED] = self.many(lambda: self.preferred_nodes(nodes), 3)
        spec["affinity"] = {"nodeAffinity": affinity}

    def toleration(self) -> Object:
        key, value = self.random.choice(TAINTS)
        found: Object = {"operator": self.random.choice(["Exists", "Equal", "Equal", ""])}
        if self.often(0.85):
            found["key"] = self.random.choice([key, "node.kubernetes.io/unschedulable"])
        if found["operator"] != "Exists":
            found["value"] = value
        if self.often(0.6):
            found["effect"] = self.random.choice(EFFECTS)
        if self.often(0.02):
            found.update(operator=self.random.choice(["Lt", "Gt"]), value="5")
        return found

    def required_nodes(self, nodes: Sequence[str]) -> Object | None:
        if self.often(0.05):
            return None
        terms: list[Object | None] = [self.node_term(nodes) for _ in range(self.random.randint(1, 2))]
        if self.often(0.1):
            terms.append(self.random.choice([{}, None, {"matchExpressions": [], "matchFields": None}]))
        return {"nodeSelectorTerms": [] if self.often(0.03) else terms}

    def preferred_nodes(self, nodes: Sequence[str]) -> Object:
        return {
            "weight": self.random.choice([1, 2, 10, 50, 99, 100]),
            "preference": {} if self.often(0.1) else self.node_term(nodes),
        }

    def node_term(self, nodes: Sequence[str]) -> Object:
        term: Object = {}
        if self.often(0.9):
            term["matchExpressions"] = [self.node_expression() for _ in range(self.random.randint(1, 2))]
        if not term or self.often(0.1):
            name = self.random.choice([*nodes, "gone"])
            operator = self.random.choice(["In", "In", "NotIn"])
            term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [name]}]
        return term

    def node_expression(self) -> Object:
        if self.often(self.broken):
            return self.random.choice(
                [
                    {"key": "disk", "operator": "In", "values": ["-not a value-"]},
                    {"key": "disk", "operator": "In", "values": []},
                    {"key": "disk", "operator": "Exists", "values": ["ssd"]},
                    {"key": "cores", "operator": "Gt", "values": ["four"]},
                    {"key": "cores", "operator": "Lt", "values": ["4", "8"]},
                    {"key": "not a key", "operator": "Exists"},
                    {"key": "disk", "operator": "Near", "values": ["ssd"]},
                ]
            )
        if self.often(0.25):
            return {"key": "cores", "operator": self.random.choice(["Gt", "Lt"]), "values": [self.some_cores()]}
        operator = self.random.choice(["In", "In", "NotIn", "Exists", "DoesNotExist"])
        key, values = self.random.choice([("disk", ["ssd", "hdd"]), (ZONE, ["a", "b", "c"]), ("rack", ["r1", ""])])
        expression: Object = {"key": key, "operator": operator}
        if operator in ("In", "NotIn"):
            expression["values"] = self.some(values, 2) or values[:1]
        return expression

    def some_cores(self) -> str:
        return self.random.choice(["0", "4", "8", "010", "9223372036854775807"])

    # -- rules about pods

    def pod_affinity(self) -> Object:
        found: Object = {}
        for kind in ("podAffinity", "podAntiAffinity"):
            if not self.often(0.6):
                continue
            found[kind] = {}
            if self.often(0.5):
                found[kind][REQUIRED] = self.many(self.pod_term, 2)
            if self.often(0.7):
                found[kind][PREFERRED] = self.many(self.weighted_pod_term, 2)
        return found

    def weighted_pod_term(self) -> Object:
        return {"weight": self.random.choice([1, 5, 50, 100]), "podAffinityTerm": self.pod_term()}

    def pod_term(self) -> Object:
        term: Object = {"topologyKey": self.random.choice(TOPOLOGY_KEYS), "labelSelector": self.selector()}
        if self.often(0.2):
            term["namespaces"] = self.some([*NAMESPACES, UNLISTED], 2)
        if self.often(0.25):
            team = {"matchLabels": {"team": self.random.choice(["red", "blue"])}}
            not_test = {"matchExpressions": [{"key": "stage", "operator": "NotIn", "values": ["test"]}]}
            term["namespaceSelector"] = self.random.choice([None, {}, team, not_test])
        if self.often(0.1):
            term["matchLabelKeys"] = ["version"]
        if self.often(0.1):
            term["mismatchLabelKeys"] = ["tier"]
        return term

    def selector(self) -> Object | None:
        if self.often(0.05):
            return None
        if self.often(0.05):
            return {}
        if self.often(self.broken):
            return {"matchExpressions": [{"key": "app", "operator": "In", "values": ["{{.bad-value.}}"]}]}
        selector: Object = {}
        if self.often(0.7):
            selector["matchLabels"] = {"app": self.app if self.often(0.6) else self.random.choice(APPS)}
        if not selector or self.often(0.2):
            selector["matchExpressions"] = [
                self.random.choice(
                    [
                        {"key": "app", "operator": "In", "values": ["web", "api"]},
                        {"key": "tier", "operator": "NotIn", "values": ["back"]},
                        {"key": "tier", "operator": "Exists"},
                        {"key": "tier", "operator": "DoesNotExist"},
                    ]
                )
            ]
        return selector

    def spread(self) -> Object:
        hard = self.often(0.6)
        constraint: Object = {
            "maxSkew": self.random.choice([1, 1, 1, 2, 3]),
            "topologyKey": self.random.choice(TOPOLOGY_KEYS),
            "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
            "labelSelector": self.selector(),
        }
        if hard and self.often(0.2):
            constraint["minDomains"] = self.random.choice([1, 2, 3, 5])
        if self.often(0.2):
            constraint["nodeAffinityPolicy"] = self.random.choice(["Honor", "Ignore"])
        if self.often(0.2):
            constraint["nodeTaintsPolicy"] = self.random.choice(["Honor", "Ignore"])
        if self.often(0.2) and constraint["labelSelector"] is not None:
            constraint["matchLabelKeys"] = self.some(["version", "tier", "absent"], 2)
        return constraint

    # -- services and controllers

    def service(self, name: str) -> Object:
        selector: Object | None = {"app": self.random.choice(APPS)}
        if self.often(0.2):
            selector = self.random.choice([None, {}, {"app": "web", "version": "1"}])
        namespace = self.random.choice(["default", "shop"])
        return {"metadata": {"name": name, "namespace": namespace}, "spec": {"selector": selector}}

    def replicaset(self, app: str, namespace: str) -> Object:
        selector: Object = {"matchLabels": {"app": app}}
        if self.often(0.3):
            selector["matchExpressions"] = [{"key": "version", "operator": "In", "values": ["1", "2"]}]
        return {"metadata": {"name": f"{app}-set", "namespace": namespace}, "spec": {"selector": selector}}
