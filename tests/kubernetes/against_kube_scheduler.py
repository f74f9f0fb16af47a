"""Compares stead, and the oracle of the tests, with a real kube-scheduler on random clusters.

    python -m tests.kubernetes.against_kube_scheduler --apiserver ./kube-apiserver --scheduler ./kube-scheduler

Every cluster is created in a real API server, and both sides read it from there. kube-scheduler places the pending pods
one after the other. Its log says for each pod which nodes fit, how every plugin scores them, or why no node fits.

Rule: kube-scheduler is right. stead is asked at the same state, and then continues from kube-scheduler's choice. A
known difference is counted by its reason, and only if the reason explains the answers exactly. Nothing is downloaded or
built.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self

import yaml

from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, AskSubmitted, NodeJoined
from stead.engine.fleet import rows_of
from stead.engine.settings import Settings
from stead.kubernetes.cluster import FINISHED
from stead.kubernetes.default_spread import OwnerKind
from stead.kubernetes.node_reader import NodeReader
from stead.kubernetes.templates import Pod, Templates
from stead.kubernetes.wording import fit_error
from stead.language.asks import Ask
from tests.kubernetes import kube_oracle, random_clusters
from tests.kubernetes.kube_cluster import completed
from tests.kubernetes.kube_requests import container_amounts, is_extended, is_hugepages, largest, quantity, requests
from tests.kubernetes.kube_selectors import label_selector, matches
from tests.kubernetes.objects import KINDS, ApiError, Kubectl, namespace
from tests.kubernetes.servers.real import RealServer, Unavailable
from tests.kubernetes.test_engine_equals_kube_scheduler import names_nodes_beside_broken_terms, stored

Object = dict[str, Any]

SCHEDULER = "default-scheduler"
VERDICT_SECONDS_MAX = 30.0
POLL_SECONDS = 0.01
RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
HEAVY = "heavy"
"""The runtime class of pods with an overhead: the API server accepts an overhead only from a runtime class."""


# -- objects that the API server accepts


def accepted_node(node: Object, tainted: bool) -> Object:
    """The node without repeated taints. If `tainted`, a cordoned node has the taint of Kubernetes' controller."""
    found = dict(stored(node)) if tainted else node
    taints = {(each["key"], each["effect"]): each for each in found["spec"].get("taints") or ()}
    return {"apiVersion": "v1", "kind": "Node", **found, "spec": {**found["spec"], "taints": list(taints.values())}}


def accepted_pod(pod: Object) -> Object:
    """The pod, changed as little as possible so that the API server accepts most of what the generator draws."""
    pod = {"apiVersion": "v1", "kind": "Pod", **deepcopy(pod)}
    metadata, spec = pod["metadata"], pod["spec"]
    metadata.pop("deletionTimestamp", None)
    for owner in metadata.get("ownerReferences") or ():
        owner["uid"] = f"uid-of-{owner['name']}"
    spec["schedulerName"] = SCHEDULER
    if spec.get("overhead"):
        spec["runtimeClassName"] = HEAVY
    _repair_resources(pod)
    _repair_ports(spec)
    for toleration in spec.get("tolerations") or ():
        if not toleration.get("key") and toleration["operator"] != "Exists":
            toleration.update(operator="Exists", value="")
    drawn = spec.get("topologySpreadConstraints") or ()
    spreads = list({(each["topologyKey"], each["whenUnsatisfiable"]): each for each in drawn}.values())
    spec["topologySpreadConstraints"] = spreads
    for term in (*_pod_terms(spec), *spreads):
        selector = json.dumps(term.get("labelSelector"))
        for name in {"matchLabelKeys", "mismatchLabelKeys"} & term.keys():  # none that the selector uses already
            term[name] = [key for key in term[name] if selector != "null" and f'"{key}"' not in selector]
    return pod


def _repair_resources(pod: Object) -> None:
    """No limit is below its request, and what a pod requests as a whole is not below what its containers request."""
    for container in _containers(pod["spec"]):
        resources = container.get("resources") or {}
        limits, asked = resources.get("limits") or {}, resources.get("requests") or {}
        for name, text in asked.items():
            is_whole = is_extended(name) or is_hugepages(name)  # then limit and request must be equal
            if is_whole or (name in limits and quantity(limits[name]) < quantity(text)):
                resources["limits"] = limits = {**limits, name: text}
        if any(map(is_hugepages, limits)) and not {"cpu", "memory"} & (limits.keys() | asked.keys()):
            resources["requests"] = {**asked, "cpu": "1m"}
    whole, needed = pod["spec"].get("resources") or {}, container_amounts(completed(pod), "requests")
    for kind in ("requests", "limits"):
        needed = largest(needed, container_amounts(completed(pod), kind))
        for name, text in (whole.get(kind) or {}).items():
            needed[name] = max(quantity(text), needed.get(name, quantity(text)))
            whole[kind][name] = f"{int(needed[name] * 1000)}m"


def _repair_ports(spec: Object) -> None:
    """No host port appears twice, and on the host network it is the container's port."""
    seen: set[tuple[object, ...]] = set()
    for container in _containers(spec):
        ports, container["ports"] = container.get("ports") or (), []
        for port in ports:
            if spec.get("hostNetwork"):
                port["hostPort"] = port["containerPort"]
            host = (port.get("hostPort"), port.get("protocol") or "TCP", port.get("hostIP") or "")
            if not host[0] or host not in seen:
                container["ports"].append(port)
                seen.add(host)


def _containers(spec: Object) -> list[Object]:
    return [*spec["containers"], *(spec.get("initContainers") or ())]


def _pod_terms(spec: Object) -> list[Object]:
    rules = [(spec.get("affinity") or {}).get(kind) or {} for kind in ("podAffinity", "podAntiAffinity")]
    required = [term for each in rules for term in each.get(random_clusters.REQUIRED) or ()]
    preferred = [term for each in rules for term in each.get(random_clusters.PREFERRED) or ()]
    return required + [each["podAffinityTerm"] for each in preferred]


# -- kube-scheduler


@dataclass
class Verdict:
    """What kube-scheduler did with one pod. `error` is set if its cycle failed before it had an answer."""

    node: str | None = None
    message: str = ""
    error: str = ""
    totals: dict[str, int] = field(default_factory=dict)
    """The score of each feasible node; empty unless there are at least two."""
    by_plugin: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def feasible(self) -> set[str]:
        return set(self.totals) or ({self.node} if self.node else set())

    @property
    def best(self) -> set[str]:
        most = max(self.totals.values(), default=0)
        return {name for name, total in self.totals.items() if total == most} or self.feasible

    @property
    def kind(self) -> str:
        fitting = "several nodes fit" if self.totals else "one node fits" if self.node else "no node fits"
        return "the cycle fails" if self.error else fitting


LINE = re.compile(r'\] "((?:[^"\\]|\\.)*)"(.*)')
FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')


class KubeScheduler:
    """A kube-scheduler from `with` to the end of the block. It has seen the whole cluster when its first pod comes: it
    lists everything at its start, before it schedules.

    Preemption is off, so nothing is evicted. OpportunisticBatching is off, because with it a pod that equals the one
    before gets its next best node without scores.
    """

    def __init__(self, program: Path, server: RealServer) -> None:
        self._server = server
        self._log, config = server.folder / "kube-scheduler.log", server.folder / "kube-scheduler.yaml"
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(server.kubeconfig_path), "qps": 1000, "burst": 2000},
            "leaderElection": {"leaderElect": False},
            "percentageOfNodesToScore": 100,
            "profiles": [{"schedulerName": SCHEDULER, "plugins": {"postFilter": {"disabled": [{"name": "*"}]}}}],
        }
        config.write_text(yaml.safe_dump(configuration), encoding="utf-8")
        self._words = [str(program), f"--config={config}", "--secure-port=0", "-v=2", "--vmodule=schedule_one=10"]
        self._words.append("--feature-gates=OpportunisticBatching=false")

    def __enter__(self) -> Self:
        self._log.write_text("", encoding="utf-8")
        self._process = self._server._launch(self._words, self._log)
        self._reader = self._log.open(encoding="utf-8", errors="replace")
        self._part = ""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._reader.close()
        self._process.kill()
        self._process.wait()

    def verdict(self, key: str) -> Verdict:
        """Wait for the outcome of a pod, ``namespace/name``."""
        found, deadline, pause = Verdict(), time.monotonic() + VERDICT_SECONDS_MAX, threading.Event()
        while True:
            *lines, self._part = (self._part + self._reader.read()).split("\n")  # the last line may be incomplete
            for line in lines:
                if self._note(line, key, found):
                    return found
            if self._process.poll() is not None:
                output = self._log.read_text(encoding="utf-8", errors="replace").strip()[-300:]
                raise Unavailable(f"kube-scheduler ended with {self._process.returncode}: {output or 'no output'}")
            if time.monotonic() > deadline:
                raise Unavailable(f"kube-scheduler said nothing about {key} for {VERDICT_SECONDS_MAX:.0f} s")
            pause.wait(POLL_SECONDS)

    @staticmethod
    def _note(line: str, key: str, found: Verdict) -> bool:
        """Add what a line of the log says about the pod. Returns whether it is the outcome."""
        parts = LINE.search(line)
        if parts is None:
            return False
        text, values = parts[1], {name: _unquoted(value) for name, value in FIELD.findall(parts[2])}
        if values.get("pod") != key:
            return False
        if text == "Plugin scored node for pod":
            found.by_plugin.setdefault(values["node"], {})[values["plugin"]] = int(values["score"])
        elif text == "Calculated node's final score for pod":
            found.totals[values["node"]] = int(values["score"])
        elif text == "Successfully bound pod to node":
            found.node = values["node"]
            if int(values["feasibleNodes"]) != len(found.feasible):
                raise Unavailable(f"the log of kube-scheduler is not complete: {line}")
        elif text.startswith("Unable to schedule pod; no "):
            found.message = values.get("err", kube_oracle.NO_NODES)
        elif text.startswith("Error scheduling pod"):
            found.error = values["err"]
        return bool(found.node or found.message or found.error)


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


# -- the cluster in the API server


class Cluster:
    """One random cluster in the API server. Objects are counted by kind; `refused` are those that are not valid."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self.created, self.refused = Counter[str](), Counter[str]()
        for name, labels in {**random_clusters.NAMESPACES, random_clusters.UNLISTED: {}}.items():
            if name != "default":
                kubectl.create(namespace(name, labels))
        overhead = {"podFixed": {"cpu": "50m", "memory": "32Mi"}}
        self._send("POST", RUNTIME_CLASSES, {"metadata": {"name": HEAVY}, "handler": HEAVY, "overhead": overhead})

    def fill(self, world: random_clusters.RandomCluster, tainted: bool) -> None:
        """Create everything but the pending pods."""
        for each in world.services:
            spec = {**each["spec"], "ports": [{"port": 80}]}
            self.create({"apiVersion": "v1", "kind": "Service", **each, "spec": spec})
        for each in world.replicasets:
            labels = {**each["spec"]["selector"]["matchLabels"], "version": "1"}
            template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}
            spec = {**each["spec"], "replicas": 0, "template": template}
            self.create({"apiVersion": "apps/v1", "kind": "ReplicaSet", **each, "spec": spec})
        for each in world.nodes:
            self.create(accepted_node(each, tainted))
        for each in world.placed:
            if self.create(accepted_pod(each)) is None:
                continue
            name, home = each["metadata"]["name"], each["metadata"]["namespace"]
            self._kubectl.set_phase(name, each["status"]["phase"], home)
            if "deletionTimestamp" in each["metadata"]:
                self._kubectl.delete("Pod", name, home)  # it stays: no kubelet confirms its end

    def create(self, obj: Object) -> Object | None:
        """Create an object; None if validation refuses it."""
        self.created[obj["kind"]] += 1
        try:
            return self._kubectl.create(obj)
        except ApiError as error:
            if error.status not in (400, 422):
                raise
            self.refused[obj["kind"]] += 1
            return None

    def clear(self) -> None:
        """Delete everything but what all clusters share."""
        for name in (*random_clusters.NAMESPACES, random_clusters.UNLISTED):
            for kind in ("Pod", "ReplicaSet", "Service"):
                self._send("DELETE", KINDS[kind].path(name), {"gracePeriodSeconds": 0})
        self._send("DELETE", KINDS["Node"].path(), {})
        self._kubectl.wait_until(lambda: not any(map(self._kubectl.list, ("Pod", "ReplicaSet", "Node"))))

    def _send(self, method: str, path: str, body: Object) -> None:
        answer = self._kubectl.request(method, path, body)
        if answer.status >= 300:
            raise ApiError(answer, f"{method} {path}")


# -- stead and the oracle


class Subjects:
    """stead and the oracle, each with the cluster as the API server returns it."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._templates = Templates((SCHEDULER,))
        kinds = ("Namespace", "Service", "ReplicaSet", "Node", "Pod")
        spaces, services, replicasets, nodes, pods = (kubectl.list(kind) for kind in kinds)
        namespaces = {each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in spaces}
        for name, labels in namespaces.items():
            self._templates.namespace_changed(name, labels)
        for kind, owners in ((OwnerKind.SERVICE, services), (OwnerKind.REPLICA_SET, replicasets)):
            for each in owners:
                place = (each["metadata"]["namespace"], each["metadata"]["name"])
                self._templates.owner_changed(kind, *place, each["spec"].get("selector"))
        read = NodeReader().decode_page(json.dumps({"metadata": {}, "items": nodes}).encode()).nodes
        self.engine = Engine(Settings(patience=None))
        self.engine.apply(*(NodeJoined(each.node) for each in read if each.node is not None))
        self.oracle = kube_oracle.Cluster(nodes, (), namespaces, services=services, replicasets=replicasets)
        for each in pods:
            self.place(each)

    def read(self, pod: Object) -> Pod:
        return self._templates.decode_pod(json.dumps(pod).encode())

    def place(self, pod: Object) -> None:
        """Add a pod that has a node."""
        read = self.read(pod)
        if read.ask is not None and read.phase not in FINISHED and read.node_name in self.engine.nodes:
            self.engine.apply(AskRunning(read.ask, read.node_name))
        self.oracle.place(pod)

    def scores(self, ask: Ask) -> dict[str, int]:
        """stead's score of each feasible node, without what is the same for all of them."""
        board = self.engine._parts.board.fork(lasting=False)
        standing = board.standing(board.shape_of(ask).demands[0])
        rows = rows_of(standing.candidates())
        return {board.node_id(row): worth for row, worth in zip(rows, standing.worth(rows), strict=True)}

    def choice(self, ask: Ask) -> str | None:
        """The node that stead would choose now."""
        fork = self.engine.fork()
        fork.apply(AskSubmitted(ask))
        fork.decide()
        return fork.placed.get(ask.id)


# -- the comparison


class Check(NamedTuple):
    """One answer: what kube-scheduler says, and what was found."""

    what: str
    expected: object
    found: object


FEASIBLE, CHOICE, SCORES, MESSAGE, ERROR = "feasible nodes", "choice", "scores", "message", "error of the cycle"
REFUSAL = "refused by stead"


def answers_of_stead(subjects: Subjects, pod: Object, verdict: Verdict) -> list[Check]:
    read, engine = subjects.read(pod), subjects.engine
    if read.ask is None:
        return [Check(REFUSAL, None, verdict.node)]  # it waits, and so it must upstream
    if verdict.error:
        return [Check(ERROR, verdict.error, "none")]
    choice = subjects.choice(read.ask)
    checks = [Check(FEASIBLE, verdict.feasible, set(engine.candidates(read.ask)[0]))]
    if not verdict.feasible:
        message = fit_error(len(engine.nodes), engine.refusals_by_plugin(read.ask))
        return [*checks, Check(CHOICE, None, choice), Check(MESSAGE, verdict.message, message)]
    # Any of the best nodes is right.
    checks.append(Check(CHOICE, choice if choice in verdict.best else verdict.best, choice))
    if verdict.totals:
        checks.append(Check(SCORES, _differences(verdict.totals), _differences(subjects.scores(read.ask))))
    return checks


def answers_of_oracle(subjects: Subjects, pod: Object, verdict: Verdict) -> list[Check]:
    cluster = subjects.oracle
    try:
        found = set(kube_oracle.feasible(cluster, pod))
        scores = kube_oracle.scores(cluster, pod, found) if len(found) > 1 else {}
    except kube_oracle.CycleError as error:
        return [Check(ERROR, verdict.error, str(error))]
    checks = [Check(ERROR, verdict.error, ""), Check(FEASIBLE, verdict.feasible, found)]
    if not verdict.feasible and not verdict.error and not found:
        checks.append(Check(MESSAGE, verdict.message, kube_oracle.message(cluster, pod)))
    if verdict.totals:
        checks.append(Check(SCORES, _nonzero(verdict.by_plugin), _nonzero(scores)))
    return checks


Answers = Callable[[Subjects, Object, Verdict], list[Check]]


def known_difference(subjects: Subjects, pod: Object, verdict: Verdict, answers: Answers) -> str:
    """The reason that explains all wrong answers about a pod; "" if no known one does."""
    widened = _with_wide_namespaces(pod)
    for read, reason in ((pod, ""), (widened, "a namespace selector that matches empty labels selects everything")):
        wrong = {what for what, expected, found in answers(subjects, read, verdict) if expected != found}
        more = _known_of_stead(subjects, read, verdict, wrong) if wrong and answers is answers_of_stead else ""
        if not wrong or more:
            return "; ".join(filter(None, (reason, more)))
    return ""


def _known_of_stead(subjects: Subjects, pod: Object, verdict: Verdict, wrong: set[str]) -> str:
    if wrong <= {CHOICE, SCORES} and _counts_explain_scores(subjects, pod, verdict):
        return "scores of an image volume, or of requests of the pod as a whole"
    if wrong == {MESSAGE} and names_nodes_beside_broken_terms(pod):
        return "the message if node affinity names nodes beside broken terms"
    if wrong == {REFUSAL} and not verdict.totals and _has_broken_preference(subjects, pod):
        return "a broken preference of a pod that fits one node, which upstream does not score"
    return ""


def _with_wide_namespaces(pod: Object) -> Object:
    """The pod as kube-scheduler 1.36 reads it while it places it. It adds the namespaces that a term selects to the
    term, but then also matches the selector with empty labels, and `NotIn` and `DoesNotExist` match those."""
    pod = deepcopy(pod)
    for term in _pod_terms(pod["spec"]):
        selector = term.get("namespaceSelector")
        if selector is not None and matches(label_selector(selector), {}):
            term["namespaceSelector"] = {}
    return pod


def _counts_explain_scores(subjects: Subjects, pod: Object, verdict: Verdict) -> bool:
    """Whether stead's scores are those of a pod without image volumes and without requests as a whole that comes to the
    same; see `best` in test_engine_equals_kube_scheduler.py."""
    ask, total, spec = subjects.read(pod).ask, requests(completed(pod)), deepcopy(pod["spec"])
    images = [each["image"]["reference"] for each in spec.get("volumes") or () if each.get("image")]
    whole = spec.pop("resources", None)
    if ask is None or not (images or whole):
        return False
    if whole:  # the first container requests everything
        spec.pop("overhead", None)
        for number, container in enumerate(_containers(spec)):
            amounts = {name: "0" if number else f"{int(amount * 1000)}m" for name, amount in total.items()}
            container["resources"] = {"requests": amounts}
    for image in images:
        spec["containers"].append({"image": image, "resources": {"requests": {"cpu": "0", "memory": "0"}}})
    spec["volumes"] = []
    found = kube_oracle.scores(subjects.oracle, {**pod, "spec": spec}, verdict.feasible)
    totals = {name: sum(points.values()) for name, points in found.items()}
    return _differences(totals) == _differences(subjects.scores(ask))


def _has_broken_preference(subjects: Subjects, pod: Object) -> bool:
    with suppress(kube_oracle.CycleError):
        kube_oracle.scores(subjects.oracle, pod, list(subjects.oracle.places))
        return False
    return True


def _nonzero(scores: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Without plugins that give a node nothing: kube-scheduler does not list a plugin that it skips."""
    return {node: {name: score for name, score in sorted(each.items()) if score} for node, each in scores.items()}


def _differences(scores: Mapping[str, int]) -> dict[str, int]:
    """Scores relative to the lowest one: stead leaves out what is the same for all nodes."""
    least = min(scores.values(), default=0)
    return {name: score - least for name, score in sorted(scores.items())}


# -- the run


class Run:
    """All clusters of a run, one after the other, in one API server."""

    def __init__(self, server: RealServer, kubectl: Kubectl, scheduler: Path, broken: float) -> None:
        self._kubectl = kubectl
        self._cluster = Cluster(kubectl)
        self._scheduler = KubeScheduler(scheduler, server)
        self._broken = broken
        self._counts, self._outcomes, self._known = Counter[str](), Counter[str](), Counter[str]()
        self.disagreements = Counter[str]()

    def compare(self, seed: int, size: int) -> None:
        world = random_clusters.cluster(Random(seed), size, broken=self._broken)
        self._cluster.fill(world, tainted=seed % 2 == 0)
        subjects = Subjects(self._kubectl)
        replay = f"--clusters 1 --seed {seed} --size {size} --broken {self._broken:g}"
        with self._scheduler as scheduler:
            for drawn in world.pending:
                if (pod := self._cluster.create(accepted_pod(drawn))) is not None:
                    self._compare_pod(scheduler, subjects, pod, replay)
        self._cluster.clear()
        self._counts["clusters"] += 1

    def _compare_pod(self, scheduler: KubeScheduler, subjects: Subjects, pod: Object, replay: str) -> None:
        name, home = pod["metadata"]["name"], pod["metadata"]["namespace"]
        verdict = scheduler.verdict(f"{home}/{name}")
        self._counts["pods"] += 1
        self._outcomes[verdict.kind] += 1
        self._counts["refused by stead"] += subjects.read(pod).ask is None
        answering: dict[str, Answers] = {"stead": answers_of_stead, "oracle": answers_of_oracle}
        for who, answers in answering.items():
            checks = answers(subjects, pod, verdict)
            self._counts["verdicts"] += len(checks)
            wrong = [check for check in checks if check.expected != check.found]
            if wrong and (known := known_difference(subjects, pod, verdict, answers)):
                self._known[f"{who}: {known}"] += 1
            elif wrong:
                self._report(who, wrong, pod, replay)
        if verdict.node is None:
            self._kubectl.delete("Pod", name, home, grace_seconds=0)
        else:
            subjects.place(self._kubectl.get("Pod", name, home))

    def _report(self, who: str, wrong: Iterable[Check], pod: Object, replay: str) -> None:
        for what, expected, found in wrong:
            self.disagreements[f"{who}: {what}"] += 1
            say(f"DISAGREEMENT: {who}: {what}; again: {replay}\n  kube-scheduler: {expected}\n  {who}: {found}")
        metadata = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
        say(f"  pod: {json.dumps({'metadata': metadata, 'spec': pod['spec']})}")

    def summary(self) -> list[str]:
        counts, refused, created = self._counts, self._cluster.refused, self._cluster.created
        shares = [f"{refused[kind]} of {created[kind]} {kind}s" for kind in created]
        share = 100 * counts["refused by stead"] / max(counts["pods"], 1)
        lines = [f"refused by validation: {', '.join(shares)}"]
        lines.append(f"refused by stead: {counts['refused by stead']} pods ({share:.1f} %)")
        listed = {"outcome": self._outcomes, "known difference": self._known, "disagreement": self.disagreements}
        lines += [f"{title}: {each}: {n}" for title, found in listed.items() for each, n in sorted(found.items())]
        figures = ", ".join(f"{name}: {counts[name]}" for name in ("clusters", "pods", "verdicts"))
        return [*lines, f"{figures}, disagreements: {self.disagreements.total()}"]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _sizes(text: str) -> range:
    found = re.fullmatch(r"([1-9]\d*)(?:-([1-9]\d*))?", text)
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise argparse.ArgumentTypeError(f"must be a number such as 8 or a range such as 3-12, not {text!r}")
    return range(int(found[1]), int(found[2] or found[1]) + 1)


def _arguments() -> argparse.Namespace:
    words = argparse.ArgumentParser(
        prog="python -m tests.kubernetes.against_kube_scheduler",
        description="Compare stead with a real kube-scheduler on random clusters. A seed replays its cluster, but "
        "kube-scheduler chooses at random among equal nodes: repeat the run if later pods differ.",
        epilog="example: python -m tests.kubernetes.against_kube_scheduler --apiserver ./kube-apiserver "
        "--scheduler ./kube-scheduler --clusters 20 --size 3-12",
    )
    for name in ("apiserver", "scheduler"):
        words.add_argument(f"--{name}", type=Path, required=True, help=f"the program kube-{name}, version 1.36")
    words.add_argument("--clusters", type=int, default=100, help="number of clusters (default: 100)")
    words.add_argument("--seed", type=int, default=1, help="seed of the first cluster (default: 1)")
    words.add_argument("--size", type=_sizes, default="8", help="number of nodes, or a range such as 3-12 (default: 8)")
    words.add_argument("--broken", type=float, default=0.02, help="share of broken expressions (default: 0.02)")
    given = words.parse_args()
    for program in (given.apiserver, given.scheduler):
        if not os.access(program, os.X_OK) or program.is_dir():
            words.error(f"{program} is not a program")
    return given


def main() -> int:
    given = _arguments()
    os.environ["KUBE_APISERVER"] = str(given.apiserver.resolve())
    try:
        with RealServer() as server, Kubectl(server) as kubectl:
            run = Run(server, kubectl, given.scheduler.resolve(), given.broken)
            for number, seed in enumerate(range(given.seed, given.seed + given.clusters), start=1):
                run.compare(seed, given.size[seed % len(given.size)])
                if number % 10 == 0:
                    say(f"{number} of {given.clusters} clusters, {run.disagreements.total()} disagreements")
            say("\n".join(run.summary()))
    except (Unavailable, ApiError, OSError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 1 if run.disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
