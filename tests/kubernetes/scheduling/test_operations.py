"""How an operator sees and ends a scheduler: probes, metrics, logs, signals, and the journal."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from time import monotonic

import pytest

from tests.kubernetes.objects import node, nodes, pod, pods
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.running import STEAD, WAIT_SECONDS_MAX, wait_until

LABEL = r'[a-z_]+="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(rf"([a-z_]+)((?:\{{{LABEL}(?:,{LABEL})*\}})?) (\S+)")
IDLE_SECONDS = 1.5
SUFFIXES = ("_bucket", "_sum", "_count")

NAMES_OF_KUBE_SCHEDULER = {
    "scheduler_pending_pods": "gauge",
    "scheduler_schedule_attempts_total": "counter",
    "scheduler_scheduling_attempt_duration_seconds": "histogram",
    "scheduler_pod_scheduling_sli_duration_seconds": "histogram",
    "scheduler_scheduler_cache_size": "gauge",
    "leader_election_master_status": "gauge",
}


def read_metrics(text: str) -> tuple[dict[str, str], dict[tuple[str, str], float]]:
    """The type of each metric and the value of each sample, read strictly: HELP and TYPE first, nothing twice."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    values: dict[tuple[str, str], float] = {}
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("# HELP "):
            name, about = line.removeprefix("# HELP ").split(" ", 1)
            kind = next(lines).removeprefix(f"# TYPE {name} ")
            assert name not in kinds and kind in ("gauge", "counter", "histogram") and about.endswith("."), line
            kinds[name] = kind
            continue
        found = SAMPLE.fullmatch(line)
        assert found, line
        name, labels, value = found.groups()
        family = next((name.removesuffix(each) for each in SUFFIXES if name.endswith(each)), name)
        assert kinds.get(family if kinds.get(family) == "histogram" else name), line
        assert (name, labels) not in values, line
        values[name, labels] = float(value)
    return kinds, values


def test_the_probes_tell_the_state_of_the_scheduler(fake_cluster: ClusterUnderTest) -> None:
    """Fake only: it holds the list of the pods back, so that there is time to look."""
    fake_cluster.fake.hang_next("GET", "/api/v1/pods$")
    scheduler = fake_cluster.scheduler()
    wait_until(lambda: fake_cluster.fake.hanging, "waiting for the list of pods")
    assert scheduler.page("/healthz") == (200, "ok\n")
    assert scheduler.ready() == (503, "not listed yet: /api/v1/pods\n")
    fake_cluster.fake.release()
    scheduler.wait_until_ready()
    assert scheduler.ready() == (200, "ok\n")
    assert scheduler.page("/none")[0] == 404
    assert scheduler.page("/healthz", "POST")[0] == 405
    assert scheduler.page("/healthz", "HEAD") == (200, "")


def test_the_metrics_are_prometheus_text_under_the_names_of_kube_scheduler(cluster: ClusterUnderTest) -> None:
    cluster.create(node("a", cpu="1"))
    scheduler = cluster.scheduler().wait_until_leading()
    cluster.create(pod("fits"), pod("large", cpu="2"), pod("disk", volumes=[disk()]))
    cluster.wait_until_bound("fits")
    cluster.wait_until_pending("large")
    cluster.wait_until_pending("disk")
    scheduler.wait_until_quiet()
    kinds, values = read_metrics(scheduler.page("/metrics")[1])
    assert NAMES_OF_KUBE_SCHEDULER.items() <= kinds.items()
    assert all(value >= 0 for value in values.values())
    attempts = {
        result: values["scheduler_schedule_attempts_total", f'{{profile="stead",result="{result}"}}']
        for result in ("scheduled", "unschedulable", "error")
    }
    assert attempts["scheduled"] == 1 and attempts["unschedulable"] >= 1 and attempts["error"] >= 1
    assert values["scheduler_pending_pods", '{queue="unschedulable"}'] == 2, "a pod that cannot be read waits too"
    assert values["stead_bindings_failed_total", '{outcome="failed"}'] == 0
    assert values["scheduler_scheduler_cache_size", '{type="nodes"}'] == 1
    assert values["scheduler_pod_scheduling_sli_duration_seconds_count", ""] == 1
    for name, kind in kinds.items():
        if kind == "histogram":
            buckets = [value for (sample, _), value in values.items() if sample == f"{name}_bucket"]
            counts = [value for (sample, _), value in values.items() if sample == f"{name}_count"]
            size = len(buckets) // len(counts)
            rows = [buckets[i : i + size] for i in range(0, len(buckets), size)]
            assert all(row == sorted(row) for row in rows)
            assert [row[-1] for row in rows] == counts


def disk() -> dict[str, object]:
    return {"name": "data", "awsElasticBlockStore": {"volumeID": "mine"}}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_bindings_that_were_decided(fake_cluster: ClusterUnderTest, how: signal.Signals) -> None:
    """Fake only: it holds the first bindings back, so that the signal certainly arrives in the middle of a batch."""
    cluster = fake_cluster
    cluster.create_many(nodes(20))
    cluster.create_many(pods(200))
    cluster.fake.hang_next("POST", "/binding$", times=64)
    scheduler = cluster.scheduler("--leader-elect").wait_until_leading()
    wait_until(lambda: cluster.fake.hanging == 64, "waiting for 64 bindings in flight")
    decided = 64 + scheduler.metrics()["stead_bindings_queued"]
    scheduler.send_signal(how)
    scheduler.wait_for_line("stopping: finishing the bindings that were decided")
    cluster.fake.release()
    assert scheduler.wait() == 0
    bound = [each for each in cluster.kubectl.list("Pod") if each["spec"].get("nodeName")]
    assert len(bound) >= decided >= 64
    assert cluster.kubectl.get("Lease", "stead")["spec"].get("holderIdentity", "") == "", "the Lease is released"
    assert scheduler.lines[-1]["msg"] == "stopped"
    assert {line["level"] for line in scheduler.lines} == {"info"}, (
        "an end that was asked for is nothing to worry about"
    )


def test_a_second_signal_ends_it_at_once(fake_cluster: ClusterUnderTest) -> None:
    """Fake only: it never answers the binding that the scheduler waits for."""
    fake_cluster.create(node("a"), pod("p"))
    fake_cluster.fake.hang_next("POST", "/binding$")
    scheduler = fake_cluster.scheduler()
    wait_until(lambda: fake_cluster.fake.hanging, "waiting for the binding")
    scheduler.send_signal(signal.SIGTERM)
    scheduler.wait_for_line("stopping: finishing the bindings that were decided")
    assert scheduler.stop() == 130


def test_a_scheduler_with_nothing_to_decide_uses_almost_no_cpu(fake_cluster: ClusterUnderTest) -> None:
    """Neither the leader, for which pods wait that do not fit, nor the standby. Fake only: it is the same process."""
    cluster = fake_cluster
    cluster.create(node("small", cpu="1"), *pods(20, cpu="2"))
    schedulers = [
        cluster.scheduler("--leader-elect").wait_until_leading(),
        cluster.scheduler("--leader-elect", user="scheduler-2").wait_until_ready(),
    ]
    for number in range(20):
        cluster.wait_for_event(f"pod-{number}", "FailedScheduling")
    cluster.kubectl.patch("Node", "small", {"metadata": {"labels": {"changed": "true"}}})
    began, used = monotonic(), [each.cpu_seconds for each in schedulers]
    wait_until(lambda: monotonic() > began + IDLE_SECONDS, "waiting for some time to measure")
    assert all(each.cpu_seconds - before < IDLE_SECONDS / 3 for each, before in zip(schedulers, used, strict=True))


def test_a_scheduler_that_cannot_write_its_lease_is_not_ready(cluster: ClusterUnderTest) -> None:
    scheduler = cluster.scheduler("--leader-elect", "--lease-namespace", "nowhere")
    wait_until(lambda: "cannot update the lease nowhere/stead" in scheduler.ready()[1], "waiting for the probe")
    assert scheduler.ready()[0] == 503


def test_events_come_from_the_scheduler_name_of_the_pod(cluster: ClusterUnderTest) -> None:
    cluster.scheduler("--scheduler-name", "stead", "--scheduler-name", "batch").wait_until_leading()
    cluster.create(pod("late", scheduler="batch"))
    assert cluster.wait_for_event("late", "FailedScheduling")["source"]["component"] == "batch"


def test_the_name_of_kube_scheduler_is_used_with_a_warning(fake_cluster: ClusterUnderTest) -> None:
    """Fake only: it does not depend on the server."""
    scheduler = fake_cluster.scheduler("--scheduler-name", "default-scheduler")
    line = scheduler.wait_for_line("kube-scheduler has this name too: stop it, or both bind the same pods")
    assert line["scheduler"] == "default-scheduler"


def test_events_of_bound_pods_can_be_switched_off(fake_cluster: ClusterUnderTest) -> None:
    """Fake only, because its log has every request."""
    cluster = fake_cluster
    scheduler = cluster.scheduler("--no-scheduled-events").wait_until_leading()
    cluster.create(node("a", cpu="1"), pod("p"), pod("large", cpu="2"))
    cluster.wait_until_bound("p")
    cluster.wait_for_event("large", "FailedScheduling")
    scheduler.wait_until_quiet()
    assert len(cluster.requests.of(scheduler.user, "POST", "/events$")) == 1


def test_a_signal_ends_an_idle_scheduler_with_0(cluster: ClusterUnderTest) -> None:
    assert cluster.scheduler().wait_until_ready().stop(signal.SIGINT) == 0


def test_the_log_is_json_if_asked_for(cluster: ClusterUnderTest) -> None:
    scheduler = cluster.prepared_scheduler("--log-format", "json", "--log-level", "debug")
    scheduler.launch()
    wait_until(lambda: '"scheduling"' in scheduler.text, "waiting for it to schedule")
    assert scheduler.stop() == 0
    lines = [json.loads(line) for line in scheduler.text.splitlines()]
    assert all({"time", "level", "msg"} <= line.keys() for line in lines)
    assert {"starting", "listed", "scheduling", "stopped"} <= {line["msg"] for line in lines}


def test_the_journal_replays(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    cluster.create_many(nodes(10, cpu="4"))
    scheduler = cluster.scheduler("--journal", str(journal)).wait_until_leading()
    cluster.create_many(pods(50, cpu="700m"))
    cluster.create(pod("large", cpu="9"))
    cluster.wait_until_bound(*(f"pod-{number}" for number in range(50)))
    cluster.wait_until_pending("large")
    assert scheduler.stop() == 0
    scheduler.start().wait_until_leading()
    cluster.kubectl.delete("Pod", "pod-0", grace_seconds=0)
    cluster.create(pod("second-run"))
    cluster.wait_until_bound("second-run")
    assert scheduler.stop() == 0
    words = [str(STEAD), "replay", str(journal)]
    found = subprocess.run(words, check=False, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.endswith("steps replayed, every decision byte-equal.\n")
