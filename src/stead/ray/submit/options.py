"""Makes Ray's own functions accept stead's options: ``@ray.remote``, ``.options`` and ``ray.util.placement_group``.

Rule: options are compiled where you write them, so a wrong option fails in your own stack. Ray gets only what it knows,
and an object that carries the route to Ray's core (see `core_worker`).
"""

from __future__ import annotations

import inspect
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import ray
from ray._common import ray_option_utils

from stead.ray.submit.compile import OWN_OPTIONS, Route, is_plain, route
from stead.ray.submit.environments import FLAG, opted
from stead.ray.wire.own_names import PREFIX

ROUTE = "_stead_route"
"""The option that carries a compiled route through Ray's own option handling."""

ENFORCE_LABELS = "STEAD_ENFORCE_LABELS"
CHOICES = ("scheduling_strategy", "label_selector", "fallback_strategy")


class Marked(dict):  # type: ignore[type-arg]
    """A label selector for Ray that carries its route to Ray's core. Equal submissions share one."""

    def __init__(self, asked: Route, options: Mapping[str, Any]) -> None:
        super().__init__(asked.label_selector)
        self.route = asked
        self.written = {name: options.get(name) for name in CHOICES}  # as the caller gave them


class State:
    """How this process binds submissions: never, only those that use stead (all once a taint was set), or always."""

    installed = False
    always = False
    exempt = False
    warned_labels = False
    group_options = threading.local()
    complete = threading.local()


def accept_options() -> None:
    """Make ``@ray.remote`` and ``.options`` accept stead's keywords and strategies."""
    for table in (ray_option_utils.task_options, ray_option_utils.actor_options, ray_option_utils.valid_options):
        for name in (*OWN_OPTIONS, ROUTE, "scheduling_strategy", "label_selector", "fallback_strategy"):
            table[name] = ray_option_utils.Option()
    for name in ("validate_task_options", "validate_actor_options"):
        setattr(ray_option_utils, name, _validating(getattr(ray_option_utils, name)))
    for kind in (ray.remote_function.RemoteFunction, ray.actor.ActorClass):
        kind._remote = _routing(kind._remote)
    # Programs may have imported the function already, so change its closure cell instead of replacing the function.
    for cell in ray.util.placement_group.__closure__ or ():
        if inspect.isfunction(cell.cell_contents) and cell.cell_contents.__name__ == "placement_group":
            cell.cell_contents = _tolerating(cell.cell_contents)


def _validating(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def validate(options: dict[str, Any], *rest: Any, **named: Any) -> Any:
        options.pop(ROUTE, None)
        if FLAG in (options.get("runtime_env") or ()):
            options["runtime_env"] = opted(options["runtime_env"])
        try:
            plain(options, *rest, **named)
        except ValueError as error:  # Ray's message lists all options; hide this internal one
            raise ValueError(str(error).replace(f", '{ROUTE}'", "")) from None
        if not is_plain(options):
            options[ROUTE] = Marked(route(options), options)

    return validate


def _routing(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def _remote(target: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        marked = options.pop(ROUTE, None)
        if marked is None:
            if is_plain(options):
                return plain(target, args, kwargs, **options)
            marked = Marked(route(options), options)
        if (options.get("label_selector") or options.get("fallback_strategy")) and _is_own_cluster():
            marked = Marked(route({**options, "label_selector": None, "fallback_strategy": None}), options)
        for name in OWN_OPTIONS:
            options.pop(name, None)
        options.update(scheduling_strategy=marked.route.strategy, fallback_strategy=None, label_selector=marked)
        return plain(target, args, kwargs, **options)

    return _remote


def _is_own_cluster() -> bool:
    """Whether label selectors are ignored here, because this driver started a one-node cluster itself."""
    worker = ray._private.worker.global_worker
    if os.environ.get(ENFORCE_LABELS) == "1" or worker.mode != ray.SCRIPT_MODE or worker.node is None:
        return False
    if not worker.node.head or ray._private.worker._global_node is None or len(ray.nodes()) > 1:
        return False
    if not State.warned_labels:
        State.warned_labels = True
        warnings.warn(
            "label_selector is ignored on a one-node cluster that this program started itself; "
            f"set {ENFORCE_LABELS}=1 to enforce it",
            UserWarning,
            stacklevel=4,
        )
    return True


def _tolerating(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def placement_group(*given: Any, tolerations: Any = None, fallback_strategy: Any = None, **named: Any) -> Any:
        if fallback_strategy is not None:
            from stead.ray.submit.placement_groups import (
                placement_group as decided,  # imported here because it is rarely needed and slow to load
            )

            return decided(*given, tolerations=tolerations, fallback_strategy=fallback_strategy, **named)
        selectors = named.get("bundle_label_selector")
        if State.exempt or (tolerations is None and selectors is None):
            return plain(*given, **named)
        bundles = given[0] if given else named.get("bundles")
        if isinstance(selectors, list) and isinstance(bundles, list) and len(selectors) == len(bundles):
            # Ray would reject options that only stead has. Check them here, so that an error is raised in the caller's
            # stack.
            for selector in selectors:
                route({"label_selector": selector})
            named["bundle_label_selector"] = None
            State.group_options.selectors = selectors
        route({"tolerations": tolerations})
        State.group_options.tolerations = tolerations
        try:
            return plain(*given, **named)
        finally:
            State.group_options.tolerations = State.group_options.selectors = None

    return placement_group


def silence_autoscaler() -> None:
    """Stop Ray's autoscaler from printing that no node type has a pass: users cannot act on that."""
    module = ray._private.worker
    plain = module.filter_autoscaler_events

    def filter_autoscaler_events(lines: Any) -> Any:
        return (line for line in plain(lines) if f"'{PREFIX}" not in line)

    module.filter_autoscaler_events = filter_autoscaler_events
