"""The guard: checks every request before the application sees it.

Rule: refuses by default. Only a few methods count as harmless (`SAFE`), and only a few other requests as questions
(`QUESTIONS`); everything else is a change and needs an operator's token. A page of another site can make a browser send
requests here, and can make its own host name resolve to this machine; so the Host header and the site that caused the
request are checked on every request.

The capacity of the service is divided into shares: each token has one, and all visitors without a token have one
together. Nobody can use up another share. Python computes one thing at a time, so while requests with tokens arrive,
visitors pause after each answer: most of the processor time is for the tokens.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any
from urllib.parse import parse_qsl, quote

from stead.errors import Invalid
from stead.operate.origins import is_loopback
from stead.service.keys import COOKIE, Key, Keys
from stead.text import quoted

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
QUESTIONS = frozenset({"/what-if", "/why", "/lint", "/plan"})
QUESTION_PAGES = "/ui/ask/"
"""Questions that are sent by POST because they are long; they change nothing."""

HEALTH = "/healthz"
OPEN = frozenset({HEALTH, "/login", "/logout"})
ASSETS = "/static/"
"""Needs no token, on any address."""

PAGES = "/ui/"
LOGIN = "/login"
ONCE = frozenset({"host", "authorization", "origin", "sec-fetch-site", "content-length"})
"""Headers that must not occur twice: two programs could read different ones."""

TWO_LENGTHS = "the request has both Content-Length and Transfer-Encoding; send only Content-Length"
BODY_MAX = 1 << 20
SIGN_IN_BODY_MAX = 16 << 10
HEADERS_MAX = 100
HEADERS_BYTES_MAX = 64 << 10
CLIENTS_MAX = 10_000
FORM_FIELDS_MAX = 20
HOLDERS_ASK_S = 2.0
"""For this long after a request with a token, more of them are expected."""

VISITORS = ""
"""The name of the share of all requests without a token."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer", browsers would not send the origin of a form either
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9_.-]{1,253}))(?::[0-9]{1,5})?")
_LENGTH = re.compile(r"[0-9]{1,10}")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a client may ask: requests per second over time, and concurrent requests of one share. Fewer requests of
    visitors are computed at once, because each of them slows down the others."""

    reads: float = 500.0  # per token, and per address without one
    writes: float = 50.0
    wrong: float = 5.0  # wrong tokens per address
    burst: float = 2.0  # seconds' worth of requests
    at_once: int = 256  # per token
    visitors_at_once: int = 64
    questions: int = 8  # long questions among them
    turns: int = 3  # per token, requests that are computed in a thread at once; the others wait
    slow_turns: int = 2  # per token, changes and long questions beside them
    visitors_turns: int = 2
    pause: float = 40.0  # of visitors after an answer, times its duration, while requests with tokens arrive
    pause_s: float = 5.0  # the longest pause
    later_s: float = 2.0  # delay of a 429 to visitors, while requests with tokens arrive
    body: int = BODY_MAX
    body_s: float = 10.0  # until the whole body must have arrived


@dataclass(slots=True)
class Bucket:
    left: float
    seen: float = field(default_factory=time.monotonic)

    def wait(self, rate: float, most: float) -> float:
        """Take one token from the bucket, or return the seconds until there is one."""
        now = time.monotonic()
        self.left = min(most, self.left + (now - self.seen) * rate)
        self.seen = now
        if self.left >= 1:
            self.left -= 1
            return 0.0
        return (1 - self.left) / rate


class _Refused(Exception):
    """A refused request: status, sentence and headers of the answer."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.sentence, self.headers = status, text, headers or {}


def is_question(method: str, path: str) -> bool:
    """Whether a request changes nothing. A path with dot segments never counts as one."""
    if method in SAFE:
        return True
    return method == "POST" and (path in QUESTIONS or (path.startswith(QUESTION_PAGES) and _is_plain(path)))


def is_open(method: str, path: str) -> bool:
    """Whether it needs no token, on any address."""
    return path in OPEN or (method in SAFE and path.startswith(ASSETS) and _is_plain(path))


def _is_plain(path: str) -> bool:
    return not {"", ".", ".."} & set(path.split("/")[1:]) and "\\" not in path and path.isprintable()


class _Share:
    """The requests of one token, or of all visitors, in progress. Some have a turn and are computed; the others wait,
    so that every share gets a thread."""

    def __init__(self, most: int, limits: Limits, pause: Callable[[float], float] | None) -> None:
        self._most, self._questions_max, self._pause = most, limits.questions, pause
        if pause is None:
            self._turns, self._slow_turns = asyncio.Semaphore(limits.turns), asyncio.Semaphore(limits.slow_turns)
        else:
            self._turns = self._slow_turns = asyncio.Semaphore(limits.visitors_turns)
        self.requests = self._questions = 0

    def place(self, long: bool) -> ExitStack:
        """A place for a request, to close at its end."""
        if self.requests >= self._most or (long and self._questions >= self._questions_max):
            raise _Refused(429, "too many requests at once; retry in a second", {"retry-after": "1"})
        self._count(1, long)
        place = ExitStack()
        place.callback(self._count, -1, long)
        return place

    def _count(self, more: int, long: bool) -> None:
        self.requests += more
        self._questions += more * long

    async def turn(self, slow: bool = False) -> ExitStack:
        """Wait for a turn, to close when everything is computed. Slow requests have their own turns: an operator whose
        change takes long still gets pages."""
        turns = self._slow_turns if slow else self._turns
        await turns.acquire()
        turn = ExitStack()
        turn.callback(self._give_on, turns, time.monotonic())
        return turn

    def _give_on(self, turns: asyncio.Semaphore, began: float) -> None:
        pause = self._pause(time.monotonic() - began) if self._pause else 0.0
        if pause:
            asyncio.get_running_loop().call_later(pause, turns.release)
        else:
            turns.release()


class Guard:
    """An ASGI application around another one. `open_reads`: whether reading needs no token (only on loopback)."""

    def __init__(
        self, app: App, keys: Keys, hosts: Iterable[str] = (), open_reads: bool = True, limits: Limits | None = None
    ) -> None:
        self._app, self._keys, self._open_reads = app, keys, open_reads
        self._hosts = {host.lower().strip("[]") for host in hosts}
        self._limits = limits or Limits()
        self._buckets: OrderedDict[tuple[str, str], Bucket] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self._holder_asked = -inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        request = f"{random.getrandbits(64):016x}"  # an id, not a secret
        answer = _Answer(send, request)
        try:
            headers = _headers(scope)
            key = self._admit(scope, headers)
            stands = partial(self._stands, headers, key)
            scope.setdefault("state", {}).update(key=key, request=request, stands=stands)
            body = await self._body(headers, receive, self._body_max(scope))
            signs_in = self._signs_in(scope, body or b"") if _is_sign_in(scope) else None
            arriving = receive if body is None else _replayed(body, receive)
            await self._one_of_many(scope, share_of(key or signs_in), arriving, answer)
        except _Refused as refused:
            if refused.status == 429 and scope.get("state", {}).get("key") is None and self._holders_ask():
                await asyncio.sleep(self._limits.later_s)  # limits how many refusals a visitor gets
            await answer.refuse(refused.status, refused.sentence, refused.headers)

    # -- who may do what

    def _admit(self, scope: Scope, headers: Mapping[str, str]) -> Key | None:
        """The owner of the token, if there is one; raises a refusal."""
        method, path = scope["method"], scope["path"]
        host = _host(headers.get("host", ""))
        if not host or not (is_loopback(host) or host in self._hosts):
            problem = f"host {quoted(headers.get('host', ''))} is not allowed"
            raise _Refused(403, f"{problem}; allow it with --allow-host {host or 'NAME'}")
        if why := _foreign(scope, headers):
            raise _Refused(403, why)
        with _readable():
            key, by_cookie = self._key(headers)
        if not _is_sign_in(scope):  # its token is in the body, so it is counted later
            self._slow_down(scope, key, is_wrong=key is None and "authorization" in headers)
        length, most = headers.get("content-length", "0"), self._body_max(scope)
        if not _LENGTH.fullmatch(length) or int(length) > most:
            raise _Refused(413, f"the body is too long; it may have at most {most} bytes", CLOSE)
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
                raise _Refused(303, "sign in first", {"location": f"{LOGIN}?next={quote(path)}"})
            text = "a token is required; send it as 'Authorization: Bearer TOKEN'"
            raise _Refused(401, text, {"www-authenticate": "Bearer", **CLOSE})
        if question:
            return
        if not key.may_change:
            raise _Refused(403, f"the token of {key.name!r} is a viewer's; a change needs an operator's", CLOSE)
        if by_cookie and "origin" not in headers and headers.get("sec-fetch-site") != "same-origin":
            raise _Refused(403, "a change by cookie must come from a page of this service", CLOSE)

    def _key(self, headers: Mapping[str, str]) -> tuple[Key | None, bool]:
        """The owner of the token, and whether it came by cookie. If there is a header, only the header counts."""
        if "authorization" in headers:
            kind, _, token = headers["authorization"].partition(" ")
            return (self._keys.of(token.strip()) if kind.lower() == "bearer" else None), False
        shown = cookie_in(headers.get("cookie", ""))
        return (self._keys.of_cookie(shown) if shown else None), True

    def _signs_in(self, scope: Scope, body: bytes) -> Key | None:
        """The owner of the token in a sign-in form. A valid token counts for itself, so that it is accepted no matter
        how many wrong ones come from the same address."""
        with _readable():
            key = self._keys.of(token_in(body))
        self._slow_down(scope, key, is_wrong=key is None)
        return key

    def _stands(self, headers: Mapping[str, str], key: Key | None) -> bool:
        """Whether the credentials of a request are still accepted; a stream checks again and again."""
        try:
            return key is None or self._key(headers)[0] == key
        except (Invalid, OSError):
            return False

    def _slow_down(self, scope: Scope, key: Key | None, is_wrong: bool) -> None:
        """A request with a valid token counts for that token, so that nobody else at its address can use up its share.
        Wrong tokens are counted separately."""
        client = str((scope.get("client") or ("",))[0])
        wait = self._wait(("wrong", client), self._limits.wrong) if is_wrong else 0.0
        who = f"key {key.name}" if key else client
        safe = scope["method"] in SAFE
        wait = wait or self._wait(
            ("reads" if safe else "writes", who), self._limits.reads if safe else self._limits.writes
        )
        if wait:
            later = {"retry-after": str(max(1, round(wait))), **CLOSE}
            raise _Refused(429, "too many requests; retry later", later)

    def _wait(self, whose: tuple[str, str], rate: float) -> float:
        most = max(1.0, rate * self._limits.burst)
        bucket = self._buckets.setdefault(whose, Bucket(most))
        self._buckets.move_to_end(whose)
        if len(self._buckets) > CLIENTS_MAX:
            self._buckets.popitem(last=False)
        return bucket.wait(rate, most)

    # -- limits

    def _body_max(self, scope: Scope) -> int:
        return min(self._limits.body, SIGN_IN_BODY_MAX) if _is_sign_in(scope) else self._limits.body

    async def _body(self, headers: Mapping[str, str], receive: Receive, most: int) -> bytes | None:
        """The whole body, read before a turn is taken, within the limits of size and time. None if the request has no
        body."""
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            return None
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise _Refused(400, "the body ended too early", CLOSE)
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise _Refused(413, f"the body is too long; it may have at most {most} bytes", CLOSE)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise _Refused(408, f"the body did not arrive within {self._limits.body_s:g} seconds", CLOSE) from None
        return bytes(body)

    async def _one_of_many(self, scope: Scope, name: str, receive: Receive, answer: _Answer) -> None:
        """Let the application answer, unless too many requests of this share are in progress."""
        method, path = scope["method"], scope["path"]
        if path == HEALTH:  # a health check must never be refused
            await self._app(scope, receive, answer)
            return
        if name != VISITORS:
            self._holder_asked = time.monotonic()
        share = self._share(name)
        with share.place(long=method not in SAFE and is_question(method, path)) as place, ExitStack() as turn:
            if not is_open(method, path):  # open paths take no time
                turn.push(await share.turn(slow=method not in SAFE))
            scope["state"]["turn"] = share.turn
            answer.begins = turn.close  # from now on the answer is only sent
            answer.streams = place.close  # a stream stays open for hours; the API counts streams itself
            await self._app(scope, receive, answer)

    def _share(self, name: str) -> _Share:
        """The share with this name; there are as many as tokens, plus one."""
        if name not in self._shares:
            limits, is_visitors = self._limits, name == VISITORS
            most = limits.visitors_at_once if is_visitors else limits.at_once
            self._shares[name] = _Share(most, limits, self._pause if is_visitors else None)
        return self._shares[name]

    def _pause(self, took: float) -> float:
        """How long visitors pause after an answer that took this long."""
        return min(self._limits.pause * took, self._limits.pause_s) if self._holders_ask() else 0.0

    def _holders_ask(self) -> bool:
        return time.monotonic() - self._holder_asked < HOLDERS_ASK_S


CLOSE = {"connection": "close"}
"""For refusals before the body was read: the rest of it is not read."""


def share_of(key: Key | None) -> str:
    """The share that a request belongs to."""
    return key.name if key else VISITORS


@contextmanager
def _readable() -> Iterator[None]:
    """If the tokens cannot be read, every request is refused."""
    try:
        yield
    except (Invalid, OSError):
        raise _Refused(503, "the tokens of this service cannot be read; see `stead token`", CLOSE) from None


def _headers(scope: Scope) -> dict[str, str]:
    """The headers by name. Headers that two programs could read differently are refused."""
    _refuse_long(scope)
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name in found and name in ONCE:
            raise _Refused(400, f"the header {name} occurs twice; send it once", CLOSE)
        if _CONTROL.search(raw_value):
            raise _Refused(400, f"the header {name} has a control character; send plain text", CLOSE)
        found[name] = f"{found[name]}; {value}" if name == "cookie" and name in found else value
    if "content-length" in found and "transfer-encoding" in found:
        raise _Refused(400, TWO_LENGTHS, CLOSE)
    return found


def _refuse_long(scope: Scope) -> None:
    """The server limits what it waits for, but not what arrives in one piece."""
    headers = scope["headers"]
    size = len(scope.get("raw_path", b"")) + len(scope.get("query_string", b""))
    size += sum(len(name) + len(value) + len(": \r\n") for name, value in headers)
    if len(headers) > HEADERS_MAX or size > HEADERS_BYTES_MAX:
        most = f"at most {HEADERS_MAX} headers of {HEADERS_BYTES_MAX} bytes in all"
        raise _Refused(431, f"the headers are too long; send {most}", CLOSE)


def _is_sign_in(scope: Scope) -> bool:
    return scope["path"] == LOGIN and scope["method"] not in SAFE


def token_in(body: bytes) -> str:
    """The token in a sign-in form; "" if there is none."""
    try:
        fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX)
    except ValueError:
        return ""
    return next((value.strip() for name, value in fields if name == "token"), "")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, as a new stream of messages."""
    first: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def receive_body() -> Message:
        nonlocal first
        message, first = first, None
        return message if message is not None else await receive()

    return receive_body


def _host(header: str) -> str:
    """The host name without its port; "" if the header is invalid."""
    found = _HOST.fullmatch(header.strip().lower())
    return (found["six"] or found["name"]) if found else ""


def _is_page(path: str) -> bool:
    return path in ("/", "/docs", PAGES.rstrip("/")) or path.startswith(PAGES)


def _is_visit(scope: Scope, headers: Mapping[str, str]) -> bool:
    """Whether the user follows a link to a page, in its own window. Other sites may link here, but must not load
    anything or show it in a frame."""
    is_window = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return scope["method"] == "GET" and is_window and (_is_page(scope["path"]) or scope["path"] == LOGIN)


def _foreign(scope: Scope, headers: Mapping[str, str]) -> str:
    """Why a request counts as another site's; "" if it does not."""
    site = headers.get("sec-fetch-site", "none").lower()
    if site not in ("same-origin", "none") and not _is_visit(scope, headers):
        return f"a page of another site may not send this (Sec-Fetch-Site: {site[:20]})"
    if scope["method"] in SAFE:
        return ""
    origin = headers.get("origin")
    if origin is None:
        return ""
    schemes = {str(scope.get("scheme", "http")), "https"}  # https if a proxy in front of this service terminates TLS
    here = {f"{scheme}://{headers.get('host', '')}".lower() for scheme in schemes}
    return "" if origin.lower() in here else f"a page of {quoted(origin)} may not send this"


def cookie_in(header: str) -> str:
    """The value of our cookie; "" if it is missing, or there twice with different values."""
    found = cookies_in(header)
    return found.pop() if len(found) == 1 else ""


def cookies_in(header: str) -> set[str]:
    """The values of all cookies with our name."""
    parts = (part.strip().partition("=") for part in header.split(";"))
    return {value.strip() for name, _, value in parts if name == COOKIE}


class _Answer:
    """Adds the security headers to every answer, and the id under which the audit knows the request. `begins` is called
    when the answer starts, `streams` when it is a stream."""

    def __init__(self, send: Send, request: str) -> None:
        self._send, self._request = send, request
        self.begins: Callable[[], None] = lambda: None
        self.streams: Callable[[], None] = lambda: None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            given = dict(message.get("headers", []))
            own = [(name, value) for name, value in _RAW_HEADERS if name not in given]
            request = (b"x-request-id", self._request.encode())
            message = {**message, "headers": [*message.get("headers", []), *own, request]}
            self.begins()
            if given.get(b"content-type", b"").startswith(b"text/event-stream"):
                self.streams()
        await self._send(message)

    async def refuse(self, status: int, text: str, headers: Mapping[str, str]) -> None:
        body = json.dumps({"error": text}).encode()
        sent = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        fields = [(name.encode(), value.encode("latin-1", "replace")) for name, value in sent.items()]
        await self({"type": "http.response.start", "status": status, "headers": fields})
        await self({"type": "http.response.body", "body": body})
