"""Work with rules on nodes inside a placement group takes the allowed bundles in turn."""

from __future__ import annotations

from collections import Counter

import pytest

from stead.ray.control import bundles as module
from stead.ray.control.bundles import Bundles


def test_every_bundle_gets_as_many_as_the_others() -> None:
    bundles = Bundles()
    assert Counter(bundles.choose("ring", [0, 1, 2, 5]) for _ in range(12)) == {0: 3, 1: 3, 2: 3, 5: 3}


def test_choices_of_one_rule_count_for_the_others() -> None:
    bundles = Bundles()
    assert [bundles.choose("ring", [0, 1]) for _ in range(2)] == [0, 1]
    assert [bundles.choose("ring", [1, 2]) for _ in range(3)] == [2, 1, 2]


def test_groups_do_not_affect_each_other() -> None:
    bundles = Bundles()
    assert [bundles.choose(group, [0, 1]) for group in ("ring", "star", "ring", "star")] == [0, 0, 1, 1]


def test_old_choices_and_groups_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHOICES_MAX", 3)
    monkeypatch.setattr(module, "GROUPS_MAX", 2)
    bundles = Bundles()
    assert [bundles.choose("ring", [0, 1]) for _ in range(5)] == [0, 1, 0, 0, 1]
    for group in ("star", "line", "ring"):
        assert bundles.choose(group, [0, 1]) == 0
    assert len(bundles._engines) == 2
