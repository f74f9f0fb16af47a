"""Cluster files: Ray's own format is read as kinds of nodes, and an error names the part that is wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.errors import Invalid
from stead.language.labels import Labels
from stead.language.resources import Resources
from stead.language.taints import Effect, Taint
from stead.planner.plans import Quota
from stead.planner.scaler import ScaleSettings
from stead.scaling.catalog import MAX_WORKERS, ClusterFile, cluster_of, read_cluster
from stead.specs.sections import load_yaml

GPU = {"resources": {"CPU": 4, "GPU": 1}, "node_config": {"InstanceType": "p3.2xlarge"}, "max_workers": 3}
CPU = {"resources": {"CPU": 2, "memory": 2_000_000_000}, "node_config": {}}


def read(**fields: Any) -> ClusterFile:
    file = {"cluster_name": "c", "provider": {"type": "raylets"}, "available_node_types": {"gpu": GPU, "cpu": CPU}}
    return cluster_of({**file, **fields})


def test_a_node_type_becomes_a_kind_with_the_label_of_its_name() -> None:
    gpu, cpu = read(max_workers=7).catalog
    assert (gpu.name, gpu.capacity, gpu.count_min, gpu.count_max) == ("gpu", Resources.of(CPU=4, GPU=1), 0, 3)
    assert dict(gpu.labels) == {"ray.io/node-group": "gpu"}
    assert cpu.capacity == Resources.of(CPU=2, memory=2_000_000_000)
    assert cpu.count_max == 7, "as in Ray, a type may have as many nodes as the cluster"


def test_labels_taints_and_prices_are_read_beside_the_resources() -> None:
    more = {**GPU, "labels": {"zone": "a"}, "taints": {"gpu_node": "true"}, "price": 2.5, "min_workers": 1}
    (gpu,) = read(available_node_types={"gpu": more}).catalog
    assert gpu.labels["zone"] == "a"
    assert (gpu.taints, gpu.price, gpu.count_min) == ((Taint("gpu_node", "true"),), 2.5, 1)


def test_a_file_for_ray_up_has_taints_and_prices_in_its_metadata() -> None:
    more = {"gpu": {"taints": "team=blue:NoExecute", "price": 3, "labels": {"zone": "b"}}}
    gpu, cpu = read(metadata={"stead": {"node_types": more}, "of a user": 1}).catalog
    assert (gpu.taints, gpu.price, gpu.labels["zone"]) == ((Taint("team", "blue", Effect.NO_EXECUTE),), 3.0, "b")
    assert (cpu.taints, cpu.price) == ((), 0.0)


def test_the_metadata_completes_the_resources_of_a_type() -> None:
    kinds = {"gpu": {"node_config": {"InstanceType": "p3.2xlarge"}}}
    (gpu,) = read(
        available_node_types=kinds, metadata={"stead": {"node_types": {"gpu": {"resources": {"CPU": 8}}}}}
    ).catalog
    assert gpu.capacity == Resources.of(CPU=8)


def test_the_type_of_the_head_is_launched_only_if_the_file_says_how_many() -> None:
    assert [each.name for each in read(head_node_type="cpu").catalog] == ["gpu"]
    kinds = {"gpu": GPU, "cpu": {**CPU, "max_workers": 2}}
    assert [each.name for each in read(head_node_type="cpu", available_node_types=kinds).catalog] == ["gpu", "cpu"]


def test_settings_and_limits_are_read() -> None:
    found = read(
        max_workers=9,
        idle_timeout_minutes=0.5,
        metadata={
            "stead": {
                "settle": "3s",
                "join": "5m",
                "retry": 10,
                "launches_per_minute": 6,
                "price_max": 20,
                "quotas": [{"name": "zone-a", "labels": {"zone": "a"}, "nodes": 4, "resources": {"GPU": 16}}],
            }
        },
    )
    assert found.settings == ScaleSettings(idle_s=30, settle_s=3, join_s=300, retry_s=10, launches_per_minute=6)
    assert found.limits.price_max == 20
    assert found.limits.quotas == (
        Quota(MAX_WORKERS, nodes_max=9, only_launched=True),
        Quota("zone-a", Labels({"zone": "a"}), 4, Resources.of(GPU=16)),
    )


def test_what_has_no_effect_is_listed() -> None:
    kinds = {"cpu": {**CPU, "idle_timeout_s": 60, "priority": 2}, "gpu": {**GPU, "idle_timeout_s": None}}
    assert read(available_node_types=kinds).unused == (
        "available_node_types.cpu.idle_timeout_s",
        "available_node_types.cpu.priority",
    )


def test_every_field_of_rays_schema_is_accepted() -> None:
    ray = pytest.importorskip("ray", reason="Ray's schema comes with Ray")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    ours = {"provider", "available_node_types", "head_node_type", "metadata", "max_workers", "idle_timeout_minutes"}
    assert read(**{name: "anything" for name in schema["properties"] if name not in ours}).catalog
    ((_, kind),) = schema["properties"]["available_node_types"]["patternProperties"].items()
    given: dict[str, Any] = {name: None for name in kind["properties"] if name not in ("min_workers", "max_workers")}
    given |= {"resources": {"CPU": 1}, "labels": {}}
    assert read(available_node_types={"cpu": given}).catalog


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"providr": {}}, "providr: is not a known field (did you mean 'provider'?)"),
        ({"provider": {}}, "provider.type: is missing; a good value is raylets"),
        ({"provider": "aws"}, "provider: must be a map such as {type: raylets}, not 'aws'"),
        ({"available_node_types": {}}, "available_node_types: has no node type; a good value is {cpu: {resources:"),
        ({"available_node_types": {"cpu": {}}}, "available_node_types.cpu.resources: is missing; a good value is {CPU"),
        ({"available_node_types": {"a b": CPU}}, "available_node_types: the name of a node type, 'a b'"),
        ({"available_node_types": {1: CPU}}, "available_node_types: the name of a node type must be text such as"),
        ({"available_node_types": {"cpu": {**CPU, "max_worker": 1}}}, "(did you mean 'max_workers'?)"),
        ({"available_node_types": {"cpu": {"resources": {"CPU": "x"}}}}, "available_node_types.cpu.resources: the amo"),
        ({"available_node_types": {"cpu": {"resources": {"GPU": 0.5}}}}, "give whole devices, for example 1"),
        ({"available_node_types": {"cpu": {**CPU, "labels": {"node_id": "x"}}}}, "cpu.labels: label 'node_id' is set"),
        ({"available_node_types": {"cpu": {**CPU, "taints": {"a b": ""}}}}, "available_node_types.cpu.taints: taint k"),
        ({"available_node_types": {"cpu": {**CPU, "price": -1}}}, "available_node_types.cpu.price: must be a number"),
        ({"available_node_types": {"cpu": {**CPU, "max_workers": "3"}}}, "cpu.max_workers: must be a whole number"),
        (
            {"available_node_types": {"cpu": {**CPU, "min_workers": 4, "max_workers": 3}}},
            "available_node_types.cpu.min_workers: must be at most max_workers, which is 3, not 4; a good value is 3",
        ),
        (
            {"available_node_types": {"cpu": {**CPU, "min_workers": 4}}},
            "must be at most max_workers, which is 2, not 4",
        ),
        ({"head_node_type": "head"}, "head_node_type: must be one of available_node_types, for example gpu, not head"),
        ({"max_workers": -1}, "max_workers: must be from 0 to 100,000, for example 10, not -1"),
        ({"idle_timeout_minutes": "5m"}, "idle_timeout_minutes: must be a number such as 2.5, from 0 up, not '5m'"),
        ({"metadata": {"stead": {"setle": 1}}}, "metadata.stead.setle: is not a known field (did you mean 'settle'?)"),
        ({"metadata": {"stead": {"join": 0}}}, "metadata.stead.join: must be more than 0 s, for example 10m"),
        ({"metadata": {"stead": {"retry": "1h", "retry_max": "1m"}}}, "metadata.stead.retry_max: must be at least"),
        ({"metadata": {"stead": {"launches_per_minute": 0}}}, "launches_per_minute: must be at least 1"),
        (
            {"metadata": {"stead": {"quotas": [{"nodes": 1}]}}},
            "metadata.stead.quotas[0].name: is missing; a good value",
        ),
        ({"metadata": {"stead": {"quotas": [{"name": "a"}]}}}, "metadata.stead.quotas[0]: limits nothing; give nodes"),
        ({"metadata": {"stead": {"quotas": 2 * [{"name": "a", "nodes": 1}]}}}, "quotas[1].name: 'a' is taken; each"),
        ({"metadata": {"stead": {"node_types": {"tpu": {}}}}}, "metadata.stead.node_types.tpu: is not in available_no"),
        (
            {
                "available_node_types": {"cpu": {**CPU, "price": 1}},
                "metadata": {"stead": {"node_types": {"cpu": {"price": 2}}}},
            },
            "metadata.stead.node_types.cpu.price: is also at available_node_types.cpu.price; give one of them",
        ),
    ],
)
def test_an_error_names_the_part_and_a_good_value(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid) as refused:
        read(**fields)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "No such file"), (b"\xff", "it is not UTF-8 text"), (b"a: [", "this is not YAML"), (b"1", "must be a map")],
)
def test_an_error_names_the_file(content: bytes | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Invalid, match=says) as refused:
        read_cluster(path)
    assert str(refused.value).startswith(str(path))


_JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists)


@given(st.dictionaries(st.sampled_from(["provider", "available_node_types", "metadata", "max_workers"]), _JSON))
def test_any_document_is_read_or_refused(written: dict[str, Any]) -> None:
    with suppress(Invalid):
        read(**written)


def test_a_real_file_of_ray_is_read() -> None:
    text = """
    cluster_name: example
    max_workers: 4
    idle_timeout_minutes: 5
    provider: {type: aws, region: us-west-2, cache_stopped_nodes: true}
    auth: {ssh_user: ubuntu}
    available_node_types:
      ray.head.default: {resources: {}, node_config: {InstanceType: m5.large}}
      ray.worker.default:
        min_workers: 1
        max_workers: 2
        resources: {CPU: 2}
        labels: {zone: us-west-2a}
        node_config: {InstanceType: m5.large, InstanceMarketOptions: {MarketType: spot}}
    head_node_type: ray.head.default
    head_start_ray_commands: [ray stop, ray start --head --autoscaling-config=~/ray_bootstrap_config.yaml]
    """
    found = cluster_of(load_yaml(text))
    assert (found.name, found.provider, found.head) == ("example", "aws", "ray.head.default")
    assert found.provider_fields["region"] == "us-west-2"
    assert [(each.name, each.count_min, each.count_max) for each in found.catalog] == [("ray.worker.default", 1, 2)]
