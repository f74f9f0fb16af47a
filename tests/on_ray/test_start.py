"""`stead start`: the `ray start` command that it runs, and where each label comes from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from stead.cli import main
from stead.errors import Invalid
from stead.language.taints import Effect, Taint
from stead.ray.local.start import (
    CHAINED_HOOK,
    OWN_HOOK,
    SETUP_HOOK,
    Options,
    RayStart,
    Surroundings,
    cloud_labels,
    pod_labels,
    ray_start,
    run,
    surroundings_of,
)
from stead.ray.wire.taint_labels import plain_labels, policy_in, rare_in, taints_in

CPU_ONLY = {"ray.io/accelerator-type": ""}
WORKER = ("--address=10.0.0.1:6379",)


def labels_of(started: RayStart) -> dict[str, str]:
    """The labels as Ray itself reads them from the arguments of `ray start`."""
    from ray._private.label_utils import parse_node_labels_string

    said = [word.removeprefix("--labels=") for word in started.words if word.startswith("--labels=")]
    assert len(said) <= 1
    return dict(parse_node_labels_string(said[0])) if said else {}


def start(
    environment: dict[str, str] | None = None, surroundings: Surroundings | None = None, **words: Any
) -> RayStart:
    options = Options(**{"passed_on": WORKER, **words})
    return ray_start(options, environment or {}, surroundings or Surroundings())


@pytest.mark.parametrize(
    "text", ['{"location": "dc_1", "disk": "ssd"}', "{location:dc_1,disk:ssd}", "location=dc_1,disk=ssd"]
)
def test_labels_are_written_in_any_form(text: str) -> None:
    assert labels_of(start(labels=text)) == {"location": "dc_1", "disk": "ssd", **CPU_ONLY}
    assert labels_of(start({"RAY_NODE_LABELS": text})) == {"location": "dc_1", "disk": "ssd", **CPU_ONLY}


def test_labels_override_the_file_and_the_file_overrides_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "labels.yaml"
    path.write_text("a: file\nb: file\n")
    started = start({"RAY_NODE_LABELS": "a=env,b=env,c=env"}, labels="a=argument", labels_file=str(path))
    assert labels_of(started) == {"a": "argument", "b": "file", "c": "env", **CPU_ONLY}


def test_rays_overriding_labels_reach_ray_as_json() -> None:
    started = start({"RAY_OVERRIDE_LABELS": "{zone:b}"}, labels="zone=a")
    assert json.loads(started.environment["RAY_OVERRIDE_LABELS"]) == {"zone": "b"}


def test_taints_become_labels_and_the_command_line_takes_precedence() -> None:
    started = start({"STEAD_NODE_TAINTS": "a=env,b=env:NoExecute"}, taints='{"a": "argument"}', labels="zone=x")
    assert taints_in(labels_of(started)) == (Taint("a", "argument"), Taint("b", "env", Effect.NO_EXECUTE))
    assert plain_labels(labels_of(started)) == {"zone": "x", **CPU_ONLY}


def test_the_head_sets_the_default_policy_of_its_cluster() -> None:
    assert policy_in(labels_of(start(policy="flow-pack", passed_on=("--head",)))) == "flow-pack"
    assert policy_in(labels_of(start(passed_on=("--head",)))) is None


def test_a_flow_policy_needs_its_solver_where_the_controller_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stead.solver.found", lambda: None)
    with pytest.raises(Invalid, match=r"pip install 'stead\[flow\]'"):
        start(policy="flow", passed_on=("--head",))
    assert policy_in(labels_of(start(policy="pack", passed_on=("--head",)))) == "pack"


def test_the_head_declares_rare_resources() -> None:
    started = start(rare_resource_isolation="gpu, my_rare_resource", passed_on=("--head",))
    assert rare_in(labels_of(started)) == ("gpu", "my_rare_resource")


def test_everything_else_is_passed_on_as_written() -> None:
    words = ("--address", "10.0.0.1:6379", "--num-gpus=1", "--resources", '{"a": 1}', "--block")
    assert start(passed_on=words).words == ("start", *words, "--labels=ray.io/accelerator-type=")


def test_every_worker_of_the_node_installs_stead_and_a_users_own_hook_is_chained() -> None:
    assert start().environment == {SETUP_HOOK: OWN_HOOK}
    environment = start({SETUP_HOOK: "mine.setup", "A": "b"}).environment
    assert environment == {SETUP_HOOK: OWN_HOOK, CHAINED_HOOK: "mine.setup", "A": "b"}


DEFAULTS: list[tuple[str, dict[str, str], Surroundings, tuple[str, ...], dict[str, str]]] = [
    ("a head is in the group head", {}, Surroundings(), ("--head",), {"ray.io/node-group": "head", **CPU_ONLY}),
    ("a bare worker has no group", {}, Surroundings(), WORKER, CPU_ONLY),
    (
        "the variables of Ray and KubeRay",
        {"RAY_NODE_TYPE_NAME": "big", "RAY_NODE_MARKET_TYPE": "ON_DEMAND", "RAY_NODE_ZONE": "z1"},
        Surroundings(),
        WORKER,
        {
            "ray.io/node-group": "big",
            "ray.io/market-type": "on-demand",
            "ray.io/availability-zone": "z1",
            **CPU_ONLY,
        },
    ),
    (
        "the labels of the pod",
        {},
        Surroundings(
            pod={"ray.io/group": "gpus", "topology.kubernetes.io/zone": "z2", "karpenter.sh/capacity-type": "spot"}
        ),
        WORKER,
        {"ray.io/node-group": "gpus", "ray.io/availability-zone": "z2", "ray.io/market-type": "spot", **CPU_ONLY},
    ),
    (
        "a variable wins over the pod, the pod over the cloud",
        {"RAY_NODE_ZONE": "variable"},
        Surroundings(
            pod={"ray.io/availability-zone": "pod", "cloud.google.com/gke-spot": "true"},
            cloud={"ray.io/availability-zone": "cloud"},
        ),
        WORKER,
        {"ray.io/availability-zone": "variable", "ray.io/market-type": "spot", **CPU_ONLY},
    ),
    ("Ray's accelerator name", {}, Surroundings("A100"), WORKER, {"ray.io/accelerator-type": "A100"}),
]


@pytest.mark.parametrize(
    ("environment", "surroundings", "words", "labels"), [row[1:] for row in DEFAULTS], ids=[row[0] for row in DEFAULTS]
)
def test_default_labels(
    environment: dict[str, str], surroundings: Surroundings, words: tuple[str, ...], labels: dict[str, str]
) -> None:
    assert labels_of(start(environment, surroundings, passed_on=words)) == labels


def test_a_user_may_set_rays_labels_but_not_the_identity_of_a_node() -> None:
    started = start({"RAY_NODE_ZONE": "z"}, labels="ray.io/availability-zone=mine,ray.io/accelerator-type=X")
    assert labels_of(started) == {"ray.io/availability-zone": "mine", "ray.io/accelerator-type": "X"}
    for key in ("node_id", "node_ip", "node_name", "ray.io/node-id"):
        with pytest.raises(Invalid, match=f"'{key}' is set by stead"):
            start(labels=f"{key}=x")


@pytest.mark.parametrize(
    ("environment", "words", "part"),
    [
        ({}, {"rare_resource_isolation": "gpu"}, "'stead start --head --rare-resource-isolation=gpu'"),
        ({}, {"rare_resource_isolation": "a b", "passed_on": ("--head",)}, "rare resource 'a b'"),
        ({}, {"policy": "flow"}, "'stead start --head --policy=flow'"),
        ({}, {"policy": "flo", "passed_on": ("--head",)}, "did you mean 'flow'?"),
        ({}, {"labels": "zone"}, "the part 'zone' without '='"),
        ({}, {"labels_file": "/none/labels.yaml"}, "cannot be read: No such file"),
        ({}, {"taints": "a=b:Never"}, "taint effect 'Never' is unknown"),
        ({"RAY_NODE_LABELS": "zone"}, {}, "RAY_NODE_LABELS: labels 'zone'"),
        ({"RAY_OVERRIDE_LABELS": "zone"}, {}, "RAY_OVERRIDE_LABELS: labels 'zone'"),
        ({"STEAD_NODE_TAINTS": "a=b:Never"}, {}, "STEAD_NODE_TAINTS: taint effect 'Never'"),
        ({"RAY_NODE_ZONE": "a b"}, {}, "RAY_NODE_ZONE"),
    ],
)
def test_invalid_options_are_refused_in_one_sentence(
    environment: dict[str, str], words: dict[str, Any], part: str
) -> None:
    with pytest.raises(Invalid) as refusal:
        start(environment, **words)
    assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_labels_of_the_pod_come_from_the_downward_api(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_text('ray.io/group="small"\ntopology.kubernetes.io/zone="z"\n')
    assert pod_labels(str(path))["ray.io/group"] == "small"
    assert dict(pod_labels(str(tmp_path / "none"))) == {}
    assert surroundings_of({"STEAD_PODINFO": str(path)}).pod["topology.kubernetes.io/zone"] == "z"


GOOGLE = {
    "/computeMetadata/v1/instance/zone": "projects/12/zones/us-central1-a",
    "/computeMetadata/v1/instance/scheduling/preemptible": "TRUE",
}
AMAZON = {
    "/latest/api/token": "secret",
    "/latest/meta-data/placement/availability-zone": "us-east-1c",
    "/latest/meta-data/instance-life-cycle": "on-demand",
}
Cloud = Callable[[dict[str, str] | None], str]


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """A metadata service on loopback; with None for pages it accepts requests and never answers."""
    servers: list[HTTPServer] = []
    over = Event()

    def serve(pages: dict[str, str] | None) -> str:
        class Service(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if pages is None:
                    over.wait(60)
                    return
                is_google = self.path.startswith("/computeMetadata")
                allowed = (
                    self.headers["Metadata-Flavor"] == "Google"
                    if is_google
                    else self.command == "PUT" or self.headers["X-aws-ec2-metadata-token"] == "secret"
                )
                found = pages.get(self.path) if allowed else None
                self.send_response(404 if found is None else 200)
                self.end_headers()
                self.wfile.write((found or "").encode())

            do_PUT = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Service))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield serve
    over.set()
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("pages", "zone", "market"),
    [(GOOGLE, "us-central1-a", "spot"), (AMAZON, "us-east-1c", "on-demand")],
    ids=["google", "amazon"],
)
def test_zone_and_market_come_from_the_clouds_metadata_service(
    pages: dict[str, str], zone: str, market: str, cloud: Cloud
) -> None:
    address = cloud(pages)
    labels = {"ray.io/availability-zone": zone, "ray.io/market-type": market}
    assert cloud_labels(address, seconds_max=20) == labels
    assert dict(surroundings_of({"STEAD_CLOUD_METADATA_URL": address}).cloud) == {}


def test_a_machine_outside_a_cloud_gets_no_cloud_labels(cloud: Cloud) -> None:
    assert cloud_labels(cloud({})) == {}
    assert cloud_labels("http://127.0.0.1:1") == {}
    assert cloud_labels(cloud({"/computeMetadata/v1/instance/zone": "not a zone"})) == {}


def test_a_service_that_never_answers_costs_one_timeout(cloud: Cloud) -> None:
    from time import monotonic

    began = monotonic()
    assert cloud_labels(cloud(None), seconds_max=0.5) == {}
    assert monotonic() - began < 5


def test_the_exit_code_is_rays(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(RayStart(("start", "--no-such-option"), dict(os.environ))) == 2
    assert "no-such-option" in capfd.readouterr().err


def test_ray_accepts_the_labels_on_its_command_line(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """`ray start` accepts the labels, and refuses only the rest: neither a head nor an address."""
    code = main(["start", "--labels", "ray.io/market-type=spot", "--taints", '{"gpu_node": "true"}', "--num-cpus=1"])
    said = "".join(capfd.readouterr())
    assert code != 0
    assert "--head" in said
    assert "label" not in said.lower()


def test_without_ray_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "cluster.yaml").write_text("- {num_cpus: 1}")
    for words in (["start", "--head"], ["up", "--nodes", str(tmp_path / "cluster.yaml")]):
        assert main(words) == 1
        said = capsys.readouterr().err
        assert said.endswith("needs Ray; install it with pip install 'stead[ray]'\n")
        assert said.count("\n") == 1


def test_the_help_does_not_wait_for_ray() -> None:
    program = "import sys; from stead.cli import main; main(['up', '--help']); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=False).returncode == 0
