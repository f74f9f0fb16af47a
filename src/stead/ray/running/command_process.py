"""The process between a runner and its command: it ends the command, with all that the command started.

Rule: only the standard library, and no import of stead: it starts for every command. SIGTERM goes to the command and
its children; SIGUSR1, which the kernel sends when the runner dies, kills them. Nothing is left when it ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from types import FrameType

PR_SET_PDEATHSIG = 1
END, KILL = signal.SIGTERM, signal.SIGUSR1

CANNOT_RUN = 127
"""The exit status of a command that cannot be started, as in a shell."""


def main(parent: int, command: list[str]) -> int:
    """Run the command and return its exit status; 128 and the number of the signal if one ended it."""
    group: list[int] = []
    received: list[signal.Signals] = []

    def forward(number: int, _: FrameType | None) -> None:
        sent = signal.SIGKILL if number == KILL else signal.SIGTERM
        received.append(sent)
        _send(group, sent)

    for number in (END, KILL):
        signal.signal(number, forward)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, KILL)
    if os.getppid() != parent:
        return 128 + signal.SIGKILL
    try:
        process = subprocess.Popen(command, process_group=0)
    except OSError as error:
        sys.stdout.write(f"{command[0]} cannot be started: {error.strerror}\n")
        return CANNOT_RUN
    group.append(process.pid)
    for each in received:  # before the command had started
        _send(group, each)
    code = process.wait()
    _send(group, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _send(group: list[int], number: signal.Signals) -> None:
    for leader in group:
        with suppress(ProcessLookupError):
            os.killpg(leader, number)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
