"""Amounts of resources: exact, in units of 1/10000, from user input."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.language.resources import (
    AMOUNT_MAX,
    NOTHING,
    UNIT,
    Resources,
    amount_text,
    amounts_text,
    as_written,
    parse_resources,
    quantity_text,
    text,
    units,
)
from tests.language.sentences import refused


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (0, 0),
        (2, 20_000),
        (0.5, 5_000),
        (0.1, 1_000),
        (0.0001, 1),
        (0.00005000001, 1),
        (1.00004, 10_000),
        (1e3, 10_000_000),
        (Decimal("0.25"), 2_500),
        (Decimal("1E+3"), 10_000_000),
        ("2", 20_000),
        (" 2 ", 20_000),
        ("+2", 20_000),
        ("2.", 20_000),
        (".5", 5_000),
        ("0.5", 5_000),
        ("500m", 5_000),
        ("1m", 10),
        ("0.1m", 1),
        ("100u", 1),
        ("1u", 1),
        ("1n", 1),
        ("0", 0),
        ("-0", 0),
        ("0n", 0),
        ("1k", 1000 * UNIT),
        ("1M", 10**6 * UNIT),
        ("1G", 10**9 * UNIT),
        ("1T", 10**12 * UNIT),
        ("1Ki", 1024 * UNIT),
        ("1Mi", 1024**2 * UNIT),
        ("2Gi", 2 * 1024**3 * UNIT),
        ("1.5Gi", 3 * 1024**3 * UNIT // 2),
        ("1Ti", 1024**4 * UNIT),
        ("1e3", 1000 * UNIT),
        ("1E3", 1000 * UNIT),
        ("1e-3", 10),
        ("5e+1", 50 * UNIT),
        ("1e-999", 1),
        (AMOUNT_MAX // UNIT, AMOUNT_MAX // UNIT * UNIT),
        ("0.00001", 1),
        ("1.00001", 10_001),
    ],
)
def test_an_amount_in_units(amount: object, expected: int) -> None:
    assert units(amount) == expected


@pytest.mark.parametrize(
    ("amount", "parts"),
    [
        (True, ["CPU must be a number or text such as '500m' or '2Gi', not True"]),
        (None, ["CPU must be a number or text such as '500m' or '2Gi', not None"]),
        ([1], ["CPU must be a number or text", "not [1]"]),
        ("", ["CPU '' is not a quantity; good values are '2', '0.5', '500m', '2Gi' and '1e3'"]),
        ("two", ["CPU 'two' is not a quantity", "'500m'"]),
        ("2gi", ["CPU '2gi' is not a quantity", "'2Gi'"]),
        ("2 Gi", ["CPU '2 Gi' is not a quantity", "'2Gi'"]),
        ("2Ki3", ["CPU '2Ki3' is not a quantity"]),
        ("1e", ["CPU '1e' is not a quantity"]),
        ("1e1000", ["CPU '1e1000' is not a quantity"]),
        (".", ["CPU '.' is not a quantity"]),
        ("٣", ["CPU '٣' is not a quantity"]),
        (Decimal("NaN"), ["CPU 'NaN' is not a quantity"]),
        (float("nan"), ["CPU must be a finite number such as 0.5, not nan"]),
        (float("inf"), ["CPU must be a finite number such as 0.5, not inf"]),
        (-1, ["CPU must not be negative, but is -1", "a good value is 0.5"]),
        (-0.5, ["CPU must not be negative, but is -0.5", "a good value is 0.5"]),
        ("-500m", ["CPU must not be negative, but is '-500m'", "a good value is 0.5"]),
        (0.00004, ["CPU is 4e-05, but the smallest amount is 0.0001"]),
        (AMOUNT_MAX // UNIT + 1, ["but the largest amount is 461168601842738"]),
        ("1e999", ["CPU is '1e999', but the largest amount is 461168601842738"]),
        ("1Ei", ["CPU is '1Ei', but the largest amount is 461168601842738"]),
    ],
)
def test_what_is_not_an_amount_is_refused(amount: object, parts: list[str]) -> None:
    with refused(*parts):
        units(amount, "CPU")


@pytest.mark.parametrize(
    ("amount", "written"),
    [(0, "0"), (1, "0.0001"), (5_000, "0.5"), (10_000, "1"), (12_500, "1.25"), (100_000, "10"), (10_100, "1.01")],
)
def test_units_print_as_people_write_them(amount: int, written: str) -> None:
    assert text(amount) == written
    assert units(written) == amount


@pytest.mark.parametrize(
    ("size", "written"),
    [
        (0, "0"),
        (1, "1"),
        (1023, "1023"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1024**2, "1 MiB"),
        (1023 * 1024**2, "1023 MiB"),
        (2 * 1024**3, "2 GiB"),
        (1024**4, "1 TiB"),
        (5000 * 1024**4, "5000 TiB"),
    ],
)
def test_memory_prints_in_binary_units(size: int, written: str) -> None:
    for name in ("memory", "object_store_memory", "ephemeral-storage"):
        assert quantity_text(name, size) == written
        assert amount_text(name, size * UNIT) == f"{written} {name}"


@pytest.mark.parametrize(
    ("amount", "written"),
    [(0, "0"), (0.5, "0.5"), (9_999.5, "9999.5"), (10_000, "10,000"), (179_200.25, "179,200.25"), (-1.5, "-1.5")],
)
def test_other_amounts_print_as_numbers(amount: float, written: str) -> None:
    assert quantity_text("CPU", amount) == written


def test_advice_about_memory_is_rounded_up() -> None:
    assert amount_text("memory", 2 * 1024**3 * UNIT + 1) == "2.01 GiB memory"


AMOUNTS = st.dictionaries(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,9}", fullmatch=True) | st.sampled_from(["CPU", "GPU", "memory"]),
    st.integers(1, AMOUNT_MAX) | st.integers(1, 2**18).map(lambda gigabytes: gigabytes * 2**30 * UNIT),
    min_size=1,
).map(Resources)


def text_of(resources: Resources) -> str:
    return ",".join(f"{name}={amount}" for name, amount in as_written(resources).items())


@given(AMOUNTS)
def test_written_resources_can_be_parsed_again(resources: Resources) -> None:
    assert parse_resources(text_of(resources)) == resources
    assert Resources.of(as_written(resources)) == resources


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("CPU=8,GPU=1,memory=64Gi", "CPU=8,GPU=1,memory=64Gi"),
        (" memory = 1536Mi , CPU: 500m, ", "CPU=0.5,memory=1536Mi"),
        ("{CPU: 8, disk: 1e3}", "CPU=8,disk=1000"),
    ],
)
def test_resources_as_people_write_them(said: str, written: str) -> None:
    assert text_of(parse_resources(said)) == written


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ("", ["--add '' names no resource; it must be like CPU=8,GPU=1,memory=64Gi"]),
        ("CPU", ["--add 'CPU' has the part 'CPU'; it must be like CPU=8,GPU=1,memory=64Gi"]),
        ("CPU=1,CPU=2", ["has the part 'CPU=2'"]),
        ("CPU=1=2", ["has the part 'CPU=1=2'"]),
        ("CPU=many", ["--add 'CPU=many': the amount of 'CPU' 'many' is not a quantity"]),
    ],
)
def test_what_is_not_a_list_of_resources_is_refused(said: str, parts: list[str]) -> None:
    with refused(*parts):
        parse_resources(said, "--add")


def test_amounts_in_a_sentence_have_cpu_gpu_and_memory_first_and_keep_zeros() -> None:
    assert amounts_text({"TPU": 0.0, "memory": 2.0**31, "GPU": 0.5, "CPU": 12_000}) == (
        "12,000 CPU, 0.5 GPU, 2 GiB memory, 0 TPU"
    )
    assert amounts_text({}) == "nothing"


@given(st.integers(0, AMOUNT_MAX))
def test_what_is_printed_can_be_parsed_again(amount: int) -> None:
    assert units(text(amount)) == amount


@given(st.floats(0.0001, 1e6))
def test_a_float_is_taken_to_the_nearest_unit(amount: float) -> None:
    assert abs(Decimal(units(amount)) / UNIT - Decimal(repr(amount))) <= Decimal("0.00005")


def test_resources_keep_no_zeros_and_iterate_by_name() -> None:
    resources = Resources.of({"GPU": 0.5, "disk": 0}, CPU="500m", memory="2Gi")
    assert list(resources) == ["CPU", "GPU", "memory"]
    assert len(resources) == 3
    assert resources["CPU"] == resources["GPU"] == 5_000
    assert resources.get("disk") == 0
    assert resources.get("disk", None) is None
    assert "disk" not in resources
    assert str(resources) == "0.5 CPU, 0.5 GPU, 2 GiB memory"
    assert repr(Resources({"CPU": 1})) == "Resources({'CPU': 1})"
    assert str(NOTHING) == "nothing"


def test_equal_resources_are_one_value() -> None:
    resources, same = Resources({"b": 2, "a": 1}), Resources({"a": 1, "b": 2, "c": 0})
    assert resources == same
    assert hash(resources) == hash(same) == hash(same)
    assert resources != Resources({"a": 1})
    assert resources != {"a": 1, "b": 2}
    assert pickle.loads(pickle.dumps(resources)) == resources
    assert Resources() == Resources.of() == Resources.of(None) == NOTHING
    assert resources + Resources({"b": 3, "d": 4}) == Resources({"a": 1, "b": 5, "d": 4})


@pytest.mark.parametrize(
    ("amounts", "parts"),
    [
        ({"": 1}, ["resource name '' must be a non-empty string, for example 'CPU'"]),
        ({3: 1}, ["resource name 3 must be a non-empty string, for example 'CPU'"]),
        ({"CPU": "many"}, ["the amount of 'CPU' 'many' is not a quantity", "'500m'"]),
        ({"CPU": -1}, ["the amount of 'CPU' must not be negative, but is -1", "0.5"]),
    ],
)
def test_a_bad_resource_is_named(amounts: Any, parts: list[str]) -> None:
    with refused(*parts):
        Resources.of(amounts)
