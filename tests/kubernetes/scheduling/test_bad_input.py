"""What an operator can get wrong: one sentence that says what is wrong and what to do, and no scheduler that hangs.

Rule: exit code 2 for a command line that cannot be understood, 1 for a configuration that cannot be used. A server that
is away or refuses is no mistake of the command line: the scheduler goes on trying, and its log says why.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.kubernetes.objects import node, pod
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.running import STEAD, WAIT_SECONDS_MAX, wait_until

FILE = "<kubeconfig>"

CASES: dict[str, tuple[list[str], int, str]] = {
    "no kubeconfig file": (
        ["--kubeconfig", "/none"],
        1,
        "stead: there is no kubeconfig file /none; give one with --kubeconfig FILE or the variable KUBECONFIG",
    ),
    "no kubeconfig file anywhere": (
        [],
        1,
        (
            "stead: there is no kubeconfig file ~/.kube/config, and this process does not run in a pod with a service "
            "account; give one with --kubeconfig FILE or the variable KUBECONFIG"
        ),
    ),
    "an unknown context": (
        ["--kubeconfig", FILE, "--context", "scheduler-11"],
        1,
        "did you mean 'scheduler-1'?",
    ),
    "an address without a port": (
        ["--kubeconfig", FILE, "--listen", "here"],
        2,
        "'here' is not an address with a port",
    ),
    "a port that does not exist": (["--kubeconfig", FILE, "--listen", "127.0.0.1:70000"], 2, "is larger than 65535"),
    "an unknown policy": (["--kubeconfig", FILE, "--policy", "kub"], 2, "'kub' is not one of"),
    "a lease that is shorter than its renewal": (
        ["--kubeconfig", FILE, "--lease-seconds", "5", "10", "2"],
        2,
        "Invalid value for '--lease-seconds': the times of a lease are 5, 10 and 2 seconds, but the second must be",
    ),
    "a lease without an end": (
        ["--kubeconfig", FILE, "--leader-elect", "--lease-seconds", "inf", "10", "2"],
        2,
        "must be between 0 and 3600 seconds, not inf, 10 and 2; good values are 15, 10 and 2",
    ),
    "a lease with a bad name": (["--kubeconfig", FILE, "--lease-name", "A B"], 2, "'A B' is not a name for a Lease"),
    "a lease in a bad namespace": (["--kubeconfig", FILE, "--lease-namespace", "Bad_NS"], 2, "'--lease-namespace'"),
    "a bad name of a scheduler": (["--kubeconfig", FILE, "--scheduler-name", "Bad Name"], 2, "'--scheduler-name'"),
    "a service account and a file": (
        ["--kubeconfig", FILE, "--in-cluster"],
        1,
        "give either --in-cluster or --kubeconfig",
    ),
    "a journal in a folder that does not exist": (
        ["--kubeconfig", FILE, "--listen", "none", "--journal", "/none/journal"],
        1,
        "stead: the folder of /none/journal does not exist; create it, or give a file such as --journal ./stead.db",
    ),
    "a journal that is a folder, with a lease": (
        ["--kubeconfig", FILE, "--listen", "none", "--journal", "/", "--leader-elect"],
        1,
        "stead: / ",
    ),
    "a file of default constraints that does not exist": (
        ["--kubeconfig", FILE, "--default-spread", "/none"],
        1,
        "stead: the file /none of --default-spread cannot be read: No such file or directory; give a YAML file",
    ),
    "an argument that does not exist": (["--kubeconfig", FILE, "--lease"], 2, "--lease"),
}


def run(cluster: ClusterUnderTest, words: list[str]) -> subprocess.CompletedProcess[str]:
    given = [str(cluster.server.kubeconfig_path) if word == FILE else word for word in words]
    environment = {"PATH": os.environ["PATH"], "HOME": str(cluster.folder)}
    return subprocess.run(
        [STEAD, "scheduler", *given],
        check=False,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        env=environment,
    )


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_one_sentence(fake_cluster: ClusterUnderTest, name: str) -> None:
    """Fake only: these do not depend on the server."""
    words, code, said = CASES[name]
    found = run(fake_cluster, words)
    assert found.returncode == code, found.stderr
    sentences = [line for line in found.stderr.splitlines() if not line.startswith("time=")]
    assert len(sentences) == 1 and said in sentences[0], found.stderr
    assert sentences[0].startswith("stead: ") and "Traceback" not in found.stderr


def test_a_port_that_is_taken_is_one_sentence(fake_cluster: ClusterUnderTest) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = run(fake_cluster, ["--kubeconfig", FILE, "--listen", address])
    assert (found.returncode, found.stderr.count("\n")) == (1, 1)
    assert found.stderr.startswith(f"stead: cannot listen on {address} (")
    assert "choose another address" in found.stderr


def test_a_server_that_is_away_is_tried_again_and_reported_once(cluster: ClusterUnderTest) -> None:
    cluster.server.stop_apiserver()
    scheduler = cluster.scheduler()
    line = scheduler.wait_for_line("cannot list, retrying")
    assert "cannot connect to the API server at 127.0.0.1" in line["error"]
    assert line["error"].endswith("connection refused")
    assert scheduler.ready()[0] == 503
    assert scheduler.page("/healthz")[0] == 200
    cluster.server.start_apiserver()
    scheduler.wait_until_ready()
    assert len(scheduler.said("cannot list, retrying")) == 1, "all resources fail for the same reason"
    scheduler.wait_for_line("everything can be read again")
    cluster.create(node("a"), pod("p"))
    assert cluster.wait_until_bound("p") == {"p": "a"}


def test_a_server_that_is_away_does_not_keep_the_scheduler_from_ending(fake_cluster: ClusterUnderTest) -> None:
    fake_cluster.server.stop_apiserver()
    scheduler = fake_cluster.scheduler("--leader-elect")
    scheduler.wait_for_line("cannot list, retrying")
    assert scheduler.stop() == 0
    fake_cluster.server.start_apiserver()


def test_a_token_that_the_server_does_not_know_is_reported(fake_cluster: ClusterUnderTest, tmp_path: Path) -> None:
    """Fake only, to keep the real part short."""
    config = fake_cluster.server.kubeconfig_path
    text = config.read_text(encoding="utf-8").replace(fake_cluster.server.tokens["scheduler-1"], "wrong")
    config.write_text(text, encoding="utf-8")
    scheduler = fake_cluster.scheduler()
    line = scheduler.wait_for_line("cannot list, retrying")
    assert line["error"] == "the API server does not accept the credentials of this user"
    assert scheduler.stop() == 0


@pytest.mark.kube
def test_a_user_without_rights_learns_which_are_missing(real_cluster: ClusterUnderTest) -> None:
    """Real only: the fake server knows no roles."""
    scheduler = real_cluster.scheduler(user="without-rights")
    wanted = "stead may not list namespaces; give its user or service account the verbs 'list' and 'watch' on"
    wait_until(lambda: wanted in scheduler.text, "waiting for the missing permission")
    wanted = "stead may not list replicasets of the API group 'apps'; "
    wait_until(lambda: wanted in scheduler.text, "waiting for the other missing permission")
    assert scheduler.ready()[0] == 503
    assert scheduler.stop() == 0
