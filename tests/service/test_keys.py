"""Tokens and cookies: their owners, their files, and how long they last."""

from __future__ import annotations

import stat
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.errors import Invalid
from stead.service.keys import COOKIE, SESSION_S, Key, Keys, forgotten_cookie


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "home")


def value_of(cookie: str | None) -> str:
    assert cookie is not None
    return cookie.partition(";")[0].removeprefix(f"{COOKIE}=")


class TestTheOperatorsToken:
    def test_is_created_once_and_only_its_owner_can_read_it(self, keys: Keys, tmp_path: Path) -> None:
        token = keys.operator_token()
        path = tmp_path / "home" / "token"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert Keys(tmp_path / "home").operator_token() == token
        assert [each.name for each in path.parent.iterdir()] == ["token"]

    def test_is_the_same_for_services_that_start_at_once(self, tmp_path: Path) -> None:
        found: list[str] = []
        begin = threading.Barrier(8)

        def start() -> None:
            begin.wait()
            found.append(Keys(tmp_path / "home").operator_token())

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == 1
        assert len(found[0]) > 40

    def test_that_others_can_read_is_refused(self, keys: Keys, tmp_path: Path) -> None:
        keys.operator_token()
        (tmp_path / "home" / "token").chmod(0o644)
        with pytest.raises(Invalid, match="can be read by others; restrict it first: chmod 600"):
            keys.operator_token()

    def test_that_is_empty_is_refused(self, keys: Keys, tmp_path: Path) -> None:
        (tmp_path / "home").mkdir(0o700)
        (tmp_path / "home" / "token").touch(0o600)
        with pytest.raises(Invalid, match="is empty"):
            keys.operator_token()

    def test_is_never_rays_but_rays_is_accepted(
        self, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "ray-token"
        path.write_text("of ray\n")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
        assert keys.of("of ray") == Key("operator", "operator")
        path.write_text("another\n")
        assert keys.of("of ray") is None
        monkeypatch.setenv("RAY_AUTH_TOKEN", "by variable")
        assert keys.of("by variable") == Key("operator", "operator")
        own = (tmp_path / "home" / "token").read_text().strip()
        assert keys.operator_token() == keys.known_operator_token() == own
        assert own.startswith("stead_")
        assert keys.of(own) == Key("operator", "operator")

    def test_that_a_command_shows_is_never_rays(self, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", "of ray")
        assert keys.known_operator_token() == ""

    def test_is_not_created_by_a_lookup(self, keys: Keys, tmp_path: Path) -> None:
        assert keys.known_operator_token() == ""
        assert not (tmp_path / "home").exists()


class TestTokensForOthers:
    def test_are_stored_only_as_digests(self, keys: Keys, tmp_path: Path) -> None:
        token = keys.give("viewer", "eve")
        path = tmp_path / "home" / "tokens.json"
        assert token not in path.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert keys.of(token) == Key("eve", "viewer")

    def test_given_again_replace_the_old_one(self, keys: Keys) -> None:
        old, new = keys.give("viewer", "eve"), keys.give("operator", "eve")
        assert (keys.of(old), keys.of(new)) == (None, Key("eve", "operator"))
        assert keys.names() == [("eve", "operator")]

    def test_are_accepted_by_a_running_service(self, keys: Keys, tmp_path: Path) -> None:
        assert keys.of("nobody's") is None
        token = Keys(tmp_path / "home").give("viewer", "eve")
        assert keys.of(token) == Key("eve", "viewer")

    def test_created_concurrently_are_all_stored(self, tmp_path: Path) -> None:
        threads = [
            threading.Thread(target=Keys(tmp_path / "home").give, args=("viewer", f"name-{number}"))
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(Keys(tmp_path / "home").names()) == 8

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "a\nb",
            "x" * 65,
            "\x1b[31m",
            "ci\0",
            "\u202eann",
            "ann\u2066",
            "a\u200bnn",
            "\ufeffann",
            "\udc80",
            "ann\u00a0",
            " ann",
            "ann ",
            " ",
            "\u3164",
            "ann\ufe0f",
            "\u2800",
        ],
    )
    def test_need_a_name_that_can_be_shown(self, keys: Keys, name: str) -> None:
        with pytest.raises(Invalid, match="name"):
            keys.give("viewer", name)

    def test_need_a_known_role(self, keys: Keys) -> None:
        with pytest.raises(Invalid, match="good values are viewer, operator"):
            keys.give("admin", "eve")

    def test_cannot_be_revoked_twice(self, keys: Keys) -> None:
        keys.give("viewer", "eve")
        keys.take_back("eve")
        with pytest.raises(Invalid, match="there is no token named 'eve'"):
            keys.take_back("eve")

    def test_created_by_another_process_count_at_once_and_revoked_ones_until_the_next_check(
        self, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stead.service.keys.LOOK_S", 1000.0)
        elsewhere = Keys(tmp_path / "home")
        assert keys.of(keys.operator_token()) == Key("operator", "operator")
        token = elsewhere.give("viewer", "eve")
        assert keys.of(token) == Key("eve", "viewer")
        elsewhere.take_back("eve")
        assert keys.of(token) == Key("eve", "viewer")
        monkeypatch.setattr("stead.service.keys.LOOK_S", 0.0)
        assert keys.of(token) is None

    @pytest.mark.parametrize("written", ["{", "[1]", '[{"name": "a"}]', "3", '{"a": 1}'])
    def test_in_a_damaged_file_are_refused(self, keys: Keys, tmp_path: Path, written: str) -> None:
        keys.give("viewer", "eve")
        (tmp_path / "home" / "tokens.json").write_text(written)
        with pytest.raises(Invalid, match="damaged"):
            keys.names()


class TestCookies:
    def test_need_a_valid_token(self, keys: Keys) -> None:
        assert keys.cookie("wrong") is None
        assert keys.cookie("") is None

    def test_scripts_and_other_sites_do_not_get_it(self, keys: Keys) -> None:
        cookie = keys.cookie(keys.operator_token(), secure=True) or ""
        parts = {part.strip() for part in cookie.split(";")[1:]}
        assert parts == {f"Max-Age={SESSION_S}", "Path=/", "HttpOnly", "SameSite=Strict", "Secure"}
        assert "Max-Age=0" in forgotten_cookie()

    def test_it_expires(self, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
        value = value_of(keys.cookie(keys.operator_token()))
        assert keys.of_cookie(value) == Key("operator", "operator")
        later = time.time() + SESSION_S + 2
        monkeypatch.setattr("stead.service.keys.time", SimpleNamespace(time=lambda: later, monotonic=time.monotonic))
        assert keys.of_cookie(value) is None

    def test_it_ends_with_its_token(self, keys: Keys) -> None:
        value = value_of(keys.cookie(keys.give("operator", "ann")))
        assert keys.of_cookie(value) == Key("ann", "operator")
        keys.take_back("ann")
        assert keys.of_cookie(value) is None


@given(text=st.text(max_size=80))
def test_no_other_text_is_a_token_or_a_cookie(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    keys = Keys(tmp_path_factory.getbasetemp() / "keys")
    keys.operator_token()
    assert keys.of(text) is None
    assert keys.of_cookie(text) is None
