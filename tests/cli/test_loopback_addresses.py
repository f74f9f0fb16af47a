"""Addresses of Ray clusters that listen on loopback only, as `stead up` starts them.

Rule: Ray itself is replaced by its list of clusters on this machine; no cluster runs here.
"""

from __future__ import annotations

import pytest
import ray._private.services

from stead.ray.api import _found

ON_LOOPBACK, PUBLIC = "127.0.0.1:6379", "192.0.2.2:6380"


@pytest.mark.parametrize(
    ("given", "variable", "clusters", "found"),
    [
        (ON_LOOPBACK, "", {ON_LOOPBACK, PUBLIC}, "LOCALHOST:6379"),
        ("localhost:6379", "", {ON_LOOPBACK}, "LOCALHOST:6379"),
        ("auto", ON_LOOPBACK, {ON_LOOPBACK, PUBLIC}, "LOCALHOST:6379"),
        (None, ON_LOOPBACK, {ON_LOOPBACK}, "LOCALHOST:6379"),
        ("auto", "", {ON_LOOPBACK}, "LOCALHOST:6379"),
        ("auto", "", {PUBLIC}, PUBLIC),
        ("auto", "", {ON_LOOPBACK, PUBLIC}, "auto"),
        ("127.0.0.1:6380", "", {PUBLIC}, "127.0.0.1:6380"),
        (PUBLIC, ON_LOOPBACK, {ON_LOOPBACK, PUBLIC}, PUBLIC),
        ("auto", PUBLIC, {ON_LOOPBACK, PUBLIC}, "auto"),
        (None, "", {ON_LOOPBACK}, None),
    ],
)
def test_a_cluster_on_loopback_is_found_by_any_name_of_its_address(
    given: str | None, variable: str, clusters: set[str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would look for it at the public address of the machine, and wait for minutes."""
    monkeypatch.setattr(ray._private.services, "find_gcs_addresses", lambda: clusters)
    monkeypatch.setenv("RAY_ADDRESS", variable)
    assert _found(given) == found
