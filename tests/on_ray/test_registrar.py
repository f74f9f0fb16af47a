"""Messages that are kept until the controller has acknowledged them; the controller here is a list."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from waiting import wait_for

from stead.errors import Invalid, Unready, Unwritable
from stead.ray import registrar
from stead.ray.registrar import Message, Registrar


class Receiver:
    """Takes messages when it is open; `troubles` are raised first, one for each call."""

    def __init__(self, *troubles: Exception) -> None:
        self.batches: list[list[Message]] = []
        self.troubles = list(troubles)
        self.open = threading.Event()
        self.open.set()
        self.is_over = False

    def take(self, batch: list[Message]) -> None:
        self.open.wait()
        if ("register", "nonsense") in batch:
            raise Invalid("the ask means nothing")
        if self.troubles:
            raise self.troubles.pop(0)
        self.batches.append(list(batch))

    def items(self) -> list[Any]:
        return [item for batch in self.batches for _, item in batch]


def of(receiver: Receiver, **options: Any) -> Registrar:
    return Registrar(receiver.take, lambda: receiver.is_over, **options)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar, "RETRY_S", 0.001)


def test_messages_arrive_in_order_whatever_their_kinds() -> None:
    receiver = Receiver()
    told = of(receiver)
    for number in range(100):
        told.add("even" if number % 2 == 0 else "odd", number)
    wait_for(lambda: receiver.items() == list(range(100)))


def test_what_cannot_be_written_down_now_is_sent_again() -> None:
    receiver = Receiver(Unwritable("the disk is full"), Unready("it starts"))
    told = of(receiver)
    told.add("register", 1)
    told.add("register", 2)
    wait_for(lambda: receiver.items() == [1, 2])


def test_what_comes_while_a_call_is_under_way_goes_with_the_next() -> None:
    receiver = Receiver()
    receiver.open.clear()
    told = of(receiver)
    for number in range(500):
        told.add("register", number)
    receiver.open.set()
    wait_for(lambda: len(receiver.items()) == 500)
    assert len(receiver.batches) <= 3


def test_what_was_not_acknowledged_is_sent_again_before_anything_newer() -> None:
    receiver = Receiver(ConnectionError(), TimeoutError(), RuntimeError())
    told = of(receiver)
    told.add("register", "first")
    told.add("register", "second")
    wait_for(lambda: receiver.items() == ["first", "second"])


def test_a_message_that_is_refused_does_not_hold_up_the_others() -> None:
    receiver = Receiver()
    receiver.open.clear()
    told = of(receiver)
    for item in ("before", "with it", "nonsense", "after"):
        told.add("register", item)
    receiver.open.set()
    wait_for(lambda: receiver.items() == ["before", "with it", "after"])


def test_of_messages_with_one_key_only_the_newest_is_sent() -> None:
    receiver = Receiver()
    receiver.open.clear()
    told = of(receiver)
    told.add("register", "first")
    for total in range(1, 1000):
        told.add("submitted", ("shape", total), key="shape")
    receiver.open.set()
    wait_for(lambda: ("shape", 999) in receiver.items())
    assert len(receiver.items()) <= 3


def test_beyond_a_number_of_unacknowledged_messages_adding_one_waits() -> None:
    receiver = Receiver()
    receiver.open.clear()
    told, done = of(receiver, unacknowledged_max=10), threading.Event()

    def add() -> None:
        for number in range(11):
            told.add("register", number)
        done.set()

    threading.Thread(target=add, daemon=True).start()
    assert not done.wait(0.2)
    receiver.open.set()
    assert done.wait(10)
    wait_for(lambda: receiver.items() == list(range(11)))


def test_flushing_waits_for_what_was_added_before() -> None:
    receiver = Receiver()
    receiver.open.clear()
    told, done = of(receiver), threading.Event()
    told.add("watch", 1)
    told.add("submitted", 1, key="shape")
    told.add("submitted", 2, key="shape")

    def flush() -> None:
        told.flush()
        done.set()

    threading.Thread(target=flush, daemon=True).start()
    assert not done.wait(0.2)
    receiver.open.set()
    assert done.wait(10)
    assert receiver.items()[-1] == 2


def test_nobody_waits_once_the_process_has_left_the_cluster() -> None:
    receiver = Receiver()
    receiver.open.clear()
    told, done = of(receiver, unacknowledged_max=1), threading.Event()

    def add() -> None:
        told.add("register", 1)
        told.add("register", 2)
        done.set()

    threading.Thread(target=add, daemon=True).start()
    assert not done.wait(0.2)
    receiver.is_over = True
    assert done.wait(10)
    receiver.open.set()
