"""Real clusters for tests: one per module, in a private directory, with a private HOME.

`cluster_of(nodes, ...)` starts a local cluster that ends with the module; the same arguments return the same cluster.
`connected(cluster)` connects this process to it for a block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray")

from stead.ray.local.local_cluster import LocalCluster  # noqa: E402
from tests.on_ray.waiting import ClusterOf, Connected  # noqa: E402

__all__ = ["ClusterOf", "Connected"]

QUICK_TO_NOTICE = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""A killed node is known to be dead after 2 s instead of 12 s."""

RAYS_OWN_WARNINGS = [
    "ignore::DeprecationWarning:ray",
    "ignore::FutureWarning:ray",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for warning in RAYS_OWN_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="module", autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing of the user's, such as Ray's token, is read or written."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        for name in [name for name in os.environ if name.startswith(("RAY_", "__RAY_", "STEAD_"))]:
            patch.delenv(name)
        yield home


@pytest.fixture(scope="module")
def cluster_of(private_home: Path) -> Iterator[ClusterOf]:
    """Starts local clusters, `cluster_of([dict(num_cpus=1), ...], hooked=False)`, and ends them with the module."""
    started: dict[str, LocalCluster] = {}

    def start(nodes: list[dict[str, Any]], *rest: Any, **options: Any) -> LocalCluster:
        environment = {**QUICK_TO_NOTICE, **options.pop("environment", {})}
        name = repr((nodes, rest, options, environment))
        if name not in started:
            started[name] = LocalCluster(nodes, *rest, environment=environment, **options)
        return started[name]

    yield start
    for cluster in started.values():
        cluster.close()


@pytest.fixture(scope="session")
def connected() -> Connected:
    """Connects this process for a block: ``with connected(cluster):``; returns the real `ray` module."""

    @contextmanager
    def connect(cluster: LocalCluster, namespace: str = "tests", **options: Any) -> Iterator[Any]:
        ray.init(address=cluster.address, namespace=namespace, log_to_driver=False, logging_level="error", **options)
        try:
            yield ray
        finally:
            ray.shutdown()

    return connect
