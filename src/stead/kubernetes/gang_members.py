"""The gangs of a cluster: the pods of each, and how many it needs, as facts about groups.

Rule: it keeps what the engine cannot know: pods whose gang has no size yet, and sizes of gangs without pods. A pod
whose gang has no size is not reported. Pods that succeeded are no longer members, and the gang then needs fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from stead.engine.facts import Fact, GroupChanged, GroupEnded
from stead.kubernetes.api_objects import Problem
from stead.kubernetes.gangs import KUEUE_COUNT, GangKind, GangSize, Membership, SizeKey
from stead.language.asks import Ask, AskId, Group, GroupId, Strategy


class GangMembers:
    """The gangs whose pods the engine knows, and their sizes."""

    def __init__(self) -> None:
        self._sizes: dict[SizeKey, GangSize] = {}
        self._members: dict[GroupId, dict[AskId, Ask]] = {}
        self._membership: dict[AskId, Membership] = {}
        self._ended: set[SizeKey] = set()  # sizes of objects that are gone
        self._held_back: dict[SizeKey, dict[AskId, None]] = {}  # pods whose gang has no size
        self._succeeded: dict[GroupId, set[AskId]] = {}
        self._changed: dict[GroupId, None] = {}
        self._left: set[AskId] = set()  # since the last facts
        self._reported: dict[GroupId, Group] = {}

    # -- sizes

    def sizes_changed(self, found: Mapping[SizeKey, GangSize]) -> list[AskId]:
        """These sizes are new or changed. Returns the pods that can be reported now."""
        released: list[AskId] = []
        for key, size in found.items():
            self._ended.discard(key)
            if self._sizes.get(key) == size:
                continue
            self._sizes[key] = size
            released += self._held_back.pop(key, ())
            self._changed.update(dict.fromkeys(self._gangs_with(key)))
        return released

    def sizes_ended(self, keys: Iterable[SizeKey]) -> None:
        """There are no such objects any more. A gang that has pods keeps its size as long as it has some."""
        for key in keys:
            if self._gangs_with(key):
                self._ended.add(key)
            else:
                self._sizes.pop(key, None)

    def sizes_known(self, kind: GangKind) -> list[SizeKey]:
        """The sizes of one kind."""
        return [key for key in self._sizes if key[0] is kind and key not in self._ended]

    def _gangs_with(self, key: SizeKey) -> list[GroupId]:
        namespace = f"{key[1]}/{key[0]}/"
        return [
            gang
            for gang, members in self._members.items()
            if gang.startswith(namespace) and self._membership[next(iter(members))].size_key == key
        ]

    def problem_of(self, id: AskId, membership: Membership | None) -> Problem | None:
        """Why a pod cannot be reported yet: nothing says how many pods its gang needs. The pod is remembered."""
        if membership is None or self._size_of(membership) is not None:
            return None
        self._held_back.setdefault(membership.size_key, {})[id] = None
        if membership.size_key[0] is GangKind.KUEUE:
            return Problem(f"The pod group has no size; set the annotation {KUEUE_COUNT!r}, for example to '8'.")
        return Problem(f"Waiting for {membership.object}, which does not exist.")

    def has_size(self, membership: Membership) -> bool:
        """Whether something says how many pods the gang needs."""
        return self._size_of(membership) is not None

    def _size_of(self, membership: Membership) -> GangSize | None:
        found = self._sizes.get(membership.size_key)
        if found is None and membership.least is not None:
            return GangSize(membership.least)
        return found

    # -- members

    def join(self, ask: Ask, membership: Membership) -> None:
        """A pod is a member of this gang, as it is now."""
        members = self._members.setdefault(membership.gang, {})
        if members.get(ask.id) != ask or self._membership[ask.id] != membership:
            self._membership[ask.id] = membership
            members[ask.id] = ask
            self._changed[membership.gang] = None

    def leave(self, id: AskId, has_succeeded: bool = False) -> None:
        """A pod is no longer a member."""
        membership = self._membership.pop(id, None)
        if membership is None:
            return
        gang = membership.gang
        self._left.add(id)
        if has_succeeded:
            self._succeeded.setdefault(gang, set()).add(id)
        self._changed[gang] = None
        members = self._members[gang]
        del members[id]
        if not members:
            del self._members[gang]
            if membership.size_key in self._ended and not self._gangs_with(membership.size_key):
                self._ended.discard(membership.size_key)
                del self._sizes[membership.size_key]

    def forget(self, id: AskId) -> None:
        """A pod is gone; it may be held back."""
        for key in [key for key, held in self._held_back.items() if id in held]:
            del self._held_back[key][id]
            if not self._held_back[key]:
                del self._held_back[key]

    def has_just_left(self, id: AskId) -> bool:
        """Whether a pod was a member when the last facts were reported, and is not any more."""
        return id in self._left

    def gang_of(self, id: AskId) -> GroupId | None:
        """The gang of a pod that the engine knows."""
        membership = self._membership.get(id)
        return None if membership is None else membership.gang

    def members(self, gang: GroupId) -> Mapping[AskId, Ask]:
        """The pods of a gang that the engine knows."""
        return self._members.get(gang, {})

    def start_over(self) -> None:
        """A new engine knows nothing of the gangs; the pods are reported again."""
        self._members.clear()
        self._membership.clear()
        self._held_back.clear()
        self._changed.clear()
        self._left.clear()
        self._reported.clear()

    # -- facts

    @property
    def has_facts(self) -> bool:
        return bool(self._changed)

    def facts(self) -> Iterator[Fact]:
        """What changed about the gangs. It comes after the facts about their pods."""
        changed, self._changed = self._changed, {}
        self._left.clear()
        for gang in changed:
            group = self._group(gang)
            if group is None:
                self._succeeded.pop(gang, None)
                if self._reported.pop(gang, None) is not None:
                    yield GroupEnded(gang)
            elif self._reported.get(gang) != group:
                self._reported[gang] = group
                yield GroupChanged(group)

    def _group(self, gang: GroupId) -> Group | None:
        members = self._members.get(gang)
        if not members:
            return None
        asks = tuple(members.values())
        memberships = [self._membership[ask.id] for ask in asks]
        size = self._size_of(max(memberships, key=lambda each: each.least or 0))
        assert size is not None, "pods of a gang without a size are held back"
        succeeded = max(len(self._succeeded.get(gang, ())), size.succeeded)
        return Group(
            gang,
            (asks,),
            Strategy.ANY,
            topology=tuple((key, Strategy.STRICT_PACK) for key in size.topologies),
            priority=max(ask.priority for ask in asks) if size.priority is None else size.priority,
            owner=asks[0].owner,
            min_available=max(1, size.least - succeeded),
            timeout_s=size.timeout_s,
        )
