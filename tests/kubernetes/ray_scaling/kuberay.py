"""A double of KubeRay's operator, and of the kubelets that run its pods.

It copies what ray-operator/controllers/ray/raycluster_controller.go does to the worker pods of a RayCluster:

- A group wants `replicas` times `numOfHosts` pods; replicas below the minimum or above the maximum count as those.
- Pods that ended are deleted first; new ones come in a later pass. A group waits until its own deletions are done.
- Pods in `workersToDelete` are deleted whatever `replicas` says, and their names stay in the list.
- With fewer pods than wanted, pods are created. With more, any of them are deleted, unless Ray's autoscaler is on.
- With several hosts, a replica lives and dies as a whole since version 1.6 (`indexes_hosts`); older ones count pods.
- A suspended group or RayCluster has no pods.
- If a pod cannot be created, the pass ends there, also for the groups after it, and the condition `ReplicaFailure`
  says why.

Rule: `reconciled` is pure, so that a test can run it on plain values; `KubeRay` runs it on an API server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from stead.kubernetes.ray_clusters import CLUSTER, GROUP, NODE_TYPE
from stead.kubernetes.ray_scaling.workers import REPLICA
from tests.kubernetes.objects import JSON_PATCH, MERGE, ApiError, Kubectl, Object

LETTERS = "bcdfghjklmnpqrstvwxz2456789"
ENDED = ("Failed", "Succeeded")


@dataclass
class Actions:
    """What one pass does. `at_random` are the deleted pods that nobody named."""

    created: list[Object] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    at_random: list[str] = field(default_factory=list)
    failure: str = ""


def reconciled(
    cluster: Mapping[str, Any],
    pods: Sequence[Object],
    random: Random,
    indexes_hosts: bool = True,
    full: Collection[str] = (),
    waiting_for: Collection[str] = (),
) -> Actions:
    """One pass over the worker groups. No pod of a group in `full` can be created. `waiting_for` are pods that an
    earlier pass deleted and that are not gone yet."""
    actions = Actions()
    for group in cluster["spec"].get("workerGroupSpecs") or ():
        found = [pod for pod in pods if pod["metadata"]["labels"][GROUP] == group["groupName"]]
        if any(pod["metadata"]["name"] in waiting_for for pod in found):
            continue
        hosts = max(1, group.get("numOfHosts", 1))
        if cluster["spec"].get("suspend") or group.get("suspend"):
            actions.deleted += [pod["metadata"]["name"] for pod in found]
        elif hosts > 1 and indexes_hosts:
            _reconcile_hosts(cluster, group, found, hosts, random, full, actions)
        else:
            _reconcile_group(cluster, group, found, hosts, random, full, actions)
        if actions.failure:
            break
    return actions


def _wanted(group: Mapping[str, Any]) -> int:
    return int(min(max(group.get("replicas", 0), group["minReplicas"]), group["maxReplicas"]))


def _reconcile_group(
    cluster: Mapping[str, Any],
    group: Mapping[str, Any],
    pods: Sequence[Object],
    hosts: int,
    random: Random,
    full: Collection[str],
    actions: Actions,
) -> None:
    unhealthy = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") in ENDED]
    if unhealthy:
        actions.deleted += unhealthy
        actions.failure = f"delete {len(unhealthy)} unhealthy worker Pods"
        return
    named = (group.get("scaleStrategy") or {}).get("workersToDelete") or []
    names = [pod["metadata"]["name"] for pod in pods]
    actions.deleted += [name for name in named if name in names]
    rest = [name for name in names if name not in named]
    more = _wanted(group) * hosts - len(rest)
    for _ in range(more):
        if not _create(cluster, group, random, full, actions):
            return
    if more < 0 and not cluster["spec"].get("enableInTreeAutoscaling"):
        actions.at_random += random.sample(sorted(rest), -more)
        actions.deleted += actions.at_random


def _reconcile_hosts(
    cluster: Mapping[str, Any],
    group: Mapping[str, Any],
    pods: Sequence[Object],
    hosts: int,
    random: Random,
    full: Collection[str],
    actions: Actions,
) -> None:
    replicas: dict[str, list[Object]] = {}
    for pod in pods:
        replicas.setdefault(pod["metadata"]["labels"][REPLICA], []).append(pod)
    named = set((group.get("scaleStrategy") or {}).get("workersToDelete") or [])
    phases = {id: {pod["status"].get("phase") for pod in found} for id, found in replicas.items()}
    names = {id: {pod["metadata"]["name"] for pod in found} for id, found in replicas.items()}
    incomplete = [id for id, found in names.items() if len(found) < hosts]
    unhealthy = [id for id, found in phases.items() if found & set(ENDED)]
    for going in (incomplete, unhealthy, [id for id, found in names.items() if found & named]):
        if going:
            actions.deleted += [name for id in going for name in names[id]]
            return  # the next pass creates what is missing
    more = _wanted(group) - len(replicas)
    for _ in range(more):
        replica = f"{group['groupName']}-{''.join(random.choices(LETTERS, k=5))}"
        for _ in range(hosts):
            if not _create(cluster, group, random, full, actions, replica):
                return
    if more < 0 and not cluster["spec"].get("enableInTreeAutoscaling"):
        for replica in random.sample(sorted(replicas), -more):
            actions.at_random += [pod["metadata"]["name"] for pod in replicas[replica]]
        actions.deleted += actions.at_random


def _create(
    cluster: Mapping[str, Any],
    group: Mapping[str, Any],
    random: Random,
    full: Collection[str],
    actions: Actions,
    replica: str = "",
) -> bool:
    owner, template = cluster["metadata"]["name"], group["template"]
    prefix = f"{owner}-{group['groupName']}"[:50].lower()
    name = f"{prefix}-worker-{''.join(random.choices(LETTERS, k=5))}"
    if group["groupName"] in full:
        actions.failure = f'FailedCreateWorkerPod\npods "{name}" is forbidden: exceeded quota: gpus'
        return False
    labels = {
        **(template.get("metadata", {}).get("labels") or {}),
        CLUSTER: owner,
        GROUP: group["groupName"],
        NODE_TYPE: "worker",
        **({REPLICA: replica} if replica else {}),
    }
    metadata = {"name": name, "namespace": cluster["metadata"].get("namespace", "default"), "labels": labels}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"], "status": {}}
    actions.created.append(json.loads(json.dumps(pod)))
    return True


class KubeRay:
    """The operator and the kubelets of one API server. They do something only when a test says so."""

    def __init__(self, kubectl: Kubectl, seed: int = 0, indexes_hosts: bool = True) -> None:
        self._kubectl, self._random, self._indexes_hosts = kubectl, Random(seed), indexes_hosts
        self.full: set[str] = set()
        """Groups of which no pod can be created."""
        self.at_random: list[str] = []
        """Pods that it deleted without being told which: a cluster that runs work must not lose any like that."""
        self._addresses = 0

    def step(self, name: str = "vision", namespace: str = "default") -> bool:
        """One pass. False: there was nothing to do."""
        cluster = self._kubectl.get("RayCluster", name, namespace)
        pods = self.pods(name, namespace)
        going = {pod["metadata"]["name"] for pod in pods if "deletionTimestamp" in pod["metadata"]}
        actions = reconciled(cluster, pods, self._random, self._indexes_hosts, self.full, going)
        self.at_random += actions.at_random
        for pod in actions.created:
            self._kubectl.create(pod)
        for gone in actions.deleted:
            with suppress(ApiError):  # it is gone already
                self._kubectl.delete("Pod", gone, namespace)
        self._report(cluster, actions.failure)
        return bool(actions.created or actions.deleted)

    def settle(self, name: str = "vision", namespace: str = "default") -> None:
        """Pass after pass, until there is nothing to do. Pods that are being deleted end."""
        while self.step(name, namespace):
            self.end_pods(name, namespace)

    def pods(self, name: str = "vision", namespace: str = "default") -> list[Object]:
        """The worker pods."""
        found = self._kubectl.list("Pod", namespace, labelSelector=f"{CLUSTER}={name},{NODE_TYPE}=worker")
        return sorted(found, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    def run_pods(self, of: Callable[[Object], bool] = lambda pod: True, name: str = "vision") -> list[Object]:
        """The kubelets run the pods that have not run, and return them."""
        for pod in self.pods(name):
            if pod["status"].get("phase") == "Pending" and of(pod):
                self._addresses += 1
                ip = f"10.0.{self._addresses // 250}.{self._addresses % 250 + 1}"
                self.set_status(pod, {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]})
        return self.pods(name)

    def end_pods(self, name: str = "vision", namespace: str = "default") -> None:
        """The kubelets end the pods that are being deleted."""
        for pod in self.pods(name, namespace):
            if "deletionTimestamp" in pod["metadata"]:
                self._kubectl.delete("Pod", pod["metadata"]["name"], namespace, grace_seconds=0)

    def set_status(self, pod: Object, status: Object) -> None:
        metadata = pod["metadata"]
        change = {"status": status}
        self._kubectl.patch("Pod", metadata["name"], change, metadata["namespace"], "status", content_type=MERGE)

    def _report(self, cluster: Object, failure: str) -> None:
        """The condition of the RayCluster."""
        reason, _, _ = failure.partition("\n")
        failed = {"type": "ReplicaFailure", "status": "True", "reason": reason, "message": failure}
        conditions = [failed] if reason == "FailedCreateWorkerPod" else []
        if conditions != (cluster.get("status") or {}).get("conditions", []):
            operation = {"op": "add", "path": "/status", "value": {"conditions": conditions}}
            metadata = cluster["metadata"]
            self._kubectl.patch(
                "RayCluster", metadata["name"], [operation], metadata["namespace"], "status", content_type=JSON_PATCH
            )
