"""Values as JSON: every class there and back, equal values as equal bytes, and mistakes refused in one sentence."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.codec import dumps, loads, plain
from stead.engine import decisions as d
from stead.engine import facts as f
from stead.engine import reasons as r
from stead.engine.scaling import decisions as scaling
from stead.errors import Invalid
from stead.language.asks import Affinity, Ask, Choice, Group, HostPort, PolicyName, Preference, Spread, Strategy
from stead.language.budgets import Budget
from stead.language.claims import Claim
from stead.language.labels import NOWHERE, Labels, Requirement, Selector
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import Resources
from stead.language.taints import TOLERATE_ALL, Effect, Taint, Toleration

SELECTOR = Selector(
    (
        (Requirement.is_in("gpu_type", "P100", "A100"), Requirement.greater_than("ram", -3)),
        (Requirement.does_not_exist("spot"), Requirement.less_than("ram", 9), Requirement.not_in("zone", "")),
    )
)
NEAR = Affinity(SELECTOR, topologies=("zone", "rack"), namespaces=frozenset({"b", "a"}))
APART = Affinity(SELECTOR, near=False, namespaces=frozenset(), symmetric=True)
SPREAD = Spread("zone", SELECTOR, 3)
TAINT = Taint("gpu", "true", Effect.NO_EXECUTE)
RICH = Ask(
    "a-1",
    (Choice(Resources.of(CPU="500m", GPU=2), SELECTOR), Choice(selector=NOWHERE)),
    (TOLERATE_ALL, Toleration("gpu", frozenset({"b", "a"}), False, Effect.NO_EXECUTE, 30)),
    ((NEAR, APART), (APART,)),
    (SPREAD,),
    (Preference(SELECTOR, 7), Preference(NEAR, 8), Preference(SPREAD)),
    Labels({"z": "", "app": "wéb"}),
    "team",
    PolicyName.PACK,
    -5,
    12.5,
    "job-1",
    (HostPort(80), HostPort(53, "UDP", "10.0.0.1")),
    ("web:1", "web:1"),
    Resources.of(CPU="100m"),
    (Preference(APART, 9),),
    False,
    True,
    ("team/data", "team/logs"),
)
NODE = Node(
    "n",
    Resources.of(CPU=4, memory="2Gi"),
    Labels({"zone": "a"}),
    (TAINT, Taint("x")),
    "10.0.0.1",
    "one",
    True,
    (("web:1", 30_000_000),),
    (("ebs.csi.aws.com", 25),),
)
CLAIM = Claim("team/data", SELECTOR, True, "ebs.csi.aws.com", False, "is being deleted")
GROUP = Group(
    "g",
    ((Ask("m-1"), Ask("m-2")), (Ask("m-3"),)),
    Strategy.STRICT_PACK,
    (("zone", Strategy.SPREAD),),
    3,
    4.0,
    "me",
    1,
    60.0,
)

REASONS: list[r.Reason] = [
    r.Draining(),
    r.LacksLabel(Requirement.exists("k")),
    r.NoTermMatches(SELECTOR),
    r.ClaimUnusable("team/data", "is being deleted"),
    r.ClaimElsewhere("team/data", SELECTOR, False),
    r.NotNear(NEAR),
    r.TargetDead(NEAR),
    r.TooNear(APART),
    r.NoAlternativeHolds(((NEAR,), (APART, NEAR))),
    r.KeptAway(APART),
    r.Skewed(SPREAD),
    r.Tainted(TAINT),
    r.PortTaken(HostPort(80, "UDP", "10.0.0.1")),
    r.ClaimInUse("team/data"),
    r.ClaimBeingBound("team/data"),
    r.TooManyVolumes("ebs.csi.aws.com"),
    r.HasMember("zone"),
    r.ApartFromGroup("node_id"),
    r.NeverFits("GPU", 20_000),
    r.ShortOf("CPU", 1),
    r.Reserved("a-9"),
]
REFUSALS = tuple(d.Refusal(reason, 3, 1) for reason in REASONS)

FACTS: list[f.Fact] = [
    f.ClockAdvanced(3),
    f.NodeJoined(NODE),
    f.NodeJoined(Node("plain")),
    f.NodeLeft("n"),
    f.NodeLabelled("n", Labels({"zone": "b"}), ("rack", "row")),
    f.NodeTainted("n", TAINT),
    f.NodeTainted("n", TAINT, 60.0, "02", "me"),
    f.NodeUntainted("n", "gpu", Effect.PREFER_NO_SCHEDULE),
    f.NodeUntainted("n", "gpu"),
    f.NodeUntainted("n", "gpu", None, "job 02 has ended"),
    f.NodeDrained("n"),
    f.NodeDrained("n", False),
    f.NodeResized("n", Resources.of(CPU="2.5")),
    f.NodeUsed("n", Resources.of(CPU="2.5"), 3),
    f.AskSubmitted(RICH),
    f.AskSubmitted(Ask("bare")),
    f.AsksSubmitted(RICH, 3, 40),
    f.AskRunning(RICH, "n"),
    f.AskRunning(RICH, "n", 12.5),
    f.AskChanged(RICH),
    f.AskEnding("a-1"),
    f.EvictionFailed("a-1"),
    f.AskNominated("a-1", "n"),
    f.BudgetChanged(Budget("team/web", SELECTOR, 2, "team")),
    f.BudgetEnded("team/web"),
    f.ClaimChanged(CLAIM),
    f.ClaimEnded("team/data"),
    f.AskEnded("a-1"),
    f.AskLost("a-1"),
    f.GroupSubmitted(GROUP),
    f.GroupChanged(GROUP),
    f.GroupEnded("g"),
]
VERDICT = d.Verdict(40, 0, REFUSALS, 2, 1, 3)
DECISIONS: list[d.Decision] = [
    d.Placed("a-1", "n"),
    d.Placed("a-1", "n", 1),
    d.GroupPlaced("g", 1, (("m-1", "n"), ("m-2", "n"))),
    d.Waiting(("a-1", "a-2"), (VERDICT,)),
    d.Waiting(("g",), (VERDICT,), "m-2"),
    d.Waiting(("g",)),
    d.Waiting(("g",), more_members=3),
    d.Refused("a-1", d.NodeUnknown(("x", "y"))),
    d.Refused("a-1", d.DeadlinePassed(5.0, (VERDICT,))),
    d.Evicted("a-1", "n", TAINT),
    d.Preempted("a-1", "n", ("b-1", "b-2"), 1, "g", 1),
    d.Preempted("a-1", "n", ()),
    d.NominationEnded("a-1", "n"),
    d.GroupReleased("g", ("m-1", "m-2")),
    d.TaintExpired("n", TAINT),
    d.BatchDecided(PolicyName.FLOW, 3, 2, 100_002_100, 100_002_100, 1, 2),
    d.BatchDecided(PolicyName.FLOW_FGD, 1, 1, 100_000),
    d.Moved("a-1", "n", "m", 120),
]
TEMPLATE = NodeTemplate("cpu", Resources.of(CPU=8), price=1.5)
SCALING: list[scaling.ScaleDecision] = [
    scaling.NodeRequested("cpu-3", TEMPLATE, 5),
    scaling.NodeRequested("cpu-3", TEMPLATE, 1),
    scaling.NodeRequested("cpu-3", TEMPLATE),
    scaling.NodeArrived("cpu-3", "cpu", "n"),
    scaling.LaunchEnded("cpu-3", "cpu", "the provider has no more such nodes", 300.0),
    scaling.LaunchEnded("cpu-3", "cpu", "the node has no label zone", 0.0),
    scaling.RetirementBegun("cpu-3", "cpu", "n", 300.0),
    scaling.RetirementCancelled("cpu-3", "cpu", "n", "5 pieces of work fit there"),
    scaling.NodeRetired("cpu-3", "cpu", "n"),
    scaling.NodeLost("cpu-3", "cpu", "n"),
]
OTHERS: list[tuple[Any, Any]] = [
    (RICH, Ask),
    (NODE, Node),
    (GROUP, Group),
    (NodeTemplate("big", Resources.of(GPU=8), price=1.5), NodeTemplate),
    (REFUSALS, tuple[d.Refusal, ...]),
    ((), tuple[f.Fact, ...]),
]
CASES = [(value, f.Fact) for value in FACTS] + [(value, d.Decision) for value in DECISIONS] + OTHERS
CASES += [(value, scaling.ScaleDecision) for value in SCALING]
CASES += [(value, r.Reason) for value in REASONS]


@pytest.mark.parametrize(("value", "kind"), CASES, ids=lambda case: type(case).__name__)
def test_a_value_comes_back_equal_and_is_written_the_same_again(value: Any, kind: Any) -> None:
    written = dumps(value)
    back = loads(written, kind)
    assert back == value
    assert type(back) is type(value)
    assert dumps(back) == written


TABLES = [(f.Fact, FACTS), (d.Decision, DECISIONS), (scaling.ScaleDecision, SCALING), (r.Reason, REASONS)]


@pytest.mark.parametrize(("union", "cases"), TABLES)
def test_every_class_of_a_union_is_covered_by_the_table(union: Any, cases: list[Any]) -> None:
    assert {type(case) for case in cases} == set(get_args(union)), "a new class needs a row in the table above"


@pytest.mark.parametrize("value", [NODE, RICH, GROUP, CLAIM], ids=lambda value: type(value).__name__)
def test_every_field_of_the_rich_values_differs_from_its_default(value: Any) -> None:
    """So that the table really writes each of them."""
    assert set(plain(value)) == {field.name for field in fields(value)} | {"is"}


def test_what_is_written_is_canonical_and_without_defaults() -> None:
    assert dumps(f.AskSubmitted(Ask.of("a", {"CPU": 0.5}))) == (
        b'{"ask":{"choices":[{"resources":{"CPU":5000}}],"id":"a"},"is":"AskSubmitted"}'
    )
    assert dumps(f.NodeLeft("é")) == b'{"is":"NodeLeft","node":"\\u00e9"}'
    assert dumps([f.NodeLeft("a"), d.Placed("x", "a")]) == (
        b'[{"is":"NodeLeft","node":"a"},{"ask":"x","is":"Placed","node":"a"}]'
    )


def test_equal_values_are_equal_bytes() -> None:
    assert dumps(f.ClockAdvanced(5)) == dumps(f.ClockAdvanced(5.0)) == b'{"is":"ClockAdvanced","now":5.0}'
    assert dumps(f.ClockAdvanced(-0.0)) == dumps(f.ClockAdvanced(0.0))
    one = Toleration("k", frozenset({"a", "b", "c"}), False)
    other = Toleration("k", frozenset({"c", "b", "a"}), False)
    assert dumps(one) == dumps(other)


def test_equal_parts_are_read_into_one_object() -> None:
    first, second = loads(dumps([RICH, RICH]), tuple[Ask, ...])
    assert first.choices[0] is second.choices[0]


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(), st.integers(0, 2**62))
def test_any_number_and_any_text_survive(moment: float, text: str, units: int) -> None:
    facts = (f.ClockAdvanced(moment), f.NodeLeft(text), f.NodeResized(text, Resources({"CPU": units})))
    assert loads(dumps(facts), tuple[f.Fact, ...]) == facts


SLIPS = [
    ("not json", f.Fact, "this is not JSON: Expecting value: line 1 column 1 (char 0)"),
    ("{}", Node, "Node needs the field 'id'"),
    ('{"is":"NodeLeft"}', f.Fact, "NodeLeft needs the field 'node'"),
    ('{"is":"NodeLeft","node":"n","x":1}', f.Fact, "NodeLeft has no field 'x'"),
    ('{"id":"n","capasity":{}}', Node, "Node has no field 'capasity' (did you mean 'capacity'?)"),
    ('{"is":"NodeLeft","node":7}', f.Fact, "NodeLeft.node must be text, not 7"),
    ('{"is":"ClockAdvanced","now":true}', f.Fact, "ClockAdvanced.now must be a number, not true"),
    ('{"is":"NodeDrained","node":"n","draining":1}', f.Fact, "NodeDrained.draining must be true or false, not 1"),
    ('{"id":"a","priority":1.5}', Ask, "Ask.priority must be a whole number, not 1.5"),
    (
        '{"id":"a","policy":"best"}',
        Ask,
        'Ask.policy must be one of hybrid, pack, spread, random, flow, flow-pack, flow-fgd, kube, not "best"',
    ),
    ('{"id":"a","choices":{}}', Ask, "Ask.choices must be a list, not {}"),
    ('{"id":"a","labels":{"k":1}}', Ask, "Ask.labels must be text, not 1"),
    ('{"id":"a","labels":[]}', Ask, "Ask.labels must be an object with string values, not []"),
    ('{"id":"a","choices":[{"resources":[]}]}', Ask,
     "Ask.choices: Choice.resources must be an object of whole numbers, not []"),
    ('{"id":"a","choices":[]}', Ask, "ask 'a' has no choice; give at least one, for example Choice()"),
    ('{"key":"k","values":"v"}', Toleration, 'Toleration.values must be a list, not "v"'),
    ('{"is":"GroupPlaced","group":"g","alternative":0,"members":[["a"]]}', f.Fact | d.Decision, None),
    ("[1]", tuple[Node, ...], "must be an object (Node), not 1"),
    ('{"is":"Node","id":"n"}', Ask, 'Ask.is must be "Ask", not "Node"'),
]  # fmt: skip


@pytest.mark.parametrize(("written", "kind", "sentence"), SLIPS, ids=lambda case: str(case)[:40])
def test_a_mistake_is_refused_in_one_sentence(written: str, kind: Any, sentence: str | None) -> None:
    with pytest.raises(Invalid) as refused:
        loads(written, kind)
    assert str(refused.value) == (sentence or 'GroupPlaced.members must be a list of 2, not ["a"]')


@pytest.mark.parametrize("written", ['{"is":"NodeLef","node":"n"}', '{"node":"n"}', "3"])
def test_an_unknown_class_is_refused_with_the_known_ones(written: str) -> None:
    with pytest.raises(Invalid, match=r"ClockAdvanced, NodeJoined, NodeLeft") as refused:
        loads(written, f.Fact)
    if "NodeLef" in json.dumps(written):
        assert str(refused.value).startswith("'NodeLef' is unknown (did you mean 'NodeLeft'?); known are ClockAdvanced")


@pytest.mark.parametrize("moment", [float("inf"), float("nan")])
def test_a_number_that_json_lacks_is_refused(moment: float) -> None:
    with pytest.raises(Invalid, match="contains a number that JSON cannot represent"):
        dumps(f.ClockAdvanced(moment))


def test_an_unsupported_type_is_refused() -> None:
    with pytest.raises(Invalid, match="cannot be written as JSON"):
        dumps(object())
    with pytest.raises(Invalid, match="cannot be read from JSON"):
        loads("{}", object)


def test_writing_a_part_alone_does_not_change_how_it_is_written_inside_another() -> None:
    """Alone, it names its class; parts are cached, and the name must not get into the cache."""
    toleration = Toleration("written-alone-first")
    ask = Ask("a", tolerations=(toleration,))
    before = dumps(ask)
    assert b'"is":"Toleration"' in dumps(toleration)
    assert dumps(ask) == before
    assert b'"is":"Toleration"' not in before
