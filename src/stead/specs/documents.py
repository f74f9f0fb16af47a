"""Specs: work, nodes and changes in YAML and JSON, as `stead sim`, `why --spec` and `what-if` read them.

Rule: a spec becomes facts with their times, and the durations of work; nothing else. Selectors, labels, taints and
resources in a field are parsed by `selectors`, `arguments` and `resources`; there is no second syntax for them here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from stead import solver
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskSubmitted,
    ClaimChanged,
    ClaimEnded,
    Fact,
    GroupEnded,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
    NodeUntainted,
    NodeUsed,
)
from stead.errors import Invalid, absent, did_you_mean
from stead.language.arguments import labels_of, parse_effect, parse_taints
from stead.language.asks import (
    ASK_ID,
    Affinity,
    Ask,
    Choice,
    Group,
    HostPort,
    PolicyName,
    Preference,
    Spread,
    Strategy,
)
from stead.language.claims import Claim
from stead.language.labels import ANYWHERE, EMPTY, NODE_ID, Labels, Operator, Requirement, Selector, check_key
from stead.language.nodes import Node
from stead.language.resources import NOTHING, Resources
from stead.language.selectors import intersection, parse_label_condition, parse_label_selector, parse_selector
from stead.language.strategies import Exists, In, NotIn, tolerations
from stead.language.taints import TOLERATE_ALL, Effect, Taint, Toleration
from stead.language.times import parse_duration
from stead.specs.commands import RUN, Command, read_command
from stead.specs.sections import Misplaced, Section, at
from stead.specs.values import (
    COUNT_MAX,
    capacity_of,
    count_in,
    flag,
    limits_in,
    resources_in,
    some_text,
    strategies_in,
    taints_in,
    texts_in,
    timeout_in,
    topologies_in,
    topology_in,
    up_to,
    values_in,
    whole,
)
from stead.text import quoted

NODE = ("id", "count", "at", "capacity", "labels", "taints", "draining", "ip", "name", "volumes")
WANT = ("resources", "selector", "label_selector")
COMMON = (
    *("tolerations", "labels", "namespace", "near", "apart", "spread", "prefers", "policy", "claims"),
    *("ports", "estimates", "preempts", *RUN),
)
TIMES = ("at", "for", "deadline", "priority", "owner")
WORK = ("id", "count", "every", *WANT, *COMMON, "fallback", *TIMES)
BUNDLE = ("count", *WANT, *COMMON)
GROUP = (
    *("id", "count", "every", "bundles", "strategy", "topology", "fallback", "min_available", "timeout"),
    *(*COMMON, *TIMES),
)
CLAIM = ("id", "at", "until", "selector", "label_selector", "exclusive", "driver", "bound", "problem")
OTHERS = ("ask", "labels", "selector", "topology", "namespaces", "symmetric")
SPREAD = ("topology", "labels", "selector", "max_skew", "min_domains", "by_selector", "by_taints", "needs_key")
PREFERENCE = ("weight", "selector", "label_selector", "near", "apart", "spread")
PORT = ("port", "protocol", "ip")
PROTOCOLS = ("TCP", "UDP", "SCTP")
TOLERATION = ("key", "operator", "value", "values", "effect", "seconds")
JOINED = tuple(field for field in NODE if field != "at")  # the event has the time
VERBS: dict[str, tuple[str, ...]] = {  # the kinds of events, each with its additional fields
    "taint": ("taints",),
    "untaint": ("key", "effect"),
    "label": ("labels", "remove"),
    "drain": (),
    "undrain": (),
    "leave": (),
    "join": (),
    "resize": ("capacity",),
    "use": ("amounts",),
    "end": (),
    "lose": (),
}
EVENT = ("at", *VERBS, *(field for fields in VERBS.values() for field in fields))


class _Names:
    """Resolves a name in an event: the item with this id, or all copies of the entry with this name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._ids: set[str] = set()
        self._entries: dict[str, list[str]] = {}

    def add(self, id: str, entry: str) -> None:
        self._ids.add(id)
        self._entries.setdefault(entry, []).append(id)

    def meant(self, name: str) -> list[str]:
        """The ids for a name. Events may name only what the scenario defines."""
        if name in self._ids:
            return [name]
        if name not in self._entries:
            raise Invalid(absent(self.kind, name, (*self._ids, *self._entries), where=""))
        return self._entries[name]


class Reader:
    """Collects the facts, durations and commands from the sections of one file. `used` tells whether an id is taken
    outside the file, `policy` is the default policy, and `most` the maximum number of nodes and pieces of work."""

    def __init__(
        self,
        used: Callable[[str], bool] = lambda id: False,
        policy: PolicyName = PolicyName.HYBRID,
        most: int = COUNT_MAX,
    ) -> None:
        self._used, self._policy, self._most = used, policy, most
        self.moments: list[tuple[float, Fact]] = []
        self.durations: dict[str, float] = {}
        self.commands: dict[str, Command] = {}  # by the id of the piece of work
        self.places: dict[str, str] = {}  # where each id was used first
        self._nodes = _Names("node")
        self._work = _Names("work")  # also groups and their members
        self._groups: dict[str, Group] = {}

    def nodes(self, section: Section, moment: float) -> None:
        """Add nodes that join at a time."""
        self.moments += [(moment, fact) for fact in self.joined(section)]

    def joined(self, section: Section) -> Iterator[NodeJoined]:
        name = section.need("id", some_text, "'node-1'")
        section.read("capacity", lambda value: capacity_of(name, value), NOTHING)  # so that an error names the field
        with at(section.path):
            node = Node.of(
                name,
                section.fields.get("capacity"),
                section.read("labels", labels_of, EMPTY),
                section.read("taints", taints_in, ()),
                ip=section.read("ip", some_text, ""),
                name=section.read("name", some_text, ""),
                draining=section.read("draining", flag, False),
                volumes=section.read("volumes", limits_in, {}),
            )
        for id in self.names(section):
            yield NodeJoined(replace(node, id=id))
            self._nodes.add(id, name)

    def claim(self, section: Section) -> None:
        """Add a claim, or a change of it: a later entry with the same id."""
        name, moment = section.need("id", some_text, "'data'"), section.read("at", parse_duration, 0.0)
        claim = Claim(
            name,
            _node_selector(section),
            section.read("exclusive", flag, False),
            section.read("driver", some_text, ""),
            section.read("bound", flag, True),
            section.read("problem", some_text, ""),
        )
        self.moments.append((moment, ClaimChanged(claim)))
        until = section.read("until", parse_duration, None)
        if until is not None:
            self.moments.append((until, ClaimEnded(name)))

    def names(self, section: Section) -> Iterator[str]:
        """The ids of an entry with an `id` and an optional `count`."""
        return (id for id, _ in self._copies(section, section.need("id", some_text, "'node-1'")))

    def work(self, section: Section) -> None:
        name = section.need("id", some_text, "'train'")
        ask, command = _ask(name, section, _times(section), self._policy), read_command(section)
        for id, moment in self._copies(section, name):
            deadline = None if ask.deadline is None else moment + ask.deadline
            self._submit(AskSubmitted(replace(ask, id=id, deadline=deadline)), id, section, moment)
            self._work.add(id, name)
            self.commands[id] = command

    def group(self, section: Section) -> None:
        name = section.need("id", some_text, "'gang'")
        for id, moment in self._copies(section, name):
            alternatives = [self._members(section, id)]
            for number, fallback in enumerate(section.sections("fallback", ("bundles",)), start=1):
                alternatives.append(self._members(fallback, f"{id}-fallback-{number}", section))
            with at(section.path):
                group = Group(
                    id,
                    tuple(alternatives),
                    section.read("strategy", Strategy.of, Strategy.PACK),
                    section.read("topology", strategies_in, ()),
                    **_times(section, moment),
                    min_available=section.read("min_available", partial(up_to, min(map(len, alternatives))), None),
                    timeout_s=section.read("timeout", timeout_in, None),
                )
            self._submit(GroupSubmitted(group), id, section, moment)
            self._work.add(id, name)
            self._groups[id] = group
            for member in group.all_members:
                self._work.add(member.id, member.id)

    def event(self, section: Section) -> None:
        moment = section.need("at", parse_duration, "30")
        verbs = [verb for verb in VERBS if verb in section]
        if len(verbs) != 1:
            raise Misplaced(
                f"{section.path}: needs exactly one of {', '.join(VERBS)}, but has {' and '.join(verbs) or 'none'}"
            )
        verb = verbs[0]
        section = Section(section.fields, section.path, ("at", verb, *VERBS[verb]))  # refuses the fields of other verbs
        if verb == "join":
            for joined in section.sections("join", JOINED):
                self.nodes(joined, moment)
            return
        for item, path in section.each(verb):
            with at(path):
                names = self._work if verb in ("end", "lose") else self._nodes
                ids = names.meant(some_text(item))
            for id in ids:
                facts = self._work_facts(verb, id) if names is self._work else node_facts(verb, id, section)
                self.moments.extend((moment, fact) for fact in facts)

    def _work_facts(self, verb: str, id: str) -> Iterator[Fact]:
        """A group ends as a whole; if it is lost, every member loses its place."""
        group = self._groups.get(id)
        if verb == "end":
            yield AskEnded(id) if group is None else GroupEnded(id)
        else:
            yield from (AskLost(lost) for lost in ([id] if group is None else [m.id for m in group.all_members]))

    def _copies(self, section: Section, name: str) -> Iterator[tuple[str, float]]:
        """The ids and times of an entry's copies: ``web`` with count 2 gives web-1 and web-2."""
        start = section.read("at", parse_duration, 0.0)
        pause = section.read("every", parse_duration, 0.0) if "every" in section.known else 0.0
        count = section.read("count", count_in, 0)
        self._make_room(count or 1, section.place("count"))
        for number in range(count or 1):
            id = f"{name}-{number + 1}" if count else name
            self._claim(id, section.place("id"))
            yield id, start + number * pause

    def _claim(self, id: str, place: str) -> None:
        if self._used(id):
            raise Misplaced(f"{place}: the id {id!r} is already used in the cluster; choose another")
        if id in self.places:
            raise Misplaced(f"{place}: the id {id!r} is already used by {self.places[id]}; choose another")
        self.places[id] = place

    def _make_room(self, count: int, place: str) -> None:
        if len(self.places) + count > self._most:
            raise Misplaced(
                f"{place}: at most {self._most:,} nodes and pieces of work are allowed; use fewer, for example 1"
            )

    def _members(self, section: Section, prefix: str, outer: Section | None = None) -> tuple[Ask, ...]:
        members: list[Ask] = []
        for item, path in section.each("bundles"):
            bare = isinstance(item, dict) and not item.keys() & {*WANT, "count"}
            bundle = Section({"resources": item} if bare else item, path, BUNDLE)
            count = bundle.read("count", count_in, 1)
            self._make_room(count, bundle.place("count"))
            ask = _ask(prefix, bundle, {}, self._policy, outer or section)
            command = read_command(bundle, outer or section)
            for _ in range(count):
                id = f"{prefix}-{len(members) + 1}"
                self.commands[id] = command
                self._claim(id, path)
                members.append(replace(ask, id=id))
        return tuple(members)

    def _submit(self, fact: AskSubmitted | GroupSubmitted, id: str, section: Section, moment: float) -> None:
        self.moments.append((moment, fact))
        duration = section.read("for", parse_duration, None)
        if duration is not None:
            self.durations[id] = duration


# Parts of an ask.


def _times(section: Section, moment: float = 0.0) -> dict[str, Any]:
    deadline = section.read("deadline", parse_duration, None)
    return {
        "priority": section.read("priority", whole, 0),
        "deadline": None if deadline is None else moment + deadline,
        "owner": section.read("owner", some_text, ""),
    }


def _ask(id: str, section: Section, times: dict[str, Any], policy: PolicyName, outer: Section | None = None) -> Ask:
    """An ask from its section. A bundle inherits missing fields from its group (`outer`)."""

    def whose(name: str) -> Section:
        return outer if outer is not None and name not in section and name in outer.known else section

    labels = whose("labels").read("labels", labels_of, EMPTY)
    first = _choice(section, NOTHING)
    choices = [first]
    if "fallback" in section.known:
        choices += [_choice(fallback, first.resources) for fallback in section.sections("fallback", WANT)]
    near = tuple(_others(others, True, labels) for others in whose("near").sections("near", OTHERS))
    apart = tuple(_others(others, False, labels) for others in whose("apart").sections("apart", OTHERS))
    with at(section.path):
        return Ask(
            id,
            tuple(choices),
            tuple(_tolerations(whose("tolerations"))),
            (near + apart,) if near or apart else (),
            tuple(_spread(spread, labels) for spread in whose("spread").sections("spread", SPREAD)),
            tuple(_prefers(whose("prefers"), labels)),
            labels,
            whose("namespace").read("namespace", some_text, ""),
            whose("policy").read("policy", policy_of, policy),
            claims=whose("claims").read("claims", texts_in, ()),
            **times,
            ports=tuple(_port(*item) for item in whose("ports").each("ports")),
            estimates=whose("estimates").read("estimates", resources_in, NOTHING),
            preempts=whose("preempts").read("preempts", flag, True),
        )


def policy_of(value: Any) -> PolicyName:
    """A policy by name; refused if its solver is not installed."""
    policy = PolicyName.of(value)
    if policy.in_batches:
        solver.needed()
    return policy


def _choice(section: Section, resources: Resources) -> Choice:
    wanted = section.read("resources", resources_in, resources)
    selector = _node_selector(section)
    with at(section.place("resources")):
        return Choice(wanted, selector)


def _node_selector(section: Section) -> Selector:
    """The selector as a string, as Ray's map, or both; then both must match."""
    parts = [
        section.read("selector", parse_selector, ANYWHERE),
        section.read("label_selector", parse_label_selector, ANYWHERE),
    ]
    with at(section.path):
        return intersection(part for part in parts if part != ANYWHERE)


def _others(section: Section, near: bool, labels: Labels) -> Affinity:
    """Other work by id (`ask`), labels or a selector; without any of these, work with the ask's own labels."""
    topology = section.read("topology", topologies_in, (NODE_ID,))
    names = section.read("namespaces", texts_in, None)
    namespaces = None if names is None else frozenset(names)
    if "ask" in section:
        ids = section.read("ask", texts_in, ())
        selector = Selector.all_of(Requirement.is_in(ASK_ID, *ids))
    else:
        selector = _work_selector(section, labels)
    symmetric = section.read("symmetric", flag, False)
    if symmetric and near:
        raise Misplaced(f"{section.place('symmetric')}: is allowed only in apart, not in near")
    return Affinity(selector, near, topology, namespaces, symmetric)


def _work_selector(section: Section, own: Labels) -> Selector:
    if "selector" in section or "labels" in section:
        parts = [
            section.read("selector", parse_selector, ANYWHERE),
            section.read("labels", parse_label_selector, ANYWHERE),
        ]
        return intersection(part for part in parts if part != ANYWHERE)
    if not own:
        raise Misplaced(f"{section.place('labels')}: is missing; say which work you mean, for example {{app: web}}")
    return Selector.all_of(*(Requirement.is_in(key, value) for key, value in own.items()))


def _spread(section: Section, labels: Labels) -> Spread:
    topology = section.need("topology", topology_in, "'zone'")
    selector = _work_selector(section, labels)
    return Spread(
        topology,
        selector,
        section.read("max_skew", count_in, 1),
        section.read("min_domains", count_in, 1),
        section.read("by_selector", flag, True),
        section.read("by_taints", flag, False),
        section.read("needs_key", flag, True),
    )


def _port(item: Any, path: str) -> HostPort:
    """A port of the node: ``8080``, or ``{port: 53, protocol: UDP, ip: 10.0.0.1}``."""
    section = Section(item if isinstance(item, dict) else {"port": item}, path, PORT)
    return HostPort(
        section.need("port", _port_number, "8080"),
        section.read("protocol", _protocol, "TCP"),
        section.read("ip", some_text, ""),
    )


def _port_number(value: Any) -> int:
    if not 1 <= whole(value) <= 65535:
        raise Invalid(f"must be a port from 1 to 65535, for example 8080, not {quoted(value)}")
    return int(value)


def _protocol(value: Any) -> str:
    if value not in PROTOCOLS:
        raise Invalid(f"must be one of {', '.join(PROTOCOLS)}, not {quoted(value)}")
    return str(value)


def _prefers(section: Section, labels: Labels) -> Iterator[Preference]:
    for preference in section.sections("prefers", PREFERENCE):
        wants: list[Selector | Affinity | Spread] = []
        wants += [_others(others, True, labels) for others in preference.sections("near", OTHERS)]
        wants += [_others(others, False, labels) for others in preference.sections("apart", OTHERS)]
        wants += [_spread(spread, labels) for spread in preference.sections("spread", SPREAD)]
        if "selector" in preference or "label_selector" in preference:
            wants.append(_node_selector(preference))
        if len(wants) != 1:
            raise Misplaced(f"{preference.path}: needs exactly one of selector, label_selector, near, apart, spread")
        with at(preference.place("weight")):
            yield Preference(wants[0], preference.fields.get("weight", 100))


def _tolerations(section: Section) -> Iterator[Toleration]:
    """``all``; ``gpu`` or ``gpu=true:NoSchedule``; ``{gpu: exists(), type: in(a,b)}``; or Kubernetes' maps."""
    for item, path in section.each("tolerations"):
        with at(path):
            if item == "all":
                yield TOLERATE_ALL
            elif isinstance(item, str):
                yield from (_tolerating(taint, "=" in item, ":" in item) for taint in parse_taints(item))
            elif isinstance(item, dict) and item.keys() & {"key", "operator", "effect"}:
                yield _toleration(Section(item, path, TOLERATION))
            elif isinstance(item, dict):
                for key, condition in item.items():
                    yield from tolerations({key: _match(parse_label_condition(key, condition))})
            else:
                raise Invalid(f"must be text such as 'gpu=true' or a map such as {{gpu: exists()}}, not {item!r}")


def _tolerating(taint: Taint, with_value: bool, with_effect: bool) -> Toleration:
    values = frozenset({taint.value}) if with_value else frozenset[str]()
    return Toleration(taint.key, values, not with_value, taint.effect if with_effect else None)


def _match(requirement: Requirement) -> In | NotIn | Exists:
    match requirement.operator:
        case Operator.IN:
            return In(*sorted(requirement.values))
        case Operator.NOT_IN:
            return NotIn(*sorted(requirement.values))
        case Operator.EXISTS:
            return Exists()
    raise Invalid(f"a toleration cannot express '{requirement}'; good conditions are exists(), in(a,b) and !in(a,b)")


def _toleration(section: Section) -> Toleration:
    """Kubernetes' form: no key means every key, no effect every effect. The operator is Equal (default) or Exists;
    stead adds In and NotIn."""
    key = section.read("key", lambda value: check_key(value, "taint key"), None)
    values = section.read("values", values_in, ()) + section.read("value", values_in, ())
    operator = section.read("operator", some_text, "Equal" if values else "Exists")
    exists = operator.lower() == "exists"
    if operator.lower() not in ("equal", "in", "notin", "exists"):
        hint = did_you_mean(operator, ("Equal", "Exists", "In", "NotIn"))
        raise Misplaced(
            f"{section.place('operator')}: {operator!r} is unknown{hint}; known are Equal, In, NotIn, Exists"
        )
    if exists == bool(values):
        raise Misplaced(f"{section.path}: {operator} needs {'no value' if exists else 'a value'}")
    if key is None and not exists:
        raise Misplaced(f"{section.place('key')}: is missing; you can leave it out only with Exists")
    return Toleration(
        key,
        frozenset(values),
        operator.lower() in ("exists", "notin"),
        section.read("effect", parse_effect, None),
        section.read("seconds", parse_duration, None),
    )


def taints_set(section: Section) -> tuple[Taint, ...]:
    """The taints that a `taint` event sets."""
    return section.need("taints", taints_in, "'gpu=true:NoExecute'")


def taint_removed(section: Section) -> tuple[str, Effect | None]:
    """The key of the taints that an `untaint` event removes, and their effect, if it names one."""
    key = section.need("key", lambda value: check_key(value, "taint key"), "'gpu'")
    return key, section.read("effect", parse_effect, None)


def labels_changed(section: Section) -> tuple[Labels, tuple[str, ...]]:
    """The labels that a `label` event sets, and the keys that it removes."""
    return section.read("labels", labels_of, EMPTY), section.read("remove", texts_in, ())


def node_facts(verb: str, node: str, section: Section) -> Iterator[Fact]:
    match verb:
        case "taint":
            yield from (NodeTainted(node, taint) for taint in taints_set(section))
        case "untaint":
            yield NodeUntainted(node, *taint_removed(section))
        case "label":
            yield NodeLabelled(node, *labels_changed(section))
        case "drain" | "undrain":
            yield NodeDrained(node, verb == "drain")
        case "resize":
            yield NodeResized(node, section.need("capacity", lambda value: capacity_of(node, value), "{CPU: 4}"))
        case "use":
            amounts = section.need("amounts", lambda value: capacity_of(node, value), "{CPU: 4}")
            yield NodeUsed(node, amounts, int(bool(amounts)))
        case "leave":
            yield NodeLeft(node)
