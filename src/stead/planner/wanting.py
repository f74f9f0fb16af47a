"""Which pending work a new node could run, whatever kinds of nodes there are: for autoscalers that choose the kind.

Rule: the smallest node that the work describes joins a fork, and the engine decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from stead.engine.engine import Engine
from stead.engine.facts import AsksSubmitted, NodeJoined
from stead.language.asks import Ask, Choice
from stead.language.labels import IDENTITY_KEYS, Labels, Requirement
from stead.language.nodes import NodeTemplate
from stead.planner.plans import HYPOTHETICAL

PIECES_MAX = 100_000
"""The maximum number of pieces of one kind to consider."""


def wanting_a_node(engine: Engine, pending: Iterable[tuple[Ask, int]] = ()) -> list[tuple[Ask, int]]:
    """Work that fits no existing node but would fit a new one: each kind with its number of pieces. Includes work that
    is pending in the engine, and `pending`, which the engine does not know."""
    fork = engine.fork()
    for number, (ask, count) in enumerate(pending):
        fork.apply(AsksSubmitted(replace(ask, id=f"{HYPOTHETICAL}/{number}"), 0, min(count, PIECES_MAX)))
    fork.decide()
    kinds: dict[object, list[Ask]] = {}
    for id in fork.waiting:
        for ask in _asks(fork, id):
            kinds.setdefault(ask.shape_key, []).append(ask)
    return [(asks[0], len(asks)) for asks in kinds.values() if served_by(fork, asks[0]) is not None]


def served_by(engine: Engine, ask: Ask) -> NodeTemplate | None:
    """The smallest new node that would take the ask; None if no new node would, for example because the ask must be
    near work that runs elsewhere, or on a specific node."""
    for index, choice in enumerate(ask.choices):
        for labels in _labels_for(choice):
            template = NodeTemplate(HYPOTHETICAL, choice.resources, labels)
            fork = engine.fork()
            fork.apply(NodeJoined(template.node(HYPOTHETICAL)))
            if HYPOTHETICAL in fork.candidates(ask)[index]:
                return template
    return None


def _asks(engine: Engine, id: str) -> tuple[Ask, ...]:
    item = engine.item(id)
    return (item,) if isinstance(item, Ask) else item.alternatives[0]


def _labels_for(choice: Choice) -> Iterator[Labels]:
    """For each term of a selector that a new node can match: the smallest set of labels that matches it."""
    for term in choice.selector.terms:
        labels = {requirement.key: _value_for(requirement) for requirement in term if not requirement.absent}
        if not labels.keys() & IDENTITY_KEYS and None not in labels.values():
            yield Labels({key: value for key, value in labels.items() if value is not None})


def _value_for(requirement: Requirement) -> str | None:
    """A value that the requirement accepts."""
    near = [requirement.greater, requirement.less]
    numbers = [str(bound + step) for bound in near if bound is not None for step in (-1, 1)]
    found = (value for value in (*sorted(requirement.values), *numbers, "any", "other") if requirement.accepts(value))
    return next(found, None)
