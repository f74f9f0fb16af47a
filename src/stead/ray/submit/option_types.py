"""The types of what you write in `stead.remote`, `stead.init` and `stead.placement_group`, for type checkers.

Rule: types only. The values are checked where they are compiled (`compile.py`, `placement_groups.py`); a test compares
these keys with the options that the installed Ray knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict

import ray
from ray.job_config import JobConfig
from ray.runtime_env import RuntimeEnv
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy as RayNodeAffinity,
)
from ray.util.scheduling_strategies import (
    NodeLabelSchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from stead.language.asks import PolicyName
from stead.language.labels import Selector
from stead.language.strategies import (
    ActorAffinitySchedulingStrategy,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NotIn,
)

TolerationMap: TypeAlias = Mapping[str, In | NotIn | Exists]
"""The taints that work tolerates, by key: ``{"gpu_node": Exists(), "gpu_type": In("A100")}``."""

SchedulingStrategy: TypeAlias = (
    str
    | Selector
    | NodeAffinitySchedulingStrategy
    | ActorAffinitySchedulingStrategy
    | RayNodeAffinity
    | NodeLabelSchedulingStrategy
    | PlacementGroupSchedulingStrategy
)
"""A strategy of stead's, a selector, or a strategy of Ray's."""


class LabelFallback(TypedDict):
    """Another label selector, tried when the ones before it match no node: ``{"label_selector": {"zone": "b"}}``.

    Attributes:
        label_selector: What the node's labels must be, as in Ray; None is any node.
    """

    label_selector: Mapping[str, str] | None


class GroupFallback(TypedDict, total=False):
    """Another form of a placement group, tried when the ones before it do not fit now.

    Attributes:
        bundles: Other bundles; without this key, the bundles of the group.
        bundle_label_selector: One selector for each bundle; without this key, any node.
    """

    bundles: list[dict[str, float]]
    bundle_label_selector: list[dict[str, str]] | None


class RemoteOptions(TypedDict, total=False):
    """The options of `stead.remote` and of ``.options``: stead's own, then every option of ``ray.remote``.

    Attributes:
        tolerations: The taints that the work tolerates, by key.
        deadline_s: Seconds after which work that has not started is ended; `stead.get` then raises `Unplaced`.
        labels: Labels of the work itself, which other work can refer to.
        spread: For each label key, the greatest difference between the numbers of equal work at two of its values.
        exclusive: Whether the work needs a node for itself.
        max_per_node: For each name of your choice, how many pieces of work with that name one node may run.
        policy: How to choose among the nodes that remain, for example ``"pack"`` or ``"flow"``.
        priority: Work of a higher priority is placed first; without one, it is 0.
        preemptible: Whether the work may be evicted for work of a higher priority. It must be able to restart.
        scheduling_strategy: A strategy, a selector such as ``"gpu_type in [A100]"``, or a list that must all hold.
        label_selector: What the node's labels must be, as in Ray.
        fallback_strategy: Other label selectors, tried in order.
    """

    tolerations: TolerationMap | None
    deadline_s: float | None
    labels: Mapping[str, str] | None
    spread: Mapping[str, int] | None
    exclusive: bool | None
    max_per_node: Mapping[str, int] | None
    policy: str | PolicyName | None
    priority: int | None
    preemptible: bool | None
    scheduling_strategy: SchedulingStrategy | Sequence[SchedulingStrategy] | None
    label_selector: Mapping[str, str] | None
    fallback_strategy: Sequence[LabelFallback] | None

    accelerator_type: str | None
    allow_out_of_order_execution: bool | None
    concurrency_groups: dict[str, int] | list[dict[str, object]] | None
    enable_task_events: bool
    enable_tensor_transport: bool | None
    get_if_exists: bool
    lifetime: str | None
    max_calls: int | None
    max_concurrency: int | None
    max_pending_calls: int | None
    max_restarts: int | None
    max_retries: int | None
    max_task_retries: int | None
    memory: float | None
    name: str | None
    namespace: str | None
    num_cpus: float | None
    num_gpus: float | None
    num_returns: int | str | None
    object_store_memory: int | None
    placement_group: PlacementGroup | str | None
    placement_group_bundle_index: int
    placement_group_capture_child_tasks: bool | None
    resources: dict[str, float] | None
    retry_exceptions: bool | list[type[BaseException]] | tuple[type[BaseException], ...]
    runtime_env: RuntimeEnv | Mapping[str, object] | None


class InitOptions(TypedDict, total=False):
    """The options that `stead.init` passes to ``ray.init``, under Ray's names."""

    cgroup_path: str | None
    configure_logging: bool
    dashboard_host: str
    dashboard_port: int | None
    enable_resource_isolation: bool
    ignore_reinit_error: bool
    include_dashboard: bool | None
    job_config: JobConfig | None
    labels: dict[str, str] | None
    local_mode: bool
    log_to_driver: bool | None
    logging_config: ray.LoggingConfig | None
    logging_format: str | None
    logging_level: int | str
    namespace: str | None
    num_cpus: int | None
    num_gpus: int | None
    object_store_memory: int | None
    proxy_server_url: str | None
    resources: dict[str, float] | None
    runtime_env: RuntimeEnv | Mapping[str, object] | None
    system_reserved_cpu: float | None
    system_reserved_memory: int | None
