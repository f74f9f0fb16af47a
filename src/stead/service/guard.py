"""The guard: what every request passes before anything looks at what it wants.

Rule: refuses by default. Only a short list of methods counts as harmless (`SAFE`) and only a short list of other
requests as mere questions (`QUESTIONS`); everything else is a change and needs an operator's token. A page of another
site can make a browser send requests here, and a name server can make its name point here; so the host that the
browser believes to speak to is checked on every request, and so is the site that made it.

What a service can do at once is divided into shares: each token has one, and all visitors without a token have one
together. Nobody can use up the share of another. Python computes one thing at a time, so while holders of tokens ask,
visitors also pause between their answers: most of the processor's time is the holders'.
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

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
QUESTIONS = frozenset({"/what-if", "/why", "/lint"})
QUESTION_PAGES = "/ui/ask/"
"""What is asked by POST because the question is long; nothing is changed."""

HEALTH = "/healthz"
OPEN = frozenset({HEALTH, "/login", "/logout"})
ASSETS = "/static/"
"""Needs no token, wherever the service listens."""

PAGES = "/ui/"
LOGIN = "/login"
ONCE = frozenset({"host", "authorization", "origin", "sec-fetch-site", "content-length"})
"""Headers of which a second one could be read by one program and not by the next."""

TWO_LENGTHS = "Content-Length and Transfer-Encoding are both there; send only Content-Length"
BODY_MAX = 1 << 20
SIGN_IN_BODY_MAX = 16 << 10
HEADERS_MAX = 100
HEADERS_BYTES_MAX = 64 << 10
CLIENTS_MAX = 10_000
FORM_FIELDS_MAX = 20
HOLDERS_ASK_S = 2.0
"""So long after a request with a token, more of them are expected."""

VISITORS = ""
"""The name of the share of all who showed no token."""

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

_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9_.-]{1,253}))(?::[0-9]{1,5})?")
_LENGTH = re.compile(r"[0-9]{1,10}")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a client may ask: requests a second over time, and requests of one share at once. Fewer of visitors'
    are computed, because each of them slows down what is computed beside it."""

    reads: float = 500.0  # of each token, and of each address without one
    writes: float = 50.0
    wrong: float = 5.0  # wrong tokens of each address
    burst: float = 2.0  # seconds' worth
    at_once: int = 256  # of each token
    visitors_at_once: int = 64
    questions: int = 8  # long questions among them
    turns: int = 3  # of each token, those that are being computed in a thread; the others wait
    slow_turns: int = 2  # of each token, changes and long questions beside them
    visitors_turns: int = 2
    pause: float = 40.0  # of visitors after an answer, times what it took, while holders of tokens ask
    pause_s: float = 5.0  # and at most so long
    later_s: float = 2.0  # until visitors hear that they ask too much, while holders of tokens ask
    body: int = BODY_MAX
    body_s: float = 10.0  # until all of a body has to be here


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


class _Share:
    """What one token, or all visitors together, have under way. Some of it has a turn and is computed; the rest waits,
    so that every share finds a thread."""

    def __init__(self, most: int, limits: Limits, pause: Callable[[float], float] | None) -> None:
        self._most, self._questions_max, self._pause = most, limits.questions, pause
        if pause is None:
            self._turns, self._slow_turns = asyncio.Semaphore(limits.turns), asyncio.Semaphore(limits.slow_turns)
        else:
            self._turns = self._slow_turns = asyncio.Semaphore(limits.visitors_turns)
        self.requests = self._questions = 0

    def place(self, long: bool) -> ExitStack:
        """A place for a request, to be closed at its end."""
        if self.requests >= self._most or (long and self._questions >= self._questions_max):
            raise _Refused(429, "too many requests at once; try again in a second", {"retry-after": "1"})
        self._count(1, long)
        place = ExitStack()
        place.callback(self._count, -1, long)
        return place

    def _count(self, more: int, long: bool) -> None:
        self.requests += more
        self._questions += more * long

    async def turn(self, slow: bool = False) -> ExitStack:
        """Wait for a turn, which is to be closed when nothing is left to compute. What may be slow has turns of its
        own: an operator whose change takes long still gets pages."""
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
    """An ASGI application around another one. `open_reads`: whether questions need no token (only on loopback)."""

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
        request = f"{random.getrandbits(64):016x}"  # a name, not a secret
        answer = _Answer(send, request)
        try:
            headers = _headers(scope)
            key = self._let_in(scope, headers)
            stands = partial(self._stands, headers, key)
            scope.setdefault("state", {}).update(key=key, request=request, stands=stands)
            body = await self._body(headers, receive, self._body_max(scope))
            signs_in = self._signs_in(scope, body or b"") if _is_sign_in(scope) else None
            heard = receive if body is None else _replayed(body, receive)
            await self._one_of_many(scope, share_of(key or signs_in), heard, answer)
        except _Refused as refused:
            if refused.status == 429 and scope.get("state", {}).get("key") is None and self._holders_ask():
                await asyncio.sleep(self._limits.later_s)  # a refusal costs time too; who asks too often gets few
            await answer.refuse(refused.status, refused.said, refused.headers)

    # -- who may come in

    def _let_in(self, scope: Scope, headers: Mapping[str, str]) -> Key | None:
        """Whose token it is, if there is one; raises what the request is refused with."""
        method, path = scope["method"], scope["path"]
        host = _host(headers.get("host", ""))
        if not host or not (is_loopback(host) or host in self._hosts):
            said = f"host {headers.get('host', '')[:100]!r} is not one of this service"
            raise _Refused(403, f"{said}; allow it by --allow-host {host or 'NAME'}")
        if why := _foreign(scope, headers):
            raise _Refused(403, why)
        with _readable():
            key, by_cookie = self._key(headers)
        if not _is_sign_in(scope):  # its token is in the body; it is counted when that is known
            self._slow_down(scope, key, is_wrong=key is None and "authorization" in headers)
        length, most = headers.get("content-length", "0"), self._body_max(scope)
        if not _LENGTH.fullmatch(length) or int(length) > most:
            raise _Refused(413, f"the body is too long; it may have {most} bytes", CLOSE)
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

    def _signs_in(self, scope: Scope, body: bytes) -> Key | None:
        """Whose token a form of the sign-in page holds. A right one counts for its token, so that it is accepted
        however many wrong ones come from the same address."""
        with _readable():
            key = self._keys.of(token_in(body))
        self._slow_down(scope, key, is_wrong=key is None)
        return key

    def _stands(self, headers: Mapping[str, str], key: Key | None) -> bool:
        """Whether what a request showed is still accepted; a stream asks again and again."""
        try:
            return key is None or self._key(headers)[0] == key
        except (Invalid, OSError):
            return False

    def _slow_down(self, scope: Scope, key: Key | None, is_wrong: bool) -> None:
        """A request with a right token counts for that token, so that nobody else at its address can use up its share.
        Wrong tokens are counted apart, and only they."""
        client = str((scope.get("client") or ("",))[0])
        wait = self._wait(("wrong", client), self._limits.wrong) if is_wrong else 0.0
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

    def _body_max(self, scope: Scope) -> int:
        return min(self._limits.body, SIGN_IN_BODY_MAX) if _is_sign_in(scope) else self._limits.body

    async def _body(self, headers: Mapping[str, str], receive: Receive, most: int) -> bytes | None:
        """All of the body, read before anybody waits for it: no more than is allowed, and no later. None if the request
        has none."""
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
                        raise _Refused(413, f"the body is too long; it may have {most} bytes", CLOSE)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise _Refused(408, f"the body did not arrive within {self._limits.body_s:g} seconds", CLOSE) from None
        return bytes(body)

    async def _one_of_many(self, scope: Scope, name: str, receive: Receive, answer: _Answer) -> None:
        """Let the application answer, unless its share has too many requests under way already."""
        method, path = scope["method"], scope["path"]
        if path == HEALTH:  # whoever restarts what does not answer must not be refused
            await self._app(scope, receive, answer)
            return
        if name != VISITORS:
            self._holder_asked = time.monotonic()
        share = self._share(name)
        with share.place(long=method not in SAFE and is_question(method, path)) as place, ExitStack() as turn:
            if not is_open(method, path):  # what is open takes no time
                turn.push(await share.turn(slow=method not in SAFE))
            scope["state"]["turn"] = share.turn
            answer.begins = turn.close  # from here on the answer is only sent
            answer.streams = place.close  # a stream goes on for hours; the API counts them itself
            await self._app(scope, receive, answer)

    def _share(self, name: str) -> _Share:
        """There are as many as tokens, and one more."""
        if name not in self._shares:
            limits, is_visitors = self._limits, name == VISITORS
            most = limits.visitors_at_once if is_visitors else limits.at_once
            self._shares[name] = _Share(most, limits, self._pause if is_visitors else None)
        return self._shares[name]

    def _pause(self, took: float) -> float:
        """How long visitors pause after an answer that took so long."""
        return min(self._limits.pause * took, self._limits.pause_s) if self._holders_ask() else 0.0

    def _holders_ask(self) -> bool:
        return time.monotonic() - self._holder_asked < HOLDERS_ASK_S


CLOSE = {"connection": "close"}
"""With the refusals before a body was read: what is left of it is not waited for."""


def share_of(key: Key | None) -> str:
    """The share that a request counts for."""
    return key.name if key else VISITORS


@contextmanager
def _readable() -> Iterator[None]:
    """Without the tokens nobody gets in."""
    try:
        yield
    except (Invalid, OSError):
        raise _Refused(503, "the tokens of this service cannot be read; see `stead token`", CLOSE) from None


def _headers(scope: Scope) -> dict[str, str]:
    """The headers by name. What two programs could read in two ways is refused."""
    _refuse_long(scope)
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name in found and name in ONCE:
            raise _Refused(400, f"the header {name} is there twice", CLOSE)
        if _CONTROL.search(raw_value):
            raise _Refused(400, f"the header {name} has a control character; send plain text", CLOSE)
        found[name] = f"{found[name]}; {value}" if name == "cookie" and name in found else value
    if "content-length" in found and "transfer-encoding" in found:
        raise _Refused(400, TWO_LENGTHS, CLOSE)
    return found


def _refuse_long(scope: Scope) -> None:
    """How the service listens bounds what it waits for, but not what arrives in one piece."""
    headers = scope["headers"]
    size = len(scope.get("raw_path", b"")) + len(scope.get("query_string", b""))
    size += sum(len(name) + len(value) + len(": \r\n") for name, value in headers)
    if len(headers) > HEADERS_MAX or size > HEADERS_BYTES_MAX:
        most = f"at most {HEADERS_MAX} headers of {HEADERS_BYTES_MAX} bytes in all"
        raise _Refused(431, f"the headers are too long; send {most}", CLOSE)


def _is_sign_in(scope: Scope) -> bool:
    return scope["path"] == LOGIN and scope["method"] not in SAFE


def token_in(body: bytes) -> str:
    """The token in a form of the sign-in page; "" if there is none."""
    try:
        fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX)
    except ValueError:
        return ""
    return next((value.strip() for name, value in fields if name == "token"), "")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, as if it arrived now."""
    first: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def heard() -> Message:
        nonlocal first
        message, first = first, None
        return message if message is not None else await receive()

    return heard


def _host(header: str) -> str:
    """The name without its port; "" if it is none."""
    found = _HOST.fullmatch(header.strip().lower())
    return (found["six"] or found["name"]) if found else ""


def _is_page(path: str) -> bool:
    return path in ("/", "/docs", PAGES.rstrip("/")) or path.startswith(PAGES)


def _is_visit(scope: Scope, headers: Mapping[str, str]) -> bool:
    """Whether somebody follows a link to a page here, in a window of its own. Other sites may link here, but neither
    load anything nor show it in a frame."""
    is_window = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return scope["method"] == "GET" and is_window and (_is_page(scope["path"]) or scope["path"] == LOGIN)


def _foreign(scope: Scope, headers: Mapping[str, str]) -> str:
    """Why a request is taken for another site's; "" if it is not."""
    site = headers.get("sec-fetch-site", "none").lower()
    if site not in ("same-origin", "none") and not _is_visit(scope, headers):
        return f"a page of another site may not ask for this (Sec-Fetch-Site: {site[:20]})"
    if scope["method"] in SAFE:
        return ""
    origin = headers.get("origin")
    if origin is None:
        return ""
    schemes = {str(scope.get("scheme", "http")), "https"}  # https where something before this service speaks it
    here = {f"{scheme}://{headers.get('host', '')}".lower() for scheme in schemes}
    return "" if origin.lower() in here else f"a page of {origin[:100]!r} may not ask for this"


def cookie_in(header: str) -> str:
    """What our cookie says; "" where it is not there, or there twice with different words."""
    found = cookies_in(header)
    return found.pop() if len(found) == 1 else ""


def cookies_in(header: str) -> set[str]:
    """All that the cookies of our name say."""
    parts = (part.strip().partition("=") for part in header.split(";"))
    return {value.strip() for name, _, value in parts if name == COOKIE}


class _Answer:
    """Every answer carries the headers, and the id under which the audit knows the request. `begins` is called when
    the answer begins, `streams` when it turns out to be a stream."""

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

    async def refuse(self, status: int, said: str, headers: Mapping[str, str]) -> None:
        body = json.dumps({"error": said}).encode()
        sent = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        fields = [(name.encode(), value.encode("latin-1", "replace")) for name, value in sent.items()]
        await self({"type": "http.response.start", "status": status, "headers": fields})
        await self({"type": "http.response.body", "body": body})
