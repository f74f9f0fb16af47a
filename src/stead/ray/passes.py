"""Passes: custom resources that only stead grants, so that Ray itself keeps work where it may be.

Rule: beside `tickets` the only file that changes a node's resources, in the order of `Passes.settle`. A pass is for
one set of rules and has one or more names, its generations. Every name is granted on exactly the nodes that the
engine allows. New submissions use the current generation; when a node is lost to a pass, they move to a name that
was never usable there, because Ray's leased workers go on with the old one for a while.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray

from stead.ray.compile import Pass
from stead.ray.grants import Grants, Outcome
from stead.ray.page import BOTH, ONE, PREFIX, SYNC_S, TIMED, pass_name, read_name
from stead.ray.tables import Status, handle

FULL = 100_000.0
"""What an open pass is granted: at `ONE` each it never runs out, and Ray's sums stay exact."""

PASSES_MAX = 16
"""Above so many passes, those that nobody uses are taken away, the longest unused first."""

IDLE_S = 5.0
"""A pass counts as unused after so long without waiting or running work."""

OLD_S = 10.0
"""A name that new submissions no longer carry goes after so long without work."""

SQUEEZE_S = 0.6

TRIES_MAX = 3
"""How often a plug is tried, at five seconds each; a node that takes none is on its way out."""

ASSERTED_S = 1.5
"""Ray's tables lag; so long what was set counts as true although they do not show it yet."""


@dataclass(slots=True)
class Issued:
    """A pass in use and the names it has."""

    rule: Pass
    current: int = 0
    generations: set[int] = field(default_factory=lambda: {0})
    everywhere: bool = False  # groups use it, so every node has it, if only plugged
    show: bool = False  # a group is about to use it

    @property
    def names(self) -> list[str]:
        return [pass_name(self.rule.key, generation) for generation in sorted(self.generations)]


class Plugs(Protocol):
    """Keep a withdrawn name on a node, with nothing of it free, so that waiting work stays feasible there."""

    def add(self, places: Iterable[tuple[str, str]]) -> None:
        """Plug these (node id, name), and return when it is done."""

    def remove(self, places: Iterable[tuple[str, str]]) -> None: ...

    def placed(self) -> set[tuple[str, str]]: ...


class Passes:
    def __init__(
        self, grants: Grants | None, plugs: Plugs, read: Callable[[], Status], check: Callable[[], None]
    ) -> None:
        self._grants, self._plugs, self._read, self._check = grants, plugs, read, check
        self.issued: dict[str, Issued] = {}
        self._asserted: dict[tuple[str, str], tuple[float, float]] = {}
        self._used_at: dict[str, float] = {}

    @property
    def plugged(self) -> set[tuple[str, str]]:
        """(node, name) of everything that is withdrawn and plugged."""
        return self._plugs.placed()

    def issue(self, rule: Pass, current: int = 0) -> None:
        """Make a pass usable; `settle` then grants it."""
        found = self.issued.setdefault(rule.key, Issued(rule, current, {current}))
        self._used_at[pass_name(rule.key, found.current)] = time.monotonic()

    def settle(
        self,
        status: Status,
        allowed: Mapping[str, set[str]],
        announce: Callable[[dict[str, list[str]]], None],
        thorough: bool = False,
    ) -> int:
        """Bring the grants in line with what is allowed, without failing anything that waits.

        1 grant where it is newly allowed; 2 give passes that lose a node another name; 3 wait until the raylets have
        heard of both; 4 plug what is to be withdrawn; 5 announce the new names to every process; 6 withdraw. Returns
        how many grants still have to be withdrawn again, because work holds them. `thorough`: somebody waits for the
        grants, so do not return before Ray's tables show them.
        """
        seen = self._amounts(status)
        losing = self._losing(seen, allowed)
        granted = self._grant(seen, allowed)
        moved, shown = self._move_on(seen, allowed, losing)
        if thorough:
            granted += [place for place, (amount, _) in self._asserted.items() if amount == FULL]
        if (granted or moved or shown) and (losing or shown or thorough):
            self._await(granted + moved + shown, heard=bool(losing))
        self._plugs.add(sorted({*losing, *shown} - self._plugs.placed()))
        announce(self._away(losing))
        for node_id, name in sorted(losing):
            self._set(node_id, {name: BOTH})
        if losing and thorough:
            self._await_withdrawn(losing)
        self._unplug(seen, allowed)
        return len(losing)

    # -- the steps

    def _amounts(self, status: Status) -> dict[str, dict[str, float]]:
        """The totals of our names by node: what Ray's tables say, corrected by what was set a moment ago."""
        now = time.monotonic()
        seen = {
            id: {name: total for name, total in node.total.items() if name.startswith(PREFIX)}
            for id, node in status.nodes.items()
        }
        for (node_id, name), (amount, at) in list(self._asserted.items()):
            if now - at > ASSERTED_S or node_id not in seen:
                del self._asserted[node_id, name]
            elif amount != BOTH:  # a withdrawal leaves what is in use: only the tables know how much that is
                seen[node_id][name] = amount
        return seen

    def _losing(self, seen: Mapping[str, Mapping[str, float]], allowed: Mapping[str, set[str]]) -> set[tuple[str, str]]:
        """(node, name) that has more than a plug where the pass is not allowed, strays of unknown passes included."""
        return {
            (node_id, name)
            for node_id, amounts in seen.items()
            for name, total in amounts.items()
            if (found := read_name(name)) and total > BOTH * 1.25 and node_id not in allowed.get(found[0], ())
        }

    def _grant(self, seen: Mapping[str, Mapping[str, float]], allowed: Mapping[str, set[str]]) -> list[tuple[str, str]]:
        wanted: dict[str, dict[str, float]] = defaultdict(dict)
        for key, issued in self.issued.items():
            for name in issued.names:
                for node_id in allowed[key] & seen.keys():
                    # The tables may not show yet that it was withdrawn a moment ago.
                    withdrawn = self._asserted.get((node_id, name), (FULL, 0.0))[0] != FULL
                    if withdrawn or seen[node_id].get(name, 0.0) < FULL:
                        wanted[node_id][name] = FULL
        done = {node_id: amounts for node_id, amounts in wanted.items() if self._set(node_id, amounts)}
        return [(node_id, name) for node_id, amounts in done.items() for name in amounts]

    def _move_on(
        self, seen: Mapping[str, Mapping[str, float]], allowed: Mapping[str, set[str]], losing: set[tuple[str, str]]
    ) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Another current name for each pass whose current one is being lost somewhere, or has to be shown everywhere.

        Returns what was granted, and what was shown: the least there is, on a node that is not allowed, to be plugged
        before anybody knows the name.
        """
        lost = {name for _, name in losing}
        changes: dict[str, dict[str, float]] = defaultdict(dict)
        for key, issued in self.issued.items():
            forbidden = seen.keys() - allowed[key]
            unseen = issued.everywhere and any(not seen[id].get(pass_name(key, issued.current)) for id in forbidden)
            if pass_name(key, issued.current) not in lost and not (issued.show and unseen):
                issued.show = False
                continue
            issued.show = False
            issued.current = self._clean_generation(issued, [(id, seen[id]) for id in forbidden])
            issued.generations.add(issued.current)
            name = pass_name(key, issued.current)
            for node_id in allowed[key] & seen.keys():
                if seen[node_id].get(name, 0.0) < FULL:
                    changes[node_id][name] = FULL
            for node_id in forbidden if issued.everywhere else ():
                if not seen[node_id].get(name):
                    changes[node_id][name] = BOTH
        done = {node_id: amounts for node_id, amounts in changes.items() if self._set(node_id, amounts)}
        made = [(id, name, amount) for id, amounts in done.items() for name, amount in amounts.items()]
        return [(id, name) for id, name, amount in made if amount == FULL], [
            (id, name) for id, name, amount in made if amount == BOTH
        ]

    def _clean_generation(self, issued: Issued, forbidden: list[tuple[str, Mapping[str, float]]]) -> int:
        """One of the pass's other names that nothing can use on the forbidden nodes, or a new one."""
        plugged = self._plugs.placed()
        for generation in sorted(issued.generations - {issued.current}):
            name = pass_name(issued.rule.key, generation)
            if all(
                _is_shut(amounts.get(name, 0.0), (id, name) in plugged, issued.everywhere) for id, amounts in forbidden
            ):
                return generation
        return max(issued.generations) + 1

    def _await(self, granted: list[tuple[str, str]], heard: bool) -> None:
        """Until Ray's tables show the grants; if something is to be withdrawn, until the raylets have heard too."""
        end = time.monotonic() + 5.0
        while time.monotonic() < end:
            nodes = self._read().nodes
            if all(node_id not in nodes or name in nodes[node_id].total for node_id, name in granted):
                break
            time.sleep(0.01)
        if heard:
            time.sleep(SYNC_S)

    def _await_withdrawn(self, losing: set[tuple[str, str]]) -> None:
        """Until Ray's tables show it: an actor that dies before is sent back to its node by what they said last."""
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            nodes = self._read().nodes
            if all(node_id not in nodes or nodes[node_id].total.get(name, 0.0) < FULL for node_id, name in losing):
                return
            time.sleep(0.01)

    def _away(self, losing: set[tuple[str, str]]) -> dict[str, list[str]]:
        """By node, the names that were withdrawn: workers that hold one of them end after their task."""
        away: dict[str, list[str]] = defaultdict(list)
        for node_id, name in sorted(losing | self._plugs.placed()):
            away[node_id].append(name)
        return dict(away)

    def _unplug(self, seen: Mapping[str, Mapping[str, float]], allowed: Mapping[str, set[str]]) -> None:
        done = []
        for node_id, name in self._plugs.placed():
            found = read_name(name)
            if node_id not in seen or (found and node_id in allowed.get(found[0], ())):
                done.append((node_id, name))
        self._plugs.remove(done)

    # -- what nobody needs any more

    def note_use(self, status: Status, known: Callable[[str], tuple[Pass, int] | None]) -> None:
        """See which names have work. A name that work still carries comes back into use, if its pass is `known`; one
        that nobody uses and no pass has, say of a controller before this one, is taken away."""
        now, working = time.monotonic(), self._working(status)
        for name in working:
            found = read_name(name)
            if found is None:
                continue
            if found[0] not in self.issued and (rule := known(found[0])):
                self.issue(*rule)
            if found[0] in self.issued:
                self.issued[found[0]].generations.add(found[1])
                self._used_at[name] = now
        mine = {name for issued in self.issued.values() for name in issued.names}
        there = {name for amounts in self._amounts(status).values() for name, total in amounts.items() if total}
        self._take_away(status, [name for name in there - mine - working if read_name(name)])

    def _working(self, status: Status) -> set[str]:
        """Names that waiting or running work carries."""
        plugged = self._plugs.placed()
        working = {name for row in status.pending for name in row.resources}
        for node in status.nodes.values():
            for name, total in node.total.items():
                plug = BOTH if (node.id, name) in plugged else 0.0
                if name.startswith(PREFIX) and total - node.available.get(name, 0.0) - plug > ONE / 2:
                    working.add(name)
        return working

    def retire(
        self, status: Status, allowed: Mapping[str, set[str]], keep: set[str], carried: Callable[[], set[str]]
    ) -> list[str]:
        """Take away what nobody uses: old names after a while; whole passes once there are many, or when they would
        have to be withdrawn somewhere. What still carries such a name, say a task that is done again, brings it back.
        `carried` are names of work that waits without showing in Ray's demands; it is asked only if need be. Returns
        the keys of the passes that went."""
        old, hidden, gone = self._unused(status, allowed, keep)
        if not old and not hidden and not gone:
            return []
        for name in carried():
            self._used_at[name] = time.monotonic()
        old, hidden, gone = self._unused(status, allowed, keep)
        for key in hidden:
            self.issued[key].everywhere = False
            self._hide(status, self.issued[key])
        for key, generation in old:
            self.issued[key].generations.discard(generation)
        names = [pass_name(key, generation) for key, generation in old]
        for key in gone:
            names += self.issued.pop(key).names
        self._take_away(status, names)
        return gone

    def _unused(
        self, status: Status, allowed: Mapping[str, set[str]], keep: set[str]
    ) -> tuple[list[tuple[str, int]], list[str], list[str]]:
        """What could go: old names, passes that need not be shown everywhere any more, whole passes."""
        now = time.monotonic()
        rest = {name: now - self._used_at.setdefault(name, now) for each in self.issued.values() for name in each.names}
        old = [
            (key, generation)
            for key, issued in self.issued.items()
            for generation in sorted(issued.generations - {issued.current})
            if rest[pass_name(key, generation)] > OLD_S
        ]
        rests = {key: min(rest[name] for name in issued.names) for key, issued in self.issued.items()}
        # A plug keeps its node from being idle.
        hidden = [key for key, issued in self.issued.items() if issued.everywhere and rests[key] > OLD_S]
        idle = [key for key in sorted(rests, key=rests.__getitem__, reverse=True) if rests[key] > IDLE_S]
        lost = {found[0] for _, name in self._losing(self._amounts(status), allowed) if (found := read_name(name))}
        spare = len(rests) - PASSES_MAX
        gone = [key for index, key in enumerate(idle) if key not in keep and (key in lost or index < spare)]
        return old, hidden, gone

    def _hide(self, status: Status, issued: Issued) -> None:
        """Undo showing: away with the plugs, and with what they held."""
        shown = [place for place in self._plugs.placed() if place[1] in issued.names]
        self._plugs.remove(shown)
        for node_id, name in shown:
            if node_id in status.nodes:
                self._set(node_id, {name: 0.0})

    def _take_away(self, status: Status, names: list[str]) -> None:
        self._plugs.remove([place for place in self._plugs.placed() if place[1] in names])
        for node in status.nodes.values():
            there = {name: 0.0 for name in names if node.total.get(name)}
            if there:
                self._set(node.id, there)
        for name in names:
            self._used_at.pop(name, None)

    def squeeze(self, node_id: str, name: str) -> None:
        """Work that holds a withdrawn name is about to end: take what it frees before its raylet gives it to the next
        in its queue. The raylet would need a few milliseconds; so try again and again for a while."""
        if self._grants is not None:
            end = time.monotonic() + SQUEEZE_S
            while time.monotonic() < end:
                if self._grants.set_many({node_id: {name: BOTH}})[node_id] is not Outcome.ANSWERED:
                    return

    def grant_timed(self, status: Status) -> None:
        """The mark of work with a deadline, on every node."""
        for node in status.nodes.values():
            if node.total.get(TIMED, 0.0) < FULL and (node.id, TIMED) not in self._asserted:
                self._set(node.id, {TIMED: FULL})

    def _set(self, node_id: str, amounts: Mapping[str, float]) -> bool:
        """False: the node is going, or hangs. The next status does not show it, or the next round tries again."""
        if self._grants is None:
            return False
        self._check()  # a controller that was replaced meanwhile stops here
        if self._grants.set_many({node_id: amounts})[node_id] is not Outcome.ANSWERED:
            return False
        now = time.monotonic()
        for name, amount in amounts.items():
            self._asserted[node_id, name] = (amount, now)
        return True


def _is_shut(total: float, plugged: bool, everywhere: bool) -> bool:
    """Whether nothing can use a name on a node: it has none of it, or a plug holds all there is."""
    return (total <= BOTH * 1.25 and plugged) or (total == 0.0 and not everywhere)


class GroupPlugs:
    """Plugs as placement groups of one bundle: no process, gone with the node, kept when the controller dies."""

    NAME = "stead-plug"

    def __init__(self, groups: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        self._groups: dict[tuple[str, str], Any] = {}
        for name, row in groups().items():
            if name.startswith(self.NAME):
                _, node_id, pass_held = name.split("/", 2)
                self._groups[node_id, pass_held] = handle(row["id"])

    def add(self, places: Iterable[tuple[str, str]]) -> None:
        missing = list(places)
        for _ in range(TRIES_MAX):
            self._groups.update({place: self._made(*place) for place in missing})
            end = time.monotonic() + 5.0
            missing = [
                place for place in missing if not self._groups[place].wait(max(1, round(end - time.monotonic())))
            ]
            if not missing:
                return
            self.remove(missing)

    def _made(self, node_id: str, name: str) -> Any:
        return ray.util.placement_group(
            [{name: BOTH}],
            name=f"{self.NAME}/{node_id}/{name}",
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": node_id}],
        )

    def remove(self, places: Iterable[tuple[str, str]]) -> None:
        for place in places:
            group = self._groups.pop(place, None)
            if group is not None:
                ray.util.remove_placement_group(group)

    def placed(self) -> set[tuple[str, str]]:
        return set(self._groups)
