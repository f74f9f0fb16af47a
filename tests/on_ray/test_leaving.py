"""Background threads stop calling Ray before it shuts down."""

from __future__ import annotations

import threading

import pytest

from stead.ray.submit.shutdown import Leaving


def test_no_new_call_starts() -> None:
    leaving = Leaving()
    with leaving.call():
        pass
    assert leaving.begin(0.0)
    with pytest.raises(SystemExit), leaving.call():
        pass


def test_a_call_in_progress_gets_a_short_time() -> None:
    leaving, entered, going = Leaving(), threading.Event(), threading.Event()

    def call() -> None:
        with leaving.call():
            entered.set()
            going.wait(60)

    thread = threading.Thread(target=call)
    thread.start()
    assert entered.wait(60)
    assert not leaving.begin(0.0), "it is not over yet"
    going.set()
    assert leaving.begin(30.0)
    thread.join()
