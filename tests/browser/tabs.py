"""A browser tab, as a person uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import Page

from tests.serving import Served


@dataclass
class Tab:
    """A browser tab, and the errors in it."""

    page: Page
    served: Served
    wrong: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # parts of messages that a test provokes

    def open(self, path: str) -> Page:
        self.page.goto(self.served.url + path)
        return self.page

    def sign_in(self, token: str = "") -> None:
        """Sign in like the form does; tests about signing in fill in the form."""
        cookie = self.served.keys.cookie(token or self.served.token)
        assert cookie
        name, _, value = cookie.partition(";")[0].partition("=")
        self.page.context.add_cookies([{"name": name, "value": value, "url": self.served.url, "httpOnly": True}])

    def unexpected(self) -> list[str]:
        return [each for each in self.wrong if not any(part in each for part in self.expected)]


Visit = Callable[..., Tab]
