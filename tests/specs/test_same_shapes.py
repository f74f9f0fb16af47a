"""One file gives the same shapes on every cluster, up to what docs/submit.md lists.

Rule: here the list is written down a second time, in the simplest way.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from stead.engine.facts import AskSubmitted
from stead.kubernetes.pod_manifest import PodOptions
from stead.kubernetes.podspec import ask_of
from stead.kubernetes.work_manifests import manifests_of
from stead.language.asks import Affinity, Ask, Choice, Preference, Spread
from stead.language.labels import Requirement, Selector
from stead.language.resources import Resources
from stead.language.selectors import parse_selector
from stead.ray.submit.compile import route_of
from stead.sim.scenario import parse
from stead.specs.sections import load_yaml
from stead.specs.submissions import read_submission

FILE = """
work:
  - id: web
    count: 2
    run: python serve.py
    image: python:3.12
    resources: {CPU: 1, memory: 2Gi}
    labels: {app: web}
    apart: {symmetric: true}
    spread: {topology: zone}
    namespace: shop
    for: 1m
  - id: train
    run: [python, train.py]
    image: python:3.12
    env: {MODE: fast}
    resources: {GPU: 1}
    selector: "gpu_type in [A100, H100] and not spot"
    tolerations: [gpu_node, "team=blue:NoSchedule"]
    prefers: [{selector: disk = ssd, weight: 10}, {near: {labels: {app: cache}}}]
    near: {labels: {app: store}, topology: zone}
    namespace: shop
    policy: pack
    for: 1m
  - {id: kube, run: x, image: busybox, policy: kube, namespace: shop, for: 1m}
"""

HOSTNAME = "kubernetes.io/hostname"
LIVE = Selector.all_of(Requirement.does_not_exist("deleting:"))


def asks() -> dict[str, Ask]:
    return {id: piece.ask for id, piece in read_submission(load_yaml(FILE)).pieces.items()}


def by_hostname(want: Affinity) -> Affinity:
    return replace(want, topologies=tuple(HOSTNAME if key == "node_id" else key for key in want.topologies))


def as_documented(ask: Ask, image: str) -> Ask:
    """What docs/submit.md says that Kubernetes adds, for the asks of this file."""
    (first,) = ask.choices
    amounts = {{"GPU": "nvidia.com/gpu"}.get(name, name): amount for name, amount in first.resources.items()}
    near = [by_hostname(each) for ands in ask.affinities for each in ands if each.near]
    preferred = [replace(each, want=by_hostname(each.want)) for each in ask.prefers if isinstance(each.want, Affinity)]
    others = [each for each in ask.prefers if not isinstance(each.want, Affinity)]
    return replace(
        ask,
        choices=(Choice(Resources({**amounts, "pods": 10_000}), first.selector),),
        affinities=tuple(tuple(map(by_hostname, ands)) for ands in ask.affinities),
        spreads=tuple(Spread(each.topology, each.selector & LIVE) for each in ask.spreads),
        prefers=(*others, *preferred),
        images=(image,),
        pulls=(*preferred, *(Preference(each, 1) for each in near)),
    )


@pytest.mark.parametrize("id", list(asks()))
class TestOneFile:
    def test_gives_the_simulator_the_same_shape(self, id: str) -> None:
        scenario = parse(FILE)
        found = {fact.ask.id: fact.ask for _, fact in scenario.moments if isinstance(fact, AskSubmitted)}
        assert found[id] == asks()[id]

    def test_gives_kubernetes_the_same_shape(self, id: str) -> None:
        manifests = manifests_of(read_submission(load_yaml(FILE)), PodOptions("default"))
        image = "busybox:latest" if id == "kube" else "python:3.12"
        assert ask_of(manifests.pods[id]).shape_key == as_documented(asks()[id], image).shape_key

    def test_gives_ray_the_same_shape(self, id: str) -> None:
        """On Ray, conditions and preferences are sorted."""
        ask = asks()[id]
        amounts = {name: amount / 10_000 for name, amount in ask.choices[0].resources.items()}
        found = route_of(ask).ask(id, amounts, ask.namespace)
        assert in_order(found).shape_key == in_order(ask).shape_key


def in_order(ask: Ask) -> Ask:
    def sorted_terms(selector: Selector) -> Selector:
        return Selector(tuple(tuple(sorted(term, key=str)) for term in selector.terms))

    return replace(
        ask,
        choices=tuple(Choice(each.resources, sorted_terms(each.selector)) for each in ask.choices),
        prefers=tuple(sorted(ask.prefers, key=str)),
        tolerations=tuple(sorted(ask.tolerations, key=str)),
    )


def test_equal_pieces_share_a_shape() -> None:
    found = asks()
    assert found["web-1"].shape_key == found["web-2"].shape_key


def test_the_command_does_not_affect_the_shape() -> None:
    other = read_submission(load_yaml(FILE.replace("python train.py", "sleep 5").replace("MODE: fast", "MODE: slow")))
    assert [piece.ask for piece in other.pieces.values()] == list(asks().values())


def test_a_selector_of_the_file_is_read_as_everywhere() -> None:
    assert asks()["train"].choices[0].selector == parse_selector("gpu_type in [A100, H100] and not spot")
