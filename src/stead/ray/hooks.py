"""Binding without a change of code: a job through its runtime env, a worker through its setup.

Rule: stead adds itself and takes nothing away. A runtime-env hook or a worker setup hook of the user's own still runs,
after stead's; and a worker on which stead is not installed starts all the same, unbound.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from stead.ray.environments import VARIABLE, opted

CHAINED_HOOK = "STEAD_RUNTIME_ENV_HOOK"
"""The user's own runtime-env hook (Ray has one variable for it, and it holds stead's)."""

CHAINED_SETUP = "STEAD_CHAINED_SETUP_HOOK"
"""The user's own worker setup hook, where the raylet's environment holds stead's."""

SETUP = "worker_process_setup_hook"
SETUP_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
BIND = "STEAD_BIND"
"""How workers are bound: ``always``, or ``asked`` (where stead is asked, and everywhere once a taint was set)."""

log = logging.getLogger(__name__)


def bind_job(runtime_env: Any, always: bool = True) -> dict[str, Any]:
    """Bind this driver, and return its runtime env with the workers bound too."""
    chained = os.environ.get(CHAINED_HOOK)
    if chained:
        runtime_env = named(chained)(runtime_env)
    try:
        from stead.ray.submission import install

        install(always)
    except Exception as error:
        # A cluster-wide hook must not keep anybody's program from running.
        log.warning("stead does not bind this program: %s", error)
        return dict(runtime_env or {})
    return with_setup(runtime_env, always)


def with_setup(runtime_env: Any, always: bool) -> dict[str, Any]:
    env = opted(runtime_env or {})
    variables = dict(env.get("env_vars") or {})
    if VARIABLE in variables:
        os.environ[VARIABLE] = variables[VARIABLE]  # what this driver submits runs there too
    if SETUP_VARIABLE in variables:  # inherited from a job's supervisor, which was bound itself
        return env
    env[SETUP] = _setup(env.get(SETUP))
    env["env_vars"] = {**variables, BIND: "always" if always else "asked"}
    return env


def _setup(own: str | Callable[[], Any] | None) -> Callable[[], None]:
    """A worker's setup: stead's, then the user's own."""

    def setup_stead() -> None:
        try:
            from stead.ray import install_in_worker
        except ImportError:
            pass  # a node without stead: its workers go on unbound
        else:
            install_in_worker()
        if isinstance(own, str):
            import importlib

            module, _, name = own.rpartition(".")
            getattr(importlib.import_module(module), name)()
        elif own is not None:
            own()

    # As if it were of the main program: such functions are sent whole, so that a worker without stead can load it.
    setup_stead.__module__ = "__main__"
    setup_stead.__qualname__ = "setup_stead"
    return setup_stead


def run_chained() -> None:
    """The setup hook that the user had put into the raylet's environment."""
    chained = os.environ.get(CHAINED_SETUP)
    if chained:
        named(chained)()


def named(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
