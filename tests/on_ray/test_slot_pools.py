"""How many slots of a shape nodes can hold, as far as Ray's tables show it."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from stead.language.asks import Ask
from stead.language.resources import Resources
from stead.ray.control.slot_pools import has_room_for, most_of
from stead.ray.wire.tables import NodeRow


def row(total: dict[str, float], available: dict[str, float]) -> NodeRow:
    return NodeRow("n", "10.0.0.1", {}, total, available, draining=False)


@pytest.mark.parametrize(
    ("need", "total", "free", "expected"),
    [
        (0.6, 2, 0.8, False),  # 0.4 of each device
        (0.6, 2, 1.4, True),
        (0.5, 1, 0.5, True),  # the only device
        (0.5, 1, 0.4, False),
        (1, 2, 1, True),
    ],
)
def test_a_share_fits_only_where_one_device_has_it(need: float, total: float, free: float, expected: bool) -> None:
    node = row({"CPU": 4, "GPU": total}, {"CPU": 4, "GPU": free})
    assert has_room_for(node, Ask.of("a", {"CPU": 1, "GPU": need})) == expected


@pytest.mark.parametrize(("need", "expected"), [(0.6, 2), (0.5, 4), (0.3, 6), (1, 2), (2, 1)])
def test_an_empty_node_holds_as_many_shares_as_its_devices_do(need: float, expected: int) -> None:
    assert most_of(Ask.of("a", {"GPU": need}), {Resources.of(GPU=2): 1}) == expected
