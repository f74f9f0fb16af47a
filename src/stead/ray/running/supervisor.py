"""Owns the pieces of one submission: a detached actor that starts them, follows them and ends with them.

Rule: it keeps what happened until the command that watches has read it. Without a watcher it ends when its pieces have
ended; when it ends, Ray ends what is left of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from stead.language.asks import Ask
from stead.language.resources import CPU, GPU, MEMORY, UNIT
from stead.ray.running.runner import GRACE_S, Runner
from stead.ray.submit.compile import route_of
from stead.ray.submit.connection import connection
from stead.ray.submit.options import ROUTE, Marked
from stead.ray.submit.placement_groups import placement_group_of, remove_placement_group
from stead.specs.following import Line, State, Update
from stead.specs.submissions import Piece, Submission

NEWS_MAX = 50_000
"""How many lines and updates are kept; older ones are dropped."""

UNREAD_S = 60.0
"""How long the end of the work is kept for a watcher that does not ask any more."""

LONG_POLL_S = 1.0
LOOK_S = 0.2


@dataclass(slots=True)
class _Life:
    piece: Piece
    actor: Any
    result: Any
    group: PlacementGroup | None = None
    node: str = ""
    cancelled: str = ""
    has_ended: bool = False


@dataclass(slots=True)
class _News:
    """What happened, numbered from the start; `first` is the number of the oldest that is kept."""

    kept: list[Update | Line] = field(default_factory=list)
    first: int = 0

    def add(self, *news: Update | Line) -> None:
        self.kept += news
        if (surplus := len(self.kept) - NEWS_MAX) > NEWS_MAX // 10:
            del self.kept[:surplus]
            self.first += surplus

    @property
    def end(self) -> int:
        return self.first + len(self.kept)

    def after(self, number: int) -> Sequence[Update | Line]:
        dropped = self.first - number
        missing = [Line("", f"{dropped} older lines are not kept")] if dropped > 0 else []
        return [*missing, *self.kept[max(0, -dropped) :]]


class Supervisor:
    def __init__(self, work: Submission, is_watched: bool) -> None:
        self._work, self._is_watched = work, is_watched
        self._changed = threading.Condition()
        self._news = _News()
        self._asked = time.monotonic()  # when the watcher last asked
        self._lives: dict[str, _Life] = {}
        self._groups: dict[str, PlacementGroup] = {}

    def start(self) -> None:
        """Submit all pieces, or none if one is refused."""
        try:
            for id, group in self._work.groups.items():
                self._groups[id] = placement_group_of(group, id)
            for piece in self._work.pieces.values():
                self._lives[piece.id] = self._submit(piece)
        except BaseException:
            self._end()
            raise
        threading.Thread(target=self._follow, name="stead-supervisor", daemon=True).start()

    def _submit(self, piece: Piece) -> _Life:
        ask, group = piece.ask, self._groups.get(piece.group)
        options: dict[str, Any] = {"name": piece.id, "max_restarts": 0, "max_concurrency": 2, **amounts(ask)}
        if group is None:
            options[ROUTE] = Marked(route_of(ask, ask.deadline), {})
        else:
            index = [member.id for member in self._work.groups[piece.group].all_members].index(piece.id)
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, index)
        me = ray.get_runtime_context().current_actor
        kind: Any = ray.remote(Runner)
        given = (piece.id, piece.command.arguments, dict(piece.command.env), me)
        actor = kind._remote(args=given, kwargs={}, **options)
        return _Life(piece, actor, actor.run.remote(), group)

    # -- what runners report

    def started(self, id: str, node: str) -> None:
        with self._changed:
            life = self._lives.get(id)
            if life is not None:
                life.node = node
                self._add(Update(id, State.RUNNING, node))

    def printed(self, id: str, lines: Sequence[str]) -> None:
        with self._changed:
            self._add(*(Line(id, line) for line in lines))

    def _add(self, *news: Update | Line) -> None:
        self._news.add(*news)
        self._changed.notify_all()

    # -- what the watcher asks

    def actors(self) -> dict[str, tuple[str, str]]:
        """For each piece, the id of its actor and of its placement group."""
        return {
            id: (life.actor._actor_id.hex(), life.group.id.hex() if life.group else "")
            for id, life in self._lives.items()
        }

    def news(self, after: int) -> tuple[Sequence[Update | Line], int]:
        """What happened after a number, and the number to ask with next. It waits a while for something new."""
        self._asked = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._news.end > after, LONG_POLL_S)
            return self._news.after(after), self._news.end

    def cancel(self) -> None:
        """Stop what runs, and remove what has not started."""
        with self._changed:
            for life in self._lives.values():
                life.cancelled = life.cancelled or "cancelled"
        stopping = [life.actor.stop.remote() for life in self._lives.values() if life.node and not life.has_ended]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=2 * GRACE_S + 5)
        self._end()

    def _end(self) -> None:
        for life in self._lives.values():
            if not life.has_ended:
                ray.kill(life.actor)
        for group in self._groups.values():
            remove_placement_group(group)

    # -- following

    def _follow(self) -> None:
        """Report the end of each piece, and end groups that are done or too late."""
        began = time.monotonic()
        while left := [life for life in self._lives.values() if not life.has_ended]:
            done, _ = ray.wait([life.result for life in left], timeout=LOOK_S, fetch_local=False)
            ended = set(done)
            for life in left:
                if life.result in ended:
                    self._ended(life)
            self._end_groups(time.monotonic() - began)
        for group in self._groups.values():
            remove_placement_group(group)
        while self._is_watched and time.monotonic() - self._asked < UNREAD_S:
            time.sleep(LOOK_S)
        ray.kill(ray.get_runtime_context().current_actor)

    def _ended(self, life: _Life) -> None:
        code, reason = None, ""
        try:
            code = int(ray.get(life.result))
        except (ray.exceptions.RayActorError, ray.exceptions.RayTaskError) as error:
            reason = life.cancelled or self._why(life, error)
        with self._changed:
            life.has_ended = True
            state = State.SUCCEEDED if code == 0 else State.FAILED
            self._add(Update(life.piece.id, state, life.node, reason, code))
        with suppress(Exception):
            ray.kill(life.actor)  # it has ended, and its resources are free for other work

    def _why(self, life: _Life, error: Exception) -> str:
        late = connection().ask("refusal", life.actor._actor_id.hex())
        if late is not None:
            return f"its deadline passed: {late}"
        return str(error).strip().splitlines()[-1].strip()

    def _end_groups(self, seconds: float) -> None:
        for id, group in self._groups.items():
            deadline = self._work.groups[id].deadline
            members = [life for life in self._lives.values() if life.piece.group == id]
            if deadline is None or seconds < deadline or any(life.node or life.cancelled for life in members):
                continue
            why = f"its deadline passed: {connection().ask('desk', 'why', (group.id.hex(),))}"
            for life in members:
                life.cancelled = why
                ray.kill(life.actor)
            remove_placement_group(group)


def amounts(ask: Ask) -> dict[str, Any]:
    """The amounts of an ask, as options of an actor."""
    wanted = {name: amount / UNIT for name, amount in ask.choices[0].resources.items()}
    found: dict[str, Any] = {"num_cpus": wanted.pop(CPU, 0), "num_gpus": wanted.pop(GPU, 0)}
    if MEMORY in wanted:
        found["memory"] = int(wanted.pop(MEMORY))
    return {**found, "resources": wanted} if wanted else found
