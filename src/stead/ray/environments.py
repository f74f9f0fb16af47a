"""Runtime environments near their work: nodes that have built one are labelled, and work that wants it prefers them.

Rule: opting in is one key in the runtime env, which Ray never sees. In its place goes a variable that names the
environment by its digest; by it every worker that was started in the environment can tell on which node it exists.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from stead.asks import Preference
from stead.errors import Invalid
from stead.labelling import Requirement, Selector

FLAG = "use_node_labels_to_acceleration"
VARIABLE = "STEAD_RUNTIME_ENV"
LABEL = "exist_runtime_env/"
"""Before the digest: the key of the label of a node that holds the environment."""

LABELS_MAX = 64
"""So many environments are remembered for a node; the nodes themselves delete old ones too."""


def opted(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """A runtime env for Ray: without the flag, and, if it was set, with the variable."""
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
    """The digest of the environment that work will run in: its own, or else that of whoever submits it."""
    if isinstance(runtime_env, Mapping) and runtime_env:
        return str((runtime_env.get("env_vars") or {}).get(VARIABLE, ""))
    return os.environ.get(VARIABLE, "")


def preferring(digest: str) -> Preference:
    return Preference(Selector.all_of(Requirement.is_in(f"{LABEL}{digest}", "true")))
