"""Providers: where nodes come from.

Rule: a provider launches, retires and lists; it decides nothing. It stores the id of a launch with what it launches
before `launch` returns, so that `list` has it after any crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stead.engine.scaling.decisions import LaunchId
from stead.errors import Invalid
from stead.language.nodes import NodeTemplate
from stead.planner.instances import Instance


class Unlaunched(Invalid):
    """The provider did not launch the node; the message is one sentence."""


class OutOfStock(Unlaunched):
    """The provider has no more nodes of this kind now."""


class Provider(Protocol):
    """Where nodes come from. Calls may be slow or hang, so each is made in a thread of its own."""

    @property
    def title(self) -> str:
        """What it is, for people."""

    def launch(self, id: LaunchId, template: NodeTemplate) -> None:
        """Start one node of this kind. A second call with the same id starts nothing.

        Raises:
            OutOfStock: There are no more nodes of this kind now.
            Unlaunched: The node was not launched.
        """

    def retire(self, instance: Instance) -> None:
        """End the node and everything that belongs to it. Nothing happens if it is already gone."""

    def list(self) -> Sequence[Instance]:
        """Every node that it launched and that is not gone, also those that failed or are ending."""
