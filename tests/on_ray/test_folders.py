"""Another user of the machine cannot harm the files that stead keeps in Ray's session folder.

Rule: the other user is real. A child process gives up root, and then does what an attacker would do. The folders have
the modes that Ray gives them.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stead.engine.settings import Settings
from stead.errors import Unready
from stead.ray.control import node_agents as agents
from stead.ray.control.node_agents import PageAgent
from stead.ray.control.persistence import JOURNAL, STATE, Stores
from stead.ray.control.readiness import Readiness
from stead.ray.wire import folders
from stead.ray.wire.folders import NotOurs, Watch, private, watch
from stead.ray.wire.node_page import FOLDER, Page, Reader, Unreadable, Writer, folder_of, open_folder
from tests.on_ray.waiting import wait_for

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")

ANOTHER = 65534
NODE = "ab" * 28
PAGE = Page(count=1, bound=True, tainted={NODE: "mine=yes"})
SECRET = "nobody else may change this"


@pytest.fixture(scope="module")
def another() -> Iterator[ProcessPoolExecutor]:
    """A process of another user: ``do(another, os.rename, old, new)`` is what that user can do."""
    spawned = multiprocessing.get_context("spawn")  # it imports all it needs before it gives up root
    with ProcessPoolExecutor(1, spawned, initializer=become_another_user) as process:
        assert do(process, os.geteuid) == ANOTHER
        yield process


def become_another_user() -> None:
    os.setgroups([])
    os.setresgid(ANOTHER, ANOTHER, ANOTHER)
    os.setresuid(ANOTHER, ANOTHER, ANOTHER)


def do(another: ProcessPoolExecutor, act: Callable[..., Any], *given: Any) -> Any:
    return another.submit(act, *given).result(60)


@pytest.fixture
def session() -> Iterator[Path]:
    """A session folder in a temporary folder, both with the modes that Ray gives them."""
    temporary = Path(tempfile.mkdtemp(prefix="stead-folders-"))
    made = temporary / "session_x"
    made.mkdir()
    as_ray_makes_them(made)
    yield made
    shutil.rmtree(temporary)


def as_ray_makes_them(session: Path) -> None:
    for path in (session, session.parent):
        path.chmod(0o777)


@pytest.fixture
def folder(session: Path) -> Path:
    return folder_of(session, NODE)


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file of stead's user in another folder."""
    place = Path(tempfile.mkdtemp())
    (place / "secret").write_text(SECRET)
    yield place / "secret"
    shutil.rmtree(place)


# -- what the other user does


def forge(folder: Path, page: Page) -> None:
    """A page that looks like a real one."""
    folder.mkdir(parents=True)
    (folder / f"{page.count}.json").write_text(page.text())
    (folder / "count").write_bytes(page.count.to_bytes(8, "little"))


def forge_by_links(folder: Path, elsewhere: Path, page: Page) -> None:
    forge(elsewhere / NODE, page)
    os.symlink(elsewhere, folder.parent)


def lay_traps(folder: Path, target: Path) -> None:
    """Links to a file, under every name that a writer might open."""
    folder.mkdir(parents=True)
    for name in ("unfinished", "count", "2.json"):
        (folder / name).symlink_to(target)


def page_as_read(folder: Path) -> Page:
    return Reader(folder).page()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# -- our folder keeps its name


class TestTheNamesOfOurFolders:
    def test_another_user_cannot_rename_them_and_can_still_add_files(
        self, session: Path, folder: Path, another: ProcessPoolExecutor
    ) -> None:
        Writer(folder).write(PAGE)
        for ours in (session, folder.parent, folder):
            with pytest.raises(PermissionError):
                do(another, os.rename, ours, f"{ours}.away")
        for place in (session, session.parent):
            do(another, (place / "theirs").write_text, "as Ray wants it")

    def test_the_sticky_bit_is_set_again_after_ray_removed_it(
        self, session: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(folders, "WATCH_S", 0.01)
        watch(open_folder(session))
        as_ray_makes_them(session)  # as it does when another node starts on the machine
        wait_for(lambda: mode(session) == mode(session.parent) == 0o1777)

    def test_a_folder_without_others_keeps_its_mode(self, session: Path) -> None:
        session.chmod(0o750)
        session.parent.chmod(0o711)
        open_folder(session)
        assert (mode(session), mode(session.parent)) == (0o750, 0o711)

    @pytest.mark.parametrize("plant", [None, os.mkdir, os.symlink])
    def test_a_renamed_folder_gets_its_name_back(
        self, session: Path, folder: Path, another: ProcessPoolExecutor, plant: Callable[..., None] | None
    ) -> None:
        """Ray removes the sticky bit for a moment, and another user is faster than the watch."""
        writer, reader = Writer(folder), Reader(folder)
        watching = Watch(folder.parent)
        as_ray_makes_them(session)
        do(another, os.rename, folder.parent, session / "away")
        if plant is not None:
            do(another, plant, *([session.parent] if plant is os.symlink else []), folder.parent)
        writer.write(PAGE)
        watching.look()
        assert page_as_read(folder) == reader.page() == PAGE
        assert len(list(session.glob("stead.*.not-ours"))) == (plant is not None)
        with pytest.raises(PermissionError):
            do(another, os.rename, folder.parent, session / "away")

    def test_a_renamed_session_folder_gets_its_name_back(
        self, session: Path, folder: Path, another: ProcessPoolExecutor
    ) -> None:
        Writer(folder).write(PAGE)
        watching = Watch(folder.parent)
        as_ray_makes_them(session)
        do(another, os.rename, session, session.parent / "away")
        do(another, forge, folder, Page(count=9))
        watching.look()
        assert page_as_read(folder) == PAGE

    def test_a_new_folder_of_ours_keeps_the_name(self, session: Path) -> None:
        """Someone moved the old one away, and the next controller created a new one."""
        watching = Watch(open_folder(session))
        (session / FOLDER).rename(session / "old")
        new = open_folder(session).stat()
        watching.look()
        assert os.path.samestat((session / FOLDER).stat(), new)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (0o777, "as user id 65534, who owns it"),
            (0o1777, "belongs to that user; start Ray with a folder of your own"),
        ],
    )
    def test_a_folder_of_another_user_is_reported_once(
        self, session: Path, caplog: pytest.LogCaptureFixture, given: int, said: str
    ) -> None:
        os.chown(session.parent, ANOTHER, ANOTHER)
        session.parent.chmod(given)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                open_folder(session)
        (record,) = caplog.records
        assert str(session.parent) in record.getMessage()
        assert said in record.getMessage()
        assert mode(session.parent) == given


# -- what another user put in its place


def is_one_sentence(error: BaseException, path: Path) -> bool:
    text = str(error)
    return str(path) in text and "move it away, for example to" in text and "\n" not in text and ". " not in text


class TestWhatAnotherUserPutInItsPlace:
    def test_a_folder_is_refused_and_stead_init_says_so(self, session: Path, another: ProcessPoolExecutor) -> None:
        do(another, os.mkdir, session / FOLDER, 0o755)
        with pytest.raises(NotOurs, match="belongs to user id 65534, not to 0") as refused:
            open_folder(session)
        assert is_one_sentence(refused.value, session / FOLDER)
        assert mode(session / FOLDER) == 0o755
        readiness = Readiness()
        readiness.failed(refused.value)
        with pytest.raises(Unready, match=r"the controller cannot start now: .* belongs to user id 65534"):
            readiness.check()

    def test_a_link_to_a_folder_of_ours_is_refused(
        self, session: Path, secret: Path, another: ProcessPoolExecutor
    ) -> None:
        do(another, os.symlink, secret.parent, session / FOLDER)
        before = mode(secret.parent)
        with pytest.raises(NotOurs, match="is a symbolic link, which stead does not follow") as refused:
            open_folder(session)
        assert is_one_sentence(refused.value, session / FOLDER)
        assert mode(secret.parent) == before

    def test_another_folder_of_ours_that_everybody_may_write_to_is_refused(
        self, session: Path, another: ProcessPoolExecutor
    ) -> None:
        """Ray's own log folder is one. Before stead sets the sticky bit, everyone can rename it."""
        (session / "logs").mkdir()
        (session / "logs").chmod(0o777)
        do(another, os.rename, session / "logs", session / FOLDER)
        with pytest.raises(NotOurs, match=r"can be written by other users \(mode 0777\)"):
            open_folder(session)
        assert mode(session / FOLDER) == 0o777

    def test_a_file_of_ours_is_not_overwritten_through_links(
        self, session: Path, folder: Path, secret: Path, another: ProcessPoolExecutor
    ) -> None:
        writer, reader = Writer(folder), Reader(folder)
        writer.write(PAGE)
        assert reader.page() == PAGE
        as_ray_makes_them(session)
        do(another, os.rename, folder.parent, session / "away")
        do(another, lay_traps, folder, secret)
        writer.write(Page(count=2))
        with pytest.raises(NotOurs):
            Writer(folder).write(Page(count=2))
        assert secret.read_text() == SECRET
        assert (mode(secret), secret.stat().st_nlink) == (0o644, 1)
        assert reader.page() == Page(count=2), "who had opened the real one still reads it"

    def test_an_agent_waits_until_it_is_moved_away(
        self, session: Path, folder: Path, another: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It does not answer meanwhile, so its node counts as a node without its page."""
        monkeypatch.setattr(agents, "RETRY_S", 0.01)
        node = SimpleNamespace(get_session_dir_path=lambda: str(session))
        core = SimpleNamespace(get_current_node_id=lambda: bytes.fromhex(NODE))
        monkeypatch.setattr("ray._private.worker.global_worker", SimpleNamespace(node=node, core_worker=core))
        do(another, os.mkdir, session / FOLDER)
        agent, answers = PageAgent(), list[int]()
        thread = threading.Thread(target=lambda: answers.append(agent.write(PAGE)))
        thread.start()
        wait_for(lambda: "belongs to user id 65534" in agent._said)
        assert answers == []
        (session / FOLDER).rename(session / "theirs")
        thread.join(30)
        assert answers == [1]
        assert page_as_read(folder) == PAGE


# -- pages


class TestPages:
    def test_another_user_can_read_them(self, folder: Path, another: ProcessPoolExecutor) -> None:
        writer = Writer(folder)
        for count in range(1, 4):
            writer.write(Page(count=count, bound=True))
            assert do(another, page_as_read, folder) == Page(count=count, bound=True)
        with pytest.raises(PermissionError):
            do(another, os.listdir, folder.parent)

    def test_a_page_that_another_user_forged_is_unreadable(self, folder: Path, another: ProcessPoolExecutor) -> None:
        do(another, forge, folder, Page(count=7))
        with pytest.raises(Unreadable, match="belongs to user id 65534, not to 0"):
            page_as_read(folder)

    def test_a_page_behind_a_link_is_unreadable(
        self, session: Path, folder: Path, another: ProcessPoolExecutor
    ) -> None:
        do(another, forge_by_links, folder, session / "theirs", Page(count=7))
        with pytest.raises(Unreadable, match="is a symbolic link"):
            page_as_read(folder)

    def test_a_page_in_a_folder_of_ours_that_everybody_may_write_to_is_unreadable(
        self, folder: Path, another: ProcessPoolExecutor
    ) -> None:
        folder.parent.mkdir()
        folder.parent.chmod(0o777)
        do(another, forge, folder, Page(count=7))
        with pytest.raises(Unreadable, match="can be written by other users"):
            page_as_read(folder)

    @pytest.mark.parametrize("name", ["count", "1.json"])
    def test_a_pipe_instead_of_a_file_blocks_no_reader(self, folder: Path, name: str) -> None:
        Writer(folder).write(PAGE)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(Unreadable, match="is not a file"):
            page_as_read(folder)

    def test_pages_of_the_owner_of_the_session_folder_count(self, session: Path, folder: Path) -> None:
        """root reads what the user who runs the cluster wrote."""
        Writer(folder).write(PAGE)
        for path in (*folder.iterdir(), folder, folder.parent, session):
            os.chown(path, ANOTHER, ANOTHER)
        assert page_as_read(folder) == PAGE


# -- files of SQLite's


def opened(folder: Path) -> Stores:
    return Stores(folder, Settings(patience=None), SimpleNamespace(get=lambda _: None))  # type: ignore[arg-type]


class TestFilesOfSQLite:
    @pytest.mark.parametrize("link", [os.link, os.symlink])
    @pytest.mark.parametrize("name", [JOURNAL, STATE, f"{JOURNAL}-wal", f"{STATE}-shm"])
    def test_a_link_is_refused_and_stays_where_it_is(
        self, session: Path, secret: Path, name: str, link: Callable[[Path, Path], None]
    ) -> None:
        folder = open_folder(session)
        opened(folder).close()
        (folder / name).unlink(missing_ok=True)
        link(secret, folder / name)
        with pytest.raises(NotOurs, match=r"symbolic link|hard link") as refused:
            opened(folder)
        assert is_one_sentence(refused.value, folder / name)
        assert (secret.read_text(), mode(secret)) == (SECRET, 0o644)
        assert not list(folder.glob("*.unreadable"))

    def test_a_file_of_another_user_is_refused(self, session: Path) -> None:
        path = open_folder(session) / "audit.sqlite"
        os.chown(private(path), ANOTHER, ANOTHER)
        with pytest.raises(NotOurs, match="belongs to user id 65534"):
            private(path)

    def test_a_check_drops_no_lock_of_sqlite(self, session: Path) -> None:
        path = private(open_folder(session) / "audit.sqlite")
        write = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
        with closing(sqlite3.connect(path, isolation_level=None)) as ours:
            ours.execute("BEGIN IMMEDIATE")
            private(path)
            other = subprocess.run([sys.executable, "-c", write, path], capture_output=True, text=True, check=False)
        assert "database is locked" in other.stderr
