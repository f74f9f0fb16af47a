"""Ray and Kubernetes compile equal intents to equal shapes: each intent is written as Ray options and as a pod.

Rule: the shapes are equal except for the differences that `without_documented_differences` names. Nothing else in the
engine can tell where work comes from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from stead.kubernetes.fields import Fields
from stead.kubernetes.podspec import PODS, ask_of
from stead.kubernetes.selecting import NOT_DELETING, PREFERRED, REQUIRED
from stead.language.asks import Affinity, Ask, Choice, PolicyName, Preference, Spread
from stead.language.labels import Requirement, Selector
from stead.language.resources import NOTHING, Resources
from stead.language.strategies import (
    Exists,
    In,
    actor_affinity,
    label_does_not_exist,
    label_exists,
    label_in,
    label_not_in,
    node_affinity,
)
from stead.language.taints import Effect
from stead.ray.submit.compile import route

HOSTNAME = "kubernetes.io/hostname"


class Intent(NamedTuple):
    """The same intent twice. `amounts` and `labels` are the same on both sides."""

    options: dict[str, Any]
    spec: Fields
    amounts: dict[str, float] = {}  # noqa: RUF012  # never changed
    labels: dict[str, str] = {}  # noqa: RUF012  # never changed


def expression(key: str, operator: str, *values: str) -> Fields:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def required(*terms: list[Fields]) -> Fields:
    node = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}}
    return {"affinity": {"nodeAffinity": node}}


def preferred(weight: int, *term: Fields) -> Fields:
    return {"weight": weight, "preference": {"matchExpressions": list(term)}}


def near(key: str, *expressions: Fields) -> Fields:
    return {"labelSelector": {"matchExpressions": list(expressions)}, "topologyKey": key}


GPU_CONTAINER = {"resources": {"requests": {"cpu": "500m", "memory": "2Gi", "example.com/gpu": "1"}}}
WEB = {"app": "web"}

INTENTS = {
    "nothing at all": Intent({}, {}),
    "amounts": Intent({}, {"containers": [GPU_CONTAINER]}, {"CPU": 0.5, "memory": 2 * 2**30, "example.com/gpu": 1}),
    "a label": Intent({"label_selector": {"zone": "a"}}, {"nodeSelector": {"zone": "a"}}),
    "two labels": Intent(
        {"label_selector": {"zone": "a", "disk": "ssd"}}, {"nodeSelector": {"disk": "ssd", "zone": "a"}}
    ),
    "one of several values": Intent(
        {"label_selector": {"zone": "in(a,b)"}}, required([expression("zone", "In", "b", "a")])
    ),
    "none of several values": Intent(
        {"scheduling_strategy": node_affinity(label_not_in("zone", ["a", "b"]))},
        required([expression("zone", "NotIn", "a", "b")]),
    ),
    "a label exists": Intent(
        {"scheduling_strategy": node_affinity(label_exists("gpu"))}, required([expression("gpu", "Exists")])
    ),
    "a label does not exist": Intent(
        {"scheduling_strategy": node_affinity(label_does_not_exist("gpu"))},
        required([expression("gpu", "DoesNotExist")]),
    ),
    "a number above": Intent({"scheduling_strategy": "cores > 8"}, required([expression("cores", "Gt", "8")])),
    "a number below": Intent({"scheduling_strategy": "cores < 8"}, required([expression("cores", "Lt", "8")])),
    "alternatives": Intent(
        {"scheduling_strategy": node_affinity([label_in("zone", ["a"]), label_exists("gpu")], is_or_semantics=True)},
        required([expression("gpu", "Exists")], [expression("zone", "In", "a")]),
    ),
    "a label and alternatives": Intent(
        {"label_selector": {"disk": "ssd"}, "scheduling_strategy": "zone=a or gpu"},
        {"nodeSelector": {"disk": "ssd"}, **required([expression("zone", "In", "a")], [expression("gpu", "Exists")])},
    ),
    "preferences": Intent(
        {"scheduling_strategy": node_affinity([("zone", "IN", ["a"], True), label_exists("ssd", is_soft=True)])},
        {
            "affinity": {
                "nodeAffinity": {
                    PREFERRED: [
                        preferred(100, expression("ssd", "Exists")),
                        preferred(100, expression("zone", "In", "a")),
                    ]
                }
            }
        },
    ),
    "a preference with a weight": Intent(
        {"scheduling_strategy": node_affinity(label_in("zone", ["a"], is_soft=True, weight=7))},
        {"affinity": {"nodeAffinity": {PREFERRED: [preferred(7, expression("zone", "In", "a"))]}}},
    ),
    "any value of a taint": Intent(
        {"tolerations": {"gpu": Exists()}}, {"tolerations": [{"key": "gpu", "operator": "Exists"}]}
    ),
    "one value of a taint": Intent(
        {"tolerations": {"gpu": In("a100")}}, {"tolerations": [{"key": "gpu", "value": "a100"}]}
    ),
    "one effect of a taint, for a while": Intent(
        {"tolerations": {"gpu": Exists(effect=Effect.NO_EXECUTE, seconds=300)}},
        {"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]},
    ),
    "near other work": Intent(
        {"scheduling_strategy": actor_affinity(label_in("app", ["db"]), topology="zone")},
        {"affinity": {"podAffinity": {REQUIRED: [near("zone", expression("app", "In", "db"))]}}},
    ),
    "near other work in two topologies": Intent(
        {"scheduling_strategy": actor_affinity(label_exists("app"), topology=["zone", "rack"])},
        {
            "affinity": {
                "podAffinity": {
                    REQUIRED: [near("zone", expression("app", "Exists")), near("rack", expression("app", "Exists"))]
                }
            }
        },
    ),
    "apart from other work": Intent(
        {"scheduling_strategy": actor_affinity(label_not_in("app", ["web"]), topology=HOSTNAME)},
        {"affinity": {"podAntiAffinity": {REQUIRED: [near(HOSTNAME, expression("app", "In", "web"))]}}},
        labels=WEB,
    ),
    "apart from all work with a label": Intent(
        {"scheduling_strategy": actor_affinity(label_does_not_exist("app"), topology="zone")},
        {"affinity": {"podAntiAffinity": {REQUIRED: [near("zone", expression("app", "Exists"))]}}},
    ),
    "prefers to be near": Intent(
        {"scheduling_strategy": actor_affinity(label_in("app", ["db"], is_soft=True, weight=9), topology="zone")},
        {
            "affinity": {
                "podAffinity": {
                    PREFERRED: [{"weight": 9, "podAffinityTerm": near("zone", expression("app", "In", "db"))}]
                }
            }
        },
    ),
    "prefers to be apart": Intent(
        {"scheduling_strategy": actor_affinity(label_not_in("app", ["db"], is_soft=True), topology="zone")},
        {
            "affinity": {
                "podAntiAffinity": {
                    PREFERRED: [{"weight": 100, "podAffinityTerm": near("zone", expression("app", "In", "db"))}]
                }
            }
        },
    ),
    "spread over zones": Intent(
        {"spread": {"zone": 2}},
        {"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 2, "labelSelector": {"matchLabels": WEB}}]},
        labels=WEB,
    ),
    "everything": Intent(
        {
            "label_selector": {"disk": "ssd"},
            "tolerations": {"gpu": Exists()},
            "spread": {"zone": 1},
            "scheduling_strategy": [
                node_affinity(label_in("gpu", ["a100"], is_soft=True, weight=3)),
                actor_affinity(label_not_in("app", ["web"]), topology=HOSTNAME),
            ],
        },
        {
            "containers": [GPU_CONTAINER],
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1, "labelSelector": {"matchLabels": WEB}}],
            "affinity": {
                "nodeAffinity": {PREFERRED: [preferred(3, expression("gpu", "In", "a100"))]},
                "podAntiAffinity": {REQUIRED: [near(HOSTNAME, expression("app", "In", "web"))]},
            },
        },
        {"CPU": 0.5, "memory": 2 * 2**30, "example.com/gpu": 1},
        WEB,
    ),
}


def on_ray(intent: Intent) -> Ask:
    return route({**intent.options, "labels": intent.labels}).ask("work", intent.amounts, "team")


def on_kubernetes(intent: Intent) -> Ask:
    return ask_of({"metadata": {"name": "work", "namespace": "team", "labels": intent.labels}, "spec": intent.spec})


def without_documented_differences(ask: Ask) -> Ask:
    """The ask without what a pod has in addition, and in one order.

    - Every pod uses one of the resource `pods`.
    - Required anti-affinity of pods is symmetric.
    - Topology spread does not count pods that are being deleted.
    - The default policy is ``kube`` for pods and ``hybrid`` on Ray.
    - Pods may be evicted for pods of a higher priority.
    - Images, estimates and pulls are for the scores of kube-scheduler only.
    """
    return replace(
        ask,
        id="work",
        choices=tuple(Choice(_without_pods(each.resources), _ordered(each.selector)) for each in ask.choices),
        affinities=tuple(tuple(map(_affinity, each)) for each in ask.affinities),
        spreads=tuple(map(_spread, ask.spreads)),
        prefers=tuple(sorted(map(_preference, ask.prefers), key=str)),
        policy=PolicyName.HYBRID,
        preemptible=False,
        images=(),
        estimates=NOTHING,
        pulls=(),
    )


def _without_pods(resources: Resources) -> Resources:
    return Resources({name: amount for name, amount in resources.items() if name != PODS})


def _ordered(selector: Selector) -> Selector:
    terms = (tuple(sorted(term, key=str)) for term in selector.terms)
    return Selector(tuple(sorted(terms, key=str)))


def _affinity(affinity: Affinity) -> Affinity:
    return replace(affinity, selector=_ordered(affinity.selector), symmetric=False)


def _spread(spread: Spread) -> Spread:
    (alive,) = NOT_DELETING.terms[0]
    terms = (tuple(each for each in term if each != alive) for term in spread.selector.terms)
    return replace(spread, selector=_ordered(Selector(tuple(terms))))


def _preference(preference: Preference) -> Preference:
    match preference.want:
        case Selector() as selector:
            return replace(preference, want=_ordered(selector))
        case Affinity() as affinity:
            return replace(preference, want=_affinity(affinity))
        case Spread() as spread:
            return replace(preference, want=_spread(spread))


@pytest.mark.parametrize("intent", INTENTS.values(), ids=INTENTS.keys())
def test_an_intent_has_one_shape(intent: Intent) -> None:
    ray, kubernetes = map(without_documented_differences, (on_ray(intent), on_kubernetes(intent)))
    assert kubernetes == ray
    assert kubernetes.shape_key == ray.shape_key


def test_the_documented_differences_exist() -> None:
    """If one of them goes away, take it from the list."""
    ray, kubernetes = on_ray(INTENTS["everything"]), on_kubernetes(INTENTS["everything"])
    assert kubernetes.choices[0].resources == ray.choices[0].resources + Resources.of({PODS: 1})
    assert [each.symmetric for each in kubernetes.affinities[0]] == [True]
    assert [each.symmetric for each in ray.affinities[0]] == [False]
    assert kubernetes.spreads[0].selector == ray.spreads[0].selector & NOT_DELETING
    assert (kubernetes.policy, ray.policy) == (PolicyName.KUBE, PolicyName.HYBRID)
    assert kubernetes.images and not ray.images
    assert kubernetes.preemptible and not ray.preemptible
    bare = on_kubernetes(
        INTENTS["near other work"]._replace(spec={**INTENTS["near other work"].spec, "containers": [{}]})
    )
    assert bare.estimates and bare.pulls


def test_a_soft_spread_is_a_preference_only_on_kubernetes() -> None:
    constraint = {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": WEB}}
    ask = on_kubernetes(Intent({}, {"topologySpreadConstraints": [constraint]}, labels=WEB))
    web = Selector.all_of(Requirement.is_in("app", "web"))
    assert ask.prefers == (Preference(Spread("zone", web & NOT_DELETING)),)
