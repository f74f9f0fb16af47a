"""The process of the controller, which is a worker of Ray's:
what it does not load, how it is scheduled, and when it collects garbage.

Rule: nothing here is needed for the controller to work.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress


def be_a_daemon() -> None:
    """Before anything else. Ray lets its daemons go before its workers (which have nice 15), and the controller is one;
    only root may do so. For the first result that a worker sends, Ray loads Arrow if it is installed: 25 MB that
    nothing here needs."""
    sys.modules.setdefault("pyarrow", None)  # type: ignore[arg-type]
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def collect_no_more_of_this() -> None:
    """Once all is loaded: a collection that looks at every module again stops every thread for 100 ms."""
    gc.collect()
    gc.freeze()
