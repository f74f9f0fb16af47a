"""stead says about volumes what kube-scheduler's plugins say: random clusters, and every answer compared.

Rule: the plugins are implemented again in `kube_volumes`, one node at a time. Set STEAD_SOAK=1 for fifty times as many
examples.
"""

from __future__ import annotations

import json
import os
from random import Random
from typing import Any

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskRunning, NodeJoined
from stead.kubernetes.claims import class_of, limits_of, volume_claim_of, volume_of
from stead.kubernetes.nodes import node_of
from stead.kubernetes.storage import Storage
from stead.kubernetes.templates import Pod, Templates
from stead.kubernetes.wording import fit_error
from tests.kubernetes import objects
from tests.kubernetes.kube_volumes import Object, StorageWorld, find_volume, message, refusals
from tests.kubernetes.storage_objects import BIND_COMPLETED, NO_PROVISIONER, SELECTED_NODE, claim, csi_node, volume

SEEDS = 20 if os.environ.get("STEAD_SOAK") != "1" else 4000
ROUNDS = 30
ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
NODES, CLAIMS = ("n0", "n1", "n2", "n3"), ("c0", "c1", "c2", "p-v0")
DRIVERS = ("one.csi", "two.csi")


def made_node(random: Random, name: str) -> Object:
    labels = {ZONE: random.choice("ab"), OLD_ZONE: random.choice("ab"), REGION: "r"}
    kept = random.choice([[ZONE], [ZONE, REGION], [OLD_ZONE], [ZONE, OLD_ZONE], []])
    return objects.node(name, labels={key: labels[key] for key in kept})


def made_class(random: Random, name: str, provisioner: str, mode: str = "WaitForFirstConsumer") -> Object:
    found: dict[str, Any] = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode}
    terms = [{"matchLabelExpressions": [{"key": ZONE, "values": [random.choice("ab")]}]} for _ in range(2)]
    found["allowedTopologies"] = random.choice([[], [], terms, terms[:1], [{}]])
    return found


def made_claim(random: Random, name: str, uid: str) -> Object:
    found = claim(
        name,
        random.choice(["disk", "local", "local", "disk", "at-once", "unknown", ""]),
        f"{random.randint(1, 3)}Gi",
        [random.choice(["ReadWriteOnce", "ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"])],
    )
    found["metadata"] |= {"namespace": "default", "uid": uid, "resourceVersion": "1", "annotations": {}}
    if name == "p-v0" and random.random() < 0.8:
        owner = random.choice(["uid-p", "uid-p", "uid-q"])
        found["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "p", "uid": owner, "controller": True}]
    if random.random() < 0.5:
        found["spec"]["volumeName"] = random.choice(["v0", "v1", "v2", "gone"])
        found["metadata"]["annotations"] |= {BIND_COMPLETED: "yes"} if random.random() < 0.9 else {}
    elif random.random() < 0.3:
        found["metadata"]["annotations"][SELECTED_NODE] = random.choice(NODES)
    if random.random() < 0.2:
        found["spec"]["selector"] = {"matchLabels": {"disk": "ssd"}}
    if random.random() < 0.1:
        found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if random.random() < 0.1 and "volumeName" in found["spec"]:
        found["status"] = {"phase": "Lost"}
    return found


def made_volume(random: Random, name: str, uids: dict[str, str]) -> Object:
    key = random.choice([ZONE, objects.HOSTNAME])
    values = random.sample(["a", "b"] if key == ZONE else NODES, random.choice([0, 1, 1, 2]))
    found = volume(name, random.choice(["disk", "local", "local"]), key, *values, size=f"{random.randint(1, 3)}Gi")
    found["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": "1"}
    found["spec"]["accessModes"] = random.choice([["ReadWriteOnce"], ["ReadWriteOnce", "ReadWriteMany"]])
    found["spec"]["csi"]["driver"] = random.choice(DRIVERS)
    if random.random() < 0.3:
        found["metadata"]["labels"] = {random.choice([ZONE, OLD_ZONE]): random.choice(["a", "b", "a__b"])}
    if random.random() < 0.3:
        found["metadata"]["labels"] |= {"disk": "ssd"}
    found["status"] = {"phase": random.choice(["Available", "Available", "Available", "Released"])}
    if name == "v3" and random.random() < 0.5:  # only one: no claim has two volumes
        meant = random.choice(CLAIMS)
        uid = random.choice([uids[meant], "old"])
        found["spec"]["claimRef"] = {"namespace": "default", "name": meant, "uid": uid}
    return found


def made_pod(random: Random, name: str, claims: int) -> Object:
    volumes: list[Object] = []
    for number in range(random.randint(1, claims)):
        used = {"persistentVolumeClaim": {"claimName": random.choice(CLAIMS[:3])}}
        volumes.append({"name": f"v{number}", **used})
    if name == "p" and random.random() < 0.3:
        volumes[0] = {"name": "v0", "ephemeral": {"volumeClaimTemplate": {}}}
    found = objects.pod(name, volumes=volumes)
    found["metadata"]["uid"] = f"uid-{name}"
    return found


class Both:
    """One cluster for the plugins, and for stead, which is told of changes."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.nodes = [made_node(random, name) for name in NODES]
        self.world = StorageWorld()
        self.uids = {name: f"uid-{name}" for name in CLAIMS}
        self.storage, self.engine, self.templates = Storage(), Engine(), Templates()
        for number in range(2):
            self.run(f"placed-{number}")
        for each in ("disk", "local", "at-once"):
            self.change_class(each)
        for name in CLAIMS:
            self.change_claim(name)
        for name in ("v0", "v1", "v2", "v3"):
            self.change_volume(name)
        for name in NODES:
            self.change_limits(name)

    def run(self, name: str) -> None:
        placed, where = made_pod(self.random, name, 2), self.random.choice(NODES)
        self.world.placed = [each for each in self.world.placed if each[0]["metadata"]["name"] != name]
        self.world.placed.append((placed, where))
        self.join()
        ask = self.read(placed).ask
        assert ask is not None
        self.engine.apply(AskEnded(ask.id), AskRunning(ask, where))

    def join(self) -> None:
        for each in self.nodes:
            self.engine.apply(NodeJoined(self.storage.with_limits(node_of(each))))

    def read(self, pod: Object) -> Pod:
        return self.templates.decode_pod(json.dumps(pod).encode())

    def change_class(self, name: str) -> None:
        provisioner = NO_PROVISIONER if name == "local" else DRIVERS[0]
        found = made_class(self.random, name, provisioner, "Immediate" if name == "at-once" else "WaitForFirstConsumer")
        _replace(self.world.classes, found)
        self.storage.class_changed(class_of(found))

    def change_claim(self, name: str) -> None:
        if self.random.random() < 0.1:
            _remove(self.world.claims, name)
            self.storage.claim_deleted(f"default/{name}")
            return
        found = made_claim(self.random, name, self.uids[name])
        _replace(self.world.claims, found)
        self.storage.claim_changed(volume_claim_of(found))

    def change_volume(self, name: str) -> None:
        if self.random.random() < 0.1:
            _remove(self.world.volumes, name)
            self.storage.volume_deleted(name)
            return
        found = made_volume(self.random, name, self.uids)
        _replace(self.world.volumes, found)
        self.storage.volume_changed(volume_of(found))

    def change_limits(self, name: str) -> None:
        limits = {driver: self.random.choice([0, 1, 2, 3, None]) for driver in DRIVERS}
        found = csi_node(name, limits)
        _replace(self.world.csi_nodes, found)
        self.storage.limits_changed(name, limits_of(found))
        self.join()

    def change(self) -> None:
        random = self.random
        match random.randrange(5):
            case 0:
                self.change_class(random.choice(["disk", "local", "at-once"]))
            case 1:
                self.change_claim(random.choice(CLAIMS))
            case 2:
                self.change_volume(random.choice(["v0", "v1", "v2", "v3"]))
            case 3:
                self.change_limits(random.choice(NODES))
            case _:
                self.run(f"placed-{random.randrange(2)}")

    def check(self, wanted: Object) -> bool:
        """Compare the answers about a pod. Returns whether a node takes it."""
        pod = self.read(wanted)
        assert pod.ask is not None
        self.storage.expect(pod.claims[1], pod.key, pod.uid)
        self.engine.apply(*self.storage.facts())
        expected = message(self.world, wanted, self.nodes)
        candidates = self.after_choosing(pod)
        if expected is None:
            takes = [each["metadata"]["name"] for each in self.nodes if not refusals(self.world, wanted, each)]
            assert list(candidates) == takes
            for name in takes:
                self.check_choice(pod, name)
        else:
            assert not candidates
            assert fit_error(len(NODES), self.engine.refusals_by_plugin(pod.ask)) == expected
        self.storage.pod_gone(pod.claims[0], pod.uid)
        return bool(candidates)

    def after_choosing(self, pod: Pod) -> tuple[str, ...]:
        """The nodes that take a pod. The engine looks at each claim alone, so where two claims need one volume, a node
        is refused only after the volumes could not be chosen."""
        assert pod.ask is not None
        while True:
            found = self.engine.candidates(pod.ask)[0]
            for name in found:
                if self.storage.choose(pod.claims[0], self.engine.nodes[name]) is not None:
                    self.storage.give_back(pod.claims[0], is_new=False)
            facts = self.storage.facts()
            if not facts:
                return found
            self.engine.apply(*facts)

    def check_choice(self, pod: Pod, name: str) -> None:
        """On a node that takes the pod, the same volumes are chosen."""
        node = self.engine.nodes[name]
        chosen = self.storage.choose(pod.claims[0], node)
        assert chosen is not None
        taken: list[str] = []
        labels = next(each["metadata"]["labels"] for each in self.nodes if each["metadata"]["name"] == name)
        for each in chosen:
            found = self.world.claim(each.claim.id.partition("/")[2])
            assert found is not None
            expected = None if each.claim.selected_node else find_volume(self.world, found, labels, taken)
            assert (each.volume and each.volume.size) == (expected and volume_of(expected).size)
            taken += [each.volume.name] if each.volume else []
        self.storage.give_back(pod.claims[0], is_new=False)


def _remove(known: list[Object], name: str) -> None:
    known[:] = [each for each in known if each["metadata"]["name"] != name]


def _replace(known: list[Object], found: Object) -> None:
    _remove(known, found["metadata"]["name"])
    known.append(found)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_stead_says_what_the_plugins_say(seed: int) -> None:
    random = Random(seed)
    both, fitting = Both(random), 0
    for _ in range(ROUNDS):
        both.change()
        fitting += both.check(made_pod(random, "p", 2))
    assert 0 <= fitting <= ROUNDS
