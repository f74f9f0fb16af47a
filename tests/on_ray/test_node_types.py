"""Node types of Ray's autoscaler: how stead reads them, and that Ray launches the types that stead's demands mean.

Rule: no cluster. Ray's own planner, which is pure, is the judge of the demands.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray")

from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated import autoscaler_pb2, common_pb2

from stead.language.labels import Labels
from stead.language.taints import Taint
from stead.ray.control.cluster import RayCluster
from stead.ray.control.node_types import ANY_ROOM, NodeTypes, NodeTypesFile, Wanted, config_of, read_node_types
from stead.ray.wire.tables import NodeRow

FILE = dedent("""
    cluster_name: tests
    max_workers: 5
    idle_timeout_minutes: 2
    provider: {type: external, module: some.Provider}
    head_node_type: head
    available_node_types:
      head: {node_config: {}, resources: {CPU: 1}, max_workers: 0}
      cpu: {node_config: {}, resources: {CPU: 4, memory: 1000000000}, min_workers: 1, max_workers: 3}
      gpu:
        node_config: {}
        resources: {CPU: 4, GPU: 1}
        labels: {zone: a, no-schedule.taint.stead.io/rare: "yes"}
        max_workers: 2
    metadata:
      stead:
        price_max: 10
        node_types: {gpu: {price: 2.5, taints: {gpu_node: "true"}, labels: {team: vision}}}
""")


class TestReading:
    types = read_node_types(FILE)

    def test_the_catalog_is_what_the_cluster_will_see_of_each_type_but_not_the_head(self) -> None:
        cpu, gpu = self.types.catalog
        assert (cpu.name, gpu.name) == ("cpu", "gpu")
        assert set(map(str, gpu.taints)) == {"gpu_node=true", "rare=yes"}
        assert dict(gpu.labels) == {"zone": "a", "team": "vision", "ray.io/node-group": "gpu"}
        assert gpu.price == 2.5

    def test_ray_keeps_the_minimum_so_no_plan_needs_to(self) -> None:
        assert [each.count_min for each in self.types.catalog] == [0, 0]
        assert self.types.minimums == {"cpu": 1, "gpu": 0}

    def test_limits_and_times_are_those_of_the_file(self) -> None:
        assert self.types.limits.price_max == 10
        assert [quota.nodes_max for quota in self.types.limits.quotas] == [5]
        assert self.types.settings.idle_s == 120

    def test_a_node_gets_what_only_stead_knows_of_its_type_when_it_joins(self) -> None:
        cluster = RayCluster(None)  # type: ignore[arg-type]  # carries out nothing here
        cluster.node_types = self.types
        total = {"CPU": 4.0, "GPU": 1.0}
        gpu, other = (NodeRow("n", "10.0.0.1", {"zone": "a"}, total, total, False, kind) for kind in ("gpu", "head"))
        node = cluster.node(gpu, "")
        assert node.labels == Labels({"zone": "a", "team": "vision", "ray.io/node-group": "gpu"})
        assert set(node.taints) == {Taint("gpu_node", "true"), Taint("rare", "yes")}
        assert cluster.node(other, "").taints == ()


class TestFinding:
    LOGS = "/tmp/ray/session_1/logs"

    def monitor(self, logs: str, config: str) -> tuple[Path, list[str]]:
        words = ["python", "-u", "/ray/autoscaler/v2/monitor.py", f"--logs-dir={logs}", "--gcs-address=10.0.0.1:6379"]
        return Path("/home/ray"), [*words, f"--autoscaling-config={config}"]

    @pytest.mark.parametrize(
        ("written", "found"), [("/etc/cluster.yaml", "/etc/cluster.yaml"), ("cluster.yaml", "/home/ray/cluster.yaml")]
    )
    def test_the_file_is_in_the_command_line_of_the_autoscaler(self, written: str, found: str) -> None:
        assert config_of([self.monitor(self.LOGS, written)], self.LOGS) == Path(found)

    def test_another_sessions_autoscaler_and_one_without_a_file_are_not_used(self) -> None:
        other = self.monitor("/tmp/ray/session_2/logs", "/etc/other.yaml")
        assert config_of([other, self.monitor(self.LOGS, "")], self.LOGS) is None
        assert config_of([(Path("/"), ["cat", f"--logs-dir={self.LOGS}", "--autoscaling-config=x"])], self.LOGS) is None

    def test_a_file_that_changes_is_read_again_and_one_with_a_mistake_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, reported = tmp_path / "cluster.yaml", list[str]()
        path.write_text(FILE)
        monkeypatch.setattr(
            "stead.ray.control.node_types.processes", lambda: [self.monitor(self.LOGS, str(path))], raising=True
        )
        file = NodeTypesFile(self.LOGS, reported.append)
        first = file.types()
        assert first is not None and file.types() is first
        path.write_text(FILE.replace("max_workers: 3", "max_workers: 30"))
        second = file.types()
        assert second is not None and second.catalog[0].count_max == 30
        path.write_text(FILE.replace("price: 2.5", "price: cheap"))
        assert file.types() is None
        assert len(reported) == 1 and "metadata.stead.node_types.gpu.price" in reported[0]
        path.unlink()
        assert file.types() is None

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "text",
            "{",
            "provider: {type: kuberay}",
            "available_node_types: []",
            "{provider: {type: aws}, available_node_types: {cpu: null}}",
            "{provider: {type: aws}, available_node_types: {cpu: {resources: [CPU]}}}",
            "{provider: {type: aws}, available_node_types: {cpu: {resources: {CPU: 1}, labels: [a]}}}",
            "{provider: {type: aws}, available_node_types: {1: {resources: {CPU: 1}}}}",
            "{provider: {type: aws}, available_node_types: {cpu: {resources: {CPU: 1}}}, metadata: [stead]}",
            "{provider: {type: aws}, available_node_types: {cpu: {resources: {CPU: 1}}}, metadata: {stead: [1]}}",
        ],
    )
    def test_a_file_that_stead_cannot_use_stops_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        path = tmp_path / "cluster.yaml"
        path.write_text(text)
        monkeypatch.setattr("stead.ray.control.node_types.processes", lambda: [self.monitor(self.LOGS, str(path))])
        assert NodeTypesFile(self.LOGS, lambda _: None).types() is None


class TestDemands:
    """Ray's planner launches exactly the nodes that are requested."""

    def test_a_type_is_named_by_its_labels_and_by_those_that_it_lacks(self) -> None:
        found = read_node_types(FILE).demands
        taint = "no-schedule.taint.stead.io/rare"
        assert found["gpu"].labels == ((taint, "in(yes)"), ("zone", "in(a)"))
        assert found["cpu"].labels == ((taint, "!in(yes)"), ("zone", "!in(a)"))

    def test_a_demand_leaves_out_memory_of_which_a_node_may_have_less(self) -> None:
        found = read_node_types(FILE).demands
        assert found["cpu"].amounts == (("CPU", 4.0),)

    def test_amounts_may_be_written_with_a_unit(self) -> None:
        written: dict[str, Any] = {"twin": ({"CPU": "4", "memory": "8Gi"}, {}), "other": ({"CPU": 1}, {})}
        assert types_of(written).demands["twin"].amounts == (("CPU", 4.0), ("memory", 8.0 * 2**30))

    def test_a_type_without_resources_is_requested_with_the_smallest_amount(self) -> None:
        assert types_of({"empty": ({"object_store_memory": 100}, {})}).demands["empty"].amounts == ANY_ROOM

    TYPES = st.dictionaries(
        st.sampled_from(["t1", "t2", "t3", "t4"]),
        st.tuples(
            st.fixed_dictionaries(
                {"CPU": st.integers(1, 4)}, optional={"GPU": st.integers(1, 2), "memory": st.sampled_from([100, 200])}
            ),
            st.fixed_dictionaries({}, optional={"zone": st.sampled_from("ab"), "pool": st.sampled_from("xy")}),
        ),
        min_size=1,
    )

    @given(TYPES, st.dictionaries(st.sampled_from(["t1", "t2", "t3", "t4"]), st.integers(1, 3)))
    def test_ray_launches_the_types_and_numbers_that_are_requested(
        self, written: dict[str, tuple[dict[str, int], dict[str, str]]], wanted: dict[str, int]
    ) -> None:
        types = types_of(written)
        counts = Counter({kind: count for kind, count in wanted.items() if kind in written})
        launched = launched_by_ray(types, counts)
        # Types that do not differ at all are one type to Ray: it may launch any of them.
        kinds = {kind: min(each for each in written if written[each] == written[kind]) for kind in written}

        def merged(found: Counter[str]) -> Counter[str]:
            total = Counter[str]()
            for kind, count in found.items():
                total[kinds[kind]] += count
            return total

        assert merged(launched) == merged(counts)


def types_of(written: dict[str, tuple[dict[str, int], dict[str, str]]]) -> NodeTypes:
    """Node types with these resources and labels."""
    import yaml

    kinds = {name: {"resources": amounts, "labels": labels} for name, (amounts, labels) in written.items()}
    head = {"head": {"resources": {"CPU": 1}, "max_workers": 0}}
    file = {"provider": {"type": "local"}, "max_workers": 100, "head_node_type": "head"}
    return read_node_types(yaml.safe_dump({**file, "available_node_types": {**kinds, **head}}))


def launched_by_ray(types: NodeTypes, counts: Counter[str]) -> Counter[str]:
    """What Ray's planner launches for the demands for these nodes, each in a group of its own."""
    configs = {
        name: NodeTypeConfig(name, 0, 100, resources=dict(known.amounts), labels=dict(known.labels))
        for name, known in types.known.items()
        if name != "head"
    }
    gangs = [gang(types.demands[kind]) for kind in counts.elements()]
    request = SchedulingRequest(
        disable_launch_config_check=True, node_type_configs=configs, max_num_nodes=100, gang_resource_requests=gangs
    )
    reply = ResourceDemandScheduler().schedule(request)
    assert not reply.infeasible_gang_resource_requests
    return Counter({each.instance_type: each.count for each in reply.to_launch})


def gang(wanted: Wanted) -> Any:
    """A demand as Ray's control store reports a placement group of one bundle to the autoscaler."""
    operators = common_pb2.LabelSelectorOperator
    constraints = []
    for key, text in wanted.labels:
        operator = operators.LABEL_OPERATOR_NOT_IN if text.startswith("!") else operators.LABEL_OPERATOR_IN
        values = text.removeprefix("!").removeprefix("in(").removesuffix(")").split(",")
        constraints.append(common_pb2.LabelSelectorConstraint(label_key=key, operator=operator, label_values=values))
    request = ResourceRequestUtil.make(dict(wanted.amounts))
    request.label_selectors.append(common_pb2.LabelSelector(label_constraints=constraints))
    return autoscaler_pb2.GangResourceRequest(requests=[request])
