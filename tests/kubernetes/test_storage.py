"""What is known of storage, and the facts that follow; what is chosen for claims, and how far they are.

Rule: here is what happens over time. Which nodes a claim can use is compared with kube-scheduler's plugins in
test_engine_equals_volume_plugins.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from stead.engine.facts import ClaimChanged, ClaimEnded, Fact
from stead.kubernetes.claims import VolumeClaim, class_of, limits_of, nodes_of_volumes, volume_claim_of, volume_of
from stead.kubernetes.nodes import node_of
from stead.kubernetes.storage import Storage
from stead.language.claims import Claim
from stead.language.labels import ANYWHERE, NODE_NAME, NOWHERE, Requirement, Selector
from stead.language.nodes import Node
from tests.kubernetes import objects
from tests.kubernetes import storage_objects as made
from tests.kubernetes.objects import HOSTNAME, ZONE
from tests.kubernetes.storage_objects import BIND_COMPLETED, NO_PROVISIONER, SELECTED_NODE


def claim(name: str, version: int = 1, uid: str = "", **more: Any) -> VolumeClaim:
    """A claim of the class `local`; `selected` and `volume` say how far it is."""
    selected, volume = more.pop("selected", ""), more.pop("volume", "")
    found = made.claim(name, more.pop("class_name", "local"), **more)
    annotations = {SELECTED_NODE: selected} if selected else {}
    if volume:
        found["spec"]["volumeName"] = volume
        annotations[BIND_COMPLETED] = "yes"
    metadata = {"namespace": "shop", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    found["metadata"] |= {**metadata, "annotations": annotations}
    return volume_claim_of(found)


def volume(name: str, node: str, version: int = 1, for_claim: str = "", **more: Any) -> Any:
    found = made.volume(name, "local", HOSTNAME, node, **more)
    found["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": str(version)}
    found["status"] = {"phase": "Available"}
    if for_claim:
        found["spec"]["claimRef"] = made.claim_reference(for_claim, "shop", f"uid-{for_claim}")
    return volume_of(found)


def node(name: str, zone: str = "a") -> Node:
    return node_of(objects.node(name, labels={ZONE: zone}))


@pytest.fixture
def storage() -> Storage:
    """With the classes `local`, which has no provisioner, and `disk`."""
    found = Storage()
    found.class_changed(class_of(made.storage_class("local", NO_PROVISIONER)))
    found.class_changed(class_of(made.storage_class("disk")))
    found.facts()
    return found


def on(*nodes: str) -> Selector:
    return Selector.all_of(Requirement.is_in(HOSTNAME, *nodes))


def selector_of(facts: list[Fact]) -> Selector:
    (fact,) = facts
    assert isinstance(fact, ClaimChanged)
    return fact.claim.selector


class TestFacts:
    def test_a_claim_is_reported_once_and_again_when_its_meaning_changes(self, storage: Storage) -> None:
        storage.claim_changed(claim("data"))
        assert storage.facts() == [ClaimChanged(Claim("shop/data", NOWHERE, bound=False))]
        storage.claim_changed(claim("data", version=2))
        assert storage.facts() == []
        storage.volume_changed(volume("disk-1", "n1"))
        assert selector_of(storage.facts()) == on("n1")
        storage.volume_changed(volume("disk-2", "n2"))
        assert selector_of(storage.facts()) == on("n1", "n2")
        storage.claim_changed(claim("data", version=3, volume="disk-2"))
        assert storage.facts() == [ClaimChanged(Claim("shop/data", on("n2"), driver=made.DRIVER))]
        storage.claim_deleted("shop/data")
        storage.claim_deleted("shop/data")
        assert storage.facts() == [ClaimEnded("shop/data")]

    def test_an_older_version_is_ignored_unless_it_is_another_claim(self, storage: Storage) -> None:
        storage.claim_changed(claim("data", version=10, selected="n1", class_name="disk"))
        expected = Selector.all_of(Requirement.is_in(NODE_NAME, "n1"))
        assert selector_of(storage.facts()) == expected
        storage.claim_changed(claim("data", version=9, class_name="disk"))
        assert storage.facts() == []
        storage.claim_changed(claim("data", version=9, uid="another", class_name="disk"))
        assert selector_of(storage.facts()) == ANYWHERE

    def test_lists_say_what_is_gone(self, storage: Storage) -> None:
        storage.all_claims([claim("a"), claim("b")])
        storage.all_volumes([volume("disk-1", "n1"), volume("disk-2", "n2")])
        storage.facts()
        storage.all_claims([claim("b")])
        storage.all_volumes([volume("disk-2", "n2")])
        ended, changed = storage.facts()
        assert ended == ClaimEnded("shop/a")
        assert selector_of([changed]) == on("n2")
        storage.all_classes([])
        (fact,) = storage.facts()
        assert isinstance(fact, ClaimChanged) and "unbound immediate" in fact.claim.problem

    def test_a_new_engine_gets_all_claims(self, storage: Storage) -> None:
        storage.claim_changed(claim("data"))
        first = storage.facts()
        assert not storage.has_facts
        storage.start_over()
        assert storage.facts() == first

    def test_a_volume_of_a_claim_does_not_concern_others(self, storage: Storage) -> None:
        storage.claim_changed(claim("data"))
        storage.facts()
        storage.volume_changed(volume("disk-1", "n1", for_claim="other"))
        assert storage.facts() == []
        storage.volume_changed(volume("disk-2", "n2", for_claim="data"))
        storage.volume_changed(volume("disk-3", "n3"))
        assert selector_of(storage.facts()) == on("n2"), "a volume that is meant for a claim is the only one"

    def test_the_claim_of_an_ephemeral_volume_is_expected_for_as_long_as_its_pod_exists(self, storage: Storage) -> None:
        storage.expect(["shop/p-tmp"], "shop/p", "uid-p")
        (fact,) = storage.facts()
        assert isinstance(fact, ClaimChanged) and fact.claim.problem.startswith(
            "waiting for ephemeral volume controller"
        )
        storage.claim_changed(claim("p-tmp"))
        (fact,) = storage.facts()
        assert isinstance(fact, ClaimChanged) and fact.claim.problem.endswith("(pod is not owner)")
        storage.pod_gone(["shop/p-tmp"], "another")
        assert storage.facts() == []
        storage.pod_gone(["shop/p-tmp"], "uid-p")
        assert storage.facts() == [ClaimChanged(Claim("shop/p-tmp", NOWHERE, bound=False))]

    def test_many_local_volumes_are_one_term(self) -> None:
        volumes = [volume(f"disk-{number}", f"n{number}") for number in range(3)]
        assert nodes_of_volumes(volumes) == on("n0", "n1", "n2")

    def test_whoever_waits_for_a_claim_looks_at_every_change(self, storage: Storage) -> None:
        seen: list[str] = []
        storage.look = seen.append
        storage.claim_changed(claim("data"))
        storage.volume_changed(volume("disk-1", "n1", for_claim="data"))
        storage.claim_deleted("shop/data")
        assert seen == ["shop/data"] * 3


class TestChoosing:
    def test_the_smallest_volume_of_the_node_is_chosen_and_kept(self, storage: Storage) -> None:
        storage.claim_changed(claim("one"))
        storage.claim_changed(claim("other"))
        for name, size in (("large", "9Gi"), ("small", "2Gi")):
            storage.volume_changed(volume(name, "n1", size=size))
        (chosen,) = storage.choose(["shop/one"], node("n1")) or []
        assert chosen.volume is not None and chosen.volume.name == "small"
        (chosen,) = storage.choose(["shop/other"], node("n1")) or []
        assert chosen.volume is not None and chosen.volume.name == "large"
        storage.give_back(["shop/one"])
        (chosen,) = storage.choose(["shop/one"], node("n1")) or []
        assert chosen.volume is not None and chosen.volume.name == "small"

    def test_where_no_volume_is_left_is_refused_until_one_may_be_there(self, storage: Storage) -> None:
        for name in ("one", "other"):
            storage.claim_changed(claim(name))
        storage.volume_changed(volume("disk-1", "n1"))
        storage.facts()
        assert storage.choose(["shop/one", "shop/other"], node("n1")) is None
        assert selector_of(storage.facts()) == on("n1") & Selector.all_of(Requirement.not_in(NODE_NAME, "n1"))
        storage.volume_changed(volume("disk-2", "n1"))
        assert selector_of(storage.facts()) == on("n1")
        assert len(storage.choose(["shop/one", "shop/other"], node("n1")) or ()) == 2

    def test_two_pods_of_one_claim_choose_the_same_volume_and_it_is_written_once(self, storage: Storage) -> None:
        storage.claim_changed(claim("data"))
        storage.volume_changed(volume("disk-1", "n1"))
        assert len(storage.choose(["shop/data"], node("n1")) or ()) == 1
        assert storage.choose(["shop/data"], node("n1")) == []
        assert storage.choose(["shop/data"], node("n2")) is None

    @pytest.mark.parametrize(
        ("known", "where", "expected"),
        [
            pytest.param(claim("data", class_name="disk"), "n1", 1, id="it asks for a new volume"),
            pytest.param(claim("data", class_name="disk", selected="n1"), "n1", 0, id="it was asked for"),
            pytest.param(claim("data", class_name="disk", selected="n2"), "n1", None, id="somewhere else"),
            pytest.param(claim("data", class_name="unknown"), "n1", None, id="by a class that is gone"),
            pytest.param(claim("data", volume="disk-1"), "n1", 0, id="it is bound"),
            pytest.param(None, "n1", None, id="it is gone"),
        ],
    )
    def test_what_is_written_for_a_claim(
        self, storage: Storage, known: VolumeClaim | None, where: str, expected: int | None
    ) -> None:
        storage.volume_changed(volume("disk-1", "n1", for_claim="data" if known is not None and known.volume else "x"))
        if known is not None:
            storage.claim_changed(known)
        found = storage.choose(["shop/data"], node(where))
        assert (None if found is None else len(found)) == expected


class TestProgress:
    def progress(self, storage: Storage) -> bool | str:
        found = storage.progress(["shop/data"], node("n1"))
        return found.failure or found.is_bound

    def test_a_volume_is_created_for_the_node(self, storage: Storage) -> None:
        storage.claim_changed(claim("data", selected="n1", class_name="disk"))
        assert self.progress(storage) is False
        storage.claim_changed(claim("data", 2, selected="n1", volume="disk-1", class_name="disk"))
        assert self.progress(storage) is False, "the volume is not known yet"
        storage.volume_changed(volume("disk-1", "n1", for_claim="data"))
        assert self.progress(storage) is True

    def test_a_volume_is_given(self, storage: Storage) -> None:
        storage.claim_changed(claim("data"))
        storage.volume_changed(volume("disk-1", "n1"))
        storage.choose(["shop/data"], node("n1"))
        assert self.progress(storage) is False
        storage.volume_written(volume("disk-1", "n1", 2, for_claim="data"))
        assert self.progress(storage) is False
        storage.volume_changed(volume("disk-1", "n1", 3))
        assert self.progress(storage) == 'provisioning failed for PVC "data"', "the claim lost it again"

    @pytest.mark.parametrize(
        ("known", "failure"),
        [
            (None, 'persistentvolumeclaim "data" not found'),
            (claim("data", 2, class_name="disk"), 'provisioning failed for PVC "data"'),
            (claim("data", 2, class_name="disk", selected="n2"), 'provisioning failed for PVC "data"'),
            (claim("data", 2, volume="away"), 'pv "away" node affinity doesn\'t match node "n1"'),
        ],
    )
    def test_it_cannot_succeed_any_more(self, storage: Storage, known: VolumeClaim | None, failure: str) -> None:
        storage.volume_changed(volume("away", "n2", for_claim="data"))
        storage.claim_changed(claim("data", selected="n1", class_name="disk"))
        if known is None:
            storage.claim_deleted("shop/data")
        else:
            storage.claim_changed(known)
        if known is not None and not known.volume:
            storage.volume_deleted("away")
        assert self.progress(storage) == failure

    def test_what_was_written_is_known_at_once_unless_the_object_is_gone(self, storage: Storage) -> None:
        storage.claim_written(claim("data", selected="n1", class_name="disk"))
        storage.volume_written(volume("disk-1", "n1"))
        assert storage.facts() == []
        storage.claim_changed(claim("data", class_name="disk"))
        storage.claim_written(claim("data", 2, selected="n1", class_name="disk"))
        assert self.progress(storage) is False


class TestLimits:
    def test_a_node_gets_its_limits_whichever_is_known_first(self) -> None:
        storage, first = Storage(), node("n1")
        assert storage.with_limits(first) is first
        storage.limits_changed("n1", limits_of(made.csi_node("n1", {"b": 2, "a": 0, "none": None})))
        limited = storage.with_limits(first)
        assert limited.volumes == (("a", 0), ("b", 2))
        assert storage.with_limits(first) is limited, "so that heartbeats change nothing"
        assert storage.as_read(limited) is first
        storage.limits_changed("n1", ())
        assert storage.with_limits(first) is first
