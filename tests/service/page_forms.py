"""Pages as a browser requests them: sending forms, and reading pages."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from urllib.parse import urlencode

from tests.service.asking import Answered, Service

FORM = ("content-type", "application/x-www-form-urlencoded")


def send(service: Service, path: str, fields: Sequence[tuple[str, str]], token: str | None = None) -> Answered:
    """Send a form, with the operator's token unless another one is given."""
    return service.ask("POST", path, urlencode(fields).encode(), service.token if token is None else token)


def look(service: Service, path: str, token: str = "") -> str:
    """The text of a page, which must exist."""
    answered = service.ask("GET", path, token=token)
    assert answered.status == 200, (path, answered.status, words_of(answered))
    return answered.body.decode()


def words_of(answered: Answered | str) -> str:
    """The text of a page, without its markup."""
    text = answered if isinstance(answered, str) else answered.body.decode()
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text)))


def links_of(text: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(r'href="(/ui/[^"]*)"', text)]
