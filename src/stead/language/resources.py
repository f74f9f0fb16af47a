"""Exact amounts of resources.

Rule: an amount is a Python int in units of 1/10000, as in Ray. Decisions never add floats: text and floats from users
are converted to units here.
"""

from __future__ import annotations

import math
import re
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, overload

from stead.errors import Invalid

T = TypeVar("T")

Amount: TypeAlias = int | float | str | Decimal
"""An amount as you write it: 2, 0.5, ``"500m"`` or ``"2Gi"``."""

UNIT = 10_000
"""Units in one whole: 1 CPU is 10000 units."""

AMOUNT_MAX = 2**62
"""The largest amount in units: the sum of two still fits an int64."""

CPU, MEMORY, GPU = "CPU", "memory", "GPU"

DEVICES = frozenset({GPU, "TPU", "NPU", "HPU", "neuron_cores"})
"""Resources that are devices: an amount below 1 is a share of one device, an amount above 1 is whole devices."""


def usable(resource: str, units: int) -> int:
    """How much of a capacity work can use: only whole devices."""
    return units - units % UNIT if resource in DEVICES else units


def times_in(resource: str, capacity: int, need: int) -> int:
    """How often `need` fits a capacity that is not in use. A share of a device does not span two devices."""
    if resource in DEVICES and need < UNIT:
        return capacity // UNIT * (UNIT // need)
    return capacity // need


BYTE_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))

_PAIR = re.compile(r"\s*([^=:,\s{}]+)\s*[=:]\s*([^=:,\s{}]+)\s*")
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?P<suffix>[eE][+-]?[0-9]{1,3}|[KMGTPE]i|[numkMGTPE])?",
    re.ASCII,
)
_SUFFIX = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
_SUFFIX |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)}
_SUFFIX |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}


def units(amount: object, what: str = "an amount", most: int | None = None) -> int:
    """`amount` in units of 1/10000: an int, a float, or Kubernetes text such as ``500m``, ``2Gi``, ``1e3``.

    Floats are rounded to the nearest unit. Text is exact and rounded up to a unit, as in Kubernetes. An amount above
    `AMOUNT_MAX` is refused; with `most`, everything above counts as `most`.
    """
    if isinstance(amount, bool) or not isinstance(amount, int | float | str | Decimal):
        raise Invalid(f"{what} must be a number or text such as '500m' or '2Gi', not {amount!r}")
    if isinstance(amount, int):
        result = amount * UNIT
    elif isinstance(amount, float):
        if not math.isfinite(amount):
            raise Invalid(f"{what} must be a finite number such as 0.5, not {amount!r}")
        result = round(Decimal(repr(amount)) * UNIT)
        if amount > 0 and result == 0:
            raise Invalid(f"{what} is {amount!r}, but the smallest amount is 0.0001")
    else:
        found = _from_text(str(amount))
        if found is None:
            raise Invalid(
                f"{what} {str(amount)!r} is not a quantity; good values are '2', '0.5', '500m', '2Gi' and '1e3'"
            )
        result = found
    if result < 0:
        raise Invalid(f"{what} must not be negative, but is {amount!r}; a good value is 0.5")
    if most is not None:
        return min(result, most)
    if result > AMOUNT_MAX:
        raise Invalid(f"{what} is {amount!r}, but the largest amount is {AMOUNT_MAX // UNIT}")
    return result


@lru_cache(4096)
def _from_text(text: str) -> int | None:
    """Units, or None if it is not a quantity. A cluster uses few different texts, and thousands of times."""
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        return None
    number, suffix = Decimal(found["number"]), found["suffix"] or ""
    if suffix in _SUFFIX:
        number *= _SUFFIX[suffix]
    elif suffix:
        number *= Decimal(10) ** int(suffix[1:])
    return int((number * UNIT).to_integral_value(rounding=ROUND_CEILING))


def text(amount: int) -> str:
    """Units as people write them: ``2``, ``0.5``."""
    whole, rest = divmod(amount, UNIT)
    return f"{whole}.{rest:04d}".rstrip("0") if rest else str(whole)


def amount_text(name: str, amount: int) -> str:
    """Units of a resource in a sentence: ``2 CPU``, ``0.5 GPU``, ``2 GiB memory``."""
    return f"{_quantity(name, amount)} {name}"


def quantity_text(name: str, amount: float) -> str:
    """An amount (not units) without the resource name: ``0.5``, ``12,000``, ``1.16 GiB``."""
    return _quantity(name, round(amount * UNIT))


def _quantity(name: str, amount: int) -> str:
    """Bytes get two decimals, rounded up, so that a suggested amount is enough."""
    if amount < 0:
        return f"-{_quantity(name, -amount)}"
    for unit, size in BYTE_UNITS if is_bytes(name) else ():
        if amount >= size * UNIT:
            return f"{-(-amount * 100 // (size * UNIT)) / 100:.12g} {unit}"
    whole, point, rest = text(amount).partition(".")
    return f"{int(whole):,}{point}{rest}" if amount >= 10_000 * UNIT else f"{whole}{point}{rest}"


def amounts_text(amounts: Mapping[str, float]) -> str:
    """``8 CPU, 1 GPU, 64 GiB memory``, from amounts (not units); CPU, GPU and memory come first."""
    return ", ".join(f"{quantity_text(name, amounts[name])} {name}" for name in in_order(amounts)) or "nothing"


def is_bytes(name: str) -> bool:
    """Whether a resource is counted in bytes."""
    return "memory" in name or name == "ephemeral-storage" or name.startswith("hugepages-")


def in_order(names: Iterable[str]) -> list[str]:
    """CPU, GPU and memory first, then the others by name."""
    return sorted(names, key=lambda name: (name != CPU, name != GPU, name != MEMORY, name))


class Resources(Mapping[str, int]):
    """An immutable, hashable map from the name of a resource to its amount in units of 1/10000.

    Use `Resources.of` for input from users; the constructor does not check its argument. Zeros are left out.

    Args:
        amounts: Units by name.

    Example:
        ```python
        Resources.of({"CPU": 2, "memory": "2Gi"})["CPU"]  # 20000
        ```
    """

    __slots__ = ("_hash", "_map")

    def __init__(self, amounts: Mapping[str, int] | None = None) -> None:
        self._map: dict[str, int] = {name: n for name, n in sorted((amounts or {}).items()) if n}
        self._hash: int | None = None

    @classmethod
    def of(cls, amounts: Mapping[str, Amount] | None = None, /, **more: Amount) -> Resources:
        """Resources from amounts as people write them.

        Args:
            amounts: Amounts by name, for example ``{"GPU": 0.5}``.
            **more: More amounts, for example ``CPU="500m", memory="2Gi"``.

        Returns:
            The resources, in units.

        Raises:
            Invalid: A name is empty, or an amount is not a number of at least 0.

        Example:
            ```python
            Resources.of({"GPU": 0.5}, CPU="500m", memory="2Gi")
            ```
        """
        given = {**(amounts or {}), **more}
        for name in given:
            if not isinstance(name, str) or not name:
                raise Invalid(f"resource name {name!r} must be a non-empty string, for example 'CPU'")
        return cls({name: units(amount, f"the amount of {name!r}") for name, amount in given.items()})

    def __getitem__(self, name: str) -> int:
        return self._map[name]

    @overload
    def get(self, name: str, /) -> int: ...
    @overload
    def get(self, name: str, default: int, /) -> int: ...
    @overload
    def get(self, name: str, default: T, /) -> int | T: ...
    def get(self, name: str, default: object = 0, /) -> object:
        """The units of the resource `name`, or `default` (0) if there are none."""
        return self._map.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._map)

    def __len__(self) -> int:
        return len(self._map)

    # Mapping has these too, but far slower.

    def __contains__(self, name: object) -> bool:
        return name in self._map

    def keys(self) -> KeysView[str]:
        """The names of the resources, sorted."""
        return self._map.keys()

    def items(self) -> ItemsView[str, int]:
        """Names with their units, sorted by name."""
        return self._map.items()

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self._map.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Resources) and self._map == other._map)

    def __add__(self, other: Resources) -> Resources:
        return Resources({name: self.get(name) + other.get(name) for name in {*self, *other}})

    def __reduce__(self) -> tuple[Any, ...]:
        return (Resources, (self._map,))

    def __repr__(self) -> str:
        return f"Resources({self._map!r})"

    def __str__(self) -> str:
        """``8 CPU, 1 GPU, 64 GiB memory``, for people. Use `as_written` for text that can be parsed again."""
        return ", ".join(amount_text(name, self._map[name]) for name in in_order(self._map)) or "nothing"


NOTHING = Resources()


def parse_resources(given: str, what: str = "amounts") -> Resources:
    """Amounts from text: ``CPU=8,GPU=0.5,memory=64Gi``, ``CPU: 8, GPU: 1`` or ``{CPU: 8}``."""
    found: dict[str, str] = {}
    for part in filter(str.strip, given.strip().removeprefix("{").removesuffix("}").split(",")):
        match = _PAIR.fullmatch(part)
        if match is None or match[1] in found:
            raise Invalid(f"{what} {given!r} has the part {part.strip()!r}; it must be like CPU=8,GPU=1,memory=64Gi")
        found[match[1]] = match[2]
    if not found:
        raise Invalid(f"{what} {given!r} names no resource; it must be like CPU=8,GPU=1,memory=64Gi")
    try:
        return Resources.of(found)
    except Invalid as error:
        raise Invalid(f"{what} {given!r}: {error}") from None


def as_written(resources: Resources) -> dict[str, int | float | str]:
    """The exact amounts, for YAML and JSON: ``{CPU: 8, GPU: 0.5, memory: 64Gi}``."""
    return {name: _exact(name, resources[name]) for name in in_order(resources)}


def _exact(name: str, amount: int) -> int | float | str:
    for unit, size in BYTE_UNITS if is_bytes(name) else ():
        if amount % (size * UNIT) == 0:
            return f"{amount // (size * UNIT)}{unit[:-1]}"
    if amount % UNIT == 0:
        return amount // UNIT
    return amount / UNIT if Decimal(repr(amount / UNIT)) * UNIT == amount else text(amount)
