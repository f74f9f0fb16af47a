"""The process of the controller, which is a worker of Ray's: what it does not load, and how it is scheduled.

Rule: called once, before anything else; nothing here is needed for the controller to work.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def be_a_daemon() -> None:
    """Ray lets its daemons go before its workers (which have nice 15), and the controller is one; only root may do so.
    For the first result that a worker sends, Ray loads Arrow if it is installed: 25 MB that nothing here needs."""
    sys.modules.setdefault("pyarrow", None)  # type: ignore[arg-type]
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
