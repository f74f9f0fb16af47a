"""Runs work where its runtime environment is already built: such nodes get a label, and the work prefers them.

Rule: you opt in with one key in the runtime env, which Ray never sees. It is replaced by an environment variable with
the environment's digest. Each worker in that environment reads it, and reports that its node has the environment.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from stead.errors import Invalid
from stead.language.asks import Preference
from stead.language.labels import Requirement, Selector

FLAG = "use_node_labels_to_acceleration"
VARIABLE = "STEAD_RUNTIME_ENV"
LABEL = "exist_runtime_env/"
"""Prefix of the label of a node that has the environment; the digest follows."""

LABELS_MAX = 64
"""Maximum number of environments remembered per node. Nodes delete old environments too."""


def opted(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """The runtime env for Ray: without the flag, and with the variable if the flag was set."""
    env = dict(runtime_env)
    flag = env.pop(FLAG, False)
    if not isinstance(flag, bool):
        raise Invalid(f"runtime_env has {FLAG}={flag!r}, which must be True or False")
    if flag:
        written = json.dumps(env, sort_keys=True, default=repr)
        digest = hashlib.sha256(written.encode()).hexdigest()[:16]
        env["env_vars"] = {**(env.get("env_vars") or {}), VARIABLE: digest}
    return env


def digest_in(runtime_env: Any) -> str:
    """The digest of the environment that work will run in: its own, or else the submitting process's."""
    if isinstance(runtime_env, Mapping) and runtime_env:
        return str((runtime_env.get("env_vars") or {}).get(VARIABLE, ""))
    return os.environ.get(VARIABLE, "")


def preferring(digest: str) -> Preference:
    return Preference(Selector.all_of(Requirement.is_in(f"{LABEL}{digest}", "true")))
