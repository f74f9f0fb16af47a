"""Submits actors whose node the engine chooses: each actor asks for a ticket and is registered with the controller.

Rule: a submission never waits for the decision. The actor goes to Ray at once and asks for a ticket that no node has
yet, so you get a real handle. Then it is registered. Inside a placement group, Ray places the actor among the bundles
that the rules allow, and the controller only follows it. Tasks use slots instead (`slot_tasks.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from stead.errors import Unsupported
from stead.language.asks import Ask, PolicyName
from stead.language.taints import Toleration
from stead.ray.submit.compile import Route, implicit
from stead.ray.submit.connection import Connection
from stead.ray.submit.slot_tasks import check_grants
from stead.ray.wire.node_page import BOTH, ONE, Page
from stead.ray.wire.own_names import TICKET

NO_NODE = "0" * 56

Choices = tuple[Any, Any, Any]
"""Ray's strategy, label selector and fallbacks."""


def check_solver(page: Page, policy: PolicyName | None) -> None:
    """Refuse a policy that the controller has no solver for."""
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
            # Every pinned node is gone, so let Ray raise its own error at once.
            self._choices = (NodeAffinitySchedulingStrategy(NO_NODE, soft=False), None, None)
        else:
            self._name = f"{TICKET}{os.urandom(6).hex()}"

    def for_actor(self, resources: MutableMapping[str, float], placement: MutableMapping[str, float]) -> Choices:
        """`placement` is what the actor needs to be placed, if that is more than it holds; else it is empty."""
        self._held, self._amounts = dict(resources), dict(placement or resources)
        if self._name:
            resources.update(implicit(self._asked, self._link.namespace))
            placement.update({**self._amounts, **resources, **(placement or {}), self._name: BOTH})
            resources[self._name] = ONE
        return self._choices

    def actor_created(self, actor_id: Any, detached: bool) -> None:
        """Register the actor. A detached actor may outlive this process, so it is registered before you get its
        handle."""
        self._link.remember_actor(actor_id, self._asked, self._held, by_engine=bool(self._name))
        self._register(actor_id.hex(), wait=detached)

    def _register(self, id: str, wait: bool) -> None:
        from stead.ray.submit.messages import (
            Registered,  # imported here: most workers never need it
        )

        ask = self._ask(id, self._amounts)
        running = ask if self._held == self._amounts else self._ask(id, self._held)
        if not self._name:
            from stead.ray.submit.messages import followed_only

            ask, running = followed_only(ask), followed_only(ask)
        within_s = self._asked.deadline_s if self._name else None
        self._link.register(Registered(id, "actor", self._name, self._link.job, ask, running, within_s), wait)

    def _ask(self, id: str, amounts: Mapping[str, float]) -> Ask:
        return replace(self._asked.ask(id, amounts, self._link.namespace), tolerations=self._tolerated)
