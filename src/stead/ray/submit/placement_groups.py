"""``stead.placement_group``: Ray's placement groups, with tolerations, every selector, and fallbacks of other bundles.

Rule: it returns a placement group of Ray, which has its id at once. You can use it in strategies, pass it on and wait
for it before the engine has placed it. The engine places it, not this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, validate_placement_group

from stead.errors import Invalid, Unsupported
from stead.language.asks import Ask, Choice, Group, PolicyName, Strategy
from stead.language.labels import RAY_NODE_ID, Labels
from stead.language.resources import UNIT, Resources
from stead.ray.submit.compile import Pass, Route, route, route_of
from stead.ray.submit.connection import Connection, connection
from stead.ray.submit.core_worker import with_rare
from stead.ray.submit.messages import GroupAsked
from stead.ray.submit.option_types import GroupFallback, TolerationMap
from stead.ray.submit.ticketed_actors import check_solver
from stead.ray.wire.own_names import PREFIX

Alternative = tuple[list[dict[str, float]], list[dict[str, str]] | None]
"""Bundles, and a label selector for each of them."""

_GOOD = "for example [{'bundles': [{'GPU': 1}], 'bundle_label_selector': [{'gpu_type': 'A100'}]}]"


class DecidedGroup(PlacementGroup):  # type: ignore[misc]  # Ray's class is not typed
    """A placement group with fallbacks: its final bundles are known only once the engine has placed it."""

    def __init__(self, id: Any, alternatives: Sequence[Sequence[Mapping[str, float]]]) -> None:
        self._alternatives = [[dict(bundle) for bundle in bundles] for bundles in alternatives]
        self._known: list[dict[str, float]] | None = None
        super().__init__(id)

    @property
    def bundle_cache(self) -> list[dict[str, float]]:
        """The bundles of the chosen alternative; until then the maximum of each, so that Ray accepts all valid work."""
        if len(self._alternatives) == 1:
            return self._alternatives[0]
        if self._known is None:
            row = ray.util.placement_group_table(self)
            if row:
                count = len(row["bundles"])
                self._known = next(each for each in self._alternatives if _is_taken(each, row["bundles"], count))
        return self._known or _most(self._alternatives)

    @bundle_cache.setter
    def bundle_cache(self, _: Any) -> None:
        """Set by Ray's own constructor, and ignored."""


def _is_taken(bundles: Sequence[Mapping[str, float]], row: Mapping[int, Mapping[str, float]], count: int) -> bool:
    return len(bundles) == count and all(
        all(row[index].get(name) == amount for name, amount in bundle.items()) for index, bundle in enumerate(bundles)
    )


def _most(alternatives: Sequence[Sequence[Mapping[str, float]]]) -> list[dict[str, float]]:
    found: list[dict[str, float]] = [{} for _ in range(max(map(len, alternatives)))]
    for bundles in alternatives:
        for index, bundle in enumerate(bundles):
            for name, amount in bundle.items():
                found[index][name] = max(found[index].get(name, 0.0), amount)
    return found


def placement_group(
    bundles: list[dict[str, float]],
    strategy: str | None = None,
    name: str = "",
    lifetime: str | None = None,
    *,
    bundle_label_selector: list[dict[str, str]] | None = None,
    topology_strategy: dict[str, str] | None = None,
    tolerations: TolerationMap | None = None,
    fallback_strategy: list[GroupFallback] | None = None,
    policy: str | PolicyName | None = None,
) -> PlacementGroup:
    """Create a placement group as soon as all of its bundles fit, or not at all.

    It returns at once. The group that you get works with everything in Ray that takes one, also while it is pending.

    Args:
        bundles: The amounts of each bundle, for example ``[{"CPU": 1}, {"GPU": 1}]``.
        strategy: ``PACK`` (the default), ``SPREAD``, ``STRICT_PACK`` or ``STRICT_SPREAD``, by node.
        name: A name to find the group by, unique in the namespace.
        lifetime: ``"detached"`` for a group that outlives the program.
        bundle_label_selector: What the node's labels must be, one selector for each bundle.
        topology_strategy: A strategy for each label key, for example ``{"zone": "STRICT_PACK"}``.
        tolerations: The taints that all bundles tolerate, by key.
        fallback_strategy: Other forms of the group, tried in order when the ones before them do not fit now.
        policy: How to choose nodes. With a flow, the group is decided in one batch with all work of that policy.

    Returns:
        Ray's placement group.

    Raises:
        Invalid: The bundles, the selectors, the fallbacks or the policy are not what they must be.
        ValueError: Ray refuses the strategy or the lifetime.
        Unsupported: The cluster's Ray cannot change a node's resources while the node runs.

    Example:
        ```python
        group = stead.placement_group(
            [{"GPU": 1}] * 2,
            strategy="STRICT_SPREAD",
            tolerations={"gpu_node": stead.Exists()},
            fallback_strategy=[{"bundles": [{"CPU": 4}] * 2}],
        )
        ```
    """
    link = connection()
    _check(bundles, "the placement group has ")
    if not isinstance(name, str):
        raise Invalid(f"name {name!r} of a placement group must be a string, for example 'ring'")
    validate_placement_group(bundles, strategy, lifetime, topology_strategy=topology_strategy)
    if not link.page().grants:
        raise Unsupported("stead.placement_group needs a Ray that can change a node's resources while it runs")
    chosen = PolicyName.HYBRID if policy is None else PolicyName.of(policy)
    check_solver(link.page(), chosen)
    alternatives = [(bundles, bundle_label_selector), *_fallbacks(bundles, fallback_strategy)]
    id = ray.PlacementGroupID.of(link.core.get_current_job_id())
    members, passes, natives = _members(link, id.hex(), alternatives, tolerations, chosen)
    topology = dict(topology_strategy or {})
    node_level = topology.pop(RAY_NODE_ID, None) or strategy or "PACK"
    by_key = tuple((key, Strategy.of(each)) for key, each in topology.items())
    group = Group(id.hex(), members, Strategy.of(node_level), by_key)
    link.ask(
        "register_group",
        GroupAsked(group, passes, natives, name, link.job, link.detached_actor, lifetime == "detached"),
    )
    return DecidedGroup(id, [[{k: float(v) for k, v in bundle.items()} for bundle in each] for each, _ in alternatives])


def _members(
    link: Connection, group: str, alternatives: Sequence[Alternative], tolerations: Any, policy: PolicyName
) -> tuple[tuple[tuple[Ask, ...], ...], tuple[tuple[Pass, ...], ...], tuple[tuple[Labels, ...], ...]]:
    """For each alternative and bundle: the ask, its pass, and the part of its selector that Ray checks."""
    members, passes, natives = [], [], []
    for number, (bundles, selectors) in enumerate(alternatives):
        routes = [_route(link, bundle, selector, tolerations) for bundle, selector in _paired(bundles, selectors)]
        members.append(
            tuple(
                Ask(
                    f"{group}/{number}/{index}",
                    (Choice(Resources.of(bundle), asked.choices[0]),),
                    rule.tolerations,
                    namespace=link.namespace,
                    policy=policy,
                )
                for index, (bundle, (asked, rule)) in enumerate(zip(bundles, routes, strict=True))
            )
        )
        passes.append(tuple(rule for _, rule in routes))
        natives.append(tuple(Labels(asked.label_selector) for asked, _ in routes))
    return tuple(members), tuple(passes), tuple(natives)


def placement_group_of(group: Group, name: str) -> PlacementGroup:
    """Create a group that is described by a `Group` with one alternative. Of its members, only the amounts, selectors,
    tolerations and policies count."""
    link = connection()
    if not link.page().grants:
        raise Unsupported("a group needs a Ray that can change a node's resources while it runs")
    id = ray.PlacementGroupID.of(link.core.get_current_job_id())
    members, passes, natives = [], [], []
    for index, member in enumerate(group.alternatives[0]):
        check_solver(link.page(), member.policy)
        asked = route_of(member)
        wanted = member.choices[0].resources
        rule = with_rare(asked.wish, tuple(each for each in link.page().rare if wanted.get(each)), link.page()).admits
        members.append(
            replace(
                member,
                id=f"{id.hex()}/0/{index}",
                tolerations=rule.tolerations,
                namespace=link.namespace,
                deadline=None,
            )
        )
        passes.append(rule)
        natives.append(Labels(asked.label_selector))
    made = replace(group, id=id.hex(), alternatives=(tuple(members),), deadline=None)
    link.ask(
        "register_group",
        GroupAsked(made, (tuple(passes),), (tuple(natives),), name, link.job, link.detached_actor, False),
    )
    return DecidedGroup(id, [[{k: amount / UNIT for k, amount in m.choices[0].resources.items()} for m in members]])


def remove_placement_group(group: PlacementGroup) -> None:
    """Remove a placement group, also one that is pending. Work that waits for it stays pending, as in Ray.

    Args:
        group: The group, made by `stead.placement_group` or by Ray.

    Raises:
        Invalid: It is not a placement group.

    Example:
        ```python
        stead.remove_placement_group(group)
        ```
    """
    if not isinstance(group, PlacementGroup):
        raise Invalid(f"{group!r} is not a placement group; pass one that stead.placement_group returned")
    connection().ask("end_group", group.id.hex())


def _fallbacks(bundles: list[dict[str, float]], given: Any) -> list[Alternative]:
    if given is None:
        return []
    if not isinstance(given, list | tuple):
        raise Invalid(f"fallback_strategy of a placement group must be a list, {_GOOD}, not {given!r}")
    found = []
    for entry in given:
        if not isinstance(entry, Mapping) or not entry:
            raise Invalid(f"fallback_strategy has the entry {entry!r}, which must be a map with bundles, {_GOOD}")
        for key in entry:
            if key not in ("bundles", "bundle_label_selector"):
                raise Invalid(
                    f"fallback_strategy has an entry with {key!r}, but only bundles and bundle_label_selector can "
                    f"change, {_GOOD}"
                )
        own = entry.get("bundles", bundles)
        _check(own, "fallback_strategy has ")
        found.append((own, entry.get("bundle_label_selector")))
    return found


def _check(bundles: Any, where: str) -> None:
    good = "for example [{'CPU': 1}, {'GPU': 1}]"
    if not isinstance(bundles, list) or not bundles:
        raise Invalid(f"{where}bundles {bundles!r}, which must be a list of maps, {good}")
    for bundle in bundles:
        if not isinstance(bundle, Mapping) or not bundle:
            raise Invalid(f"{where}the bundle {bundle!r}, which must be a map of amounts, {good}")
        for name, amount in bundle.items():
            if not isinstance(name, str) or name.startswith(PREFIX):
                raise Invalid(
                    f"{where}the bundle {bundle!r} with {name!r}, which is not a resource you can ask for, {good}"
                )
            if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < 1e12:
                raise Invalid(
                    f"{where}the bundle {bundle!r} with {amount!r} of {name!r}, which must be a number, {good}"
                )
        if not any(bundle.values()):
            raise Invalid(f"{where}the bundle {bundle!r}, which asks for nothing, {good}")


def _paired(bundles: list[dict[str, float]], selectors: Any) -> list[tuple[dict[str, float], Any]]:
    if selectors is None:
        return [(bundle, None) for bundle in bundles]
    if not isinstance(selectors, list | tuple) or len(selectors) != len(bundles):
        raise Invalid(
            f"bundle_label_selector must be a list with one selector for each of the {len(bundles)} bundles, "
            f"for example {[{'zone': 'a'}] * len(bundles)}, not {selectors!r}"
        )
    return list(zip(bundles, selectors, strict=True))


def _route(link: Connection, bundle: Mapping[str, float], selector: Any, tolerations: Any) -> tuple[Route, Pass]:
    """The route and the pass of a bundle. A bundle with a rare resource automatically tolerates that resource's
    taint."""
    asked = route({"label_selector": selector, "tolerations": tolerations})
    page = link.page()
    return asked, with_rare(asked.wish, tuple(name for name in page.rare if bundle.get(name)), page).admits
