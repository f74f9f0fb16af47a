"""A file of work to submit: the same asks and groups for every cluster, and the command of each piece.

Rule: what a cluster cannot do is refused by that cluster's own code, never here. The asks do not depend on the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stead.engine.facts import AskSubmitted, Fact, GroupSubmitted
from stead.language.asks import Ask, Group, PolicyName
from stead.specs.commands import Command
from stead.specs.documents import GROUP, WORK, Reader
from stead.specs.sections import Misplaced, Section

FIELDS = ("work", "groups")


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of work: where it may run, and what it runs. `place` is its position in the file."""

    ask: Ask
    command: Command
    place: str
    group: str = ""

    @property
    def id(self) -> str:
        return self.ask.id


@dataclass(frozen=True, slots=True)
class Submission:
    """What one file submits.

    Attributes:
        moments: The facts, each with its time in seconds.
        pieces: Every piece of work, also the members of groups, by id, in order.
        groups: The groups by id.
        durations: How long asks and groups run in a simulation.
        places: The position in the file of every id.
    """

    moments: tuple[tuple[float, Fact], ...]
    pieces: Mapping[str, Piece]
    groups: Mapping[str, Group]
    durations: Mapping[str, float]
    places: Mapping[str, str]

    def check_starts_now(self) -> None:
        """For a cluster where work begins when it is submitted."""
        for moment, fact in self.moments:
            if moment:
                place = self.places[next(ask.id for ask, _ in _asks(fact))]
                raise Misplaced(f"{place}: only the simulator can submit work later; leave out 'at' and 'every'")


def read_submission(
    written: Any, policy: PolicyName = PolicyName.HYBRID, used: Callable[[str], bool] = lambda id: False
) -> Submission:
    """The submission in a parsed YAML file. `used` tells whether an id is taken in the cluster."""
    file = Section(written, "", FIELDS)
    reader = Reader(used, policy)
    for section in file.sections("work", WORK):
        reader.work(section)
    for section in file.sections("groups", GROUP):
        reader.group(section)
    if not reader.moments:
        raise Misplaced("work: is missing; a good value is [{id: hello, run: echo hello, resources: {CPU: 1}}]")
    places = {id: place.removesuffix(".id") for id, place in reader.places.items()}
    pieces: dict[str, Piece] = {}
    groups: dict[str, Group] = {}
    for _, fact in reader.moments:
        if isinstance(fact, GroupSubmitted):
            groups[fact.group.id] = fact.group
            if len(fact.group.alternatives) > 1:
                place = places[fact.group.id]
                raise Misplaced(f"{place}.fallback: a group that is submitted has one set of bundles; leave it out")
        for ask, group in _asks(fact):
            pieces[ask.id] = Piece(ask, reader.commands[ask.id], places[ask.id], group)
    return Submission(tuple(reader.moments), pieces, groups, reader.durations, places)


def _asks(fact: Fact) -> Iterator[tuple[Ask, str]]:
    """The asks in a fact, each with the id of its group."""
    if isinstance(fact, AskSubmitted):
        yield fact.ask, ""
    elif isinstance(fact, GroupSubmitted):
        yield from ((member, fact.group.id) for member in fact.group.all_members)
