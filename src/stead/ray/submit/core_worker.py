"""Where stead patches Ray's submission: tasks, actors and groups get their pass before they reach Ray's core.

Rule: only this file and `options` patch Ray's submission. It patches the methods of Ray's core worker that all Python
submissions go through, after Ray has computed default amounts and captured groups. So plain work is accounted for as in
plain Ray, under every strategy. Work inside a placement group carries no pass; its bundle does. An error here never
fails a submission that uses no option of stead's.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, wraps
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from stead.errors import Invalid, Unsupported
from stead.language.labels import ANYWHERE, RAY_NODE_ID
from stead.language.selectors import union
from stead.language.taints import TOLERATE_ALL, Toleration
from stead.ray.submit import slot_tasks
from stead.ray.submit import ticketed_actors as singly
from stead.ray.submit.compile import Pass, Route, Wish, by_default, implicit, route
from stead.ray.submit.connection import Connection, connection
from stead.ray.submit.native_selectors import NOWHERE
from stead.ray.submit.options import CHOICES, Marked, State, accept_options, silence_autoscaler
from stead.ray.wire import resource_grants as grants
from stead.ray.wire.node_page import ACTOR_ENTRY, ACTOR_HOLDS, ENTRY, ONE, SOFT_ACTOR_ENTRY, SOFT_ENTRY, NoPage, Page
from stead.ray.wire.own_names import FIXED, ONCE, TIMED, labelled_names, read_name, soft_name
from stead.ray.wire.taint_labels import rare_taint
from stead.text import short_id

PLAIN = Wish(Pass())

NO_RESTARTS = (
    "preemptible=True needs an actor that can restart elsewhere; give it max_restarts, for example max_restarts=-1"
)
NO_RETRIES = "preemptible=True needs a task that may run again; give it max_retries, for example max_retries=3"
ENTRIES_MAX = 16

SERVICES = frozenset(
    """
    ray.serve._private.controller.ServeController ray.serve._private.proxy.ProxyActor
    ray.serve._private.haproxy.HAProxyManager ray.serve._private.controller_avatar.ServeControllerAvatar
    ray.data._internal.stats._StatsActor ray.data._internal.stats_summary_actor._StatsSummaryActor
    ray.data._internal.usage.actor._UsageCollectionActor
    ray.data._internal.execution.autoscaling_requester.AutoscalingRequester
    ray.data._internal.execution.node_trackers.actor_location.ActorLocationTracker
    ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator._AutoscalingCoordinatorActor
    ray.data._internal.memory_tracing._MemActor
    ray.train._internal.state.state_actor.TrainStateActor ray.train.v2._internal.state.state_actor.TrainStateActor
    ray.train.v2._internal.execution.controller.controller.TrainController
    ray.train.v2._internal.execution.preemption.PreemptionWatcher
    ray.train.v2._internal.callbacks.placement_group_cleaner.PlacementGroupCleaner
    ray.train.v2._internal.execution.checkpoint.sync_actor.SynchronizationActor
    ray.dashboard.modules.job.job_supervisor.JobSupervisor
    stead.ray.control.controller_actor.ControllerActor stead.ray.control.node_agents.PageAgent
    stead.ray.running.supervisor.Supervisor
    """.split()
)
"""Ray's own zero-CPU service actors, and stead's. They tolerate every taint, like daemons of a node."""

log = logging.getLogger(__name__)


# -- installing


def install(always: bool) -> None:
    """Patch this process's submissions. With `always`, plain work carries the plain pass even if no node is tainted."""
    State.always = State.always or always
    if State.installed:
        return
    check_ray()
    core = ray._raylet.CoreWorker
    _replace(core, "submit_task", _submit_task)
    _replace(core, "create_actor", _create_actor)
    _replace(core, "create_placement_group", _create_placement_group)
    _replace(core, "remove_placement_group", _remove_placement_group)
    accept_options()
    silence_autoscaler()
    State.installed = True


def is_installed() -> bool:
    return State.installed


def exempt_this_process() -> None:
    """For the controller: what it starts carries no pass."""
    State.exempt = True


@contextmanager
def complete() -> Iterator[None]:
    """In this block, what this thread submits goes to Ray unchanged."""
    State.complete.now = True
    try:
        yield
    finally:
        State.complete.now = False


def check_ray() -> None:
    if not grants.is_supported(ray.__version__):
        raise Unsupported(
            f"stead supports Ray {grants.SUPPORTED}, but this is Ray {ray.__version__}; "
            f"install it with: pip install 'ray[default]=={grants.SUPPORTED}.*'"
        )


def _replace(kind: type, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method of a class written in C.

    Such a class refuses assignment, but its methods are in a plain dictionary, which the garbage collector can find.
    Existing instances, for example in a worker that runs its setup hook, use the new method too.
    """
    methods = next(each for each in gc.get_referents(kind.__dict__) if isinstance(each, dict) and name in each)
    methods[name] = wraps(methods[name])(wrap(methods[name]))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _place_of(method: Callable[..., Any], name: str) -> int:
    return list(inspect.signature(method).parameters).index(name) - 1  # without self


# -- Ray's core


def _submit_task(plain: Callable[..., Any]) -> Callable[..., Any]:
    at_resources, at_strategy = _place_of(plain, "resources"), _place_of(plain, "scheduling_strategy")
    at_labels, at_fallback = _place_of(plain, "label_selector"), _place_of(plain, "fallback_strategy")
    at_retries = _place_of(plain, "max_retries")

    def submit_task(core: Any, *given: Any) -> Any:
        labels = given[at_labels]
        if State.exempt or getattr(State.complete, "now", False):
            if isinstance(labels, Marked):
                args = list(given)
                args[at_strategy], args[at_labels], args[at_fallback] = _as_written(labels, given[at_strategy])
                given = tuple(args)
            return plain(core, *given)
        asked = labels.route if isinstance(labels, Marked) else None
        resources, strategy = given[at_resources], given[at_strategy]
        link = connection(core)
        asked = by_default(asked, link.policy(), strategy)
        if asked is not None and asked.is_decided:
            if asked.preemptible and not given[at_retries]:
                raise Invalid(NO_RETRIES)
            args = list(given)
            args[at_strategy], args[at_labels], args[at_fallback] = _choices_in_slot(link, asked, resources, strategy)
            if not given[at_retries]:
                resources[ONCE] = ONE
            refs = plain(core, *args)
            if refs:
                link.remember(refs[0], asked, resources)
            return refs
        admitted = _admit_all(link, asked, resources, strategy, labels)
        if admitted is not None:
            resources.update(dict.fromkeys(_beside_the_pass(asked, admitted[0]), ONE))
            if not given[at_retries]:
                resources[ONCE] = ONE
            args = list(given)
            args[at_strategy], args[at_labels], args[at_fallback] = admitted
            given = tuple(args)
        refs = plain(core, *given)
        if isinstance(strategy, PlacementGroupSchedulingStrategy) and refs:
            link.remember_in_group(refs[0], strategy.placement_group.id.hex())
        elif asked is not None and refs:
            link.remember(refs[0], asked, resources)
        elif refs:
            link.remember_plain(refs[0], resources)
        return refs

    return submit_task


def _create_actor(plain: Callable[..., Any]) -> Callable[..., Any]:
    at_descriptor, at_resources = _place_of(plain, "function_descriptor"), _place_of(plain, "resources")
    at_placement, at_detached = _place_of(plain, "placement_resources"), _place_of(plain, "is_detached")
    at_restarts = _place_of(plain, "max_restarts")

    def create_actor(core: Any, *given: Any, **named: Any) -> Any:
        descriptor, labels = given[at_descriptor], named.get("label_selector")
        if State.exempt or _is_service(descriptor, given[at_resources]):
            if isinstance(labels, Marked):
                named.update(zip(CHOICES, _as_written(labels, named["scheduling_strategy"]), strict=True))
            return plain(core, *given, **named)
        asked = labels.route if isinstance(labels, Marked) else None
        resources = given[at_resources]
        before = set(resources)
        link = connection(core)
        asked = by_default(asked, link.policy(), named.get("scheduling_strategy"))
        if asked is not None and asked.is_decided:
            if asked.preemptible and not given[at_restarts]:
                raise Invalid(NO_RESTARTS)
            strategy = named.get("scheduling_strategy")
            piece = singly.Piece(link, asked, strategy, _tolerated(link.page(), asked, resources), _bundle_for)
            named.update(zip(CHOICES, piece.for_actor(resources, given[at_placement]), strict=True))
            actor_id = plain(core, *given, **named)
            piece.actor_created(actor_id, detached=given[at_detached])
            return actor_id
        admitted = _admit_all(link, asked, resources, named.get("scheduling_strategy"), labels)
        if admitted is not None:
            added = {name: ACTOR_ENTRY if read_name(name) else resources[name] for name in resources.keys() - before}
            resources.update(dict.fromkeys(filter(read_name, added), ACTOR_HOLDS))
            if _is_soft(admitted[0]):
                keys = [found[0] for found in map(read_name, added) if found]
                added.update(dict.fromkeys(map(soft_name, keys), SOFT_ACTOR_ENTRY))
            if added:
                given[at_placement].update({**({} if given[at_placement] else resources), **added})
            named.update(zip(CHOICES, admitted, strict=True))
        actor_id = plain(core, *given, **named)
        if asked is not None:
            link.remember_actor(actor_id, asked, resources)
        return actor_id

    return create_actor


def _create_placement_group(plain: Callable[..., Any]) -> Callable[..., Any]:
    at_bundles, at_labels = _place_of(plain, "bundles"), _place_of(plain, "bundle_label_selector")

    def create_placement_group(core: Any, *given: Any) -> Any:
        if State.exempt or not isinstance(given[at_bundles], list):
            return plain(core, *given)
        link, args = connection(core), list(given)
        tolerated = getattr(State.group_options, "tolerations", None)
        selectors = getattr(State.group_options, "selectors", None) or args[at_labels]
        labels = [dict(each or {}) for each in selectors] or [{} for _ in args[at_bundles]]
        bundles, selectors = [], []
        for bundle, selector in zip(args[at_bundles], labels, strict=True):
            bundle = dict(bundle)
            asked = route({"label_selector": selector, "tolerations": tolerated}) if selector or tolerated else None
            admitted = _admit_all(link, asked, bundle, None, group=True)
            bundles.append(bundle)
            selectors.append(dict(asked.label_selector) if asked is not None and admitted is not None else selector)
        args[at_bundles] = bundles
        args[at_labels] = selectors if any(selectors) else []
        return plain(core, *args)

    return create_placement_group


def _remove_placement_group(plain: Callable[..., Any]) -> Callable[..., Any]:
    def remove_placement_group(core: Any, group_id: Any) -> Any:
        if not State.exempt and not ray.util.placement_group_table(PlacementGroup(group_id)):
            with contextlib.suppress(Exception):  # the engine has not placed it, so Ray does not know it yet
                connection(core).ask("end_group", group_id.hex())
        return plain(core, group_id)

    return remove_placement_group


def _as_written(marked: Marked, strategy: Any) -> tuple[Any, Any, Any]:
    """The options as the caller wrote them, for work that stead leaves unchanged."""
    written = marked.written
    return (
        written.get("scheduling_strategy") or strategy,
        written.get("label_selector"),
        written.get("fallback_strategy"),
    )


# -- the pass


def admit(
    link: Connection,
    asked: Route | None,
    resources: MutableMapping[str, float],
    strategy: Any,
    amounts: Mapping[str, float] | None = None,
    group: bool = False,
) -> tuple[Any, Any, Any] | None:
    """Add the pass to `resources`. Returns Ray's (strategy, label selector, fallbacks); None leaves them unchanged.

    `amounts` is what the work asks for, if that is not `resources` itself.
    """
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        return None if asked is None else (_bundle_for(link, asked, strategy), None, None)
    page = link.page()
    wish = PLAIN if asked is None else asked.wish
    if page.rare:
        wish = with_rare(wish, tuple(name for name in page.rare if (amounts or resources).get(name)), page)
    if wish is PLAIN and not (State.always or page.bound):
        if asked is not None and asked.per_node:
            resources.update(implicit(asked, link.namespace))
        return None if asked is None else _native(asked, strategy)
    if asked is not None and asked.pins and not isinstance(strategy, NodeAffinitySchedulingStrategy):
        if not link.any_alive(asked.pins):
            # Every pinned node is gone, so let Ray raise its own error at once.
            return NodeAffinitySchedulingStrategy(_node_id(asked.pins[0]), soft=False), None, None
    ranked = wish.key != wish.admits.key
    to_a_node = isinstance(strategy, NodeAffinitySchedulingStrategy)
    if wish.admits.key not in page.generations or (ranked and wish.key not in page.tiers):
        # Wait under SPREAD too: otherwise the first node with the pass would take all pending work.
        page = link.introduce(wish, wait=ranked or group or to_a_node or strategy == "SPREAD" or not page.grants)
    if group and (wish is not PLAIN or page.tainted):
        link.prepare_group(wish)
        page = link.page()
    if page.late and (meant := [strategy.node_id] if to_a_node else next(iter(page.tiers.get(wish.key, [])), None)):
        page = link.until_granted(meant)
    if to_a_node:
        if not strategy.soft:
            _check_pin(link, wish, strategy.node_id)
        elif strategy.node_id in page.tainted and link.refusal(wish, strategy.node_id):
            strategy = "DEFAULT"  # a plug keeps the node feasible, so Ray would wait for it
    if page.grants:
        resources[page.name(wish.admits.key)] = SOFT_ENTRY if _is_soft(strategy) else ENTRY
    if asked is not None and asked.per_node:
        resources.update(implicit(asked, link.namespace))
    if asked is not None and asked.deadline_s is not None and page.grants:
        resources[TIMED] = ONE
    return _with_tiers(page, wish, asked, strategy)


def _is_soft(strategy: Any) -> bool:
    """Whether the strategy only prefers its node."""
    return isinstance(strategy, NodeAffinitySchedulingStrategy) and bool(strategy.soft)


def _beside_the_pass(asked: Route | None, strategy: Any) -> list[str]:
    """The names that state Ray's own rules, if they exclude nodes that the pass allows. A redirect reads them."""
    if isinstance(strategy, NodeAffinitySchedulingStrategy) and not strategy.soft:
        return [FIXED]
    if asked is None or not asked.label_selector:
        return []
    return labelled_names([asked.label_selector, *asked.fallback_strategy])


def _choices_in_slot(
    link: Connection, asked: Route, resources: MutableMapping[str, float], strategy: Any
) -> tuple[Any, Any, Any]:
    """Add the slot to the resources of a task that the engine places. Returns what Ray itself has to choose by."""
    page = link.page()
    slot_tasks.check_grants(page)
    singly.check_solver(page, asked.policy)
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        return _bundle_for(link, asked, strategy), None, None
    if asked.pins and not link.any_alive(asked.pins):
        # Every pinned node is gone, so let Ray raise its own error at once.
        return NodeAffinitySchedulingStrategy(singly.NO_NODE, soft=False), None, None
    shape = slot_tasks.shape_of(link, asked, resources, _tolerated(page, asked, resources))
    slot_tasks.ask_for_slot(link, page, shape, resources)
    return "DEFAULT", None, None


def _tolerated(page: Page, asked: Route, resources: Mapping[str, float]) -> tuple[Toleration, ...]:
    if not page.rare:
        return asked.wish.admits.tolerations
    rare = tuple(name for name in page.rare if resources.get(name))
    return with_rare(asked.wish, rare, page).admits.tolerations


def _admit_all(
    link: Connection,
    asked: Route | None,
    resources: MutableMapping[str, float],
    strategy: Any,
    labels: Any = None,
    group: bool = False,
) -> tuple[Any, Any, Any] | None:
    """Like `admit`, but an internal error of stead's does not fail work that uses no option of stead's."""
    try:
        return admit(link, asked, resources, strategy, group=group)
    except NoPage:  # the process has logged one warning
        if asked is None:
            return None
        if not isinstance(labels, Marked) or not _is_rays_own(labels):
            raise
        return _as_written(labels, strategy)
    except Invalid:
        raise
    except Exception:
        if asked is not None:
            raise
        log.exception("stead could not add a pass to a submission, so it is submitted without one")
        return None


def _is_rays_own(labels: Marked) -> bool:
    """Whether the caller used only Ray's own options."""
    asked, strategy = labels.route, labels.written.get("scheduling_strategy")
    more = asked.wish.admits.tolerations or asked.prefers or asked.per_node or asked.deadline_s is not None
    return not more and not asked.is_decided and (strategy is None or strategy is asked.strategy)


def _node_id(text: str) -> str:
    """A node id that Ray can parse. A string that is not a node id becomes an id that no node has."""
    well_formed = len(text) == 56 and set(text) <= set("0123456789abcdef") and set(text) != {"f"}
    return text if well_formed else "0" * 56


def _bundle_for(link: Connection, asked: Route, strategy: Any) -> Any:
    """Inside a group, the rules on nodes choose among the group's bundles, which already have their nodes."""
    rules = Wish(Pass(union(asked.choices), (TOLERATE_ALL,)))
    if rules.admits.selector == ANYWHERE and not (asked.affinities or asked.spreads):
        return strategy
    group = strategy.placement_group
    nodes = (ray.util.placement_group_table(group) or {}).get("bundles_to_node_id") or {}
    if not nodes or not all(nodes.values()):
        raise Invalid(
            "rules on nodes inside a placement group need a placed group; wait for it with ray.get(group.ready())"
        )
    ask = replace(asked.ask("inside a group", {}, link.namespace), tolerations=(TOLERATE_ALL,))
    wanted = strategy.placement_group_bundle_index
    chosen = link.ask("admission", "bundle_for", [ask, group.id.hex(), dict(nodes), wanted])
    if chosen is None:
        which = (
            "no bundle of the placement group is" if wanted == -1 else f"bundle {wanted} of the placement group is not"
        )
        where = f"with {rules.admits.selector}" if not (asked.affinities or asked.spreads) else "that its rules allow"
        raise Invalid(f"{which} on a node {where}")
    if chosen == -1:
        return strategy
    return PlacementGroupSchedulingStrategy(group, chosen, strategy.placement_group_capture_child_tasks)


def _native(asked: Route, strategy: Any) -> tuple[Any, Any, Any]:
    """The part of a route that Ray itself enforces."""
    return strategy, dict(asked.label_selector) or None, _entries(asked.fallback_strategy) or None


def _entries(selectors: Any) -> list[dict[str, dict[str, str]]]:
    return [{"label_selector": dict(each)} for each in selectors]


def _with_tiers(page: Page, wish: Wish, asked: Route | None, strategy: Any) -> tuple[Any, Any, Any]:
    """Ray's own fallbacks. If the engine ranks the nodes, each fallback first tries the best nodes."""
    tiers = page.tiers.get(wish.key) or page.tiers.get(wish.admits.key) or []
    first = dict(asked.label_selector) if asked is not None else {}
    choices = [first, *(dict(each) for each in asked.fallback_strategy)] if asked is not None else [first]
    if not page.grants:
        bound = page.only.get(wish.admits.key, [NOWHERE])
        choices = [{**choice, **each} for choice in choices for each in bound][:ENTRIES_MAX]
        tiers = []
    if tiers and not isinstance(strategy, NodeAffinitySchedulingStrategy):
        narrowed = [
            each
            for choice in choices
            for each in (*({**choice, RAY_NODE_ID: _one_of(tier)} for tier in tiers), choice)
            if RAY_NODE_ID not in choice
        ]
        choices = narrowed[:ENTRIES_MAX] or choices
    label_selector, *rest = choices
    return strategy, label_selector or None, _entries(rest) or None


def _one_of(ids: list[str]) -> str:
    return f"in({','.join(ids)})"


@lru_cache(1000)
def _with_rare_names(wish: Wish, names: tuple[str, ...]) -> Wish:
    own = tuple(Toleration(rare_taint(name).key) for name in names)
    admits = Pass(wish.admits.selector, (*wish.admits.tolerations, *own))
    return Wish(admits, wish.choices, wish.prefers)


def with_rare(wish: Wish, resources: tuple[str, ...], page: Page) -> Wish:
    """Work that asks for a rare resource automatically tolerates that resource's taint."""
    return _with_rare_names(wish, tuple(page.rare[name] for name in resources)) if resources else wish


def _check_pin(link: Connection, wish: Wish, node_id: str) -> None:
    reason = link.refusal(wish, node_id, pinned=True)
    if reason:
        raise Invalid(f"work is pinned to node {short_id(node_id)}, which refuses it: {reason}")


def _is_service(descriptor: Any, resources: Mapping[str, float]) -> bool:
    name = f"{descriptor.module_name}.{descriptor.class_name}"
    return name in SERVICES and not resources.get("CPU")
