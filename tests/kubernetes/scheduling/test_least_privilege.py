"""The scheduler runs with exactly the rights of its manifests, and needs no others.

Rule: only the subjects of the bindings are changed: a user of the tests instead of the service account. That no right
is useless is tested in tests/kubernetes/test_rights.py.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress

import pytest
import yaml

from tests.kubernetes.objects import ApiError, Kubectl, Object, node, nodes, pod, pods, service
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.provisioner import Provisioner
from tests.kubernetes.scheduling.running import STEAD, WAIT_SECONDS_MAX
from tests.kubernetes.storage_objects import claim, pod_with, storage_class

USER = "least-privileged"
RIGHTS = ("Namespace", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
ELECTION = ("--leader-elect", "--lease-namespace", "stead-system", "--lease-name", "stead")


def rights() -> list[Object]:
    """The objects of the manifests that give rights, for the user."""
    words = [str(STEAD), "scheduler", "manifests"]
    text = subprocess.run(words, check=True, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX).stdout
    found = [each for each in yaml.safe_load_all(text) if each and each["kind"] in RIGHTS]
    for each in found:
        if "subjects" in each:
            each["subjects"] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}]
    return found


@pytest.mark.kube
def test_with_the_rights_of_the_manifests_everything_works(real_cluster: ClusterUnderTest) -> None:
    """Real only: the fake server knows no roles."""
    cluster = real_cluster
    objects = rights()
    assert sorted(each["kind"] for each in objects) == sorted(RIGHTS)
    cluster.create(*objects)
    with Kubectl(cluster.server, USER) as user, pytest.raises(ApiError, match="403"):
        user.list("Event")  # the rights are no more than those of the manifests

    cluster.create(service("web", {"app": "web"}))
    cluster.create_many(nodes(5, cpu="4"))
    scheduler = cluster.scheduler(*ELECTION, user=USER).wait_until_leading()
    cluster.create_many(pods(30, labels={"app": "web"}))
    for number in range(0, 30, 3):  # conflicts, after which the scheduler reads the pod again
        with suppress(ApiError):  # the scheduler was faster
            cluster.kubectl.bind(f"pod-{number}", "node-0")
    cluster.create(pod("large", cpu="8"))
    cluster.create(pod("disk", volumes=[{"name": "data", "awsElasticBlockStore": {"volumeID": "mine"}}]))
    cluster.create(storage_class("disk"), claim("data"), pod_with("db", "data"))
    with Provisioner(cluster.server):
        cluster.wait_until_bound("db", *(f"pod-{number}" for number in range(30)))
    for name in ("large", "disk"):
        cluster.wait_until_pending(name)
        cluster.wait_for_event(name, "FailedScheduling")
    cluster.wait_for_event("pod-1", "Scheduled")
    cluster.create(node("new", cpu="8"))
    assert cluster.wait_until_bound("large") == {"large": "new"}
    assert scheduler.stop() == 0

    assert not re.search("403|forbidden|may not", scheduler.text)
    assert not [line for line in scheduler.lines if line["level"] in ("warning", "error")]
    for each in objects:
        cluster.kubectl.delete(each["kind"], each["metadata"]["name"], each["metadata"].get("namespace", "default"))
