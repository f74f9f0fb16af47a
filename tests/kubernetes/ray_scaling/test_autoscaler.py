"""The whole autoscaler on a RayCluster: the scaler and its loop, the provider, an API server, a double of KubeRay's
operator, and the Ray nodes in its pods.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from stead.engine.scaling.decisions import LaunchEnded, NodeArrived, NodeRequested, NodeRetired, ScaleDecision
from stead.kubernetes.ray_scaling.provider import RayClusterProvider
from stead.language.asks import Ask
from stead.language.selectors import parse_selector
from stead.language.strategies import Exists, tolerations
from stead.operate.audit import Author
from stead.planner.scaler import Scaler, ScaleSettings
from stead.scaling.loop import Autoscaler, end_all
from tests.kubernetes.objects import ApiError, Kubectl, Object
from tests.kubernetes.ray_scaling.clusters import group, provider_on, ray_cluster, written
from tests.kubernetes.ray_scaling.kuberay import KubeRay
from tests.kubernetes.ray_scaling.ray_desk import RayDesk
from tests.kubernetes.servers.fake import FakeServer

SETTINGS = ScaleSettings(idle_s=60, settle_s=1, join_s=120, retry_s=20, stock_out_s=60)
ANSWERS_S = 30.0


class Running:
    """An autoscaler, with a clock that `after` moves."""

    def __init__(self, provider: RayClusterProvider, kuberay: KubeRay, clock: list[float]) -> None:
        self.provider, self.kuberay, self.clock = provider, kuberay, clock
        self.desk = RayDesk(kuberay, provider.catalog(), lambda: clock[0])
        self.decisions: list[ScaleDecision] = []
        self.troubles: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Another process, which knows nothing."""
        scaler = Scaler(self.provider.catalog(), SETTINGS)
        self.loop = Autoscaler(
            self.desk,
            self.provider,
            scaler,
            Author("test"),
            troubled=self.troubles.append,
            clock=lambda: self.clock[0],
        )

    def after(self, seconds: float, turns: int = 6, operates: bool = True) -> None:
        """Time passes; then turns, with the operator and the kubelets in between."""
        self.clock[0] += seconds
        for _ in range(turns):
            self.decisions += self.loop.turn()
            assert self.loop.wait(ANSWERS_S)
            if operates:
                self.kuberay.settle()
                self.kuberay.run_pods()
            self.clock[0] += 1.0

    def count(self, kind: type) -> int:
        return sum(isinstance(each, kind) for each in self.decisions)


@contextmanager
def autoscaler(fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay, *groups: Object) -> Iterator[Running]:
    kubectl.create(ray_cluster(*groups))
    clock = [time.time()]
    with provider_on(fake, clock=lambda: clock[0]) as provider:
        found = Running(provider, kuberay, clock)
        yield found
        assert found.troubles == []
        assert kuberay.at_random == [] and found.desk.killed == set()


def gpu_group() -> Object:
    """Nodes with a GPU, a label of their own and a taint."""
    found = group("gpu", labels={"gpu_type": "A100"})
    found["template"]["metadata"]["annotations"] = {"stead/taints": "gpu_node=true", "stead/price": "4"}
    found["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    return found


def cpu_work(id: str) -> Ask:
    return Ask.of(id, {"CPU": 8})


def gpu_work(id: str) -> Ask:
    tolerant = tolerations({"gpu_node": Exists()})
    return Ask.of(id, {"GPU": 1}, parse_selector("gpu_type = A100"), tolerations=tolerant)


def test_pending_work_makes_the_right_pod_appear_runs_there_and_an_idle_node_goes(
    fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay
) -> None:
    with autoscaler(fake, kubectl, kuberay, group("cpu", least=1), gpu_group()) as running:
        running.after(0)
        assert (written(kubectl, 0)[0], written(kubectl, 1)[0]) == (1, 0)
        running.desk.submit(gpu_work("train"), cpu_work("web"), cpu_work("api"))
        running.after(2)
        assert running.desk.groups == {"train": "gpu", "web": "cpu", "api": "cpu"}
        assert (written(kubectl, 0)[0], written(kubectl, 1)[0]) == (2, 1)
        assert running.count(NodeRequested) == 3, "one is for the minimum, and uses the pod that KubeRay starts for it"
        assert running.count(NodeArrived) == 3
        assert running.desk.views[-1].price == 4
        running.desk.end("train", "web", "api")
        running.after(0)
        running.after(SETTINGS.idle_s, turns=10)
        assert (written(kubectl, 0), written(kubectl, 1)) == ((1, []), (0, []))
        assert len(kuberay.pods()) == 1
        assert running.count(NodeRetired) == 2


def test_work_that_is_submitted_while_its_node_is_retired_runs_elsewhere_or_there(
    fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay
) -> None:
    with autoscaler(fake, kubectl, kuberay, group("cpu")) as running:
        running.desk.submit(cpu_work("one"))
        running.after(2)
        running.desk.end("one")
        running.after(0)
        running.after(SETTINGS.idle_s, turns=1)
        running.desk.submit(cpu_work("two"))
        running.after(2, turns=10)
        assert running.desk.groups == {"two": "cpu"}


def test_a_full_quota_of_kubernetes_sends_work_to_another_group(
    fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay
) -> None:
    cheap, dear = group("cheap"), group("dear")
    dear["template"]["metadata"]["annotations"] = {"stead/price": "9"}
    cheap["template"]["metadata"]["annotations"] = {"stead/price": "1"}
    kuberay.full = {"cheap"}
    with autoscaler(fake, kubectl, kuberay, cheap, dear) as running:
        running.desk.submit(cpu_work("web"))
        running.after(2, turns=10)
        assert running.desk.groups == {"web": "dear"}
        (ended,) = [each for each in running.decisions if isinstance(each, LaunchEnded)]
        assert "exceeded quota: gpus" in ended.why
        assert (written(kubectl, 0), written(kubectl, 1)) == ((0, []), (1, []))


@pytest.mark.parametrize("operates", [True, False])
def test_the_next_autoscaler_takes_over_launches_that_are_under_way(
    fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay, operates: bool
) -> None:
    with autoscaler(fake, kubectl, kuberay, group("cpu")) as running:
        running.desk.submit(*(cpu_work(f"web-{number}") for number in range(3)))
        running.after(0, turns=1, operates=False)
        running.after(2, turns=1, operates=operates)
        assert running.count(NodeRequested) == 3
        running.restart()
        running.after(2)
        assert running.count(NodeRequested) == 3 and len(kuberay.pods()) == 3
        assert set(running.desk.groups) == {"web-0", "web-1", "web-2"}


def test_a_group_with_two_hosts_for_each_replica_serves_two_nodes_worth_of_work(
    fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay
) -> None:
    with autoscaler(fake, kubectl, kuberay, group("pair", hosts=2)) as running:
        running.desk.submit(cpu_work("one"), cpu_work("two"))
        running.after(2)
        assert running.desk.groups == {"one": "pair", "two": "pair"}
        assert (written(kubectl)[0], running.count(NodeRequested)) == (1, 2)
        running.desk.end("one")
        running.after(0)
        running.after(SETTINGS.idle_s, turns=10)
        assert running.desk.groups == {"two": "pair"}, "a replica goes as a whole"
        running.desk.end("two")
        running.after(0)
        running.after(SETTINGS.idle_s, turns=10)
        assert (written(kubectl), kuberay.pods()) == ((0, []), [])


def test_all_that_was_launched_ends_and_the_minimum_stays(fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay) -> None:
    kubectl.create(ray_cluster(group("pair", least=1, hosts=2, most=3), group("cpu")))
    kuberay.settle()
    with provider_on(fake) as provider, operating(kuberay):
        kinds = {each.name: each for each in provider.catalog()}
        provider.list()
        for number in range(4):
            provider.launch(f"launch-{number}", kinds["pair"])
        provider.launch("alone", kinds["cpu"])
        kubectl.wait_until(lambda: len(kuberay.pods()) == 7)
        problems: list[str] = []
        assert end_all(provider, ANSWERS_S, problems.append, {each.name: each.count_min for each in kinds.values()})
        assert (written(kubectl, 0), written(kubectl, 1), problems) == ((1, []), (0, []), [])
        assert len(kuberay.pods()) == 2
    assert not kuberay.at_random


@contextmanager
def operating(kuberay: KubeRay) -> Iterator[None]:
    """The operator and the kubelets work all the time."""
    stopping = threading.Event()

    def work() -> None:
        while not stopping.wait(0.01):
            with suppress(ApiError):  # somebody changed the RayCluster meanwhile
                kuberay.settle()

    thread = threading.Thread(target=work, name="kuberay")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
