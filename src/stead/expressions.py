"""One condition on one label, in the names of the seeds: hard or soft, and what a soft one is worth.

Rule: an expression does not know whose label it means, a node's or other work's; the strategy around it does.
Spellings that the seeds use, slips included, are accepted; one that could mean two things is refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stead.asks import ASK_ID, WEIGHT_MAX, WEIGHT_MIN
from stead.errors import Invalid, did_you_mean
from stead.labelling import Requirement, check_key
from stead.selectors import check_wanted, wanted_number

ACTOR_ID = "actor_id"
"""The seeds' key for the identity of other work; `ASK_ID` in the canonical form."""


class LabelMatchOperator(StrEnum):
    """The operators of a label expression."""

    IN = "IN"
    NOT_IN = "NOT_IN"
    EXISTS = "EXISTS"
    DOES_NOT_EXIST = "DOES_NOT_EXIST"
    GT = "GT"
    LT = "LT"
    Exist = "EXISTS"

    @staticmethod
    def of(name: object) -> LabelMatchOperator:
        """The operator of that name, in any case and spelling: ``IN``, ``NotIn``, ``not_in``, ``Exist``."""
        folded = str(name).lower().replace("_", "").replace("-", "").replace(" ", "")
        for spelling, operator in LabelMatchOperator.__members__.items():
            if spelling.lower().replace("_", "") == folded:
                return operator
        known = [operator.value for operator in LabelMatchOperator]
        hint = did_you_mean(str(name), known)
        raise Invalid(f"label operator {name!r} is unknown{hint}; good values are {', '.join(known)}")


APART = (LabelMatchOperator.NOT_IN, LabelMatchOperator.DOES_NOT_EXIST)
_WITH_LIST = (LabelMatchOperator.IN, LabelMatchOperator.NOT_IN)
_WITHOUT_VALUES = (LabelMatchOperator.EXISTS, LabelMatchOperator.DOES_NOT_EXIST)


@dataclass(frozen=True, slots=True, init=False)
class LabelMatchExpression:
    """One condition on one label, hard or soft; a soft one is worth `weight`. `match_operator` and `is_soft` are
    other names of the fields."""

    key: str
    operator: LabelMatchOperator
    values: tuple[str, ...]
    soft: bool
    weight: int

    def __init__(
        self,
        key: str,
        operator: LabelMatchOperator | str | None = None,
        values: Iterable[str | int] | str | int | None = None,
        soft: bool | None = None,
        *,
        match_operator: LabelMatchOperator | str | None = None,
        is_soft: bool | None = None,
        weight: int | None = None,
    ) -> None:
        check_key(key)
        given = _one_of(key, operator=operator, match_operator=match_operator)
        if given is None:
            raise Invalid(f"the expression on label {key!r} has no operator; give one, for example 'IN'")
        chosen = LabelMatchOperator.of(given)
        softness = checked_softness(f"the expression on label {key!r}", _one_of(key, soft=soft, is_soft=is_soft))
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "operator", chosen)
        object.__setattr__(self, "values", _checked_values(key, chosen, values))
        object.__setattr__(self, "soft", softness)
        object.__setattr__(self, "weight", _checked_weight(key, softness, weight))

    @property
    def match_operator(self) -> LabelMatchOperator:
        return self.operator

    @property
    def is_soft(self) -> bool:
        return self.soft

    @property
    def requirement(self) -> Requirement:
        """What it requires of the label, hard or soft."""
        match self.operator:
            case LabelMatchOperator.IN:
                return Requirement.is_in(self.key, *self.values)
            case LabelMatchOperator.NOT_IN:
                return Requirement.not_in(self.key, *self.values)
            case LabelMatchOperator.EXISTS:
                return Requirement.exists(self.key)
            case LabelMatchOperator.DOES_NOT_EXIST:
                return Requirement.does_not_exist(self.key)
            case LabelMatchOperator.GT:
                return Requirement.greater_than(self.key, int(self.values[0]))
        return Requirement.less_than(self.key, int(self.values[0]))


def _one_of(key: str, **spellings: Any) -> Any:
    """The value given under one of two names of the same thing, or None."""
    given = {name: value for name, value in spellings.items() if value is not None}
    if len(given) > 1:
        both, good = "= and ".join(given), next(f"{name}={value!r}" for name, value in given.items())
        raise Invalid(f"the expression on label {key!r} has both {both}=; give one of them, for example {good}")
    return next(iter(given.values()), None)


def checked_softness(what: str, soft: object) -> bool:
    if soft is None or isinstance(soft, bool):
        return bool(soft)
    raise Invalid(
        f"{what} has is_soft={soft!r}, which must be True or False; several values go in a list, for example ['a', 'b']"
    )


def _checked_weight(key: str, soft: bool, weight: object) -> int:
    if weight is None:
        return WEIGHT_MAX
    if isinstance(weight, bool) or not isinstance(weight, int) or not WEIGHT_MIN <= weight <= WEIGHT_MAX:
        raise Invalid(
            f"the weight of the expression on label {key!r} must be a whole number from {WEIGHT_MIN} to {WEIGHT_MAX}, "
            f"for example 50, but is {weight!r}"
        )
    if not soft:
        raise Invalid(
            f"the expression on label {key!r} has weight={weight} but is hard, and only soft ones are weighed; write "
            f"for example is_soft=True, weight=50"
        )
    return weight


def _checked_values(key: str, operator: LabelMatchOperator, values: object) -> tuple[str, ...]:
    several = as_list(key, values)
    if operator in _WITHOUT_VALUES:
        if several:
            raise Invalid(f"operator {operator} on label {key!r} takes no values, but has {values!r}; use [] instead")
        return ()
    if operator in _WITH_LIST:
        if not several:
            raise Invalid(f"operator {operator} on label {key!r} needs at least one value, for example ['A100']")
        return tuple(_checked_wanted(key, value) for value in several)
    if len(several) != 1:
        raise Invalid(f"operator {operator} on label {key!r} needs exactly one number, for example 3, not {values!r}")
    return (str(wanted_number(key, several[0])),)


def as_list(key: str, values: object) -> list[Any]:
    if values is None:
        return []
    if isinstance(values, str | int | float):
        return [values]
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise Invalid(f"the values of label {key!r} must be a list such as ['A100', 'P100'], not {values!r}")
    return sorted(values) if isinstance(values, set | frozenset) else list(values)


def _checked_wanted(key: str, value: Any) -> str:
    # Ids of actors and tasks are not labels that a user chose, so label syntax does not bind them.
    if key in (ACTOR_ID, ASK_ID) and isinstance(value, str) and value:
        return value
    return check_wanted(key, value)


def label_in(
    key: str, values: Iterable[str] | str, is_soft: bool = False, weight: int | None = None
) -> LabelMatchExpression:
    """The label is one of the values."""
    return LabelMatchExpression(key, LabelMatchOperator.IN, values, is_soft, weight=weight)


def label_not_in(
    key: str, values: Iterable[str] | str, is_soft: bool = False, weight: int | None = None
) -> LabelMatchExpression:
    """The label is none of the values, or absent."""
    return LabelMatchExpression(key, LabelMatchOperator.NOT_IN, values, is_soft, weight=weight)


def label_exists(key: str, is_soft: bool = False, weight: int | None = None) -> LabelMatchExpression:
    """The label is there, whatever its value."""
    return LabelMatchExpression(key, LabelMatchOperator.EXISTS, None, is_soft, weight=weight)


def label_does_not_exist(key: str, is_soft: bool = False, weight: int | None = None) -> LabelMatchExpression:
    """The label is absent."""
    return LabelMatchExpression(key, LabelMatchOperator.DOES_NOT_EXIST, None, is_soft, weight=weight)


label_exist = label_exists
