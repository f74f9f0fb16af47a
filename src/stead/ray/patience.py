"""Work that waits on Ray: what is told of it, and when waiting ends.

Rule: reads Ray's tables and the engine's explanations, writes the book, and decides nothing about places. Waiting work
is known per kind (amounts and rules), because Ray lists it so; only work with a deadline is known singly.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import ray

from stead.asks import Ask
from stead.engine import Engine
from stead.engine.explain import Explanation
from stead.engine.reasons import Reason
from stead.ray.book import Book, Timed
from stead.ray.cluster import real_amounts
from stead.ray.page import read_name
from stead.ray.tables import PendingRow, Status, Tables

LOOK_S = 0.5
KINDS_MAX = 50
"""So many kinds of waiting work are explained in one look; the others come when these are gone."""

REPORTS_S = 2.0
"""How long after its start the controller refuses nobody at a deadline."""

EARLY_MAX = 10_000
SWEEP_S = 10.0

Causes = frozenset[tuple[int, Reason]]

ORPHAN_S = 2.0
"""So long after a deadline its owner should have ended the work; then the controller does it."""


class WaitingWork:
    """Tells by an event why each kind of work waits, once for each change of its causes; numbers alone are no news."""

    def __init__(self, book: Book, ask_of: Callable[[PendingRow, str], Ask]) -> None:
        self._book, self._ask_of = book, ask_of
        self._looked = 0.0
        self._heard: dict[Any, Causes] = {}
        self._told: dict[Any, Causes] = {}

    def look(self, status: Status, fork: Callable[[Status], Engine]) -> None:
        """Once in a while. `fork` gives an engine that knows what is in use."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        rows = [row for row in status.pending if any(read_name(name) for name in row.resources)]
        heard: dict[Any, Causes] = {}
        engine = fork(status) if rows else None
        for row in rows[:KINDS_MAX]:
            assert engine is not None
            found = engine.explain(self._ask_of(row, "waiting"))
            if found.fits:
                continue  # Ray has not looked again yet
            kind = (tuple(sorted(row.resources.items())), row.labels)
            heard[kind] = causes = found.causes
            # Work that only passes through Ray's queue is no news: causes are told when they are heard twice.
            if self._heard.get(kind) == causes and self._told.get(kind) != causes:
                self._told[kind] = causes
                self._book.add_event(time.time(), "waiting", amounts_text(row.resources), str(found), row.count)
        self._heard = heard
        self._told = {kind: causes for kind, causes in self._told.items() if kind in heard}


class Deadlines:
    """Refuses work that has not started in time. Its owner ends it; the controller does where the owner is gone."""

    def __init__(self, book: Book, tables: Tables, why: Callable[[Ask], Explanation]) -> None:
        self._book, self._tables, self._why = book, tables, why
        self._opened = self._swept = time.monotonic()
        self._started_early: OrderedDict[str, None] = OrderedDict()

    def watch(self, timed: Iterable[Timed]) -> None:
        """Take on work with a deadline. What has started, or is known because its owner tells of it again, is not."""
        now = time.time()
        self._book.keep_timed(
            replace(each, ask=replace(each.ask, deadline=now + each.within_s))
            for each in timed
            if self._book.timed_of(each.id) is None and each.id not in self._started_early
        )

    def started(self, ids: Iterable[str]) -> None:
        """A worker may tell that work has started before its owner tells of the deadline."""
        ids = list(ids)
        self._started_early.update(dict.fromkeys(id for id in ids if self._book.timed_of(id) is None))
        while len(self._started_early) > EARLY_MAX:
            self._started_early.popitem(last=False)
        self._book.forget_timed(ids)

    def await_reports(self) -> None:
        """A controller that has just started first lets workers tell it again what they told the one before."""
        time.sleep(max(0.0, self._opened + REPORTS_S - time.monotonic()))

    def refuse(self, id: str) -> bool:
        """Whether the work is refused: it is overdue, as its owner says, and nobody has told that it started."""
        timed = self._book.timed_of(id)
        if timed is None:
            return False
        if timed.refused is not None:
            return True
        if timed.kind == "actor":
            row = self._tables.actor(id)
            if row is not None and row.state in ("ALIVE", "RESTARTING", "DEAD"):
                self._book.forget_timed([id])
                return False
        text = str(self._why(timed.ask))
        self._book.keep_timed([replace(timed, refused=text)])
        self._book.add_event(time.time(), "refused", id, f"its deadline has passed: {text}")
        return True

    def mind_orphans(self) -> None:
        """Detached actors outlive the process that would end them; so does their deadline."""
        now = time.time()
        for timed in self._book.open_timed():
            if timed.kind == "actor" and timed.ask.deadline is not None and now - timed.ask.deadline > ORPHAN_S:
                row = self._tables.actor(timed.id)
                if row is None:
                    self._book.forget_timed([timed.id])  # it went with its owner
                elif row.name and self.refuse(timed.id):
                    ray.kill(ray.get_actor(row.name, row.namespace))
        if time.monotonic() - self._swept > SWEEP_S:
            self._swept = time.monotonic()
            self._forget_ended()

    def _forget_ended(self) -> None:
        """What went with its owner: nobody asks for its refusal any more. Detached actors have their own deadline."""
        known = self._book.all_timed()
        live = self._tables.live_owners({each.owner for each in known})
        self._book.forget_timed(
            each.id for each in known if each.owner not in live and (each.kind == "task" or each.refused is not None)
        )


def amounts_text(resources: Mapping[str, float]) -> str:
    real = real_amounts(resources)
    said = ", ".join(f"{amount:g} {name}" for name, amount in sorted(real.items()))
    return f"work that asks for {said or 'nothing'}"
