"""Pages that are newer than their reader, or unreadable: the controller is asked instead, and nothing fails."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from stead.ray.wire import node_page as pages
from stead.ray.wire.folders import private
from stead.ray.wire.node_page import PROTOCOL, AskedPage, NoPage, Page, Reader, Unreadable, Writer, folder_of
from tests.on_ray.waiting import wait_for

NODE = "ab" * 28


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of(tmp_path, NODE)


def rewrite(folder: Path, change: Callable[[str], str]) -> None:
    """Change the current page."""
    (path,) = folder.glob("*.json")
    path.write_text(change(path.read_text()))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


class TestReading:
    def test_a_reader_sees_every_page_as_it_is_written(self, folder: Path) -> None:
        reader = Reader(folder)
        assert reader.page() == Page()
        writer = Writer(folder)
        for count in range(1, 20):
            writer.write(Page(count=count, tainted={NODE: f"taint-{count}"}))
            assert reader.page().tainted == {NODE: f"taint-{count}"}
        assert len(list(folder.glob("*.json"))) <= pages.KEPT

    def test_a_field_that_a_reader_does_not_know_is_ignored(self, folder: Path) -> None:
        Writer(folder).write(Page(count=1, bound=True))
        rewrite(folder, lambda text: json.dumps({**json.loads(text), "colour": {"of": "the future"}}))
        assert Reader(folder).page() == Page(count=1, bound=True)

    def test_a_field_that_an_older_controller_does_not_write_has_its_default(self) -> None:
        assert Page.of(json.dumps({"count": 3, "protocol": PROTOCOL})) == Page(count=3)

    def test_another_protocol_is_one_sentence(self, folder: Path) -> None:
        Writer(folder).write(Page(count=1, protocol=PROTOCOL + 1))
        with pytest.raises(Unreadable, match=rf"protocol {PROTOCOL + 1} and this program has {PROTOCOL}; install"):
            Reader(folder).page()

    @pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '"page"'])
    def test_an_invalid_page_is_unreadable(self, folder: Path, text: str) -> None:
        Writer(folder).write(Page(count=1))
        rewrite(folder, lambda _: text)
        with pytest.raises(Unreadable):
            Reader(folder).page()

    def test_a_page_whose_file_is_gone_is_unreadable(self, folder: Path) -> None:
        Writer(folder).write(Page(count=1))
        (folder / "1.json").unlink()
        with pytest.raises(Unreadable):
            Reader(folder).page()


class TestWhoMayRead:
    def test_everyone_can_read_pages_and_only_the_owner_can_write(self, folder: Path) -> None:
        writer = Writer(folder)
        writer.write(Page(count=1))
        writer.write(Page(count=2))
        assert mode(folder.parent) == 0o711
        assert mode(folder) == 0o755
        assert {mode(path) for path in folder.iterdir()} == {0o644}

    def test_existing_folders_are_opened(self, folder: Path) -> None:
        Writer(folder).write(Page(count=1))
        for path in (*folder.iterdir(), folder, folder.parent):
            path.chmod(0o700)
        Writer(folder).write(Page(count=2))
        assert mode(folder.parent) == 0o711
        assert mode(folder) == 0o755
        assert mode(folder / "count") == mode(folder / "2.json") == 0o644

    def test_only_the_owner_can_read_private_files(self, tmp_path: Path) -> None:
        (tmp_path / "old").touch(mode=0o644)
        assert mode(private(tmp_path / "old")) == mode(private(tmp_path / "new")) == 0o600


class Controller:
    def __init__(self) -> None:
        self.page = Page(count=7, bound=True)
        self.is_away = False

    def text(self) -> str:
        if self.is_away:
            raise TimeoutError("no answer in 2 s")
        return self.page.text()


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    monkeypatch.setattr(pages, "REFRESH_S", 0.01)
    return Controller()


@pytest.fixture
def unreadable(folder: Path) -> Reader:
    Writer(folder).write(Page(count=1))
    rewrite(folder, lambda _: "nonsense")
    return Reader(folder)


def asked_of(controller: Controller, reader: Reader) -> AskedPage:
    return AskedPage(reader, Unreadable("[Errno 13] Permission denied"), controller.text, lambda: False)


class TestAskingForIt:
    def test_the_controller_is_asked_repeatedly_and_the_program_is_warned_once(
        self, controller: Controller, unreadable: Reader, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            asked = asked_of(controller, unreadable)
            assert asked.page() == controller.page
            controller.page = Page(count=8, bound=True)
            wait_for(lambda: asked.page().count == 8)
        (record,) = caplog.records
        assert "Permission denied" in record.getMessage()
        asked.is_needed = False

    def test_the_last_page_is_used_while_the_controller_is_away(
        self, controller: Controller, unreadable: Reader
    ) -> None:
        asked = asked_of(controller, unreadable)
        controller.is_away = True
        assert asked.page().count == 7
        asked.is_needed = False

    def test_without_any_page_a_warning_says_what_is_not_enforced(
        self, controller: Controller, unreadable: Reader, caplog: pytest.LogCaptureFixture
    ) -> None:
        controller.is_away = True
        with caplog.at_level(logging.WARNING):
            asked = asked_of(controller, unreadable)
        (record,) = caplog.records
        assert "taints, drained nodes, labels set at run time" in record.getMessage()
        with pytest.raises(NoPage, match=r"Permission denied.*the controller did not send it \(no answer in 2 s\)"):
            asked.page()
        controller.is_away = False
        wait_for(lambda: asked._page is not None)
        assert asked.page().count == 7
        asked.is_needed = False

    def test_a_page_that_can_be_read_again_is_read(self, controller: Controller, unreadable: Reader) -> None:
        asked = asked_of(controller, unreadable)
        Writer(unreadable.folder).write(Page(count=2))
        wait_for(lambda: not asked.is_needed)
