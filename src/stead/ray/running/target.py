"""Submits work to a Ray cluster and follows it: the side of the command.

Rule: what Ray cannot do is refused here, before anything is submitted. Everything else is done by the supervisor, which
continues when this process ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray

from stead.errors import Invalid
from stead.language.asks import ASK_ID, Affinity, Ask, Group
from stead.ray.api import init
from stead.ray.remote_desk import remote_desk
from stead.ray.running.supervisor import Supervisor
from stead.ray.wire.node_page import HEAD
from stead.specs.following import Line, State, Update
from stead.specs.sections import Misplaced
from stead.specs.submissions import Piece, Submission
from stead.text import first_few, short_id

NAMESPACE = "default"
"""The Ray namespace of work that names none."""

WHY_S = 1.0
"""How often the reasons of pending work are asked for."""

CANCEL_S = 30.0
HEAD_SHARE = 0.001
"""How much of the head's own resource the supervisor takes: Ray ignores the strategy of an actor that takes nothing."""


class RayTarget:
    def __init__(self, work: Submission, address: str | None, namespace: str | None, is_watched: bool) -> None:
        self._work, self._address, self._is_watched = work, address, is_watched
        self._namespace = namespace or _namespace(work) or NAMESPACE
        self._supervisor: Any = None
        self._ids: dict[str, tuple[str, str]] = {}

    def check(self) -> Sequence[str]:
        self._work.check_starts_now()
        for piece in self._work.pieces.values():
            _check(piece, self._namespace)
        for id, group in self._work.groups.items():
            _check_group(group, self._work.places[id])
        return list(self._work.pieces)

    def submit(self) -> Sequence[str]:
        ids = self.check()
        try:
            init(self._address or "auto", namespace=self._namespace, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise Invalid(
                f"there is no Ray cluster here to submit to ({error}); start one with: stead start --head"
            ) from error
        taken = sorted({*ids} & {*ray.util.list_named_actors()})
        if taken:
            raise Invalid(
                f"there is an actor named {first_few(taken)} in the namespace {self._namespace!r} already; wait until "
                "it has ended, or choose another id"
            )
        kind: Any = ray.remote(Supervisor)
        self._supervisor = kind.options(
            name=f"stead-submission-{os.urandom(6).hex()}",
            lifetime="detached",
            num_cpus=0,
            max_concurrency=32,
            resources={HEAD: HEAD_SHARE},
        ).remote(self._work, self._is_watched)
        try:
            ray.get(self._supervisor.start.remote())
        except ray.exceptions.RayTaskError as error:
            ray.kill(self._supervisor)
            cause = error.cause if isinstance(error.cause, Exception) else error
            if isinstance(cause, Invalid):
                raise cause from None
            first = str(cause).strip().partition("\n")[0]
            raise Invalid(f"Ray refuses the work: {first or type(cause).__name__}") from None
        self._ids = ray.get(self._supervisor.actors.remote())
        return ids

    def follow(self) -> Iterator[Update | Line]:
        number, left = 0, set(self._work.pieces)
        pending, reasons, asked = set(left), dict[str, str](), 0.0
        while left:
            try:
                news, number = ray.get(self._supervisor.news.remote(number))
            except ray.exceptions.RayActorError:
                raise Invalid("the actor that owns this work has died, so its work has ended too") from None
            for each in news:
                if isinstance(each, Update):
                    pending.discard(each.id)
                    if each.state.is_final:
                        left.discard(each.id)
                    yield _titled(each)
                else:
                    yield each
            if pending and time.monotonic() - asked > WHY_S:
                asked = time.monotonic()
                yield from self._reasons(pending, reasons)
        ray.kill(self._supervisor)

    def _reasons(self, pending: set[str], reasons: dict[str, str]) -> Iterator[Update]:
        """Why work is pending, where that is new. Work that has its node and starts in a moment has no reason."""
        snapshot = remote_desk().snapshot()
        waiting = set(snapshot.engine.waiting)
        for id in [id for id in self._work.pieces if id in pending]:
            actor, group = self._ids[id]
            if (group or actor) not in waiting:
                continue
            reason = str(snapshot.why(group or actor))
            if reasons.get(id) != reason:
                reasons[id] = reason
                yield Update(id, State.PENDING, reason=reason)

    def cancel(self) -> None:
        if self._supervisor is not None:
            try:
                ray.get(self._supervisor.cancel.remote(), timeout=CANCEL_S)
            finally:
                ray.kill(self._supervisor)

    def close(self) -> None:
        ray.shutdown()


def _titled(update: Update) -> Update:
    """The same with the name of the node."""
    if not update.node:
        return update
    try:
        title = remote_desk().snapshot().node(update.node).title
    except Invalid:
        title = short_id(update.node)  # it has left
    return Update(update.id, update.state, title, update.reason, update.code)


# -- what Ray cannot do


def _namespace(work: Submission) -> str:
    return next((piece.ask.namespace for piece in work.pieces.values() if piece.ask.namespace), "")


def _check(piece: Piece, namespace: str) -> None:
    ask, place = piece.ask, piece.place
    if not piece.command.arguments:
        raise Misplaced(f"{place}.run: is missing; a good value is 'python train.py'")
    if ask.namespace not in ("", namespace):
        raise Misplaced(
            f"{place}.namespace: all work of a submission has one namespace on Ray, for example {namespace}"
        )
    if ask.ports:
        raise Misplaced(f"{place}.ports: Ray does not know the ports of a node; leave it out")
    if ask.claims:
        raise Misplaced(f"{place}.claims: Ray does not know claims; leave them out")
    if ask.estimates:
        raise Misplaced(f"{place}.estimates: work on Ray has no estimates; leave it out")
    if len({choice.resources for choice in ask.choices}) > 1:
        raise Misplaced(f"{place}.fallback: on Ray a fallback can change only the selector, not the resources")
    if any(ASK_ID in affinity.selector.keys for affinity in _affinities(ask)):
        raise Misplaced(f"{place}: on Ray, other work is found by its labels, not by 'ask'; write labels: {{app: web}}")


def _affinities(ask: Ask) -> Iterator[Affinity]:
    for terms in ask.affinities:
        yield from terms
    for preference in ask.prefers:
        if isinstance(preference.want, Affinity):
            yield preference.want


def _check_group(group: Group, place: str) -> None:
    for name in ("min_available", "timeout_s"):
        if getattr(group, name) is not None:
            raise Misplaced(
                f"{place}.{name.removesuffix('_s')}: Ray places all bundles of a group at once; leave it out"
            )
    for member in group.all_members:
        rules = {"near or apart": member.affinities, "spread": member.spreads, "labels": member.labels}
        for name, given in {**rules, "prefers": member.prefers}.items():
            if given:
                raise Misplaced(f"{place}: {name} of a group's members cannot be said on Ray; use strategy or selector")
        if not member.choices[0].resources:
            raise Misplaced(f"{place}.bundles: a bundle on Ray needs an amount, for example {{CPU: 1}}")
