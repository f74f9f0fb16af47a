"""The rights in the manifests are exactly those that the scheduler uses: none is missing, and none is useless.

The fake server records every request of the scheduler. The real server checks roles: there, the container's command
runs as the service account of the manifests.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from stead.kubernetes.api.config import load
from stead.kubernetes.api.http import ApiClient
from stead.kubernetes.api.reporting import PodRef, Reporter
from stead.kubernetes.manifests.rendering import Installation, manifests
from stead.kubernetes.scheduler import Options, Scheduler
from tests.kubernetes.custom_resources import DEFINABLE, OWN_GROUP, install
from tests.kubernetes.objects import (
    HOSTNAME,
    ApiError,
    Kubectl,
    condition_of,
    node,
    node_of,
    pod,
    priority_class,
    taint,
)
from tests.kubernetes.scheduling.provisioner import Provisioner
from tests.kubernetes.servers.fake import FakeServer, Seen
from tests.kubernetes.servers.real import RealServer, missing
from tests.kubernetes.storage_objects import NO_PROVISIONER, claim, pod_with, storage_class, volume

NAMESPACE, LEASE = "stead-system", "stead"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:stead-scheduler"

Right = tuple[str, str, str]
"""Verb, API group, and resource with its subresource."""

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

IN_A_POD = """
import sys
from pathlib import Path
import stead.kubernetes.api.config as config
config.SERVICE_ACCOUNT = Path(sys.argv.pop(1))
from stead.cli import main
sys.exit(main())
"""


def objects() -> dict[str, dict[str, Any]]:
    """The objects of the manifests by kind."""
    found = yaml.safe_load_all(manifests(Installation("stead", NAMESPACE)))
    return {each["kind"]: each for each in found if each}


def rights_of(role: dict[str, Any]) -> set[Right]:
    found = [
        (verb, group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    assert len(found) == len(set(found)), "every right is stated once"
    assert not any("*" in part for right in found for part in right), "there are no wildcards"
    return set(found)


def right_of(seen: Seen) -> Right:
    """The right that a request needs, as RBAC sees it."""
    parts = seen.path.strip("/").split("/")
    group, parts = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    resource = parts[0] if len(parts) < 3 else f"{parts[0]}/{parts[2]}"
    if seen.method == "GET":
        return "get" if len(parts) > 1 else "watch" if seen.query.get("watch") else "list", group, resource
    return VERBS[seen.method], group, resource


def repeating_an_event(kubectl: Kubectl, uid: str) -> Callable[[ApiClient], Coroutine[Any, Any, None]]:
    """A reason of the pod `huge` that changes and comes back is counted in the event that exists."""

    async def repeat(client: ApiClient) -> None:
        reporter = Reporter(client, repeat_after_s=0.001)
        running = asyncio.create_task(reporter.run())
        for number, message in enumerate(("one", "other", "one"), start=1):
            reporter.pending(PodRef("default", "huge", uid), message)
            await asyncio.to_thread(kubectl.wait_until, lambda wanted=2 * number: reporter.writes >= wanted)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    return repeat


def run_with_client(server: FakeServer | RealServer, work: Callable[[ApiClient], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        client = ApiClient(load(str(server.kubeconfig_path), ACCOUNT))
        try:
            await work(client)
        finally:
            await client.close()

    asyncio.run(run())


def test_the_rights_are_exactly_those_that_are_used() -> None:
    async def schedule(client: ApiClient) -> None:
        options = Options(lease=(NAMESPACE, LEASE), identity="test", lease_times=(3.0, 2.0, 0.1))
        scheduler = Scheduler(client, options)
        running = asyncio.create_task(scheduler.run())
        await asyncio.to_thread(kubectl.wait_until, everything_happened)
        scheduler.stop()
        await running

    def everything_happened() -> bool:
        """One pod is bound after a conflict, two after their claims, another fits nowhere, one was evicted, and the
        lease was renewed."""
        is_bound = all(node_of(kubectl.get("Pod", name)) for name in ("web", "db", "cache"))
        is_pending = condition_of(kubectl.get("Pod", "huge"), "PodScheduled")
        return bool(is_bound and is_pending and reasons_of(kubectl) == REASONS and server.count("PUT"))

    with FakeServer(users={ACCOUNT: []}) as server, Kubectl(server) as kubectl:
        server.load([objects()["Namespace"], node("a"), *crowded(), pod("web"), pod("huge", cpu="100")])
        kubectl.bind("low", "tiny")
        kubectl.create(urgent())
        uid = kubectl.get("Pod", "huge")["metadata"]["uid"]
        for each in with_claims():
            kubectl.create(each)
        server.fail_next("POST", "/pods/web/binding$", 409)
        with Provisioner(server):
            kubectl.wait_until(lambda: kubectl.get("PersistentVolume", "disk")["status"]["phase"] == "Available")
            run_with_client(server, schedule)
        run_with_client(server, repeating_an_event(kubectl, uid))
        requests = [seen for seen in server.requests if seen.user == ACCOUNT]
    in_all_namespaces, in_its_own = rights_of(objects()["ClusterRole"]), rights_of(objects()["Role"])
    assert {right_of(seen) for seen in requests} == in_all_namespaces | in_its_own
    leases = [seen for seen in requests if seen.path.startswith("/apis/coordination.k8s.io/")]
    assert {right_of(seen) for seen in leases} == in_its_own
    folder = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    assert {seen.path for seen in leases} == {folder, f"{folder}/{LEASE}"}


REASONS = {"Scheduled", "FailedScheduling", "Preempted"}


def reasons_of(kubectl: Kubectl) -> set[str]:
    return {event["reason"] for event in kubectl.list("Event")}


def crowded() -> list[dict[str, Any]]:
    """A node that a pod of a low priority fills."""
    tiny = node("tiny", cpu="1", labels={"pool": "tiny"}, taints=[taint("tiny")])
    return [tiny, priority_class("high", 100), pod("low", cpu="1", tolerations=[{"operator": "Exists"}])]


def urgent() -> dict[str, Any]:
    """A pod that fits only there."""
    more: dict[str, Any] = {
        "priorityClassName": "high",
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"pool": "tiny"},
    }
    return pod("urgent", cpu="1", **more)


def with_claims() -> list[dict[str, Any]]:
    """A pod whose volume must be created, and one that gets a volume that exists."""
    return [
        storage_class("disk"),
        storage_class("local", NO_PROVISIONER),
        volume("disk", "local", HOSTNAME, "a"),
        claim("data"),
        claim("files", "local"),
        pod_with("db", "data"),
        pod_with("cache", "files"),
    ]


@contextmanager
def in_a_pod(server: RealServer, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The container's command, with the files that Kubernetes mounts into a pod, for as long as the block takes."""
    folder.mkdir()
    (folder / "token").write_text(server.tokens[ACCOUNT])
    (folder / "ca.crt").write_bytes(server.ca_file.read_bytes())
    (folder / "namespace").write_text(NAMESPACE)
    address = urlsplit(server.url)
    (container,) = objects()["Deployment"]["spec"]["template"]["spec"]["containers"]
    words = [word for word in container["args"] if not word.startswith("--listen")]
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_POD, str(folder), *words, "--listen=127.0.0.1:0"],
        env={
            **{name: value for name, value in os.environ.items() if name != "KUBECONFIG"},
            "KUBERNETES_SERVICE_HOST": str(address.hostname),
            "KUBERNETES_SERVICE_PORT": str(address.port),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def on_a(kubectl: Kubectl, name: str) -> bool:
    return node_of(kubectl.get("Pod", name)) == "a"


AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [{"level": "Metadata", "users": [ACCOUNT]}, {"level": "None"}],
}
"""What the API server writes down: every request of the scheduler, without its body."""


def audited(log: Path) -> set[Right]:
    """The rights that the requests in an audit log needed; all of them were allowed."""
    found = set()
    for line in log.read_text().split("\n")[:-1]:  # the last line may not be complete yet
        entry = json.loads(line)
        if "objectRef" in entry:
            about = entry["objectRef"]
            resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            found.add((entry["verb"], about.get("apiGroup", ""), resource))
            decision = entry.get("annotations", {}).get("authorization.k8s.io/decision", "allow")
            assert decision == "allow", f"{entry['verb']} {resource} was not allowed"
    return found


def race(kubectl: Kubectl, numbers: Iterator[int], is_read_again: Callable[[], bool]) -> bool:
    """Bind pods at the same time as the scheduler, until it reads one of them again."""
    for number in islice(numbers, 10):
        kubectl.create(pod(f"raced-{number}", cpu="1m"))
        with suppress(ApiError):  # the scheduler was faster
            kubectl.bind(f"raced-{number}", "a")
    return is_read_again()


WITHOUT_THE_RESOURCE = {("watch", OWN_GROUP, "podgroups"), ("watch", OWN_GROUP, "workloads")}
"""The server of these tests is older than its own pod groups: their list is requested and not found."""


@pytest.mark.kube
def test_a_real_server_allows_what_the_scheduler_does_and_its_audit_log_shows_that_no_right_is_unused(
    tmp_path: Path,
) -> None:
    if why := missing():
        pytest.skip(why)
    users = {ACCOUNT: ["system:serviceaccounts", "system:authenticated"]}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(AUDIT))
    flags = [f"--audit-policy-file={tmp_path / 'policy.yaml'}", f"--audit-log-path={tmp_path / 'audit.log'}"]
    rights = rights_of(objects()["ClusterRole"]) | rights_of(objects()["Role"])
    with RealServer(users=users, flags=flags) as server, Kubectl(server) as kubectl:
        install(kubectl, *DEFINABLE)
        for kind, each in objects().items():
            if kind == "Deployment":
                path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
                assert kubectl.request("POST", path, each).status == 201
            elif kind != "PodDisruptionBudget":  # the server is of version 1.20, and policy/v1 came with 1.21
                kubectl.create(each)
        for each in (node("a"), *crowded(), *with_claims()):
            kubectl.create(each)
        kubectl.bind("low", "tiny")
        kubectl.create(urgent())
        kubectl.create(pod("web"))
        kubectl.create(pod("huge", cpu="100"))
        with Provisioner(server), in_a_pod(server, tmp_path / "serviceaccount") as process:
            for name in ("web", "db", "cache"):
                kubectl.wait_until(partial(on_a, kubectl, name))
            kubectl.wait_until(lambda: condition_of(kubectl.get("Pod", "huge"), "PodScheduled"))
            kubectl.wait_until(lambda: reasons_of(kubectl) == REASONS)
            assert kubectl.get("Lease", LEASE, NAMESPACE)["spec"]["holderIdentity"]
            numbers, again = count(), ("get", "", "pods")
            kubectl.wait_until(lambda: race(kubectl, numbers, lambda: again in audited(tmp_path / "audit.log")))
            process.terminate()
            _, log = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "may not" not in log and "forbidden" not in log
        assert not kubectl.get("Lease", LEASE, NAMESPACE)["spec"].get("holderIdentity"), "the lease is released"
        run_with_client(server, repeating_an_event(kubectl, kubectl.get("Pod", "huge")["metadata"]["uid"]))
        assert audited(tmp_path / "audit.log") == rights - WITHOUT_THE_RESOURCE
