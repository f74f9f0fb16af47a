"""Plain work of every kind, and what Ray reports that each piece holds. With "init", connected by `stead.init`."""

from __future__ import annotations

import json
import sys
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy


@ray.remote  # type: ignore[untyped-decorator]
def held() -> dict[str, float]:
    return dict(ray.get_runtime_context().get_assigned_resources())


@ray.remote  # type: ignore[untyped-decorator]
def nested() -> dict[str, float]:
    found: dict[str, float] = ray.get(held.options(num_cpus=0.5).remote())
    return found


class Holder:
    def held(self) -> dict[str, float]:
        return dict(ray.get_runtime_context().get_assigned_resources())


Keeper: Any = ray.remote(Holder)


def main(address: str, how: str) -> None:
    if how == "init":
        import stead

        stead.init(address, logging_level="error", log_to_driver=False)
    else:
        ray.init(address, logging_level="error", log_to_driver=False)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    group = placement_group([{"CPU": 1}])
    assert group.wait(60)
    inside = PlacementGroupSchedulingStrategy(group)
    keepers = [Keeper.remote() for _ in range(4)]
    found: dict[str, Any] = {
        "task": held.remote(),
        "spread task": held.options(scheduling_strategy="SPREAD").remote(),
        "soft task": held.options(scheduling_strategy=here).remote(),
        "task in a group": held.options(scheduling_strategy=inside).remote(),
        "nested task": nested.remote(),
        **{f"default actor {index}": keeper.held.remote() for index, keeper in enumerate(keepers)},
        "actor with a CPU": Keeper.options(num_cpus=0.5).remote().held.remote(),
    }
    said = {name: ray.get(ref, timeout=60) for name, ref in found.items()}
    said["group"] = placement_group_table(group)["bundles"][0]
    sys.stdout.write(json.dumps({"held": said, "cluster": ray.cluster_resources()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
