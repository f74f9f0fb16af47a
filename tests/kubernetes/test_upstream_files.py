"""Every file of upstream's cases is run against translation and engine, or is listed with a reason.

Rule: the cases themselves are counted where they run; each `test_upstream_*.py` lists the cases that it leaves out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
COPIED = HERE.parent / "data" / "kubernetes"
GIVEN = HERE.parents[2] / "shared" / "data" / "kubernetes"

LEFT_OUT: dict[str, str] = {}


def names(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.jsonl")}


@pytest.mark.parametrize("name", sorted(names(COPIED)))
def test_a_file_of_cases_is_run(name: str) -> None:
    assert (HERE / f"test_upstream_{name.replace('-', '_')}.py").is_file()


@pytest.mark.skipif(not GIVEN.is_dir(), reason="the folder that the cases were copied from is not here")
def test_every_file_was_copied_or_is_listed_with_a_reason() -> None:
    assert names(GIVEN) == names(COPIED) | LEFT_OUT.keys()
    for name in names(COPIED):
        assert (GIVEN / f"{name}.jsonl").read_bytes() == (COPIED / f"{name}.jsonl").read_bytes()
