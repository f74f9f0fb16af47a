"""Taints, the tolerations that cover them, and the text forms of taints."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.language.arguments import (
    TaintChange,
    effect_text,
    parse_effect,
    parse_taint_change,
    parse_taints,
    taint_text,
    taints_of,
)
from stead.language.taints import TOLERATE_ALL, Effect, Taint, Toleration, stay_under, tolerated
from tests.language.sentences import refused

NO_SCHEDULE, PREFER, NO_EXECUTE = Effect.NO_SCHEDULE, Effect.PREFER_NO_SCHEDULE, Effect.NO_EXECUTE
GPU = Taint("gpu", "a100")
IN_A100 = Toleration("gpu", frozenset({"a100"}), complement=False)
NOT_A100 = Toleration("gpu", frozenset({"a100"}), complement=True)


@pytest.mark.parametrize(
    ("toleration", "taint", "covers"),
    [
        (Toleration("gpu"), GPU, True),
        (Toleration("gpu"), Taint("gpu"), True),
        (Toleration("gpu"), Taint("gpu", effect=NO_EXECUTE), True),
        (Toleration("gpu"), Taint("cpu"), False),
        (Toleration("GPU"), GPU, False),
        (IN_A100, GPU, True),
        (IN_A100, Taint("gpu", "t4"), False),
        (IN_A100, Taint("gpu"), False),
        (IN_A100, Taint("cpu", "a100"), False),
        (NOT_A100, GPU, False),
        (NOT_A100, Taint("gpu", "t4"), True),
        (NOT_A100, Taint("gpu"), True),
        (Toleration("gpu", frozenset({""}), complement=False), Taint("gpu"), True),
        (Toleration("gpu", frozenset({""}), complement=False), GPU, False),
        (Toleration("gpu", complement=False), Taint("gpu"), False),
        (Toleration("gpu", effect=NO_SCHEDULE), GPU, True),
        (Toleration("gpu", effect=NO_EXECUTE), GPU, False),
        (Toleration("gpu", effect=NO_EXECUTE), Taint("gpu", "x", NO_EXECUTE), True),
        (Toleration("gpu", effect=PREFER), Taint("gpu", "x", PREFER), True),
        (TOLERATE_ALL, GPU, True),
        (TOLERATE_ALL, Taint("any", "thing", NO_EXECUTE), True),
        (Toleration(None, effect=NO_EXECUTE), GPU, False),
        (Toleration(None, frozenset({"a100"}), complement=False), GPU, True),
    ],
    ids=str,
)
def test_a_toleration_covers_a_taint(toleration: Toleration, taint: Taint, covers: bool) -> None:
    assert toleration.covers(taint) is covers
    assert tolerated(taint, [toleration]) is covers
    assert tolerated(taint, [Toleration("other"), toleration]) is covers


def test_without_tolerations_nothing_is_tolerated() -> None:
    assert not tolerated(GPU, [])


@pytest.mark.parametrize(
    ("stays", "expected"),
    [([], 0.0), ([None], None), ([300.0], 300.0), ([300.0, None], 300.0), ([300.0, 5.0], 5.0), ([-7.0], 0.0)],
)
def test_the_shortest_stay_under_a_no_execute_taint_counts(stays: list[float | None], expected: float | None) -> None:
    taint = Taint("down", effect=NO_EXECUTE)
    tolerations = [Toleration("down", seconds=seconds) for seconds in stays]
    assert stay_under(taint, [*tolerations, Toleration("other", seconds=1.0)]) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Taint("gpu"), "gpu"),
        (GPU, "gpu=a100"),
        (Taint("gpu", "", NO_EXECUTE), "gpu:no-execute"),
        (Taint("gpu", "x", PREFER), "gpu=x:prefer-no-schedule"),
        (TOLERATE_ALL, "any taint"),
        (Toleration("gpu"), "gpu"),
        (Toleration("gpu", frozenset({"b", "a"}), complement=False), "gpu in {a, b}"),
        (NOT_A100, "gpu not in {a100}"),
        (Toleration(None, effect=NO_EXECUTE), "any taint:no-execute"),
        (Toleration("gpu", frozenset({"a"}), complement=False, effect=PREFER), "gpu in {a}:prefer-no-schedule"),
    ],
)
def test_taints_and_tolerations_print_themselves(value: Taint | Toleration, text: str) -> None:
    assert str(value) == text


def test_only_a_preference_does_not_refuse() -> None:
    assert [effect for effect in Effect if effect.refuses] == [NO_SCHEDULE, NO_EXECUTE]
    assert sorted([Taint("b"), Taint("a", "2"), Taint("a", "1")]) == [Taint("a", "1"), Taint("a", "2"), Taint("b")]


@pytest.mark.parametrize(
    ("text", "effect"),
    [
        ("NoSchedule", NO_SCHEDULE),
        ("no-schedule", NO_SCHEDULE),
        ("NO_SCHEDULE", NO_SCHEDULE),
        ("noschedule", NO_SCHEDULE),
        ("PreferNoSchedule", PREFER),
        ("prefer-no-schedule", PREFER),
        ("NoExecute", NO_EXECUTE),
        (" no-execute ", NO_EXECUTE),
        (NO_EXECUTE, NO_EXECUTE),
    ],
)
def test_an_effect_is_spelled_as_kubectl_or_stead_does(text: str, effect: Effect) -> None:
    assert parse_effect(text) is effect


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("NoSchedul", " (did you mean 'NoSchedule'?)"),
        ("no-exec", " (did you mean 'NoExecute'?)"),
        ("true", ""),
        (3, ""),
    ],
)
def test_an_unknown_effect_is_refused(text: object, hint: str) -> None:
    good = "good values are NoSchedule, PreferNoSchedule, NoExecute"
    with refused(f"taint effect {text!r} is unknown{hint}; {good}"):
        parse_effect(text)


def test_effects_print_as_kubectl_spells_them() -> None:
    assert [effect_text(effect) for effect in Effect] == ["NoSchedule", "PreferNoSchedule", "NoExecute"]


@pytest.mark.parametrize(
    ("text", "taints"),
    [
        ("", []),
        ("{}", []),
        ('{"gpu_node":"true"}', [Taint("gpu_node", "true")]),
        ("{gpu_node:true}", [Taint("gpu_node", "true")]),
        ('{"a":"","b":"c"}', [Taint("a"), Taint("b", "c")]),
        ("gpu=true:NoSchedule", [Taint("gpu", "true")]),
        ("gpu:NoExecute", [Taint("gpu", "", NO_EXECUTE)]),
        ("gpu=:NoExecute", [Taint("gpu", "", NO_EXECUTE)]),
        ("gpu=true", [Taint("gpu", "true")]),
        ("gpu", [Taint("gpu")]),
        ("gpu=x:prefer-no-schedule", [Taint("gpu", "x", PREFER)]),
        ("example.com/gpu=x:noexecute", [Taint("example.com/gpu", "x", NO_EXECUTE)]),
        ("a:NoSchedule,b:NoExecute", [Taint("a"), Taint("b", "", NO_EXECUTE)]),
        ("a:NoSchedule b:NoExecute", [Taint("a"), Taint("b", "", NO_EXECUTE)]),
        (" a:NoSchedule ,  b:NoExecute\n", [Taint("a"), Taint("b", "", NO_EXECUTE)]),
        ("a=1:NoSchedule,a=2:NoExecute", [Taint("a", "1"), Taint("a", "2", NO_EXECUTE)]),
    ],
)
def test_taints_are_written(text: str, taints: list[Taint]) -> None:
    assert parse_taints(text) == tuple(taints)


GOOD = "good taints are 'gpu_node=true:NoSchedule' or '{\"gpu_node\": \"true\"}'"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gpu_node:true", ["taint effect 'true' is unknown", "good values are NoSchedule"]),
        ("gpu:", ["taint effect '' is unknown", "good values are NoSchedule"]),
        ("gpu:NoSchedule-", ["taint effect", "is unknown", "good values are NoSchedule"]),
        ("gpu-", ["taint key 'gpu-' must begin and end with a letter or digit", "for example 'zone'"]),
        ("=x:NoSchedule", ["taint '=x:NoSchedule' has '=x:NoSchedule' where a key was expected", GOOD]),
        ("a,,b", ["taint 'a,,b' has '' where a key was expected", GOOD]),
        ("a=b=c", ["the value of taint 'a', 'b=c' contains '='", "for example 'us-west4-a'"]),
        ("a b=$", ["the value of taint 'b', '$' contains '$'", "for example 'us-west4-a'"]),
        ("a=1,a=2", ["taint 'a:NoSchedule' is given twice", "for example 'a=2:NoSchedule'"]),
        ('{"a":"1","a":"2"}', ["taint 'a' is given twice", "for example 'a=2'"]),
        ('{"a":true}', ["the value of taint 'a', True must be a string, for example 'true'"]),
        ('{"a b":"x"}', ["taint key 'a b' contains ' '", "for example 'zone'"]),
        ("{a:b", ["taints '{a:b' cannot be read as a map at '{'", GOOD]),
        (None, ["taints must be given as text such as 'gpu_node=true:NoSchedule'", "not None"]),
    ],
)
def test_bad_taints_are_refused(text: Any, parts: list[str]) -> None:
    with refused(*parts):
        parse_taints(text)


def test_a_map_of_taints_is_checked_too() -> None:
    assert taints_of({"a": "b", "c": ""}) == (Taint("a", "b"), Taint("c"))
    with refused("taints must be a map such as {'gpu_node': 'true'}, not ['a']"):
        taints_of(not_a_map())


def not_a_map() -> Any:
    return ["a"]


@pytest.mark.parametrize(
    ("text", "change", "printed"),
    [
        ("k=v:NoSchedule", TaintChange("k", "v", NO_SCHEDULE), "k=v:NoSchedule"),
        ("k:NoExecute", TaintChange("k", "", NO_EXECUTE), "k:NoExecute"),
        ("k=v", TaintChange("k", "v", NO_SCHEDULE), "k=v:NoSchedule"),
        ("k=:no-schedule", TaintChange("k", "", NO_SCHEDULE), "k:NoSchedule"),
        ("k-", TaintChange("k", removes=True), "k-"),
        (" k- ", TaintChange("k", removes=True), "k-"),
        ("k:NoSchedule-", TaintChange("k", None, NO_SCHEDULE, removes=True), "k:NoSchedule-"),
        ("k=v:NoSchedule-", TaintChange("k", "v", NO_SCHEDULE, removes=True), "k=v:NoSchedule-"),
        ("k=v-", TaintChange("k", "v", removes=True), "k=v-"),
        ("k=-", TaintChange("k", "", removes=True), "k=-"),
    ],
)
def test_a_change_of_taints_is_written_as_kubectl_does(text: str, change: TaintChange, printed: str) -> None:
    assert parse_taint_change(text) == change
    assert str(change) == printed
    assert parse_taint_change(printed) == change


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("k", ["taint 'k' names no effect", "write 'k:NoSchedule' to set it or 'k-' to remove it"]),
        ("-", ["taint '-' has '' where a key was expected", GOOD]),
        ("", ["taint '' has '' where a key was expected", GOOD]),
        ("k--", ["taint key 'k-' must begin and end", "for example 'zone'"]),
        ("k:NoSchedul-", ["taint effect 'NoSchedul' is unknown (did you mean 'NoSchedule'?)", "good values are"]),
        ("k=v w:NoSchedule", ["the value of taint 'k', 'v w' contains ' '", "for example 'us-west4-a'"]),
        (3, ["taint must be given as text such as 'gpu_node=true:NoSchedule'", "not 3"]),
    ],
)
def test_a_bad_change_of_taints_is_refused(text: Any, parts: list[str]) -> None:
    with refused(*parts):
        parse_taint_change(text)


def test_a_change_that_sets_a_taint_has_that_taint() -> None:
    assert TaintChange("k", "v", NO_EXECUTE).taint == Taint("k", "v", NO_EXECUTE)
    assert TaintChange("k").taint == Taint("k")
    assert str(TaintChange("k")) == "k:NoSchedule"
    assert TaintChange("k", removes=True).taint is None


NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,5}[A-Za-z0-9])?", fullmatch=True)
VALUES = st.one_of(st.just(""), NAMES)
TAINTS = st.builds(Taint, NAMES, VALUES, st.sampled_from(Effect))
CHANGES = st.one_of(
    TAINTS.map(lambda taint: TaintChange(taint.key, taint.value, taint.effect)),
    st.builds(TaintChange, NAMES, st.one_of(st.none(), VALUES), st.sampled_from([None, *Effect]), st.just(True)),
)


@given(
    st.lists(TAINTS, max_size=4, unique_by=lambda taint: (taint.key, taint.effect)), st.sampled_from([",", " ", ", "])
)
def test_printed_taints_can_be_parsed_again(taints: list[Taint], separator: str) -> None:
    assert parse_taints(separator.join(map(taint_text, taints))) == tuple(taints)
    assert parse_taints(separator.join(map(str, taints))) == tuple(taints)


@given(CHANGES)
def test_a_printed_change_can_be_parsed_again(change: TaintChange) -> None:
    assert parse_taint_change(str(change)) == change
