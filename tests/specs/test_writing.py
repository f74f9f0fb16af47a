"""An ask that is written as an entry of a spec reads back as an equal ask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stead.codec import dumps
from stead.errors import Invalid
from stead.language.asks import Affinity, Ask, Choice, Preference
from stead.language.labels import Requirement, Selector
from stead.language.taints import Toleration
from stead.specs.commands import Command
from stead.specs.submissions import Piece, read_submission
from stead.specs.writing import entry_of
from tests.strategies_for_tests import Maker

NOT_VALUES = (b'"-3"', b'"+2"')
"""What random asks compare with labels, and no label may be."""

WEB = Selector.all_of(Requirement.is_in("app", "web"))


def read_back(entry: Any) -> Piece:
    """The entry as it would be read from a file."""
    return next(
        iter(read_submission(yaml.safe_load(yaml.safe_dump({"work": [entry]}, sort_keys=False))).pieces.values())
    )


def in_order(ask: Ask) -> Ask:
    """A spec has one list of near and one of apart; the order between the two does not matter."""
    ands = tuple(tuple(sorted(each, key=lambda one: not one.near)) for each in ask.affinities if each)
    return replace(ask, affinities=ands)


@settings(max_examples=200)
@given(st.data())
def test_what_can_be_written_reads_back_as_an_equal_ask(data: st.DataObject) -> None:
    ask = Maker(lambda n: data.draw(st.integers(0, n - 1))).ask("work")
    ask = replace(ask, preemptible=False, images=(), pulls=(), deadline=None)
    assume(not any(bad in dumps(ask) for bad in NOT_VALUES))
    try:
        entry = entry_of(ask)
    except Invalid:
        return  # the table below says what
    assert in_order(read_back(entry).ask) == in_order(ask)


REFUSED: dict[str, tuple[Ask, str]] = {
    "alternatives of affinities": (
        Ask("a", affinities=((Affinity(WEB),), (Affinity(WEB, topologies=("zone",)),))),
        "near and apart",
    ),
    "a symmetric near": (Ask("a", affinities=((Affinity(WEB, symmetric=True),),)), "near"),
    "the namespace without a name": (
        Ask("a", affinities=((Affinity(WEB, namespaces=frozenset({""})),),)),
        "namespaces",
    ),
    "a toleration of nothing": (
        Ask("a", tolerations=(Toleration("gpu", frozenset(), complement=False),)),
        "tolerations",
    ),
    "a toleration of values of any key": (Ask("a", tolerations=(Toleration(None, frozenset({"x"})),)), "tolerations"),
    "images": (Ask("a", images=("python:3",)), "images"),
    "pulls": (Ask("a", pulls=(Preference(Affinity(WEB)),)), "pulls"),
}


@pytest.mark.parametrize(("ask", "named"), REFUSED.values(), ids=REFUSED)
def test_what_a_spec_cannot_say_is_refused_by_name(ask: Ask, named: str) -> None:
    with pytest.raises(Invalid, match=f"^{named}:"):
        entry_of(ask)


@pytest.mark.parametrize(
    "command",
    [
        Command(("/bin/sh", "-c", "echo one; echo two")),
        Command(("python", "train.py", "")),
        Command(("python",), (("MODE", "fast"), ("EMPTY", "")), "python:3.12"),
        Command(image="nginx"),
    ],
)
def test_a_command_reads_back(command: Command) -> None:
    assert read_back(entry_of(Ask("a", (Choice(),)), command)).command == command
