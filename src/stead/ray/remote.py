"""``@stead.remote``: Ray's decorator with stead's options, in a process where nothing of Ray is patched.

Rule: the same route and the same pass as everywhere; only the way into Ray differs, through its public options. One
thing cannot be said that way: an actor without any amounts holds no CPU, but Ray then looks for no free CPU either
when it starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray._common import ray_option_utils
from ray.util.placement_group import get_current_placement_group

from stead.errors import Unsupported
from stead.ray import submission
from stead.ray.attach import connection
from stead.ray.compile import OWN_OPTIONS, route

_NOT_RAYS = (*OWN_OPTIONS, "scheduling_strategy", "label_selector", "fallback_strategy")
_FIXED = ("max_calls", "concurrency_groups")
"""What Ray takes in its decorator only."""


def remote(*given: Any, **options: Any) -> Any:
    """A remote function or actor class: ``@stead.remote`` or ``@stead.remote(num_cpus=1, tolerations=...)``."""
    if len(given) == 1 and not options and callable(given[0]):
        return Remote(given[0], {})
    if given:
        raise TypeError("@stead.remote takes keyword options only, for example @stead.remote(num_cpus=1)")
    return lambda target: Remote(target, options)


class Remote:
    """A function or class that runs on the cluster, with the options it was given."""

    def __init__(self, target: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._target, self._options = target, dict(options)
        self._route = route(self._options)  # nonsense is refused here, in the caller's stack
        rays = {name: value for name, value in options.items() if name not in _NOT_RAYS}
        kind = "actor" if inspect.isclass(target) else "task"
        getattr(ray_option_utils, f"validate_{kind}_options")(rays, in_options=False)
        fixed = {name: value for name, value in options.items() if name in _FIXED}
        self._rays: Any = ray.remote(**fixed)(target) if fixed else ray.remote(target)

    def options(self, **options: Any) -> Remote:
        return Remote(self._target, {**self._options, **options})

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        link = connection()
        mine = {name: value for name, value in self._options.items() if name not in (*_NOT_RAYS, *_FIXED)}
        if submission.is_installed():
            own = {name: value for name, value in self._options.items() if name not in _FIXED}
            return self._rays.options(**own).remote(*args, **kwargs)
        if self._route.is_decided:
            raise Unsupported(
                "labels, spread, exclusive, a policy and rules on other work need Ray's submission bound; "
                "call stead.init() before, or start the program with RAY_RUNTIME_ENV_HOOK=stead.ray.hook"
            )
        resources: dict[str, float] = {}
        amounts = ray._common.utils.resources_from_ray_options(mine)
        strategy: Any = self._route.strategy
        if strategy is None and _is_captured():
            return self._rays.options(**mine).remote(*args, **kwargs)
        admitted = submission.admit(link, self._route, resources, strategy, amounts)
        if admitted is not None:
            strategy, mine["label_selector"], mine["fallback_strategy"] = admitted
        mine["scheduling_strategy"] = strategy
        mine["resources"] = {**(mine.get("resources") or {}), **resources}
        if inspect.isclass(self._target) and resources and not amounts:
            mine["num_cpus"] = 0
        made = self._rays.options(**mine).remote(*args, **kwargs)
        self._remember(link, made, {**amounts, **resources})
        return made

    def _remember(self, link: Any, made: Any, amounts: Mapping[str, float]) -> None:
        if isinstance(made, ray.actor.ActorHandle):
            link.remember_actor(made._actor_id, self._route, amounts)
        elif made is not None:
            first = made[0] if isinstance(made, list) else made
            ref = first._generator_ref if isinstance(first, ray.ObjectRefGenerator) else first
            link.remember(ref, self._route, amounts)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self._target.__name__} runs on the cluster; call {self._target.__name__}.remote() instead")


def _is_captured() -> bool:
    """Whether what is submitted here goes into the placement group of the work that submits it."""
    worker = ray._private.worker.global_worker
    return bool(worker.should_capture_child_tasks_in_placement_group and get_current_placement_group())
