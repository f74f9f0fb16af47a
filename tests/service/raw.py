"""Requests as bytes on a real socket, for requests that no client library would send."""

from __future__ import annotations

import http.client
import socket

from tests.serving import Served

GET = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def connected(served: Served) -> socket.socket:
    host, _, port = served.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def answer(connection: socket.socket) -> bytes:
    """All bytes until the service closes the connection, within 30 seconds."""
    found = b""
    while piece := connection.recv(65536):
        found += piece
    return found


def is_open(connection: socket.socket) -> bool:
    """Whether the connection is still open; discards what was received."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
        return False
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        connection.settimeout(30)


def status_of(served: Served, path: str, token: str = "") -> int:
    connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status
    finally:
        connection.close()


class Stream:
    """An open stream of events."""

    def __init__(self, served: Served, **headers: str) -> None:
        self.connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=60)
        self.connection.request("GET", "/events?after=1000000", headers={"Accept": "text/event-stream", **headers})
        self.answer = self.connection.getresponse()
        self.greeting = self.answer.readline() if self.answer.status == 200 else b""

    def rest(self) -> bytes:
        """All bytes until the end; at most 30 seconds for each piece."""
        return self.answer.read()

    def close(self) -> None:
        self.answer.close()
        self.connection.close()
