"""Services that a user has saved by name: each with its address, its token and the certificates to trust.

Rule: on the command line a saved service is called a context. All of them are in one file, `contexts.json`, that only
its user can read; it is replaced as a whole, and never read or written through a symbolic link. No token is ever
printed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.errors import Invalid, absent
from stead.operate.origins import Origin, check_token, origin_of

if TYPE_CHECKING:
    import click

FILE = "contexts.json"
RAYS_OWN = frozenset({"auto", "local"})
"""Addresses that have their own meaning for Ray."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class SavedService:
    """`ca` is the path of a file of certificates, or ""; `insecure` allows the token to cross a network in clear
    text."""

    name: str
    address: str
    token: str = field(default="", repr=False)
    ca: str = ""
    insecure: bool = False

    @property
    def origin(self) -> Origin:
        return origin_of(self.address)


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of the file: the services by name, and the name of the default one, or ""."""

    services: dict[str, SavedService] = field(default_factory=dict)
    default: str = ""


class SavedServices:
    def __init__(self, folder: Path | None = None) -> None:
        from stead.service.keys import home

        self._folder = folder or home()
        self._path = self._folder / FILE

    # -- asking

    def all(self) -> list[SavedService]:
        return list(self._read().services.values())

    def find(self, name: str) -> SavedService | None:
        return self._read().services.get(name)

    def get(self, name: str) -> SavedService:
        return _named(self._read(), name)

    def default(self) -> SavedService | None:
        content = self._read()
        return content.services.get(content.default)

    def at(self, address: str) -> SavedService | None:
        """The service that is saved with this address, or else with its origin."""
        origin = origin_of(address)
        found = [service for service in self.all() if service.origin == origin]
        found = [service for service in found if service.address == address.rstrip("/")] or found
        if len(found) > 1:
            names = ", ".join(service.name for service in found)
            raise Invalid(
                f"{address} is the address of several contexts: {names}; choose one: --address {found[0].name}"
            )
        return found[0] if found else None

    # -- changing

    def add(self, service: SavedService, overwrite: bool = False) -> None:
        check_name(service.name)
        check_token(service.address, service.token, service.insecure)
        with self._alone():
            content = self._read()
            if service.name in content.services and not overwrite:
                raise Invalid(f"there is a context {service.name!r} already; to replace it, give --overwrite")
            self._write(_Content({**content.services, service.name: service}, content.default))

    def use(self, name: str) -> None:
        """Set the default; "" for no default."""
        with self._alone():
            content = self._read()
            if name:
                _named(content, name)
            self._write(_Content(content.services, name))

    def remove(self, name: str) -> bool:
        """Returns whether it was the default; then there is no default any more."""
        with self._alone():
            content = self._read()
            _named(content, name)
            was_default = content.default == name
            kept = {each: service for each, service in content.services.items() if each != name}
            self._write(_Content(kept, "" if was_default else content.default))
        return was_default

    # -- the file

    def _read(self) -> _Content:
        try:
            number = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return _Content()
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Invalid(f"{self._path} is a symbolic link; replace it with a regular file") from None
            raise
        with os.fdopen(number, "rb") as file:
            self._refuse_open(os.fstat(number))
            text = file.read()
        try:
            found = json.loads(text)
            services = [_service(each) for each in found["contexts"]]
            default = found["default"]
            if not isinstance(default, str):
                raise TypeError("the default is not a name")
        except (ValueError, TypeError, KeyError):
            raise Invalid(f"{self._path} is damaged; move it away, and add your contexts again") from None
        return _Content({service.name: service for service in services}, default)

    def _refuse_open(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise Invalid(f"{self._path} is not a regular file; move it away, and add your contexts again")
        if found.st_uid not in (os.geteuid(), 0):
            raise Invalid(f"{self._path} belongs to another user; move it away, and add your contexts again")
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise Invalid(f"{self._path} can be read by others; restrict it first: chmod 600 {self._path}")

    def _write(self, content: _Content) -> None:
        """Replaces the file atomically: a concurrent reader gets the old or the new content."""
        written = {"default": content.default, "contexts": [asdict(service) for service in content.services.values()]}
        fresh = self._folder / f".contexts-{secrets.token_hex(8)}"
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            try:
                file.write(json.dumps(written, indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
                fresh.replace(self._path)
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds a lock, so that no other process changes the file."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            os.close(number)


def could_be_name(address: str) -> bool:
    """Whether an address may be the name of a context: it has no scheme and no port, and no meaning for Ray."""
    return _NAME.fullmatch(address) is not None and address not in RAYS_OWN


def check_name(name: str) -> None:
    if not could_be_name(name):
        raise Invalid(f"name {name!r} must be up to 64 letters, digits and '.', '_' or '-', for example 'prod'")


def _named(content: _Content, name: str) -> SavedService:
    if found := content.services.get(name):
        return found
    text = absent("context", name, content.services, where="")
    raise Invalid(f"{text}; add one with: stead context add NAME --address URL")


def _service(found: Any) -> SavedService:
    """Fields of newer versions are ignored."""
    texts = {name: found[name] for name in ("name", "address", "token", "ca")}
    if not all(isinstance(text, str) for text in texts.values()) or not isinstance(found["insecure"], bool):
        raise TypeError("a field has the wrong type")
    origin_of(texts["address"])
    return SavedService(**texts, insecure=found["insecure"])


# -- completion


def saved_names(context: click.Context, parameter: click.Parameter, begin: str) -> list[str]:
    """For shell completion: fast, and silent on errors."""
    try:
        return sorted(service.name for service in SavedServices().all() if service.name.startswith(begin))
    except (Invalid, OSError):
        return []
