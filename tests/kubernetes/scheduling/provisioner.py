"""What the controllers of storage would do: a provisioner, the controller that binds claims and
volumes, and the one that creates the claims of ephemeral volumes.

Rule: it does only what a test needs, on a thread, until the block ends. A claim that waits for its first pod gets a
volume in the zone of the node that the scheduler selected, and never before.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from tests.kubernetes.objects import MERGE, ZONE, ApiError, Kubectl, Object
from tests.kubernetes.servers.interface import ApiServer
from tests.kubernetes.storage_objects import (
    BIND_COMPLETED,
    NO_PROVISIONER,
    SELECTED_NODE,
    claim,
    claim_reference,
    volume,
)

POLL_SECONDS = 0.05


class Provisioner:
    """`failures` is how many times it gives up from now on: it removes the annotation instead of creating a volume.
    While `is_silent`, it does nothing. `selected` are the nodes that were asked for, by claim, in order."""

    def __init__(self, server: ApiServer, failures: int = 0, is_silent: bool = False) -> None:
        self.failures, self.is_silent = failures, is_silent
        self.selected: list[tuple[str, str]] = []
        self.created: list[str] = []
        self._kubectl = Kubectl(server)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="provisioner", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()
        self._kubectl.close()

    def _run(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            try:
                self._work()
            except ApiError as error:  # somebody deleted or changed an object meanwhile: look again
                if error.status not in (404, 409):
                    raise

    def _work(self) -> None:
        classes = {each["metadata"]["name"]: each for each in self._kubectl.list("StorageClass")}
        claims = self._kubectl.list("PersistentVolumeClaim")
        volumes = self._kubectl.list("PersistentVolume")
        self._create_ephemeral_claims({_key(each) for each in claims})
        for each in volumes:
            if each["status"].get("phase") == "Pending" and not each["spec"].get("claimRef"):
                self._set_phase("PersistentVolume", each, "Available")
        of_claim = {each["spec"]["claimRef"]["uid"]: each for each in volumes if each["spec"].get("claimRef")}
        for each in claims:
            node = each["metadata"].get("annotations", {}).get(SELECTED_NODE)
            known = (_key(each), node)
            if node and (not self.selected or known not in self.selected):
                self.selected.append(known)
            if each["spec"].get("volumeName"):
                continue
            if each["metadata"]["uid"] in of_claim:
                self._bind(each, of_claim[each["metadata"]["uid"]])
            elif (
                node
                and not self.is_silent
                and classes[each["spec"]["storageClassName"]]["provisioner"] != NO_PROVISIONER
            ):
                self._provision(each, node)

    def _provision(self, each: Object, node: str) -> None:
        if self.failures:
            self.failures -= 1
            change = {"metadata": {"annotations": {SELECTED_NODE: None}}}
            self._patch("PersistentVolumeClaim", each, change)
            return
        zone = self._kubectl.get("Node", node)["metadata"]["labels"].get(ZONE)
        metadata, name = each["metadata"], f"pvc-{each['metadata']['uid']}"
        created = volume(name, each["spec"]["storageClassName"], ZONE, *([zone] if zone else []))
        created["spec"]["accessModes"] = each["spec"]["accessModes"]
        created["spec"]["capacity"] = each["spec"]["resources"]["requests"]
        created["spec"]["claimRef"] = claim_reference(metadata["name"], metadata["namespace"], metadata["uid"])
        self._kubectl.create(created)
        self.created.append(_key(each))

    def _bind(self, each: Object, found: Object) -> None:
        """Both point at each other, and the claim says that this is complete."""
        change = {
            "metadata": {"annotations": {BIND_COMPLETED: "yes"}},
            "spec": {"volumeName": found["metadata"]["name"]},
        }
        self._patch("PersistentVolumeClaim", each, change)
        self._set_phase("PersistentVolumeClaim", each, "Bound")
        self._set_phase("PersistentVolume", found, "Bound")

    def _create_ephemeral_claims(self, known: set[str]) -> None:
        for pod in self._kubectl.list("Pod"):
            metadata = pod["metadata"]
            for each in pod["spec"].get("volumes") or ():
                name = f"{metadata['name']}-{each['name']}"
                if each.get("ephemeral") and f"{metadata['namespace']}/{name}" not in known and not self.is_silent:
                    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
                    created = claim(name, owner={**owner, "controller": True})
                    created["metadata"]["namespace"] = metadata["namespace"]
                    created["spec"] = each["ephemeral"]["volumeClaimTemplate"]["spec"]
                    self._kubectl.create(created)

    def _set_phase(self, kind: str, each: Object, phase: str) -> None:
        self._patch(kind, each, {"status": {"phase": phase}}, "status")

    def _patch(self, kind: str, each: Object, change: Object, subresource: str | None = None) -> None:
        metadata = each["metadata"]
        namespace = metadata.get("namespace", "default")
        self._kubectl.patch(kind, metadata["name"], change, namespace, content_type=MERGE, subresource=subresource)


def _key(each: Object) -> str:
    return f"{each['metadata']['namespace']}/{each['metadata']['name']}"
