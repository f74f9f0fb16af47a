"""Amounts of resources, exact.

Rule: an amount is a Python int in units of 1/10000, as in Ray. Nothing in a decision adds floats.
Text and floats are turned into units here, once, when they arrive.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

from stead.errors import Invalid

UNIT = 10_000
"""Units in one whole: 1 CPU is 10000 units."""

AMOUNT_MAX = 2**62
"""The greatest amount in units: sums of two still fit an int64 column."""

CPU, MEMORY, GPU = "CPU", "memory", "GPU"

DEVICES = frozenset({GPU, "TPU", "NPU", "HPU", "neuron_cores"})
"""Resources that come as whole devices: a share below 1 lies on one device, more than 1 is whole devices."""

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?P<suffix>[eE][+-]?[0-9]{1,3}|[KMGTPE]i|[numkMGTPE])?",
    re.ASCII,
)
_SUFFIX = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
_SUFFIX |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)}
_SUFFIX |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}


def units(amount: object, what: str = "an amount") -> int:
    """`amount` in units of 1/10000: an int, a float, or Kubernetes text such as ``500m``, ``2Gi``, ``1e3``.

    Floats are taken to the nearest unit; text is exact, and what is finer than a unit is rounded up,
    as Kubernetes rounds.
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
        result = _from_text(str(amount), what)
    if result < 0:
        raise Invalid(f"{what} must not be negative, but is {amount!r}; a good value is 0.5")
    if result > AMOUNT_MAX:
        raise Invalid(f"{what} is {amount!r}, but the greatest amount is {AMOUNT_MAX // UNIT}")
    return result


def _from_text(text: str, what: str) -> int:
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        raise Invalid(f"{what} {text!r} is not a quantity; good values are '2', '0.5', '500m', '2Gi' and '1e3'")
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


def memory_text(amount: int) -> str:
    """Units of bytes as ``2Gi`` or ``1.16Gi``: two decimals, rounded up, so that what is advised is enough."""
    size, suffixes = UNIT, ["Ti", "Gi", "Mi", "Ki", ""]
    while amount >= size * 1024 and len(suffixes) > 1:
        size *= 1024
        suffixes.pop()
    hundredths = -(-amount * 100 // size)
    return f"{hundredths / 100:.12g}{suffixes[-1]}"


class Resources(Mapping[str, int]):
    """An immutable, hashable map from resource name to units; zeros are not kept.

    Made from outside input by `Resources.of`; the plain constructor takes units and trusts its caller.
    """

    __slots__ = ("_hash", "_map")

    def __init__(self, amounts: Mapping[str, int] | None = None) -> None:
        self._map: dict[str, int] = {name: n for name, n in sorted((amounts or {}).items()) if n}
        self._hash: int | None = None

    @classmethod
    def of(cls, amounts: Mapping[str, Any] | None = None, /, **more: Any) -> Resources:
        """From what a user writes: ``Resources.of({"GPU": 0.5}, CPU="500m", memory="2Gi")``."""
        given = {**(amounts or {}), **more}
        for name in given:
            if not isinstance(name, str) or not name:
                raise Invalid(f"resource name {name!r} must be a non-empty string, for example 'CPU'")
        return cls({name: units(amount, f"the amount of {name!r}") for name, amount in given.items()})

    def __getitem__(self, name: str) -> int:
        return self._map[name]

    def get(self, name: str, default: Any = 0) -> Any:
        return self._map.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._map)

    def __len__(self) -> int:
        return len(self._map)

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
        return ", ".join(amount_text(name, amount) for name, amount in self._map.items()) or "nothing"


NOTHING = Resources()


def amount_text(name: str, amount: int) -> str:
    """``2 CPU``, ``0.5 GPU``, ``2Gi memory``."""
    return f"{memory_text(amount) if name == MEMORY else text(amount)} {name}"
