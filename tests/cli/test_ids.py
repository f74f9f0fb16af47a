"""Long ids: tables show their beginning, and the beginning finds the work again."""

from __future__ import annotations

import pytest

from stead.operate.identifying import begin_so
from stead.text import short_id

GROUP = "1ffa5ae3c6b08eafbfc4886e8c7f01000000"
MEMBERS = [f"{GROUP}/0/0", f"{GROUP}/0/1"]
TASK = "1ffa5a11158d68c1ffffffffffffffffffffffff01000000"
KNOWN = sorted([GROUP, *MEMBERS, TASK, "web"])


@pytest.mark.parametrize(
    ("id", "shown"),
    [
        ("web", "web"),
        (GROUP, "1ffa5ae3c6b0"),
        (MEMBERS[1], "1ffa5ae3c6b0/0/1"),
        (TASK, "1ffa5a11158d"),
    ],
)
def test_a_displayed_id_finds_the_work_again(id: str, shown: str) -> None:
    assert short_id(id) == shown
    assert begin_so(KNOWN, shown) == ([id] if id != "web" else [])  # a short id must be complete


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("1ffa5ae3c6b0", [GROUP]),  # a group comes before its members
        ("1ffa5ae", [GROUP]),
        ("1ffa5ae3c6b0/0/0", [MEMBERS[0]]),
        ("1ffa5ae3c6b0/0", MEMBERS),
        ("1ffa5a1", [TASK]),
        ("1ffa5a", [TASK, GROUP]),
        ("nothing", []),
        ("1ff", []),
    ],
)
def test_a_beginning_is_enough(said: str, meant: list[str]) -> None:
    assert begin_so(KNOWN, said) == meant
