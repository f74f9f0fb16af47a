"""The service under load: a real server in its own process, a client in another, 200 requests a second for a minute.

Rule: requests leave by the clock, whatever becomes of the ones before (so that a stall is counted for all who would
have asked meanwhile); a trivial request (`/healthz`) is measured between them as the reference. Every taint has a value
that no node had before. Hostile clients (`attack`) are a third process, of the lowest priority: they stand for others'
machines, and must not take the processor from who measures.

    python -m benchmarks.service --quick
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import Row

NODES, WORK = 5_000, 50_000
SECONDS, RATE, REFERENCE_RATE = 60, 200, 20
CONNECTIONS = 64
IDLE_S = 3.0
GOAL_MS, GOAL_BESIDE_ATTACK_MS = 100.0, 200.0
HOSTILE, GOAL_MB = 500, 300.0
KINDS = ("list", "why", "taint", "healthz")
HERE = Path(__file__).resolve()


@dataclass(frozen=True)
class Load:
    """What the client saw, in milliseconds, by kind."""

    took_ms: dict[str, list[float]]
    errors: list[str]


def scenario(nodes: int, work: int) -> str:
    """Four zones, twenty kinds of work that runs, and a fifth of it that waits."""
    lines = ["title: load", "nodes:"]
    for zone in "abcd":
        fields = f"capacity: {{CPU: 16, memory: 64Gi}}, labels: {{zone: {zone}, disk: ssd}}"
        lines.append(f"- {{id: node-{zone}, count: {nodes // 4}, {fields}}}")
    lines.append("work:")
    for number in range(20):
        fields = f"resources: {{CPU: 1}}, labels: {{app: app-{number}}}, selector: 'zone = {'abcd'[number % 4]}'"
        lines.append(f"- {{id: run-{number}, count: {work // 25}, {fields}}}")
    lines.append(f"- {{id: stuck, count: {work - 20 * (work // 25)}, resources: {{GPU: 1}}, labels: {{app: stuck}}}}")
    return "\n".join(lines)


# -- the server's process


def serve(port: int, nodes: int, work: int, folder: Path) -> None:
    import uvicorn

    from stead.service.app import create_app
    from stead.service.keys import Keys
    from stead.service.listening import SETTINGS, settle
    from stead.sim.desk import SimDesk
    from stead.sim.scenario import parse

    desk = SimDesk(parse(scenario(nodes, work)), folder)
    keys = Keys(folder / "home")
    keys.operator_token()
    app: Any = create_app(desk, keys)
    settle()
    uvicorn.run(app, host="127.0.0.1", port=port, access_log=False, log_level="warning", **SETTINGS)


@contextmanager
def running(nodes: int, work: int) -> Iterator[tuple[int, str, int]]:
    """A server that answers: its port, its token and its process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="stead-load-") as folder:
        words = [sys.executable, "-m", "benchmarks.service", "serve", str(port), str(nodes), str(work), folder]
        process = subprocess.Popen(words, cwd=HERE.parent.parent)
        try:
            _wait_for(port, process)
            yield port, (Path(folder) / "home" / "token").read_text().strip(), process.pid
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the server did not start within two minutes")


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def busy_s(pid: int) -> float:
    """Seconds of processor time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- the client's process


class Client:
    """Requests over kept connections, by hand: the client must be cheaper than what it measures."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._token = port, token
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = []
        self.load = Load({kind: [] for kind in KINDS}, [])

    async def send(self, kind: str, due: float, method: str, path: str, body: bytes = b"") -> None:
        try:
            async with asyncio.timeout(30):
                status = await self._send(method, path, body)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            self.load.errors.append(f"{kind}: {error!r}")
            return
        if status != 200:
            self.load.errors.append(f"{kind}: status {status}")
        self.load.took_ms[kind].append((time.perf_counter() - due) * 1e3)

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that is free and that the server has not closed meanwhile, else a new one."""
        while self._free:
            reader, writer, used = self._free.pop()
            if time.perf_counter() - used < IDLE_S:
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def _send(self, method: str, path: str, body: bytes) -> int:
        reader, writer = await self._connection()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._token}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        if len(self._free) < CONNECTIONS and b"connection: close" not in answer:
            self._free.append((reader, writer, time.perf_counter()))
        else:
            writer.close()
        return int(answer.split()[1])


def requests(seconds: float, rate: int, nodes: int, work: int) -> list[tuple[float, str, str, str, bytes]]:
    """What to send and when: 80 % pages of 100, 15 % why, 5 % taints; and the reference between them."""
    dice = random.Random(0)
    found: list[tuple[float, str, str, str, bytes]] = []
    for number in range(round(seconds * rate)):
        due, one = number / rate, dice.random()
        if one < 0.8:
            what, most = dice.choice([("nodes", nodes), ("asks", work)])
            part = dice.choice(["", "", "&filter=labels.zone=a", "&filter=state=running"][: 4 if what == "asks" else 3])
            part = part.replace("labels.zone=a", "labels.app=app-3") if what == "asks" else part
            found.append((due, "list", "GET", f"/{what}?limit=100&offset={dice.randrange(most)}{part}", b""))
        elif one < 0.95:
            id = (
                f"stuck-{dice.randint(1, work // 10)}"
                if dice.random() < 0.5
                else f"run-3-{dice.randint(1, work // 25)}"
            )
            found.append((due, "why", "GET", f"/asks/{id}/why", b""))
        else:
            node = f"node-{dice.choice('abcd')}-{dice.randint(1, nodes // 4)}"
            body = json.dumps({"team": f"team-{number}"}).encode()
            found.append((due, "taint", "POST", f"/nodes/taints/{node}", body))
    found += [
        (number / REFERENCE_RATE, "healthz", "GET", "/healthz", b"")
        for number in range(round(seconds * REFERENCE_RATE))
    ]
    return sorted(found)


async def drive(port: int, token: str, seconds: float, rate: int, nodes: int, work: int) -> Load:
    client = Client(port, token)
    for kind, path in (("list", "/nodes"), ("list", "/asks"), ("why", "/asks/stuck-1/why")):
        await client.send(kind, time.perf_counter(), "GET", path)
    client.load.took_ms["list"].clear()
    client.load.took_ms["why"].clear()
    start, tasks = time.perf_counter() + 0.1, []
    for due, kind, method, path, body in requests(seconds, rate, nodes, work):
        await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
        tasks.append(asyncio.create_task(client.send(kind, start + due, method, path, body)))
    await asyncio.gather(*tasks)
    return client.load


# -- hostile clients, without a token


async def attack(port: int, clients: int) -> None:
    """So many clients that each try one thing for ever: hold connections, send slowly, open streams, ask long
    questions, guess tokens, read the longest lists."""
    ways = (idle, idle, idle, slow, slow, stream, stream, question, guess, long_list)
    await asyncio.gather(*(again(ways[number % len(ways)], port) for number in range(clients)))


async def again(way: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]], port: int) -> None:
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                await way(reader, writer)
            finally:
                writer.close()
        await asyncio.sleep(0.2)


async def idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for byte in f"GET /asks HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: {'x' * 1000}".encode():
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.5)


async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n")
    await reader.read()


async def question(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = b'{"changes": [{"work": [{"id": "x", "count": 10000, "resources": {"CPU": 1}}]}]}'
    await _answer(reader, writer, b"POST /what-if", body, b"Content-Type: application/json\r\n")


async def guess(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _answer(reader, writer, b"GET /nodes", b"", b"Authorization: Bearer wrong\r\n")


async def long_list(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _answer(reader, writer, b"GET /asks?limit=10000", b"", b"")


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: bytes, body: bytes, fields: bytes
) -> None:
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    head = b"%s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n%s%s\r\n" % (what, length, fields)
    writer.write(head + body)
    await reader.read()


@contextmanager
def attacked(port: int, clients: int) -> Iterator[None]:
    """With so many hostile clients beside it."""
    if not clients:
        yield
        return
    words = ["nice", "-n", "19", sys.executable, "-m", "benchmarks.service", "attack", str(port), str(clients)]
    process = subprocess.Popen(words, cwd=HERE.parent.parent)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError(f"the hostile clients ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()


class Peak:
    """The most memory that a process had, looked at every tenth of a second."""

    def __init__(self, pid: int) -> None:
        self._pid, self.mb, self._over = pid, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.1):
            self.mb = max(self.mb, resident_mb(self._pid))

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


# -- the measurement


def part(values: list[float], share: float) -> float:
    found = sorted(values)
    return found[min(len(found) - 1, int(len(found) * share))] if found else 0.0


def load(
    seconds: float = SECONDS,
    rate: int = RATE,
    nodes: int = NODES,
    work: int = WORK,
    promised: tuple[str, ...] = ("all", "pages of 100", "why", "taints"),
    hostile: int = 0,
) -> list[Row]:
    with running(nodes, work) as (port, token, pid), attacked(port, hostile), Peak(pid) as peak:
        before, busy = resident_mb(pid), busy_s(pid)
        words = [sys.executable, "-m", "benchmarks.service", "drive", *map(str, (port, seconds, rate, nodes, work))]
        done = subprocess.run(
            words,
            cwd=HERE.parent.parent,
            input=token,
            capture_output=True,
            text=True,
            check=True,
            timeout=seconds + 120,
        )
        after, busy = resident_mb(pid), busy_s(pid) - busy
    found = json.loads(done.stdout)
    took, errors = found["took_ms"], found["errors"]
    trivial = part(took["healthz"], 0.99)
    rows = []
    everything = [each for kind in KINDS[:3] for each in took[kind]]
    where = f"{nodes:,} nodes, {work:,} pieces of work, {rate} requests/s"
    where += f", {hostile} hostile clients" if hostile else ""
    limit = GOAL_BESIDE_ATTACK_MS if hostile else GOAL_MS
    for name, values, share in (
        ("all", everything, 0.5),
        ("all", everything, 0.99),
        ("pages of 100", took["list"], 0.99),
        ("why", took["why"], 0.99),
        ("taints", took["taint"], 0.99),
    ):
        ours = part(values, share)
        goal, met = (f"< {limit:g} ms", ours < limit) if share == 0.99 and name in promised else ("", None)
        label = f"service, {name}, p{share * 100:g} ({where}; reference: /healthz p99)"
        rows.append(Row(label, ours, "ms", trivial, ours / trivial if trivial else None, goal, met))
    first = errors[0] if errors else ""
    rows.append(Row("service, errors", float(len(errors)), "", None, None, "0", not errors, first))
    asked = sum(map(len, took.values()))
    rows.append(Row("service, processor time of one request", busy / asked * 1e3, "ms", None, None, "", None))
    if hostile:
        rows.append(
            Row("service, most memory beside them", peak.mb, "MB", None, None, f"< {GOAL_MB:g} MB", peak.mb < GOAL_MB)
        )
        return rows
    growth = after / before
    rows.append(Row("service, memory after the load over before", after, "MB", before, growth, "< 1.5x", growth < 1.5))
    return rows


def large(seconds: float = 20) -> list[Row]:
    """Twice the nodes and the work, and fewer who ask: that lists stay quick is about their length."""
    return load(seconds, 40, 10_000, 100_000, ("pages of 100",))


def beside_hostile_clients(seconds: float = SECONDS) -> list[Row]:
    """The operator's requests while others, without a token, try to use the service up."""
    return load(seconds, hostile=HOSTILE)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", default="load", choices=["load", "serve", "drive", "attack"])
    parser.add_argument("given", nargs="*")
    parser.add_argument("--quick", action="store_true")
    words = parser.parse_args()
    if words.what == "serve":
        port, nodes, work, folder = words.given
        serve(int(port), int(nodes), int(work), Path(folder))
    elif words.what == "drive":
        port, seconds, rate, nodes, work = words.given
        found = asyncio.run(drive(int(port), sys.stdin.read(), float(seconds), int(rate), int(nodes), int(work)))
        print(json.dumps(asdict(found)))
    elif words.what == "attack":
        asyncio.run(attack(*map(int, words.given)))
    else:
        seconds = (10, 10, 5) if words.quick else (SECONDS, SECONDS, 20)
        for row in (*load(seconds[0]), *beside_hostile_clients(seconds[1]), *large(seconds[2])):
            beside = "" if row.reference is None else f" beside {row.reference:.2f}"
            print(f"{row.name}: {row.ours:.2f} {row.unit}{beside} {row.goal} {'' if row.met is None else row.met}")


if __name__ == "__main__":
    main()
