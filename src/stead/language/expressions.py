"""Label match expressions: one condition on one label, hard or soft.

The names are those of the node-affinity and actor-affinity proposals for Ray.

Rule: an expression does not say whether the label belongs to a node or to other work; the strategy that contains it
does. `In`, `NotIn`, `Exists` and `DoesNotExist` do not contain the key either: in tolerations and in Ray's label
conditions, the key is given separately. All spellings in the proposals are accepted, typos included; an ambiguous one
is refused in one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stead.errors import Invalid, did_you_mean
from stead.language.arguments import parse_effect
from stead.language.asks import ASK_ID, WEIGHT_MAX, WEIGHT_MIN
from stead.language.labels import Requirement, check_key, check_value
from stead.language.selectors import check_wanted, wanted_number
from stead.language.taints import Effect

ACTOR_ID = "actor_id"
"""The key for the id of other work in the actor-affinity proposal. The canonical form has `ASK_ID` instead."""


class LabelMatchOperator(StrEnum):
    """The operators of a label expression.

    Attributes:
        IN: The value is one of several.
        NOT_IN: The value is none of several, or the label is absent.
        EXISTS: The label is present.
        DOES_NOT_EXIST: The label is absent.
        GT: The value is a number above the given one.
        LT: The value is a number below the given one.
        Exist: Another name for `EXISTS`.

    Example:
        ```python
        LabelMatchExpression("gpu_type", LabelMatchOperator.IN, ["A100"])
        ```
    """

    IN = "IN"
    NOT_IN = "NOT_IN"
    EXISTS = "EXISTS"
    DOES_NOT_EXIST = "DOES_NOT_EXIST"
    GT = "GT"
    LT = "LT"
    Exist = "EXISTS"

    @staticmethod
    def of(name: object) -> LabelMatchOperator:
        """The operator called `name`, in any case and spelling: ``IN``, ``NotIn``, ``not_in``, ``Exist``."""
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
    """One condition on one label, for `node_affinity` and `actor_affinity`. `label_in`, `label_exists` etc. create one.

    Attributes:
        key: The key of the label.
        operator: How to compare.
        values: What to compare with.
        soft: Whether it is a preference.
        weight: How much a soft expression counts, from 1 to 100.

    Args:
        key: The key of the label.
        operator: How to compare, for example ``"IN"``.
        values: What to compare with: one value or several.
        soft: Whether it is a preference.
        match_operator: Another name for `operator`.
        is_soft: Another name for `soft`.
        weight: How much a soft expression counts; 100 if not given.

    Raises:
        Invalid: The key, operator, values or weight are not valid.

    Example:
        ```python
        LabelMatchExpression("gpu_type", "IN", ["A100", "P100"], is_soft=True, weight=50)
        ```
    """

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
        """Another name for `operator`."""
        return self.operator

    @property
    def is_soft(self) -> bool:
        """Another name for `soft`."""
        return self.soft

    @property
    def requirement(self) -> Requirement:
        """The requirement on the label, whether hard or soft."""
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
    """The value given under one of two aliases, or None."""
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
            f"the expression on label {key!r} has weight={weight} but is hard, and only soft ones have a weight; write "
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
    # Ids of actors and tasks are not user-chosen labels, so they need not follow label syntax.
    if key in (ACTOR_ID, ASK_ID) and isinstance(value, str) and value:
        return value
    return check_wanted(key, value)


def label_in(
    key: str, values: Iterable[str] | str, is_soft: bool = False, weight: int | None = None
) -> LabelMatchExpression:
    """The label has one of the values.

    Args:
        key: The key of the label.
        values: One value or several.
        is_soft: Whether it is a preference: other nodes score lower, but are not refused.
        weight: How much a soft expression counts, from 1 to 100; 100 if not given.

    Returns:
        The expression, for `node_affinity` or `actor_affinity`.

    Raises:
        Invalid: The key, a value or the weight is not valid.

    Example:
        ```python
        node_affinity(label_in("gpu_type", ["A100", "P100"]))
        ```
    """
    return LabelMatchExpression(key, LabelMatchOperator.IN, values, is_soft, weight=weight)


def label_not_in(
    key: str, values: Iterable[str] | str, is_soft: bool = False, weight: int | None = None
) -> LabelMatchExpression:
    """The label has none of the values, or is absent.

    Args:
        key: The key of the label.
        values: One value or several.
        is_soft: Whether it is a preference: other nodes score lower, but are not refused.
        weight: How much a soft expression counts, from 1 to 100; 100 if not given.

    Returns:
        The expression, for `node_affinity` or `actor_affinity`.

    Raises:
        Invalid: The key, a value or the weight is not valid.

    Example:
        ```python
        node_affinity(label_not_in("zone", ["a"]))
        ```
    """
    return LabelMatchExpression(key, LabelMatchOperator.NOT_IN, values, is_soft, weight=weight)


def label_exists(key: str, is_soft: bool = False, weight: int | None = None) -> LabelMatchExpression:
    """The label is present, with any value.

    Args:
        key: The key of the label.
        is_soft: Whether it is a preference: other nodes score lower, but are not refused.
        weight: How much a soft expression counts, from 1 to 100; 100 if not given.

    Returns:
        The expression, for `node_affinity` or `actor_affinity`.

    Raises:
        Invalid: The key, a value or the weight is not valid.

    Example:
        ```python
        node_affinity(label_exists("gpu_type", is_soft=True))
        ```
    """
    return LabelMatchExpression(key, LabelMatchOperator.EXISTS, None, is_soft, weight=weight)


def label_does_not_exist(key: str, is_soft: bool = False, weight: int | None = None) -> LabelMatchExpression:
    """The label is absent.

    Args:
        key: The key of the label.
        is_soft: Whether it is a preference: other nodes score lower, but are not refused.
        weight: How much a soft expression counts, from 1 to 100; 100 if not given.

    Returns:
        The expression, for `node_affinity` or `actor_affinity`.

    Raises:
        Invalid: The key, a value or the weight is not valid.

    Example:
        ```python
        node_affinity(label_does_not_exist("spot"))
        ```
    """
    return LabelMatchExpression(key, LabelMatchOperator.DOES_NOT_EXIST, None, is_soft, weight=weight)


label_exist = label_exists


@dataclass(frozen=True, slots=True, init=False)
class _Match:
    """A condition on a value. Its key is given separately, as the key of a map.

    Attributes:
        values: The values.
        effect: The effect of the taint, in tolerations only.
        seconds: How long running work stays under a no-execute taint, in tolerations only.
    """

    values: tuple[str, ...]
    effect: Effect | None
    seconds: float | None

    def __init__(
        self, *values: str | Iterable[str], effect: Effect | str | None = None, seconds: float | None = None
    ) -> None:
        name = type(self).__name__
        listed = tuple(values[0]) if len(values) == 1 and isinstance(values[0], list | tuple | set) else values
        if not listed and isinstance(self, In | NotIn):
            raise Invalid(f"{name}() needs at least one value, for example {name}('A100')")
        kind = None if effect is None else parse_effect(effect)
        if seconds is not None:
            _check_seconds(seconds, kind)
        object.__setattr__(self, "values", tuple(check_value(value, f"the value of {name},") for value in listed))
        object.__setattr__(self, "effect", kind)
        object.__setattr__(self, "seconds", None if seconds is None else float(seconds))


def _check_seconds(seconds: object, effect: Effect | None) -> None:
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not (math.isfinite(seconds) and seconds >= 0)
    ):
        raise Invalid(f"toleration seconds {seconds!r} must be a number, 0 or more, for example 300")
    if effect not in (None, Effect.NO_EXECUTE):
        raise Invalid(f"toleration seconds {seconds!r} have no effect with {effect}; use effect='no-execute'")


class In(_Match):
    """The value is one of these.

    Args:
        *values: The values, or one list of them.
        effect: For tolerations: the effect of the taint, for example ``"no-execute"``; None means every effect.
        seconds: For tolerations: how long running work stays under a no-execute taint; None means forever.

    Raises:
        Invalid: A value, the effect or the seconds are not valid.

    Example:
        ```python
        train.options(tolerations={"gpu_type": In("A100", "P100")}).remote()
        ```
    """

    __slots__ = ()


class NotIn(_Match):
    """The value is none of these.

    Args:
        *values: The values, or one list of them.
        effect: For tolerations: the effect of the taint, for example ``"no-execute"``; None means every effect.
        seconds: For tolerations: how long running work stays under a no-execute taint; None means forever.

    Raises:
        Invalid: A value, the effect or the seconds are not valid.

    Example:
        ```python
        train.options(tolerations={"team": NotIn("red")}).remote()
        ```
    """

    __slots__ = ()


class Exists(_Match):
    """The key is present, with any value.

    Args:
        effect: For tolerations: the effect of the taint, for example ``"no-execute"``; None means every effect.
        seconds: For tolerations: how long running work stays under a no-execute taint; None means forever.

    Raises:
        Invalid: A value, the effect or the seconds are not valid.

    Example:
        ```python
        train.options(tolerations={"gpu_node": Exists()}).remote()
        ```
    """

    __slots__ = ()

    def __init__(self, effect: Effect | str | None = None, seconds: float | None = None) -> None:
        super().__init__(effect=effect, seconds=seconds)


class DoesNotExist(_Match):
    """The key is absent. It is for labels, not for tolerations.

    Example:
        ```python
        node_labels({"spot": DoesNotExist()})
        ```
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()


Exist = Exists
