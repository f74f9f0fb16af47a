"""Hooks that bind a job (runtime-env hook) and its workers (setup hook) without changes to the program.

Rule: stead adds its hooks and removes none. The user's own worker setup hook runs after stead's, and the user's own
runtime-env hook before it. A worker on a node without stead starts normally and is not bound.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from stead.ray.submit.environments import VARIABLE, opted

CHAINED_HOOK = "STEAD_RUNTIME_ENV_HOOK"
"""Names the user's own runtime-env hook, because Ray's variable holds stead's."""

CHAINED_SETUP = "STEAD_CHAINED_SETUP_HOOK"
"""Names the user's own worker setup hook, because the raylet's environment holds stead's."""

SETUP = "worker_process_setup_hook"
SETUP_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
BIND = "STEAD_BIND"
"""How workers are bound: ``always``, or ``asked`` (only work that uses stead, and all work once a taint was set)."""

log = logging.getLogger(__name__)


def bind_job(runtime_env: Any, always: bool = True) -> dict[str, Any]:
    """Bind this driver, and return its runtime env with the hook that binds its workers."""
    chained = os.environ.get(CHAINED_HOOK)
    if chained:
        runtime_env = named(chained)(runtime_env)
    try:
        from stead.ray.submit.core_worker import install

        install(always)
    except Exception as error:
        # An error in a cluster-wide hook must not stop the user's program.
        log.warning("stead cannot bind this program, so it runs without stead: %s", error)
        return dict(runtime_env or {})
    return with_setup(runtime_env, always)


def with_setup(runtime_env: Any, always: bool) -> dict[str, Any]:
    env = opted(runtime_env or {})
    variables = dict(env.get("env_vars") or {})
    if VARIABLE in variables:
        os.environ[VARIABLE] = variables[VARIABLE]  # work that this driver submits runs in it too
    if SETUP_VARIABLE in variables:  # inherited from the job's supervisor, which is bound
        return env
    env[SETUP] = _setup(env.get(SETUP))
    env["env_vars"] = {**variables, BIND: "always" if always else "asked"}
    return env


def _setup(own: str | Callable[[], Any] | None) -> Callable[[], None]:
    """A worker's setup hook: stead's, then the user's own."""

    def setup_stead() -> None:
        try:
            from stead.ray import install_in_worker
        except ImportError:
            pass  # stead is not installed on this node
        else:
            install_in_worker()
        if isinstance(own, str):
            import importlib

            module, _, name = own.rpartition(".")
            getattr(importlib.import_module(module), name)()
        elif own is not None:
            own()

    # Ray serialises functions of __main__ by value, so a worker without stead can load this one.
    setup_stead.__module__ = "__main__"
    setup_stead.__qualname__ = "setup_stead"
    return setup_stead


def run_chained() -> None:
    """Run the setup hook that the user had set in the raylet's environment."""
    chained = os.environ.get(CHAINED_SETUP)
    if chained:
        named(chained)()


def named(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
