"""Takes the place of a node's agent where there is no dashboard. The raylet runs this file; nothing imports it.

Rule: it does nothing and ends with its raylet. Ray's own agent then does nothing either, after importing so much that
every node takes 1.5 s of CPU time more.
"""

from __future__ import annotations

import os
import time

LOOKS_S = 1.0


def main() -> None:
    raylet = os.getppid()
    while os.getppid() == raylet:
        time.sleep(LOOKS_S)


if __name__ == "__main__":
    main()
