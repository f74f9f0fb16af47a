"""The audit: who changed what, when, from where; before and after; in a chain that shows when it was touched.

Rule: append only. Each entry holds the hash of the one before it, so that an entry that was changed, taken out or put
in is found by `verify`; the file itself refuses updates and deletes. An entry knows enough to be undone.
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

_TABLE = """
    CREATE TABLE IF NOT EXISTS audit (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, who TEXT NOT NULL, origin TEXT NOT NULL, via TEXT NOT NULL,
        request TEXT NOT NULL, action TEXT NOT NULL, node TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL,
        hash TEXT NOT NULL);
    CREATE TRIGGER IF NOT EXISTS audit_is_not_changed BEFORE UPDATE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit is append only'); END;
    CREATE TRIGGER IF NOT EXISTS audit_is_not_shortened BEFORE DELETE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit is append only'); END;
    CREATE TRIGGER IF NOT EXISTS audit_only_grows BEFORE INSERT ON audit
        WHEN NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM audit)
        BEGIN SELECT RAISE(ABORT, 'the audit is append only'); END;
"""

FIRST = "0" * 64
"""What stands in place of a hash before the first entry."""

_FIELDS = ("number", "at", "who", "origin", "via", "request", "action", "node", "before", "after")


BY_TOKEN = frozenset({"rest", "page"})
"""Ways by which a change comes with a token that says whose it is."""


class Unknown(Invalid):
    """There is no such entry."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes a change, from which machine, by what (cli, api, rest, page), and in which request."""

    who: str
    origin: str = ""
    via: str = "api"
    request: str = ""

    @staticmethod
    def here(via: str) -> Author:
        """Whoever runs this process, on this machine."""
        who = f"user {os.getuid()}"
        with suppress(KeyError, OSError):
            who = getpass.getuser()
        return Author(who, socket.gethostname(), via)


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of a node, or of several at once. `before` and `after` are the node's labels, taints and whether it
    drains; of several nodes, whose `node` is "", they are `{"nodes": {id: ...}}`."""

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
        """Whether nobody checked who it was. A service knows by a token; a program on Ray says its own user's name."""
        return self.via not in BY_TOKEN

    @property
    def author(self) -> str:
        """``ann``, or ``ann (self-declared)``."""
        return f"{self.who} (self-declared)" if self.self_declared else self.who

    @property
    def states(self) -> Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """By node, how it was before and after."""
        if self.node:
            return {self.node: (self.before, self.after)}
        return {node: (state, self.after["nodes"][node]) for node, state in self.before["nodes"].items()}

    @property
    def title(self) -> str:
        """The id of its node, or how many nodes it changed."""
        return self.node or f"{len(self.states)} nodes"

    @property
    def changes(self) -> str:
        """``+team=blue:no-schedule -old`` in words that fit a line."""
        said = dict.fromkeys(_difference(before, after) for before, after in self.states.values())
        return "; ".join(said)


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    said = []
    for what in ("taints", "labels"):
        old, new = before.get(what, {}), after.get(what, {})
        said += [f"+{_pair(key, new[key])}" for key in new if new[key] != old.get(key)]
        said += [f"-{_pair(key, old[key])}" for key in old if key not in new]
    if before.get("draining") != after.get("draining"):
        said.append("draining" if after.get("draining") else "takes work again")
    return " ".join(said) or "nothing"


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
        self._whole, self._whole_at = (0, FIRST), -1  # so far the chain was found whole, at this version of the file

    def add(
        self, at: float, author: Author, action: str, node: str, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> Entry:
        """Write a change down, durably."""
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
        """What came after an entry, oldest first."""
        query = "SELECT * FROM audit WHERE number > ? ORDER BY number LIMIT ?"
        with self._lock:
            return [_entry(row) for row in self._connection.execute(query, (after, limit))]

    def entry(self, number: int) -> Entry:
        with self._lock:
            row = self._connection.execute("SELECT * FROM audit WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise Unknown(f"there is no audit entry {number}; `stead audit` lists them")
        return _entry(row)

    def verify(self) -> int:
        """How many entries there are; raises `Invalid` at the first that does not follow from the one before.

        While nobody else has written to the file, what was found whole once is not read again.
        """
        with self._lock:
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            count, previous = self._whole if version == self._whole_at else (0, FIRST)
            least = count + 1 if count else -(2**63)
            for row in self._connection.execute("SELECT * FROM audit WHERE number >= ? ORDER BY number", (least,)):
                count += 1
                if row[0] != count:
                    raise Invalid(f"the audit was touched: entry {count} is missing")
                if _digest(previous, row[:10]) != row[10]:
                    raise Invalid(f"the audit was touched: entry {count} is not what was written")
                previous = row[10]
                if count == self._written[0] and previous != self._written[1]:
                    raise Invalid(f"the audit was touched: entry {count} is not what was written")
            if count < self._written[0]:
                raise Invalid(f"the audit was touched: entry {count + 1} is missing")
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
