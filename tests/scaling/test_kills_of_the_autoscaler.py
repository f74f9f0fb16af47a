"""The autoscaler is killed with SIGKILL at every step of its loop: no node is forgotten, and none is launched twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scaling.folder_world import PIECES, FolderWorld, KilledAt

STEPS = [
    *((step, nth) for step in ("snapshot", "list") for nth in (1, 2, 3, 5)),
    *((step, nth) for step in ("launch: before", "launch: stored") for nth in (1, 2)),
    *((step, nth) for step in ("change: before", "change: made") for nth in (1, 2)),
    *((step, nth) for step in ("retire: before", "retire: ended") for nth in (1, 2)),
    *((step, nth) for step in ("report: before", "report: of decisions") for nth in (1, 2)),
]


def in_a_process(run: Callable[[], None]) -> int:
    """Run this in a process of its own; returns its exit status."""
    child = os.fork()
    if not child:
        try:
            run()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1]


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(("step", "nth"), STEPS, ids=str)
def test_the_next_autoscaler_continues(step: str, nth: int, tmp_path: Path) -> None:
    status = in_a_process(FolderWorld(tmp_path, KilledAt(step, nth)).live)
    assert os.WIFSIGNALED(status), "the step was never reached"
    assert os.WTERMSIG(status) == signal.SIGKILL
    world = FolderWorld(tmp_path)
    assert in_a_process(world.live) == 0
    launched = world.launched
    assert len(launched) == len(set(launched)) == PIECES, "each node was launched once, and no other"
    assert sorted(world.ended) == sorted(launched)
