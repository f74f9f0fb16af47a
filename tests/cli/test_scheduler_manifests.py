"""`stead scheduler manifests`: the YAML that installs the scheduler, and one-sentence errors for bad values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import stead
from stead.errors import Invalid
from stead.kubernetes.api.leases import RELEASE_TIMEOUT_S
from stead.kubernetes.manifests.rendering import (
    Installation,
    check_image,
    check_namespace,
    check_scheduler_name,
    manifests,
)
from stead.kubernetes.scheduler import DRAIN_S
from stead.language.asks import PolicyName
from tests.cli.conftest import Run
from tests.golden_files import assert_golden

COMMAND = ("scheduler", "manifests")
IMAGE = "registry.example.com/stead:0.1.0"
MARGIN_S = 2.0


def objects(text: str) -> dict[str, dict[str, Any]]:
    """The objects by kind."""
    found = [each for each in yaml.safe_load_all(text) if each is not None]
    by_kind = {each["kind"]: each for each in found}
    assert len(by_kind) == len(found), "every kind appears once"
    return by_kind


def pod_spec(text: str) -> dict[str, Any]:
    return dict(objects(text)["Deployment"]["spec"]["template"]["spec"])


def container(text: str) -> dict[str, Any]:
    (only,) = pod_spec(text)["containers"]
    return dict(only)


def test_the_output_is_as_in_the_golden_file(run: Run) -> None:
    code, out, err = run(*COMMAND, "--image", IMAGE)
    assert (code, err) == (0, "")
    assert_golden("manifests.yaml", out)


def test_all_options_are_as_in_the_golden_file(run: Run) -> None:
    words = "--namespace batch --scheduler-name batch --scheduler-name night --policy flow --replicas 1".split()
    code, out, err = run(*COMMAND, "--image", f"{IMAGE}@sha256:{'0' * 64}", *words)
    assert (code, err) == (0, "")
    assert_golden("manifests-batch.yaml", out)


def test_the_help_is_as_in_the_golden_file(run: Run) -> None:
    assert_golden("help-scheduler-manifests.txt", run(*COMMAND, "--help")[1])


def test_the_default_image_has_the_version_of_the_package(run: Run) -> None:
    assert container(run(*COMMAND)[1])["image"] == f"stead:{stead.__version__}"


def test_the_pod_is_allowed_little(run: Run) -> None:
    spec = pod_spec(run(*COMMAND)[1])
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "volumes"} & spec.keys()
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_default_scheduler_places_the_scheduler_itself(run: Run) -> None:
    assert pod_spec(run(*COMMAND)[1])["schedulerName"] == "default-scheduler"


def test_a_pod_that_ends_has_time_for_its_bindings_and_its_lease(run: Run) -> None:
    seconds = pod_spec(run(*COMMAND)[1])["terminationGracePeriodSeconds"]
    assert seconds >= DRAIN_S + RELEASE_TIMEOUT_S + MARGIN_S


def test_the_arguments_are_those_of_the_command(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The container's arguments reach the scheduler as they stand in the manifest."""
    started: list[tuple[Any, ...]] = []
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("secret")
    (folder / "namespace").write_text("batch")
    (folder / "ca.crt").write_text("")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setattr("stead.kubernetes.api.config.SERVICE_ACCOUNT", folder)
    monkeypatch.setattr("stead.kubernetes.api.config._tls", lambda *_: None)
    monkeypatch.setattr("stead.kubernetes.logs.set_up", lambda *given: started.append(given))
    monkeypatch.setattr("stead.kubernetes.process.run", lambda *given: started.append(given))
    text = run(*COMMAND, "--namespace", "batch", "--scheduler-name", "b", "--scheduler-name", "a", "--policy", "flow")[
        1
    ]
    assert run(*container(text)["args"]) == (0, "", "")
    (form, _), (config, options, address) = started
    assert (form, config.host, address) == ("json", "10.96.0.1", ("0.0.0.0", 10259))
    assert (options.names, options.policy, options.lease) == (("b", "a"), PolicyName.FLOW, ("batch", "b"))
    role = objects(text)["Role"]
    assert role["metadata"]["namespace"] == options.lease[0]
    assert [rule.get("resourceNames") for rule in role["rules"]] == [None, [options.lease[1]]]


def test_probes_ask_where_the_scheduler_listens(run: Run) -> None:
    found = container(run(*COMMAND)[1])
    (port,) = found["ports"]
    assert f"--listen=0.0.0.0:{port['containerPort']}" in found["args"]
    asked = {found[probe]["httpGet"]["path"]: found[probe]["httpGet"]["port"] for probe in PROBES}
    assert asked == {"/readyz": port["name"], "/healthz": port["name"]}


PROBES = ("readinessProbe", "livenessProbe")


def test_a_single_replica_has_no_disruption_budget(run: Run) -> None:
    """With one, its node could not be drained."""
    assert "PodDisruptionBudget" in objects(run(*COMMAND, "--replicas", "2")[1])
    assert "PodDisruptionBudget" not in objects(run(*COMMAND, "--replicas", "1")[1])


@pytest.mark.parametrize(
    ("namespace", "is_part"), [("stead-system", True), ("kube-system", False), ("default", False), ("kubes", True)]
)
def test_namespaces_of_kubernetes_are_left_alone(run: Run, namespace: str, is_part: bool) -> None:
    assert ("Namespace" in objects(run(*COMMAND, "--namespace", namespace)[1])) is is_part


def test_two_installations_share_no_object(run: Run) -> None:
    """So one of them can be removed without the other."""
    one, other = (objects(run(*COMMAND, "--namespace", each)[1]) for each in ("one", "other"))
    assert one["ClusterRole"]["rules"] == other["ClusterRole"]["rules"]
    for kind in one:
        found = [(each[kind]["metadata"].get("namespace"), each[kind]["metadata"]["name"]) for each in (one, other)]
        assert found[0] != found[1]


def test_every_role_is_bound_to_the_service_account(run: Run) -> None:
    found = objects(run(*COMMAND)[1])
    account = {
        "kind": "ServiceAccount",
        **{key: found["ServiceAccount"]["metadata"][key] for key in ("name", "namespace")},
    }
    for kind in ("Role", "ClusterRole"):
        binding = found[f"{kind}Binding"]
        assert binding["subjects"] == [account]
        assert binding["roleRef"]["kind"] == kind
        assert binding["roleRef"]["name"] == found[kind]["metadata"]["name"]
    assert pod_spec(run(*COMMAND)[1])["serviceAccountName"] == account["name"]


def test_the_manifests_need_no_library_of_kubernetes() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['msgspec', 'httptools', 'kubernetes', 'ray']))\n"
        "from stead.cli import main; main(['scheduler', 'manifests'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert objects(done.stdout).keys() >= {"Deployment"}


LABEL = st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?\Z") | st.sampled_from(
    ["on", "no", "null", "true", "1", "1e3", "0x1f", "0-0", "2001-01-01"]
)
NAME = st.lists(LABEL, min_size=1, max_size=3).map(".".join)


@given(
    namespace=LABEL,
    names=st.lists(NAME, min_size=1, max_size=4),
    image=NAME | st.builds("{}/{}:{}".format, NAME, LABEL.filter(lambda part: "--" not in part), LABEL),
    policy=st.sampled_from(PolicyName),
    replicas=st.integers(1, 100),
)
def test_every_valid_value_survives_the_yaml(
    namespace: str, names: list[str], image: str, policy: PolicyName, replicas: int
) -> None:
    text = manifests(Installation(image, namespace, names, policy, replicas))
    found = objects(text)
    assert list(yaml.safe_load_all(yaml.safe_dump_all(found.values()))) == list(found.values())
    namespaces = {each["metadata"].get("namespace", namespace) for each in found.values()}
    assert namespaces == {namespace}
    assert found["ClusterRoleBinding"]["subjects"][0]["namespace"] == namespace
    assert found["Deployment"]["spec"]["replicas"] == replicas
    args = container(text)["args"]
    assert container(text)["image"] == image
    assert [each for each in args if each.startswith("--scheduler-name=")] == [
        f"--scheduler-name={name}" for name in dict.fromkeys(names)
    ]
    assert f"--policy={policy.value}" in args
    assert "$" not in text


@given(st.text(max_size=30))
def test_every_other_value_is_refused(text: str) -> None:
    """Whatever is accepted has only characters that mean nothing in YAML."""
    for check in (check_image, check_namespace, check_scheduler_name):
        try:
            check(text)
        except Invalid:
            continue
        assert text.isascii() and not set(text) & set(" \t\n\"'\\{}[]#&*!|>%,?$`")


ERRORS = [
    (["--namespace", "Stead"], "'Stead' is not a name for a namespace; use up to 63 lowercase letters, digits and '-'"),
    (["--namespace", "a.b"], "'a.b' is not a name for a namespace"),
    (["--namespace", "n" * 64], f"'{'n' * 64}' is not a name for a namespace"),
    (["--namespace", ""], "'' is not a name for a namespace"),
    (["--namespace", "a\nb"], "'a\\nb' is not a name for a namespace"),
    (["--image", "a b"], "'a b' is not a container image; use a name like 'registry.example.com/stead:0.1.0'"),
    (["--image", ""], "'' is not a container image"),
    (
        ["--image", "https://registry.example.com/stead"],
        "'https://registry.example.com/stead' is not a container image",
    ),
    (["--scheduler-name", "My Scheduler"], "'My Scheduler' is not a name for a scheduler"),
    (["--scheduler-name", "a", "--scheduler-name", ""], "'' is not a name for a scheduler"),
    (["--replicas", "0"], "0 is not in the range 1<=x<=100."),
    (["--replicas", "two"], "'two' is not a valid integer range."),
    (["--policy", "flwo"], "'flwo' is not one of 'kube', 'hybrid',"),
]


@pytest.mark.parametrize(("words", "sentence"), ERRORS, ids=[" ".join(words)[:40] for words, _ in ERRORS])
def test_a_bad_value_is_refused_in_one_sentence(run: Run, words: list[str], sentence: str) -> None:
    code, out, err = run(*COMMAND, *words)
    assert (code, out) == (2, "")
    option = words[-2]
    assert err.startswith(f"stead: Invalid value for '{option}': {sentence}")
    assert err.count("\n") == 1


def test_an_option_of_the_scheduler_before_the_subcommand_is_refused(run: Run) -> None:
    """It would have no effect, and nobody would notice."""
    code, out, err = run("scheduler", "--policy", "flow", "manifests")
    assert (code, out) == (2, "")
    assert err.startswith("stead: Put --policy after 'manifests': 'stead scheduler manifests ...'.")


def test_a_mistyped_subcommand_is_refused(run: Run) -> None:
    code, out, err = run("scheduler", "manifest")
    assert (code, out) == (2, "")
    assert err.startswith("stead: No such command 'manifest'.")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--listen", "10259"], 2, "'10259' is not an address with a port, such as 127.0.0.1:10259"),
        (["--listen", "127.0.0.1:²"], 2, "'127.0.0.1:²' is not an address with a port"),
        (["--scheduler-name", ""], 2, "'' is not a name for a scheduler; use up to 253 lowercase letters"),
        (["--kubeconfig", "/nowhere"], 1, "there is no kubeconfig file /nowhere"),
    ],
)
def test_the_scheduler_refuses_bad_options_in_one_sentence(
    run: Run, words: list[str], code: int, sentence: str
) -> None:
    found, out, err = run("scheduler", *words)
    assert (found, out) == (code, "")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"zone", "must be a list of constraints such as [{topologyKey: zone, maxSkew: 1, ...}]"),
        (b"[zone]", "must be a list of constraints"),
        (b"[", "is not YAML"),
        (b"\xff", "is not YAML"),
        (b"[{maxSkew: 1}]", "a default topology spread constraint needs a topologyKey"),
    ],
)
def test_a_bad_file_of_default_constraints_is_refused(run: Run, tmp_path: Path, content: bytes, sentence: str) -> None:
    file, kubeconfig = tmp_path / "spread.yaml", tmp_path / "kubeconfig"
    file.write_bytes(content)
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], "
        "users: [], contexts: [{name: c, context: {cluster: c, user: ''}}], current-context: c}"
    )
    code, out, err = run("scheduler", "--kubeconfig", str(kubeconfig), "--default-spread", str(file))
    assert (code, out) == (1, "")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("missing", ["msgspec", "httptools", "kubernetes"])
def test_a_missing_library_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    sentence = f"stead: stead scheduler needs {missing}, which is not installed; try: pip install 'stead[kubernetes]'\n"
    assert run("scheduler") == (1, "", sentence)
