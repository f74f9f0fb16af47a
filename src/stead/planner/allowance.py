"""How many more nodes of each kind the limits allow, and which limit says so.

Rule: nodes that exist and nodes that are coming count, too. A node counts against a quota if its labels match, whatever
its kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stead.engine.engine import Engine
from stead.language.labels import Labels
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import Resources
from stead.planner.plans import PRICE, Limits, Quota, Stock

ROUNDING = 1e-9
"""Sums of prices may be so much too large."""


@dataclass(frozen=True, slots=True)
class _Left:
    """What is left of a quota for the kinds whose nodes count against it."""

    quota: Quota
    kinds: Mapping[str, Resources]
    nodes: int
    resources: Mapping[str, int]


class Allowance:
    """What the limits leave for new nodes.

    Args:
        engine: Its nodes count against quotas.
        catalog: The kinds of nodes.
        limits: The limits.
        stock: The nodes that exist or are coming.
    """

    def __init__(self, engine: Engine, catalog: Sequence[NodeTemplate], limits: Limits, stock: Stock) -> None:
        self._kinds = {kind.name: kind for kind in catalog}
        self.had = Counter(stock.running.values())
        self.had.update(stock.coming)
        self._money = None
        if limits.price_max is not None:
            self._money = limits.price_max - self._cost(self.had)
        self._left = [self._left_of(quota, engine, stock) for quota in limits.quotas]

    def more(self, kind: NodeTemplate, counts: Mapping[str, int]) -> tuple[int, str]:
        """How many more nodes of a kind may be launched beside these new nodes, and the limit that allows the least:
        the name of the kind or of a quota, or `PRICE`."""
        found = [(kind.count_max - self.had[kind.name] - counts.get(kind.name, 0), kind.name)]
        for left in self._left:
            if kind.name in left.kinds:
                found += [(number, left.quota.name) for number in self._by_quota(left, kind, counts)]
        if self._money is not None and kind.price > 0:
            number = max(0.0, (self._money - self._cost(counts)) / kind.price + ROUNDING)
            found.append((int(min(number, kind.count_max)), PRICE))  # it is infinite for a very small price
        number, name = min(found, key=lambda each: each[0])
        return max(0, number), name

    def for_minimum(self) -> Counter[str]:
        """The new nodes that the minimum of each kind needs, as far as the limits allow."""
        counts: Counter[str] = Counter()
        for kind in self._kinds.values():
            lacking = kind.count_min - self.had[kind.name]
            if lacking > 0:
                counts[kind.name] = min(lacking, self.more(kind, counts)[0])
        return +counts

    @staticmethod
    def _by_quota(left: _Left, kind: NodeTemplate, counts: Mapping[str, int]) -> list[int]:
        new = {name: counts[name] for name in left.kinds if counts.get(name)}
        found = [left.nodes - sum(new.values())] if left.quota.nodes_max is not None else []
        for resource, units in left.resources.items():
            if kind.capacity.get(resource):
                used = sum(count * left.kinds[name].get(resource) for name, count in new.items())
                found.append((units - used) // kind.capacity[resource])
        return found

    def _left_of(self, quota: Quota, engine: Engine, stock: Stock) -> _Left:
        kinds = {name: kind.capacity for name, kind in self._kinds.items() if _counts(quota.labels, kind.node(""))}
        counted = [node for id, node in engine.nodes.items() if id in stock.running or not quota.only_launched]
        capacities = [node.capacity for node in counted if _counts(quota.labels, node)]
        capacities += [kinds[name] for name, count in stock.coming.items() if name in kinds for _ in range(count)]
        limits = quota.resources_max or Resources()
        resources = {name: units - sum(each.get(name) for each in capacities) for name, units in limits.items()}
        return _Left(quota, kinds, (quota.nodes_max or 0) - len(capacities), resources)

    def _cost(self, counts: Mapping[str, int]) -> float:
        return sum(count * self._kinds[name].price for name, count in counts.items() if name in self._kinds)


def _counts(labels: Labels, node: Node) -> bool:
    return all(node.label(key) == value for key, value in labels.items())
