"""``@stead.remote``: Ray's decorator with stead's options, also in a process where Ray is not patched.

Rule: it uses the same route and pass as a patched process, but passes them to Ray through public options. One
difference remains: for an actor without amounts, Ray does not look for a free CPU when it starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

import ray
from ray._common import ray_option_utils
from ray.actor import ActorHandle as ActorHandle  # ActorProxy names it
from ray.actor import ActorProxy
from ray.util.placement_group import get_current_placement_group

from stead.errors import Unsupported
from stead.ray.submit import core_worker as submission
from stead.ray.submit.compile import OWN_OPTIONS, route
from stead.ray.submit.connection import connection
from stead.ray.submit.option_types import RemoteOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_NOT_RAYS = (*OWN_OPTIONS, "scheduling_strategy", "label_selector", "fallback_strategy")
_FIXED = ("max_calls", "concurrency_groups")
"""Options that Ray accepts only in its decorator."""


class RemoteDecorator(Protocol):
    """What ``stead.remote(num_cpus=1)`` returns: it takes a function or a class and makes it remote.

    Example:
        ```python
        on_gpu: RemoteDecorator = stead.remote(num_gpus=1)
        ```
    """

    @overload
    def __call__(self, target: type[T], /) -> RemoteClass[T]: ...  # type: ignore[overload-overlap]  # a class is called too
    @overload
    def __call__(self, target: Callable[P, R], /) -> RemoteFunction[P, R]: ...


@overload
def remote(target: type[T], /) -> RemoteClass[T]: ...  # type: ignore[overload-overlap]  # a class is called too
@overload
def remote(target: Callable[P, R], /) -> RemoteFunction[P, R]: ...
@overload
def remote(**options: Unpack[RemoteOptions]) -> RemoteDecorator: ...
def remote(*target: Callable[..., object], **options: object) -> Remote | Callable[[Callable[..., object]], Remote]:
    """Make a function or a class remote, as ``ray.remote`` does, with stead's options.

    It works in every process that is attached to a cluster with stead's controller, also where Ray is not patched.

    Args:
        target: The function or the class, where you write ``@stead.remote`` without options.
        **options: Ray's options and stead's own; see `RemoteOptions`.

    Returns:
        A `RemoteFunction` or a `RemoteClass`, or the decorator that makes one.

    Raises:
        Invalid: An option has a value that stead cannot use. You get this where you decorate, not at the first call.
        ValueError: Ray does not know an option, or refuses its value.
        TypeError: There are positional arguments beside or instead of the one function or class.

    Example:
        ```python
        @stead.remote(num_gpus=1, tolerations={"gpu_node": stead.Exists()})
        def train(epochs: int) -> float: ...


        loss = stead.get(train.remote(10))
        ```
    """
    if len(target) == 1 and not options and callable(target[0]):
        return _made(target[0], {})
    if target:
        raise TypeError("@stead.remote takes keyword options only, for example @stead.remote(num_cpus=1)")
    return lambda wrapped: _made(wrapped, options)


def _made(target: Callable[..., object], options: Mapping[str, Any]) -> Remote:
    return RemoteClass(target, options) if inspect.isclass(target) else RemoteFunction(target, options)


class Remote:
    """A function or class that runs on the cluster, with its options."""

    def __init__(self, target: Callable[..., object], options: Mapping[str, Any]) -> None:
        self._target, self._options = target, dict(options)
        self._route = route(self._options)  # a wrong option raises here, in the caller's stack
        rays = {name: value for name, value in options.items() if name not in _NOT_RAYS}
        kind = "actor" if inspect.isclass(target) else "task"
        getattr(ray_option_utils, f"validate_{kind}_options")(rays, in_options=False)
        fixed = {name: value for name, value in options.items() if name in _FIXED}
        self._rays: Any = ray.remote(**fixed)(target) if fixed else ray.remote(target)

    def options(self, **options: Unpack[RemoteOptions]) -> Self:
        """The same with other options; those you do not name stay as they are.

        Args:
            **options: Ray's options and stead's own; see `RemoteOptions`.

        Returns:
            A new object; this one does not change.

        Raises:
            Invalid: An option has a value that stead cannot use.
            ValueError: Ray does not know an option, or refuses its value.

        Example:
            ```python
            train.options(num_gpus=2).remote(10)
            ```
        """
        return type(self)(self._target, {**self._options, **options})

    def _submit(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
        link = connection()
        mine = {name: value for name, value in self._options.items() if name not in (*_NOT_RAYS, *_FIXED)}
        if submission.is_installed():
            own = {name: value for name, value in self._options.items() if name not in _FIXED}
            return self._rays.options(**own).remote(*args, **kwargs)
        if self._route.is_decided:
            raise Unsupported(
                "labels, spread, exclusive, a policy and rules on other work need a program that stead has bound; "
                "call stead.init() first, or start the program with RAY_RUNTIME_ENV_HOOK=stead.ray.hook"
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


class RemoteFunction(Remote, Generic[P, R]):
    """A function that runs on the cluster as a task. Made by `stead.remote`.

    Example:
        ```python
        @stead.remote
        def double(x: int) -> int:
            return 2 * x


        stead.get(double.remote(4))  # 8
        ```
    """

    @overload
    def remote(self, *args: P.args, **kwargs: P.kwargs) -> ray.ObjectRef[R]: ...
    @overload
    def remote(self, *args: object, **kwargs: object) -> ray.ObjectRef[R]: ...
    def remote(self, *args: object, **kwargs: object) -> ray.ObjectRef[R]:
        """Submit a task that calls the function.

        Args:
            *args: What the function takes. A ref may stand for a value, so type checkers accept anything here.
            **kwargs: The same, by name.

        Returns:
            The ref of the result. As in Ray, it is a list of refs with ``num_returns=2`` or more, and a generator
            of refs with ``num_returns="streaming"``.

        Raises:
            Unsupported: The options need Ray's submission to be patched, and `stead.init` was not called.

        Example:
            ```python
            ref = double.remote(4)
            ```
        """
        return self._submit(args, kwargs)


class RemoteClass(Remote, Generic[T]):
    """A class whose instances run on the cluster as actors. Made by `stead.remote`.

    You may decorate the class, but mypy does not see what a decorator makes of a class; call `stead.remote` instead.

    Example:
        ```python
        class Counter:
            def __init__(self) -> None:
                self.count = 0


        Counters = stead.remote(num_cpus=1)(Counter)
        counter = Counters.remote()
        ```
    """

    def remote(self, *args: object, **kwargs: object) -> ActorProxy[T]:
        """Create an actor.

        Args:
            *args: What the constructor of the class takes. A ref may stand for a value.
            **kwargs: The same, by name.

        Returns:
            The handle of the actor.

        Raises:
            Unsupported: The options need Ray's submission to be patched, and `stead.init` was not called.

        Example:
            ```python
            counter = Counters.remote()
            ```
        """
        return self._submit(args, kwargs)


def _is_captured() -> bool:
    """Whether work submitted here goes into the placement group of the submitting work."""
    worker = ray._private.worker.global_worker
    return bool(worker.should_capture_child_tasks_in_placement_group and get_current_placement_group())
