"""The guard: what every request passes before anything looks at what it wants.

Rule: refuses by default. Only a short list of methods counts as harmless (`SAFE`) and only a short list of other
requests as mere questions (`QUESTIONS`); everything else is a change and needs an operator's token. A page of another
site can make a browser send requests here, and a name server can make its name point here; so the host that the
browser believes to speak to is checked on every request, and the origin on every one that is not safe.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from stead.errors import Invalid
from stead.service.keys import COOKIE, Key, Keys

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
QUESTIONS = frozenset({"/what-if", "/why", "/lint"})
QUESTION_PAGES = "/ui/ask/"
"""What is asked by POST because the question is long; nothing is changed."""

OPEN = frozenset({"/healthz", "/login", "/logout"})
ASSETS = "/static/"
"""Needs no token, wherever the service listens."""

PAGES = "/ui/"
LOGIN = "/login"
ONCE = frozenset({"host", "authorization", "origin", "sec-fetch-site", "content-length"})
"""Headers of which a second one could be read by one program and not by the next."""

BODY_MAX = 1 << 20
CLIENTS_MAX = 10_000

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with none at all, browsers would not tell the origin of a form either
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9_.-]{1,253}))(?::[0-9]{1,5})?")
_LENGTH = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one client may ask: requests a second on the long run, and so many at once."""

    reads: float = 500.0
    writes: float = 50.0
    wrong: float = 5.0  # tokens that nobody was given
    burst: float = 2.0  # seconds' worth
    at_once: int = 64  # of those who showed a token, and as many of those who did not
    questions: int = 8  # among them long questions
    body: int = BODY_MAX
    body_s: float = 10.0  # until all of a body has to be here
    reader_s: float = 30.0  # until somebody has to read on in the answer


@dataclass(slots=True)
class Bucket:
    left: float
    seen: float = field(default_factory=time.monotonic)

    def wait(self, rate: float, most: float) -> float:
        """Take one; or how many seconds until there is one."""
        now = time.monotonic()
        self.left = min(most, self.left + (now - self.seen) * rate)
        self.seen = now
        if self.left >= 1:
            self.left -= 1
            return 0.0
        return (1 - self.left) / rate


class _Refused(Exception):
    """Not let in: status, sentence and headers of the answer."""

    def __init__(self, status: int, said: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(said)
        self.status, self.said, self.headers = status, said, headers or {}


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_question(method: str, path: str) -> bool:
    """Whether a request changes nothing. What has steps up and down in its path is not taken for one."""
    if method in SAFE:
        return True
    return method == "POST" and (path in QUESTIONS or (path.startswith(QUESTION_PAGES) and _is_plain(path)))


def is_open(method: str, path: str) -> bool:
    """Whether it needs no token, wherever the service listens."""
    return path in OPEN or (method in SAFE and path.startswith(ASSETS) and _is_plain(path))


def _is_plain(path: str) -> bool:
    return not {"", ".", ".."} & set(path.split("/")[1:]) and "\\" not in path and path.isprintable()


class Guard:
    """An ASGI application around another one. `open_reads`: whether questions need no token (only on loopback)."""

    def __init__(
        self, app: App, keys: Keys, hosts: Iterable[str] = (), open_reads: bool = True, limits: Limits | None = None
    ) -> None:
        self._app, self._keys, self._open_reads = app, keys, open_reads
        self._hosts = {host.lower().strip("[]") for host in hosts}
        self._limits = limits or Limits()
        self._buckets: OrderedDict[tuple[str, str], Bucket] = OrderedDict()
        self._at_once = {"known": 0, "unknown": 0, "questions": 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        request = secrets.token_hex(8)
        answer = _Answer(send, request, self._limits.reader_s)
        try:
            headers = _headers(scope)
            key = self._let_in(scope, headers)
            scope.setdefault("state", {}).update(key=key, request=request)
            heard = await self._body(headers, receive)
            await self._one_of_many(scope, key, heard, answer)
        except _Refused as refused:
            await answer.refuse(refused.status, refused.said, refused.headers)

    # -- who may come in

    def _let_in(self, scope: Scope, headers: Mapping[str, str]) -> Key | None:
        """Whose token it is, if there is one; raises what the request is refused with."""
        method, path = scope["method"], scope["path"]
        host = _host(headers.get("host", ""))
        if not host or not (is_loopback(host) or host in self._hosts):
            said = f"host {headers.get('host', '')[:100]!r} is not one of this service"
            raise _Refused(403, f"{said}; allow it by --allow-host {host or 'NAME'}")
        if method not in SAFE and (why := _foreign(scope, headers)):
            raise _Refused(403, why)
        try:
            key, by_cookie = self._key(headers)
        except (Invalid, OSError):
            raise _Refused(503, "the tokens of this service cannot be read; see `stead token`", CLOSE) from None
        self._slow_down(scope, headers, key)
        length = headers.get("content-length", "0")
        if not _LENGTH.fullmatch(length) or int(length) > self._limits.body:
            raise _Refused(413, f"the body is too long; it may have {self._limits.body} bytes", CLOSE)
        self._authorise(method, path, headers, key, by_cookie)
        return key

    def _authorise(self, method: str, path: str, headers: Mapping[str, str], key: Key | None, by_cookie: bool) -> None:
        if is_open(method, path):
            return
        question = is_question(method, path)
        if key is None:
            if question and self._open_reads and "authorization" not in headers:
                return
            if method == "GET" and "text/html" in headers.get("accept", "") and _is_page(path):
                raise _Refused(303, "log in first", {"location": f"{LOGIN}?next={quote(path)}"})
            said = "a token is needed; give it as 'Authorization: Bearer TOKEN'"
            raise _Refused(401, said, {"www-authenticate": "Bearer", **CLOSE})
        if question:
            return
        if not key.may_change:
            raise _Refused(403, f"the token of {key.name!r} is a viewer's; a change needs an operator's", CLOSE)
        if by_cookie and "origin" not in headers and headers.get("sec-fetch-site") != "same-origin":
            raise _Refused(403, "a change by cookie must come from a page of this service", CLOSE)

    def _key(self, headers: Mapping[str, str]) -> tuple[Key | None, bool]:
        """Whose token was shown, and whether by cookie. A header counts alone, even if it is wrong."""
        if "authorization" in headers:
            kind, _, token = headers["authorization"].partition(" ")
            return (self._keys.of(token.strip()) if kind.lower() == "bearer" else None), False
        shown = cookie_in(headers.get("cookie", ""))
        return (self._keys.of_cookie(shown) if shown else None), True

    def _slow_down(self, scope: Scope, headers: Mapping[str, str], key: Key | None) -> None:
        """Who showed a token is counted by it, so that nobody else at the same address can use up its share."""
        client = str((scope.get("client") or ("",))[0])
        wait = 0.0
        tries = scope["path"] == LOGIN and scope["method"] not in SAFE
        if tries or (key is None and "authorization" in headers):
            wait = self._wait(("wrong", client), self._limits.wrong)
        who = f"key {key.name}" if key else client
        safe = scope["method"] in SAFE
        wait = wait or self._wait(
            ("reads" if safe else "writes", who), self._limits.reads if safe else self._limits.writes
        )
        if wait:
            later = {"retry-after": str(max(1, round(wait))), **CLOSE}
            raise _Refused(429, "too many requests; try again later", later)

    def _wait(self, whose: tuple[str, str], rate: float) -> float:
        most = max(1.0, rate * self._limits.burst)
        bucket = self._buckets.setdefault(whose, Bucket(most))
        self._buckets.move_to_end(whose)
        if len(self._buckets) > CLIENTS_MAX:
            self._buckets.popitem(last=False)
        return bucket.wait(rate, most)

    # -- how long and how many

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> Receive:
        """All of the body, read before anybody waits for it: no more than is allowed, and no later."""
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            return receive
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise _Refused(400, "the body ended too early", CLOSE)
                    body += message.get("body", b"")
                    if len(body) > self._limits.body:
                        raise _Refused(413, f"the body is too long; it may have {self._limits.body} bytes", CLOSE)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise _Refused(408, f"the body did not arrive within {self._limits.body_s:g} seconds", CLOSE) from None
        first: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

        async def heard() -> Message:
            nonlocal first
            message, first = first, None
            return message if message is not None else await receive()

        return heard

    async def _one_of_many(self, scope: Scope, key: Key | None, receive: Receive, answer: _Answer) -> None:
        """Let the application answer, unless too many wait for it already."""
        limits = {"known" if key else "unknown": self._limits.at_once}
        if scope["method"] not in SAFE and is_question(scope["method"], scope["path"]):
            limits["questions"] = self._limits.questions
        if any(self._at_once[name] >= most for name, most in limits.items()):
            raise _Refused(429, "too many requests at once; try again in a second", {"retry-after": "1"})
        for name in limits:
            self._at_once[name] += 1

        def leave() -> None:
            for name in limits:
                self._at_once[name] -= 1
            limits.clear()

        answer.streams = leave  # a stream goes on for hours; the API counts them itself
        try:
            await self._app(scope, receive, answer)
        finally:
            leave()


CLOSE = {"connection": "close"}
"""With the refusals before a body was read: what is left of it is not waited for."""


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name in found and name in ONCE:
            raise _Refused(400, f"the header {name} is there twice", CLOSE)
        found[name] = f"{found[name]}; {value}" if name == "cookie" and name in found else value
    return found


def _host(header: str) -> str:
    """The name without its port; "" if it is none."""
    found = _HOST.fullmatch(header.strip().lower())
    return (found["six"] or found["name"]) if found else ""


def _is_page(path: str) -> bool:
    return path in ("/", "/docs", PAGES.rstrip("/")) or path.startswith(PAGES)


def _foreign(scope: Scope, headers: Mapping[str, str]) -> str:
    """Why a request is taken for another site's; "" if it is not."""
    site = headers.get("sec-fetch-site", "none").lower()
    if site not in ("same-origin", "none"):
        return f"a page of another site may not ask for this (Sec-Fetch-Site: {site[:20]})"
    origin = headers.get("origin")
    if origin is None:
        return ""
    schemes = {str(scope.get("scheme", "http")), "https"}  # https where something before this service speaks it
    here = {f"{scheme}://{headers.get('host', '')}".lower() for scheme in schemes}
    return "" if origin.lower() in here else f"a page of {origin[:100]!r} may not ask for this"


def cookie_in(header: str) -> str:
    """What our cookie says; "" where it is not there, or there twice with different words."""
    found = set()
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            found.add(value.strip())
    return found.pop() if len(found) == 1 else ""


class _Answer:
    """Every answer carries the headers, and the id under which the audit knows the request; who does not read it is
    left alone with it. `streams` is called when the answer turns out to be a stream."""

    def __init__(self, send: Send, request: str, reader_s: float) -> None:
        self._send, self._request, self._reader_s = send, request, reader_s
        self.streams: Callable[[], None] = lambda: None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            given = dict(message.get("headers", []))
            own = {**HEADERS, "x-request-id": self._request}
            fresh = [(name.encode(), value.encode()) for name, value in own.items() if name.encode() not in given]
            message = {**message, "headers": [*message.get("headers", []), *fresh]}
            if given.get(b"content-type", b"").startswith(b"text/event-stream"):
                self.streams()
        async with asyncio.timeout(self._reader_s):
            await self._send(message)

    async def refuse(self, status: int, said: str, headers: Mapping[str, str]) -> None:
        body = json.dumps({"error": said}).encode()
        sent = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        fields = [(name.encode(), value.encode("latin-1", "replace")) for name, value in sent.items()]
        await self({"type": "http.response.start", "status": status, "headers": fields})
        await self({"type": "http.response.body", "body": body})
