"""An ask that is written as a pod is read as the same ask by the scheduler, with what Kubernetes adds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from stead.codec import dumps
from stead.kubernetes.pod_manifest import PodOptions, Refusal, on_kubernetes, pod_of, priority_class
from stead.kubernetes.podspec import ask_of
from stead.language.asks import Affinity, Ask, Choice, HostPort, Preference, Spread
from stead.language.labels import ANYWHERE, NODE_ID, NODE_NAME, NOWHERE, Requirement, Selector
from stead.language.resources import Resources
from stead.language.taints import Effect, Toleration
from stead.specs.commands import Command
from tests.specs.test_writing import NOT_VALUES
from tests.strategies_for_tests import Maker

WEB = Selector.all_of(Requirement.is_in("app", "web"))
COMMAND = Command(("python", "train.py"), image="python:3.12")
OPTIONS = PodOptions("vision")


@settings(max_examples=300)
@given(st.data())
def test_the_scheduler_reads_the_ask_that_was_written(data: st.DataObject) -> None:
    make = Maker(lambda n: data.draw(st.integers(0, n - 1)))
    ask = sayable(make.ask("work", choice_count_max=1, by_id=False))
    assume(not any(bad in dumps(ask) for bad in NOT_VALUES))
    try:
        pod = pod_of(ask, COMMAND, OPTIONS)
    except Refusal as refusal:
        event(f"refused: {refusal.field}")
        return
    event("written")
    expected = on_kubernetes(ask, COMMAND, OPTIONS)
    found = ask_of(pod)
    assert found.shape_key == expected.shape_key
    assert found.id == expected.id


def sayable(ask: Ask) -> Ask:
    """The ask without what only few pods can say, so that most examples are written."""
    first = ask.choices[0]
    amounts = {name: n - n % 10_000 for name, n in first.resources.items() if name in ("CPU", "memory", "GPU")}
    ands = tuple(replace(each, symmetric=not each.near, topologies=each.topologies[:1]) for each in _ands(ask))
    near = tuple(each for each in ands if each.near)[:1]
    return replace(
        ask,
        choices=(Choice(Resources(amounts), first.selector),),
        affinities=((*near, *(each for each in ands if not each.near)),) if ands else (),
        prefers=tuple(_soft(each) for each in ask.prefers),
        estimates=Resources({}),
        images=(),
        pulls=(),
    )


def _ands(ask: Ask) -> tuple[Affinity, ...]:
    return ask.affinities[0] if ask.affinities else ()


def _soft(preference: Preference) -> Preference:
    want = preference.want
    if isinstance(want, Affinity):
        return replace(preference, want=replace(want, symmetric=False, topologies=want.topologies[:1]))
    return Preference(replace(want, min_domains=1, needs_key=True)) if isinstance(want, Spread) else preference


def apart(**more: object) -> tuple[tuple[Affinity, ...], ...]:
    return ((replace(Affinity(WEB, near=False, symmetric=True), **more),),)  # type: ignore[arg-type]


OR = Selector.any_of(Requirement.exists("a"), Requirement.exists("b"))
NUMBER = Selector.all_of(Requirement.greater_than("cores", 3))


def needs(name: str, amount: float, selector: Selector = ANYWHERE) -> Ask:
    return Ask("a", (Choice(Resources.of({name: amount}), selector),))


REFUSED: dict[str, tuple[Ask, str]] = {
    "a name in capitals": (Ask("Train_1"), "id: 'Train_1' is not a name"),
    "a namespace in capitals": (Ask("a", namespace="Vision"), "namespace: 'Vision'"),
    "a fallback": (Ask("a", (Choice(), Choice(selector=WEB))), "fallback: "),
    "alternatives of affinities": (Ask("a", affinities=((Affinity(WEB),), (Affinity(OR),))), "near: "),
    "two near": (
        Ask("a", affinities=((Affinity(WEB), Affinity(WEB, topologies=("zone",))),)),
        "near: .* several terms",
    ),
    "apart in one direction": (Ask("a", affinities=apart(symmetric=False)), "apart: .* add symmetric: true"),
    "apart by two keys": (Ask("a", affinities=apart(topologies=("zone", "rack"))), "apart: write one entry"),
    "apart from nothing": (Ask("a", affinities=apart(selector=NOWHERE)), "apart: selects no work"),
    "other work with alternatives": (Ask("a", affinities=apart(selector=OR)), "apart: .* alternatives"),
    "other work by number": (Ask("a", affinities=apart(selector=NUMBER)), "apart: 'cores > 3'"),
    "other work by its id": (
        Ask("a", affinities=apart(selector=Selector.all_of(Requirement.is_in("ask_id", "b")))),
        "apart: 'ask_id' is not a label",
    ),
    "a node by its id": (needs("CPU", 1, Selector.all_of(Requirement.is_in(NODE_ID, "n"))), "selector: 'node_id'"),
    "one of two names": (
        needs("CPU", 1, Selector.all_of(Requirement.is_in(NODE_NAME, "a", "b"))),
        "selector: .*one name",
    ),
    "no node": (needs("CPU", 1, NOWHERE), "selector: matches no node"),
    "alternatives of a preference": (Ask("a", prefers=(Preference(OR),)), "prefers: .* instead of 'or'"),
    "a weighted spread": (Ask("a", prefers=(Preference(Spread("zone", WEB), 50),)), "prefers: the weight of a spread"),
    "a spread over everything": (Ask("a", spreads=(Spread("zone", ANYWHERE),)), "spread: over all work"),
    "a spread without its key": (Ask("a", spreads=(Spread("zone", WEB, needs_key=False),)), "spread: needs_key"),
    "a soft spread with a minimum": (
        Ask("a", prefers=(Preference(Spread("zone", WEB, min_domains=2)),)),
        "spread: min_domains",
    ),
    "a share of a GPU": (needs("GPU", 0.5), "resources: a pod cannot request a part of a GPU"),
    "a fine share of a CPU": (needs("CPU", 0.0005), "resources: .* steps of 0.001"),
    "a resource of Ray": (needs("disk", 1), "resources: 'disk' is not a resource of Kubernetes"),
    "pods": (needs("pods", 1), "resources: every pod counts as one"),
    "estimates of one's own": (Ask("a", estimates=Resources.of({"CPU": 2})), "estimates: of CPU"),
    "estimates of a GPU": (Ask("a", estimates=Resources.of({"GPU": 1})), "estimates: can be only of CPU and memory"),
    "a toleration of two values": (
        Ask("a", tolerations=(Toleration("gpu", frozenset({"x", "y"}), complement=False),)),
        "tolerations: .* one toleration for each value",
    ),
    "seconds without an effect": (Ask("a", tolerations=(Toleration("gpu", seconds=5.0),)), "tolerations: seconds"),
    "half a second": (
        Ask("a", tolerations=(Toleration("gpu", effect=Effect.NO_EXECUTE, seconds=0.5),)),
        "tolerations: seconds",
    ),
    "a port twice": (Ask("a", ports=(HostPort(80), HostPort(80))), "ports: lists a port twice"),
    "all addresses": (Ask("a", ports=(HostPort(80, ip="0.0.0.0"),)), r"ports: 0\.0\.0\.0 means all"),
    "two names of a GPU": (
        Ask("a", (Choice(Resources.of({"GPU": 1, "nvidia.com/gpu": 1})),)),
        "resources: GPU and nvidia.com/gpu are the same",
    ),
}


@pytest.mark.parametrize(("ask", "words"), REFUSED.values(), ids=REFUSED)
def test_what_a_pod_cannot_say_is_refused_by_name(ask: Ask, words: str) -> None:
    with pytest.raises(Refusal, match=f"^{words}"):
        pod_of(ask, COMMAND, OPTIONS)


def test_a_pod_needs_an_image() -> None:
    with pytest.raises(Refusal, match=r"^image: is missing"):
        pod_of(Ask("a"), Command(("x",)), OPTIONS)


def test_a_whole_pod() -> None:
    ask = Ask.of(
        "train-1",
        {"CPU": 1.5, "memory": "2Gi", "GPU": 1},
        Selector.all_of(Requirement.is_in("zone", "a")),
        tolerations=(Toleration("gpu_node", effect=Effect.NO_SCHEDULE),),
        affinities=apart(),
        labels={"app": "web"},
        ports=(HostPort(8080),),
    )
    pod = pod_of(ask, Command(("sh", "-c", "echo $(date) $$"), (("MODE", "fast"),), "python"), OPTIONS)
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "train-1",
            "namespace": "vision",
            "labels": {"app": "web"},
            "annotations": {"stead.dev/policy": "hybrid"},
        },
        "spec": {
            "schedulerName": "stead",
            "restartPolicy": "Never",
            "nodeSelector": {"zone": "a"},
            "affinity": {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}
                    ]
                }
            },
            "tolerations": [{"key": "gpu_node", "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [
                {
                    "name": "main",
                    "image": "python",
                    "command": ["sh", "-c", "echo $$(date) $$$"],
                    "env": [{"name": "MODE", "value": "fast"}],
                    "ports": [{"containerPort": 8080, "hostPort": 8080, "protocol": "TCP"}],
                    "resources": {
                        "requests": {"cpu": "1500m", "nvidia.com/gpu": "1", "memory": "2147483648"},
                        "limits": {"nvidia.com/gpu": "1"},
                    },
                }
            ],
        },
    }


@pytest.mark.parametrize(
    ("priority", "preempts", "name"),
    [(0, True, None), (10, True, "stead-10"), (-5, True, "stead-minus-5"), (0, False, "stead-0-never-preempts")],
)
def test_a_priority_class_stands_for_a_priority(priority: int, preempts: bool, name: str | None) -> None:
    made = priority_class(priority, preempts)
    assert (made and made[0]) == name
    if made:
        assert (made[1]["value"], made[1].get("preemptionPolicy")) == (priority, None if preempts else "Never")
