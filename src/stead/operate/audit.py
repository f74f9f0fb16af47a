"""The audit log: who changed what, when and from where, with the state before and after, in a tamper-evident chain.

Rule: append only. Each entry holds the hash of the previous one, so `verify` finds an entry that was changed, removed
or inserted; the file itself refuses updates and deletes. An entry holds enough to undo its change.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stead.errors import Invalid
from stead.journal import writing
from stead.operate.changes import Absent
from stead.text import plural, short_id

_TABLE = """
    CREATE TABLE IF NOT EXISTS audit (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, who TEXT NOT NULL, origin TEXT NOT NULL, via TEXT NOT NULL,
        request TEXT NOT NULL, action TEXT NOT NULL, node TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL,
        hash TEXT NOT NULL);
    CREATE TRIGGER IF NOT EXISTS audit_is_not_changed BEFORE UPDATE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
    CREATE TRIGGER IF NOT EXISTS audit_is_not_shortened BEFORE DELETE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
    CREATE TRIGGER IF NOT EXISTS audit_only_grows BEFORE INSERT ON audit
        WHEN NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM audit)
        BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
"""

FIRST = "0" * 64
"""The previous hash of the first entry."""

_FIELDS = ("number", "at", "who", "origin", "via", "request", "action", "node", "before", "after")


BY_TOKEN = frozenset({"rest", "page"})
"""Interfaces that authenticate their callers by a token."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes a change, from which machine, through which interface (cli, api, rest, page), and in which request."""

    who: str
    origin: str = ""
    via: str = "api"
    request: str = ""

    @staticmethod
    def here(via: str) -> Author:
        """The user of this process, on this machine."""
        who = f"user {os.getuid()}"
        with suppress(KeyError, OSError):
            who = getpass.getuser()
        return Author(who, socket.gethostname(), via)


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of a node, or of several nodes at once. `before` and `after` hold the node's labels, taints and
    whether it drains. For several nodes, `node` is "" and they are `{"nodes": {id: ...}}`."""

    number: int
    at: float
    who: str
    origin: str
    via: str
    request: str
    action: str
    node: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    hash: str

    def __str__(self) -> str:
        origin = f" from {self.origin}" if self.origin else ""
        return f"{self.author} ({self.via}{origin}): {self.action} {self.changes}"

    @property
    def self_declared(self) -> bool:
        """Whether the name is unchecked. A service checks a token; a program on Ray only gives its own user name."""
        return self.via not in BY_TOKEN

    @property
    def author(self) -> str:
        """``ann``, or ``ann (self-declared)``."""
        return f"{self.who} (self-declared)" if self.self_declared else self.who

    @property
    def states(self) -> Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """The state before and after, by node."""
        if self.node:
            return {self.node: (self.before, self.after)}
        return {node: (state, self.after["nodes"][node]) for node, state in self.before["nodes"].items()}

    @property
    def title(self) -> str:
        """The node, or the number of nodes that changed."""
        return short_id(self.node) or plural(len(self.states), "node")

    @property
    def changes(self) -> str:
        """The difference on one line: ``+team=blue:no-schedule -old``."""
        parts = dict.fromkeys(_difference(before, after) for before, after in self.states.values())
        return "; ".join(parts)


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    parts = []
    for what in ("taints", "labels"):
        old, new = before.get(what, {}), after.get(what, {})
        parts += [f"+{_pair(key, new[key])}" for key in new if new[key] != old.get(key)]
        parts += [f"-{_pair(key, old[key])}" for key in old if key not in new]
    if before.get("draining") != after.get("draining"):
        parts.append("draining" if after.get("draining") else "takes work again")
    return " ".join(parts) or "nothing"


def _pair(key: str, value: Any) -> str:
    if isinstance(value, Mapping):  # a taint: its key is key:effect
        name, _, effect = key.rpartition(":")
        body = f"{name}={value['value']}" if value.get("value") else name
        return f"{body}:{effect}"
    return f"{key}={value}"


class Audit:
    def __init__(self, path: Path | str) -> None:
        self._lock, self._path = threading.Lock(), Path(path)
        with writing(self._path):
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(_TABLE)
        self._written = (0, FIRST)  # the last entry of this process
        self._whole, self._whole_at = (0, FIRST), -1  # the last entry that was verified, at this version of the file

    def add(
        self, at: float, author: Author, action: str, node: str, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> Entry:
        """Append a change, durably."""
        with self._lock, writing(self._path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                last = self._connection.execute(
                    "SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1"
                ).fetchone()
                number, previous = (last[0] + 1, last[1]) if last else (1, FIRST)
                values = (number, at, author.who, author.origin, author.via, author.request, action, node)
                row = (*values, _text(before), _text(after))
                digest = _digest(previous, row)
                self._connection.execute(f"INSERT INTO audit VALUES ({','.join('?' * 11)})", (*row, digest))
                self._connection.execute("COMMIT")
                self._written = (number, digest)
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        return _entry((*row, digest))

    def entries(self, after: int = 0, limit: int = 1000) -> Sequence[Entry]:
        """The entries after this one, oldest first; after -n, the last n."""
        with self._lock:
            if after < 0:
                last = self._connection.execute("SELECT max(number) FROM audit").fetchone()[0] or 0
                after = max(0, last + after)
            query = "SELECT * FROM audit WHERE number > ? ORDER BY number LIMIT ?"
            return [_entry(row) for row in self._connection.execute(query, (after, limit))]

    def entry(self, number: int) -> Entry:
        with self._lock:
            row = self._connection.execute("SELECT * FROM audit WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise Absent(f"there is no audit entry {number}; `stead audit` lists them")
        return _entry(row)

    def verify(self) -> int:
        """The number of entries; raises `Invalid` at the first one that does not follow from the previous one.

        Entries that were verified before are not read again while no other process has written to the file.
        """
        with self._lock:
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            count, previous = self._whole if version == self._whole_at else (0, FIRST)
            least = count + 1 if count else -(2**63)
            for row in self._connection.execute("SELECT * FROM audit WHERE number >= ? ORDER BY number", (least,)):
                count += 1
                if row[0] != count:
                    raise Invalid(f"the audit log was tampered with: entry {count} is missing")
                if _digest(previous, row[:10]) != row[10]:
                    raise Invalid(f"the audit log was tampered with: entry {count} was changed after it was written")
                previous = row[10]
                if count == self._written[0] and previous != self._written[1]:
                    raise Invalid(f"the audit log was tampered with: entry {count} was changed after it was written")
            if count < self._written[0]:
                raise Invalid(f"the audit log was tampered with: entry {count + 1} is missing")
            self._whole, self._whole_at = (count, previous), version
            return count

    def close(self) -> None:
        self._connection.close()


def _digest(previous: str, row: Sequence[Any]) -> str:
    written = json.dumps([previous, *row], separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(written.encode()).hexdigest()


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _entry(row: Sequence[Any]) -> Entry:
    values = dict(zip((*_FIELDS, "hash"), row, strict=True))
    return Entry(**{**values, "before": json.loads(row[8]), "after": json.loads(row[9])})


def entry_json(entry: Entry) -> dict[str, Any]:
    fields = {name: getattr(entry, name) for name in (*_FIELDS, "hash")}
    return {**fields, "changes": entry.changes, "self_declared": entry.self_declared}
