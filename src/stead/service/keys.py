"""Keys: who may ask and who may change, by token.

Rule: tokens are compared in constant time, by their digests; they are in no URL and in no log. The operator's token of
a machine is in a file that only its user can read; of tokens for others only digests are kept. A browser never keeps
a token: its cookie is made from one, ends by itself, and ends with the token.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stead.errors import Invalid

ROLES = ("viewer", "operator")
PREFIX = "stead_"
FOLDER = "STEAD_HOME"
RAY_TOKEN = "RAY_AUTH_TOKEN"
RAY_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"

COOKIE = "stead_session"
SESSION_S = 12 * 3600
ATTRIBUTES = "Path=/; HttpOnly; SameSite=Strict"


@dataclass(frozen=True, slots=True)
class Key:
    """Somebody who has shown a token."""

    name: str
    role: str

    @property
    def may_change(self) -> bool:
        return self.role == "operator"


def home() -> Path:
    """Where stead keeps what belongs to a user: the variable STEAD_HOME, else .stead in the home directory."""
    return Path(os.environ.get(FOLDER) or Path.home() / ".stead")


class Keys:
    """The tokens that a service accepts."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or home()
        self._operator_path = self._folder / "token"
        self._given_path = self._folder / "tokens.json"
        self._read_at: tuple[object, ...] | None = None
        self._known: list[tuple[bytes, Key]] = []

    def operator_token(self) -> str:
        """Ray's own token where there is one, else the one of this machine, made when it is first asked for."""
        return ray_token() or self._own_token()

    def known_operator_token(self) -> str:
        """The same, but none is made: "" where there is none."""
        if found := ray_token():
            return found
        with suppress(OSError):
            return self._operator_path.read_text().strip()
        return ""

    def _own_token(self) -> str:
        with suppress(FileNotFoundError):
            return self._kept_token()
        token = PREFIX + secrets.token_urlsafe(32)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._folder / f".token-{secrets.token_hex(8)}"
        _write_closed(fresh, token + "\n")
        try:
            os.link(fresh, self._operator_path)  # all of it at once, and only where there is none
        except FileExistsError:  # somebody else was first
            return self._kept_token()
        finally:
            fresh.unlink()
        return token

    def _kept_token(self) -> str:
        _refuse_open(self._operator_path)
        found = self._operator_path.read_text().strip()
        if not found:
            raise Invalid(f"{self._operator_path} is empty; remove it, and a new token is made")
        return found

    def give(self, role: str, name: str) -> str:
        """A new token for somebody; it is shown once, and only its digest is kept."""
        if role not in ROLES:
            raise Invalid(f"role {role!r} is unknown; good values are {', '.join(ROLES)}")
        if not name or not name.isprintable() or len(name) > 64:
            raise Invalid(f"name {name!r} must be up to 64 letters, for example 'ci'")
        token = PREFIX + secrets.token_urlsafe(32)
        with self._alone():
            given = [each for each in self._given() if each["name"] != name]
            given.append({"name": name, "role": role, "digest": _digest(token).hex()})
            self._write_given(given)
        return token

    def take_back(self, name: str) -> None:
        with self._alone():
            given = self._given()
            kept = [each for each in given if each["name"] != name]
            if len(kept) == len(given):
                names = ", ".join(each["name"] for each in given) or "none"
                raise Invalid(f"there is no token named {name!r}; there are {names}")
            self._write_given(kept)

    def names(self) -> list[tuple[str, str]]:
        return [(each["name"], each["role"]) for each in self._given()]

    def of(self, token: str) -> Key | None:
        """Whose token it is. Every known one is compared, so that the time taken tells nothing."""
        digest, found = _digest(token), None
        for known, key in self._all():
            if hmac.compare_digest(known, digest):
                found = key
        return found if token else None

    def cookie(self, token: str, secure: bool = False) -> str | None:
        """``Set-Cookie`` for somebody who logs in with a token; None if the token is nobody's."""
        if self.of(token) is None:
            return None
        until = int(time.time()) + SESSION_S
        value = f"{until}.{_signed(_digest(token), until)}"
        return f"{COOKIE}={value}; Max-Age={SESSION_S}; {ATTRIBUTES}{'; Secure' if secure else ''}"

    def of_cookie(self, value: str) -> Key | None:
        """Whose token a browser logged in with, if that is not too long ago and the token still stands."""
        until, _, signature = value.partition(".")
        if not until.isascii() or not until.isdecimal() or len(until) > 12 or int(until) < time.time():
            return None
        found = None
        for digest, key in self._all():
            if hmac.compare_digest(_signed(digest, int(until)).encode(), signature.encode()):
                found = key
        return found

    def _all(self) -> list[tuple[bytes, Key]]:
        stamps = _stamp(self._operator_path), _stamp(self._given_path), ray_token()
        if not self._known or stamps != self._read_at:
            known = [(_digest(self.operator_token()), Key("operator", "operator"))]
            known += [(bytes.fromhex(each["digest"]), Key(each["name"], each["role"])) for each in self._given()]
            self._known, self._read_at = known, stamps
        return self._known

    def _given(self) -> list[dict[str, str]]:
        try:
            _refuse_open(self._given_path)
            found = json.loads(self._given_path.read_text())
            return [{name: str(each[name]) for name in ("name", "role", "digest")} for each in found]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError):
            raise Invalid(f"{self._given_path} is damaged; move it away, and make the tokens anew") from None

    def _write_given(self, given: list[dict[str, str]]) -> None:
        fresh = self._given_path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        _write_closed(fresh, json.dumps(given, indent=1))
        fresh.replace(self._given_path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process changes the tokens meanwhile."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            os.close(number)


def forgotten_cookie() -> str:
    """``Set-Cookie`` for somebody who logs out."""
    return f"{COOKIE}=; Max-Age=0; {ATTRIBUTES}"


def ray_token() -> str:
    """The token of Ray's own authentication, by its variables."""
    if token := os.environ.get(RAY_TOKEN, "").strip():
        return token
    if path := os.environ.get(RAY_TOKEN_PATH):
        with suppress(OSError):
            return Path(path).read_text().strip()
    return ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def _signed(digest: bytes, until: int) -> str:
    return hmac.new(digest, f"session until {until}".encode(), hashlib.sha256).hexdigest()


def _write_closed(path: Path, text: str) -> None:
    """A new file that only its owner can read, from its first moment on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _refuse_open(path: Path) -> None:
    """A token that others can read is no token."""
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Invalid(f"{path} can be read by others; close it first: chmod 600 {path}")
