"""How an actor whose node the engine chooses goes to Ray: with a ticket, and registered with the controller.

Rule: the submission never waits for the decision. The actor goes to Ray at once, asking for a ticket that no node has
yet, so its handle is real; then it is registered. Inside a placement group Ray places the actor, among the bundles that
the rules allow, and the controller only follows it. Tasks ask for a slot instead (`slot_tasks.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from stead.asks import Ask, PolicyName
from stead.errors import Unsupported
from stead.ray.attach import Connection
from stead.ray.compile import Route, implicit
from stead.ray.page import BOTH, ONE, TICKET, TIMED, Page
from stead.ray.slot_tasks import check_grants
from stead.taints import Toleration

NO_NODE = "0" * 56

Choices = tuple[Any, Any, Any]
"""Ray's strategy, label selector and fallbacks."""


def check_solver(page: Page, policy: PolicyName | None) -> None:
    """Refuse work that the controller could never decide."""
    if policy is not None and policy.in_batches and not page.solves:
        raise Unsupported(
            f"policy {policy.value!r} needs OR-tools on the head of the cluster, where the controller runs; "
            f"install it there with pip install 'stead[flow]'"
        )


class Piece:
    def __init__(
        self,
        link: Connection,
        asked: Route,
        strategy: Any,
        tolerated: tuple[Toleration, ...],
        bundle_for: Callable[[Connection, Route, Any], Any],
    ) -> None:
        check_grants(link.page())
        check_solver(link.page(), asked.policy)
        self._link, self._asked, self._tolerated = link, asked, tolerated
        self._name = ""
        self._amounts: Mapping[str, float] = {}
        self._held: Mapping[str, float] = {}
        self._choices: Choices = ("DEFAULT", None, None)
        if isinstance(strategy, PlacementGroupSchedulingStrategy):
            self._choices = (bundle_for(link, asked, strategy), None, None)
        elif asked.pins and not link.any_alive(asked.pins):
            # Ray itself then says at once that this cannot be, with its own error.
            self._choices = (NodeAffinitySchedulingStrategy(NO_NODE, soft=False), None, None)
        else:
            self._name = f"{TICKET}{os.urandom(6).hex()}"

    def for_actor(self, resources: MutableMapping[str, float], placement: MutableMapping[str, float]) -> Choices:
        """`placement` is what an actor needs to be placed, where that is more than it holds; empty where it is not."""
        self._held, self._amounts = dict(resources), dict(placement or resources)
        if self._name:
            self._mark(resources)
            placement.update({**self._amounts, **resources, **(placement or {}), self._name: BOTH})
            resources[self._name] = ONE
        return self._choices

    def _mark(self, resources: MutableMapping[str, float]) -> None:
        resources.update(implicit(self._asked, self._link.namespace))
        if self._asked.deadline_s is not None:
            resources[TIMED] = ONE

    def actor_created(self, actor_id: Any, detached: bool) -> None:
        """A detached actor may outlive this process, so it is known to the controller before anybody has its handle."""
        self._link.remember_actor(actor_id, self._asked, self._held)
        self._register(actor_id.hex(), wait=detached)

    def _register(self, id: str, wait: bool) -> None:
        from stead.ray.book import Registered  # only here: most workers never need it, and start sooner without

        ask = self._ask(id, self._amounts)
        running = ask if self._held == self._amounts else self._ask(id, self._held)
        if not self._name:
            from stead.ray.decided import only_heard_of

            ask, running = only_heard_of(ask), only_heard_of(ask)
        self._link.register(Registered(id, "actor", self._name, self._link.job, ask, running), wait)

    def _ask(self, id: str, amounts: Mapping[str, float]) -> Ask:
        return replace(self._asked.ask(id, amounts, self._link.namespace), tolerations=self._tolerated)
