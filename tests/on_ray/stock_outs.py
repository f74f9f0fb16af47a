"""A provider for Ray's autoscaler in tests: like Ray's own, which starts raylets on this machine, but with a stock.

Rule: it has no nodes of a type while a file of this name is in its folder `out_of_stock`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.tags import TAG_RAY_USER_NODE_TYPE

SOLD_OUT = "there are no more nodes of this type in the zone"


class StockedProvider(FakeMultiNodeProvider):  # type: ignore[misc]  # Ray has no types for it
    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> None:
        if (Path(self.provider_config["out_of_stock"]) / tags[TAG_RAY_USER_NODE_TYPE]).exists():
            raise RuntimeError(SOLD_OUT)
        super().create_node_with_resources_and_labels(node_config, tags, count, resources, labels)
