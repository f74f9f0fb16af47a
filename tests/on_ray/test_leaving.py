"""Background threads leave Ray alone before it shuts down."""

from __future__ import annotations

import threading

import pytest

from stead.ray.leaving import Leaving


def test_no_call_begins_any_more() -> None:
    leaving = Leaving()
    with leaving.call():
        pass
    assert leaving.begin(0.0)
    with pytest.raises(SystemExit), leaving.call():
        pass


def test_a_call_that_is_under_way_gets_a_moment() -> None:
    leaving, entered, going = Leaving(), threading.Event(), threading.Event()

    def call() -> None:
        with leaving.call():
            entered.set()
            going.wait(30)

    thread = threading.Thread(target=call)
    thread.start()
    assert entered.wait(30)
    assert not leaving.begin(0.0), "it is not over yet"
    going.set()
    assert leaving.begin(30.0)
    thread.join()
