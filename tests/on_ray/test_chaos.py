"""A short chaos run; ``make chaos`` runs it with 200 kills."""

from __future__ import annotations

import pytest

from tests.on_ray.chaos import run


@pytest.mark.long
def test_nothing_is_broken_lost_or_left_over_when_workers_nodes_and_the_controller_are_killed() -> None:
    found = run(seed=7, kills=4)
    assert not found.problems, found.problems
    assert found.figures["tasks done"] > 2
    assert found.figures["starts of actors"] > 0
