"""The planner: which pending work would run on new nodes.

Rule: pure, and without a placement rule of its own. It forks the engine, adds hypothetical nodes and lets the engine
decide, so it never promises what the engine would not place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from stead.engine.engine import Engine
from stead.engine.facts import AsksSubmitted, NodeJoined
from stead.language.asks import Ask, Choice
from stead.language.labels import IDENTITY_KEYS, Labels, Requirement
from stead.language.nodes import NodeTemplate

HYPOTHETICAL = "(hypothetical)"
"""The id of a node that does not exist yet, and the id prefix of work that was not submitted."""

PIECES_MAX = 100_000
"""The maximum number of pieces of one kind to consider."""

NODES_MAX, GROWN_MAX = 100, 16
"""The maximum number of nodes to add, and of nodes of one template that are tried at once, for a group."""


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


def nodes_to_add(engine: Engine, templates: Sequence[NodeTemplate], limit: int = NODES_MAX) -> dict[str, int]:
    """How many nodes of each template would let pending work run, at most `limit` in all and `count_max` of each.

    Nodes are added one at a time: the template whose next node places the most pending work, at the lowest price; of
    equal ones the first. A group counts when it fits as a whole, so several nodes are tried at once for it.
    """
    fork, counts = engine.fork(), dict.fromkeys((template.name for template in templates), 0)
    left, placed = limit, len(fork.placed)
    while left > 0 and fork.waiting:
        tried = [
            each
            for template in templates
            if (each := _grown(fork, template, counts[template.name], left, placed)) is not None
        ]
        if not tried:
            break
        gain, template, more, fork = max(tried, key=lambda each: (each[0] / each[2], -each[1].price))
        counts[template.name] += more
        left -= more
        placed += gain
    return {name: count for name, count in counts.items() if count}


def _grown(
    engine: Engine, template: NodeTemplate, count: int, left: int, placed: int
) -> tuple[int, NodeTemplate, int, Engine] | None:
    """The fewest more nodes of a template that place anything: what they place, and the engine with them."""
    fork = engine.fork()
    for more in range(1, min(left, template.count_max - count, GROWN_MAX) + 1):
        id = f"{HYPOTHETICAL}/{template.name}/{count + more}"
        fork.apply(NodeJoined(template.node(id)))
        fork.decide()
        gain = len(fork.placed) - placed
        if gain > 0:
            return gain, template, more, fork
    return None
