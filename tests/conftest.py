"""What holds for every test, wherever the tests are started.

Rule: a process that a test starts receives Ctrl-C. A script starts its background jobs with SIGINT ignored, as CI
runners do, and children inherit that. A command started so is right to go on ignoring it; a test of Ctrl-C is not.

Rule: no property test fails because the machine is slow.

Rule: SystemExit ends a thread quietly, as everywhere in Python. Ray raises it in threads that call it while it shuts
down. pytest would report it as an error of the test that runs next.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

LONGEST = [
    *(
        f"on_ray/test_{name}.py"
        for name in """
        queued_work_obeys_taints redirected_tasks ray_controller placement_groups work_through_failures head_restart
        groups_through_failures kills_at_every_step queues_when_a_node_dies evictions taints together_and_apart slots
        """.split()
    ),
    "browser/test_accessibility.py",
    "engine/test_restored_engine.py",
    "engine/test_engine_equals_oracle.py",
    "test_docs.py",
    "on_ray",
    "browser",
    "flow",
]
"""Files and folders that take long, the longest first. Workers take whole files in this order (with xdist's
--no-loadscope-reorder), so that what takes long is not begun last, when the other workers have nothing left to do."""

HERE = Path(__file__).parent


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # children start with the default, not with this


def pytest_sessionstart() -> None:
    reported = threading.excepthook
    threading.excepthook = lambda args: None if args.exc_type is SystemExit else reported(args)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.path))


def _place(path: Path) -> int:
    within = str(path.relative_to(HERE)) if path.is_relative_to(HERE) else ""
    return next((place for place, name in enumerate(LONGEST) if within.startswith(name)), len(LONGEST))
