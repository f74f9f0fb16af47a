"""Golden files: expected outputs, stored with the tests. `make golden` rewrites them."""

from __future__ import annotations

import os
from difflib import unified_diff
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str) -> None:
    """`text` equals the golden file `name`; with STEAD_GOLDEN=write the file is written instead."""
    path = FOLDER / name
    if os.environ.get("STEAD_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is missing; `make golden` writes it"
    golden = path.read_text(encoding="utf-8")
    difference = "\n".join(unified_diff(golden.splitlines(), text.splitlines(), "golden", "now", lineterm="", n=1))
    assert text == golden, f"{path} differs; if that is right, run `make golden`\n{difference}"
