"""How long work of the flow policies waits for the rest of its burst."""

from __future__ import annotations

import pytest

from stead.language.asks import Ask
from stead.ray.control.bursts import MANY, MOST_S, QUIET_S, Gathering
from stead.ray.submit.messages import Registered


def work(count: int, first: int = 0) -> list[Registered]:
    asks = [Ask.of(str(number), {"CPU": 1}, policy="flow") for number in range(first, first + count)]
    return [Registered(ask.id, "task", f"stead.t/{ask.id}", "job", ask, ask) for ask in asks]


def ids(batch: list[Registered]) -> list[int]:
    return [int(each.id) for each in batch]


@pytest.fixture
def gathering() -> Gathering:
    return Gathering()


def test_an_empty_batch_is_never_due(gathering: Gathering) -> None:
    gathering.add([], 1.0)
    assert gathering.due is None
    assert gathering.take(2.0) == []


def test_a_single_piece_is_due_when_nothing_follows_it(gathering: Gathering) -> None:
    gathering.add(work(1), 1.0)
    assert gathering.take(1.0 + QUIET_S / 2) == []
    assert gathering.due == 1.0 + QUIET_S
    assert ids(gathering.take(1.0 + QUIET_S)) == [0]
    assert gathering.due is None


def test_a_burst_is_one_batch_in_the_order_of_arrival(gathering: Gathering) -> None:
    for number in range(5):
        now = 1.0 + number * QUIET_S / 2
        assert gathering.take(now) == []
        gathering.add(work(1, number), now)
    assert ids(gathering.take(1.0 + 3 * QUIET_S)) == [0, 1, 2, 3, 4]


def test_work_that_keeps_arriving_is_due_after_the_maximum_wait(gathering: Gathering) -> None:
    steps, told = int(3 * MOST_S / QUIET_S * 2), 0
    for number in range(steps):
        now = 1.0 + number * QUIET_S / 2
        gathering.add(work(1, number), now)
        assert gathering.due is not None
        assert gathering.due <= now + MOST_S
        told += bool(gathering.take(now))
    assert told == 2


def test_too_much_work_for_one_batch_becomes_several_without_a_pause(gathering: Gathering) -> None:
    gathering.add(work(2 * MANY + 1), 1.0)
    assert ids(gathering.take(1.0)) == list(range(MANY))
    assert ids(gathering.take(1.0)) == list(range(MANY, 2 * MANY))
    assert gathering.due is not None
    assert gathering.due <= 1.0 + QUIET_S
    assert ids(gathering.take(1.0 + QUIET_S)) == [2 * MANY]


def test_a_new_burst_has_its_own_time(gathering: Gathering) -> None:
    gathering.add(work(1), 1.0)
    gathering.take(2.0)
    gathering.add(work(1, 1), 5.0)
    assert gathering.due == 5.0 + QUIET_S
