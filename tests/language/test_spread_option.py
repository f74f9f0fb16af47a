"""The option ``spread={"zone": 1}`` and what it compiles to: even counts of work with the same labels."""

from __future__ import annotations

from typing import Any

import pytest

from stead.language.asks import Spread
from stead.language.labels import EMPTY, Labels, Requirement, Selector
from stead.language.strategies import spreads
from tests.language.sentences import refused, refused_saying

WEB = Labels({"app": "web"})
WEB_BLUE = Labels({"team": "blue", "app": "web"})
LIKE_WEB = Selector.all_of(Requirement.is_in("app", "web"))
LIKE_WEB_BLUE = Selector.all_of(Requirement.is_in("app", "web"), Requirement.is_in("team", "blue"))


@pytest.mark.parametrize(
    ("option", "labels", "expected"),
    [
        pytest.param(None, WEB, (), id="nothing said"),
        pytest.param(None, EMPTY, (), id="nothing said of work without labels"),
        pytest.param({}, WEB, (), id="no key"),
        pytest.param({"zone": 1}, WEB, (Spread("zone", LIKE_WEB, 1),), id="one key"),
        pytest.param({"node_id": 2}, WEB, (Spread("node_id", LIKE_WEB, 2),), id="over nodes"),
        pytest.param({"example.com/rack": 1000}, WEB, (Spread("example.com/rack", LIKE_WEB, 1000),), id="any skew"),
        pytest.param(
            {"zone": 1, "rack": 2}, WEB, (Spread("zone", LIKE_WEB, 1), Spread("rack", LIKE_WEB, 2)), id="as written"
        ),
        pytest.param({"zone": 1}, WEB_BLUE, (Spread("zone", LIKE_WEB_BLUE, 1),), id="all labels count"),
        pytest.param({"zone": 1}, Labels({"a": ""}), (Spread("zone", Selector.all_of(Requirement.is_in("a", "")), 1),)),
    ],
)
def test_a_spread_option_becomes_spreads(option: Any, labels: Labels, expected: tuple[Spread, ...]) -> None:
    assert spreads(option, labels) == expected


def test_work_counts_itself() -> None:
    (spread,) = spreads({"zone": 1}, WEB_BLUE)
    assert spread.selector.matches(WEB_BLUE)
    assert not spread.selector.matches(WEB)


def test_a_spread_without_labels_is_refused() -> None:
    with refused_saying(
        "spread counts work with the same labels, but this work has none; give for example labels={'app': 'web'}"
    ):
        spreads({"zone": 1}, EMPTY)


@pytest.mark.parametrize("option", ["zone", ["zone"], {"zone"}, 1, ("zone", 1), True, ""])
def test_a_spread_that_is_not_a_map_is_refused(option: Any) -> None:
    with refused("spread must be a map", "{'zone': 1}", repr(option)):
        spreads(option, WEB)


@pytest.mark.parametrize("skew", [0, -1, True, False, 1.0, 1.5, "1", None, float("inf")])
def test_a_skew_is_a_whole_number_from_1_up(skew: Any) -> None:
    with refused("the skew of spread key 'zone' must be a whole number, 1 or more, for example 1", f"but is {skew!r}"):
        spreads({"zone": skew}, WEB)


@pytest.mark.parametrize("key", ["", "a b", "-zone", 5, None, "A/zone"])
def test_a_key_is_a_label_key(key: Any) -> None:
    with refused(f"spread key {key!r}", "for example"):
        spreads({key: 1}, WEB)
