"""Which of the nodes that fit: preferences, then the policy, then the order of the table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from stead.engine.decisions import Placed
from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted, NodeJoined, NodeLeft
from stead.errors import Invalid
from stead.language.asks import Ask, Choice, PolicyName, Preference, locality
from stead.language.labels import Labels
from stead.language.nodes import Node
from stead.language.resources import Resources
from stead.language.taints import Effect, Taint
from tests.behaviour import amounts, ask, cluster, decide_after, fill, node, on, place, run, submit, taint

HYBRID, PACK, SPREAD, RANDOM = PolicyName.HYBRID, PolicyName.PACK, PolicyName.SPREAD, PolicyName.RANDOM
ONE_AT_A_TIME = [policy for policy in PolicyName if not policy.in_batches]


def crowd(count: int, cpu: float = 1, policy: PolicyName = HYBRID) -> list[Ask]:
    return [ask(f"w{index}", cpu, policy=policy) for index in range(count)]


def nodes(*cpus: float) -> list[Node]:
    return [node(f"n{index}", cpu) for index, cpu in enumerate(cpus)]


@pytest.mark.parametrize(
    ("cpus", "policy", "order"),
    [
        pytest.param((4, 4), HYBRID, "n0 n0 n1 n1 n0 n1 n0 n1 -", id="hybrid packs to half, then the least loaded"),
        pytest.param((2, 8), HYBRID, "n0 n1 n1 n1 n1 n1 n1 n1 n0 n1 -", id="hybrid counts in shares of each node"),
        pytest.param((3, 3), HYBRID, "n0 n1 n0 n1 n0 n1 -", id="hybrid does not pass the threshold while it can"),
        pytest.param((4, 4), PACK, "n0 n0 n0 n0 n1 n1 n1 n1 -", id="pack fills one node before it turns to another"),
        pytest.param((8, 4), PACK, "n1 n1 n1 n1 n0 n0", id="pack begins where the ask fills more"),
        pytest.param((4, 4), SPREAD, "n0 n1 n0 n1 n0 n1 n0 n1 -", id="spread takes turns"),
        pytest.param((2, 8), SPREAD, "n1 n1 n1 n0 n1 n1 n1 n1 n0 n1 -", id="spread counts in shares of each node"),
    ],
)
def test_a_policy_chooses_in_its_order(cpus: tuple[float, ...], policy: PolicyName, order: str) -> None:
    expected = [None if id == "-" else id for id in order.split()]
    assert place(cluster(*nodes(*cpus)), *crowd(len(expected), policy=policy)) == expected


@pytest.mark.parametrize(
    ("threshold", "order"),
    [(0.0, "n0 n1 n0 n1"), (0.25, "n0 n1 n0 n1"), (0.75, "n0 n0 n0 n1"), (1.0, "n0 n0 n0 n0")],
)
def test_the_threshold_of_the_hybrid_policy_is_a_setting(threshold: float, order: str) -> None:
    engine = cluster(*nodes(4, 4), hybrid_threshold=threshold)
    assert place(engine, *crowd(4)) == order.split()


@pytest.mark.parametrize(
    ("used", "chosen"), [(2, "n0"), (2.0007, "n0"), (2.0008, "n1")], ids=["half", "half, rounded down", "a share more"]
)
def test_exactly_half_full_is_still_within_the_threshold(used: float, chosen: str) -> None:
    engine = cluster(*nodes(8, 8))
    fill(engine, "n0", used)
    assert place(engine, ask("w", 2)) == [chosen]


def test_load_is_that_of_the_scarcest_resource_asked_for() -> None:
    engine = cluster(node("n0", 8, memory=100), node("n1", 8, memory=100))
    run(engine, ask("memory-hog", 0, memory=90), "n0")
    run(engine, ask("cpu-hog", 6), "n1")
    assert place(engine, ask("both", 1, memory=10, policy=SPREAD)) == ["n1"]
    assert place(engine, ask("cpu", 1, policy=SPREAD)) == ["n0"]
    assert place(engine, ask("memory", memory=5, policy=PACK)) == ["n0"]


def test_load_counts_the_shares_of_devices_together() -> None:
    engine = cluster(node("n0", GPU=2), node("n1", GPU=2))
    run(engine, ask("half", gpu=0.5), "n0")
    assert place(engine, ask("w", gpu=0.5, policy=SPREAD)) == ["n1"]
    assert place(engine, ask("x", gpu=0.25, policy=PACK)) == ["n0"]


@pytest.mark.parametrize("policy", [HYBRID, SPREAD], ids=str)
def test_asks_for_nothing_spread_out(policy: PolicyName) -> None:
    engine = cluster(*nodes(4, 4, 4))
    fill(engine, "n1", 1)
    assert place(engine, *crowd(5, 0, policy)) == ["n0", "n2", "n0", "n1", "n2"]


def test_asks_for_nothing_are_packed_where_most_work_is() -> None:
    engine = cluster(*nodes(4, 4))
    fill(engine, "n1", 1)
    assert place(engine, *crowd(3, 0, PACK)) == ["n1"] * 3


# Ties


@pytest.mark.parametrize("policy", [HYBRID, PACK, SPREAD], ids=str)
def test_among_equals_the_node_that_joined_first_is_taken(policy: PolicyName) -> None:
    engine = cluster(node("z"), node("a"), node("m"))
    assert place(engine, ask("w", 1, policy=policy)) == ["z"]


def test_a_node_that_joins_again_under_its_id_keeps_its_turn() -> None:
    engine = cluster(*nodes(4, 4))
    engine.apply(NodeJoined(node("n0", 4)))
    assert place(engine, ask("w", 1)) == ["n0"]


def test_a_node_that_joins_takes_the_row_of_one_that_left() -> None:
    engine = cluster(*nodes(4, 4))
    engine.apply(NodeLeft("n0"), NodeJoined(node("n2")))
    assert list(engine.nodes) == ["n2", "n1"]
    assert place(engine, ask("w", 1)) == ["n2"]


# Preferences


def preferring(id: str, *prefers: Preference, policy: PolicyName = HYBRID) -> Ask:
    return ask(id, 1, prefers=prefers, policy=policy)


@pytest.mark.parametrize("policy", ONE_AT_A_TIME, ids=str)
def test_a_preference_beats_every_policy(policy: PolicyName) -> None:
    engine = cluster(*nodes(4, 4, 4))
    fill(engine, "n0", 2)
    fill(engine, "n1", 1)
    for index in range(2):
        wanted = preferring(f"w{index}", Preference(on("node_id", "n1"), 1), policy=policy)
        assert place(engine, wanted) == ["n1"]


@pytest.mark.parametrize(
    ("prefers", "chosen"),
    [
        pytest.param({"a": 10, "b": 20}, "n1", id="the greater weight wins"),
        pytest.param({"a": 20, "b": 20}, "n0", id="equal weights leave it to the table"),
        pytest.param({"a": 10, "b": 15, "ac": 4}, "n1", id="weights add up, but not enough"),
        pytest.param({"a": 10, "b": 15, "ac": 6}, "n0", id="weights add up"),
        pytest.param({"a": 100, "b": 50, "bc": 51}, "n1", id="many small ones beat a large one"),
        pytest.param({"d": 100}, "n0", id="what holds nowhere changes nothing"),
        pytest.param({"c": 1}, "n2", id="the smallest weight is enough"),
    ],
)
def test_weights_of_preferences_that_hold_are_added(prefers: dict[str, int], chosen: str) -> None:
    engine = cluster(*(node(f"n{index}", labels={"zone": zone}) for index, zone in enumerate("abc")))
    wishes = [Preference(on("zone", *wanted), weight) for wanted, weight in prefers.items()]
    assert place(engine, preferring("w", *wishes)) == [chosen]


def test_a_full_preferred_node_does_not_block_the_others() -> None:
    engine = cluster(*nodes(4, 1))
    assert place(engine, *(preferring(f"w{index}", locality("n1")) for index in range(2))) == ["n1", "n0"]


def test_among_equally_preferred_nodes_the_policy_decides() -> None:
    engine = cluster(*nodes(4, 4, 4))
    fill(engine, "n1", 1)
    assert place(engine, preferring("w", locality("n1", "n2"), policy=SPREAD)) == ["n2"]
    assert place(engine, preferring("x", locality("n1", "n2"), policy=PACK)) == ["n1"]


@pytest.mark.parametrize("weight", [0, 101, -1, True, 1.5])
def test_a_weight_is_a_whole_number_from_1_to_100(weight: int) -> None:
    with pytest.raises(Invalid, match=r"from 1 to 100"):
        Preference(on("zone", "a"), weight)


# Random


def test_the_random_policy_replays_from_its_seed() -> None:
    runs = [place(cluster(*nodes(*[4] * 20), seed=seed), *crowd(12, 1, RANDOM)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_random_policy_reaches_every_node_that_fits_and_no_other() -> None:
    engine = cluster(*nodes(4, 4, 4, 0))
    where = Counter(place(engine, *crowd(400, 0.01, RANDOM)))
    assert where.keys() == {"n0", "n1", "n2"}
    assert min(where.values()) > 90


def test_the_random_policy_draws_only_among_the_best_preferred() -> None:
    engine = cluster(*nodes(*[4] * 6))
    prefers = (locality("n1", "n4"),)
    where = place(engine, *(replace(each, prefers=prefers) for each in crowd(16, 0.25, RANDOM)))
    assert set(where) == {"n1", "n4"}


def test_asking_about_random_work_does_not_change_what_is_drawn() -> None:
    engines = [cluster(*nodes(*[4] * 20), seed=3) for _ in range(2)]
    engines[0].explain(ask("probe", 1, policy=RANDOM))
    assert place(engines[0], *crowd(6, 1, RANDOM)) == place(engines[1], *crowd(6, 1, RANDOM))


# Placing many at once equals placing one by one


def some_node(random: Random, index: int) -> Node:
    taints = [taint("old", "", Effect.PREFER_NO_SCHEDULE)] if random.random() < 0.2 else []
    return Node(
        f"n{index}",
        amounts(CPU=random.choice((1, 2, 3, 4, 8)), GPU=random.choice((0, 1, 2)), memory=random.choice((10, 1000))),
        Labels({"zone": random.choice("abc")}),
        tuple[Taint, ...](taints),
    )


def some_ask(random: Random, policy: PolicyName) -> Ask:
    def choice() -> Choice:
        wants = {
            "CPU": random.choice((0, 0.5, 1, 1.5)),
            "GPU": random.choice((0, 0, 0.3, 1)),
            "memory": random.choice((0, 3)),
        }
        return Choice(Resources.of(wants), on("zone", *random.sample("abc", random.choice((1, 3)))))

    prefers = [
        Preference(on("zone", random.choice("abc")), random.choice((1, 100))) for _ in range(random.choice((0, 1)))
    ]
    return Ask("w", tuple(choice() for _ in range(random.choice((1, 2)))), prefers=tuple(prefers), policy=policy)


def with_some_work(engine: Engine, random: Random) -> Engine:
    for index in range(6):
        run(engine, ask(f"old{index}", 0.5, gpu=random.choice((0, 0.5))), random.choice(list(engine.nodes)))
    return engine


@pytest.mark.parametrize("policy", ONE_AT_A_TIME, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_equal_asks_submitted_together_land_where_they_would_one_by_one(policy: PolicyName, seed: int) -> None:
    random = Random(f"{seed}-{policy}")
    some_nodes = [some_node(random, index) for index in range(random.choice((3, 9, 70)))]
    equal = some_ask(random, policy)
    work = [replace(equal, id=f"w{index}") for index in range(random.choice((5, 40)))]
    at_once = with_some_work(cluster(*some_nodes), Random(seed))
    one_by_one = with_some_work(cluster(*some_nodes), Random(seed))
    batch = submit(at_once, *work)
    singles = [decision for each in work for decision in submit(one_by_one, each)]
    assert [each for each in batch if isinstance(each, Placed)] == [
        each for each in singles if isinstance(each, Placed)
    ]
    assert at_once.waiting == one_by_one.waiting
    assert [at_once.free(id) for id in at_once.nodes] == [one_by_one.free(id) for id in one_by_one.nodes]


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("policy", ONE_AT_A_TIME, ids=str)
def test_a_limit_per_call_does_not_change_where_work_lands(policy: PolicyName, limit: int) -> None:
    whole, piecemeal = cluster(*nodes(2, 4, 8)), cluster(*nodes(2, 4, 8))
    work = [*crowd(9, 1, policy), *(ask(f"x{index}", 0.5, policy=policy) for index in range(5))]
    submit(whole, *work)
    piecemeal.apply(*map(AskSubmitted, work))
    for _ in range(len(work)):
        assert sum(1 for _ in piecemeal.decide(limit)) <= limit
    assert piecemeal.placed == whole.placed
    assert decide_after(piecemeal) == []
