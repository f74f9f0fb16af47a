"""Long ids: tables show their beginning, and the beginning names the work again."""

from __future__ import annotations

import pytest

from stead.commands.words import short_id, whole_id
from stead.errors import Invalid

GROUP = "1ffa5ae3c6b08eafbfc4886e8c7f01000000"
MEMBERS = [f"{GROUP}/0/0", f"{GROUP}/0/1"]
TASK = "1ffa5a11158d68c1ffffffffffffffffffffffff01000000"
KNOWN = [GROUP, *MEMBERS, TASK, "web"]


@pytest.mark.parametrize(
    ("id", "shown"),
    [
        ("web", "web"),
        (GROUP, GROUP),
        (MEMBERS[1], "1ffa5ae3c6b0/0/1"),
        (TASK, "1ffa5a11158d"),
    ],
)
def test_what_is_shown_names_it_again(id: str, shown: str) -> None:
    assert short_id(id) == shown
    assert whole_id(shown, KNOWN) == (id if id != "web" else None)  # a short one is asked for as it is


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("1ffa5ae3c6b0", GROUP),  # a group goes before its members
        ("1ffa5ae", GROUP),
        ("1ffa5ae3c6b0/0/0", MEMBERS[0]),
        ("1ffa5a1", TASK),
        ("nothing", None),
        ("1ff", None),
    ],
)
def test_a_beginning_is_enough(said: str, meant: str | None) -> None:
    assert whole_id(said, KNOWN) == meant


def test_what_several_begin_with_is_refused_with_their_ids() -> None:
    with pytest.raises(Invalid, match=f"'1ffa5a' is 2 pieces of work: {TASK}, {GROUP}; give more of the id"):
        whole_id("1ffa5a", KNOWN)


def test_members_are_told_apart_by_what_comes_after_the_id_of_their_group() -> None:
    with pytest.raises(Invalid, match="is 2 pieces of work"):
        whole_id("1ffa5ae3c6b0/0", KNOWN)
