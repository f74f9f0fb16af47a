"""Which new nodes pending work needs, and which of it would run on them.

Rule: new nodes are hypothetical nodes of a fork, and the engine decides what runs there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from stead.engine.decisions import Verdict
from stead.engine.engine import Engine
from stead.engine.facts import NodeJoined
from stead.engine.reasons import NeverFits
from stead.language.asks import Ask, AskId, Group
from stead.language.nodes import NodeId, NodeTemplate
from stead.planner.plans import HYPOTHETICAL, Launch, Plan, Unserved

ROUNDS_MAX = 1_000
"""The maximum number of calls of `Engine.decide` until a fork is settled, and of rounds in which a plan grows."""


def plan(engine: Engine, catalog: Sequence[NodeTemplate]) -> Plan:
    """New nodes of these kinds for all pending work that they can serve: in each step those that serve the most work
    for their price, and none that would have no work. `count_max` limits each kind. Nothing is changed."""
    kinds, counts = {template.name: template for template in catalog}, Counter[str]()
    final = _joined(engine, [])
    for _ in range(ROUNDS_MAX):  # nodes that join one after the other can serve more than nodes that join together
        more = _grown(final, catalog, counts)
        if not more:
            break
        counts += more
        final = _joined(engine, [(kinds[name], 0, count) for name, count in counts.items()])
    counts, final = _without_idle(engine, kinds, counts, final)
    kind_of = {node: _kind_of(node, kinds) for node in final.placed.values()}
    serves: dict[str | None, list[AskId]] = {}
    for id, node in final.placed.items():
        if id not in engine.placed:
            serves.setdefault(kind_of[node], []).append(id)
    return Plan(
        tuple(serves.get(None, ())),
        tuple(Launch(kinds[name], count, tuple(serves[name])) for name, count in counts.items()),
        tuple(_unserved(final, catalog)),
        tuple(name for name, count in counts.items() if count == kinds[name].count_max),
    )


def _kind_of(node: NodeId, kinds: Container[str]) -> str | None:
    """The kind of a new node; None for one that exists."""
    begin, _, rest = node.partition("/")
    name = rest.rpartition("/")[0]
    return name if begin == HYPOTHETICAL and name in kinds else None


def _without_idle(
    engine: Engine, kinds: Mapping[str, NodeTemplate], counts: Counter[str], final: Engine
) -> tuple[Counter[str], Engine]:
    """The same without new nodes that have no work, if that serves as much."""
    while True:
        used = Counter(name for node in set(final.placed.values()) if (name := _kind_of(node, kinds)) is not None)
        if used == counts:
            return counts, final
        fewer = _joined(engine, [(kinds[name], 0, used[name]) for name in counts])
        if len(fewer.placed) < len(final.placed):
            return counts, final
        counts, final = used, fewer


def _grown(current: Engine, catalog: Sequence[NodeTemplate], counts: Counter[str]) -> Counter[str]:
    """How many nodes of each kind to add to these, until no more of them would serve anything."""
    added: Counter[str] = Counter()
    for _ in range(ROUNDS_MAX):
        had = counts + added
        trials = [_first_of_use(current, template, had[template.name]) for template in catalog]
        found = [trial for trial in trials if trial is not None]
        if not found:
            break
        best = max(found, key=lambda trial: trial.worth)
        best = _as_many_as_pay(current, best, had[best.template.name])
        current = best.engine
        added[best.template.name] += best.nodes
    return added


class _Trial(NamedTuple):
    """`nodes` new nodes of a kind serve `gain` asks more; `engine` is the fork with them."""

    template: NodeTemplate
    nodes: int
    gain: int
    engine: Engine

    @property
    def worth(self) -> tuple[float, int]:
        """How much work for the price; at the same price, nodes with fewer kinds of resources are better."""
        return self.gain / (self.nodes * (self.template.price or 1.0)), -len(self.template.capacity)


def _tried(current: Engine, template: NodeTemplate, had: int, count: int) -> _Trial:
    fork = _joined(current, [(template, had, count)])
    return _Trial(template, count, len(fork.placed) - len(current.placed), fork)


def _first_of_use(current: Engine, template: NodeTemplate, had: int) -> _Trial | None:
    """The fewest new nodes of a kind that serve anything: one, or for groups up to one for each member."""
    most = min(template.count_max - had, max((_members(current, id) for id in current.waiting), default=0))
    for count in sorted({min(1 << power, most) for power in range(most.bit_length() + 1)} if most > 0 else ()):
        trial = _tried(current, template, had, count)
        if trial.gain > 0:
            return trial
    return None


def _as_many_as_pay(current: Engine, trial: _Trial, had: int) -> _Trial:
    """Twice as many nodes of the kind each time, as long as each serves as much as the first ones."""
    while had + 2 * trial.nodes <= trial.template.count_max:
        more = _tried(current, trial.template, had, 2 * trial.nodes)
        if more.gain < 2 * trial.gain:
            break
        trial = more
    return trial


def _joined(engine: Engine, new: Iterable[tuple[NodeTemplate, int, int]]) -> Engine:
    """A fork in which new nodes have joined and everything is decided. Each entry is a kind of node, the number of new
    ones that there are already, and how many join."""
    fork = engine.fork()
    for template, had, count in new:
        ids = (f"{HYPOTHETICAL}/{template.name}/{number + 1}" for number in range(had, had + count))
        fork.apply(*(NodeJoined(template.node(id)) for id in ids))
    for _ in range(ROUNDS_MAX):
        fork.decide()
        if fork.next_moment is None or fork.next_moment > fork.now:
            break
    return fork


def _members(engine: Engine, id: str) -> int:
    item = engine.item(id)
    return len(item.all_members) if isinstance(item, Group) else 1


def _unserved(engine: Engine, catalog: Sequence[NodeTemplate]) -> Iterator[Unserved]:
    """What is still pending: equal asks together, each group alone."""
    kinds: dict[object, list[str]] = {}
    for id in engine.waiting:
        item = engine.item(id)
        kinds.setdefault(item.shape_key if isinstance(item, Ask) else id, []).append(id)
    for ids in kinds.values():
        item = engine.item(ids[0])
        asks = (item,) if isinstance(item, Ask) else item.alternatives[0]
        verdicts = {template.name: _alone(engine, template, asks) for template in catalog}
        nearest = min(verdicts, key=lambda name: _lacking(verdicts[name]), default="")
        yield Unserved(tuple(ids), nearest, verdicts.get(nearest))


def _alone(engine: Engine, template: NodeTemplate, asks: Iterable[Ask]) -> Verdict:
    """What a new node of this kind lacks, if it were the only node: for the ask that lacks the most there."""
    alone = Engine(engine.settings, engine.solver)
    alone.apply(NodeJoined(template.node(HYPOTHETICAL)))
    found = [verdict for ask in asks for verdict in alone.explain(ask).verdicts[:1]]
    return max(found, key=_lacking)


def _lacking(verdict: Verdict) -> int:
    """How many reasons are in the way; a lack of resources counts twice, because nobody can lift it."""
    return 0 if verdict.candidates else sum(1 + isinstance(each.reason, NeverFits) for each in verdict.refusals)
