"""The options `priority` and `preemptible`, compiled."""

from __future__ import annotations

from typing import Any

import pytest

from stead.errors import Invalid
from stead.ray.submit.compile import is_plain, route

Options = dict[str, Any]


@pytest.mark.parametrize(
    ("options", "priority", "preemptible"),
    [
        ({"priority": 5}, 5, False),
        ({"priority": 0}, 0, False),
        ({"priority": -1, "preemptible": True}, -1, True),
        ({"preemptible": True}, 0, True),
    ],
)
def test_work_with_a_priority_or_that_may_be_evicted_is_placed_by_the_engine(
    options: Options, priority: int, preemptible: bool
) -> None:
    found = route(options)
    assert found.is_decided
    assert not is_plain(options)
    ask = found.ask("work", {"CPU": 1})
    assert (ask.priority, ask.preemptible) == (priority, preemptible)


def test_work_without_these_options_has_priority_0_and_is_not_evicted() -> None:
    found = route({"preemptible": False, "priority": None})
    assert not found.is_decided
    assert is_plain({"preemptible": False, "priority": None})
    assert (found.ask("work", {}).priority, found.ask("work", {}).preemptible) == (0, False)


@pytest.mark.parametrize("given", [True, 1.5, "high", 10**10])
def test_a_priority_is_a_whole_number(given: Any) -> None:
    with pytest.raises(Invalid, match=r"^priority .* must be a whole number from .*, for example 10$"):
        route({"priority": given})


@pytest.mark.parametrize("given", [1, "yes"])
def test_preemptible_is_true_or_false(given: Any) -> None:
    with pytest.raises(Invalid, match="must be True or False"):
        route({"preemptible": given})
