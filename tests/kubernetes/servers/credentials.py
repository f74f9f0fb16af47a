"""Who may call an API server of the tests: users, their bearer tokens, and a kubeconfig with one context for each.

Rule: the user `admin` always exists and is in the group `system:masters`, which may do everything.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

ADMIN = "admin"
MASTERS = "system:masters"


class Credentials:
    """Users with their groups, and a random token for each."""

    def __init__(self, users: Mapping[str, Sequence[str]] | None = None) -> None:
        self.groups: dict[str, tuple[str, ...]] = {ADMIN: (MASTERS,)}
        self.groups |= {user: tuple(groups) for user, groups in (users or {}).items()}
        self.tokens = {user: secrets.token_urlsafe(24) for user in self.groups}

    def user_of(self, token: str) -> str | None:
        return next((user for user, own in self.tokens.items() if own == token), None)

    def write_token_file(self, path: Path) -> None:
        """The format of kube-apiserver's --token-auth-file: token, user, uid and groups, separated by commas."""
        lines = [f'{self.tokens[user]},{user},{user},"{",".join(groups)}"' for user, groups in self.groups.items()]
        _write_privately(path, "\n".join(lines) + "\n")

    def write_kubeconfig(self, path: Path, url: str, ca_file: Path | None) -> None:
        """One context per user, named like the user; the current context is the admin's."""
        cluster: dict[str, object] = {"server": url}
        if ca_file:
            cluster["certificate-authority"] = str(ca_file)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}} for user, token in self.tokens.items()],
            "contexts": [{"name": user, "context": {"cluster": "test", "user": user}} for user in self.tokens],
            "current-context": ADMIN,
        }
        _write_privately(path, yaml.safe_dump(config, sort_keys=False))


def _write_privately(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
