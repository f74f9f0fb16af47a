"""Stead's folders and files in Ray's session folder, where other users of the machine may write too.

Rule: stead uses nothing that another user could have put there. It refuses a symbolic link, a hard link, a file or
folder of another user, and one that others may write (`NotOurs`). It does not follow them, write to them or change
their mode. An open folder is used through its descriptor, so files stay in it even if it is renamed.

Ray makes its temporary folder and its session folders writable for everyone, and repeats that whenever a node starts on
the machine. With the sticky bit, other users can still add files there, but cannot rename or remove stead's. So `Watch`
keeps checking: it sets the bit again, and renames a folder back that another user has renamed.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from stead.errors import Unready

WATCH_S = 0.5
"""How often the sticky bit is checked. After a node has started, it may be missing for this long."""

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
SEARCH_ONLY: int = getattr(os, "O_PATH", os.O_RDONLY)
"""Opens a folder that this user may enter but not list. Only Linux has it; other systems need the right to list."""

BESIDE = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite creates beside its file."""

log = logging.getLogger(__name__)


class NotOurs(Unready):
    """Another user may have put this where stead expects its own file or folder."""


def check(path: Path, found: os.stat_result, is_kind: Callable[[int], bool], owners: frozenset[int]) -> None:
    """Raise `NotOurs` unless this is a folder (or file) that only these users can have written."""
    kind = "folder" if is_kind is stat.S_ISDIR else "file"
    if stat.S_ISLNK(found.st_mode):
        why = "is a symbolic link, which stead does not follow"
    elif not is_kind(found.st_mode):
        why = f"is not a {kind}"
    elif found.st_uid not in owners:
        why = f"belongs to user id {found.st_uid}, not to {' or '.join(map(str, sorted(owners)))}"
    elif found.st_mode & OTHERS_MAY_WRITE:
        why = f"can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})"
    elif stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        why = "has a second name (a hard link)"
    else:
        return
    raise NotOurs(f"{path} {why}, so another user may have put it there; move it away, for example to {path}.old")


class Folder:
    """An open folder and the files in it. Its descriptor is closed with the last reference to it."""

    def __init__(self, path: Path, number: int, owners: frozenset[int] = frozenset()) -> None:
        self.path, self.number, self._owners = path, number, owners
        weakref.finalize(self, os.close, number)

    @classmethod
    def of_ray(cls, path: Path) -> Folder:
        """A folder that Ray created, whoever owns it. Stead lists it, and sets its sticky bit."""
        return cls(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY))

    @classmethod
    def made(cls, path: Path, mode: int, within: Folder | None = None) -> Folder:
        """A folder for writing, which this user must own. It is created if needed, and gets this mode."""
        name, at = _place(path, within)
        with suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=at)
        folder = cls.entered(path, frozenset({os.geteuid()}), within, os.O_RDONLY)
        os.fchmod(folder.number, mode)  # the umask may have removed permissions
        return folder

    @classmethod
    def entered(
        cls, path: Path, owners: frozenset[int], within: Folder | None = None, access: int = SEARCH_ONLY
    ) -> Folder:
        """A folder that one of these users owns, and that no other user may write to."""
        number = _opened(path, within, access | os.O_DIRECTORY, stat.S_ISDIR, owners)
        return cls(path, number, owners)

    def names(self) -> list[str]:
        return os.listdir(self.number)

    def open(self, name: str, access: int = os.O_RDONLY) -> int:
        """A descriptor of a file in the folder. The caller closes it."""
        return _opened(self.path / name, self, access, stat.S_ISREG, self._owners)

    def read(self, name: str) -> bytes:
        with open(self.open(name), "rb") as file:
            return file.read()

    def replace(self, name: str, content: bytes, mode: int) -> None:
        """Write a file atomically: a reader sees either all of the old content or all of the new."""
        self.remove("unfinished")
        number = os.open("unfinished", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=self.number)
        with open(number, "wb") as file:
            os.fchmod(number, mode)
            file.write(content)
        os.replace("unfinished", name, src_dir_fd=self.number, dst_dir_fd=self.number)

    def overwrite(self, name: str, content: bytes, mode: int) -> bool:
        """Write into a file that other processes have mapped. Returns False if there is no such file."""
        try:
            number = self.open(name, os.O_WRONLY)
        except FileNotFoundError:
            return False
        with open(number, "wb", buffering=0) as file:
            os.fchmod(number, mode)
            file.write(content)
        return True

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.number)


def _opened(
    path: Path, within: Folder | None, access: int, is_kind: Callable[[int], bool], owners: frozenset[int]
) -> int:
    """Open this path and check it twice: before (so that opening cannot block, and the error is precise) and after
    (because it may have been replaced in between)."""
    name, at = _place(path, within)
    check(path, os.stat(name, dir_fd=at, follow_symlinks=False), is_kind, owners)
    number = os.open(name, access | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    try:
        check(path, os.fstat(number), is_kind, owners)
    except NotOurs:
        os.close(number)
        raise
    return number


def _place(path: Path, within: Folder | None) -> tuple[Path | str, int | None]:
    return (path, None) if within is None else (path.name, within.number)


def private(path: Path) -> Path:
    """A SQLite file in one of stead's folders that only its owner may read and write. It is created if needed. SQLite
    gives the files beside it the same mode.

    An existing file is checked but not opened: closing it would drop the locks that SQLite holds on it in this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    for each in (path, *(path.with_name(path.name + suffix) for suffix in BESIDE)):
        with suppress(FileNotFoundError):
            check(each, each.lstat(), stat.S_ISREG, frozenset({os.geteuid()}))
            each.chmod(0o600)
    return path


# -- Ray's folders above


def protect(session: Path) -> None:
    """Set the sticky bit on a session folder of Ray's and on the folder above it, or warn about them."""
    for path in (session.parent, session):
        with suppress(PermissionError):  # another user owns it: it can be entered, but not listed
            set_sticky_bit(Folder.of_ray(path))


def set_sticky_bit(folder: Folder) -> None:
    """Stop other users from renaming or removing stead's files in this folder. If only its owner can do that, warn
    once."""
    found = os.fstat(folder.number)
    is_open = bool(found.st_mode & OTHERS_MAY_WRITE) and not found.st_mode & stat.S_ISVTX
    is_mine = found.st_uid == os.geteuid()
    if is_open and is_mine:
        with suppress(OSError):  # this file system has no such bit
            os.fchmod(folder.number, stat.S_IMODE(found.st_mode) | stat.S_ISVTX)
            return
    if is_open:
        _warn(
            f"other users can rename or remove stead's files, because {folder.path} has no sticky bit; "
            f"run chmod +t {folder.path} as user id {found.st_uid}, who owns it"
        )
    elif not is_mine and found.st_uid != 0:
        _warn(
            f"user id {found.st_uid} can rename or remove stead's files, because {folder.path} belongs to that user; "
            "start Ray with a folder of your own, for example --temp-dir=$HOME/ray"
        )


@cache
def _warn(text: str) -> None:
    """Log a warning once per process."""
    log.warning("%s", text)


class Watch:
    """Keeps the sticky bit on the two Ray folders above stead's folder, and stead's folder in its place."""

    def __init__(self, path: Path) -> None:
        self.hold(path)

    def hold(self, path: Path) -> None:
        """Watch the folder at this path."""
        ours, session = Folder.entered(path, frozenset({os.geteuid()})), Folder.of_ray(path.parent)
        self._held = [(session, ours)]
        with suppress(PermissionError):  # see `protect`
            self._held.insert(0, (Folder.of_ray(session.path.parent), session))

    def run(self) -> None:
        while True:
            time.sleep(WATCH_S)
            self.look()

    def look(self) -> None:
        for above, folder in self._held:
            try:
                set_sticky_bit(above)
                rename_back(above, folder)
            except OSError as error:
                _warn(f"another user renamed {folder.path}, and stead cannot rename it back: {error.strerror}")


def rename_back(above: Folder, folder: Folder) -> None:
    """Rename a folder back to its old name, unless another folder of this user has that name now. Anything else with
    that name is renamed."""
    name, ours = folder.path.name, os.fstat(folder.number)
    with suppress(FileNotFoundError, NotOurs):
        found = os.stat(name, dir_fd=above.number, follow_symlinks=False)
        if not os.path.samestat(found, ours):
            check(folder.path, found, stat.S_ISDIR, frozenset({os.geteuid()}))
        return
    for other in above.names():
        with suppress(FileNotFoundError):
            if not os.path.samestat(os.stat(other, dir_fd=above.number, follow_symlinks=False), ours):
                continue
            with suppress(FileNotFoundError):
                _rename(above, name, f"{name}.{time.time_ns()}.not-ours")
            _rename(above, other, name)
            log.warning("another user renamed %s to %s; stead renamed it back", folder.path, other)
            return


def _rename(within: Folder, old: str, new: str) -> None:
    os.rename(old, new, src_dir_fd=within.number, dst_dir_fd=within.number)


_watches: dict[Path, Watch] = {}
_watching = threading.Lock()


def watch(path: Path) -> None:
    """Watch one of stead's folders, in Ray's session folder, until this process ends."""
    with _watching:
        if path in _watches:
            _watches[path].hold(path)
        else:
            _watches[path] = Watch(path)
            threading.Thread(target=_watches[path].run, name="stead-folders", daemon=True).start()
