"""Where tokens are stored: a folder and files that only their owner can change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stead.errors import Invalid
from stead.service.keys import Keys, home


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that STEAD_HOME names, with an operator's token and one other token."""
    path = tmp_path / "home"
    monkeypatch.setenv("STEAD_HOME", str(path))
    Keys().operator_token()
    Keys().give("viewer", "eve")
    return path


def of_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr("stead.service.keys.os.geteuid", lambda: 12345)


class TestTheFolder:
    def test_that_does_not_exist_yet_is_fine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STEAD_HOME", str(tmp_path / "new"))
        assert home() == tmp_path / "new"
        assert Keys().known_operator_token() == ""
        assert not (tmp_path / "new").exists()

    def test_of_this_user_is_fine(self, folder: Path) -> None:
        folder.chmod(0o755)
        assert home() == folder
        assert Keys().known_operator_token() == Keys().operator_token()

    @pytest.mark.parametrize("mode", [0o770, 0o777, 0o702, 0o1777])
    def test_that_others_can_change_is_refused(self, folder: Path, mode: int) -> None:
        folder.chmod(mode)
        with pytest.raises(Invalid, match=f"can be changed by others; restrict it first: chmod 700 {folder}$"):
            home()

    def test_that_is_a_symbolic_link_is_refused(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        link = folder.parent / "link"
        link.symlink_to(folder)
        monkeypatch.setenv("STEAD_HOME", f"{link}/")
        with pytest.raises(Invalid, match=f"is a symbolic link; .* for example STEAD_HOME={folder}$"):
            home()

    def test_that_is_a_file_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("STEAD_HOME", str(tmp_path / "file"))
        with pytest.raises(Invalid, match="is not a folder"):
            home()

    def test_of_another_user_is_refused(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        of_another_user(folder, monkeypatch)
        with pytest.raises(Invalid, match="belongs to another user; make it yours: chown"):
            home()

    def test_that_others_can_change_later_stops_a_running_service(self, folder: Path) -> None:
        keys = Keys()
        token = keys.operator_token()
        assert keys.of(token) is not None
        folder.chmod(0o777)
        with pytest.raises(Invalid, match="chmod 700"):
            keys.of(token)

    def test_that_is_replaced_by_a_link_later_is_refused(self, folder: Path) -> None:
        keys = Keys()
        folder.rename(folder.parent / "elsewhere")
        folder.symlink_to(folder.parent / "elsewhere")
        for ask in (keys.operator_token, keys.known_operator_token, keys.names):
            with pytest.raises(Invalid, match="is a symbolic link"):
                ask()
        with pytest.raises(Invalid, match="is a symbolic link"):
            keys.give("viewer", "bob")


class TestAFileOfTokens:
    @pytest.mark.parametrize("name", ["token", "tokens.json"])
    def test_that_is_a_symbolic_link_is_not_followed(self, folder: Path, name: str) -> None:
        (folder / name).rename(folder.parent / "other")
        (folder / name).symlink_to(folder.parent / "other")
        with pytest.raises(Invalid, match=f"{name} is a symbolic link; put the file itself there"):
            self.read(name)

    @pytest.mark.parametrize("name", ["token", "tokens.json"])
    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
    def test_that_others_can_read_or_write_is_refused(self, folder: Path, name: str, mode: int) -> None:
        (folder / name).chmod(mode)
        with pytest.raises(Invalid, match=f"can be read by others; restrict it first: chmod 600 {folder / name}$"):
            self.read(name)

    @pytest.mark.parametrize("name", ["token", "tokens.json"])
    def test_of_another_user_is_refused(self, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        of_another_user(folder / name, monkeypatch)
        with pytest.raises(Invalid, match="belongs to another user"):
            self.read(name)

    @pytest.mark.parametrize("name", ["token", "tokens.json"])
    @pytest.mark.parametrize("kind", ["pipe", "folder"])
    def test_that_is_not_a_regular_file_is_refused_without_blocking(self, folder: Path, name: str, kind: str) -> None:
        (folder / name).unlink()
        if kind == "pipe":
            os.mkfifo(folder / name, 0o600)
        else:
            (folder / name).mkdir(0o700)
        with pytest.raises(Invalid, match="is not a regular file; move it away: mv"):
            self.read(name)

    @pytest.mark.parametrize("name", ["token", "tokens.json"])
    def test_that_is_not_text_is_damaged(self, folder: Path, name: str) -> None:
        (folder / name).write_bytes(b"\xff\xfe\x80")
        with pytest.raises(Invalid, match="is damaged; move it away"):
            self.read(name)

    def test_with_an_invalid_digest_is_damaged(self, folder: Path) -> None:
        (folder / "tokens.json").write_text('[{"name": "eve", "role": "viewer", "digest": "x"}]')
        with pytest.raises(Invalid, match="is damaged; move it away"):
            Keys().of("x")

    def test_that_others_can_read_later_is_refused(self, folder: Path) -> None:
        keys = Keys()
        token = keys.operator_token()
        assert keys.of(token) is not None
        (folder / "token").chmod(0o644)
        with pytest.raises(Invalid, match="chmod 600"):
            keys.of(token)

    def test_is_replaced_as_a_whole_and_leaves_nothing_behind(self, folder: Path) -> None:
        (folder / "tokens.json.new").write_text("of a process that was killed")
        Keys().give("viewer", "bob")
        assert sorted(path.name for path in folder.iterdir()) == ["token", "tokens.json"]
        assert Keys().names() == [("eve", "viewer"), ("bob", "viewer")]

    @staticmethod
    def read(name: str) -> object:
        return Keys().known_operator_token() if name == "token" else Keys().names()
