"""Tunes the controller's process, which is a Ray worker: what it does not load, its priority, and garbage collection.

Rule: the controller also works without these settings.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress


def prepare_process() -> None:
    """Call this first. Ray gives its daemons a higher priority than its workers (nice 15), and the controller is a
    daemon; only root may change the priority. Also, Ray loads Arrow, if installed, for the first result that a worker
    sends: 25 MB that the controller does not need."""
    sys.modules.setdefault("pyarrow", None)  # type: ignore[arg-type]
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def freeze_loaded_objects() -> None:
    """Call this once everything is loaded. A collection that visits all modules stops every thread for 100 ms."""
    gc.collect()
    gc.freeze()
