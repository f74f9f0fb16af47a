"""Background threads stop calling Ray before it shuts down."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import ray

from stead.ray.submit.connection import Connection
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


@pytest.mark.parametrize(
    ("worker", "has_left"),
    [
        (SimpleNamespace(connected=True, core_worker="own"), False),
        (SimpleNamespace(connected=True, core_worker="of a later connection"), True),
        (SimpleNamespace(connected=False, core_worker="own"), True),
        (SimpleNamespace(connected=True), True),
    ],
    ids=["it is connected", "it has connected again", "it has disconnected", "Ray is just shutting down"],
)
def test_a_process_knows_that_it_has_left_at_every_step_of_rays_shutdown(
    worker: SimpleNamespace, has_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray._private.worker, "global_worker", worker)
    link = Connection.__new__(Connection)
    link.core = "own"
    assert link.has_left() is has_left


def test_a_thread_that_ray_ends_is_no_error() -> None:
    """The tests would report it at the next one otherwise."""

    def end() -> None:
        raise SystemExit

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
