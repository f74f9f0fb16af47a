"""``stead.placement_group``: Ray's placement groups, with tolerations, every selector, and fallbacks of other bundles.

Rule: what comes back is a placement group of Ray, named from the start. It can be used in strategies, passed on and
waited for while the engine has not decided yet. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, validate_placement_group

from stead.asks import Ask, Choice, Group, PolicyName, Strategy
from stead.errors import Invalid, Unsupported
from stead.labelling import Labels
from stead.ray.attach import Connection, connection
from stead.ray.book import GroupAsked
from stead.ray.compile import RESOURCE_PREFIX, Pass, Route, route
from stead.ray.singly import check_solver
from stead.ray.submission import with_rare
from stead.resources import Resources

NODE_ID = "ray.io/node-id"
_GOOD = "for example [{'bundles': [{'GPU': 1}], 'bundle_label_selector': [{'gpu_type': 'A100'}]}]"


class DecidedGroup(PlacementGroup):  # type: ignore[misc]  # Ray's class is not typed
    """A placement group whose bundles are known for good only when it is decided, because it has fallbacks."""

    def __init__(self, id: Any, alternatives: Sequence[Sequence[Mapping[str, float]]]) -> None:
        self._alternatives = [[dict(bundle) for bundle in bundles] for bundles in alternatives]
        self._known: list[dict[str, float]] | None = None
        super().__init__(id)

    @property
    def bundle_cache(self) -> list[dict[str, float]]:
        """The bundles that were taken; until then the most there may be of each, so that all valid work is let in."""
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
        """Ray's own constructor sets it."""


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
    tolerations: Mapping[str, Any] | None = None,
    fallback_strategy: list[dict[str, Any]] | None = None,
    policy: str | PolicyName | None = None,
) -> Any:
    """A placement group that is created when all of its bundles have found a place, else not at all.

    Each entry of `fallback_strategy` is tried when the ones before it do not fit now: other ``bundles``, another
    ``bundle_label_selector``, or both. With a flow as its `policy` it is part of the batch of all work that says so.
    """
    link = connection()
    _check(bundles, "the placement group has ")
    if not isinstance(name, str):
        raise Invalid(f"name {name!r} of a placement group must be a string, for example 'ring'")
    validate_placement_group(bundles, strategy, lifetime, topology_strategy=topology_strategy)
    if not link.page().grants:
        raise Unsupported("placement groups of stead's need a Ray that can change a node's resources while it runs")
    chosen = PolicyName.HYBRID if policy is None else PolicyName.of(policy)
    check_solver(link.page(), chosen)
    alternatives = [(bundles, bundle_label_selector), *_fallbacks(bundles, fallback_strategy)]
    topology = dict(topology_strategy or {})
    node_level = topology.pop(NODE_ID, None) or strategy or "PACK"
    id = ray.PlacementGroupID.of(link.core.get_current_job_id())
    members, passes, natives = [], [], []
    for number, (each, selectors) in enumerate(alternatives):
        routes = [_route(link, bundle, selector, tolerations) for bundle, selector in _paired(each, selectors)]
        members.append(
            tuple(
                Ask(
                    f"{id.hex()}/{number}/{index}",
                    (Choice(Resources.of(bundle), asked.choices[0]),),
                    rule.tolerations,
                    namespace=link.namespace,
                    policy=chosen,
                )
                for index, (bundle, (asked, rule)) in enumerate(zip(each, routes, strict=True))
            )
        )
        passes.append(tuple(rule for _, rule in routes))
        natives.append(tuple(Labels(asked.label_selector) for asked, _ in routes))
    group = Group(
        id.hex(),
        tuple(members),
        Strategy.of(node_level),
        tuple((key, Strategy.of(each)) for key, each in topology.items()),
    )
    asked = GroupAsked(
        group,
        tuple(passes),
        tuple(natives),
        name,
        link.job,
        link.detached_actor,
        lifetime == "detached",
    )
    link.ask("register_group", asked)
    return DecidedGroup(id, [[{k: float(v) for k, v in bundle.items()} for bundle in each] for each, _ in alternatives])


def remove_placement_group(group: Any) -> None:
    """Remove a placement group, also one that still waits. Work that waits with it goes on waiting, as in Ray."""
    if not isinstance(group, PlacementGroup):
        raise Invalid(f"{group!r} is no placement group; give one that stead.placement_group made")
    connection().ask("end_group", group.id.hex())


def _fallbacks(
    bundles: list[dict[str, float]], given: Any
) -> list[tuple[list[dict[str, float]], list[dict[str, str]] | None]]:
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
            if not isinstance(name, str) or name.startswith(RESOURCE_PREFIX):
                raise Invalid(f"{where}the bundle {bundle!r} with {name!r}, which is no resource of yours, {good}")
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
    """The route of a bundle and its pass; a bundle with a rare resource tolerates that resource's taint by itself."""
    asked = route({"label_selector": selector, "tolerations": tolerations})
    page = link.page()
    return asked, with_rare(asked.wish, tuple(name for name in page.rare if bundle.get(name)), page).admits
