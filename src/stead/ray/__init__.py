"""Ray: the engine's decisions carried out on a stock Ray cluster.

Rule: what Ray must find by a path of its own is named here and nowhere else: ``RAY_RUNTIME_ENV_HOOK=stead.ray.hook``
binds every driver that starts with it, `install_in_worker` every worker. Importing this package does not import Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stead.ray.local import LocalCluster, local_cluster

__all__ = ["LocalCluster", "hook", "install_in_worker", "local_cluster"]


def hook(runtime_env: Any) -> Any:
    """For ``RAY_RUNTIME_ENV_HOOK``: bind this driver and the workers of its job."""
    from stead.ray.hooks import bind_job

    return bind_job(runtime_env)


def install_in_worker() -> None:
    """For Ray's worker setup: bind what the worker submits, and how long it goes on. Never raises."""
    from stead.ray.workers import install_in_worker as install

    install()


def __getattr__(name: str) -> Any:
    if name in ("LocalCluster", "local_cluster"):
        from stead.ray import local

        return getattr(local, name)
    raise AttributeError(f"module 'stead.ray' has no attribute {name!r}")
