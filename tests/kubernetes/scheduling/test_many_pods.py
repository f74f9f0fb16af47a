"""Many pods of each kind: all are bound, and the checker finds no broken rule.

Rule: 1,000 nodes and 3,000 pods on the real server, 200 and 600 on the fake. Pods that must be on different nodes are
as many as there are nodes.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.kubernetes.objects import HOSTNAME, ZONE, Object, node_of, nodes, pods, taint
from tests.kubernetes.scheduling.checker import broken_rules
from tests.kubernetes.scheduling.cluster import ClusterUnderTest

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WEB = {"matchLabels": {"app": "web"}}
ZONES = 5


def fleet(size: int) -> list[Object]:
    """Nodes in zones. Every tenth one has a GPU and a taint, every fifth one a fast disk."""
    rooms = nodes(size, zones=ZONES, cpu="8")
    for each in rooms[::10]:
        each["metadata"]["labels"]["gpu"] = "yes"
        each["spec"]["taints"] = [taint("gpu")]
    for each in rooms[1::5]:
        each["metadata"]["labels"]["disk"] = "ssd"
    return rooms


def label_in(key: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}


SPREAD = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": WEB}

KINDS: dict[str, Object] = {
    "plain": {},
    "required affinity and a toleration": {
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [label_in("gpu", "yes")]}}},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    },
    "preferred affinity": {
        "affinity": {
            "nodeAffinity": {
                PREFERRED: [
                    {"weight": 80, "preference": label_in("disk", "ssd")},
                    {"weight": 20, "preference": label_in(ZONE, "zone-1")},
                ]
            }
        }
    },
    "anti-affinity by hostname": {
        "affinity": {"podAntiAffinity": {REQUIRED: [{"labelSelector": WEB, "topologyKey": HOSTNAME}]}},
        "tolerations": [{"operator": "Exists"}],
    },
    "spread over zones": {"topologySpreadConstraints": [SPREAD]},
    "affinity by zone": {"affinity": {"podAffinity": {REQUIRED: [{"labelSelector": WEB, "topologyKey": ZONE}]}}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_are_bound_and_no_rule_is_broken(shared_cluster: ClusterUnderTest, kind: str) -> None:
    cluster = shared_cluster
    size, count = (200, 600) if cluster.is_fake else (1000, 3000)
    if kind == "anti-affinity by hostname":
        count = size
    cluster.create_many(fleet(size))
    cluster.wait_until_it_knows_everything()
    with cluster.recorded() as recorded:
        cluster.create_many(pods(count, "web", cpu="100m", labels={"app": "web"}, **KINDS[kind]))
        recorded.wait_until_assigned(count)
        assert not recorded.assigned_twice()
    cluster.running[0].wait_until_quiet()
    bound = cluster.kubectl.list("Pod")
    assert sum(node_of(each) is not None for each in bound) == count
    assert broken_rules(cluster.kubectl.list("Node"), bound) == []
    used = Counter(node_of(each) for each in bound)
    if kind == "plain":
        assert len(used) == size * 9 // 10, "pods spread over all nodes without a taint"
    elif kind == "affinity by zone":
        assert len({int(str(name).removeprefix("node-")) % ZONES for name in used}) == 1, "the first pod decides"
