"""What is known of a cluster's storage, and the facts about claims that follow from it.

Rule: it decides about no node and does no I/O. It keeps what the engine cannot know: volumes and classes, on which the
nodes of a claim depend; which volume was chosen for a claim until the watch shows it; where no volume was left for a
claim; and the limits of nodes that have not joined yet. Facts are made when they are asked for, so a burst of changes
costs one look at each kind of claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from stead.engine.facts import ClaimChanged, ClaimEnded, Fact
from stead.kubernetes.claims import (
    Class,
    Volume,
    VolumeClaim,
    best_match,
    bound_claim,
    matches,
    missing_ephemeral,
    nodes_of_volumes,
    problem_of,
    quoted_name,
    unbound_claim,
    waiting_claim,
)
from stead.language.claims import Claim, ClaimId
from stead.language.labels import NODE_NAME, Requirement, Selector
from stead.language.nodes import Node, NodeId

T = TypeVar("T")

Limits = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What must be written for one claim that is not bound: the volume that it gets, or (None) the node for which a
    volume is to be created."""

    claim: VolumeClaim
    volume: Volume | None


class Progress(NamedTuple):
    """How far the claims of a pod are: bound, or not yet, or it cannot succeed any more (`failure`)."""

    is_bound: bool
    failure: str = ""


class Storage:
    """All claims, volumes, classes and limits. `look` is called with the id of a claim whenever something about it has
    changed."""

    def __init__(self) -> None:
        self.look: Callable[[ClaimId], None] = lambda id: None
        self._claims: dict[ClaimId, VolumeClaim] = {}
        self._volumes: dict[str, Volume] = {}
        self._classes: dict[str, Class] = {}
        self._limits: dict[NodeId, Limits] = {}
        self._limited: dict[NodeId, tuple[Node, Node]] = {}  # nodes as they were read, and with their limits
        self._owners: dict[ClaimId, tuple[str, str]] = {}  # key and uid of the pod of an ephemeral volume
        self._taken: dict[str, ClaimId] = {}  # volumes that were chosen for a claim
        self._chosen: dict[ClaimId, str] = {}  # the same by claim
        self._full: dict[ClaimId, dict[NodeId, None]] = {}  # where no volume was left for a claim
        self._reported: dict[ClaimId, Claim] = {}
        self._dirty: dict[ClaimId, None] = {}
        self._waiting: dict[str, dict[ClaimId, None]] = {}  # claims that are not bound, by class
        self._of_volume: dict[str, dict[ClaimId, None]] = {}  # claims that name a volume
        self._free: dict[str, dict[str, Volume]] = {}  # volumes of no claim, by class
        self._meant: dict[ClaimId, dict[str, Volume]] = {}  # volumes of a claim, or meant for it
        self._dirty_classes: dict[str, None] = {}

    # -- what the watches report

    def claim_changed(self, claim: VolumeClaim) -> None:
        """A claim was added or changed. A version that is older than the known one is ignored."""
        before = self._claims.get(claim.id)
        if before is not None and before.uid == claim.uid and _number(claim.version) < _number(before.version):
            return
        self._unlink(before)
        self._full.pop(claim.id, None)
        self._claims[claim.id] = claim
        if not claim.is_bound:
            self._waiting.setdefault(claim.class_name, {})[claim.id] = None
        if claim.volume:
            self._of_volume.setdefault(claim.volume, {})[claim.id] = None
        if claim.is_bound or (before is not None and before.uid != claim.uid):
            self.give_back([claim.id])
        self._touch(claim.id)

    def claim_deleted(self, id: ClaimId) -> None:
        before = self._claims.pop(id, None)
        if before is not None:
            self._unlink(before)
            self._full.pop(id, None)
            self.give_back([id])
            self._touch(id)

    def all_claims(self, listed: Iterable[VolumeClaim]) -> None:
        """These are all claims."""
        current = {claim.id: claim for claim in listed}
        for id in [id for id in self._claims if id not in current]:
            self.claim_deleted(id)
        for claim in current.values():
            self.claim_changed(claim)

    def volume_changed(self, volume: Volume) -> None:
        """A volume was added or changed. A version that is older than the known one is ignored."""
        before = self._volumes.get(volume.name)
        if before is not None and before.uid == volume.uid and _number(volume.version) < _number(before.version):
            return
        self._shelve(before, volume)

    def volume_deleted(self, name: str) -> None:
        before = self._volumes.get(name)
        if before is not None:
            self.give_back([self._taken.get(name, "")])
            self._shelve(before, None)

    def all_volumes(self, listed: Iterable[Volume]) -> None:
        """These are all volumes."""
        current = {volume.name: volume for volume in listed}
        for name in [name for name in self._volumes if name not in current]:
            self.volume_deleted(name)
        for volume in current.values():
            self.volume_changed(volume)

    def class_changed(self, changed: Class) -> None:
        if self._classes.get(changed.name) != changed:
            self._classes[changed.name] = changed
            self._class_touched(changed.name)

    def class_deleted(self, name: str) -> None:
        if self._classes.pop(name, None) is not None:
            self._class_touched(name)

    def all_classes(self, listed: Iterable[Class]) -> None:
        """These are all classes."""
        current = {each.name: each for each in listed}
        for name in [name for name in self._classes if name not in current]:
            self.class_deleted(name)
        for each in current.values():
            self.class_changed(each)

    # -- limits of nodes

    def limits_changed(self, node: NodeId, limits: Limits) -> None:
        """The node may have so many volumes of each driver; () if nothing is known."""
        if limits:
            self._limits[node] = limits
        else:
            self._limits.pop(node, None)

    @property
    def limited_nodes(self) -> Iterable[NodeId]:
        """The nodes whose limits are known."""
        return self._limits

    def with_limits(self, node: Node) -> Node:
        """The node with its limits. The same node gives the same object, as long as its limits are the same."""
        limits, before = self._limits.get(node.id), self._limited.pop(node.id, None)
        if limits is None:
            return node
        if before is None or before[0] is not node or before[1].volumes != limits:
            before = node, replace(node, volumes=limits)
        self._limited[node.id] = before
        return before[1]

    def as_read(self, node: Node) -> Node:
        """A node without the limits that were added to it."""
        read, known = self._limited.get(node.id, (node, node))
        return read if known is node else node

    # -- ephemeral volumes

    def expect(self, ids: Iterable[ClaimId], pod: str, uid: str) -> None:
        """These claims are of ephemeral volumes of a pod, so they must belong to it."""
        for id in ids:
            if self._owners.get(id) != (pod, uid):
                self._owners[id] = pod, uid
                self._touch(id)

    def pod_gone(self, ids: Iterable[ClaimId], uid: str) -> None:
        """A pod that used these claims is gone."""
        for id in ids:
            if id in self._owners and self._owners[id][1] == uid:
                del self._owners[id]
                self._touch(id)
            if self._full.pop(id, None) is not None:
                self._dirty[id] = None

    # -- claims that are to be bound

    def are_bound(self, ids: Iterable[ClaimId]) -> bool:
        """Whether nothing must be written or awaited for these claims."""
        return all(id in self._claims and self._claims[id].is_bound for id in ids)

    def choose(self, ids: Iterable[ClaimId], node: Node) -> list[Chosen] | None:
        """What to write so that these claims are bound for the node; None if one of them cannot be. The smallest claims
        choose first. What is chosen is kept for the claim until `give_back`, or until the watch shows it."""
        labels, chosen = node.all_labels, list[Chosen]()
        meaning = [self._claim(id, {}) for id in ids]
        if any(claim is None or claim.problem for claim in meaning):
            return None
        waiting = [self._claims[claim.id] for claim in meaning if claim is not None and not claim.bound]
        for claim in sorted(waiting, key=lambda claim: claim.size):
            its_class = self._classes.get(claim.class_name)
            volume = None if claim.selected_node else best_match(claim, self._open_to(claim), labels)
            can_create = its_class is not None and its_class.can_provision and its_class.nodes.matches(labels)
            is_elsewhere = claim.selected_node not in ("", node.id)
            if is_elsewhere or (volume is None and not can_create):
                self.give_back([each.claim.id for each in chosen], is_new=False)
                self._full.setdefault(claim.id, {})[node.id] = None
                self._dirty[claim.id] = None
                return None
            if volume is None and not claim.selected_node:
                chosen.append(Chosen(claim, None))
            elif volume is not None and claim.id not in self._chosen:
                self._taken[volume.name], self._chosen[claim.id] = claim.id, volume.name
                self._class_touched(claim.class_name, is_new=False)
                if volume.claim_uid != claim.uid:  # else it was written before
                    chosen.append(Chosen(claim, volume))
        return chosen

    def claim_written(self, claim: VolumeClaim) -> None:
        """A claim was written, and is this; ignored if it is gone by now."""
        if claim.id in self._claims and self._claims[claim.id].uid == claim.uid:
            self.claim_changed(claim)

    def volume_written(self, volume: Volume) -> None:
        """A volume was written, and is this; ignored if it is gone by now."""
        if volume.name in self._volumes and self._volumes[volume.name].uid == volume.uid:
            self.volume_changed(volume)

    def give_back(self, ids: Iterable[ClaimId], is_new: bool = True) -> None:
        """Volumes that were chosen for these claims can be chosen for others. If that is `is_new`, claims look again
        where no volume was left for them."""
        for id in ids:
            name = self._chosen.pop(id, None)
            if name is not None:
                del self._taken[name]
                self._class_touched(self._volumes[name].class_name, is_new)

    def progress(self, ids: Iterable[ClaimId], node: Node) -> Progress:
        """How far these claims are, after what was chosen for this node was written."""
        is_bound, labels = True, node.all_labels
        for id in ids:
            claim = self._claims.get(id)
            if claim is None or claim.is_deleting:
                return Progress(
                    False, f"persistentvolumeclaim {quoted_name(id)} {'is being deleted' if claim else 'not found'}"
                )
            volume = self._volumes.get(claim.volume)
            is_bound &= volume is not None or not claim.volume
            if volume is not None and not volume.nodes.matches(labels):
                return Progress(
                    False, f"pv {quoted_name(volume.name)} node affinity doesn't match node {quoted_name(node.id)}"
                )
            if not claim.is_bound:
                is_bound = False
                is_meant = any(each.is_for(claim) for each in self._meant.get(id, {}).values())
                if claim.selected_node != node.id and id not in self._chosen and not is_meant:
                    return Progress(False, f"provisioning failed for PVC {quoted_name(id)}")
        return Progress(is_bound)

    def _open_to(self, claim: VolumeClaim) -> list[Volume]:
        """The volumes that a claim could take: one that was chosen or is meant for it, else those of nobody."""
        chosen = self._volumes.get(self._chosen.get(claim.id, ""))
        mine = [] if chosen is None else [chosen]
        mine += [each for each in self._meant.get(claim.id, {}).values() if matches(claim, each)]
        return mine or [each for each in self._free_of(claim.class_name) if matches(claim, each)]

    def _free_of(self, class_name: str) -> Iterable[Volume]:
        return [each for each in self._free.get(class_name, {}).values() if each.name not in self._taken]

    # -- facts

    @property
    def has_facts(self) -> bool:
        return bool(self._dirty or self._dirty_classes)

    def facts(self) -> list[Fact]:
        """What has changed about claims since the last call."""
        for name in self._dirty_classes:
            self._dirty.update(self._waiting.get(name, {}))
        found: list[Fact] = []
        volumes: dict[tuple[object, ...], Selector] = {}
        for id in self._dirty:
            before, now = self._reported.get(id), self._claim(id, volumes)
            if now is None and before is not None:
                del self._reported[id]
                found.append(ClaimEnded(id))
            elif now is not None and now != before:
                self._reported[id] = now
                found.append(ClaimChanged(now))
        self._dirty.clear()
        self._dirty_classes.clear()
        return found

    def start_over(self) -> None:
        """The next facts describe all claims, for a new engine."""
        self._reported.clear()
        self._taken.clear()
        self._chosen.clear()
        self._full.clear()
        self._dirty = dict.fromkeys((*self._claims, *self._owners))

    def _claim(self, id: ClaimId, volumes: dict[tuple[object, ...], Selector]) -> Claim | None:
        """What a claim means now; None if it does not exist. `volumes` has what was found for equal claims."""
        claim, owner = self._claims.get(id), self._owners.get(id)
        if claim is None:
            return None if owner is None else Claim(id, problem=missing_ephemeral(id))
        found = self._meaning(claim, volumes)
        problem = problem_of(claim, owner)  # pods that run use it nevertheless
        return replace(found, problem=problem) if problem else found

    def _meaning(self, claim: VolumeClaim, volumes: dict[tuple[object, ...], Selector]) -> Claim:
        its_class, volume = self._classes.get(claim.class_name), self._volumes.get(claim.volume)
        if claim.is_bound:
            return bound_claim(claim, its_class, volume)
        if its_class is None or not its_class.waits or claim.volume:
            return unbound_claim(claim, its_class, volume)
        found = waiting_claim(claim, its_class, self._nodes_of_matches(claim, volumes))
        full = self._full.get(claim.id)
        if full and not claim.selected_node:
            elsewhere = Selector.all_of(Requirement.not_in(NODE_NAME, *full))
            found = replace(found, selector=found.selector & elsewhere)
        return found

    def _nodes_of_matches(self, claim: VolumeClaim, volumes: dict[tuple[object, ...], Selector]) -> Selector:
        """The nodes that can use a volume that a claim could take now."""
        if claim.id in self._chosen or claim.id in self._meant:
            return nodes_of_volumes(self._open_to(claim))
        if claim.wants not in volumes:
            volumes[claim.wants] = nodes_of_volumes(self._open_to(claim))
        return volumes[claim.wants]

    # -- inside

    def _touch(self, id: ClaimId) -> None:
        self._dirty[id] = None
        self.look(id)

    def _unlink(self, claim: VolumeClaim | None) -> None:
        if claim is not None:
            _drop(self._waiting, claim.class_name, claim.id)
            _drop(self._of_volume, claim.volume, claim.id)

    def _shelve(self, before: Volume | None, now: Volume | None) -> None:
        """A volume is now this. Claims that have it, or could take it, look again."""
        if before is not None:
            if now is None or (before.claim and now.claim != before.claim):
                self.give_back([before.claim])
            del self._volumes[before.name]
            _drop(self._free, before.class_name, before.name)
            _drop(self._meant, before.claim, before.name)
        if now is not None:
            self._volumes[now.name] = now
            shelf = self._meant.setdefault(now.claim, {}) if now.claim else self._free.setdefault(now.class_name, {})
            shelf[now.name] = now
        for volume in (before, now):
            if volume is not None:
                claims = [*self._of_volume.get(volume.name, ()), volume.claim]
                for id in dict.fromkeys(each for each in claims if each in self._claims):
                    self._touch(id)
                if not volume.claim:
                    self._class_touched(volume.class_name)

    def _class_touched(self, name: str, is_new: bool = True) -> None:
        self._dirty_classes[name] = None
        for id in self._waiting.get(name, {}) if self._full and is_new else ():
            self._full.pop(id, None)


def _drop(shelf: dict[str, dict[str, T]], key: str, name: str) -> None:
    """Remove an entry, and the inner dict if it is empty then."""
    inner = shelf.get(key)
    if inner is not None:
        inner.pop(name, None)
        if not inner:
            del shelf[key]


def _number(version: str) -> int:
    """Versions of one resource are compared as numbers, as kube-scheduler does."""
    return int(version) if version.isdecimal() else 0
