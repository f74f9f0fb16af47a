"""Tokens: who may read and who may change.

Rule: tokens are compared in constant time, by their digests; they are in no URL and in no log. The operator's token of
a machine is in a file that only its user can read; of other tokens only digests are stored. A browser never stores a
token: it holds a random session id that only the running service knows, and that ends with its token.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import stat
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from stead.errors import Invalid, absent, check_name

ROLES = ("viewer", "operator")
PREFIX = "stead_"
FOLDER = "STEAD_HOME"
OPERATOR_FILE = "token"
GIVEN_FILE = "tokens.json"
RAY_TOKEN = "RAY_AUTH_TOKEN"
RAY_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"

COOKIE = "stead_session"
LOOK_S = 0.05
"""For this long a known token is accepted without checking the files: each check lets other threads run first."""

SESSION_S = 12 * 3600
SESSIONS_OF_ONE_MAX = 100
SESSIONS_MAX = 1000
ATTRIBUTES = "Path=/; HttpOnly; SameSite=Strict"

NAME_MAX = 64


@dataclass(frozen=True, slots=True)
class Key:
    """The owner of a valid token."""

    name: str
    role: str

    @property
    def may_change(self) -> bool:
        return self.role == "operator"


def home() -> Path:
    """Where stead stores the files of a user: the variable STEAD_HOME, else .stead in the home directory. A folder that
    others could change is refused; the folder need not exist yet."""
    found = Path(os.environ.get(FOLDER) or Path.home() / ".stead")
    with suppress(OSError):
        _refuse_folder(found, found.lstat())
    return found


class Keys:
    """The tokens that a service accepts, and the sessions of the browsers that signed in with one."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or home()
        self._watched = [str(self._folder), *(str(self._folder / name) for name in (OPERATOR_FILE, GIVEN_FILE))]
        self._read_at: tuple[object, ...] | None = None
        self._known: list[tuple[bytes, Key]] = []
        self._looked = -inf
        self._sessions = Sessions()

    def operator_token(self) -> str:
        """The operator's token of this machine, created on the first call. Never Ray's: that one is only for Ray."""
        with suppress(FileNotFoundError):
            return self._kept_token()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        token, fresh = PREFIX + secrets.token_urlsafe(32), f".token-{secrets.token_hex(8)}"
        with self._opened() as folder:
            _write_closed(folder, fresh, token + "\n")
            try:  # atomically, and only if there is none
                os.link(fresh, OPERATOR_FILE, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:  # another process was first
                return self._kept_token()
            finally:
                os.unlink(fresh, dir_fd=folder)
        return token

    def known_operator_token(self) -> str:
        """The same, but never created: "" if there is none."""
        with suppress(OSError):
            return self._read(OPERATOR_FILE).strip()
        return ""

    def _kept_token(self) -> str:
        found = self._read(OPERATOR_FILE).strip()
        if not found:
            raise Invalid(f"{self._folder / OPERATOR_FILE} is empty; remove it, and a new token is created")
        return found

    def give(self, role: str, name: str) -> str:
        """A new token; it is shown once, and only its digest is stored."""
        if role not in ROLES:
            raise Invalid(f"role {role!r} is unknown; good values are {', '.join(ROLES)}")
        check_name("the name", name, NAME_MAX, "ci")
        token = PREFIX + secrets.token_urlsafe(32)
        with self._alone() as folder:
            given = [each for each in self._given() if each["name"] != name]
            given.append({"name": name, "role": role, "digest": _digest(token).hex()})
            _replace_closed(folder, GIVEN_FILE, json.dumps(given, indent=1))
        return token

    def take_back(self, name: str) -> None:
        with self._alone() as folder:
            given = self._given()
            kept = [each for each in given if each["name"] != name]
            if len(kept) == len(given):
                raise Invalid(absent("token named", name, (each["name"] for each in given), where=""))
            _replace_closed(folder, GIVEN_FILE, json.dumps(kept, indent=1))
        self._looked = -inf

    def names(self) -> list[tuple[str, str]]:
        return [(each["name"], each["role"]) for each in self._given()]

    def of(self, token: str) -> Key | None:
        """The owner of a token. It is compared with every known one, so that the duration reveals nothing."""
        return self._holder(_digest(token)) if token else None

    # -- browsers

    def cookie(self, token: str, secure: bool = False) -> str | None:
        """``Set-Cookie`` for a browser that signs in with a token; None if the token is unknown."""
        if self.of(token) is None:
            return None
        session = self._sessions.open(_digest(token))
        return f"{COOKIE}={session}; Max-Age={SESSION_S}; {ATTRIBUTES}{'; Secure' if secure else ''}"

    def of_cookie(self, session: str) -> Key | None:
        """The owner of a session's token, while the session lasts and the token is accepted."""
        digest = self._sessions.token_of(session)
        return self._holder(digest) if digest is not None else None

    def sign_out(self, session: str) -> None:
        """End a session; its cookie is useless from now on."""
        self._sessions.close(session)

    # -- files

    def _holder(self, digest: bytes) -> Key | None:
        """A new token is accepted at once; a revoked one is refused after a short time."""
        found = None
        if time.monotonic() - self._looked < LOOK_S:
            found = _named(digest, self._known)
        return found or _named(digest, self._all())

    def _all(self) -> list[tuple[bytes, Key]]:
        """Every accepted token by its digest, read again when a file changes. Ray's token is accepted as an
        operator's."""
        of_ray = ray_token()
        stamps = *(_stamp(path) for path in self._watched), of_ray
        self._looked = time.monotonic()
        if not self._known or stamps != self._read_at:
            operators = [self.operator_token(), *([of_ray] if of_ray else [])]
            known = [(_digest(token), Key("operator", "operator")) for token in operators]
            known += [(bytes.fromhex(each["digest"]), Key(each["name"], each["role"])) for each in self._given()]
            self._known, self._read_at = known, stamps
            self._sessions.keep({digest for digest, _ in known})
        return self._known

    def _given(self) -> list[dict[str, str]]:
        try:
            found = json.loads(self._read(GIVEN_FILE))
            given = [{name: str(each[name]) for name in ("name", "role", "digest")} for each in found]
            for each in given:
                bytes.fromhex(each["digest"])
        except FileNotFoundError:
            return []
        except Invalid:
            raise
        except (ValueError, TypeError, KeyError):
            path = self._folder / GIVEN_FILE
            raise Invalid(f"{path} is damaged; move it away, and create the tokens again") from None
        return given

    def _read(self, name: str) -> str:
        with self._opened() as folder:
            return _read_closed(folder, name, self._folder / name)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder, checked and kept open, so that it cannot be replaced between the check and the use."""
        _refuse_folder(self._folder, self._folder.lstat())
        number = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _refuse_folder(self._folder, os.fstat(number))
            yield number
        finally:
            os.close(number)

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """The folder, locked against other processes that change the tokens."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._opened() as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield folder


@dataclass(frozen=True, slots=True)
class _Session:
    """One signed-in browser. Both clocks count: one stops while the machine sleeps, users can set the other."""

    digest: bytes  # of the token
    began: float
    began_on_the_wall: float

    @property
    def is_expired(self) -> bool:
        return max(time.monotonic() - self.began, time.time() - self.began_on_the_wall) >= SESSION_S


class Sessions:
    """The signed-in browsers. Only in memory: after a restart of the service users sign in again.

    If there are too many, the least recently used session ends: of the same token if that token has too many, else of
    the token with the most sessions.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, _Session] = OrderedDict()  # by the digest of its id, the last used at the end
        self._lock = threading.Lock()

    def open(self, digest: bytes) -> str:
        """The id of a new session."""
        id = secrets.token_urlsafe(32)
        with self._lock:
            for each in [each for each, session in self._kept.items() if session.is_expired]:
                del self._kept[each]
            counts = Counter(session.digest for session in self._kept.values())
            if counts[digest] >= SESSIONS_OF_ONE_MAX:
                self._end_one_of(digest)
            elif len(self._kept) >= SESSIONS_MAX:
                self._end_one_of(counts.most_common(1)[0][0])
            self._kept[_digest(id)] = _Session(digest, time.monotonic(), time.time())
        return id

    def token_of(self, id: str) -> bytes | None:
        """The digest of a session's token; None if there is no such session, or it has expired."""
        with self._lock:
            found = self._kept.get(_digest(id))
            if found is None or found.is_expired:
                return None
            self._kept.move_to_end(_digest(id))
            return found.digest

    def close(self, id: str) -> None:
        with self._lock:
            self._kept.pop(_digest(id), None)

    def keep(self, digests: set[bytes]) -> None:
        """End the sessions of all other tokens."""
        with self._lock:
            for each in [each for each, session in self._kept.items() if session.digest not in digests]:
                del self._kept[each]

    def _end_one_of(self, digest: bytes) -> None:
        del self._kept[next(each for each, session in self._kept.items() if session.digest == digest)]


def forgotten_cookie() -> str:
    """``Set-Cookie`` for a browser that signs out."""
    return f"{COOKIE}=; Max-Age=0; {ATTRIBUTES}"


def ray_token() -> str:
    """The token of Ray's own authentication, from its environment variables."""
    if token := os.environ.get(RAY_TOKEN, "").strip():
        return token
    if path := os.environ.get(RAY_TOKEN_PATH):
        with suppress(OSError):
            return Path(path).read_text().strip()
    return ""


def _named(digest: bytes, tokens: list[tuple[bytes, Key]]) -> Key | None:
    """The owner of the token with this digest."""
    found = None
    for known, key in tokens:
        if hmac.compare_digest(known, digest):
            found = key
    return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


# -- files and folders that only their owner can change


def _refuse_folder(path: Path, found: os.stat_result) -> None:
    """Refuse a folder that others can change: they could put a token there."""
    if stat.S_ISLNK(found.st_mode):
        raise Invalid(f"{path} is a symbolic link; use the folder itself, for example {FOLDER}={path.resolve()}")
    if not stat.S_ISDIR(found.st_mode):
        raise Invalid(f"{path} is not a folder; set {FOLDER}, for example {FOLDER}=~/.stead")
    if not _is_ours(found):
        raise Invalid(f"{path} belongs to another user; make it yours: chown $(id -u) {path}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Invalid(f"{path} can be changed by others; restrict it first: chmod 700 {path}")


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid in (os.geteuid(), 0)  # root can change everything anyway


def _read_closed(folder: int, name: str, path: Path) -> str:
    """The text of a file of tokens. A file that others can read is refused."""
    try:  # non-blocking, in case it is a pipe
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            good = f'mv "$(readlink -f {path})" {path}'
            raise Invalid(f"{path} is a symbolic link; put the file itself there: {good}") from None
        raise
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            raise Invalid(f"{path} is not a regular file; move it away: mv {path} {path}.old")
        if not _is_ours(found):
            raise Invalid(f"{path} belongs to another user; make it yours: chown $(id -u) {path}")
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise Invalid(f"{path} can be read by others; restrict it first: chmod 600 {path}")
        with os.fdopen(number, encoding="utf-8", closefd=False) as file:
            return file.read()
    except UnicodeDecodeError:
        raise Invalid(f"{path} is damaged; move it away: mv {path} {path}.old") from None
    finally:
        os.close(number)


def _write_closed(folder: int, name: str, text: str) -> None:
    """A new file that only its owner can read, from its creation on."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _replace_closed(folder: int, name: str, text: str) -> None:
    fresh = f"{name}.new"
    with suppress(FileNotFoundError):  # left by a process that was killed
        os.unlink(fresh, dir_fd=folder)
    _write_closed(folder, fresh, text)
    os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)


def _stamp(path: str) -> tuple[int, ...] | None:
    """Changes with the content, the owner or the mode; for a folder, only with its identity, owner and mode."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    who = found.st_ino, found.st_mode, found.st_uid
    return who if stat.S_ISDIR(found.st_mode) else (*who, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
