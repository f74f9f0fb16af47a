"""Requests that the fake and the real API server must answer alike: one table, by what it is about.

Rule: a script says which status code each request gets; everything else is compared with the recording of the real
server. Names of cluster-wide objects are used by one script only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.kubernetes.objects import HOSTNAME, JSON_PATCH, MERGE, STRATEGIC, Object, binding, node, pod, service, taint
from tests.kubernetes.servers.recording import Compacted, Script, Step, Watched
from tests.kubernetes.storage_objects import NO_PROVISIONER, claim, claim_reference, csi_node, storage_class, volume

PODS = "/api/v1/namespaces/{ns}/pods"
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
EVENTS = "/api/v1/namespaces/{ns}/events"
CLAIMS = "/api/v1/namespaces/{ns}/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
STORAGE_CLASSES, CSI_NODES = "/apis/storage.k8s.io/v1/storageclasses", "/apis/storage.k8s.io/v1/csinodes"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"

NOT_COMPARED = {
    "namespaceSelector in pod affinity": "the real server of the tests is 1.20, which drops the field",
    "schedulingGates": "1.20 drops the field; the fake follows 1.36, see test_fake_server.py",
    "minDomains of topology spread": "1.20 drops the field",
    "preconditions of a binding": "1.20 ignores its uid and resourceVersion; the fake follows 1.36, which checks them",
    "policy/v1 PodDisruptionBudget and Eviction": "1.20 has policy/v1beta1 only",
    "quantities": "the real server writes 1024Mi as 1Gi; the fake keeps them as they are sent",
    "unknown fields": "the real server drops them; the fake keeps them",
    "validation": "the fake checks names, containers, images and the target of a binding, and nothing else",
    "managedFields, generation, nodeInfo and other fields that no scheduler reads": "the fake does not write them",
    "roles": "the fake checks tokens, not permissions",
    "set-based label selectors, dryRun, server-side apply, protobuf, gzip": "the fake refuses or ignores them",
    "bookmarks": "the real server sends them once a minute and, mostly, in the last seconds of a watch",
    "updates that change only managedFields": "they make a new version on the real server, and none on the fake",
    "a deletion right after a binding": "the real one may still see no node in its cache and delete the pod at once",
    "versions": "numbers of the fake count its own writes; the real ones are etcd's",
}
"""What the table leaves out, and why."""


OTHER_UID = "11111111-1111-1111-1111-111111111111"


def bare(name: str, **more: Any) -> Object:
    """A pod as a person writes it."""
    made = pod(name, "{ns}", **more)
    del made["metadata"]["labels"]
    return made


def post(path: str, body: Any, code: int = 201, remember: str | None = None, **more: Any) -> Step:
    return Step(code, "POST", path, body, remember=remember, **more)


def get(path: str, code: int = 200, remember: str | None = None, **query: str) -> Step:
    return Step(code, "GET", path, query=query, remember=remember)


def put(path: str, body: Any, code: int = 200, **more: Any) -> Step:
    return Step(code, "PUT", path, body, **more)


def patch(path: str, body: Any, code: int = 200, content_type: str = STRATEGIC, **more: Any) -> Step:
    return Step(code, "PATCH", path, body, content_type=content_type, **more)


def delete(path: str, body: Any = None, code: int = 200, **query: str) -> Step:
    return Step(code, "DELETE", path, body, query)


def bind(name: str, node_name: str, code: int = 201, **more: Any) -> Step:
    return post(f"{PODS}/{name}/binding", binding(name, node_name, **more), code)


def evict(name: str, code: int, version: str = "policy/v1beta1", **options: Any) -> Step:
    body = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}
    return post(f"{PODS}/{name}/eviction", body, code)


def bound(name: str, node_name: str) -> list[Step]:
    """Bind a pod, and wait until the cache of the real server knows it: see NOT_COMPARED."""
    known = f"bound-{name}"
    cached = get(PODS, resourceVersion="{" + known + ".version}", fieldSelector="metadata.name=none")
    return [bind(name, node_name), get(f"{PODS}/{name}", remember=known), cached]


def with_version(obj: Object, version: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}}


def lease(name: str, holder: str, **metadata: str) -> Object:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 0}
    named = {"name": name, "namespace": "{ns}", **metadata}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": named, "spec": spec}


def event(name: str | None = None) -> Object:
    metadata = {"namespace": "{ns}", **({"name": name} if name else {"generateName": "web."})}
    about = {"kind": "Pod", "namespace": "{ns}", "name": "web"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": about,
        "reason": "FailedScheduling",
        "message": "0/5 nodes are available",
        "type": "Warning",
        "count": 1,
        "source": {"component": "stead"},
    }


def ready_condition(status: str) -> Object:
    return {"type": "Ready", "status": status, "reason": "Test"}


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
LIMITED = {"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}}
TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "a:1"}]}}


def controller(kind: str, api_version: str, **spec: Any) -> Object:
    selector: Any = {"app": "web"} if kind == "ReplicationController" else {"matchLabels": {"app": "web"}}
    body = {"replicas": 2, "selector": selector, "template": TEMPLATE, **spec}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "web"}, "spec": body}


SCRIPTS: Mapping[str, Script] = {
    # Creating
    "a new pod gets the defaults that a scheduler reads": [
        post(PODS, {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main", "image": "web"}]}}),
        get(f"{PODS}/web"),
    ],
    "a pod keeps its scheduler, its requests and its tolerations": [
        post(PODS, bare("web", tolerations=[{"key": "team", "operator": "Exists"}])),
        post(PODS, bare("all", tolerations=[{"operator": "Exists"}])),
        post(PODS, bare("ready", tolerations=[{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}])),
    ],
    "limits become requests where there are none": [
        post(PODS, bare("web", containers=[{"name": "main", "image": "a:1", "resources": LIMITED}])),
        post(
            PODS,
            bare(
                "half",
                containers=[{"name": "main", "image": "a", "resources": {**LIMITED, "requests": {"cpu": "500m"}}}],
                initContainers=[{"name": "first", "image": "a:latest", "resources": LIMITED}],
            ),
        ),
    ],
    "a generated name begins with its prefix": [
        post(PODS, {**bare("x"), "metadata": {"generateName": "web-"}}),
    ],
    "a status is dropped from a new pod": [
        post(PODS, {**bare("web"), "status": {"phase": "Running"}}),
    ],
    "the same name twice is a conflict": [
        post(PODS, bare("web")),
        post(PODS, bare("web"), 409),
        post(NODES, node("twice")),
        post(NODES, node("twice"), 409),
        post(LEASES, lease("leader", "a")),
        post(LEASES, lease("leader", "b"), 409),
    ],
    "a pod in a namespace that does not exist is not created": [
        post("/api/v1/namespaces/nowhere/pods", {**bare("web"), "metadata": {"name": "web"}}, 404),
        post(PODS, {**bare("web"), "metadata": {"name": "web", "namespace": "default"}}, 400),
        get("/api/v1/namespaces/nowhere/pods"),
    ],
    "an invalid pod is refused": [
        post(PODS, {"metadata": {"name": "web"}, "spec": {"containers": []}}, 422),
        post(PODS, {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main"}]}}, 422),
        post(PODS, {**bare("x"), "metadata": {}}, 422),
        post(PODS, {**bare("x"), "metadata": {"name": "Web_1"}}, 422, compare_message=False),
        post(PODS, {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "x"}}, 400, compare_message=False),
    ],
    "a version cannot be set on a new object": [
        post(PODS, with_version(bare("web"), "5"), 500),
    ],
    "a priority class gives a pod its priority": [
        post(CLASSES, {"metadata": {"name": "important"}, "value": 1000}),
        post(PODS, bare("web", priorityClassName="important")),
        post(PODS, bare("system", priorityClassName="system-cluster-critical")),
        post(PODS, bare("other", priorityClassName="nothing-like-it"), 403),
        post(PODS, bare("right", priorityClassName="important", priority=1000)),
        post(PODS, bare("wrong", priorityClassName="important", priority=7), 403),
        delete(f"{CLASSES}/important"),
    ],
    "services and controllers are stored": [
        post("/api/v1/namespaces/{ns}/services", service("web", {"app": "web"}, "{ns}")),
        post("/api/v1/namespaces/{ns}/replicationcontrollers", controller("ReplicationController", "v1")),
        post("/apis/apps/v1/namespaces/{ns}/replicasets", controller("ReplicaSet", "apps/v1")),
        post("/apis/apps/v1/namespaces/{ns}/statefulsets", controller("StatefulSet", "apps/v1", serviceName="web")),
        get("/apis/apps/v1/namespaces/{ns}/replicasets/web"),
        get("/apis/apps/v1/namespaces/{ns}/statefulsets"),
        delete("/apis/apps/v1/namespaces/{ns}/replicasets/web"),
        delete("/api/v1/namespaces/{ns}/services/web"),
        get("/apis/apps/v1/namespaces/{ns}/replicasets/web", 404),
    ],
    "events are created and counted up": [
        post(EVENTS, event()),
        post(EVENTS, event("web.1")),
        patch(f"{EVENTS}/web.1", {"count": 2, "message": "0/6 nodes are available"}),
        patch(f"{EVENTS}/web.2", {"count": 2}, 404),
        get(EVENTS, fieldSelector="involvedObject.name=web,reason=FailedScheduling"),
        get(EVENTS, fieldSelector="involvedObject.name=other"),
    ],
    "a namespace that is deleted accepts nothing new": [
        post("/api/v1/namespaces", {"metadata": {"name": "going"}}),
        delete("/api/v1/namespaces/going"),
        get("/api/v1/namespaces/going"),
        post("/api/v1/namespaces/going/pods", {**bare("web"), "metadata": {"name": "web"}}, 403),
    ],
    # Nodes
    "a new node keeps its status": [
        post(NODES, node("fresh", taints=[taint("team", "a")], labels={"zone": "z1"})),
        post(NODES, {"metadata": {"name": "halved"}, "status": {"capacity": {"cpu": "4", "pods": "10"}}}),
        post(NODES, {"metadata": {"name": "naked"}}),
    ],
    "a node and its status are written apart": [
        post(NODES, node("apart", cpu="4")),
        put(f"{NODES}/apart", node("apart", cpu="64", unschedulable=True)),
        put(f"{NODES}/apart/status", node("apart", cpu="16", labels={"zone": "z1"})),
        patch(f"{NODES}/apart/status", {"status": {"conditions": [ready_condition("Unknown")]}}),
        patch(f"{NODES}/apart", {"status": {"capacity": {"cpu": "1"}}}),
        get(f"{NODES}/apart/status"),
    ],
    "taints are replaced by every kind of patch": [
        post(NODES, node("tainted", taints=[taint("team", "a"), taint("gpu")])),
        patch(f"{NODES}/tainted", {"spec": {"taints": [taint("team", "b")]}}),
        patch(f"{NODES}/tainted", {"spec": {"taints": [taint("x", effect="NoExecute")]}}, content_type=MERGE),
        patch(
            f"{NODES}/tainted",
            [{"op": "add", "path": "/spec/taints/-", "value": taint("y")}],
            content_type=JSON_PATCH,
        ),
        patch(f"{NODES}/tainted", {"spec": {"taints": None}}),
        patch(f"{NODES}/tainted", {"spec": {"unschedulable": True}}),
    ],
    # Binding
    "a binding assigns a pod once": [
        post(PODS, bare("web"), remember="web"),
        bind("web", "any-node"),
        get(f"{PODS}/web"),
        bind("web", "any-node", 409),
        bind("web", "another-node", 409),
    ],
    "a binding checks the pod it is meant for": [
        post(PODS, bare("web"), remember="web"),
        bind("other", "a", 404),
        post(f"{PODS}/web/binding", binding("other", "a"), 400),
        post(f"{PODS}/web/binding", binding("web", ""), 500),
        post(f"{PODS}/web/binding", {**binding("web", "a"), "target": {"kind": "Rack", "name": "a"}}, 500),
        get(f"{PODS}/web"),
        bind("web", "a", uid="{web.uid}"),
    ],
    "a binding carries annotations and replaces the condition": [
        post(PODS, {**bare("web"), "metadata": {"name": "web", "annotations": {"a": "1"}}}),
        patch(f"{PODS}/web/status", {"status": {"conditions": [UNSCHEDULABLE]}}),
        post(
            f"{PODS}/web/binding",
            {"metadata": {"name": "web", "annotations": {"b": "2"}}, "target": {"name": "a"}},
        ),
        get(f"{PODS}/web"),
    ],
    "bindings can also be posted without the pod's path": [
        post(PODS, bare("web")),
        post("/api/v1/namespaces/{ns}/bindings", binding("web", "a")),
        get(f"{PODS}/web"),
    ],
    "a pod that is being deleted is not bound": [
        post(PODS, {**bare("web"), "metadata": {"name": "web", "finalizers": ["test.invalid/hold"]}}),
        delete(f"{PODS}/web"),
        bind("web", "a", 409),
        patch(f"{PODS}/web", {"metadata": {"finalizers": None}}, content_type=MERGE),
        get(f"{PODS}/web", 404),
    ],
    # Updating
    "an update of an old version is a conflict": [
        post(LEASES, lease("leader", "a"), remember="first"),
        put(f"{LEASES}/leader", lease("leader", "b", resourceVersion="{first.version}")),
        put(f"{LEASES}/leader", lease("leader", "c", resourceVersion="{first.version}"), 409),
        put(f"{LEASES}/leader", lease("leader", "c"), 422),
        get(f"{LEASES}/leader"),
    ],
    "an update may create a lease or an event but not a pod": [
        put(f"{LEASES}/fresh", lease("fresh", "a"), 201),
        put(f"{PODS}/fresh", bare("fresh"), 404),
        put(f"{NODES}/never-created", node("never-created"), 404),
    ],
    "an update that changes nothing keeps the version": [
        post(NODES, node("steady")),
        put(f"{NODES}/steady", node("steady")),
        patch(f"{NODES}/steady", {"metadata": {"labels": {"a": "b"}}}),
        patch(f"{NODES}/steady", {"metadata": {"labels": {"a": "b"}}}),
        patch(f"{NODES}/steady", {"metadata": {"labels": {"a": None}}}),
    ],
    "an update checks name, uid and version": [
        post(PODS, bare("web"), remember="web"),
        put(f"{PODS}/web", bare("other"), 400),
        patch(f"{PODS}/web", {"metadata": {"resourceVersion": "1"}}, 409),
        patch(f"{PODS}/web", {"metadata": {"uid": OTHER_UID}}, 422),
        put(f"{PODS}/web", {**bare("web"), "metadata": {"name": "web", "uid": OTHER_UID}}, 409),
        patch(f"{PODS}/web", {"metadata": {"labels": {"a": "b"}, "resourceVersion": "{web.version}"}}),
    ],
    "the spec of a pod is fixed but for a few fields": [
        post(PODS, bare("web")),
        patch(f"{PODS}/web", {"spec": {"nodeName": "a"}}, 422, compare_message=False),
        patch(f"{PODS}/web", {"spec": {"schedulerName": "other"}}, 422, compare_message=False),
        patch(f"{PODS}/web", {"spec": {"nodeSelector": {"a": "b"}}}, 422, compare_message=False),
        patch(f"{PODS}/web", {"spec": {"containers": [{"name": "main", "image": "other:2"}]}}),
        patch(f"{PODS}/web", {"spec": {"tolerations": []}}),
        patch(
            f"{PODS}/web",
            [{"op": "add", "path": "/spec/tolerations/0", "value": {"operator": "Exists"}}],
            content_type=JSON_PATCH,
        ),
        patch(f"{PODS}/web", {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}),
    ],
    "conditions are merged by their type": [
        post(PODS, bare("web")),
        patch(f"{PODS}/web/status", {"status": {"conditions": [UNSCHEDULABLE]}}),
        patch(f"{PODS}/web/status", {"status": {"conditions": [ready_condition("False")]}}),
        patch(
            f"{PODS}/web/status",
            {
                "status": {
                    "conditions": [{"type": "PodScheduled", "message": "0/2 nodes"}, {"type": "New", "status": "True"}]
                }
            },
        ),
        patch(f"{PODS}/web/status", {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}),
        patch(f"{PODS}/web/status", {"status": {"nominatedNodeName": "a"}}),
        patch(f"{PODS}/web/status", {"spec": {"schedulerName": "other"}}),
        patch(f"{PODS}/web", {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running"}}),
        patch(f"{PODS}/web/status", {"status": {"phase": "Running", "conditions": []}}, content_type=MERGE),
        put(f"{PODS}/web/status", {**bare("web"), "status": {"phase": "Failed"}}),
    ],
    "a patch that does not apply is refused": [
        post(PODS, bare("web")),
        patch(
            f"{PODS}/web",
            [{"op": "test", "path": "/spec/schedulerName", "value": "other"}],
            422,
            JSON_PATCH,
            compare_message=False,
        ),
        patch(f"{PODS}/web", {}, 415, "application/toml", compare_message=False),
        patch(f"{PODS}/other", {}, 404),
    ],
    # Deleting
    "a pod without a node is deleted at once": [
        post(PODS, bare("web")),
        delete(f"{PODS}/web"),
        get(f"{PODS}/web", 404),
        delete(f"{PODS}/web", code=404),
    ],
    "a pod on a node ends gracefully": [
        post(PODS, bare("web")),
        *bound("web", "a"),
        delete(f"{PODS}/web"),
        delete(f"{PODS}/web"),
        bind("web", "b", 409),
        delete(f"{PODS}/web", {"gracePeriodSeconds": 5}),
        delete(f"{PODS}/web", {"gracePeriodSeconds": 20}),
        delete(f"{PODS}/web", {"gracePeriodSeconds": 0}),
        get(f"{PODS}/web", 404),
    ],
    "the grace period can stand in the query": [
        post(PODS, bare("web", terminationGracePeriodSeconds=60)),
        *bound("web", "a"),
        delete(f"{PODS}/web", gracePeriodSeconds="7"),
        delete(f"{PODS}/web", {"gracePeriodSeconds": 5}, gracePeriodSeconds="3"),
        delete(f"{PODS}/web", gracePeriodSeconds="0"),
        get(f"{PODS}/web", 404),
    ],
    "a pod that has ended is deleted at once": [
        post(PODS, bare("web")),
        bind("web", "a"),
        patch(f"{PODS}/web/status", {"status": {"phase": "Succeeded"}}),
        delete(f"{PODS}/web"),
        get(f"{PODS}/web", 404),
    ],
    "an eviction deletes a pod": [
        post(PODS, bare("web")),
        *bound("web", "a"),
        evict("web", 409, preconditions={"uid": OTHER_UID}),
        evict("web", 201),
        get(f"{PODS}/web"),
        evict("other", 404),
    ],
    "a deletion checks its preconditions": [
        post(PODS, bare("web"), remember="web"),
        delete(f"{PODS}/web", {"preconditions": {"uid": OTHER_UID}}, 409),
        delete(f"{PODS}/web", {"preconditions": {"resourceVersion": "1"}}, 409),
        delete(f"{PODS}/web", {"preconditions": {"uid": "{web.uid}", "resourceVersion": "{web.version}"}}),
    ],
    "a deleted node is gone, and its deletion is a status": [
        post(NODES, node("short-lived")),
        delete(f"{NODES}/short-lived"),
        delete(f"{NODES}/short-lived", code=404),
        post(LEASES, lease("leader", "a")),
        delete(f"{LEASES}/leader"),
        delete(f"{LEASES}/leader", code=404),
    ],
    "many are deleted by a selector": [
        *(
            post(PODS, {**bare(name), "metadata": {"name": name, "labels": {"app": name[0]}}})
            for name in ("a1", "a2", "b1")
        ),
        delete(PODS, labelSelector="app=a"),
        get(PODS),
    ],
    # Listing
    "a list has pages": [
        *(post(PODS, bare(f"p{i}")) for i in range(5)),
        get(PODS, remember="first", limit="2"),
        delete(f"{PODS}/p3"),
        post(PODS, bare("p9")),
        Step(200, "GET", PODS, query={"limit": "2", "continue": "{first.continue}"}, remember="second"),
        Step(200, "GET", PODS, query={"limit": "2", "continue": "{second.continue}"}),
        get(PODS, limit="2", resourceVersion="0"),
        get(PODS, limit="10"),
        get(PODS, limit="1", labelSelector="app!=x"),
    ],
    "a list is selected by fields and labels": [
        post(PODS, {**bare("a"), "metadata": {"name": "a", "labels": {"app": "web", "tier": "1"}}}),
        post(PODS, {**bare("b", scheduler="other"), "metadata": {"name": "b", "labels": {"app": "web"}}}),
        post(PODS, bare("c")),
        bind("a", "node-a"),
        patch(f"{PODS}/b/status", {"status": {"phase": "Failed"}}),
        get(PODS, fieldSelector="spec.nodeName=node-a"),
        get(PODS, fieldSelector="spec.nodeName="),
        get(PODS, fieldSelector="spec.nodeName!=node-a,spec.schedulerName=stead"),
        get(PODS, fieldSelector="status.phase!=Failed"),
        get(PODS, fieldSelector="metadata.name=c"),
        get(PODS, labelSelector="app=web"),
        get(PODS, labelSelector="app==web,tier!=1"),
        get(PODS, labelSelector="tier"),
        get(PODS, labelSelector="!app"),
        Step(400, "GET", PODS, query={"fieldSelector": "spec.color=red"}, compare_message=False),
        Step(400, "GET", PODS, query={"fieldSelector": "spec.nodeName"}, compare_message=False),
    ],
    "nodes are selected by fields and labels": [
        post(NODES, node("picked", labels={"script": "nodes"}, unschedulable=True)),
        post(NODES, node("other", labels={"script": "nodes"})),
        get(NODES, labelSelector="script=nodes"),
        get(NODES, labelSelector="script=nodes", fieldSelector="spec.unschedulable=true"),
        get(NODES, labelSelector="script=nodes", fieldSelector="metadata.name=other"),
    ],
    "a list of all namespaces has the objects of each": [
        post(PODS, {**bare("a"), "metadata": {"name": "a", "labels": {"script": "everywhere"}}}),
        get("/api/v1/pods", labelSelector="script=everywhere"),
        post("/api/v1/pods", {**bare("b"), "metadata": {"name": "b"}}, 405),
    ],
    # Watching
    "a watch continues from a list": [
        get(PODS, remember="start"),
        post(PODS, bare("web")),
        *bound("web", "a"),
        delete(f"{PODS}/web"),
        delete(f"{PODS}/web", {"gracePeriodSeconds": 0}),
        post(PODS, bare("last")),
        Watched("Pod", {"resourceVersion": "{start.version}"}, 6),
    ],
    "a watch sees a pod being deleted before it is gone": [
        get(PODS, remember="start"),
        post(PODS, bare("free")),
        delete(f"{PODS}/free"),
        post(PODS, bare("placed")),
        bind("placed", "a"),
        delete(f"{PODS}/placed", {"gracePeriodSeconds": 0}),
        Watched("Pod", {"resourceVersion": "{start.version}"}, 7),
    ],
    "a watch without a version begins with what exists": [
        post(PODS, bare("a")),
        post(PODS, bare("b")),
        Watched("Pod", {}, 2),
        Watched("Pod", {"resourceVersion": "0"}, 2),
        Watched("Pod", {"timeoutSeconds": "1"}, None),
    ],
    "an object that stops matching is deleted for the watch": [
        get(PODS, remember="start"),
        post(PODS, bare("web")),
        post(PODS, bare("other", scheduler="other")),
        bind("web", "a"),
        bind("other", "a"),
        Watched(
            "Pod", {"resourceVersion": "{start.version}", "fieldSelector": "spec.nodeName=,spec.schedulerName=stead"}, 2
        ),
        Watched("Pod", {"resourceVersion": "{start.version}", "fieldSelector": "spec.nodeName=a"}, 2),
        Watched("Pod", {"resourceVersion": "{start.version}", "fieldSelector": "spec.nodeName!="}, 2),
    ],
    "a watch sees label selectors": [
        get(NODES, remember="start"),
        post(NODES, node("moving")),
        patch(f"{NODES}/moving", {"metadata": {"labels": {"pool": "watched"}}}),
        patch(f"{NODES}/moving", {"metadata": {"labels": {"pool": "watched", "more": "x"}}}),
        patch(f"{NODES}/moving", {"metadata": {"labels": {"pool": "other"}}}),
        Watched("Node", {"resourceVersion": "{start.version}", "labelSelector": "pool=watched"}, 3),
    ],
    "a watch of leases and events works too": [
        get(LEASES, remember="start"),
        post(LEASES, lease("leader", "a")),
        post(EVENTS, event("web.1")),
        Watched("Lease", {"resourceVersion": "{start.version}"}, 1),
        Watched("Event", {"resourceVersion": "{start.version}"}, 1),
    ],
    "a forgotten version is gone": [
        get(PODS, remember="start"),
        *(post(PODS, bare(f"p{i}")) for i in range(3)),
        get(PODS, remember="page", limit="1"),
        post(PODS, bare("later")),
        Compacted(),
        Watched("Pod", {"resourceVersion": "{start.version}"}, None),
        Step(410, "GET", PODS, query={"limit": "1", "continue": "{page.continue}"}),
        get(PODS, remember="again"),
        post(PODS, bare("after")),
        Watched("Pod", {"resourceVersion": "{again.version}"}, 1),
    ],
    # Storage
    "a claim is bound to a volume": [
        post(STORAGE_CLASSES, storage_class("script-local", provisioner=NO_PROVISIONER)),
        post(VOLUMES, volume("script-disk", "script-local", HOSTNAME, "a"), remember="disk"),
        post(CLAIMS, claim("data", "script-local"), remember="claim"),
        patch(f"{VOLUMES}/script-disk/status", {"status": {"phase": "Available"}}, content_type=MERGE),
        patch(
            f"{VOLUMES}/script-disk",
            {
                "metadata": {"uid": "{disk.uid}", "resourceVersion": "{disk.version}"},
                "spec": {"claimRef": claim_reference("data", "{ns}", "{claim.uid}")},
            },
            code=409,
            content_type=MERGE,
        ),
        patch(
            f"{VOLUMES}/script-disk",
            {
                "metadata": {"uid": "{disk.uid}", "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
                "spec": {"claimRef": claim_reference("data", "{ns}", "{claim.uid}")},
            },
            content_type=MERGE,
        ),
        patch(
            f"{CLAIMS}/data",
            {
                "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                "spec": {"volumeName": "script-disk"},
            },
            content_type=MERGE,
        ),
        patch(f"{CLAIMS}/data/status", {"status": {"phase": "Bound"}}, content_type=MERGE),
        get(CLAIMS),
        get(f"{VOLUMES}/script-disk"),
    ],
    "a claim asks for a volume on a node, and the provisioner gives up": [
        post(STORAGE_CLASSES, storage_class("script-ebs", topologies={"zone": ["a", "b"]})),
        post(CLAIMS, claim("data", "script-ebs"), remember="claim"),
        get(CLAIMS, remember="start"),
        patch(
            f"{CLAIMS}/data",
            {"metadata": {"uid": "{claim.uid}", "annotations": {"volume.kubernetes.io/selected-node": "a"}}},
            content_type=MERGE,
        ),
        patch(
            f"{CLAIMS}/data",
            {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": None}}},
            content_type=MERGE,
        ),
        patch(f"{CLAIMS}/data", {"metadata": {"uid": OTHER_UID}}, code=422, content_type=MERGE),
        delete(f"{CLAIMS}/data"),
        patch(f"{CLAIMS}/data", {"metadata": {"labels": {"a": "b"}}}, code=404, content_type=MERGE),
        Watched("PersistentVolumeClaim", {"resourceVersion": "{start.version}"}, 3),
    ],
    "a node says how many volumes it may have": [
        post(CSI_NODES, csi_node("script-node", {"ebs.csi.aws.com": 2, "other": None})),
        get(f"{CSI_NODES}/script-node"),
        patch(f"{CSI_NODES}/script-node", {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE),
    ],
    # Wrong requests
    "paths and methods that do not exist": [
        get("/api/v1/namespaces/{ns}/unknowns", 404),
        get("/apis/unknown.invalid/v1/things", 404),
        get("/api/v1/namespaces/{ns}/pods/web/unknown", 404),
        put(PODS, bare("web"), 405),
        get(f"{PODS}/web/binding", 405),
        post(f"{NODES}/some", node("some"), 405),
        get(f"{PODS}/web", 404),
        get("/version"),
        get("/version/"),
        get("/readyz"),
    ],
}
