"""`stead start`: builds the `ray start` command from stead's options and the node's environment.

Rule: a node declares everything about itself when it joins, as labels (see `wire/taint_labels.py`), and every worker on
it installs stead. Other options go to `ray start` unchanged. Your own labels take precedence: `--labels`, then
`--labels-file`, then RAY_NODE_LABELS, then the default labels. RAY_OVERRIDE_LABELS, which Ray's autoscaler sets,
overrides all of them, as in Ray.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import monotonic

from stead.errors import Invalid, Unsupported
from stead.language.arguments import merge, parse_labels, parse_labels_yaml, parse_taints
from stead.language.asks import PolicyName
from stead.language.labels import EMPTY, Labels, check_value
from stead.language.taints import Taint
from stead.ray.wire.taint_labels import marks_of

SETUP_HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
OWN_HOOK = "stead.ray.install_in_worker"
CHAINED_HOOK = "STEAD_CHAINED_SETUP_HOOK"

ACCELERATOR_TYPE = "ray.io/accelerator-type"
MARKET_TYPE = "ray.io/market-type"
NODE_GROUP = "ray.io/node-group"
ZONE = "ray.io/availability-zone"

POD_LABELS = "/etc/podinfo/labels"
TAINTS_ANNOTATION = "stead/taints"
"""The annotation of a pod template with the taints of its Ray nodes."""

METADATA_ADDRESS = "http://169.254.169.254"
METADATA_SECONDS_MAX = 1.0

_ANNOTATION = re.compile(r"\s*([^=\s\"']+)=(\".*\")\s*")

_FROM_VARIABLE = {MARKET_TYPE: "RAY_NODE_MARKET_TYPE", NODE_GROUP: "RAY_NODE_TYPE_NAME", ZONE: "RAY_NODE_ZONE"}

_FROM_POD = {
    ACCELERATOR_TYPE: ("ray.io/accelerator-type",),
    MARKET_TYPE: ("ray.io/market-type", "karpenter.sh/capacity-type", "eks.amazonaws.com/capacityType"),
    NODE_GROUP: ("ray.io/node-group", "ray.io/group"),
    ZONE: ("ray.io/availability-zone", "topology.kubernetes.io/zone"),
}
"""Pod labels with the same meaning, the most specific first. KubeRay writes ``ray.io/group``."""


@dataclass(frozen=True)
class Options:
    """Stead's own options of `stead start`, as written."""

    labels: str | None = None
    labels_file: str | None = None
    taints: str | None = None
    taints_file: str | None = None
    rare_resource_isolation: str | None = None
    policy: str | None = None
    passed_on: Sequence[str] = ()

    @property
    def is_head(self) -> bool:
        return "--head" in self.passed_on


@dataclass(frozen=True)
class Surroundings:
    """What is known about a node from its environment: Ray's accelerator type ("" for none), labels and taints of its
    pod, cloud labels."""

    accelerator_type: str = ""
    pod: Mapping[str, str] = EMPTY
    cloud: Mapping[str, str] = EMPTY
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True)
class RayStart:
    """The arguments of `ray`, and its environment."""

    words: tuple[str, ...]
    environment: Mapping[str, str]


def ray_start(options: Options, environment: Mapping[str, str], surroundings: Surroundings) -> RayStart:
    """The command for these options. Reads no file except the labels file."""
    for name, given, good in (
        ("--rare-resource-isolation", options.rare_resource_isolation, "gpu"),
        ("--policy", options.policy, "flow"),
    ):
        if given is not None and not options.is_head:
            raise Invalid(
                f"{name} is for the whole cluster; set it on the head, for example 'stead start --head {name}={good}'"
            )
    written = merge(
        merge(_from_environment("RAY_NODE_LABELS", environment), _from_file(options.labels_file)),
        parse_labels(options.labels or ""),
    )
    labels = {**default_labels(options.is_head, environment, surroundings), **written}
    taints = {(taint.key, taint.effect): taint for taint in _taints(options, environment, surroundings)}
    rare = [name.strip() for name in (options.rare_resource_isolation or "").split(",") if name.strip()]
    labels.update(marks_of(taints.values(), rare, _policy(options.policy)))
    text = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    changed = dict(with_hook(environment))
    if overriding := _from_environment("RAY_OVERRIDE_LABELS", environment):
        # Ray reads only JSON, so rewrite the value in case a shell changed its quotes.
        changed["RAY_OVERRIDE_LABELS"] = json.dumps(dict(overriding))
    return RayStart(("start", *options.passed_on, *([f"--labels={text}"] if text else [])), changed)


def default_labels(is_head: bool, environment: Mapping[str, str], surroundings: Surroundings) -> dict[str, str]:
    """The labels that every node gets automatically. A variable overrides the pod, and the pod overrides the cloud."""
    labels = {
        key: value
        for key in (ACCELERATOR_TYPE, MARKET_TYPE, NODE_GROUP, ZONE)
        if (value := surroundings.cloud.get(key))
    }
    for key, names in _FROM_POD.items():
        if found := next((surroundings.pod[name] for name in names if surroundings.pod.get(name)), None):
            labels[key] = found
    if MARKET_TYPE not in labels and surroundings.pod.get("cloud.google.com/gke-spot") == "true":
        labels[MARKET_TYPE] = "spot"
    for key, variable in _FROM_VARIABLE.items():
        if value := environment.get(variable, ""):
            labels[key] = check_value(value, f"the variable {variable}, with the value")
    if MARKET_TYPE in labels:
        labels[MARKET_TYPE] = labels[MARKET_TYPE].lower().replace("_", "-")
    if is_head:
        labels[NODE_GROUP] = "head"
    if surroundings.accelerator_type:
        labels[ACCELERATOR_TYPE] = surroundings.accelerator_type
    return {ACCELERATOR_TYPE: "", **labels}


def with_hook(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a raylet whose workers install stead. An existing hook is kept and runs after stead's."""
    present = environment.get(SETUP_HOOK, "")
    chained = {CHAINED_HOOK: present} if present and present != OWN_HOOK else {}
    return {**environment, **chained, SETUP_HOOK: OWN_HOOK}


def _from_environment(variable: str, environment: Mapping[str, str]) -> Labels:
    try:
        return parse_labels(environment.get(variable, ""))
    except Invalid as error:
        raise Invalid(f"{variable}: {error}") from None


def _from_file(path: str | None) -> Labels:
    if path is None:
        return EMPTY
    try:
        return parse_labels_yaml(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise Invalid(f"the labels file {path} is not text; a good line is 'zone: us-west4-a'") from None
    except OSError as error:
        raise Invalid(f"the labels file {path} cannot be read: {error.strerror}") from None


def _policy(given: str | None) -> PolicyName | None:
    """The default policy of a cluster. Refused if its solver is missing here, where the controller will run."""
    if given is None:
        return None
    policy = PolicyName.of(given)
    if policy.in_batches:
        from stead import solver  # imported here because it needs an extra and is slow to load

        solver.needed()
    return policy


def _taints(options: Options, environment: Mapping[str, str], surroundings: Surroundings) -> tuple[Taint, ...]:
    """Taints of the pod first, then of the environment and the file, so that those of the command line replace them."""
    try:
        surrounding = parse_taints(environment.get("STEAD_NODE_TAINTS", ""))
    except Invalid as error:
        raise Invalid(f"STEAD_NODE_TAINTS: {error}") from None
    given = parse_taints(options.taints or "")
    return surroundings.taints + surrounding + _taints_from_file(options.taints_file) + given


def _taints_from_file(path: str | None) -> tuple[Taint, ...]:
    if path is None:
        return ()
    try:
        return taints_in(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise Invalid(f"the taints file {path} is not text; good content is 'gpu_node=true:NoSchedule'") from None
    except OSError as error:
        raise Invalid(f"the taints file {path} cannot be read: {error.strerror}") from None
    except Invalid as error:
        raise Invalid(f"the taints file {path}: {error}") from None


def taints_in(text: str) -> tuple[Taint, ...]:
    """Taints from a file: as in `--taints`, or all annotations of a pod as Kubernetes' downward API writes them, of
    which ``stead/taints`` counts."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not all(_ANNOTATION.fullmatch(line) for line in lines):
        return parse_taints(text)
    pairs = (found.groups() for line in lines if (found := _ANNOTATION.fullmatch(line)))
    return parse_taints(next((json.loads(value) for key, value in pairs if key == TAINTS_ANNOTATION), ""))


# The following functions inspect the machine.


def require_ray(what: str) -> None:
    """Raise an error with one sentence if Ray is not installed: stead's base install does not include it."""
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise Unsupported(f"{what} needs Ray; install it with pip install 'stead[ray]'")


def surroundings_of(environment: Mapping[str, str]) -> Surroundings:
    """Inspect this machine. A cloud's metadata service is called only if STEAD_CLOUD_METADATA is 1."""
    asked = environment.get("STEAD_CLOUD_METADATA") == "1"
    address = environment.get("STEAD_CLOUD_METADATA_URL") or METADATA_ADDRESS
    return Surroundings(
        _accelerator_type(),
        pod_labels(environment.get("STEAD_PODINFO") or POD_LABELS),
        cloud_labels(address) if asked else EMPTY,
        pod_taints(environment.get("STEAD_PODINFO") or POD_LABELS),
    )


def pod_labels(path: str) -> Labels:
    """The labels of this pod, from the file that Kubernetes' downward API writes; empty without that file."""
    with suppress(OSError):
        return parse_labels_yaml(Path(path).read_text(encoding="utf-8"))
    return EMPTY


def pod_taints(labels_path: str) -> tuple[Taint, ...]:
    """The taints in the annotation ``stead/taints`` of this pod, from the file `annotations` of the same folder."""
    path = Path(labels_path).with_name("annotations")
    return _taints_from_file(str(path)) if path.is_file() else ()


def cloud_labels(address: str, seconds_max: float = METADATA_SECONDS_MAX) -> dict[str, str]:
    """Zone and market type from the metadata service of AWS or Google; empty if none answers in time.

    The timeout is for all requests together.
    """
    until = monotonic() + seconds_max

    def ask(path: str, headers: Mapping[str, str], method: str = "GET") -> str:
        from urllib.request import ProxyHandler, Request, build_opener

        request = Request(f"{address.rstrip('/')}{path}", headers=dict(headers), method=method)
        left = until - monotonic()
        if left <= 0:
            raise TimeoutError
        # A proxy would answer about itself, not about this machine.
        with build_opener(ProxyHandler({})).open(request, timeout=left) as answer:
            text: str = answer.read(4096).decode("utf-8", "replace").strip()
            return text

    for read in (_ask_google, _ask_amazon):
        with suppress(OSError, ValueError):
            return {key: check_value(value) for key, value in read(ask).items() if value}
    return {}


def _ask_google(ask: Callable[..., str]) -> dict[str, str]:
    ours = {"Metadata-Flavor": "Google"}
    zone = ask("/computeMetadata/v1/instance/zone", ours).rpartition("/")[2]
    spot = ask("/computeMetadata/v1/instance/scheduling/preemptible", ours) == "TRUE"
    return {ZONE: zone, MARKET_TYPE: "spot" if spot else "on-demand"}


def _ask_amazon(ask: Callable[..., str]) -> dict[str, str]:
    token = ask("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    ours = {"X-aws-ec2-metadata-token": token}
    zone = ask("/latest/meta-data/placement/availability-zone", ours)
    return {ZONE: zone, MARKET_TYPE: ask("/latest/meta-data/instance-life-cycle", ours)}


def _accelerator_type() -> str:
    """Ray's name for this machine's accelerator, or ""."""
    for family in import_module("ray._private.accelerators").get_all_accelerator_managers():
        with suppress(Exception):
            if family.get_current_node_num_accelerators() > 0:
                return str(family.get_current_node_accelerator_type() or "")
    return ""


def run(started: RayStart) -> int:
    """Run `ray` with these arguments on this terminal, and return its exit code."""
    child = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", *started.words], env=dict(started.environment)
    )
    before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        while True:
            # Ctrl-C reaches the child too, which decides how to handle it.
            with suppress(KeyboardInterrupt):
                code = child.wait()
                return code if code >= 0 else 128 - code
    finally:
        signal.signal(signal.SIGTERM, before)
