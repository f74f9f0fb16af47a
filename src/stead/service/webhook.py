"""The webhook: a message to another service when work has been pending for too long, and one when it no longer is.

Rule: a receiver that fails affects only this thread, and one line in the log. Each kind of pending work is reported
once; an undelivered message is sent later if it is still true. The URL may hold a secret, so only its origin is ever
printed. Messages go straight to that origin: no redirect is followed, and no proxy is used.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import logging
import os
import re
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stead.errors import Invalid, sentence
from stead.operate.desk import Desk
from stead.operate.origins import origin_of
from stead.operate.pending import Kind, Pending
from stead.operate.snapshot import Snapshot

SECRET = "STEAD_WEBHOOK_SECRET"
SIGNATURE = "X-Stead-Signature"
SECRET_BYTES_MAX = 4096
GOOD = "https://hooks.example.com/stead"

LOOK_S = 15.0
ANSWER_S = 5.0
"""How long the receiver may be silent."""

MESSAGE_S = 15.0
"""How long one attempt may take in total."""

PAUSES_S = (1.0, 4.0, 16.0)
"""Pauses between the attempts for one message; then it waits until the receiver is tried again."""

REST_MAX_S = 600.0
END_S = 5.0
"""How long shutdown waits for a receiver that hangs."""

KINDS_MAX = 100
"""Maximum number of kinds of work that are reported as pending at the same time."""

_QUERY = re.compile(r"[A-Za-z0-9._~%/&=+,:-]*")

log = logging.getLogger(__name__)


class Undelivered(Exception):
    """The receiver did not accept a message; the text says why."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where messages go, and the secret that signs them."""

    url: str = field(repr=False)
    secret: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        base, _, query = self.url.partition("?")
        try:
            origin_of(base)
        except Invalid:
            raise Invalid(f"the webhook URL must look like {GOOD}, http or https, without a user name") from None
        if not _QUERY.fullmatch(query):
            raise Invalid(f"the query of the webhook URL must look like {GOOD}?team=blue")

    @property
    def origin(self) -> str:
        """The part of the URL that may be printed."""
        return "/".join(self.url.partition("?")[0].split("/")[:3])

    @property
    def _target(self) -> str:
        base, mark, query = self.url.partition("?")
        return f"{base[len(self.origin) :] or '/'}{mark}{query}"

    def post(self, message: dict[str, Any]) -> None:
        """Deliver one message, or raise `Undelivered`."""
        body = json.dumps(message).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "stead", "Connection": "close"}
        if self.secret:
            headers[SIGNATURE] = f"sha256={hmac.new(self.secret, body, hashlib.sha256).hexdigest()}"
        connection = self._connection()
        in_time = threading.Timer(MESSAGE_S, _cut, [connection])
        in_time.daemon = True
        in_time.start()
        try:
            connection.request("POST", self._target, body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Undelivered(sentence(error) or type(error).__name__) from None
        finally:
            in_time.cancel()
            connection.close()
        if not 200 <= status < 300:
            raise Undelivered(f"it answers {status}")

    def _connection(self) -> http.client.HTTPConnection:
        origin = origin_of(self.url.partition("?")[0])
        if origin.scheme == "http":
            return http.client.HTTPConnection(origin.host, origin.port, timeout=ANSWER_S)
        trusted = ssl.create_default_context()
        return http.client.HTTPSConnection(origin.host, origin.port, timeout=ANSWER_S, context=trusted)


def _cut(connection: http.client.HTTPConnection) -> None:
    """Aborts a receiver that answers one byte at a time."""
    with suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)


def secret_of(file: str | None) -> bytes:
    """The secret in a file that only its owner can read, or in the variable STEAD_WEBHOOK_SECRET; empty if neither is
    given."""
    text = os.environ.get(SECRET, "")
    if file is None:
        return text.encode()
    if text:
        raise Invalid(f"the webhook secret is given twice; unset {SECRET}, or leave out --webhook-secret-file")
    try:
        with Path(file).open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            found = opened.read(SECRET_BYTES_MAX).strip() if stat.S_ISREG(mode) else b""
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "this is not a path"
        raise Invalid(f"--webhook-secret-file {file} cannot be read: {reason}; give a file with one line") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Invalid(f"--webhook-secret-file {file} can be read by others; restrict it first: chmod 600 {file}")
    if not found:
        raise Invalid(f"--webhook-secret-file {file} has no secret; give a file with one line")
    return found


class Webhook:
    """Watches the pending work of a desk, in its own thread. Work that is pending for `pending_s` is reported."""

    def __init__(self, desk: Desk, receiver: Receiver, pending_s: float, pauses_s: Sequence[float] = PAUSES_S) -> None:
        self._desk, self._receiver, self._pending_s, self._pauses_s = desk, receiver, pending_s, pauses_s
        self._told: dict[str, dict[str, Any]] = {}  # by kind: the message that was delivered
        self._stopping = threading.Event()
        self._fails = self._has_many = False

    @contextmanager
    def running(self, look_s: float | None = None) -> Iterator[None]:
        look_s = min(LOOK_S, max(1.0, self._pending_s / 10)) if look_s is None else look_s
        thread = threading.Thread(target=self._run, args=(look_s,), name="stead-webhook", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(END_S)

    def _run(self, look_s: float) -> None:
        rest = look_s
        while not self._stopping.wait(rest):
            rest = look_s if self.look() else min(2 * rest, max(REST_MAX_S, look_s))

    def look(self) -> bool:
        """Check the pending work and report what is new; False if the receiver failed."""
        try:
            snapshot: Callable[[], Snapshot] = self._desk.snapshot  # type: ignore[attr-defined]
            pending, title = Pending(snapshot()), self._desk.summary().title
        except Exception:  # requests report what is wrong with the cluster
            log.debug("the webhook sees no cluster", exc_info=True)
            return True
        for message in self._news(pending, title):
            if not self._deliver(message):
                return False
            if message["event"] == "pending":
                self._told[message["id"]] = message
            else:
                del self._told[message["id"]]
        return True

    def _news(self, pending: Pending, title: str) -> Iterator[dict[str, Any]]:
        """Ended kinds first. A kind has ended when its oldest piece is not even half as late."""
        kinds = {kind.id: kind for kind in pending.kinds}
        for id, message in list(self._told.items()):
            if id not in kinds or self._age(kinds[id], pending) <= self._pending_s / 2:
                count = kinds[id].count if id in kinds else 0
                yield {**message, "event": "over", "at": pending.at, "count": count}
        late = [kind for kind in pending.kinds if self._age(kind, pending) > self._pending_s]
        fresh = [kind for kind in late if kind.id not in self._told]
        for kind in fresh[: max(0, KINDS_MAX - len(self._told))]:
            yield self._message(kind, pending, title)
        if len(late) > KINDS_MAX and not self._has_many:
            log.warning("%d kinds of work are pending too long; the webhook reports %d", len(late), KINDS_MAX)
        self._has_many = len(late) > KINDS_MAX

    def _age(self, kind: Kind, pending: Pending) -> float:
        return 0.0 if kind.since is None else pending.at - kind.since

    def _message(self, kind: Kind, pending: Pending, title: str) -> dict[str, Any]:
        why = ""
        with suppress(Exception):  # it may have started in the meantime; the news is that it was pending
            why = sentence(self._desk.why(kind.example))
        return {
            "event": "pending",
            "id": kind.id,
            "cluster": title,
            "name": kind.name,
            "owner": kind.owner,
            "count": kind.count,
            "since": kind.since,
            "at": pending.at,
            "longer_than_s": self._pending_s,
            "example": kind.example,
            "why": why,
        }

    def _deliver(self, message: dict[str, Any]) -> bool:
        reason = ""
        for pause in (0.0, *self._pauses_s):
            if self._stopping.wait(pause):
                return False
            try:
                self._receiver.post(message)
                self._fails = False
                return True
            except Undelivered as error:
                reason = str(error)
        if not self._fails:
            log.warning("the webhook at %s does not take messages (%s); retrying", self._receiver.origin, reason)
        self._fails = True
        return False
