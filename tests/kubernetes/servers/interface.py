"""What the tests may ask of an API server, be it the real one or the fake.

Rule: a test that uses nothing else runs against both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class ApiServer(Protocol):
    """An API server on this machine's loopback address."""

    @property
    def url(self) -> str: ...

    @property
    def token(self) -> str:
        """The admin's."""

    @property
    def tokens(self) -> Mapping[str, str]:
        """Each user's."""

    @property
    def ca_file(self) -> Path | None:
        """None where the server speaks plain HTTP."""

    @property
    def kubeconfig_path(self) -> Path:
        """One context per user; the current one is the admin's."""

    def stop_apiserver(self) -> None:
        """It ends and keeps its objects. Clients cannot connect until it starts again."""

    def kill_apiserver(self) -> None:
        """The same, abruptly: it does not close its connections first."""

    def start_apiserver(self) -> None:
        """On the same port and with the same objects; it is ready when this returns."""

    def compact(self) -> None:
        """Every resourceVersion before the current one, and every `continue` token, now answers 410 Expired."""
