"""Causes errors in the controller of a real cluster, without any support in its code: a full disk, and rounds that
fail.

In a cluster started with `Trouble.environment`, every worker runs `arm`, which changes only the process that becomes
the controller. A full disk is a limit of the operating system on the size of files (`RLIMIT_FSIZE`): the kernel refuses
what SQLite appends to its files, in this and every later controller, until the limit is lifted.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stead.ray.local.start import SETUP_HOOK
from tests.on_ray.waiting import wait_for

FOLDER = "TROUBLE_FOLDER"
SHOWN_S = 0.02
PAGE_BYTES = 4096
"""SQLite writes a page and a header before it."""


class Trouble:
    """The test's side."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def environment(self) -> dict[str, str]:
        paths = [str(Path(__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        return {
            FOLDER: str(self._folder),
            SETUP_HOOK: f"{__name__}.arm",
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        }

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """In this block the controller cannot write to any SQLite file."""
        heard = self._folder / "heard"
        heard.unlink(missing_ok=True)
        with self._switch("limit", str(PAGE_BYTES)):
            wait_for(heard.exists, 60, "the controller's limit")
            yield

    @contextmanager
    def failing_rounds(self) -> Iterator[None]:
        with self._switch("rounds", "fail"):
            yield

    @contextmanager
    def _switch(self, name: str, value: str) -> Iterator[None]:
        unfinished = self._folder / f"{name}.new"
        unfinished.write_text(value, encoding="utf-8")
        unfinished.replace(self._folder / name)
        try:
            yield
        finally:
            (self._folder / name).unlink()


# -- in the cluster


def arm() -> None:
    from stead.ray.submit import core_worker as submission

    plain = submission.exempt_this_process

    def exempt_and_armed() -> None:
        folder = Path(os.environ[FOLDER])
        _limit(folder)
        threading.Thread(target=_watch, args=(folder,), daemon=True).start()
        _fail_rounds(folder)
        plain()

    submission.exempt_this_process = exempt_and_armed


def _watch(folder: Path) -> None:
    pause = threading.Event()
    while not pause.wait(SHOWN_S):
        _limit(folder)


def _limit(folder: Path) -> None:
    try:
        limit = int((folder / "limit").read_text(encoding="utf-8"))
    except FileNotFoundError:
        limit = resource.RLIM_INFINITY
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    if limit != resource.RLIM_INFINITY:
        (folder / "heard").touch()


def _fail_rounds(folder: Path) -> None:
    from stead.ray.wire.tables import Status, Tables

    plain = Tables.status

    def status(self: Tables) -> Status:
        if (folder / "rounds").exists():
            raise RuntimeError("no status today")
        return plain(self)

    Tables.status = status  # type: ignore[method-assign]
