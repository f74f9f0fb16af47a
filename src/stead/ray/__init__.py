"""Stead on Ray: carries out the engine's decisions on a stock Ray cluster.

Rule: this module defines everything that Ray loads by its path. ``RAY_RUNTIME_ENV_HOOK=stead.ray.hook`` binds every
driver that starts with it; `install_in_worker` binds every worker. Importing this package does not import Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stead.ray.local.local_cluster import LocalCluster, LocalNode, NodeOptions, NodeSpec, local_cluster

__all__ = ["LocalCluster", "LocalNode", "NodeOptions", "NodeSpec", "hook", "install_in_worker", "local_cluster"]

_LOCAL = frozenset(__all__) - {"hook", "install_in_worker"}


def hook(runtime_env: Mapping[str, object] | None) -> dict[str, object]:
    """Let stead place what a driver and its workers submit. Ray calls this; you only name it in the environment.

    Args:
        runtime_env: The runtime environment of the job, as Ray read it.

    Returns:
        The same with stead's setup of the workers. If stead cannot patch this Ray, it logs why and changes nothing.

    Example:
        ```sh
        RAY_RUNTIME_ENV_HOOK=stead.ray.hook python program.py
        ```
    """
    from stead.ray.submit.hooks import bind_job

    return bind_job(runtime_env)


def install_in_worker() -> None:
    """Let stead place what a worker submits. `hook` names it as Ray's worker setup; it never raises.

    Example:
        ```python
        ray.init(runtime_env={"worker_process_setup_hook": "stead.ray.install_in_worker"})
        ```
    """
    from stead.ray.submit.workers import install_in_worker as install

    install()


def __getattr__(name: str) -> object:
    if name in _LOCAL:
        from stead.ray.local import local_cluster as local

        return getattr(local, name)
    raise AttributeError(f"module 'stead.ray' has no attribute {name!r}")
