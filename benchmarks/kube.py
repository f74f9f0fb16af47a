"""`make bench-kube`: the Kubernetes scheduler on a real API server, beside the ceiling of the same run.

Rule: the ceiling is the same binder with decisions made beforehand, for equal pods on the same server (`kube_sides`).
It is measured alone, and with the scheduler's own watches, because the server also works for those. Pods are created
first. Only ratios of one run mean something: API server, etcd and scheduler share the machine's cores, and the speed of
a shared machine changes by half within seconds. So each side has its own API server and its own process, the sides take
turns in slices of half a second, and the sums of all slices are compared. Before each slice, its API server collects
its garbage. Otherwise a collection, which costs as much as a thousand bindings, falls into every second slice by
chance. No side has one in a slice then; each would have nearly the same, because the server allocates 88 KB for a
binding of the ceiling and 93 KB for one of the scheduler (plain pods).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.request import urlopen

from rich.console import Console
from rich.table import Table
from tests.kubernetes import objects as o
from tests.kubernetes.servers.real import RealServer

from benchmarks.kube_sides import Side, Slice
from stead.engine.decisions import Placed
from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, AskSubmitted, ClockAdvanced, Fact, NodeJoined
from stead.engine.settings import Settings
from stead.kubernetes.nodes import node_of
from stead.kubernetes.scheduler import PLACED_AT_ONCE, calm_the_collector
from stead.kubernetes.templates import Templates

RESULTS = Path(__file__).resolve().parent / "kube_results.json"

ZONE, HOSTNAME = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
READ_PODS, DECIDED_PODS = 2_000, 4_000
SLICE, SLICES = 2048, max(2, int(os.environ.get("STEAD_BENCH_SLICES", "6")))  # of one slice, there are no quartiles
WARM_UP = 256
SETTLE_S, SETTLE_LOOKS_MAX, IDLE_SHARE = 0.1, 50, 0.1
"""Before a slice: how long the pauses between two looks at the servers are, and the share of a core that is idle."""
NAMESPACE = "bench"
STEADY_PODS, STEADY_RATE = 1_500, 150.0
FULL_NODES, FULL_PODS = 5_000, 20_000

KUBE_SCHEDULER = {"plain": (221, 277), "required": (94, 95), "preferred": (183, 183), "anti-affinity": (83, 111)}
"""Pods a second of kube-scheduler 1.36.4 at 5,000 nodes, measured on another machine of this size."""

Object = dict[str, Any]


Spec = Callable[[str], Object]
"""The extra fields of a pod's spec, for pods with the label app=NAME."""

Workloads = dict[str, Spec]


@dataclass(frozen=True, slots=True)
class Turn:
    """A slice, and the CPU time of API server and etcd."""

    slice: Slice
    servers_cpu_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One workload: pods a second over all slices, beside the ceilings."""

    nodes: int
    workload: str
    ceiling: int
    watching_ceiling: int
    bound: int
    ratio: float
    """Of the ceiling."""
    ratio_quartiles: tuple[float, float]
    """Of the ratios of single slices: how much the speed of machine and servers changed."""
    watching_ratio: float
    decision_ms: float
    """Wall time of a decision, with the time in which other processes use the cores."""
    cpu_ms: float
    """CPU time of the scheduler for a pod."""
    ceiling_cpu_ms: float
    servers_cpu_ms: float
    """CPU time of API server and etcd for a pod, without the collection of garbage."""
    ceiling_servers_cpu_ms: float

    @staticmethod
    def of(nodes: int, workload: str, turns: Mapping[Side, Sequence[Turn]]) -> Measured:
        alone, watching, scheduler = ([turn.slice for turn in turns[side]] for side in Side)
        servers = {side: [turn.servers_cpu_s for turn in turns[side]] for side in Side}
        bound = _rate(scheduler)
        single = quantiles([_rate([ours]) / _rate([theirs]) for ours, theirs in zip(scheduler, alone, strict=True)])
        return Measured(
            nodes,
            workload,
            round(_rate(alone)),
            round(_rate(watching)),
            round(bound),
            round(bound / _rate(alone), 3),
            (round(single[0], 2), round(single[2], 2)),
            round(bound / _rate(watching), 3),
            _per_pod_ms([each.decision_s for each in scheduler], scheduler),
            _per_pod_ms([each.cpu_s for each in scheduler], scheduler),
            _per_pod_ms([each.cpu_s for each in alone], alone),
            _per_pod_ms(servers[Side.SCHEDULER], scheduler),
            _per_pod_ms(servers[Side.ALONE], alone),
        )

    @property
    def sentence(self) -> str:
        low, high = self.ratio_quartiles
        return (
            f"{self.workload}: {self.bound:,} pods/s, {self.ratio:.2f} of the ceiling of {self.ceiling:,} (quartiles of"
            f" single slices {low:.2f} and {high:.2f}), {self.watching_ratio:.2f} of the one with watches"
        )


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _rate(slices: Sequence[Slice]) -> float:
    return sum(each.bindings for each in slices) / sum(each.seconds for each in slices)


def _per_pod_ms(seconds: Sequence[float], slices: Sequence[Slice]) -> float:
    return round(1e3 * sum(seconds) / sum(each.bindings for each in slices), 4)


def plain(_name: str) -> Object:
    return {}


def indexed(_name: str) -> Object:
    """Each pod has a label of its own, as the pods of an indexed Job or a StatefulSet."""
    return {}


def workloads() -> Workloads:
    """What each workload adds to its pods."""

    def app(name: str) -> Object:
        return {"labelSelector": {"matchLabels": {"app": name}}}

    def term(key: str, operator: str, *values: str) -> Object:
        return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}

    required, preferred = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    )
    return {
        "plain": plain,
        "indexed": indexed,
        "required": lambda name: {
            "affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": [term("disk", "In", "ssd")]}}},
            "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "batch", "effect": "NoSchedule"}],
        },
        "preferred": lambda name: {
            "affinity": {
                "nodeAffinity": {
                    preferred: [
                        {"weight": 50, "preference": term("disk", "In", "ssd")},
                        {"weight": 10, "preference": term(ZONE, "In", "zone-1")},
                    ]
                }
            }
        },
        "anti-affinity": lambda name: {
            "affinity": {"podAntiAffinity": {required: [{"topologyKey": HOSTNAME, **app(name)}]}}
        },
        "zone spread": lambda name: {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", **app(name)}
            ]
        },
        "pod affinity": lambda name: {"affinity": {"podAffinity": {required: [{"topologyKey": ZONE, **app(name)}]}}},
    }


def fleet(count: int) -> list[Object]:
    """Half of the nodes have fast disks, and a quarter of these are tainted."""
    found = []
    for i, node in enumerate(o.nodes(count, zones=10)):
        node["metadata"]["labels"]["disk"] = "ssd" if i % 2 else "hdd"
        if i % 8 == 1:
            node["spec"]["taints"] = [o.taint("dedicated", "batch")]
        found.append(node)
    return found


def pods_of(namespace: str, count: int, spec: Spec, scheduler: str = "stead", app: str = "") -> list[Object]:
    """Pods of one app, by default with the name of the namespace."""
    app = app or namespace
    more, found = spec(app), []
    for i in range(count):
        labels = {"app": app, "index": str(i)} if spec is indexed else {"app": app}
        found.append(o.pod(f"{app}-pod-{i}", namespace, scheduler, labels=labels, **more))
    return found


class Running:
    """A scheduler in a process of its own."""

    def __init__(self, server: RealServer, *options: str) -> None:
        self.began = time.perf_counter()
        stead = Path(sys.executable).with_name("stead")
        command = [str(stead), "scheduler", "--kubeconfig", str(server.kubeconfig_path)]
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--log-format", "json", *options], stderr=subprocess.PIPE, text=True
        )
        self.logs: list[Object] = []
        self.scheduling = 0.0
        self._read = threading.Thread(target=self._read_logs, daemon=True)
        self._read.start()

    def _read_logs(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            entry = json.loads(line)
            if entry["msg"] == "scheduling":
                self.scheduling = time.perf_counter()
            self.logs.append(entry)

    def address(self) -> str:
        while True:
            for entry in list(self.logs):
                if "address" in entry:
                    return str(entry["address"])
            if self.process.poll() is not None:
                raise SystemExit(f"the scheduler ended: {self.logs}")
            time.sleep(0.01)

    def metric(self, name: str) -> float:
        with urlopen(f"http://{self.address()}/metrics") as page:
            found = re.search(rf"^{re.escape(name)} (\S+)$", page.read().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def bound(self) -> int:
        return int(self.metric("stead_binding_duration_seconds_count"))

    def wait_until_bound(self, count: int, seconds: float = 300.0) -> float:
        """Wait until this many pods are bound. Returns bindings a second between the first and the last look at which
        some, but not all, were bound."""
        deadline = time.perf_counter() + seconds
        looks: list[tuple[float, int]] = []
        while True:
            bound, now = self.bound(), time.perf_counter()
            if bound >= count:
                looks = looks if len(looks) > 1 else [*looks, (now, bound)]
                first, last = looks[0], looks[-1]
                return (last[1] - first[1]) / max(last[0] - first[0], 1e-9)
            if bound:
                looks.append((now, bound))
            if now > deadline:
                raise SystemExit(f"only {bound} of {count} pods were bound in {seconds:g} s: {self.logs[-5:]}")
            time.sleep(0.2)  # each look costs the scheduler and this program about 3 ms

    def memory_mb(self) -> float:
        """The most it ever used."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self._read.join()


@contextmanager
def running(server: RealServer, *options: str) -> Iterator[Running]:
    scheduler = Running(server, *options)
    try:
        yield scheduler
    finally:
        scheduler.stop()


def clear(kubectl: o.Kubectl, namespace: str) -> None:
    """Delete all pods and events of a namespace, in pieces, because the request for all of them would time out."""
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
    for resource in ("pods", "events"):
        path = f"/api/v1/namespaces/{namespace}/{resource}"
        while kubectl.request("GET", path, limit=1).body["items"]:
            kubectl.request("DELETE", path, options, limit=500)


class Rival:
    """One side of the comparison: its own API server with nodes, and a process that binds pods there."""

    def __init__(self, side: Side, server: RealServer, nodes: int) -> None:
        self.side, self._server, self._nodes = side, server, nodes
        self.kubectl = o.Kubectl(server)

    def create(self, workload: str, spec: Spec, total: int) -> None:
        """Create the nodes and the pods of a workload, of so many apps that all have room: with anti-affinity, each pod
        of an app needs a node of its own, and with affinity, one zone of ten takes the whole app."""
        self.kubectl.create_many(fleet(self._nodes))
        per_app = {"anti-affinity": self._nodes * 3 // 4, "pod affinity": self._nodes * 4}.get(workload, total)
        scheduler = "stead" if self.side is Side.SCHEDULER else "nobody"
        self.kubectl.create(o.namespace(NAMESPACE))
        for app in range(-(-total // per_app)):
            count = min(per_app, total - app * per_app)
            self.kubectl.create_many(pods_of(NAMESPACE, count, spec, scheduler, app=f"app-{app}"))

    @contextmanager
    def binding(self) -> Iterator[Callable[[int], Turn]]:
        """Start the process. What it yields waits until the servers have nothing to do, and binds this many pods."""
        pods = self.kubectl.list("Pod", NAMESPACE, limit=1000)
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
        command = [sys.executable, "-m", "benchmarks.kube_sides", self.side, str(self._server.kubeconfig_path)]
        with subprocess.Popen(
            [*command, NAMESPACE, str(self._nodes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None and process.stdout is not None

            def ask(question: str) -> str:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(question + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
                if not answer:
                    raise SystemExit(f"the process of {self.side} ended")
                return answer

            def bind(count: int) -> Turn:
                self._settle()
                before = self._servers_cpu_s()
                found = Slice(**json.loads(ask(str(count))))
                return Turn(found, self._servers_cpu_s() - before)

            ask(json.dumps(uids))
            yield bind
            process.stdin.close()

    def _servers_cpu_s(self) -> float:
        return sum(map(cpu_s, self._server.process_ids))

    def _settle(self) -> None:
        """Let the API server collect its garbage, and wait until both servers are nearly idle."""
        answer = self.kubectl.request("GET", "/debug/pprof/heap", gc=1, debug=1)
        if answer.status != 200:
            raise SystemExit(f"the API server answers {answer.status} to /debug/pprof/heap; start it with --profiling")
        used = self._servers_cpu_s()
        for _ in range(SETTLE_LOOKS_MAX):
            time.sleep(SETTLE_S)
            before, used = used, self._servers_cpu_s()
            if used - before <= IDLE_SHARE * SETTLE_S:
                return


def measure(nodes: int, workload: str, spec: Spec) -> Measured:
    """One workload: ceilings and scheduler in turns, on new servers."""
    turns: dict[Side, list[Turn]] = {side: [] for side in Side}
    with ExitStack() as stack:
        rivals = [Rival(side, stack.enter_context(RealServer()), nodes) for side in Side]
        for rival in rivals:
            rival.create(workload, spec, WARM_UP + SLICES * SLICE)
        bind = [(rival.side, stack.enter_context(rival.binding())) for rival in rivals]
        for _, some in bind:
            some(WARM_UP)  # opens connections
        for number in range(SLICES):
            for place in range(len(bind)):
                side, some = bind[(number + place) % len(bind)]
                turns[side].append(some(SLICE))
    return Measured.of(nodes, workload, turns)


def reading() -> dict[str, float]:
    """CPU time to read a line of a watch, in microseconds: of a pod whose template is known, and of pods of each
    workload whose template is not."""
    calm_the_collector()  # as the scheduler does
    found: dict[str, float] = {}
    for name, spec in workloads().items():
        same = [_line(f"pod-{i}", "app", spec) for i in range(READ_PODS)]
        different = [_line("pod", f"app-{i}", spec) for i in range(READ_PODS)]
        found["known"] = max(found.get("known", 0.0), _reading_us(same))
        found[name] = _reading_us(different)
    return found


def _line(name: str, app: str, spec: Spec) -> bytes:
    pod = o.pod(name, labels={"app": app}, **spec(app))
    pod["metadata"] |= {"uid": name, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return json.dumps({"type": "ADDED", "object": {**pod, "status": {"phase": "Pending"}}}).encode()


def _reading_us(lines: Sequence[bytes]) -> float:
    """The best of three tries."""
    took = []
    for _ in range(3):
        templates, began = Templates(), time.process_time()
        for line in lines:
            templates.decode_event(line)
        took.append(time.process_time() - began)
    return round(1e6 * min(took) / len(lines), 1)


def deciding(count: int) -> dict[str, float]:
    """CPU time of the engine to decide a pod of each workload on this many nodes, in microseconds, in the scheduler's
    steps: the bindings of a step are facts of the next one. In the runs with a server, the time of a decision also has
    the time in which other processes use the cores."""
    joined = [NodeJoined(node_of(node)) for node in fleet(count)]
    found: dict[str, float] = {}
    for name, spec in workloads().items():
        templates, pods = Templates(), pods_of(name.replace(" ", "-"), DECIDED_PODS, spec)
        read = [templates.decode_pod(json.dumps(pod).encode()).ask for pod in pods]
        asks = {ask.id: ask for ask in read if ask is not None}
        engine = Engine(Settings(patience=None, placed_at_once=PLACED_AT_ONCE))
        engine.apply(ClockAdvanced(1.0), *joined, *map(AskSubmitted, asks.values()))
        engine.decide()  # the first step builds its columns
        placed, began = 0, time.process_time()
        facts: list[Fact] = [ClockAdvanced(1.0)]
        while facts:
            engine.apply(*facts)
            facts = [AskRunning(asks[each.ask], each.node) for each in engine.decide() if isinstance(each, Placed)]
            placed += len(facts)
        found[name] = round(1e6 * (time.process_time() - began) / placed, 1)
    return found


def steady(server: RealServer, kubectl: o.Kubectl) -> dict[str, float]:
    """From the request that creates a pod to the event that shows its node, while pods arrive at a steady rate."""
    kubectl.create(o.namespace("steady"))
    created: dict[str, float] = {}
    bound: dict[str, float] = {}

    def follow(events: Iterator[Object]) -> None:
        for event in events:
            name = event["object"]["metadata"]["name"]
            if o.node_of(event["object"]) and name not in bound:
                bound[name] = time.perf_counter()
                if len(bound) == STEADY_PODS:
                    return

    with running(server) as scheduler, kubectl.watch("Pod", "steady") as events:
        scheduler.address()
        while not scheduler.scheduling:
            time.sleep(0.02)
        follower = threading.Thread(target=follow, args=(events,), daemon=True)
        follower.start()
        began = time.perf_counter()
        for number, pod in enumerate(pods_of("steady", STEADY_PODS, plain)):
            time.sleep(max(0.0, began + number / STEADY_RATE - time.perf_counter()))
            created[pod["metadata"]["name"]] = time.perf_counter()
            kubectl.create(pod)
        follower.join(60)
    clear(kubectl, "steady")
    took = sorted(1e3 * (bound[name] - created[name]) for name in created)
    return {"p50_ms": median(took), "p99_ms": took[int(0.99 * len(took))], "pods_per_s": STEADY_RATE}


def full(server: RealServer, kubectl: o.Kubectl) -> dict[str, float]:
    """Start with many pods that have nodes: the time to the first binding, and the memory."""
    kubectl.create(o.namespace("full"))
    for start in range(0, FULL_PODS, 5_000):
        placed = pods_of("full", 5_000, plain, "other")
        for number, pod in enumerate(placed):
            pod["metadata"]["name"] = f"placed-{start + number}"
            pod["spec"]["nodeName"] = f"node-{(start + number) % FULL_NODES}"
        kubectl.create_many(placed)
    kubectl.create(o.namespace("first"))
    kubectl.create_many(pods_of("first", 10, plain))
    with running(server) as scheduler:
        scheduler.wait_until_bound(1)
        first = time.perf_counter() - scheduler.began
        scheduler.wait_until_bound(10)
        return {"start_to_first_binding_s": first, "memory_mb": scheduler.memory_mb()}


def main(words: Sequence[str]) -> None:
    """All measurements; with words such as `5000 plain`, only these numbers of nodes and workloads, without a file."""
    console = Console(width=120)
    sizes = [int(word) for word in words if word.isdecimal()] or [1_000, 5_000]
    names = [word for word in words if not word.isdecimal()]
    chosen = {name: spec for name, spec in workloads().items() if not names or name.replace(" ", "-") in names}
    results: Object = {
        "cores": os.cpu_count(),
        "slices": SLICES,
        "pods_in_a_slice": SLICE,
        "reading_us": reading(),
        "workloads": [],
    }
    console.print("reading a pod, in microseconds:", results["reading_us"])
    results["deciding_us"] = {str(nodes): deciding(nodes) for nodes in sizes}
    console.print("deciding a pod, in microseconds:", results["deciding_us"])
    table = Table(
        "nodes",
        "workload",
        "ceiling/s",
        "bound/s",
        "of it",
        "with watches",
        "of kube-scheduler",
        "decision ms",
        "CPU ms, servers",
        "of the ceiling",
    )
    for nodes in sizes:
        for name, spec in chosen.items():
            found = measure(nodes, name, spec)
            console.print(f"  {nodes:,} nodes, {found.sentence}")
            results["workloads"].append(asdict(found))
            known = KUBE_SCHEDULER.get(found.workload) if nodes == 5_000 else None
            times = f"{found.bound / known[1]:.1f}-{found.bound / known[0]:.1f}x" if known else ""
            table.add_row(
                f"{nodes:,}",
                found.workload,
                f"{found.ceiling:,.0f}",
                f"{found.bound:,.0f}",
                f"{found.ratio:.2f}",
                f"{found.watching_ratio:.2f}",
                times,
                f"{found.decision_ms:.3f}",
                f"{found.cpu_ms:.3f}, {found.servers_cpu_ms:.3f}",
                f"{found.ceiling_cpu_ms:.3f}, {found.ceiling_servers_cpu_ms:.3f}",
            )
        if nodes == FULL_NODES and (not words or "full" in words):
            with RealServer() as server, o.Kubectl(server) as kubectl:
                kubectl.create_many(fleet(nodes))
                console.print("pods at a steady rate, then a start with many pods")
                results["steady"] = steady(server, kubectl)
                results["full"] = full(server, kubectl)
    console.print(table)
    console.print({key: results[key] for key in ("steady", "full") if key in results})
    if not words:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
