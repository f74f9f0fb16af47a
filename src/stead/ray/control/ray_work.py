"""Work and placement groups that Ray lists, as the engine's asks and groups.

Rule: only translates. The slot or the pass among the resources of work shows its rules; Ray's label selectors show the
rest. What only the submitting process knows, such as preferences, is kept once that process has called `why`, so that
later callers get the same answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from stead.engine.facts import GroupEnded
from stead.language.asks import Ask, Choice, Group, Strategy
from stead.language.labels import RAY_NODE_ID, Requirement, Selector
from stead.language.resources import Resources
from stead.language.selectors import intersection, parse_label_selector
from stead.language.taints import TOLERATE_ALL
from stead.ray.control.cluster import real_amounts
from stead.ray.control.commands import Placing
from stead.ray.control.passes import Passes
from stead.ray.submit.compile import Pass
from stead.ray.submit.messages import Recalled
from stead.ray.wire.gcs import TaskRow
from stead.ray.wire.own_names import PREFIX, read_name
from stead.ray.wire.tables import ActorRow, PendingRow, Tables

RECALLED_MAX = 1_000
ANYTHING = Pass(tolerations=(TOLERATE_ALL,))
"""The rules of work without a pass."""


class RayWork:
    def __init__(self, tables: Tables, placing: Placing, passes: Passes) -> None:
        self.tables, self.placing, self._passes = tables, placing, passes
        self._recalled: OrderedDict[str, Ask] = OrderedDict()

    def recall(self, id: str, ask: Ask) -> bool:
        """Keep what the submitting process asked for. Returns whether that is new."""
        is_new = self._recalled.get(id) != ask
        self._recalled[id] = ask
        if len(self._recalled) > RECALLED_MAX:
            self._recalled.popitem(last=False)
        return is_new

    def ask_of(self, row: ActorRow | TaskRow) -> Ask:
        """The ask of work that Ray lists."""
        is_bound = _is_bound(row.resources)
        selectors = [
            {key: text for key, text in each.items() if key != RAY_NODE_ID or not is_bound} for each in row.selectors
        ]
        return self._ask(row.id, row.resources, map(parse_label_selector, selectors), self._recalled.get(row.id))

    def ask_of_demand(self, row: PendingRow, id: str) -> Ask:
        """The ask of a demand that is pending in Ray."""
        is_bound = _is_bound(row.resources)
        native = [
            Requirement.is_in(key, *values) if among else Requirement.not_in(key, *values)
            for key, among, values in row.labels
            if key != RAY_NODE_ID or not is_bound
        ]
        return self._ask(id, row.resources, [Selector.all_of(*native)])

    def ask_recalled(self, id: str, recalled: Recalled) -> Ask:
        """The ask of work that only the submitting process knows."""
        return self._ask(id, recalled.resources, (), recalled.ask)

    def _ask(
        self, id: str, resources: Mapping[str, float], native: Iterable[Selector], recalled: Ask | None = None
    ) -> Ask:
        life = self.placing.ticketed.lives.get(id)
        known = self.placing.slots.shape_of(resources) if life is None else life.what.ask
        if known is not None:
            return replace(known, id=id)
        amounts, rule = Resources.of(real_amounts(resources)), self._rule(resources)
        if recalled is not None:
            choices = tuple(replace(choice, resources=amounts) for choice in recalled.choices)
            return replace(recalled, choices=choices, tolerations=(rule or recalled).tolerations)
        rule = rule or ANYTHING
        selectors = dict.fromkeys(intersection([rule.selector, each]) for each in native)
        return Ask(id, tuple(Choice(amounts, selector) for selector in selectors), rule.tolerations)

    def rule_of(self, resources: Mapping[str, float]) -> Pass:
        """The rules of the pass among these resources; without one, everything is allowed."""
        return self._rule(resources) or ANYTHING

    def _rule(self, resources: Mapping[str, float]) -> Pass | None:
        for name in resources:
            found = read_name(name)
            if found and found[0] in self._passes.issued:
                return self._passes.issued[found[0]].rule
        return None

    def group_of(self, id: str, row: Mapping[str, Any], whole: bool = False) -> Group:
        """The engine's group for one that was submitted directly to Ray: all of it if `whole`, else its unplaced
        bundles."""
        members = []
        for index, amounts in sorted(row["bundles"].items()):
            if row["bundles_to_node_id"].get(index) and not whole:
                continue
            rule = self.rule_of(amounts)
            choice = Choice(Resources.of(real_amounts(amounts)), rule.selector)
            members.append(Ask(f"{id}/{index}", (choice,), rule.tolerations))
        return Group(id, (tuple(members),), Strategy.of(row["strategy"]))

    def fits(self, id: str, row: Mapping[str, Any]) -> bool:
        """Whether the engine could place a group, or the rest of it, now. Call it only in the controller's own thread:
        other threads must not read the engine without the lock."""
        fork = self.placing.fork(self.tables.status())
        fork.apply(GroupEnded(id))
        return fork.explain(self.group_of(id, row)).fits


def _is_bound(resources: Mapping[str, float]) -> bool:
    """Whether stead submitted the work. Then node ids in its label selector are not a rule of the user's (those are in
    the pass): stead uses them to make Ray try the best nodes first."""
    return any(name.startswith(PREFIX) for name in resources)
