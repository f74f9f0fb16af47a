"""Reading pods and nodes from JSON: the same asks as `ask_of`, but every template is translated only once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from stead.errors import Invalid, Unsupported
from stead.kubernetes import templates as module
from stead.kubernetes.api_objects import EventKind, Problem, Recent
from stead.kubernetes.default_spread import NO_SPREADS, OwnerKind, Owners
from stead.kubernetes.fields import Fields
from stead.kubernetes.gangs import KUEUE_COUNT, KUEUE_LABEL
from stead.kubernetes.node_reader import NodeReader, ReadNode
from stead.kubernetes.nodes import node_of
from stead.kubernetes.podspec import POLICY_ANNOTATION, ask_of, is_gated
from stead.kubernetes.selecting import PREFERRED, REQUIRED
from stead.kubernetes.templates import Pod, Templates
from stead.language.asks import Ask, PolicyName
from tests.kubernetes import objects

NAMESPACES = {"shop": {"team": "a"}, "bank": {"team": "b"}, "": {}}
OWNERS: list[tuple[OwnerKind, str, str, Fields]] = [
    (OwnerKind.SERVICE, "shop", "web", {"app": "web"}),
    (OwnerKind.REPLICA_SET, "bank", "db", {"matchLabels": {"app": "db"}}),
]


def pod(name: str = "web-0", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-{name}", "labels": {"app": "web"}},
        "spec": {"schedulerName": "stead", "containers": [{"name": "main", "image": "web:1"}], **spec},
        "status": {"phase": "Pending"},
    }


def line(fields: Fields, kind: str = "ADDED") -> bytes:
    return json.dumps({"type": kind, "object": fields}).encode()


def read(templates: Templates, fields: Fields) -> Pod:
    found = templates.decode_event(line(fields)).pod
    assert found is not None
    return found


def known(templates: Templates) -> Templates:
    """The same templates, which know namespaces and owners."""
    for namespace, labels in NAMESPACES.items():
        templates.namespace_changed(namespace, labels)
    for owner in OWNERS:
        templates.owner_changed(*owner)
    return templates


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> list[Fields]:
    """The pods that have been translated since the test started."""
    calls: list[Fields] = []

    def counting(pod: Fields, *args: Any, **kwargs: Any) -> Ask:
        calls.append(pod)
        return ask_of(pod, *args, **kwargs)

    monkeypatch.setattr(module, "ask_of", counting)
    return calls


# -- the same asks as `ask_of`


def some(random: Random, **choices: list[Any]) -> dict[str, Any]:
    """Some of the keys, each with one of its values."""
    return {key: random.choice(values) for key, values in choices.items() if random.random() < 0.5}


SELECTORS = [None, {}, {"matchLabels": {"app": "web"}}, {"matchLabels": {"app": "{{bad}}"}}]


def random_affinity(random: Random) -> dict[str, Any]:
    term = {
        "topologyKey": random.choice(["zone", "kubernetes.io/hostname"]),
        **some(
            random,
            labelSelector=SELECTORS,
            namespaces=[[], ["bank"]],
            namespaceSelector=[None, {}, {"matchLabels": {"team": "a"}}],
            matchLabelKeys=[["app"]],
        ),
    }
    node_term = {"matchExpressions": [{"key": "disk", "operator": random.choice(["Exists", "Perhaps"])}]}
    return some(
        random,
        nodeAffinity=[{REQUIRED: {"nodeSelectorTerms": [node_term]}}, {PREFERRED: [{"weight": 3, "preference": {}}]}],
        podAffinity=[{REQUIRED: [term]}, {PREFERRED: [{"weight": 5, "podAffinityTerm": term}]}],
        podAntiAffinity=[{REQUIRED: [term]}, {PREFERRED: [{"weight": 5, "podAffinityTerm": term}]}],
    )


def random_pod(random: Random) -> dict[str, Any]:
    constraint = {"topologyKey": "zone", "maxSkew": 2, **some(random, labelSelector=SELECTORS)}
    containers = [
        {
            "name": f"c{number}",
            "env": [{"name": "N", "value": str(random.random())}],
            **some(
                random,
                image=["web", "web:1", "déjà:vu"],
                resources=[{}, {"requests": {"cpu": "250m"}}, {"requests": {"memory": "1Gi", "nvidia.com/gpu": "2"}}],
                ports=[[], [{"containerPort": 80}], [{"hostPort": 80}, {"hostPort": 81, "protocol": "UDP"}]],
                restartPolicy=["Always", None],
            ),
        }
        for number in range(random.randint(0, 3))
    ]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "db", "uid": "u", "controller": True}
    metadata = some(
        random,
        namespace=["shop", "bank"],
        labels=[None, {}, {"app": "web"}, {"app": "db", "node_id": "x"}],
        annotations=[
            None,
            {"note": 'für "alle"\n'},
            {POLICY_ANNOTATION: "pack"},
            {POLICY_ANNOTATION: "pak"},
            {"stead.dev/polcy": "pack", "note": "x"},
        ],
        ownerReferences=[[], [owner]],
        deletionTimestamp=["2026-01-01T00:00:00Z", None],
        creationTimestamp=["2026-01-01T00:00:00Z", None],
        managedFields=[[{"manager": "kubectl", "fieldsV1": {"f:metadata": {"f:labels": {}}}}]],
    )
    spec = some(
        random,
        nodeName=["n1", ""],
        nodeSelector=[None, {"disk": "ssd"}],
        affinity=[random_affinity(random), None],
        tolerations=[[], [{"key": "a", "operator": "Exists"}], [{"key": "a", "operator": "Gt", "value": "1"}]],
        topologySpreadConstraints=[[], [constraint], [{**constraint, "whenUnsatisfiable": "ScheduleAnyway"}]],
        volumes=[
            None,
            [{"name": f"kube-api-access-{random.random()}", "projected": {"sources": []}}],
            [
                {"name": "m", "image": {"reference": "model"}},
                {"name": "d", "persistentVolumeClaim": {"claimName": "c"}},
            ],
        ],
        initContainers=[containers[:1], None],
        overhead=[{"cpu": "100m"}],
        priority=[0, 1000, None],
        resources=[{"requests": {"cpu": "2"}}],
        schedulingGates=[[{"name": "g"}], []],
        resourceClaims=[[{"name": "gpu"}], []],
        schedulingGroup=[None, {"podGroupName": "g"}],
    )
    return {
        "metadata": {"name": f"pod-{random.randint(0, 9)}", **metadata},
        "spec": {
            "schedulerName": random.choice(["stead", "stead", "default-scheduler"]),
            "containers": containers,
            **spec,
        },
        "status": {"phase": random.choice(["Pending", "Running"]), "conditions": [{"type": "Ready"}]},
    }


def expected(fields: Fields) -> tuple[Ask | None, Problem | None]:
    owners = Owners()
    for owner in OWNERS:
        owners.put(*owner)
    lenient = bool(fields["spec"].get("nodeName")) or fields["spec"]["schedulerName"] != "stead"
    try:
        return ask_of(fields, NAMESPACES, owners=owners, lenient=lenient), None
    except Invalid as error:
        return None, Problem(str(error), isinstance(error, Unsupported))


@pytest.mark.parametrize("seed", range(40))
def test_every_pod_gives_the_ask_that_ask_of_gives(seed: int) -> None:
    random, templates = Random(seed), known(Templates())
    for fields in [random_pod(random) for _ in range(25)] * 2:
        found = read(templates, fields)
        assert (found.ask, found.problem) == expected(fields)
        assert found.is_gated == is_gated(fields)
        assert found.ask is None or (hash(found.ask), repr(found.ask)) == (hash(found.ask), repr(expected(fields)[0]))


def test_what_a_pod_is() -> None:
    fields = pod(nodeName="n1", schedulingGates=[{"name": "g"}])
    fields["metadata"] |= {
        "creationTimestamp": "1970-01-02T00:00:00Z",
        "deletionTimestamp": "1970-01-03T00:00:00Z",
    }
    found = read(Templates(), fields)
    assert (found.key, found.namespace, found.name, found.uid) == ("shop/web-0", "shop", "web-0", "uid-web-0")
    assert (found.node_name, found.phase, found.scheduler_name) == ("n1", "Pending", "stead")
    assert (found.is_deleting, found.is_gated) == (True, True)
    plain = read(Templates(), {"metadata": {"name": "p"}})
    assert (plain.key, plain.node_name, plain.phase) == ("/p", "", "")
    assert (plain.is_deleting, plain.is_gated) == (False, False)


def test_unicode_and_escapes() -> None:
    fields = pod()
    fields["metadata"]["annotations"] = {"description": 'Grüße, "Welt" \u2028 \\ 🚀', "stead.dev/policy": "pack"}
    raw = json.dumps({"type": "ADDED", "object": fields}, ensure_ascii=False).encode()
    escaped = line(fields).replace(b'"pack"', b'"p\\u0061ck"')
    templates = Templates()
    first, second = templates.decode_event(raw).pod, templates.decode_event(escaped).pod
    assert first is not None and first.ask is not None and first == second
    assert first.ask.policy is PolicyName.PACK


def test_a_problem_says_whether_it_is_unsupported() -> None:
    disk: dict[str, Any] = {"volumes": [{"name": "data", "awsElasticBlockStore": {"volumeID": "v"}}]}
    unsupported, invalid = read(Templates(), pod(**disk)), read(Templates(), pod(tolerations=[{"effect": "Never"}]))
    assert unsupported.ask is None and unsupported.problem is not None and unsupported.problem.is_unsupported
    assert unsupported.problem.sentence.startswith("spec.volumes[data].awsElasticBlockStore is not supported yet")
    assert invalid.ask is None and invalid.problem is not None and not invalid.problem.is_unsupported
    others: list[dict[str, Any]] = [{"nodeName": "n1"}, {"schedulerName": "default-scheduler"}]
    for more in others:
        placed = read(Templates(), pod(**disk, **more))
        assert placed.ask is not None and placed.problem is None


# -- templates


def test_a_template_is_translated_once(translated: list[Fields]) -> None:
    templates = Templates()
    asks = []
    for number in range(10):
        fields = pod(f"web-{number}", nodeName="n1" if number % 2 else None)
        created = f"2026-01-{number + 1:02d}T00:00:00Z"
        fields["metadata"] |= {"resourceVersion": str(number), "creationTimestamp": created}
        fields["spec"]["volumes"] = [{"name": f"kube-api-access-{number}", "projected": {"sources": []}}]
        fields["spec"]["containers"] = [
            {"name": "main", "image": "web:1", "volumeMounts": [{"name": f"kube-api-access-{number}"}]}
        ]
        fields["status"] = {"phase": "Running", "podIP": f"10.0.0.{number}"}
        asks.append(read(templates, fields).ask)
    assert len(translated) == len(templates) == 1
    assert [ask and ask.id for ask in asks] == [f"shop/web-{number}" for number in range(10)]
    first = asks[0]
    assert first is not None
    for ask in asks:
        assert ask is not None
        assert all(mine is theirs for mine, theirs in zip(first.shape_key, ask.shape_key, strict=True))


def different_pods() -> Iterator[tuple[str, Fields]]:
    """Pods that must not share a template with `pod()`, by what differs."""
    specs: dict[str, Any] = {
        "image": {"containers": [{"name": "main", "image": "web:2"}]},
        "requests": {"containers": [{"name": "main", "image": "web:1", "resources": {"requests": {"cpu": "1"}}}]},
        "ports": {"containers": [{"name": "main", "image": "web:1", "ports": [{"hostPort": 1}]}]},
        "node selector": {"nodeSelector": {"a": "b"}},
        "tolerations": {"tolerations": [{"operator": "Exists"}]},
        "affinity": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}},
        "spread": {"topologySpreadConstraints": [{"topologyKey": "zone"}]},
        "init containers": {"initContainers": [{"name": "main", "image": "web:1"}]},
        "overhead": {"overhead": {"cpu": "1"}},
        "pod resources": {"resources": {"requests": {"cpu": "1"}}},
        "priority": {"priority": 1},
        "image volume": {"volumes": [{"name": "m", "image": {"reference": "model"}}]},
        "disk": {"volumes": [{"name": "m", "awsElasticBlockStore": {"volumeID": "v"}}]},
        "device claim": {"resourceClaims": [{"name": "gpu"}]},
        "gang": {"schedulingGroup": {"podGroupName": "g"}},
    }
    metadata: dict[str, Any] = {
        "namespace": {"namespace": "bank"},
        "labels": {"labels": {"app": "db"}},
        "owner": {"ownerReferences": [{"kind": "Job", "name": "j"}]},
        "policy": {"annotations": {POLICY_ANNOTATION: "pack"}},
        "gang of Volcano": {"annotations": {"scheduling.k8s.io/group-name": "ring"}},
        "gang of Kueue": {"labels": {KUEUE_LABEL: "ring"}, "annotations": {KUEUE_COUNT: "8"}},
        "deletion": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    }
    for name, more in specs.items():
        yield name, pod(**more)
    for name, more in metadata.items():
        fields = pod()
        yield name, {**fields, "metadata": {**fields["metadata"], **more}}


@pytest.mark.parametrize("fields", dict(different_pods()).values(), ids=dict(different_pods()).keys())
def test_pods_that_differ_have_different_templates(fields: Fields) -> None:
    templates = Templates()
    one, other = read(templates, pod()), read(templates, fields)
    assert len(templates) == 2
    assert (one.ask, one.problem, one.gang) != (other.ask, other.problem, other.gang)


def test_pods_that_differ_only_in_their_claims_share_a_template() -> None:
    """The pods of a StatefulSet, each with a claim of its own."""
    templates = Templates()
    for number in range(3):
        volumes = [
            {"name": "data", "persistentVolumeClaim": {"claimName": f"data-web-{number}"}},
            {"name": "cache", "ephemeral": {"volumeClaimTemplate": {}}},
            {"name": "again", "persistentVolumeClaim": {"claimName": f"data-web-{number}"}},
            {"name": "none", "persistentVolumeClaim": None},
        ]
        fields = pod(volumes=volumes)
        fields["metadata"] |= {"name": f"web-{number}", "namespace": "shop"}
        found = read(templates, fields)
        assert found.ask == ask_of(fields)
        assert found.claims == ((f"shop/data-web-{number}", f"shop/web-{number}-cache"), (f"shop/web-{number}-cache",))
        assert found.ask is not None and found.ask.claims == found.claims[0]
        assert templates.reread(found) is found
    assert len(templates) == 1


def test_a_claim_without_a_name_is_a_problem_of_the_pod() -> None:
    found = read(Templates(), pod(volumes=[{"name": "data", "persistentVolumeClaim": {}}]))
    assert found.problem is not None and "spec.volumes[data].persistentVolumeClaim.claimName" in found.problem.sentence


def test_no_more_templates_are_kept_than_allowed(translated: list[Fields]) -> None:
    templates = Templates(templates_max=10)
    for number in range(100):
        fields = pod(nodeSelector={"a": str(number)})
        assert read(templates, fields).ask == ask_of(fields)
        read(templates, pod())
        assert len(templates) <= 10
    often = [call for call in translated if not call["spec"].get("nodeSelector")]
    assert len(often) == 1  # a template that is used stays


def test_the_most_recent_entries_stay() -> None:
    recent: Recent[int, str] = Recent(4)
    for number in range(7):
        recent.put(number, str(number))
        recent.get(0)
        assert len(recent) <= 4
    assert recent.get(0) == "0" and recent.get(6) == "6" and recent.get(1) is None
    recent.drop(0)
    assert recent.get(0) is None


# -- what translations depend on


def in_namespaces_with(team: str) -> dict[str, Any]:
    term = {"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": {"matchLabels": {"team": team}}}
    return pod(affinity={"podAntiAffinity": {REQUIRED: [term]}})


def test_a_namespace_that_changes_changes_the_pods_that_select_namespaces(translated: list[Fields]) -> None:
    templates = Templates()
    plain, selecting = read(templates, pod("plain")), read(templates, in_namespaces_with("a"))
    assert (plain.depends_on_namespaces, selecting.depends_on_namespaces) == (False, True)
    assert selecting.ask is not None and selecting.ask.affinities == ()
    assert templates.namespace_changed("bank", {"team": "a"})
    assert not templates.namespace_changed("bank", {"team": "a"})
    again = templates.reread(selecting)
    assert again.ask is not None and again.ask.affinities[0][0].namespaces == frozenset({"bank"})
    assert read(templates, in_namespaces_with("a")).ask == again.ask
    assert templates.reread(again) is again
    assert templates.reread(plain) is plain
    assert len(translated) == 3
    assert templates.namespace_changed("bank", None)
    assert not templates.namespace_changed("bank", None)
    assert templates.reread(again).ask == selecting.ask


def test_a_service_that_changes_changes_the_default_spread(translated: list[Fields]) -> None:
    templates = Templates()
    first = read(templates, pod())
    assert first.depends_on_owners and first.ask is not None and first.ask.prefers == ()
    assert templates.owner_changed(OwnerKind.SERVICE, "shop", "web", {"app": "web"})
    assert not templates.owner_changed(OwnerKind.SERVICE, "shop", "web", {"app": "web"})
    spread = templates.reread(first)
    assert spread.ask is not None and len(spread.ask.prefers) == 2
    templates.owner_changed(OwnerKind.SERVICE, "bank", "web", {"app": "web"})
    templates.owner_changed(OwnerKind.REPLICA_SET, "shop", "web", {"matchLabels": {"app": "web"}})
    assert read(templates, pod()).ask == spread.ask
    assert len(translated) == 2
    assert templates.owner_changed(OwnerKind.SERVICE, "shop", "web", None)
    assert templates.reread(spread).ask == first.ask


def test_a_pod_without_default_spreads_does_not_depend_on_owners() -> None:
    assert not read(Templates(default_spreads=NO_SPREADS), pod()).depends_on_owners
    own = [{"topologyKey": "zone", "labelSelector": {}}]
    assert not read(Templates(), pod(topologySpreadConstraints=own)).depends_on_owners


def test_a_pod_can_be_read_again_after_its_template_was_dropped() -> None:
    templates = Templates(templates_max=2)
    selecting = read(templates, in_namespaces_with("a"))
    for number in range(5):
        read(templates, pod(priority=number))
    templates.namespace_changed("bank", {"team": "a"})
    again = templates.reread(selecting)
    assert again.ask is not None and again.ask.affinities[0][0].namespaces == frozenset({"bank"})


def test_the_policy_of_the_cluster() -> None:
    ask = read(Templates(policy=PolicyName.FLOW), pod()).ask
    assert ask is not None and ask.policy is PolicyName.FLOW


# -- lines and pages


def test_lines_of_a_watch() -> None:
    templates = Templates()
    fields = pod()
    fields["metadata"]["resourceVersion"] = "7"
    for kind in (EventKind.ADDED, EventKind.MODIFIED, EventKind.DELETED):
        event = templates.decode_event(line(fields, kind) + b"\n")
        assert (event.kind, event.resource_version, event.code) == (kind, "7", 0)
        assert event.pod is not None and event.pod.key == "shop/web-0"


def test_a_bookmark_has_no_pod() -> None:
    bookmark = {
        "kind": "Pod",
        "metadata": {"resourceVersion": "9", "creationTimestamp": None},
        "spec": {"containers": None},
        "status": {},
    }
    assert Templates().decode_event(line(bookmark, "BOOKMARK")) == (EventKind.BOOKMARK, None, "9", 0, "")


def test_an_error_has_a_code() -> None:
    status = {
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": "too old",
        "reason": "Expired",
        "code": 410,
    }
    expected = (EventKind.ERROR, None, "", 410, "too old")
    assert tuple(Templates().decode_event(line(status, "ERROR"))) == expected
    assert tuple(NodeReader().decode_event(line(status, "ERROR"))) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "a watch event of pods from the API server cannot be read"),
        (b'{"type":"ADDED","object":{"metadata"', "truncated"),
        (b'{"type":"ADDED","object":{"metadata":{"name":5}}}', "metadata.name"),
        (b'{"type":"ADDED","object":{"metadata":{}}}', "must have a name"),
        (b'{"type":"RENAMED","object":{"metadata":{"name":"a"}}}', "RENAMED"),
        (b'{"type":"ADDED"}', "object"),
    ],
)
def test_a_line_that_cannot_be_read(text: bytes, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        Templates().decode_event(text)


def test_a_page_of_pods() -> None:
    items = [pod(f"web-{number}") for number in range(3)]
    body = {"kind": "PodList", "metadata": {"resourceVersion": "12", "continue": "token"}, "items": items}
    page = Templates().decode_page(json.dumps(body).encode())
    assert (page.resource_version, page.continue_token) == ("12", "token")
    assert [found.name for found in page.pods] == ["web-0", "web-1", "web-2"]
    last = Templates().decode_page(b'{"metadata":{"resourceVersion":"12"},"items":null}')
    assert last == ([], "12", "")


def test_a_page_that_cannot_be_read() -> None:
    with pytest.raises(Invalid, match="a list of pods from the API server cannot be read"):
        Templates().decode_page(b"<html>")
    with pytest.raises(Invalid, match="a list of nodes from the API server cannot be read"):
        NodeReader().decode_page(b"<html>")


# -- nodes


def node(name: str = "n1", beat: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"zone": "a"}, "resourceVersion": str(beat), **more},
        "spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "gpu", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "4", "pods": "110"},
            "conditions": [{"type": "Ready", "lastHeartbeatTime": f"2026-01-01T00:00:{beat:02d}Z"}],
            "addresses": [{"address": f"10.0.0.{beat}"}],
            "images": [{"names": ["web:1"], "sizeBytes": 10}],
        },
    }


def read_node(reader: NodeReader, fields: Fields, kind: str = "MODIFIED") -> ReadNode:
    found = reader.decode_event(line(fields, kind)).node
    assert found is not None
    return found


def test_a_node_is_what_node_of_gives() -> None:
    assert read_node(NodeReader(), node()) == ReadNode("n1", node_of(node()), None)
    bare: Fields = {"metadata": {"name": "n1"}}
    assert read_node(NodeReader(), bare) == ReadNode("n1", node_of(bare), None)


def test_a_heartbeat_gives_the_same_node() -> None:
    reader = NodeReader()
    first = read_node(reader, node())
    for beat in range(1, 5):
        event = reader.decode_event(line(node(beat=beat), "MODIFIED"))
        assert event.resource_version == str(beat)
        assert event.node is first
    assert read_node(reader, node("n2")) is not first


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("metadata", "labels", {"zone": "b"}),
        ("spec", "taints", []),
        ("spec", "unschedulable", True),
        ("status", "allocatable", {"cpu": "3"}),
        ("status", "images", []),
    ],
)
def test_a_change_that_matters_gives_a_new_node(part: str, field: str, value: object) -> None:
    reader = NodeReader()
    first, changed = read_node(reader, node()), node(beat=1)
    changed[part][field] = value
    assert read_node(reader, changed) == ReadNode("n1", node_of(changed), None)
    assert read_node(reader, changed).node != first.node


def test_a_deleted_node_is_forgotten() -> None:
    reader = NodeReader()
    first = read_node(reader, node())
    assert read_node(reader, node(), "DELETED") is first
    again = read_node(reader, node())
    assert again == first and again is not first


def test_nodes_share_the_names_of_images() -> None:
    reader = NodeReader()
    one, other = read_node(reader, node()).node, read_node(reader, node("n2")).node
    assert one is not None and other is not None
    assert one.images[0] is other.images[0]


def test_a_node_that_cannot_be_read_has_a_problem() -> None:
    bad = node()
    bad["status"]["allocatable"] = {"cpu": "lots"}
    found = read_node(NodeReader(), bad)
    assert found.node is None and found.problem is not None and "not a quantity" in found.problem.sentence


def test_a_page_of_nodes() -> None:
    reader = NodeReader()
    body = json.dumps({"metadata": {"resourceVersion": "3"}, "items": [node("n1"), node("n2")]}).encode()
    page = reader.decode_page(body)
    assert ([found.name for found in page.nodes], page.resource_version, page.continue_token) == (["n1", "n2"], "3", "")
    assert reader.decode_page(body).nodes[0] is page.nodes[0]
    bookmark = {"metadata": {"resourceVersion": "4"}, "spec": {}, "status": {}}
    assert reader.decode_event(line(bookmark, "BOOKMARK")) == (EventKind.BOOKMARK, None, "4", 0, "")


def test_without_a_solver_a_batch_policy_is_a_problem_of_the_pod() -> None:
    found = objects.pod("a")
    found["metadata"]["annotations"] = {"stead.dev/policy": "flow"}
    read = Templates(has_solver=False).decode_pod(json.dumps(found).encode())
    assert read.ask is None and read.problem is not None
    assert "needs OR-tools" in read.problem.sentence


def test_containers_that_request_more_together_than_is_counted_fit_nowhere() -> None:
    found = objects.pod("a")
    found["spec"]["containers"] = [{"name": f"c{n}", "resources": {"requests": {"memory": "400Ti"}}} for n in range(5)]
    largest = node_of(objects.node("n1", memory="9Ei"))
    for name in ("", "n1"):
        found["spec"]["nodeName"] = name
        read = Templates().decode_pod(json.dumps(found).encode())
        assert read.ask is not None and read.ask.choices[0].resources["memory"] > largest.capacity["memory"]
