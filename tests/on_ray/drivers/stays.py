"""A job that only keeps running: prints its id, and ends when its input does."""

from __future__ import annotations

import sys

import ray

ray.init(sys.argv[1], logging_level="error", log_to_driver=False)
sys.stdout.write(f"{ray.get_runtime_context().get_job_id()}\n")
sys.stdout.flush()
sys.stdin.read()
