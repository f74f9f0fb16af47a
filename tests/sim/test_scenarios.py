"""Scenario files: what each field means, and one sentence with its place for each mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskSubmitted,
    ClaimChanged,
    ClaimEnded,
    GroupEnded,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
    NodeUntainted,
)
from stead.engine.settings import Settings
from stead.errors import Invalid
from stead.language.asks import ASK_ID, Affinity, Ask, Choice, PolicyName, Preference, Spread, Strategy
from stead.language.claims import Claim
from stead.language.labels import Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.resources import Resources
from stead.language.taints import TOLERATE_ALL, Effect, Taint, Toleration
from stead.sim.scenario import load, parse

ROOT = Path(__file__).parent.parent.parent
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))


def ask(fields: str) -> Ask:
    """The ask of a scenario with one piece of work that has these fields."""
    moments = parse(f"work: {{id: w, {fields}}}").moments
    assert len(moments) == 1
    fact = moments[0][1]
    assert isinstance(fact, AskSubmitted)
    return fact.ask


def within(key: str, *values: str) -> Selector:
    return Selector.all_of(Requirement.is_in(key, *values))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.name)
def test_every_scenario_we_ship_loads(path: Path) -> None:
    assert load(path).moments


def test_a_node_has_all_fields_of_its_entry() -> None:
    text = """
    nodes:
      - {id: n, capacity: {CPU: 4, memory: 2Gi}, labels: {zone: a}, taints: "gpu=true,spot:NoExecute", draining: true,
         ip: 10.0.0.1, name: one, volumes: {nfs: 2, ebs: 25}, at: 5}
    """
    taints = (Taint("gpu", "true"), Taint("spot", "", Effect.NO_EXECUTE))
    node = Node("n", Resources.of(CPU=4, memory="2Gi"), Labels({"zone": "a"}), taints, "10.0.0.1", "one", True)
    node = replace(node, volumes=(("ebs", 25), ("nfs", 2)))
    assert parse(text).moments == ((5.0, NodeJoined(node)),)


@pytest.mark.parametrize(
    "written",
    ['"gpu=true:NoSchedule"', '"gpu=true"', "{gpu: 'true'}", '["gpu=true"]', '[{gpu: "true"}]', '\'{"gpu":"true"}\''],
)
def test_taints_are_taken_in_every_written_form(written: str) -> None:
    ((_, fact),) = parse(f"nodes: [{{id: n, taints: {written}}}]").moments
    assert isinstance(fact, NodeJoined)
    assert fact.node.taints == (Taint("gpu", "true"),)


def test_a_claim_has_all_fields_of_its_entry_and_can_change_and_end() -> None:
    text = """
    claims:
      - {id: data, selector: zone = a, exclusive: true, driver: ebs, bound: false, problem: is being deleted, at: 5}
      - {id: data, label_selector: {zone: a}, at: 8, until: 9}
      - {id: logs}
    """
    zone = within("zone", "a")
    assert parse(text).moments == (
        (0.0, ClaimChanged(Claim("logs"))),
        (5.0, ClaimChanged(Claim("data", zone, True, "ebs", False, "is being deleted"))),
        (8.0, ClaimChanged(Claim("data", zone))),
        (9.0, ClaimEnded("data")),
    )


@pytest.mark.parametrize(("written", "claims"), [("claims: data", ("data",)), ("claims: [b, a]", ("b", "a"))])
def test_work_names_its_claims(written: str, claims: tuple[str, ...]) -> None:
    assert ask(written).claims == claims


def test_members_of_a_group_use_the_claims_of_the_group_unless_they_have_their_own() -> None:
    text = "groups: {id: g, claims: shared, bundles: [{CPU: 1}, {resources: {CPU: 1}, claims: own}]}"
    ((_, fact),) = parse(text).moments
    assert isinstance(fact, GroupSubmitted)
    assert [member.claims for member in fact.group.all_members] == [("shared",), ("own",)]


def test_count_makes_numbered_copies_and_every_sets_them_apart() -> None:
    scenario = parse("nodes: {id: n, count: 2}\nwork: {id: w, count: 3, at: 10, every: 5s, for: 1m, deadline: 2}")
    asks = [(moment, fact.ask) for moment, fact in scenario.moments if isinstance(fact, AskSubmitted)]
    assert [(moment, ask.id, ask.deadline) for moment, ask in asks] == [
        (10.0, "w-1", 12.0),
        (15.0, "w-2", 17.0),
        (20.0, "w-3", 22.0),
    ]
    assert scenario.durations == {"w-1": 60.0, "w-2": 60.0, "w-3": 60.0}
    assert [fact.node.id for _, fact in scenario.moments if isinstance(fact, NodeJoined)] == ["n-1", "n-2"]


WEB = within("app", "web")
ASKS: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("resources: {CPU: 500m}", {"choices": (Choice(Resources.of(CPU=0.5)),)}),
    ("selector: zone = a", {"choices": (Choice(selector=within("zone", "a")),)}),
    ("label_selector: {zone: 'in(a,b)'}", {"choices": (Choice(selector=within("zone", "a", "b")),)}),
    (
        "selector: zone = a, label_selector: {disk: ssd}",
        {"choices": (Choice(selector=within("zone", "a") & within("disk", "ssd")),)},
    ),
    (
        "resources: {GPU: 1}, fallback: [{selector: t = a}, {resources: {GPU: 2}}]",
        {
            "choices": (
                Choice(Resources.of(GPU=1)),
                Choice(Resources.of(GPU=1), within("t", "a")),
                Choice(Resources.of(GPU=2)),
            )
        },
    ),
    ("tolerations: all", {"tolerations": (TOLERATE_ALL,)}),
    ("tolerations: gpu", {"tolerations": (Toleration("gpu"),)}),
    ("tolerations: gpu=true", {"tolerations": (Toleration("gpu", frozenset({"true"}), False),)}),
    (
        "tolerations: ['gpu=true:NoExecute', spot]",
        {"tolerations": (Toleration("gpu", frozenset({"true"}), False, Effect.NO_EXECUTE), Toleration("spot"))},
    ),
    (
        "tolerations: {gpu: exists(), type: 'in(a,b)', kind: '!c'}",
        {
            "tolerations": (
                Toleration("gpu"),
                Toleration("type", frozenset({"a", "b"}), False),
                Toleration("kind", frozenset({"c"}), True),
            )
        },
    ),
    (
        "tolerations: [{key: g, value: a, effect: NoExecute, seconds: 3}, {operator: Exists}, {key: x, value: b}]",
        {
            "tolerations": (
                Toleration("g", frozenset({"a"}), False, Effect.NO_EXECUTE, 3.0),
                TOLERATE_ALL,
                Toleration("x", frozenset({"b"}), False),
            )
        },
    ),
    ("tolerations: [{key: x, operator: NotIn, values: [b]}]", {"tolerations": (Toleration("x", frozenset({"b"})),)}),
    ("near: {ask: other}", {"affinities": ((Affinity(within(ASK_ID, "other")),),)}),
    ("near: {labels: {app: web}, topology: zone}", {"affinities": ((Affinity(WEB, topologies=("zone",)),),)}),
    (
        "near: {selector: app = web}, apart: [{labels: {app: web}, symmetric: true, namespaces: [a]}]",
        {"affinities": ((Affinity(WEB), Affinity(WEB, False, namespaces=frozenset({"a"}), symmetric=True)),)},
    ),
    (
        "labels: {app: web}, apart: {}, spread: {topology: zone, max_skew: 2}",
        {
            "labels": Labels({"app": "web"}),
            "affinities": ((Affinity(WEB, False),),),
            "spreads": (Spread("zone", WEB, 2),),
        },
    ),
    (
        "prefers: [{selector: zone = a, weight: 5}, {near: {ask: x}}, {spread: {topology: z, labels: {app: web}}}]",
        {
            "prefers": (
                Preference(within("zone", "a"), 5),
                Preference(Affinity(within(ASK_ID, "x"))),
                Preference(Spread("z", WEB)),
            )
        },
    ),
    (
        "priority: 3, policy: pack, namespace: team, owner: job, at: 10, deadline: 5",
        {"priority": 3, "policy": PolicyName.PACK, "namespace": "team", "owner": "job", "deadline": 15.0},
    ),
]


@pytest.mark.parametrize(("fields", "expected"), ASKS, ids=[fields or "nothing" for fields, _ in ASKS])
def test_work_becomes_an_ask(fields: str, expected: dict[str, Any]) -> None:
    assert ask(fields) == Ask("w", **expected)


def test_a_group_has_its_bundles_as_members_and_they_inherit_its_fields() -> None:
    text = """
    groups:
      id: g
      bundles: [{CPU: 1}, {resources: {CPU: 2}, selector: zone = a, tolerations: spot, count: 2}]
      fallback: [{bundles: [{CPU: 3}]}]
      strategy: STRICT_SPREAD
      topology: {zone: PACK}
      tolerations: gpu
      priority: 2
      for: 9
      min_available: 1
      timeout: 5m
    """
    scenario = parse(text)
    ((_, fact),) = scenario.moments
    assert isinstance(fact, GroupSubmitted)
    group = fact.group
    assert [[member.id for member in members] for members in group.alternatives] == [
        ["g-1", "g-2", "g-3"],
        ["g-fallback-1-1"],
    ]
    first, second, _ = group.alternatives[0]
    assert first.tolerations == (Toleration("gpu"),)
    assert second.tolerations == (Toleration("spot"),)
    assert second.choices == (Choice(Resources.of(CPU=2), within("zone", "a")),)
    assert (group.strategy, group.topology) == (Strategy.STRICT_SPREAD, (("zone", Strategy.PACK),))
    assert (group.priority, scenario.durations) == (2, {"g": 9.0})
    assert (group.min_available, group.timeout_s) == (1, 300.0)


@pytest.mark.parametrize(
    ("event", "facts"),
    [
        ("taint: n-1, taints: k=v", [NodeTainted("n-1", Taint("k", "v"))]),
        ("taint: n, taints: k=v", [NodeTainted("n-1", Taint("k", "v")), NodeTainted("n-2", Taint("k", "v"))]),
        ("untaint: n-1, key: k", [NodeUntainted("n-1", "k")]),
        ("untaint: n-1, key: k, effect: NoExecute", [NodeUntainted("n-1", "k", Effect.NO_EXECUTE)]),
        ("label: n-1, labels: {a: b}, remove: [c]", [NodeLabelled("n-1", Labels({"a": "b"}), ("c",))]),
        ("drain: [n-1, n-2]", [NodeDrained("n-1"), NodeDrained("n-2")]),
        ("undrain: n-1", [NodeDrained("n-1", False)]),
        ("resize: n-1, capacity: {CPU: 1}", [NodeResized("n-1", Resources.of(CPU=1))]),
        ("leave: n-1", [NodeLeft("n-1")]),
        ("join: {id: m}", [NodeJoined(Node("m"))]),
        ("end: w", [AskEnded("w")]),
        ("lose: w", [AskLost("w")]),
        ("end: many", [AskEnded("many-1"), AskEnded("many-2")]),
        ("end: [many-2, w]", [AskEnded("many-2"), AskEnded("w")]),
        ("lose: many", [AskLost("many-1"), AskLost("many-2")]),
        ("end: gang", [GroupEnded("gang")]),
        ("end: gang-2", [AskEnded("gang-2")]),
        ("end: gangs", [GroupEnded("gangs-1"), GroupEnded("gangs-2")]),
        ("lose: gang", [AskLost("gang-1"), AskLost("gang-2")]),
    ],
)
def test_an_event_becomes_facts(event: str, facts: list[Any]) -> None:
    text = f"""
    nodes: {{id: n, count: 2}}
    work: [{{id: w}}, {{id: many, count: 2}}]
    groups: [{{id: gang, bundles: [{{CPU: 1}}, {{CPU: 1}}]}}, {{id: gangs, count: 2, bundles: [{{CPU: 1}}]}}]
    events: [{{at: 1m, {event}}}]
    """
    assert [fact for moment, fact in parse(text).moments if moment == 60.0] == facts


def test_an_exact_id_comes_before_the_name_of_an_entry() -> None:
    text = "nodes: [{id: a-1, count: 2}, {id: a, count: 1}]\nevents: [{at: 5, drain: a-1}, {at: 6, drain: a}]"
    facts = [fact for moment, fact in parse(text).moments if moment]
    assert facts == [NodeDrained("a-1"), NodeDrained("a-1")]


def test_work_that_ends_when_it_is_submitted_is_submitted_first() -> None:
    scenario = parse("work: {id: w, at: 5}\nevents: {at: 5, end: w}")
    assert [type(fact) for _, fact in scenario.moments] == [AskSubmitted, AskEnded]


def test_settings_and_the_end_are_taken_from_the_file() -> None:
    scenario = parse("title: t\nuntil: 2m\nsettings: {patience: null, hybrid_threshold: 0.25, seed: 9}")
    assert (scenario.title, scenario.until, scenario.settings) == ("t", 120.0, Settings(None, 0.25, 9))


SLIPS = [
    ("nodes: [", "line 1: this is not YAML: "),
    ("a: b: c", "line 1: this is not YAML: "),
    ("[]", "the file: must be a map with fields such as 'title', not []"),
    ("? [1]\n: 2", "this is not a YAML map with plain keys"),
    ("nodes: {id: n}\nnodes: {id: m}", "line 2: the field 'nodes' is given twice"),
    ("nods: []", "nods: is not a known field (did you mean 'nodes'?); known fields are title, until"),
    ("nodes: [{id: n}, 3]", "nodes[1]: must be a map with fields such as 'id', not 3"),
    ("nodes: [{capacity: {CPU: 1}}]", "nodes[0].id: is missing; a good value is 'node-1'"),
    ("nodes: [{id: 7}]", "nodes[0].id: must be text, for example '7', not 7"),
    ("nodes: [{id: n, count: 0}]", "nodes[0].count: must be at least 1, not 0"),
    ("nodes: [{id: n, capacity: 4}]", "nodes[0].capacity: must be a map such as {CPU: 4, memory: 2Gi}, not 4"),
    (
        "nodes: [{id: n, capacity: {CPU: 4x}}]",
        "nodes[0].capacity: the amount of 'CPU' '4x' is not a quantity; good values",
    ),
    ("nodes: [{id: n, labels: {zone: true}}]", "nodes[0].labels: "),
    ("nodes: [{id: n, labels: {node_id: x}}]", "nodes[0].labels: "),
    ("nodes: [{id: n, taints: 'k=v:Never'}]", "nodes[0].taints: "),
    ("nodes: [{id: n, taints: 3}]", "nodes[0].taints: taints must be a map such as"),
    ("nodes: [{id: n, draining: 1}]", "nodes[0].draining: must be true or false, not 1"),
    ("nodes: [{id: n}, {id: n}]", "nodes[1].id: the id 'n' is already used by nodes[0].id; choose another"),
    ("nodes: {id: w}\nwork: {id: w}", "work.id: the id 'w' is already used by nodes.id; choose another"),
    ("work: [{id: a}, {id: b}, {id: c, selector: 'zone in'}]", "work[2].selector: "),
    ("work: [{id: a, label_selector: {zone: '(x)'}}]", "work[0].label_selector: "),
    (
        "work: [{id: a, resorces: {CPU: 1}}]",
        "work[0].resorces: is not a known field (did you mean 'resources'?); known fields are id",
    ),
    ("work: [{id: a, resources: {GPU: 1.5}}]", "work[0].resources: you cannot ask for 1.5 GPU: above 1 it must be"),
    (
        "work: [{id: a, at: -1}]",
        "work[0].at: must be a duration such as '90s', '5m' or '1h30m', or a number of seconds, 0 or more, not -1",
    ),
    ("work: [{id: a, for: soon}]", "work[0].for: must be a duration such as '90s'"),
    (
        "work: [{id: a, policy: packed}]",
        "work[0].policy: policy 'packed' is unknown (did you mean 'pack'?); good values are",
    ),
    ("work: [{id: a, priority: high}]", "work[0].priority: must be a whole number such as 1, not 'high'"),
    ("work: [{id: a, fallback: [{selector: '='}]}]", "work[0].fallback[0].selector: "),
    ("work: [{id: a, near: {topology: zone}}]", "work[0].near.labels: is missing; say which work you mean"),
    ("work: [{id: a, near: {ask: b, symmetric: true}}]", "work[0].near.symmetric: is allowed only in apart"),
    ("work: [{id: a, apart: [{ask: b, topology: 'a b'}]}]", "work[0].apart[0].topology: topology key 'a b' contains"),
    ("work: [{id: a, spread: {labels: {a: b}}}]", "work[0].spread.topology: is missing; a good value is 'zone'"),
    (
        "work: [{id: a, spread: {topology: z, labels: {a: b}, max_skew: 0}}]",
        "work[0].spread.max_skew: must be at least 1",
    ),
    ("work: [{id: a, prefers: [{weight: 5}]}]", "work[0].prefers[0]: needs exactly one of selector"),
    ("work: [{id: a, prefers: [{selector: a, weight: 500}]}]", "work[0].prefers[0].weight: weight 500 is out of range"),
    ("work: [{id: a, tolerations: [3]}]", "work[0].tolerations[0]: must be text such as 'gpu=true'"),
    ("work: [{id: a, tolerations: {gpu: '!exists()'}}]", "work[0].tolerations: a toleration cannot express 'not gpu'"),
    (
        "work: [{id: a, tolerations: [{key: g, operator: Exsts}]}]",
        "work[0].tolerations[0].operator: 'Exsts' is unknown (did you mean 'Exists'?)",
    ),
    ("work: [{id: a, tolerations: [{key: g, operator: Equal}]}]", "work[0].tolerations[0]: Equal needs a value"),
    ("work: [{id: a, tolerations: [{operator: Equal, value: v}]}]", "work[0].tolerations[0].key: is missing"),
    ("groups: [{id: g}]", "groups[0]: group 'g' has no members; give at least one bundle"),
    (
        "groups: [{id: g, bundles: [{CPU: x}]}]",
        "groups[0].bundles[0].resources: the amount of 'CPU' 'x' is not a quantity",
    ),
    ("groups: [{id: g, bundles: [{CPU: 1}], min_available: 0}]", "groups[0].min_available: must be at least 1, not 0"),
    (
        "groups: [{id: g, bundles: [{CPU: 1}, {CPU: 1}], min_available: 3}]",
        "groups[0].min_available: must be at most the number of bundles, 2, not 3",
    ),
    ("groups: [{id: g, bundles: [{CPU: 1}], timeout: 0}]", "groups[0].timeout: must be more than 0 s, for example 60"),
    ("groups: [{id: g, bundles: [{CPU: 1}], strategy: STRICT}]", "groups[0].strategy: strategy 'STRICT' is unknown"),
    ("groups: [{id: g, bundles: [{CPU: 1}], topology: zone}]", "groups[0].topology: must be a map such as"),
    (
        "nodes: {id: node-1}\nevents: [{at: 1, drain: node-2}]",
        "events[0].drain: there is no node 'node-2' (did you mean 'node-1'?)",
    ),
    ("events: [{drain: n}]", "events[0].at: is missing; a good value is 30"),
    ("events: [{at: 1}]", "events[0]: needs exactly one of taint, untaint"),
    ("nodes: {id: n}\nevents: [{at: 1, taint: n, drain: n}]", "events[0]: needs exactly one of taint, untaint"),
    (
        "nodes: {id: n}\nevents: [{at: 1, taint: n}]",
        "events[0].taints: is missing; a good value is 'gpu=true:NoExecute'",
    ),
    (
        "nodes: [{id: n, at: 2024-99-99}]",
        "line 1: '2024-99-99' cannot be read as timestamp; a good value is 2024-12-31",
    ),
    ('nodes:\n- {id: n, count: !!int "abc"}', "line 2: 'abc' cannot be read as int; a good value is 1"),
    ("until: !!bool maybe", "line 1: 'maybe' cannot be read as bool; a good value is true"),
    ("until: !!timestamp soon", "line 1: 'soon' cannot be read as timestamp"),
    (f"until: {'9' * 5000}", "line 1: '9999"),
    (f"until: 0x{'f' * 6000}", "line 1: '0xfff"),
    (f"until: 1{'0' * 400}", "until: must be at most 1000000000000 seconds, for example '5m', not 10000"),
    (f"until: {'9' * 400}s", "until: must be at most 1000000000000 seconds, for example '5m', not '9999"),
    ("until: .inf", "until: must be at most 1000000000000 seconds, for example '5m', not inf"),
    (
        "until: .nan",
        "until: must be a duration such as '90s', '5m' or '1h30m', or a number of seconds, 0 or more, not nan",
    ),
    (f"nodes: {'[' * 3000}", "this is nested too deeply; a good file is a few levels deep"),
    ("title: a\nuntil: \0", "line 2: this is not YAML: the character U+0000 is not allowed"),
    ("nodes: {id: n, taints: &a [*a]}", "this YAML is too large"),
    ("nodes: [{id: n, capacity: {GPU: 1.5}}]", "nodes[0].capacity: node 'n' cannot have 1.5 GPU: give whole devices"),
    (
        "nodes: {id: n}\nevents: [{at: 1, resize: n, capacity: {GPU: 1.5}}]",
        "events[0].capacity: node 'n' cannot have 1.5 GPU: give whole devices",
    ),
    ("nodes: [{id: n, count: 100000000}]", "nodes[0].count: must be at most 1000000, not 100000000"),
    (
        "groups: {id: g, count: 1000000, bundles: [{resources: {CPU: 1}, count: 1000000}]}",
        "groups.bundles[0].count: at most 1,000,000 nodes and pieces of work are allowed; use fewer",
    ),
    (
        "work: {id: train}\nevents: [{at: 1, end: trian}]",
        "events[0].end: there is no work 'trian' (did you mean 'train'?)",
    ),
    ("nodes: {id: n}\nevents: [{at: 1, lose: [n]}]", "events[0].lose[0]: there is no work 'n'"),
    (
        "nodes: {id: n}\nevents: [{at: 5, drain: n, taints: x}]",
        "events[0].taints: is not a known field; known fields are at, drain",
    ),
    (
        "work: {id: w}\nevents: [{at: 5, end: w, key: x}]",
        "events[0].key: is not a known field; known fields are at, end",
    ),
    (
        "events: [{at: 30, join: {id: m, at: 50}}]",
        "events[0].join.at: is not a known field; known fields are id, count, capacity",
    ),
    ("settings: {patients: 3}", "settings.patients: is not a known field (did you mean 'patience'?)"),
    ("settings: {hybrid_threshold: 3}", "settings.hybrid_threshold: must be a number from 0 to 1, not 3"),
]


@pytest.mark.parametrize(("text", "sentence"), SLIPS, ids=[text[:80] for text, _ in SLIPS])
def test_a_mistake_is_one_sentence_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(text)
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 320


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"^the scenario .*none\.yaml cannot be read: No such file or directory$"):
        load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"title: \xe9")
    with pytest.raises(Invalid, match="it is not UTF-8 text"):
        load(tmp_path / "latin.yaml")
    (tmp_path / "slip.yaml").write_text("nods: []")
    with pytest.raises(Invalid, match=r"slip\.yaml: nods: is not a known field"):
        load(tmp_path / "slip.yaml")
