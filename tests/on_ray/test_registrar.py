"""Messages that are kept until the controller acknowledges them; the controller is a list here."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stead.errors import Invalid, Unready, Unwritable
from stead.ray.submit import registration as registrar
from stead.ray.submit.registration import Message, Registrar
from tests.on_ray.waiting import wait_for


class Receiver:
    """Receives messages when it is open. First it raises each of `troubles`, one per call."""

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


def test_messages_of_all_kinds_arrive_in_order() -> None:
    receiver = Receiver()
    told = of(receiver)
    for number in range(100):
        told.add("even" if number % 2 == 0 else "odd", number)
    wait_for(lambda: receiver.items() == list(range(100)))


def test_a_message_that_cannot_be_stored_now_is_sent_again() -> None:
    receiver = Receiver(Unwritable("the disk is full"), Unready("it starts"))
    told = of(receiver)
    told.add("register", 1)
    told.add("register", 2)
    wait_for(lambda: receiver.items() == [1, 2])


def test_messages_added_during_a_call_go_with_the_next_one() -> None:
    receiver = Receiver()
    receiver.open.clear()
    told = of(receiver)
    for number in range(500):
        told.add("register", number)
    receiver.open.set()
    wait_for(lambda: len(receiver.items()) == 500)
    assert len(receiver.batches) <= 3


def test_unacknowledged_messages_are_sent_again_before_newer_ones() -> None:
    receiver = Receiver(ConnectionError(), TimeoutError(), RuntimeError())
    told = of(receiver)
    told.add("register", "first")
    told.add("register", "second")
    wait_for(lambda: receiver.items() == ["first", "second"])


def test_a_refused_message_does_not_block_the_others() -> None:
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


def test_adding_a_message_waits_while_too_many_are_unacknowledged() -> None:
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
    assert done.wait(60)
    wait_for(lambda: receiver.items() == list(range(11)))


def test_flushing_waits_for_earlier_messages() -> None:
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
    assert done.wait(60)
    assert receiver.items()[-1] == 2


def test_no_call_waits_once_the_process_has_left_the_cluster() -> None:
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
    assert done.wait(60)
    receiver.open.set()
