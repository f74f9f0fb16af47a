"""Usage over time: once a minute, how much is pending, used and stranded; for the last day.

Rule: a moment without an answer is a gap, never a guess. Only the last day is kept, in memory and in one small file
that only its owner can read. Samples are taken in a separate thread, and readers never wait for it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import stat
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from stead.operate.snapshot import Snapshot

INTERVAL_S = 60.0
KEPT = 1440
DAY_S = KEPT * INTERVAL_S
SLOW_S = 20.0
"""A sample that takes longer is dropped, because its time would be wrong."""

END_S = 5.0
"""How long shutdown waits for a desk that hangs."""

RESOURCES_MAX = 16
FIRST = ("CPU", "GPU", "memory", "object_store_memory")
KINDS_MAX = 50
LOOKED_AT = 20_000
FILE_BYTES_MAX = 8 << 20
FILES = "use-*.json"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """A cluster in numbers at one moment: pieces of work, nodes, and for each resource the total, what is used, and
    what is stranded."""

    at: float
    pending: int
    running: int
    nodes: int
    total: Mapping[str, float]
    used: Mapping[str, float]
    stranded: Mapping[str, float]


def sample_json(sample: Sample) -> dict[str, Any]:
    return asdict(sample)


def sample_of(snapshot: Snapshot, at: float) -> Sample:
    """The cluster of a snapshot in numbers, at this moment of the wall clock."""
    summary = snapshot.summary
    names = sorted(summary.total, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    total = {name: summary.total[name] for name in names[:RESOURCES_MAX]}
    used = {name: round(max(0.0, amount - summary.available.get(name, 0.0)), 4) for name, amount in total.items()}
    lost = stranded(snapshot)
    return Sample(
        at, summary.waiting, summary.running, summary.nodes, total, used, {name: lost.get(name, 0.0) for name in total}
    )


def stranded(snapshot: Snapshot) -> Mapping[str, float]:
    """For each resource, what is free on nodes where no work that requests it could use it now.

    The work in question is what runs or is pending: one more piece of each of its most common kinds is tried. So GPUs
    are stranded if the node's CPUs are all in use, if no GPU work tolerates the node's taint, if the node is drained,
    or if two are free and all work requests four. A resource that no work requests is not stranded.
    """
    engine, rows = snapshot.engine, snapshot.rows
    counts, examples = Counter[int](), dict[int, str]()
    for ids in (rows.waiting, rows.running):
        for id in islice(ids, LOOKED_AT):
            shape = rows.shape(id)
            examples.setdefault(shape, id)
            counts[shape] += 1
    usable: dict[str, set[str]] = {}
    for shape, _ in counts.most_common(KINDS_MAX):
        another = replace(rows.ask(examples[shape]), id="one more")
        for choice, nodes in zip(another.choices, engine.candidates(another), strict=True):
            for name in choice.resources:
                usable.setdefault(name, set()).update(nodes)
    found = dict.fromkeys(usable, 0.0)
    for node in snapshot.all_nodes:
        for name, free in snapshot.view(node).available.items():
            if name in usable and node.id not in usable[name]:
                found[name] += free
    return {name: round(amount, 4) for name, amount in sorted(found.items())}


class History:
    """The samples of the last day, oldest first; also in a file if there is a path."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._path, self._can_write = path, True
        if path is not None:
            _forget_old_files(path.parent)
            self._samples.extend(_read(path))

    def samples(self, after: float = 0.0) -> Sequence[Sample]:
        """The samples after a moment."""
        oldest = max(after, time.time() - DAY_S)
        with self._lock:
            return [sample for sample in self._samples if sample.at > oldest]

    def add(self, sample: Sample) -> None:
        """Add a sample. If the clock was set back, samples that are now in the future are dropped."""
        with self._lock:
            while self._samples and self._samples[-1].at >= sample.at:
                self._samples.pop()
            self._samples.append(sample)
            kept = list(self._samples)
        if self._path is not None:
            self._write(self._path, kept)

    def _write(self, path: Path, kept: Sequence[Sample]) -> None:
        text = json.dumps({"samples": [sample_json(each) for each in kept]}, separators=(",", ":"))
        try:
            _write(path, text)
            self._can_write = True
        except OSError as error:
            if self._can_write:
                log.warning("%s cannot be written (%s); usage over time is kept in memory only", path, error.strerror)
            self._can_write = False


class Sampler:
    """Takes a sample every minute, in a separate thread. `snapshot` may be slow or fail: then there is a gap."""

    def __init__(
        self, snapshot: Callable[[], Snapshot], history: History, clock: Callable[[], float] = time.time
    ) -> None:
        self._snapshot, self._history, self._clock = snapshot, history, clock
        self._stopping = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, name="stead-use", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(END_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.take()
            self._stopping.wait(INTERVAL_S - self._clock() % INTERVAL_S)

    def take(self) -> bool:
        """Take one sample now; False if that took too long or failed."""
        at, began = self._clock(), time.monotonic()
        try:
            found = sample_of(self._snapshot(), at)
        except Exception:  # requests report what is wrong with the cluster
            log.debug("no sample", exc_info=True)
            return False
        if time.monotonic() - began > SLOW_S or self._stopping.is_set():
            return False
        self._history.add(found)
        return True


# -- the file


def _forget_old_files(folder: Path) -> None:
    """Deletes the files of clusters that were not served for a day."""
    for path in folder.glob(FILES):
        with suppress(OSError):
            if path.lstat().st_mtime < time.time() - DAY_S:
                path.unlink()


def _read(path: Path) -> list[Sample]:
    """The samples of a file that are not too old; none if the file is not ours or is damaged."""
    try:
        with suppress(FileNotFoundError):
            now = time.time()
            samples = [_sample(each) for each in json.loads(_text(path))["samples"][-KEPT:]]
            kept = [each for each in samples if now - DAY_S < each.at <= now]
            return sorted(kept, key=lambda each: each.at)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log.warning("%s cannot be used (%s); usage over time starts from now", path, type(error).__name__)
    return []


def _text(path: Path) -> str:
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(number, encoding="utf-8") as file:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size > FILE_BYTES_MAX:
            raise ValueError("the file has another owner, is too large or is not a regular file")
        return file.read(FILE_BYTES_MAX)


def _sample(found: Mapping[str, Any]) -> Sample:
    pending, running, nodes = (int(_number(found[name])) for name in ("pending", "running", "nodes"))
    total, used, lost = (
        {str(name): _number(value) for name, value in islice(found[part].items(), RESOURCES_MAX)}
        for part in ("total", "used", "stranded")
    )
    return Sample(_number(found["at"]), pending, running, nodes, total, used, lost)


def _number(found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise ValueError("this is not a number")
    return float(found)


def _write(path: Path, text: str) -> None:
    """Write the whole file at once, readable only by its owner."""
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(fresh, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise
