"""Passes: custom resources that only stead grants, so that Ray itself keeps work on the nodes where it may run.

Rule: a pass stands for one set of rules and has a small pool of names, its generations. All names are granted on
exactly the nodes that the engine allows, in the order of `Passes.settle`. New submissions carry the current name. When
a pass loses a node, new submissions switch to a name that is unused there, because Ray's leased workers keep the old
one for a while. While its pass is in use, a name is not removed from a lost node, but plugged. Only the extra name of
actors with a soft node affinity is removed at once, so that Ray sends them to another node. So a change affects only
the nodes that gain or lose a pass; see docs/decisions/0025.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from stead.ray.control.plugs import KEPT, SHOWN, SHOWN_PLUG, NodeAndName, Plugs
from stead.ray.submit.compile import Pass
from stead.ray.wire.node_page import ACTOR_HOLDS, ENTRY, ONE, SOFT_ENTRY, SYNC_S
from stead.ray.wire.own_names import TIMED, pass_name, read_name, read_soft, soft_name
from stead.ray.wire.resource_grants import Grants, Outcome
from stead.ray.wire.tables import NodeRow, Status

FULL = 100_000.0
"""The amount granted of an open pass. At `ENTRY` each it never runs out, and Ray's sums stay exact."""

POOL = 3
"""How many names a pass has from the start. With spare names, a pass can lose nodes without a call to other nodes."""

GENERATIONS_MAX = 8
"""Maximum number of names. At the limit, the least used name is used again."""

SHOWN_MAX = 16
"""A pass that groups use is shown on nodes that do not allow it, if there are at most this many: Ray does not retry a
group that no node could hold. With more nodes, `Groups.look_again` makes Ray retry."""

ADMITTED_MAX = 16
"""How many tasks that only prefer a forbidden node may wait there at once for their redirected results."""

OPEN = KEPT + ADMITTED_MAX * SOFT_ENTRY
"""The amount of a name that a node keeps after its work is gone."""

PASSES_MAX = 16
"""Above this number, unused passes are retired, the longest unused first."""

IDLE_S, UNKNOWN_IDLE_S = 5.0, 600.0
"""How long a pass must be unused before it is retired: if all pending work is listed, and if some may not be."""

REMOVAL_DELAY_S = 3.0
"""How long the names of a retired pass stay, for submissions that have just read the old page."""

SQUEEZE_S = 0.6

ASSERTED_S = 1.5
"""Ray's tables lag. For this long, a value that was set counts as true even if they do not show it yet."""


@dataclass(slots=True)
class Issued:
    """A pass in use and its names."""

    rule: Pass
    current: int = 0
    generations: set[int] = field(default_factory=set)
    carried: list[int] = field(default_factory=list)  # the names that work may carry, the latest last
    everywhere: bool = False  # groups use it, so other nodes have the current name too, plugged

    @property
    def names(self) -> list[str]:
        return [pass_name(self.rule.key, generation) for generation in sorted(self.generations)]

    @property
    def granted(self) -> list[str]:
        """The names on a node that allows the pass."""
        return [*self.names, soft_name(self.rule.key)]

    def carry(self, generation: int) -> None:
        """Work may carry this name from now on."""
        self.generations.add(generation)
        self.carried = [*(each for each in self.carried if each != generation), generation]


@dataclass(frozen=True, slots=True)
class Settled:
    """What a round could not finish: how many places to check again soon, and the nodes that did not answer."""

    unsettled: int = 0
    silent: frozenset[str] = frozenset()


@dataclass(slots=True)
class Plan:
    """The changes on one node: set amounts, plug, unplug, and then withdraw."""

    sets: dict[str, float] = field(default_factory=dict)
    plugs: dict[str, float] = field(default_factory=dict)  # name -> amount
    withdrawn: dict[str, float] = field(default_factory=dict)  # name -> the amount that stays
    unplugs: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # keys of passes whose current name was usable here

    @property
    def is_empty(self) -> bool:
        return not (self.sets or self.plugs or self.withdrawn or self.unplugs)

    @property
    def first_call(self) -> dict[str, float]:
        """What can be set at once. A plug always follows a call that shows that the node answers."""
        amounts = {**self.sets, **self.withdrawn}
        return amounts or ({TIMED: FULL} if self.plugs else {})


class Passes:
    def __init__(
        self, grants: Grants | None, plugs: Plugs, read: Callable[[], Status], check: Callable[[], None]
    ) -> None:
        self._grants, self._plugs, self._read, self._check = grants, plugs, read, check
        self.issued: dict[str, Issued] = {}
        self._retired: dict[str, tuple[Issued, float]] = {}
        self._asserted: dict[NodeAndName, tuple[float, float]] = {}
        self._used_at: dict[str, float] = {}
        self._shown: set[str] = set()  # keys of passes whose current name every node has
        self._calm: dict[str, NodeRow] = {}  # nodes that needed no change, as they were then
        self._calm_under: object = None
        self._unanswered: set[str] = set()  # nodes that may still have removed names
        self._granted_at: dict[NodeAndName, float] = {}  # (node, key of a pass) -> when it became usable there
        self.late: frozenset[str] = frozenset()  # nodes that have not answered and may lack passes

    @property
    def are_granted(self) -> bool:
        """Whether this Ray supports grants."""
        return self._grants is not None

    @property
    def plugged(self) -> dict[NodeAndName, float]:
        """(node, name) -> how much of a withdrawn name is plugged."""
        return self._plugs.placed()

    def issue(self, rule: Pass, current: int = 0) -> None:
        """Make a pass usable. `settle` then grants it."""
        found = self.issued.get(rule.key)
        if found is None:
            found, _ = self._retired.pop(rule.key, (Issued(rule, current, {*range(POOL), current}), 0.0))
            self.issued[rule.key] = found
            found.carry(found.current)
        self._used_at[rule.key] = time.monotonic()

    def adopt(self, status: Status, known: Callable[[str], tuple[Pass, int] | None]) -> None:
        """After a restart: a name that exists on a node may be carried by work, so its pass is in use."""
        for row in status.nodes.values():
            for name in row.total:
                found = read_name(name)
                if found and (rule := known(found[0])):
                    self.issue(*rule)
                    if found[1] not in self.issued[found[0]].carried:
                        self.issued[found[0]].carry(found[1])
        for issued in self.issued.values():
            issued.carry(issued.current)

    # -- a round

    def settle(
        self,
        status: Status,
        allowed: Mapping[str, set[str]],
        announce: Callable[[dict[str, list[str]]], None],
        thorough: bool = False,
        ready: Callable[[str], bool] = lambda node: True,
    ) -> Settled:
        """Update the grants to match what is allowed, without failing pending work.

        1 one call to each node with a change: grant what it gains, and see that it answers; 2 switch passes that lose a
        node to another name; 3 plug what will be withdrawn; 4 announce the new names to every process; 5 withdraw. A
        node that does not answer is skipped until it does. `ready` returns whether a node has its page: it gets no
        grant before. `thorough`: a caller waits, so return only once Ray's tables show all changes.
        """
        if self._grants is None:
            announce({})
            return Settled()
        plans = self._plans(status, allowed, ready)
        calls = {node: plan.first_call for node, plan in plans.items() if plan.first_call}
        silent = calls.keys() - self._set_many(calls)
        self.late = frozenset(silent.union(id for id in status.nodes.keys() - self._calm.keys() if not ready(id)))
        plans = {node: plan for node, plan in plans.items() if node not in silent}
        granted, wanted = self._move_on(status, allowed, {key for plan in plans.values() for key in plan.lost}, ready)
        wanted |= {(node, name): amount for node, plan in plans.items() for name, amount in plan.plugs.items()}
        if thorough:
            granted |= {place for place, (amount, _) in self._asserted.items() if amount == FULL}
            granted = {place for place in granted if place[0] not in silent}
        room = {place for place in wanted if place in self._asserted}  # Ray must know the amount to place the plug
        self._await({**dict.fromkeys(room, 0.0), **dict.fromkeys(granted if thorough else (), FULL / 2)})
        self._plugs.add(wanted)
        placed = self._plugs.placed()
        announce(self._away(placed))
        withdrawn: dict[str, dict[str, float]] = defaultdict(dict)
        for node, name in wanted.keys() & placed.keys():
            withdrawn[node][name] = _kept(placed[node, name])
        silent |= withdrawn.keys() - self._set_many(withdrawn)
        if thorough:
            gone = {(node, name) for node, plan in plans.items() for name, amount in plan.sets.items() if not amount}
            self._await_withdrawn(place for place in gone | wanted.keys() & placed.keys() if place[0] not in silent)
        self._plugs.remove([(node, name) for node, plan in plans.items() for name in plan.unplugs])
        self._plugs.remove([place for place in placed if place[0] not in status.nodes])
        return Settled(len(wanted) + sum(len(plan.withdrawn) for plan in plans.values()), frozenset(silent))

    def _plans(self, status: Status, allowed: Mapping[str, set[str]], ready: Callable[[str], bool]) -> dict[str, Plan]:
        """The changes by node. Nodes that are the same as when they needed no change are skipped."""
        self._forget(status)
        placed = self._plugs.placed()
        self._shown = {
            key
            for key, each in self.issued.items()
            if each.everywhere and len(status.nodes.keys() - allowed[key]) <= SHOWN_MAX
        }
        issued = {key: (each.current, set(each.generations)) for key, each in self.issued.items()}
        under = (dict(allowed), issued, self._shown, placed)
        if under != self._calm_under:
            self._calm, self._calm_under = {}, under
        allowed_on: dict[str, list[Issued]] = defaultdict(list)
        for key, each in self.issued.items():
            for node in allowed[key]:
                allowed_on[node].append(each)
        named = {
            pass_name(key, number): (each, number) for key, each in self.issued.items() for number in each.generations
        }
        soft = {soft_name(key): key for key in self.issued}
        unsure, shut = {node for node, _ in self._asserted}, {node for node, _ in placed}
        plans = {}
        for id, row in status.nodes.items():
            calm = self._calm.get(id)
            if calm is not None and id not in unsure and calm.total == row.total:
                if id not in shut or calm.available == row.available:
                    continue
            plan = Plan()
            if ready(id):
                self._open(plan, row, allowed_on[id], placed)
            for name in row.total:
                if name in named and id not in allowed[named[name][0].rule.key]:
                    self._shut(plan, row, *named[name], placed)
                elif name in soft and id not in allowed[soft[name]]:
                    if self._total(row, name) and row.available.get(name):
                        plan.sets[name] = 0.0
            for key in self._shown:
                if id not in allowed[key] and pass_name(key, self.issued[key].current) not in row.total:
                    self._shut(plan, row, self.issued[key], self.issued[key].current, placed)
            if plan.is_empty and ready(id) and id not in unsure:
                self._calm[id] = row
            else:
                self._calm.pop(id, None)
            if not plan.is_empty:
                plans[id] = plan
        return plans

    def _open(self, plan: Plan, row: NodeRow, allowed: Iterable[Issued], placed: Mapping[NodeAndName, float]) -> None:
        """Let work use all names of these passes on this node, and the resource of work with a deadline."""
        if self._total(row, TIMED) < FULL:
            plan.sets[TIMED] = FULL
        for issued in allowed:
            names = [name for name in issued.granted if self._total(row, name) < FULL]
            plan.sets.update(dict.fromkeys(names, FULL))
            plan.unplugs += [name for name in issued.names if (row.id, name) in placed]
            if not names:
                self._granted_at.setdefault((row.id, issued.rule.key), time.monotonic())

    def _shut(
        self, plan: Plan, row: NodeRow, issued: Issued, generation: int, placed: Mapping[NodeAndName, float]
    ) -> None:
        """Let no work use a name on this node."""
        self._granted_at.pop((row.id, issued.rule.key), None)
        name = pass_name(issued.rule.key, generation)
        place, total, available = (row.id, name), self._total(row, name), row.available.get(name, 0.0)
        if place in placed:
            kept, held = _kept(placed[place]), row.total.get(name, 0.0) - available
            free = kept - placed[place]
            if kept == OPEN:
                free = _left_open(held)
                kept = max(KEPT, held) + free
            # Less: the controller died before this step, or tasks were admitted. More: work has released what it held.
            if total < kept - ONE / 2 or available > free + ONE / 2:
                plan.withdrawn[name] = kept
        elif total > FULL / 2 and generation in issued.carried:
            plan.plugs[name] = KEPT
            if generation == issued.current and place not in self._plugs.asked():
                plan.lost.append(issued.rule.key)
        elif issued.rule.key in self._shown and generation == issued.current:
            plan.plugs[name] = plan.sets[name] = SHOWN_PLUG
        elif total > 0.0 and available > 0.0:
            plan.sets[name] = 0.0  # a spare name that no work carries, or a leftover

    def _total(self, row: NodeRow, name: str) -> float:
        """The total in Ray's tables, corrected by values that were set a moment ago."""
        asserted = self._asserted.get((row.id, name))
        total = row.total.get(name, 0.0)
        if asserted is None:
            return total
        # A withdrawal leaves what is in use. Only the tables show how much that is, but it is no longer open.
        return min(total, FULL - 1) if asserted[0] in (OPEN, SHOWN) else asserted[0]

    def _move_on(
        self, status: Status, allowed: Mapping[str, set[str]], lost: set[str], ready: Callable[[str], bool]
    ) -> tuple[set[NodeAndName], dict[NodeAndName, float]]:
        """Switch each of these passes to another current name. Returns what had to be granted for it, usually nothing,
        and what must be plugged because groups must find the new name on every node."""
        changes: dict[str, dict[str, float]] = defaultdict(dict)
        for key in lost:
            issued = self.issued[key]
            forbidden = [row for id, row in status.nodes.items() if id not in allowed[key]]
            generation = self._unused_generation(issued, forbidden)
            name = pass_name(key, generation)
            if generation not in issued.generations:
                for node in allowed[key] & status.nodes.keys():
                    if ready(node):
                        changes[node][name] = FULL
            if key in self._shown:
                for row in forbidden:
                    if self._total(row, name) < SHOWN_PLUG - ONE / 2:
                        changes[row.id][name] = SHOWN_PLUG
            issued.current = generation
            issued.carry(generation)
        answered = self._set_many(changes)
        made = [(node, name, amount) for node in answered for name, amount in changes[node].items()]
        granted = {(node, name) for node, name, amount in made if amount == FULL}
        return granted, {(node, name): amount for node, name, amount in made if amount != FULL}

    def _unused_generation(self, issued: Issued, forbidden: list[NodeRow]) -> int:
        """A name of the pass that no work holds on the forbidden nodes, preferably one that no work ever carried."""
        fresh = sorted(issued.generations - set(issued.carried))
        if fresh:
            return fresh[0]
        plugged = self._plugs.placed()
        others = [generation for generation in issued.carried if generation != issued.current]
        held = {
            generation: sum(_held(row, name, plugged) > ENTRY - ONE / 2 for row in forbidden)
            for generation in others
            for name in (pass_name(issued.rule.key, generation),)
        }
        best = min(others, key=held.__getitem__)  # if equal, the one that is unused for the longest time
        if held[best] and len(issued.generations) < GENERATIONS_MAX:
            return max(issued.generations) + 1
        return best

    def _await(self, granted: Mapping[NodeAndName, float]) -> None:
        """Wait until Ray's tables show the grants, each above an amount. Work may ask for the new amount at once, so
        the raylets get time to learn about it too."""
        end, late = time.monotonic() + 2.0, dict(granted)
        while late and time.monotonic() < end:
            nodes = self._read().nodes
            late = {
                (node, name): least
                for (node, name), least in late.items()
                if node in nodes and nodes[node].total.get(name, 0.0) <= least
            }
            if late:
                time.sleep(0.01)
        if any(granted.values()):
            time.sleep(SYNC_S)

    def _await_withdrawn(self, places: Iterable[NodeAndName]) -> None:
        """Wait until Ray's tables show the withdrawal: before that, Ray would send a restarting actor back to its
        node."""
        end, places = time.monotonic() + 2.0, list(places)
        while places and time.monotonic() < end:
            nodes = self._read().nodes
            places = [
                (node, name) for node, name in places if node in nodes and nodes[node].total.get(name, 0.0) >= FULL
            ]
            if places:
                time.sleep(0.01)

    def away(self) -> dict[str, list[str]]:
        """By node, the withdrawn names. A worker that holds one of them exits after its task."""
        return self._away(self._plugs.placed())

    def _away(self, placed: Iterable[NodeAndName]) -> dict[str, list[str]]:
        away: dict[str, list[str]] = defaultdict(list)
        for node_id, name in sorted(placed):
            away[node_id].append(name)
        return dict(away)

    def usable_since(self, node: str, key: str) -> float | None:
        """When (`time.monotonic`) a node got a pass; None if it does not have it."""
        return self._granted_at.get((node, key))

    def _forget(self, status: Status) -> None:
        """Forget nodes and passes that are gone, and old assertions."""
        now = time.monotonic()
        for (node, name), (amount, at) in list(self._asserted.items()):
            row = status.nodes.get(node)
            if row is None or now - at > ASSERTED_S or row.total.get(name, 0.0) == amount:
                del self._asserted[node, name]
        for place in [
            place for place in self._granted_at if place[0] not in status.nodes or place[1] not in self.issued
        ]:
            del self._granted_at[place]
        for node in self._calm.keys() - status.nodes.keys():
            del self._calm[node]

    # -- unused passes

    def note_use(self, status: Status, known: Callable[[str], tuple[Pass, int] | None]) -> None:
        """Put a name that pending or running work carries back into use, if its pass is `known`. Remove a name that no
        work and no pass uses."""
        strays: dict[str, list[str]] = defaultdict(list)
        unheard, self._unanswered = self._unanswered, set()
        for demand in status.pending:
            self._revive(demand.resources, known)
        for row in status.nodes.values():
            calm = self._calm.get(row.id)
            if calm is not None and calm.total.keys() == row.total.keys() and row.id not in unheard:
                continue
            for name in row.total:
                found = read_name(name)
                key = found[0] if found else read_soft(name)
                if key is None or key in self._retired or self._is_of(name):
                    continue
                if _held(row, name, self._plugs.placed()) > ONE / 2:
                    self._revive([name], known)
                elif self._total(row, name):
                    strays[row.id].append(name)
        self._take_away({node: [name for name in names if not self._is_of(name)] for node, names in strays.items()})

    def _is_of(self, name: str) -> bool:
        """Whether a pass in use has this name."""
        found = read_name(name)
        if found is None:
            return read_soft(name) in self.issued
        return found[0] in self.issued and found[1] in self.issued[found[0]].generations

    def _revive(self, names: Iterable[str], known: Callable[[str], tuple[Pass, int] | None]) -> None:
        for name in names:
            found = read_name(name)
            if found is None:
                continue
            if found[0] not in self.issued and (rule := known(found[0])):
                self.issue(*rule)
            if found[0] in self.issued and found[1] not in self.issued[found[0]].carried:
                issued = self.issued[found[0]]
                issued.carry(found[1])
                issued.carry(issued.current)

    def retire(self, status: Status, keep: set[str], carried: Callable[[], set[str] | None]) -> list[str]:
        """If there are many passes, retire unused ones. Returns their keys. `carried` returns the names of all pending
        work, or None if they are unknown; it is called only when needed. A retired pass first leaves the page; its
        names are removed a little later."""
        now = time.monotonic()
        for key in [key for key, (_, at) in self._retired.items() if now - at > REMOVAL_DELAY_S]:
            names = self._retired.pop(key)[0].granted
            self._used_at.pop(key, None)
            self._take_away({id: [name for name in names if row.total.get(name)] for id, row in status.nodes.items()})
        if len(self.issued) <= PASSES_MAX:
            return []
        working = self._working(status)
        for key in self.issued:
            if key in working:
                self._used_at[key] = now
        idle = self._idle(keep, IDLE_S)
        if not idle:
            return []
        waiting = carried()
        if waiting is None:
            idle = self._idle(keep, UNKNOWN_IDLE_S)
        else:
            keys = {found[0] for name in waiting if (found := read_name(name))}
            self._used_at.update(dict.fromkeys(keys & self.issued.keys(), now))
            idle = [key for key in idle if key not in keys]
        for key in idle:
            self._retired[key] = (self.issued.pop(key), now)
        return idle

    def _idle(self, keep: set[str], seconds: float) -> list[str]:
        now = time.monotonic()
        rests = {key: now - self._used_at.setdefault(key, now) for key in self.issued if key not in keep}
        idle = [key for key in sorted(rests, key=rests.__getitem__, reverse=True) if rests[key] > seconds]
        return idle[: len(self.issued) - PASSES_MAX]

    def _working(self, status: Status) -> set[str]:
        """Keys of passes that pending or running work carries."""
        plugged = self._plugs.placed()
        names = {name for row in status.pending for name in row.resources}
        for row in status.nodes.values():
            names |= {name for name in row.total if read_name(name) and _held(row, name, plugged) > ONE / 2}
        return {found[0] for name in names if (found := read_name(name))}

    def _take_away(self, names: Mapping[str, list[str]]) -> None:
        """Remove these names from these nodes, with their plugs. A node that does not answer is tried again."""
        gone = {(node, name) for node, there in names.items() for name in there}
        self._plugs.remove(gone & self._plugs.asked())
        changes = {node: dict.fromkeys(there, 0.0) for node, there in names.items() if there}
        self._unanswered |= changes.keys() - self._set_many(changes)

    def squeeze(self, node_id: str, name: str) -> None:
        """Work that holds a withdrawn name is about to end. Take what it frees before its raylet gives it to the next
        task in its queue. The raylet needs a few milliseconds, so try repeatedly for a while."""
        if self._grants is not None:
            end = time.monotonic() + SQUEEZE_S
            while time.monotonic() < end:
                kept = _kept(self._plugs.placed().get((node_id, name), KEPT))
                if self._grants.set_many({node_id: {name: kept}})[node_id] is not Outcome.ANSWERED:
                    return

    def _set_many(self, changes: Mapping[str, Mapping[str, float]]) -> set[str]:
        """Set amounts, and return the nodes that answered. The next status or round corrects the others."""
        if self._grants is None or not changes:
            return set()
        self._check()  # a controller that was replaced stops here
        outcomes = self._grants.set_many(changes)
        answered = {node for node, outcome in outcomes.items() if outcome is Outcome.ANSWERED}
        now = time.monotonic()
        for node in answered:
            for name, amount in changes[node].items():
                self._asserted[node, name] = (amount, now)
                found = read_name(name)
                if amount == FULL and found:
                    self._granted_at[node, found[0]] = now
        return answered


def _held(row: NodeRow, name: str, plugged: Mapping[NodeAndName, float]) -> float:
    """How much of a name work holds on a node."""
    return row.total.get(name, 0.0) - row.available.get(name, 0.0) - plugged.get((row.id, name), 0.0)


def _left_open(held: float) -> float:
    """How much of a withdrawn name stays open for tasks that only prefer the node and wait in its queue: a worker there
    redirects each of them and waits for its result. Tasks, actors and plugs hold a multiple of `ACTOR_HOLDS`, so the
    remainder shows how many of them wait."""
    waiting = round(held / ONE) % round(ACTOR_HOLDS / ONE)
    return max(0, ADMITTED_MAX - waiting) * SOFT_ENTRY


def _kept(plug: float) -> float:
    """How much of a name a node keeps with a plug of this amount."""
    return SHOWN if plug < SHOWN else OPEN
