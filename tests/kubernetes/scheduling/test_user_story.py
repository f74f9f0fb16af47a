"""The user story of the node-affinity proposal: nginx and httpd on a cluster with a few kinds of nodes.

Rule: the words that a user reads with `kubectl describe pod` are part of the story.
"""

from __future__ import annotations

from typing import Any

from tests.kubernetes.objects import condition_of, node, node_of, pod
from tests.kubernetes.scheduling.cluster import ClusterUnderTest

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

TYPE = "node.kubernetes.io/instance-type"
REGION = "topology.kubernetes.io/region"
BALANCED = "example.com/load-balancer"

NODES = [
    node("m3-medium", labels={TYPE: "m3.medium", REGION: "us-east-1"}),
    node("west", labels={TYPE: "c5.large", REGION: "us-west-2"}),
    node("west-balanced", labels={TYPE: "c5.large", REGION: "us-west-2", BALANCED: "true"}),
    node("west-balanced-web", labels={TYPE: "c5.large", REGION: "us-west-2", BALANCED: "true", "x-web": "yes"}),
    node("east-balanced-web", labels={TYPE: "c5.large", REGION: "us-east-1", BALANCED: "true", "x-web": "yes"}),
]


def label_in(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


HTTPD = {
    "nodeAffinity": {
        REQUIRED: {
            "nodeSelectorTerms": [{"matchExpressions": [label_in(REGION, "us-west-2"), label_in(BALANCED, "true")]}]
        },
        PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [label_in("x-web", "yes")]}}],
    }
}

NGINX = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [label_in("y-web", "yes")]}]}}}


def test_nginx_and_httpd_run_where_they_should_and_wait_where_they_must(cluster: ClusterUnderTest) -> None:
    cluster.create(*NODES)
    cluster.scheduler().wait_until_leading()
    cluster.create(
        pod("nginx", nodeSelector={TYPE: "m3.medium"}),
        pod("httpd", affinity=HTTPD),
        pod("httpd-large", affinity=HTTPD, cpu="7"),
        pod("httpd-larger", affinity=HTTPD, cpu="7500m"),
        pod("nginx-y-web", affinity=NGINX),
    )

    nodes = cluster.wait_until_bound("nginx", "httpd", "httpd-large", "httpd-larger")
    assert nodes["nginx"] == "m3-medium"
    assert nodes["httpd"] == "west-balanced-web", "a node with x-web=yes is preferred"
    assert {nodes["httpd-large"], nodes["httpd-larger"]} == {"west-balanced-web", "west-balanced"}, "but not required"

    pending = cluster.wait_until_pending("nginx-y-web")
    assert pending["reason"] == "Unschedulable"
    assert pending["message"].startswith(
        "0/5 nodes are available: 5 node(s) didn't match Pod's node affinity/selector."
    )
    assert "y-web" in pending["message"], "the smallest change names the label"
    event = cluster.wait_for_event("nginx-y-web", "FailedScheduling")
    assert event["message"] == pending["message"]
    assert (event["type"], event["count"], event["reportingComponent"]) == ("Warning", 1, "stead")
    assert event["involvedObject"]["name"] == "nginx-y-web"

    cluster.create(node("new", labels={"y-web": "yes"}))
    assert cluster.wait_until_bound("nginx-y-web") == {"nginx-y-web": "new"}
    bound = cluster.kubectl.get("Pod", "nginx-y-web")
    scheduled = condition_of(bound, "PodScheduled")
    assert (node_of(bound), scheduled and scheduled["status"]) == ("new", "True")
    assert cluster.wait_for_event("nginx-y-web", "Scheduled")["message"] == (
        "Successfully assigned default/nginx-y-web to new"
    )
