"""Where the real server comes from: what is found first, and how apt's sources are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kubernetes.servers import obtain as obtaining
from tests.kubernetes.servers.obtain import Unavailable, deb822_sources, find, missing, obtain, one_line_sources

DEB822 = """Types: deb
# a comment
URIs: http://mirror.invalid/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://mirror.invalid/security
"""

ONE_LINE = """# deb http://mirror.invalid/old stable main
deb [signed-by=/k.gpg] http://mirror.invalid/debian bookworm main
  deb-src   [signed-by=/k.gpg] http://mirror.invalid/debian bookworm main
deb http://mirror.invalid/security bookworm-security main
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEAD_CACHE", str(tmp_path))
    monkeypatch.delenv("KUBE_APISERVER", raising=False)
    return tmp_path


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_nothing_is_found_in_an_empty_cache(cache: Path) -> None:
    assert find() is None
    reason = missing()
    assert reason and reason.startswith("kube-apiserver") and "\n" not in reason


def test_the_newest_version_of_the_cache_is_found(cache: Path) -> None:
    program(cache / "kube-apiserver-1.9.1" / "kube-apiserver")
    newest = program(cache / "kube-apiserver-1.20.2" / "kube-apiserver")
    assert find() == newest
    assert obtain(print) == newest


def test_the_variable_goes_before_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(cache / "kube-apiserver-1.20.2" / "kube-apiserver")
    named = program(cache / "mine")
    monkeypatch.setenv("KUBE_APISERVER", str(named))
    assert find() == named
    monkeypatch.setenv("KUBE_APISERVER", str(cache / "absent"))
    with pytest.raises(Unavailable, match="not a program"):
        find()


def test_a_machine_without_apt_says_so_in_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(Unavailable, match=r"^[^\n]*this machine has no apt-get[^\n]*$"):
        obtain(print)


def test_without_root_the_missing_packages_are_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obtaining, "TOOLS", ("a-package-that-does-not-exist",))
    monkeypatch.setattr(obtaining, "_need", lambda *programs: None)
    monkeypatch.setattr(obtaining, "_is_installed", lambda package: False)
    monkeypatch.setattr(obtaining, "find_etcd", lambda: cache)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match=r"a-package-that-does-not-exist.*only root"):
        obtain(print)


def test_stanzas_of_packages_become_stanzas_of_sources() -> None:
    converted = deb822_sources(DEB822, "deb-src")
    assert [line for line in converted.splitlines() if line.startswith("Types")] == ["Types: deb-src"] * 2
    assert converted.replace("deb-src", "deb") == DEB822.replace("deb deb-src", "deb")


def test_lines_of_packages_become_lines_of_sources() -> None:
    assert one_line_sources(ONE_LINE, "deb-src") == (
        "deb-src [signed-by=/k.gpg] http://mirror.invalid/debian bookworm main\n"
        "deb-src http://mirror.invalid/security bookworm-security main\n"
    )
