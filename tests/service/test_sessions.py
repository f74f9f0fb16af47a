"""Browser sessions: random, known only to the running service, and ended when they should be."""

from __future__ import annotations

import hashlib
import hmac
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from stead.service import keys as module
from stead.service.keys import COOKIE, SESSION_S, Key, Keys
from tests.service.asking import ORIGIN, Answered, Service
from tests.service.conftest import Serve


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "home")


def session(keys: Keys, token: str) -> str:
    made = keys.cookie(token)
    assert made is not None
    return made.partition(";")[0].removeprefix(f"{COOKIE}=")


def post(service: Service, path: str, form: bytes = b"", cookie: str = "") -> Answered:
    headers = [("origin", ORIGIN), *([("cookie", cookie)] if cookie else [])]
    return service.ask("POST", path, form, headers=headers)


def signed_in(service: Service, cookie: str = "") -> str:
    """The cookie that a browser sends after signing in."""
    found = post(service, "/login", b"token=" + service.token.encode(), cookie)
    assert found.status == 303
    return found.headers["set-cookie"].partition(";")[0]


class TestASession:
    def test_cannot_be_made_from_the_digests_on_disk(self, keys: Keys, tmp_path: Path) -> None:
        token = keys.give("operator", "ann")
        digest = hashlib.sha256(token.encode()).digest()
        until = int(time.time()) + 10 * 365 * 86400
        signature = hmac.new(digest, f"session until {until}".encode(), hashlib.sha256).hexdigest()
        for forged in (f"{until}.{signature}", digest.hex(), f"{until}.{digest.hex()}"):
            assert keys.of_cookie(forged) is None

    def test_is_random_and_long(self, keys: Keys) -> None:
        token = keys.operator_token()
        found = {session(keys, token) for _ in range(10)}
        assert len(found) == 10
        assert all(len(each) >= 43 for each in found)

    def test_lasts_as_long_as_the_running_service(self, keys: Keys, tmp_path: Path) -> None:
        found = session(keys, keys.operator_token())
        assert keys.of_cookie(found) == Key("operator", "operator")
        assert Keys(tmp_path / "home").of_cookie(found) is None
        assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["token"]

    @pytest.mark.parametrize("clock", ["time", "monotonic"])
    def test_expires_after_twelve_hours_by_either_clock_even_if_it_is_used(
        self, keys: Keys, monkeypatch: pytest.MonkeyPatch, clock: str
    ) -> None:
        found, now = session(keys, keys.operator_token()), getattr(time, clock)()
        for later, stands in ((SESSION_S / 2, True), (SESSION_S - 60, True), (SESSION_S + 1, False)):
            clocks = SimpleNamespace(time=time.time, monotonic=time.monotonic)
            setattr(clocks, clock, partial(float, now + later))
            monkeypatch.setattr(module, "time", clocks)
            assert (keys.of_cookie(found) is not None) == stands

    def test_ends_at_once_when_its_token_is_revoked(self, keys: Keys, tmp_path: Path) -> None:
        token = keys.give("operator", "ann")
        found, saved = session(keys, token), (tmp_path / "home" / "tokens.json").read_text()
        Keys(tmp_path / "home").take_back("ann")
        assert keys.of_cookie(found) is None
        (tmp_path / "home" / "tokens.json").write_text(saved)
        assert keys.of(token) is not None
        assert keys.of_cookie(found) is None, "a session that has ended does not come back"

    def test_ends_when_its_owner_gets_another_token(self, keys: Keys) -> None:
        found = session(keys, keys.give("operator", "ann"))
        keys.give("viewer", "ann")
        assert keys.of_cookie(found) is None

    def test_ends_when_the_operators_token_is_replaced(self, keys: Keys, tmp_path: Path) -> None:
        found = session(keys, keys.operator_token())
        (tmp_path / "home" / "token").unlink()
        assert keys.of_cookie(found) is None


class TestTooManySessions:
    def test_of_one_token_end_the_least_recently_used_one(self, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "SESSIONS_OF_ONE_MAX", 3)
        token, other = keys.operator_token(), session(keys, keys.give("viewer", "eve"))
        first, second, third = (session(keys, token) for _ in range(3))
        assert keys.of_cookie(first)  # used again
        fourth = session(keys, token)
        found = [keys.of_cookie(each) is not None for each in (first, second, third, fourth, other)]
        assert found == [True, False, True, True, True]

    def test_in_total_end_one_of_the_token_with_the_most_sessions(
        self, keys: Keys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "SESSIONS_MAX", 4)
        few = session(keys, keys.give("viewer", "eve"))
        many = [session(keys, keys.operator_token()) for _ in range(3)]
        newest = session(keys, keys.give("viewer", "bob"))
        found = [keys.of_cookie(each) is not None for each in (few, *many, newest)]
        assert found == [True, False, True, True, True]

    def test_that_have_expired_do_not_count(self, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
        now = time.time()
        for _ in range(5):
            session(keys, keys.operator_token())
        moved = SimpleNamespace(time=lambda: now + SESSION_S + 60, monotonic=time.monotonic)
        monkeypatch.setattr(module, "time", moved)
        session(keys, keys.operator_token())
        assert len(keys._sessions._kept) == 1


class TestSigningOut:
    def test_ends_the_session_in_the_service(self, serve: Serve) -> None:
        service = serve(open_reads=False)
        cookie = signed_in(service)
        assert service.ask("GET", "/nodes", headers=[("cookie", cookie)]).status == 200
        left = post(service, "/logout", cookie=cookie)
        assert (left.status, "Max-Age=0" in left.headers["set-cookie"]) == (303, True)
        assert service.ask("GET", "/nodes", headers=[("cookie", cookie)]).status == 401

    def test_ends_every_session_in_the_cookies(self, serve: Serve) -> None:
        service = serve(open_reads=False)
        cookies = [signed_in(service) for _ in range(2)]
        post(service, "/logout", cookie="; ".join(cookies))
        for cookie in cookies:
            assert service.ask("GET", "/nodes", headers=[("cookie", cookie)]).status == 401

    def test_of_one_browser_leaves_the_others_signed_in(self, serve: Serve) -> None:
        service = serve(open_reads=False)
        here, there = signed_in(service), signed_in(service)
        post(service, "/logout", cookie=here)
        assert service.ask("GET", "/nodes", headers=[("cookie", there)]).status == 200

    def test_is_part_of_signing_in_again(self, serve: Serve) -> None:
        service = serve(open_reads=False)
        old = signed_in(service)
        new = signed_in(service, cookie=old)
        found = [service.ask("GET", "/nodes", headers=[("cookie", cookie)]).status for cookie in (old, new)]
        assert found == [401, 200]

    def test_without_a_session_is_no_error(self, service: Service) -> None:
        assert post(service, "/logout").status == 303
        assert post(service, "/logout", cookie=f"{COOKIE}=nothing").status == 303


def test_the_cookie_of_a_service_with_tls_is_secure(keys: Keys) -> None:
    token = keys.operator_token()
    assert "; Secure" in (keys.cookie(token, secure=True) or "")
    assert "; Secure" not in (keys.cookie(token) or "")
