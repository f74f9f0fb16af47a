"""Labels, requirements on labels, and selectors.

Rule: every operator of every dialect (Ray, its proposals, Kubernetes) becomes one canonical `Requirement`, and
requirements combine only as an OR of AND-ed terms. There are no special cases: an empty term matches everything, and a
selector without terms matches nothing. Dialects that differ are translated where they are parsed, never here.
"""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar, overload

from stead.errors import Invalid

T = TypeVar("T")

NAME_LENGTH_MAX = 63
PREFIX_LENGTH_MAX = 253
VALUE_LENGTH_MAX = 63

NODE_ID, NODE_IP, NODE_NAME, RAY_NODE_ID = "node_id", "node_ip", "node_name", "ray.io/node-id"
NODE_ID_KEYS = frozenset({NODE_ID, RAY_NODE_ID})
"""Label keys that hold the node's id; every node has them."""
IDENTITY_KEYS = NODE_ID_KEYS | {NODE_IP, NODE_NAME}
"""Label keys that stead sets and users may not set."""

RESERVED_WORDS = frozenset({"in", "not", "and", "or", "anywhere", "nowhere"})
"""Keywords of the selector language, in any case; a label key with such a name must be quoted."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII)
_INTEGER = re.compile(r"(?P<sign>[+-]?)0*(?P<digits>[0-9]{1,19})", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9._/:-]+", re.ASCII)
_BAD_CHARACTER = re.compile(r"[^A-Za-z0-9._-]", re.ASCII)

OWN_PREFIXES = frozenset({"rare_resource.ray.io", "exist_runtime_env"})
"""Prefixes with an underscore, which DNS names forbid. The proposals for Ray use them and stead sets such keys, so
users may use them too."""


def check_key(key: object, what: str = "label key") -> str:
    """`key` if it is a valid Kubernetes label key: ``zone`` or ``example.com/zone``."""
    if not isinstance(key, str) or not key:
        raise Invalid(f"{what} {key!r} must be a non-empty string, for example 'zone' or 'example.com/zone'")
    prefix, slash, name = key.rpartition("/")
    if slash and prefix not in OWN_PREFIXES and (len(prefix) > PREFIX_LENGTH_MAX or not _PREFIX.fullmatch(prefix)):
        raise Invalid(
            f"{what} {key!r} has the prefix {prefix!r}, which must be a lowercase DNS name of at most "
            f"{PREFIX_LENGTH_MAX} characters, for example 'example.com/zone'"
        )
    if len(name) > NAME_LENGTH_MAX:
        raise Invalid(
            f"{what} {key!r} has a name of {len(name)} characters, but at most {NAME_LENGTH_MAX} are "
            f"allowed, for example 'example.com/zone'"
        )
    if not _NAME.fullmatch(name):
        raise Invalid(f"{what} {key!r} {_what_is_wrong(name)}, for example 'zone' or 'example.com/zone'")
    return key


def check_value(value: object, what: str = "label value") -> str:
    """`value` if it is a valid Kubernetes label value, which may be empty."""
    if not isinstance(value, str):
        raise Invalid(f"{what} {value!r} must be a string, for example {_as_text(value)!r}")
    if value and not _NAME.fullmatch(value):
        raise Invalid(f"{what} {value!r} {_what_is_wrong(value)}, for example 'us-west4-a'")
    if len(value) > VALUE_LENGTH_MAX:
        raise Invalid(
            f"{what} {value!r} has {len(value)} characters, but at most {VALUE_LENGTH_MAX} are allowed, "
            f"for example {value[:20].strip('._-')!r}"
        )
    return value


def _what_is_wrong(name: str) -> str:
    bad = _BAD_CHARACTER.search(name)
    if bad:
        return f"contains {bad.group()!r}, but only letters, digits, '-', '_' and '.' are allowed"
    return "must begin and end with a letter or digit"


def _as_text(value: object) -> str:
    text = str(value).lower()
    return text if isinstance(value, int | float) and _NAME.fullmatch(text) else "A100"


def integer(text: str) -> int | None:
    """A label value as a number, as in Kubernetes: a decimal int64, or None."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    number = int(found["sign"] + found["digits"])
    return number if -(2**63) <= number < 2**63 else None


class Labels(Mapping[str, str]):
    """An immutable, hashable map of labels, sorted by key.

    Use `Labels.checked` for input from users; the constructor does not check its argument.

    Args:
        pairs: Values by key, or pairs of key and value.

    Example:
        ```python
        Labels.checked({"zone": "a", "disk": "ssd"})["zone"]
        ```
    """

    __slots__ = ("_hash", "_map")

    def __init__(self, pairs: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        self._map: dict[str, str] = dict(sorted(dict(pairs).items()))
        self._hash: int | None = None

    @classmethod
    def checked(cls, pairs: Mapping[str, str]) -> Labels:
        """Labels whose keys and values follow Kubernetes' label syntax.

        Args:
            pairs: Values by key.

        Returns:
            The labels.

        Raises:
            Invalid: `pairs` is not a map, or a key or value is not valid.

        Example:
            ```python
            Labels.checked({"example.com/zone": "us-west4-a"})
            ```
        """
        if not isinstance(pairs, Mapping):
            raise Invalid(f"labels must be a map such as {{'zone': 'us-west4-a'}}, not {pairs!r}")
        for key, value in pairs.items():
            check_key(key)
            check_value(value, f"the value of label {key!r},")
        return cls(pairs)

    def changed(self, changes: Mapping[str, str], removed: Iterable[str] = ()) -> Labels:
        """A copy with the labels of `changes` set and those with the keys in `removed` left out."""
        gone = frozenset(removed)
        return Labels({**{k: v for k, v in self._map.items() if k not in gone}, **changes})

    def __getitem__(self, key: str) -> str:
        return self._map[key]

    @overload
    def get(self, key: str, /) -> str | None: ...
    @overload
    def get(self, key: str, default: str, /) -> str: ...
    @overload
    def get(self, key: str, default: T, /) -> str | T: ...
    def get(self, key: str, default: object = None, /) -> object:
        """The value of the label `key`, or `default` if there is none."""
        return self._map.get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._map)

    def __len__(self) -> int:
        return len(self._map)

    # Mapping has these too, but far slower.

    def __contains__(self, key: object) -> bool:
        return key in self._map

    def keys(self) -> KeysView[str]:
        """The keys, sorted."""
        return self._map.keys()

    def items(self) -> ItemsView[str, str]:
        """Keys with their values, sorted by key."""
        return self._map.items()

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self._map.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Labels) and self._map == other._map)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Labels, (self._map,))

    def __repr__(self) -> str:
        return f"Labels({self._map!r})"

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self._map.items())


EMPTY = Labels()


class Operator(StrEnum):
    """The operators that a requirement can be written with."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one label of a node, or of other work, must be. Every operator is stored in this form.

    A label that is present matches if its value is in `values` (with `complement`: is not) and is a number between
    `greater` and `less`, where they are given.

    Attributes:
        key: The key of the label.
        values: The values.
        complement: Whether the value must be none of `values`.
        absent: Whether an absent label matches.
        greater: The value must be a number above this one.
        less: The value must be a number below this one.

    Example:
        ```python
        Requirement.is_in("gpu_type", "A100", "P100").matches({"gpu_type": "A100"})  # True
        ```
    """

    key: str
    values: frozenset[str]
    complement: bool
    absent: bool
    greater: int | None = None
    less: int | None = None

    @staticmethod
    def is_in(key: str, *values: str) -> Requirement:
        """The label `key` has one of `values`."""
        return Requirement(key, frozenset(values), complement=False, absent=False)

    @staticmethod
    def not_in(key: str, *values: str) -> Requirement:
        """The label `key` has none of `values`, or is absent."""
        return Requirement(key, frozenset(values), complement=True, absent=True)

    @staticmethod
    def exists(key: str) -> Requirement:
        """The label `key` is present."""
        return Requirement(key, frozenset(), complement=True, absent=False)

    @staticmethod
    def does_not_exist(key: str) -> Requirement:
        """The label `key` is absent."""
        return Requirement(key, frozenset(), complement=False, absent=True)

    @staticmethod
    def greater_than(key: str, number: int) -> Requirement:
        """The label `key` is a number above `number`."""
        return Requirement(key, frozenset(), complement=True, absent=False, greater=number)

    @staticmethod
    def less_than(key: str, number: int) -> Requirement:
        """The label `key` is a number below `number`."""
        return Requirement(key, frozenset(), complement=True, absent=False, less=number)

    @property
    def operator(self) -> Operator:
        """The operator that it can be written with."""
        if self.greater is not None:
            return Operator.GT
        if self.less is not None:
            return Operator.LT
        if self.complement:
            return Operator.NOT_IN if self.absent else Operator.EXISTS
        return Operator.DOES_NOT_EXIST if self.absent else Operator.IN

    def accepts(self, value: str) -> bool:
        """Whether a present label with this `value` matches."""
        if self.greater is not None or self.less is not None:
            number = integer(value)
            if number is None:
                return False
            if self.greater is not None and number <= self.greater:
                return False
            if self.less is not None and number >= self.less:
                return False
        return (value in self.values) != self.complement

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` meet the requirement."""
        value = labels.get(self.key)
        return self.absent if value is None else self.accepts(value)

    def __str__(self) -> str:
        """In the selector language, which can parse it again: ``gpu_type in {A100, P100}``."""
        key = _written(self.key, RESERVED_WORDS)
        match self.operator:
            case Operator.IN:
                return f"{key} in {_braced(self.values)}"
            case Operator.NOT_IN:
                return f"{key} not in {_braced(self.values)}"
            case Operator.EXISTS:
                return key
            case Operator.DOES_NOT_EXIST:
                return f"not {key}"
            case Operator.GT:
                return f"{key} > {self.greater}"
            case Operator.LT:
                return f"{key} < {self.less}"


def _written(word: str, reserved: frozenset[str] = frozenset()) -> str:
    """`word` in the selector language, quoted if necessary."""
    if _PLAIN.fullmatch(word) and word.lower() not in reserved:
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _braced(values: Iterable[str]) -> str:
    return "{" + ", ".join(_written(value) for value in sorted(values)) + "}"


Term = tuple[Requirement, ...]
"""Requirements that must all match. The empty term matches everything."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Which labels match: an OR of terms, each an AND of requirements.

    An empty term matches everything; a selector without terms matches nothing. `parse_selector` reads one from text.

    Attributes:
        terms: The terms, of which at least one must hold.

    Example:
        ```python
        gpus = Selector.any_of(Requirement.exists("gpu_type"), Requirement.is_in("pool", "gpu"))
        gpus.matches({"pool": "gpu"})  # True
        ```
    """

    terms: tuple[Term, ...]
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.terms) != 1 or len(self.terms[0]) > 1:
            terms = tuple(dict.fromkeys(tuple(dict.fromkeys(t)) for t in self.terms))
            # A term that matches everything makes the others redundant, so "anywhere" has one form.
            object.__setattr__(self, "terms", ((),) if () in terms else terms)
        object.__setattr__(self, "_hash", hash(self.terms))

    @staticmethod
    def all_of(*requirements: Requirement) -> Selector:
        """All of `requirements` hold."""
        return Selector((requirements,))

    @staticmethod
    def any_of(*requirements: Requirement) -> Selector:
        """At least one of `requirements` holds."""
        return Selector(tuple((requirement,) for requirement in requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether one of the terms holds for `labels`."""
        return any(all(requirement.matches(labels) for requirement in term) for term in self.terms)

    def __and__(self, other: Selector) -> Selector:
        """Both selectors match. Terms are distributed, so the result is again an OR of ANDs."""
        return Selector(tuple(mine + theirs for mine in self.terms for theirs in other.terms))

    def __or__(self, other: Selector) -> Selector:
        return Selector(self.terms + other.terms)

    @property
    def keys(self) -> frozenset[str]:
        """The label keys that it mentions."""
        return frozenset(requirement.key for term in self.terms for requirement in term)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # The hash of a string is valid only in its own process, so it is not pickled.
        return (Selector, (self.terms,))

    def __str__(self) -> str:
        if not self.terms:
            return "nowhere"
        if () in self.terms:
            return "anywhere"
        several = len(self.terms) > 1
        texts = [(" and ".join(map(str, term)), several and len(term) > 1) for term in self.terms]
        return " or ".join(f"({text})" if grouped else text for text, grouped in texts)


ANYWHERE = Selector(((),))
NOWHERE = Selector(())
