"""One driver of the Ray benchmark: reads a number of tasks per line, answers how long it took.

Rule: the three kinds differ in nothing but how they are bound. `plain` is Ray as it is, `resource` asks for one custom
resource that every node has, `hooked` is a driver under stead's hook.
"""

from __future__ import annotations

import json
import sys
import time

import ray


@ray.remote  # type: ignore[untyped-decorator]
def nothing() -> None:
    return None


def main() -> None:
    kind, address = sys.argv[1:]
    ray.init(address, log_to_driver=False, logging_level="error")
    task = nothing.options(resources={"bench": 0.0001}) if kind == "resource" else nothing
    ray.get([task.remote() for _ in range(200)])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        count = int(line)
        start = time.perf_counter()
        refs = [task.remote() for _ in range(count)]
        submitted = time.perf_counter() - start
        ray.get(refs)
        answer = {"per_second": count / (time.perf_counter() - start), "submit_us": submitted / count * 1e6}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
