"""The engine's modules can be imported in any order, by any thread: workers of a cluster do so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import stead.engine

ENGINE = Path(stead.engine.__file__).parent
MODULES = sorted(
    ".".join(("stead.engine", *path.relative_to(ENGINE).with_suffix("").parts)).removesuffix(".__init__")
    for path in ENGINE.rglob("*.py")
)

PROGRAM = """
import sys, threading
from importlib import import_module

names, errors = sys.argv[1:], []
everyone = threading.Barrier(len(names))

def load(name):
    everyone.wait()
    try:
        import_module(name)
    except Exception as error:
        errors.append(f"{name}: {error!r}")

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=load, args=(name,)) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit("; ".join(errors) or 0)
"""


def test_threads_can_import_all_modules_at_the_same_time() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *MODULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
