"""What people call on a Ray cluster: attach, ask, change.

Rule: every function checks what it was given in the caller's own stack, then asks the controller, whose answer holds
when the function returns. Nothing is decided here.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

import stead
from stead.arguments import labels_of, parse_effect, taints_of
from stead.asks import Ask, PolicyName
from stead.engine.explain import Explanation
from stead.errors import Invalid, Unsupported
from stead.labelling import Labels, Selector
from stead.operate.audit import Author
from stead.operate.changes import NodeChange, Removal
from stead.operate.draining import left_on
from stead.operate.views import Event, NodeView
from stead.ray import grants
from stead.ray.answers import GROUP_ID, TASK_ID
from stead.ray.attach import Remembered, connection
from stead.ray.compile import route
from stead.ray.hooks import with_setup
from stead.ray.page import PROTOCOL
from stead.ray.placement import placement_group as placement_group
from stead.ray.placement import remove_placement_group as remove_placement_group
from stead.ray.remote import remote as remote
from stead.ray.remote_desk import remote_desk
from stead.ray.submission import check_ray, install
from stead.ray.tables import ACTOR_ID
from stead.selectors import parse_label_selector, parse_selector
from stead.taints import Effect, Taint

PLAIN = route({})


class Unplaced(Exception):
    """Work was ended because it had not started by its deadline; the message says why it waited."""

    def __init__(self, id: str, explanation: str) -> None:
        super().__init__(f"{id} was not placed by its deadline: {explanation}")
        self.id, self.explanation = id, explanation

    def __reduce__(self) -> tuple[Any, ...]:
        return (Unplaced, (self.id, self.explanation))


# -- attaching


def init(address: str | None = None, *, policy: str | PolicyName | None = None, **given: Any) -> Any:
    """Attach to a Ray cluster, or start a local one; start the controller if none runs.

    Takes what ``ray.init`` takes. In a program that is attached already, it only binds it. `policy` is how nodes are
    chosen in this cluster for work that does not say it. It is chosen once: a cluster that has another one refuses it.
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
    """``auto`` as the address of the one cluster on this machine.

    Ray would find it too, but it takes the loopback address for the public one of the machine, where a cluster that
    listens on loopback only does not answer, and tries for minutes. In capitals the name is left as it is.
    """
    if address != "auto" or os.environ.get("RAY_ADDRESS"):
        return address
    clusters = ray._private.services.find_gcs_addresses()
    if len(clusters) != 1:
        return address
    host, _, port = next(iter(clusters)).rpartition(":")
    return f"LOCALHOST:{port}" if host in ("127.0.0.1", "localhost") else f"{host}:{port}"


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
        ray.init(_found(address or "auto"), log_to_driver=False, logging_level="error", namespace="stead")
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"at {address}" if address else "here"
        raise Invalid(f"there is no Ray cluster {where} to attach to; start one by: stead start --head") from error


# -- changing


def taint(
    node: str,
    taints: Mapping[str, str],
    effect: str | Effect = Effect.NO_SCHEDULE,
    *,
    for_s: float | None = None,
    owner: str = "",
    until_job: str = "",
) -> Changed:
    """Set taints on a node; a taint of the same key and effect is replaced. Returns the node's id.

    When this returns, nothing that is submitted from then on runs there without a toleration; if the node does not
    answer, its id is in `unconfirmed` of what is returned, and that holds as soon as it does. `for_s` and `until_job`
    end the taints by themselves; `owner` says whose they are.
    """
    wanted = _taints(taints, effect)
    if for_s is not None and (isinstance(for_s, bool) or not isinstance(for_s, int | float) or not 0 < for_s < 1e10):
        raise Invalid(f"for_s {for_s!r} must be a positive number of seconds, for example 7200")
    owner, job = _text("owner", owner), _text("until_job", until_job)
    return _change(NodeChange(_said(node), wanted, for_s=for_s, owner=owner, until_job=job))


def untaint(node: str, keys: Iterable[str] | Mapping[str, str], effect: str | Effect | None = None) -> Changed:
    """Remove taints: by key whatever the value, or, given a map, only where the value is equal."""
    keys = _keys("untaint", keys)
    chosen = None if effect is None else parse_effect(effect)
    pairs = keys.items() if isinstance(keys, Mapping) else [(key, None) for key in keys]
    gone = tuple(Removal(_text("key", key), value, chosen) for key, value in pairs)
    return _change(NodeChange(_said(node), untaints=gone))


def label(node: str, labels: Mapping[str, str] | None = None, remove: Iterable[str] = ()) -> Changed:
    """Set and remove labels of a running node; they override those it was started with."""
    wanted = labels_of(labels or {})
    gone = list(_keys("remove", remove))
    if not wanted and not gone:
        raise Invalid("label needs labels to set or keys to remove, for example label(node, {'disk': 'ssd'})")
    return _change(NodeChange(_said(node), labels=Labels(wanted), unlabels=tuple(gone)))


def drain(
    node: str,
    evict: bool = False,
    *,
    wait: bool = False,
    timeout_s: float | None = None,
    rate: float | None = None,
) -> Changed:
    """Let a node take no new work; with `evict`, what runs there moves to other nodes, pending until one has room.

    An eviction costs no retry of a task and no restart of an actor. `rate` is how many pieces of work are evicted per
    second at most. With `wait`, this returns when the node is empty, and raises `TimeoutError` after `timeout_s`.
    """
    for name, value in (("timeout_s", timeout_s), ("rate", rate)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
            raise Invalid(f"{name} {value!r} must be a positive number, for example 10")
    if timeout_s is not None and not wait:
        raise Invalid("timeout_s is for wait=True, for example drain(node, evict=True, wait=True, timeout_s=600)")
    changed = _change(NodeChange(_said(node), draining=True, evict=evict, rate=float(rate or 0.0)))
    if wait and (left := left_on(remote_desk(), changed, timeout_s)):
        raise TimeoutError(f"{left} pieces of work are still on node {changed} after {timeout_s:g} s; it stays drained")
    return changed


def uncordon(node: str) -> Changed:
    """Let a drained node take work again."""
    return _change(NodeChange(_said(node), draining=False))


class Changed(str):
    """The id of a node that was changed. `unconfirmed` are the ids of nodes that do not answer, so that the change does
    not hold there yet: the controller asks them until they answer or are dead."""

    unconfirmed: tuple[str, ...] = ()


def _change(change: NodeChange) -> Changed:
    """By the desk, as from the command line and the pages, so that it is in the audit."""
    carried = remote_desk().change(change, Author.here("api"))
    changed = Changed(carried.node.id)
    changed.unconfirmed = carried.unconfirmed
    return changed


# -- asking


def nodes(selector: str | Mapping[str, str] | Selector | None = None) -> list[NodeView]:
    """The live nodes, or those that a selector matches: ``"zone in [a, b]"`` or ``{"zone": "in(a,b)"}``."""
    if isinstance(selector, str):
        selector = parse_selector(selector)
    elif isinstance(selector, Mapping):
        selector = parse_label_selector(selector)
    elif selector is not None and not isinstance(selector, Selector):
        raise Invalid(
            f"selector must be text such as 'zone in [a, b]' or a map such as {{'zone': 'a'}}, not {selector!r}"
        )
    found: list[NodeView] = connection().ask("nodes", selector)
    return found


def labels() -> dict[str, dict[str, list[str]]]:
    """Every label there is: key -> value -> ids of the nodes that have it."""
    found: dict[str, dict[str, list[str]]] = connection().ask("labels")
    return found


def events(after: int = 0, limit: int = 1000) -> list[Event]:
    """What happened: work that waits and why, taints, labels, evictions, refusals; oldest first."""
    for name, value in (("after", after), ("limit", limit)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise Invalid(f"{name} must be a whole number such as 100, not {value!r}")
    found: list[Event] = connection().ask("events", after, limit)
    return found


def why(what: Any) -> Explanation:
    """Why work waits, what would let it start, or why it is where it is: for a ref, a handle, a group or an id."""
    link = connection()
    if isinstance(what, ray.actor.ActorHandle):
        what = what._actor_id.hex()
    if isinstance(what, PlacementGroup):
        return _explained(link.ask("why_group", what.id.hex()))
    if isinstance(what, ray.ObjectRef | ray.ObjectRefGenerator):
        ref = what if isinstance(what, ray.ObjectRef) else what._generator_ref
        task_id = ref.task_id()
        known = link.task(task_id.binary())
        if known is None:
            return _explained(link.ask("why_task", task_id.hex()))
        if link.ask("refusal", task_id.hex()) is None and ray.wait([ref], timeout=0, fetch_local=False)[0]:
            raise Invalid(f"task {task_id.hex()} has ended, so it waits for nothing")
        if known.group:
            return _explained(link.ask("why_in_group", known.group))
        return _explained(link.ask("why", _ask(task_id.hex(), known)))
    if isinstance(what, str) and set(what) <= set("0123456789abcdef"):
        if len(what) == ACTOR_ID:
            known = link.actor(what)
            return _explained(link.ask("why_actor", what, _ask(what, known) if known else None))
        if len(what) == TASK_ID:
            known = link.task(bytes.fromhex(what))
            if known and known.group:
                return _explained(link.ask("why_in_group", known.group))
            return _explained(link.ask("why", _ask(what, known)) if known else link.ask("why_task", what))
        if len(what) == GROUP_ID:
            return _explained(link.ask("why_group", what))
    raise Invalid(f"why needs a ref, an actor handle or the id of a task or actor, not {what!r}")


def get(refs: Any, timeout: float | None = None) -> Any:
    """As ``ray.get``, but work that was ended at its deadline raises `Unplaced` with the explanation."""
    link = connection()
    try:
        return ray.get(refs, timeout=timeout)
    except (ray.exceptions.TaskCancelledError, ray.exceptions.RayActorError):
        for ref in refs if isinstance(refs, list) else [refs]:
            for id in (ref.task_id().hex(), ref.task_id().actor_id().hex()):
                explanation = link.ask("refusal", id)
                if explanation is not None:
                    raise Unplaced(id, explanation) from None
        raise


# -- checks


def _ask(id: str, known: Remembered) -> Ask:
    return (known.route or PLAIN).ask(id, known.resources, connection().namespace)


def _explained(found: Any) -> Explanation:
    assert isinstance(found, Explanation)
    return found


def _said(node: Any) -> str:
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
