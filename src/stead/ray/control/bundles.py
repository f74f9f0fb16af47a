"""Chooses a bundle of a placement group for work whose rules on nodes allow some of the bundles only.

Rule: the engine chooses. Bundles are its nodes and each choice is an ask, so the bundle that was chosen least often is
next. How full a bundle is, only Ray knows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from stead.engine.decisions import Placed
from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted, NodeJoined
from stead.language.asks import Ask, Choice, PolicyName
from stead.language.labels import NODE_ID, Requirement, Selector
from stead.language.nodes import Node

GROUPS_MAX = 1_000
CHOICES_MAX = 10_000
"""After this many choices in a group, its counts start again."""


class Bundles:
    def __init__(self) -> None:
        self._engines: OrderedDict[str, Engine] = OrderedDict()

    def choose(self, group: str, among: Sequence[int]) -> int:
        """One of these bundles of a group, in turn."""
        engine = self._engines.pop(group, None)
        if engine is None or len(engine.placed) >= CHOICES_MAX:
            engine = Engine()
        self._engines[group] = engine
        if len(self._engines) > GROUPS_MAX:
            self._engines.popitem(last=False)
        names = [str(index) for index in among]
        engine.apply(*(NodeJoined(Node.of(name)) for name in names if name not in engine.nodes))
        choice = Choice(selector=Selector.all_of(Requirement.is_in(NODE_ID, *names)))
        engine.apply(AskSubmitted(Ask(str(len(engine.placed)), (choice,), policy=PolicyName.SPREAD)))
        (placed,) = engine.decide()
        assert isinstance(placed, Placed)
        return int(placed.node)
