"""Checks for error messages: one sentence that names the bad part and shows a good value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stead.errors import Invalid


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    """The block raises `Invalid` with one sentence that contains every part."""
    with pytest.raises(Invalid) as caught:
        yield
    message = str(caught.value)
    assert message == message.strip()
    assert "\n" not in message
    assert not message.endswith(".")
    assert ". " not in message
    assert "Traceback" not in message
    for part in parts:
        assert part in message, message


@contextmanager
def refused_saying(sentence: str) -> Iterator[None]:
    """The block raises `Invalid` with exactly this message."""
    with pytest.raises(Invalid) as caught:
        yield
    assert str(caught.value) == sentence
