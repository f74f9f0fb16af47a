"""What people call on a Ray cluster: attach, ask, change.

Rule: every function checks what it was given in the caller's own stack, then asks the desk. A change holds when the
function returns; what is asked is answered as commands and pages answer it. Nothing is decided here.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, Unpack, overload

import ray
from ray._private.worker import RayContext
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup

import stead
from stead.engine.explain.events import Event
from stead.engine.explain.explanations import Explanation
from stead.errors import Invalid, Unsupported
from stead.language.arguments import labels_of, parse_effect, taints_of
from stead.language.asks import PolicyName
from stead.language.labels import Labels, Selector
from stead.language.selectors import parse_label_selector, parse_selector
from stead.language.taints import Effect, Taint
from stead.operate.audit import Author
from stead.operate.changes import NodeChange, Removal
from stead.operate.draining import left_on
from stead.operate.views import NodeView
from stead.ray.remote_desk import remote_desk
from stead.ray.submit.connection import connection
from stead.ray.submit.core_worker import check_ray, install
from stead.ray.submit.hooks import with_setup
from stead.ray.submit.option_types import InitOptions
from stead.ray.submit.placement_groups import (
    placement_group as placement_group,
)
from stead.ray.submit.placement_groups import (
    remove_placement_group as remove_placement_group,
)
from stead.ray.submit.remote import remote as remote
from stead.ray.wire import resource_grants as grants
from stead.ray.wire.node_page import PROTOCOL
from stead.ray.wire.own_names import NAMESPACE
from stead.text import plural, short_id

LOOPBACK = ("127.0.0.1", "localhost")

T = TypeVar("T")


class Unplaced(Exception):
    """Work had not started by its deadline, so it was ended. `stead.get` raises this; the message says why it waited.

    Attributes:
        id: The id of the task or actor.
        explanation: Why no node took it, in words.

    Example:
        ```python
        try:
            stead.get(train.options(deadline_s=60).remote())
        except stead.Unplaced as error:
            print(error.explanation)
        ```
    """

    id: str
    explanation: str

    def __init__(self, id: str, explanation: str) -> None:
        super().__init__(f"{short_id(id)} was not placed by its deadline: {explanation}")
        self.id, self.explanation = id, explanation

    def __reduce__(self) -> tuple[Any, ...]:
        return (Unplaced, (self.id, self.explanation))


# -- attaching


def init(
    address: str | None = None, *, policy: str | PolicyName | None = None, **given: Unpack[InitOptions]
) -> RayContext | None:
    """Attach this program to a Ray cluster, or start a local one, and let stead place what it submits.

    It starts stead's controller if none runs. If the program is attached already, it only patches Ray's submission in
    this process and in the workers that run the program's work.

    Args:
        address: The address of the cluster, or ``"auto"``, as for ``ray.init``; without one, Ray starts a cluster.
        policy: How to choose nodes for work that does not name a policy. You choose it once per cluster.
        **given: Everything else that ``ray.init`` takes.

    Returns:
        What ``ray.init`` returned, or None if the program was attached already.

    Raises:
        Invalid: The program is attached to another cluster, or the cluster has another policy.
        Unsupported: It is a Ray Client (``ray://``), or this Ray or the cluster's controller has a version that does
            not work with this stead.
        ConnectionError: There is no cluster at `address`.

    Example:
        ```python
        stead.init("auto", policy="pack")
        ```
    """
    check_ray()
    chosen = None if policy is None else PolicyName.of(policy)
    if address and address.startswith("ray://"):
        raise Unsupported("stead.init cannot bind a Ray Client; run the program on the cluster, or submit it as a job")
    install(always=False)
    attached = None
    if not ray.is_initialized():
        given["runtime_env"] = with_setup(given.get("runtime_env"), always=False)
        attached = ray.init(_found(address), **given)
    elif address and ":" in address and not _is_same(address, ray.get_runtime_context().gcs_address):
        raise Invalid(
            f"this program is attached to {ray.get_runtime_context().gcs_address}, not to {address}; "
            "call ray.shutdown() first"
        )
    link = connection()
    found = link.ask("hello")
    if found["protocol"] != PROTOCOL:
        raise Unsupported(
            f"this program has stead {stead.__version__}, which does not understand the cluster's controller, "
            f"stead {found['stead']}; install stead {found['stead']} here"
        )
    if not found["grants"]:
        warnings.warn(grants.WEAKER, UserWarning, stacklevel=2)
    if chosen is not None:
        link.ask("choose_policy", chosen)
    link.ask("settled")
    return attached


def _found(address: str | None) -> str | None:
    """The address as Ray must get it: a loopback address in capitals, and ``auto`` as the one cluster on this machine.

    Ray takes a loopback address for the public one of the machine, where a cluster that listens on loopback only does
    not answer, and tries for minutes. In capitals the name is left as it is.
    """
    wanted = address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS")
    if address is None and not wanted:
        return None
    clusters = ray._private.services.find_gcs_addresses()
    on_loopback = {port for host, _, port in (each.rpartition(":") for each in clusters) if host in LOOPBACK}
    if wanted:
        host, _, port = wanted.rpartition(":")
        return f"LOCALHOST:{port}" if host in LOOPBACK and port in on_loopback else address
    if len(clusters) != 1:
        return address
    (found,) = clusters
    return f"LOCALHOST:{found.rpartition(':')[2]}" if on_loopback else str(found)


def _is_same(one: str, other: str) -> bool:
    """Whether two addresses are one: the same port on the same machine, whatever it is called."""
    hosts = []
    for address in (one, other):
        with suppress(OSError):
            hosts.append(socket.gethostbyname(address.rpartition(":")[0]))
    ports = {address.rpartition(":")[2] for address in (one, other)}
    return len(ports) == 1 and len(set(hosts)) == 1


def attach(address: str | None = None) -> None:
    """Connect to a running cluster to look and to change, without binding what this process submits."""
    check_ray()
    try:
        ray.init(_found(address or "auto"), log_to_driver=False, logging_level="error", namespace=NAMESPACE)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"at {address}" if address else "here"
        raise Invalid(f"there is no Ray cluster {where} to attach to; start one by: stead start --head") from error


# -- changing


def taint(
    node: str | NodeView,
    taints: Mapping[str, str],
    effect: str | Effect = Effect.NO_SCHEDULE,
    *,
    for_s: float | None = None,
    owner: str = "",
    until_job: str = "",
) -> Changed:
    """Set taints on a node. A taint with the same key and effect is replaced.

    From the moment this returns, work without a matching toleration that you submit does not run there. If the node
    does not answer, its id is in `Changed.unconfirmed`, and the taints hold as soon as it answers.

    Args:
        node: The node's id or name, or a node from `stead.nodes`.
        taints: Values by key, for example ``{"gpu_node": "true"}``.
        effect: ``"no-schedule"``, ``"prefer-no-schedule"``, or ``"no-execute"``, which also evicts running work.
        for_s: Seconds after which the taints are removed automatically.
        owner: Who set the taints, for people to read.
        until_job: The id of a Ray job; the taints are removed automatically when it ends.

    Returns:
        The node's id.

    Raises:
        Invalid: There is no such node, or more than one matches; or a key, value, effect or duration is not valid.

    Example:
        ```python
        stead.taint("gpu-1", {"gpu_node": "true"}, owner="vision", for_s=7200)
        ```
    """
    wanted = _taints(taints, effect)
    if for_s is not None and (isinstance(for_s, bool) or not isinstance(for_s, int | float) or not 0 < for_s < 1e10):
        raise Invalid(f"for_s {for_s!r} must be a positive number of seconds, for example 7200")
    owner, job = _text("owner", owner), _text("until_job", until_job)
    return _change(NodeChange(_node_text(node), wanted, for_s=for_s, owner=owner, until_job=job))


def untaint(
    node: str | NodeView, keys: str | Iterable[str] | Mapping[str, str], effect: str | Effect | None = None
) -> Changed:
    """Remove taints from a node.

    Args:
        node: The node's id or name, or a node from `stead.nodes`.
        keys: The keys of the taints, or a map from key to value to remove only taints with that value.
        effect: Remove only taints with this effect; None removes all of them.

    Returns:
        The node's id.

    Raises:
        Invalid: There is no such node, it has no such taint, or the effect is unknown.

    Example:
        ```python
        stead.untaint("gpu-1", ["gpu_node"])
        ```
    """
    keys = _keys("untaint", keys)
    chosen = None if effect is None else parse_effect(effect)
    pairs = keys.items() if isinstance(keys, Mapping) else [(key, None) for key in keys]
    gone = tuple(Removal(_text("key", key), value, chosen) for key, value in pairs)
    return _change(NodeChange(_node_text(node), untaints=gone))


def label(node: str | NodeView, labels: Mapping[str, str] | None = None, remove: str | Iterable[str] = ()) -> Changed:
    """Set and remove labels of a running node. They override the labels that it was started with.

    Args:
        node: The node's id or name, or a node from `stead.nodes`.
        labels: Labels to set.
        remove: Keys of labels to remove.

    Returns:
        The node's id.

    Raises:
        Invalid: There is no such node, a label is not valid, or there is nothing to set or remove.

    Example:
        ```python
        stead.label("cpu-1", {"disk": "ssd"}, remove=["rack"])
        ```
    """
    wanted = labels_of(labels or {})
    gone = list(_keys("remove", remove))
    if not wanted and not gone:
        raise Invalid("label needs labels to set or keys to remove, for example label(node, {'disk': 'ssd'})")
    return _change(NodeChange(_node_text(node), labels=Labels(wanted), unlabels=tuple(gone)))


def drain(
    node: str | NodeView,
    evict: bool = False,
    *,
    wait: bool = False,
    timeout_s: float | None = None,
    rate: float | None = None,
) -> Changed:
    """Stop a node from taking new work, and optionally evict the work that runs there.

    Evicted work moves to other nodes and is pending until one has room. An eviction uses up no retry of a task and no
    restart of an actor.

    Args:
        node: The node's id or name, or a node from `stead.nodes`.
        evict: Whether to evict the work that runs there.
        wait: Whether to return only when the node is empty.
        timeout_s: Seconds to wait at most; only with `wait`.
        rate: Evict at most this many pieces of work per second.

    Returns:
        The node's id.

    Raises:
        Invalid: There is no such node, or a number is not positive.
        TimeoutError: Work is still on the node after `timeout_s`. The node stays drained.

    Example:
        ```python
        stead.drain("gpu-1", evict=True, rate=10, wait=True, timeout_s=600)
        ```
    """
    for name, value in (("timeout_s", timeout_s), ("rate", rate)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
            raise Invalid(f"{name} {value!r} must be a positive number, for example 10")
    if timeout_s is not None and not wait:
        raise Invalid("timeout_s is for wait=True, for example drain(node, evict=True, wait=True, timeout_s=600)")
    changed = _change(NodeChange(_node_text(node), draining=True, evict=evict, rate=float(rate or 0.0)))
    if wait and (left := left_on(remote_desk(), changed, timeout_s)):
        what = plural(left, "piece of work is", "pieces of work are")
        raise TimeoutError(f"{what} still on node {short_id(changed)} after {timeout_s:g} s; it stays drained")
    return changed


def uncordon(node: str | NodeView) -> Changed:
    """Let a drained node take work again.

    Args:
        node: The node's id or name, or a node from `stead.nodes`.

    Returns:
        The node's id.

    Raises:
        Invalid: There is no such node, or more than one matches.

    Example:
        ```python
        stead.uncordon("gpu-1")
        ```
    """
    return _change(NodeChange(_node_text(node), draining=False))


class Changed(str):
    """The id of a node that was changed, as the functions that change nodes return it.

    Attributes:
        unconfirmed: Ids of nodes that do not answer. The change does not hold there yet; the controller retries until
            they answer or are dead.

    Example:
        ```python
        if stead.taint("gpu-1", {"gpu_node": "true"}).unconfirmed:
            print("gpu-1 does not answer")
        ```
    """

    unconfirmed: tuple[str, ...] = ()


def _change(change: NodeChange) -> Changed:
    """By the desk, as from the command line and the pages, so that it is in the audit."""
    carried = remote_desk().change(change, Author.here("api"))
    changed = Changed(carried.node.id)
    changed.unconfirmed = carried.unconfirmed
    return changed


# -- asking


def nodes(selector: str | Mapping[str, str] | Selector | None = None) -> list[NodeView]:
    """List the live nodes.

    Args:
        selector: Only nodes whose labels match: ``"zone in [a, b]"``, ``{"zone": "in(a,b)"}`` or a `Selector`.

    Returns:
        The nodes with their labels, taints and free resources.

    Raises:
        Invalid: The selector is not valid.

    Example:
        ```python
        names = [node.name for node in stead.nodes("gpu_type in [A100]")]
        ```
    """
    if isinstance(selector, str):
        selector = parse_selector(selector)
    elif isinstance(selector, Mapping):
        selector = parse_label_selector(selector)
    elif selector is not None and not isinstance(selector, Selector):
        raise Invalid(
            f"selector must be text such as 'zone in [a, b]' or a map such as {{'zone': 'a'}}, not {selector!r}"
        )
    return remote_desk().snapshot().views(selector)


def labels() -> dict[str, dict[str, list[str]]]:
    """List every label in the cluster.

    Returns:
        For each key, for each of its values, the ids of the nodes that have it.

    Example:
        ```python
        zones = stead.labels()["zone"]
        ```
    """
    found = remote_desk().labels()
    return {key: {value: list(ids) for value, ids in values.items()} for key, values in found.items()}


def events(after: int | None = None, limit: int = 1000) -> list[Event]:
    """List what happened: pending work and why, taints, labels, evictions, refusals.

    Args:
        after: Only events with a greater `Event.number`, the oldest of them first. Without it, the latest events.
        limit: Maximum number of events.

    Returns:
        The events, oldest first.

    Raises:
        Invalid: A number is negative or not whole.

    Example:
        ```python
        waiting = [event for event in stead.events() if event.kind == stead.EventKind.WAITING]
        ```
    """
    for name, value in (("after", 0 if after is None else after), ("limit", limit)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise Invalid(f"{name} must be a whole number such as 100, not {value!r}")
    return list(remote_desk().events(-limit if after is None else after, limit))


def why(what: str | ray.ObjectRef | ray.ObjectRefGenerator | ActorHandle | type | PlacementGroup) -> Explanation:
    """Explain why work is pending and what would let it start, or why it is where it is.

    The answer is at most half a second old, and never older than the submission of the work.

    Args:
        what: A ref, an actor handle or a placement group; or an id or a name, as for ``stead why``. (The type admits a
            class, because Ray's ``ActorProxy[T]`` does.)

    Returns:
        The explanation; ``print`` it to read it.

    Raises:
        Invalid: It is none of these, or there is no such work.

    Example:
        ```python
        print(stead.why(train.remote()))
        ```
    """
    link, id, has_ended = connection(), "", False
    if isinstance(what, ray.actor.ActorHandle):
        id = what._actor_id.hex()
    elif isinstance(what, PlacementGroup):
        id = what.id.hex()
    elif isinstance(what, ray.ObjectRef | ray.ObjectRefGenerator):
        ref = what if isinstance(what, ray.ObjectRef) else what._generator_ref
        id, has_ended = ref.task_id().hex(), bool(ray.wait([ref], timeout=0, fetch_local=False)[0])
    elif isinstance(what, str) and what:
        id = what
    else:
        raise Invalid(f"why needs a ref, an actor handle, a placement group, or an id or name of work, not {what!r}")
    return remote_desk().why(id, link.recalled(id, has_ended))


@overload
def get(refs: Sequence[ray.ObjectRef[T]], timeout: float | None = None) -> list[T]: ...
@overload
def get(refs: ray.ObjectRef[T], timeout: float | None = None) -> T: ...  # type: ignore[type-var]  # here, Ray has no types
def get(refs: ray.ObjectRef[T] | Sequence[ray.ObjectRef[T]], timeout: float | None = None) -> T | list[T]:
    """Wait for results, as ``ray.get`` does, and learn why work was ended at its deadline.

    Args:
        refs: A ref, or a list of refs.
        timeout: Seconds to wait at most.

    Returns:
        The result, or the list of results in the order of the refs.

    Raises:
        Unplaced: The work had not started by its ``deadline_s``; the message says why.
        ray.exceptions.GetTimeoutError: A result is not there after `timeout`.
        ray.exceptions.RayError: The work failed; everything that ``ray.get`` raises.

    Example:
        ```python
        losses = stead.get([train.remote(epochs) for epochs in (1, 10)], timeout=60)
        ```
    """
    link = connection()
    try:
        found: T | list[T] = ray.get(refs, timeout=timeout)
        return found
    except (ray.exceptions.TaskCancelledError, ray.exceptions.RayActorError):
        listed: Sequence[ray.ObjectRef[T]] = refs if isinstance(refs, list) else [refs]
        for ref in listed:
            for id in (ref.task_id().hex(), ref.task_id().actor_id().hex()):
                explanation = link.ask("refusal", id)
                if explanation is not None:
                    raise Unplaced(id, explanation) from None
        raise


# -- checks


def _node_text(node: Any) -> str:
    if isinstance(node, NodeView):
        return node.id
    if not isinstance(node, str) or not node:
        raise Invalid(f"node {node!r} must be a node's id, for example stead.nodes()[0].id")
    return node


def _keys(what: str, keys: Any) -> Iterable[str]:
    """Keys as people give them: one, several, or a map."""
    if isinstance(keys, str):
        return [keys]
    if not isinstance(keys, Iterable):
        raise Invalid(f"{what} takes keys such as ['gpu_node'], not {keys!r}")
    return keys


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{what} must be a string, not {value!r}")
    return value


def _taints(taints: Any, effect: Any) -> tuple[Taint, ...]:
    if not isinstance(taints, Mapping) or not taints:
        raise Invalid(f"taints must be a map such as {{'gpu_node': 'true'}}, not {taints!r}")
    chosen = parse_effect(effect)
    return tuple(Taint(taint.key, taint.value, chosen) for taint in taints_of(taints))
