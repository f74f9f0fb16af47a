"""The workers of a RayCluster: which pod belongs to which launch, and what to write when one is launched or retired.

    workers = Workers(cluster, pods, now)
    workers.launch("launch-7", "gpu")
    workers.patch()

Rule: pure, and everything is one write of the RayCluster in the version that was read. `replicas` is lowered together
with the name of the pod that goes: of a group with more pods than replicas, KubeRay deletes any.

A launch is a record in an annotation of the RayCluster. The next pod of its group that no record has belongs to it. A
pod that nobody launched (for `minReplicas`, or because a person scales) gets a record, too; its id is the pod's name.
A record ends when its pod is gone. If KubeRay replaces the pod, that is another node, with another record. But if the
node was retired, the record waits for the replacement, which goes at once.

A replica of several hosts is as many nodes, so a launch uses a node that is coming anyway before it adds a replica.
KubeRay ends a replica as a whole, so that is written when all of its nodes are retired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from stead.engine.scaling.decisions import LaunchId
from stead.errors import Invalid, Unsupported, did_you_mean, sentence
from stead.kubernetes.fields import Fields, fields_in, items_in, number_in, text_in
from stead.kubernetes.ray_clusters import GROUP, REPLICAS_MAX
from stead.kubernetes.ray_scaling.pods import (
    created_at,
    has_ended,
    ip_of,
    is_being_deleted,
    is_stuck,
    labels_of,
    name_of,
    state_of,
)
from stead.planner.instances import Instance, InstanceState
from stead.scaling.provider import OutOfStock, Unlaunched
from stead.text import first_few, quoted

LAUNCHES = "stead.dev/launches"
"""The annotation of a RayCluster with the records of its workers, as JSON."""

LAUNCHES_BYTES_MAX = 200 << 10
"""The maximum size of the annotation. Kubernetes allows 256 KiB for all annotations together; that is about 2,000
nodes."""

REPLICA = "ray.io/worker-group-replica-name"
"""The label of a pod of a group with several hosts: which replica it belongs to. KubeRay sets it since version 1.6."""

PREFIX_MAX = 50
"""The names of KubeRay's pods begin with at most so many characters of the names of the RayCluster and the group."""

KUBERAY = "ray.io/kuberay-operator"


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one worker: its group, when it was requested, its pod once there is one, and whether it was
    retired. Nobody requested a worker whose time is 0; its id is the name of its pod."""

    group: str
    at: float = 0.0
    pod: str = ""
    retired: bool = False


@dataclass(slots=True)
class _Group:
    """A worker group: as it was read, and as it is to be written."""

    index: int
    name: str
    hosts: int
    least: int
    most: int
    replicas: int
    is_suspended: bool
    named: list[str]
    pods: dict[str, Fields]
    refusal: str = ""
    written: tuple[int, tuple[str, ...]] = (0, ())

    @property
    def alive(self) -> list[str]:
        """The pods that stay."""
        return [
            name
            for name, pod in self.pods.items()
            if name not in self.named and not is_being_deleted(pod) and not has_ended(pod)
        ]

    @property
    def missing(self) -> int:
        """How many pods KubeRay is going to create; negative if there are too many."""
        return (0 if self.is_suspended else self.replicas * self.hosts) - len(self.alive)

    def lower(self) -> None:
        """One replica less, but not less than the minimum."""
        self.replicas = max(self.least, self.replicas - 1)

    def whole(self, retired: Iterable[str]) -> list[list[str]]:
        """These pods as whole replicas; pods whose replica has others that are still in use are left out."""
        replicas: dict[str, list[str]] = {}
        for name in retired:
            replica = replica_of(self.pods[name]) if self.hosts > 1 else ""
            replicas.setdefault(replica, []).append(name)
        loose = replicas.pop("", [])  # any of them are a replica
        count = len(loose) // self.hosts * self.hosts
        found = [names for names in replicas.values() if len(names) == self.hosts]
        return found + [loose[at : at + self.hosts] for at in range(0, count, self.hosts)]


class Workers:
    """The workers of one RayCluster, from the RayCluster and the pods of its groups.

    Args:
        cluster: The RayCluster, as the API returns it.
        pods: Its worker pods, listed after the RayCluster was read. A pod that is missing is gone.
        now: The time, in seconds since 1970.

    Raises:
        Unsupported: Somebody else scales the RayCluster.
        Invalid: A part of it cannot be read.
    """

    def __init__(self, cluster: Fields, pods: Iterable[Fields], now: float) -> None:
        check_ours(cluster)
        self._cluster, self._now = cluster, now
        self._name = title_of(cluster)
        found = list(pods)
        self._groups = {each.name: each for each in _groups_of(cluster, found)}
        self._records = _records_of(cluster)
        self._before = dict(self._records)
        for group in self._groups.values():
            self._settle(group)
        for id in [id for id, record in self._records.items() if record.group not in self._groups]:
            del self._records[id]  # the group was removed from the RayCluster, and its pods with it

    # What an autoscaler asks

    def launch(self, id: LaunchId, kind: str) -> None:
        """One more node of a group. Nothing happens if the launch has a record.

        Raises:
            OutOfStock: KubeRay cannot create pods of the group, or Kubernetes has no room for one of them.
            Unlaunched: The group has its maximum, is suspended, or does not exist.
        """
        if id in self._records:
            return
        group = self._group_to_launch(kind)
        pending = [record for record in self._of(group).values() if not record.pod and not record.retired]
        if group.missing <= len(pending):
            if group.replicas >= group.most:
                raise Unlaunched(
                    f"the worker group {kind!r} of the {self._name} has its maximum of {group.most:,} replicas; "
                    "raise its maxReplicas to launch more nodes"
                )
            group.replicas += 1
        self._records[id] = Record(kind, self._now)
        if len(_written(self._records)) > LAUNCHES_BYTES_MAX:
            raise Unlaunched(
                f"the {self._name} has {len(self._records):,} nodes, and its annotation {LAUNCHES!r} has no room for "
                "one more; add a worker group with larger nodes, or a second RayCluster"
            )
        self._settle(group)

    def retire(self, id: LaunchId) -> None:
        """End a node, or a launch whose pod has not come. Nothing happens without a record."""
        record = self._records.get(id)
        if record is not None and not record.retired:
            self._records[id] = replace(record, retired=True)
            self._settle(self._groups[record.group])

    def instances(self) -> tuple[Instance, ...]:
        """Every node, with and without a pod; the nodes of a replica follow each other."""
        first: dict[str, int] = {}
        order: dict[LaunchId, tuple[bool, int]] = {}
        for number, (id, record) in enumerate(self._records.items()):
            pod = self._groups[record.group].pods.get(record.pod)
            replica = (replica_of(pod) if pod is not None else "") or id
            order[id] = (pod is None, first.setdefault(replica, number))
        return tuple(
            self._instance(id, self._records[id], self._groups[self._records[id].group])
            for id in sorted(order, key=lambda id: order[id])
        )

    def patch(self) -> list[dict[str, Any]]:
        """The JSON patch of the RayCluster that writes all of this, in the version that was read; empty if it says all
        of this already, or is being deleted."""
        metadata = fields_in(self._cluster, "metadata")
        if metadata.get("deletionTimestamp") is not None:
            return []
        found = [operation for group in self._groups.values() for operation in self._changes_of(group)]
        if self._records != self._before:
            path, written = f"/metadata/annotations/{LAUNCHES.replace('/', '~1')}", _written(self._records)
            if not fields_in(metadata, "annotations"):
                found.append({"op": "add", "path": "/metadata/annotations", "value": {LAUNCHES: written}})
            elif self._records:
                found.append({"op": "add", "path": path, "value": written})
            else:
                found.append({"op": "remove", "path": path})
        if not found:
            return []
        version = text_in(metadata, "resourceVersion")
        return [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}, *found]

    # How it follows

    def _of(self, group: _Group) -> dict[LaunchId, Record]:
        return {id: record for id, record in self._records.items() if record.group == group.name}

    def _group_to_launch(self, kind: str) -> _Group:
        if fields_in(self._cluster, "metadata").get("deletionTimestamp") is not None:
            raise Unlaunched(f"the {self._name} is being deleted; create a new one to launch nodes")
        spec = fields_in(self._cluster, "spec")
        if spec.get("suspend") or spec.get("idleSuspend"):
            raise Unlaunched(f"the {self._name} is suspended; set its field suspend to false to launch nodes")
        group = self._groups.get(kind)
        if group is None:
            known = first_few(sorted(self._groups)) or "none"
            raise Unlaunched(
                f"the {self._name} has no worker group {quoted(kind)}{did_you_mean(kind, self._groups)}; its groups "
                f"are {known}"
            )
        if group.is_suspended:
            raise Unlaunched(
                f"the worker group {kind!r} of the {self._name} is suspended; set its field suspend to false to launch "
                "nodes"
            )
        if group.refusal and group.missing > 0:
            raise OutOfStock(f"KubeRay cannot create pods of the worker group {kind!r}: {group.refusal}")
        stuck = next((name for name in group.alive if is_stuck(group.pods[name], self._now)), None)
        if stuck is not None:
            raise OutOfStock(state_of(group.pods[stuck], self._now)[1])
        return group

    def _settle(self, group: _Group) -> None:
        """Forget what is gone, give pods to launches, and let retired pods go."""
        for id, record in self._of(group).items():
            if not record.pod or record.pod in group.pods:
                continue
            if record.retired and record.pod not in group.named:  # it ended by itself, so KubeRay replaces it
                self._records[id] = replace(record, pod="", at=record.at or self._now)
            else:
                del self._records[id]
        group.named = [name for name in group.named if name in group.pods]
        self._match(group)
        alive = set(group.alive)
        for replica in group.whole(each.pod for each in self._of(group).values() if each.retired and each.pod in alive):
            group.named += replica
            group.lower()
        self._withdraw(group)

    def _match(self, group: _Group) -> None:
        """New pods belong to the launches that wait longest, retired ones last. Others are recorded under their name,
        also those that are going already."""
        known = {record.pod for record in self._of(group).values()}
        waiting = [id for id, record in self._of(group).items() if not record.pod]
        waiting.sort(key=lambda id: (self._records[id].retired, self._records[id].at))
        for pod in sorted(group.pods.values(), key=lambda each: (created_at(each), replica_of(each), name_of(each))):
            name = name_of(pod)
            if name in known:
                continue
            is_going = name in group.named or is_being_deleted(pod)
            if waiting and not is_going:
                id = waiting.pop(0)
                self._records[id] = replace(self._records[id], pod=name)
            else:
                self._records[name] = Record(group.name, pod=name)

    def _withdraw(self, group: _Group) -> None:
        """Give back the replicas of retired launches whose pods have not come. While the group has pods that may work,
        that waits until the pod comes and can be named, or until another launch uses the replica."""
        waiting = {id: record for id, record in self._of(group).items() if not record.pod}
        retired = [id for id, record in waiting.items() if record.retired]
        spare = group.missing - (len(waiting) - len(retired))
        useful = min(spare, (group.replicas - group.least) * group.hosts)
        for id in retired[: max(0, len(retired) - max(0, useful))]:
            del self._records[id]  # nothing is coming for it
        retired = [id for id in retired if id in self._records]
        while len(retired) >= group.hosts and (not group.alive or group.refusal):
            group.lower()
            for id in retired[: group.hosts]:
                del self._records[id]
            retired = retired[group.hosts :]

    def _instance(self, id: LaunchId, record: Record, group: _Group) -> Instance:
        pod = group.pods.get(record.pod)
        state, problem, ip, is_stock_out = InstanceState.STARTING, "", "", False
        if pod is not None:
            state, problem = state_of(pod, self._now)
            ip, is_stock_out = ip_of(pod), is_stuck(pod, self._now)
        elif group.is_suspended:
            problem = f"the worker group {group.name!r} is suspended"
        elif group.refusal:
            state, problem = InstanceState.FAILED, f"KubeRay cannot create its pod: {group.refusal}"
            is_stock_out = True
        if record.retired or record.pod in group.named or (pod is not None and is_being_deleted(pod)):
            state = InstanceState.ENDING
        since = record.at or (0.0 if pod is None else created_at(pod))
        return Instance(id, group.name, state, since, ip=ip, problem=problem, is_stock_out=is_stock_out)

    def _changes_of(self, group: _Group) -> list[dict[str, Any]]:
        path, (replicas, named) = f"/spec/workerGroupSpecs/{group.index}", group.written
        found: list[dict[str, Any]] = []
        if group.replicas != replicas:
            found.append({"op": "add", "path": f"{path}/replicas", "value": group.replicas})
        if tuple(group.named) != named:
            written = items_in(fields_in(self._cluster, "spec"), "workerGroupSpecs")[group.index]
            strategy = {**fields_in(written, "scaleStrategy"), "workersToDelete": group.named}
            found.append({"op": "add", "path": f"{path}/scaleStrategy", "value": strategy})
        return found


def replica_of(pod: Fields) -> str:
    """The replica of several hosts that a pod belongs to; empty if it does not say."""
    return str(labels_of(pod).get(REPLICA) or "")


def title_of(cluster: Fields) -> str:
    """``RayCluster ml/vision``."""
    metadata = fields_in(cluster, "metadata")
    return f"RayCluster {text_in(metadata, 'namespace') or 'default'}/{text_in(metadata, 'name')}"


def check_ours(cluster: Fields) -> None:
    """Refuse a RayCluster that somebody else scales."""
    spec = fields_in(cluster, "spec")
    if spec.get("enableInTreeAutoscaling"):
        raise Unsupported(
            f"the {title_of(cluster)} has enableInTreeAutoscaling: true, so Ray's own autoscaler changes its replicas; "
            "set it to false to scale it with stead"
        )
    owner = text_in(spec, "managedBy")
    if owner not in ("", KUBERAY):
        raise Unsupported(
            f"the {title_of(cluster)} is managed by {quoted(owner)}, so its pods run elsewhere; scale a RayCluster "
            f"that {KUBERAY!r} manages"
        )


def _groups_of(cluster: Fields, pods: Iterable[Fields]) -> Iterable[_Group]:
    name = text_in(fields_in(cluster, "metadata"), "name")
    of_group: dict[str, dict[str, Fields]] = {}
    for pod in pods:
        of_group.setdefault(str(labels_of(pod).get(GROUP)), {})[name_of(pod)] = pod
    spec = fields_in(cluster, "spec")
    is_suspended = bool(spec.get("suspend") or spec.get("idleSuspend"))
    for index, written in enumerate(items_in(spec, "workerGroupSpecs")):
        group = text_in(written, "groupName")
        least = number_in(written, "minReplicas")
        most = max(least, number_in(written, "maxReplicas", REPLICAS_MAX))
        replicas = number_in(written, "replicas")
        named = [str(each) for each in items_in(fields_in(written, "scaleStrategy"), "workersToDelete")]
        yield _Group(
            index,
            group,
            max(1, number_in(written, "numOfHosts", 1)),
            least,
            most,
            min(max(replicas, least), most),
            is_suspended or bool(written.get("suspend")),
            list(named),
            of_group.get(group, {}),
            _refusal(cluster, f"{name}-{group}"[:PREFIX_MAX].lower()),
            (min(max(replicas, least), most), tuple(named)),
        )


def _refusal(cluster: Fields, prefix: str) -> str:
    """Why KubeRay cannot create pods whose names begin like this, from the condition that it sets; empty if it can."""
    for condition in items_in(fields_in(cluster, "status"), "conditions"):
        if (condition.get("type"), condition.get("status")) == ("ReplicaFailure", "True"):
            message = text_in(condition, "message")
            if re.search(rf'"{re.escape(prefix)}-worker-[a-z0-9]*"', message):
                return sentence(message.removeprefix(str(condition.get("reason"))).strip())
    return ""


def _records_of(cluster: Fields) -> dict[LaunchId, Record]:
    metadata = fields_in(cluster, "metadata")
    written = fields_in(metadata, "annotations").get(LAUNCHES)
    if written is None:
        return {}
    try:
        records = {str(id): _record_of(each) for id, each in json.loads(written).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Invalid(
            f"the annotation {LAUNCHES!r} of the {title_of(cluster)} is not what stead has written; remove it with "
            f"`kubectl annotate raycluster {text_in(metadata, 'name')} {LAUNCHES}-`"
        ) from None
    return {id: record if record.at or record.pod else replace(record, pod=id) for id, record in records.items()}


def _record_of(written: Mapping[str, Any]) -> Record:
    found = Record(**written)
    good = {"group": str, "at": int | float, "pod": str, "retired": bool}
    if not all(isinstance(getattr(found, name), kind) for name, kind in good.items()):
        raise TypeError
    return found


def _written(records: Mapping[LaunchId, Record]) -> str:
    """JSON without the fields that have their usual value, because a cluster may have thousands of nodes."""
    usual = asdict(Record(""))
    short = {}
    for id, record in records.items():
        fields = asdict(record if record.at or record.pod != id else replace(record, pod=""))
        short[id] = {key: value for key, value in fields.items() if value != usual[key] or key == "group"}
    return json.dumps(short, separators=(",", ":"))
