"""Commands that keep running: `-w` prints again after a change, `events -f` follows; both end with their reader."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.serving import Served

CODE = "import sys; from stead.cli import main; sys.exit(main())"

Run = Callable[..., tuple[int, str, str]]


@contextmanager
def going_on(*words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-u", "-c", CODE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], last: str) -> list[str]:
    """The printed lines, up to one that contains this text."""
    assert process.stdout is not None
    found = []
    for line in process.stdout:
        found.append(line.rstrip("\n"))
        if last in line:
            break
    return found


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    return process.returncode, err.strip()


def test_watching_prints_again_when_something_has_changed(changed: Served, run: Run) -> None:
    with going_on("nodes", "-w", "--filter", "id=cpu-1") as process:
        first = lines(process, "cpu-one")
        assert run("taint", "nodes", "cpu-1", "k=v:NoSchedule")[0] == 0
        second = lines(process, "k=v")
        assert (len(first), second[0], second[1].split()[0], second[2].split()[-1]) == (2, "", "NODE", "k=v")
        assert interrupted(process) == (130, "stead: interrupted")


def test_json_is_watched_too(changed: Served, run: Run) -> None:
    with going_on("status", "-w", "-o", "json") as process:
        lines(process, '"draining": 1')
        assert run("drain", "cpu-1")[0] == 0
        assert lines(process, '"draining": 2')[-1] == '  "draining": 2,'
        assert interrupted(process)[0] == 130


def test_events_are_followed_a_line_each(changed: Served, run: Run) -> None:
    last = json.loads(run("events", "--json")[1])[-1]["number"]
    with going_on("events", "-f", "--after", str(last - 1), "-o", "json") as process:
        assert [json.loads(line)["number"] for line in lines(process, "{")] == [last]
        assert run("taint", "nodes", "spot-1", "k=v:NoSchedule")[0] == 0
        (line,) = lines(process, "{")
        assert (json.loads(line)["subject"], json.loads(line)["text"]) == ("spot-1", "tainted k=v")
        assert interrupted(process) == (130, "stead: interrupted")


@pytest.mark.parametrize("command", ["events -f", "nodes -w", "nodes --json", "work --format yaml"])
def test_a_closed_pipe_ends_it_quietly(command: str, changed: Served, run: Run) -> None:
    script = f"{sys.executable} -u -c '{CODE}' {command} | head -1"
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while process.poll() is None:  # it notices the closed pipe when it prints again
            done = run("taint", "--node-id", "cpu-1", "--append", f"k=v{os.urandom(4).hex()}")
            assert done[0] == 0, done
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)  # a service accepts a limited number of changes per minute
        assert process.stderr is not None
        assert process.stderr.read() == ""
