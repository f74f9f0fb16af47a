"""The watches of storage: claims, volumes, classes, and the limits of nodes.

Rule: an object that cannot be read is logged, and then counts as one that does not exist.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from stead.errors import Invalid
from stead.kubernetes.api.http import ApiClient
from stead.kubernetes.api.watching import Changed, Outages, Relisted, Watched
from stead.kubernetes.api_objects import ANYTHING, EventKind
from stead.kubernetes.claims import class_of, key_of, limits_of, volume_claim_of, volume_of
from stead.kubernetes.cluster import KubeCluster
from stead.kubernetes.fields import Fields, fields_in, text_in

T = TypeVar("T")

LOG = logging.getLogger("stead.kubernetes")

CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
CLASSES, CSI_NODES = "/apis/storage.k8s.io/v1/storageclasses", "/apis/storage.k8s.io/v1/csinodes"


def storage_watches(
    client: ApiClient, cluster: KubeCluster, changed: Callable[[], None], outages: Outages
) -> list[Watched[Any]]:
    """They report to `cluster`, and call `changed` after every event."""
    storage = cluster.storage

    def watched(
        path: str, read: Callable[[Fields], T], one: Callable[[T], None], gone: Callable[[str], None],
        every: Callable[[Iterable[T]], None],
    ) -> Watched[Fields]:  # fmt: skip
        def arrived(news: Changed[Fields] | Relisted[Fields]) -> None:
            if isinstance(news, Relisted):
                every([found for each in news.items if (found := _read(read, each)) is not None])
            else:
                found = None if news.kind == EventKind.DELETED else _read(read, news.object)
                if found is None:
                    gone(_name_of(news.object))
                else:
                    one(found)
            changed()

        return Watched(client, path, decode_fields, decode_page_of_fields, arrived, outages=outages)

    return [
        watched(CLASSES, class_of, storage.class_changed, storage.class_deleted, storage.all_classes),
        watched(VOLUMES, volume_of, storage.volume_changed, storage.volume_deleted, storage.all_volumes),
        watched(CLAIMS, volume_claim_of, storage.claim_changed, storage.claim_deleted, storage.all_claims),
        watched(
            CSI_NODES,
            lambda found: (_name_of(found), limits_of(found)),
            lambda found: cluster.limits_changed(*found),
            lambda name: cluster.limits_changed(name, ()),
            cluster.all_limits,
        ),
    ]


def decode_fields(line: bytes) -> tuple[str, Fields, str]:
    """A line of a watch: the kind of event, the object and its version."""
    event = ANYTHING.decode(line)
    return event["type"], event["object"], event["object"].get("metadata", {}).get("resourceVersion", "")


def decode_page_of_fields(body: bytes) -> tuple[list[Fields], str, str]:
    """A page of a list: the objects, the version and the token of the next page."""
    page = ANYTHING.decode(body)
    metadata = page.get("metadata") or {}
    return page.get("items") or [], metadata.get("resourceVersion", ""), metadata.get("continue", "")


def _read(read: Callable[[Fields], T], found: Fields) -> T | None:
    try:
        return read(found)
    except Invalid as error:
        LOG.warning("an object of storage is not used: %s", error, extra={"object": _name_of(found)})
        return None


def _name_of(found: Fields) -> str:
    """``namespace/name``, or the name of an object without a namespace."""
    return key_of(found) if found["metadata"].get("namespace") else text_in(fields_in(found, "metadata"), "name")
