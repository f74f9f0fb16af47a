"""The default topology spread: which pods count, and what an administrator can configure."""

from __future__ import annotations

from typing import Any

import pytest

from stead.errors import Invalid
from stead.kubernetes.default_spread import NO_SPREADS, SYSTEM_SPREADS, DefaultSpreads, OwnerKind, Owners
from stead.kubernetes.fields import Fields
from stead.kubernetes.podspec import ask_of
from stead.kubernetes.selecting import NOT_DELETING, pod_selector_of
from stead.language.asks import Preference, Spread
from stead.language.labels import Labels, Selector

SERVICE, REPLICATION_CONTROLLER, REPLICA_SET, STATEFUL_SET = OwnerKind

LABELS = {"app": "web", "tier": "front"}


def owned_by(kind: str, name: str = "web", version: str = "apps/v1", **more: Any) -> Fields:
    owner = {"apiVersion": version, "kind": kind, "name": name, "controller": True, **more}
    return {"namespace": "shop", "ownerReferences": [owner]}


NO_OWNER: Fields = {"namespace": "shop"}


def selector(*known: tuple[OwnerKind, str, Fields | None], metadata: Fields = NO_OWNER) -> Selector | None:
    owners = Owners()
    for kind, name, selected in known:
        owners.put(kind, "shop", name, selected)
    return owners.default_selector(metadata, Labels(LABELS))


APP, TIER = {"app": "web"}, {"tier": "front"}
APP_SELECTOR, TIER_SELECTOR = {"matchLabels": APP}, {"matchLabels": TIER}
BOTH = {"matchLabels": {**APP, **TIER}}
HAS_APP = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}


@pytest.mark.parametrize(
    ("known", "metadata", "expected"),
    [
        ([], NO_OWNER, None),
        ([(SERVICE, "a", APP)], NO_OWNER, APP_SELECTOR),
        ([(SERVICE, "a", APP), (SERVICE, "b", TIER)], NO_OWNER, BOTH),
        ([(SERVICE, "a", {"app": "db"})], NO_OWNER, None),
        ([(SERVICE, "a", {})], NO_OWNER, None),
        ([(SERVICE, "a", None)], NO_OWNER, None),
        ([(REPLICA_SET, "web", APP_SELECTOR)], NO_OWNER, None),
        ([(REPLICA_SET, "web", APP_SELECTOR)], owned_by("ReplicaSet"), APP_SELECTOR),
        ([(REPLICA_SET, "web", HAS_APP)], owned_by("ReplicaSet"), HAS_APP),
        ([(REPLICA_SET, "web", {})], owned_by("ReplicaSet"), None),
        ([(REPLICA_SET, "other", APP_SELECTOR)], owned_by("ReplicaSet"), None),
        ([(REPLICA_SET, "web", APP_SELECTOR)], owned_by("ReplicaSet", version="extensions/v1beta1"), None),
        ([(REPLICA_SET, "web", APP_SELECTOR)], owned_by("ReplicaSet", controller=False), None),
        ([(REPLICA_SET, "web", APP_SELECTOR)], owned_by("StatefulSet"), None),
        ([(STATEFUL_SET, "web", TIER_SELECTOR)], owned_by("StatefulSet"), TIER_SELECTOR),
        ([(REPLICATION_CONTROLLER, "web", APP)], owned_by("ReplicationController", version="v1"), APP_SELECTOR),
        (
            [(SERVICE, "a", TIER), (REPLICATION_CONTROLLER, "web", APP)],
            owned_by("ReplicationController", version="v1"),
            BOTH,
        ),
        ([(SERVICE, "a", APP), (STATEFUL_SET, "web", TIER_SELECTOR)], owned_by("StatefulSet"), BOTH),
        (
            [(SERVICE, "a", APP), (REPLICA_SET, "web", {"matchLabels": {"a": "{{bad}}"}})],
            owned_by("ReplicaSet"),
            APP_SELECTOR,
        ),
        ([(SERVICE, "a", APP)], owned_by("Job", version="batch/v1"), APP_SELECTOR),
    ],
)
def test_which_pods_count(
    known: list[tuple[OwnerKind, str, Fields | None]], metadata: Fields, expected: Fields | None
) -> None:
    found = selector(*known, metadata=metadata)
    assert found == (None if expected is None else pod_selector_of(expected))


def test_a_service_and_its_controller_that_select_the_same_pods_add_nothing() -> None:
    known: list[tuple[OwnerKind, str, Fields | None]] = [(SERVICE, "a", APP), (REPLICA_SET, "web", APP_SELECTOR)]
    assert selector(*known, metadata=owned_by("ReplicaSet")) == pod_selector_of(APP_SELECTOR)


def test_labels_named_like_steads_identities_are_labels() -> None:
    owners = Owners()
    owners.put(SERVICE, "shop", "a", {"node_id": "x"})
    found = owners.default_selector(NO_OWNER, Labels({"label:node_id": "x"}))
    assert found == pod_selector_of({"matchLabels": {"node_id": "x"}})


def test_only_what_concerns_a_pod_makes_its_stamp_outdated() -> None:
    owners, web = Owners(), (REPLICA_SET, "shop", "web")
    changes: list[tuple[OwnerKind, str, Fields]]
    stamp = owners.stamp("shop", web)
    owners.put(REPLICA_SET, "shop", "other", APP_SELECTOR)
    owners.put(SERVICE, "other", "a", APP)
    assert owners.is_current("shop", web, stamp)
    changes = [(REPLICA_SET, "web", APP_SELECTOR), (REPLICA_SET, "web", HAS_APP), (SERVICE, "a", APP)]
    for kind, name, selected in changes:
        assert owners.put(kind, "shop", name, selected)
        assert not owners.is_current("shop", web, stamp)
        stamp = owners.stamp("shop", web)
        assert not owners.put(kind, "shop", name, {**selected})
        assert owners.is_current("shop", web, stamp)
    for kind, name in ((REPLICA_SET, "web"), (SERVICE, "a")):
        assert owners.remove(kind, "shop", name)
        assert not owners.is_current("shop", web, stamp)
        stamp = owners.stamp("shop", web)
        assert not owners.remove(kind, "shop", name)


def test_configured_constraints_replace_kubernetes_own() -> None:
    owners = Owners()
    owners.put(SERVICE, "shop", "a", APP)
    strict = {"topologyKey": "rack", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor"}
    soft = {"topologyKey": "zone", "maxSkew": 4, "whenUnsatisfiable": "ScheduleAnyway"}
    web = {"metadata": {"name": "p", "namespace": "shop", "labels": LABELS}, "spec": {}}
    counted = pod_selector_of(APP_SELECTOR) & NOT_DELETING
    ask = ask_of(web, owners=owners, default_spreads=DefaultSpreads.configured([strict, soft]))
    assert ask.spreads == (Spread("rack", counted, 2, by_taints=True),)
    assert ask.prefers == (Preference(Spread("zone", counted, 4)),)
    assert ask_of(web, owners=owners, default_spreads=NO_SPREADS).prefers == ()
    assert len(ask_of(web, owners=owners, default_spreads=SYSTEM_SPREADS).prefers) == 2


GOOD = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"labelSelector": APP_SELECTOR}, "must not have a labelSelector"),
        ({"topologyKey": ""}, "needs a topologyKey"),
        ({"whenUnsatisfiable": "Never"}, "whenUnsatisfiable must be DoNotSchedule or ScheduleAnyway, not 'Never'"),
        ({"maxSkew": 0}, "max skew must be at least 1"),
        ({"nodeTaintsPolicy": "Honour"}, "good values are Honor, Ignore"),
    ],
)
def test_a_configured_constraint_that_is_not_valid(more: Fields, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        DefaultSpreads.configured([{**GOOD, **more}])
