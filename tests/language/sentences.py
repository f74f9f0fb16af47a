"""How every refusal of the language is checked: one sentence, naming the bad part, showing a good value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stead.errors import Invalid


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    """The block is refused in one sentence that holds every part: what was bad, and what would be good."""
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
    """The block is refused in exactly these words."""
    with pytest.raises(Invalid) as caught:
        yield
    assert str(caught.value) == sentence
