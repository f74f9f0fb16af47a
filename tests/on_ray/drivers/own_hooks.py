"""A user's own hooks, as modules name them."""

from __future__ import annotations

import os
from typing import Any


def set_up_worker() -> None:
    os.environ["OWN_SETUP"] = "ran"


def change_runtime_env(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    env = dict(runtime_env or {})
    return {**env, "env_vars": {**env.get("env_vars", {}), "OWN_HOOK": "ran"}}
