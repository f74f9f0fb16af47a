"""The service under load: a real server in its own process, a client in another, 200 requests a second for a minute.

Rule: requests leave by the clock, whatever becomes of the ones before (so that a stall is counted for all who would
have asked meanwhile); a trivial request (`/healthz`) is measured between them as the reference.

    python -m benchmarks.service --quick
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import Row

NODES, WORK = 5_000, 50_000
SECONDS, RATE, REFERENCE_RATE = 60, 200, 20
CONNECTIONS = 64
IDLE_S = 3.0
GOAL_MS = 100.0
TEAMS = ("blue", "red", "green")
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
    from stead.service.listening import SETTINGS
    from stead.sim.desk import SimDesk
    from stead.sim.scenario import parse

    desk = SimDesk(parse(scenario(nodes, work)), folder)
    keys = Keys(folder / "home")
    keys.operator_token()
    gc.collect()
    gc.freeze()
    app: Any = create_app(desk, keys)
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
            body = json.dumps({"team": dice.choice(TEAMS)}).encode()
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
) -> list[Row]:
    with running(nodes, work) as (port, token, pid):
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
    for name, values, share in (
        ("all", everything, 0.5),
        ("all", everything, 0.99),
        ("pages of 100", took["list"], 0.99),
        ("why", took["why"], 0.99),
        ("taints", took["taint"], 0.99),
    ):
        ours = part(values, share)
        goal, met = (f"< {GOAL_MS:g} ms", ours < GOAL_MS) if share == 0.99 and name in promised else ("", None)
        label = f"service, {name}, p{share * 100:g} ({where}; reference: /healthz p99)"
        rows.append(Row(label, ours, "ms", trivial, ours / trivial if trivial else None, goal, met))
    said = f" ({errors[0]})" if errors else ""
    rows.append(Row(f"service, errors{said}", float(len(errors)), "", None, None, "0", not errors))
    asked = sum(map(len, took.values()))
    rows.append(Row("service, processor time of one request", busy / asked * 1e3, "ms", None, None, "", None))
    growth = after / before
    rows.append(Row("service, memory after the load over before", after, "MB", before, growth, "< 1.5x", growth < 1.5))
    return rows


def large(seconds: float = 20) -> list[Row]:
    """Twice the nodes and the work, and fewer who ask: that lists stay quick is about their length."""
    return load(seconds, 40, 10_000, 100_000, ("pages of 100",))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", default="load", choices=["load", "serve", "drive"])
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
    else:
        for row in [*load(10), *large(5)] if words.quick else [*load(), *large()]:
            beside = "" if row.reference is None else f" beside {row.reference:.2f}"
            print(f"{row.name}: {row.ours:.2f} {row.unit}{beside} {row.goal} {'' if row.met is None else row.met}")


if __name__ == "__main__":
    main()
