"""Facts, decisions and asks as JSON: one way to write each value, so equal values are equal bytes.

Rule: the type hints are the format. A frozen dataclass becomes an object of its fields; fields with their default value
are left out. Where a value can be of several classes, the key ``is`` names the class (no field can have that name).
Sets are sorted lists, labels and resources are objects, amounts are in units. Unknown forms are refused in one
sentence, never guessed.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from operator import index
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from stead.errors import Invalid, did_you_mean
from stead.language.asks import Affinity, Choice, Preference, Spread
from stead.language.labels import Labels
from stead.language.resources import Resources
from stead.language.taints import Taint, Toleration

TAG = "is"
"""The key that names an object's class. It is a Python keyword, so no field can have this name."""

REPEATED = frozenset({Affinity, Choice, Preference, Spread, Taint, Toleration})
"""Classes whose values repeat in thousands of asks or decisions: encoded and decoded once, then cached and shared."""

CACHED_MAX = 10_000

Encoder = Callable[[Any], Any]
Decoder = Callable[[Any], Any]

_to_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def dumps(value: object) -> bytes:
    """A value, or a list or tuple of values, as canonical JSON: sorted keys, no spaces, ASCII."""
    written = plain(value)
    try:
        return _to_json(written).encode("ascii")
    except ValueError as error:
        raise Invalid(
            f"{type(value).__name__} contains a number that JSON cannot represent, such as infinity"
        ) from error


def loads(text: bytes | str, kind: Any) -> Any:
    """The value of type `kind` (a class, a union such as `Fact`, or ``tuple[Fact, ...]``) written in `text`."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Invalid(f"this is not JSON: {error}") from None
    return _decoder(kind)(value)


def plain(value: object) -> Any:
    """A value as dicts, lists, strings and numbers; a dataclass at the top level names its class."""
    kind: Any = type(value)
    if _has_fields(kind):
        return _tagged_encoder(kind)(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return _encoder(kind)(value)


def _has_fields(kind: Any) -> bool:
    return is_dataclass(kind)


# Writing. Each type gets its encoder once.


@cache
def _encoder(kind: Any) -> Encoder:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (str, bool, NoneType):
        return _itself
    if kind is int:
        return index
    if kind is float:
        return _float
    if kind in (Labels, Resources):
        return dict
    if origin is frozenset:
        return sorted
    if origin is tuple and arguments[1:] == (...,):
        return _list_encoder(_encoder(arguments[0]))
    if origin is tuple:
        return _pair_encoder(tuple(map(_encoder, arguments)))
    if origin in (Union, UnionType):
        return _union_encoder(arguments)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _value_of
    if _has_fields(kind):
        return _class_encoder(kind)
    raise Invalid(f"a value of type {kind!r} cannot be written as JSON")


def _itself(value: Any) -> Any:
    return value


def _float(value: Any) -> float:
    return float(value) + 0.0  # 5 becomes 5.0 and -0.0 becomes 0.0, so equal numbers are equal bytes


def _value_of(value: Any) -> Any:
    return value.value


def _list_encoder(encode: Encoder) -> Encoder:
    if encode is _itself:
        return list
    return lambda values: [encode(value) for value in values]


def _pair_encoder(encoders: tuple[Encoder, ...]) -> Encoder:
    return lambda values: [encode(value) for encode, value in zip(encoders, values, strict=True)]


def _union_encoder(options: tuple[Any, ...]) -> Encoder:
    classes = [option for option in options if _has_fields(option)]
    rest = [option for option in options if option is not NoneType and option not in classes]
    if classes and not rest:
        # `X | None` with one class needs no tag; several classes do.
        return _optional(_class_encoder(classes[0])) if len(classes) == 1 else _optional(_by_class)
    if len(rest) == 1 and not classes:
        return _optional(_encoder(rest[0]))
    raise Invalid(f"JSON cannot distinguish the members of the union {options!r}")


def _optional(encode: Encoder) -> Encoder:
    return encode if encode is _itself else lambda value: None if value is None else encode(value)


def _by_class(value: Any) -> Any:
    kind: Any = type(value)
    return _tagged_encoder(kind)(value)


@cache
def _class_encoder(kind: Any) -> Encoder:
    hints = get_type_hints(kind)
    parts = [(field.name, _default(field), _encoder(hints[field.name])) for field in fields(kind) if field.init]

    def encode(value: Any) -> dict[str, Any]:
        return {
            name: write(part)
            for name, default, write in parts
            if (part := getattr(value, name)) is not default and part != default
        }

    return lru_cache(CACHED_MAX)(encode) if kind in REPEATED else encode


@cache
def _tagged_encoder(kind: Any) -> Encoder:
    encode, name = _class_encoder(kind), kind.__name__

    def encode_with_name(value: Any) -> dict[str, Any]:
        return {**encode(value), TAG: name}  # a new dict: the encoder's own may be cached

    return encode_with_name


def _default(field: Any) -> Any:
    """The field's default; MISSING, which equals no value, if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


# Reading. Each type gets its decoder once; it checks what it reads.


@cache
def _decoder(kind: Any) -> Decoder:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if kind in (Labels, Resources):
        return _map_decoder(kind)
    if origin is frozenset:
        return _frozenset_decoder(_decoder(arguments[0]))
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        return _list_decoder(origin, _decoder(arguments[0]))
    if origin is tuple:
        return _pair_decoder(tuple(map(_decoder, arguments)))
    if origin in (Union, UnionType):
        return _union_decoder(arguments)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_decoder(kind)
    if _has_fields(kind):
        return _class_decoder(kind)
    raise Invalid(f"a value of type {kind!r} cannot be read from JSON")


def _must_be(what: str, value: Any) -> Invalid:
    return Invalid(f"must be {what}, not {_shown(value)}")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _must_be("text", value)
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise _must_be("a whole number", value)
    return value


def _number(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise _must_be("a number", value)
    return float(value)


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise _must_be("true or false", value)
    return value


_SCALARS: dict[Any, Decoder] = {str: _text, int: _whole, float: _number, bool: _truth}


def _map_decoder(kind: type[Labels] | type[Resources]) -> Decoder:
    check, what = (_text, "an object with string values") if kind is Labels else (_whole, "an object of whole numbers")

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise _must_be(what, value)
        for part in value.values():
            check(part)
        return kind(value)

    return decode


def _frozenset_decoder(decode: Decoder) -> Decoder:
    def decode_all(value: Any) -> frozenset[Any]:
        if type(value) is not list:
            raise _must_be("a list", value)
        return frozenset([decode(part) for part in value])

    return decode_all


def _list_decoder(kind: Any, decode: Decoder) -> Decoder:
    def decode_all(value: Any) -> Any:
        if type(value) is not list:
            raise _must_be("a list", value)
        return kind([decode(part) for part in value])

    return decode_all


def _pair_decoder(decoders: tuple[Decoder, ...]) -> Decoder:
    def decode_each(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(decoders):
            raise _must_be(f"a list of {len(decoders)}", value)
        return tuple([decode(part) for decode, part in zip(decoders, value, strict=True)])

    return decode_each


def _enum_decoder(kind: type[Enum]) -> Decoder:
    by_value = {member.value: member for member in kind}

    def decode(value: Any) -> Enum:
        if type(value) is not str or value not in by_value:
            raise _must_be(f"one of {', '.join(by_value)}", value)
        return by_value[value]

    return decode


def _union_decoder(options: tuple[Any, ...]) -> Decoder:
    classes = {option.__name__: option for option in options if _has_fields(option)}
    others = [option for option in options if option is not NoneType and not _has_fields(option)]
    decode = _tagged_decoder(classes) if len(classes) > 1 else _decoder(next(iter(classes.values()), *others))
    if NoneType not in options:
        return decode
    return lambda value: None if value is None else decode(value)


def _tagged_decoder(classes: Mapping[str, Any]) -> Decoder:
    decoders: dict[str, Decoder] = {}  # filled at first use, because unions may be recursive

    def decode(value: Any) -> Any:
        name = value.get(TAG) if type(value) is dict else None
        found = decoders.get(name) if type(name) is str else None
        if found is None:
            if type(name) is not str:
                raise _must_be(f"an object with {TAG!r}: one of {', '.join(classes)}", value)
            if name not in classes:
                raise Invalid(f"{name!r} is unknown{did_you_mean(name, classes)}; known are {', '.join(classes)}")
            found = decoders[name] = _class_decoder(classes[name])
        return found(value)

    return decode


@cache
def _class_decoder(kind: Any) -> Decoder:
    hints, name = get_type_hints(kind), kind.__name__
    parts = {field.name: _decoder(hints[field.name]) for field in fields(kind) if field.init}
    parts[TAG] = _name_decoder(name)
    required = [field.name for field in fields(kind) if field.init and _default(field) is MISSING]

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise _must_be(f"an object ({name})", value)
        given: dict[str, Any] = {}
        key = ""
        try:
            for key, part in value.items():
                given[key] = parts[key](part)
        except KeyError:
            raise Invalid(f"{name} has no field {key!r}{did_you_mean(key, parts.keys() - {TAG})}") from None
        except Invalid as error:
            gap = " " if str(error).startswith("must be") else ": "
            raise Invalid(f"{name}.{key}{gap}{error}") from None
        given.pop(TAG, None)
        for key in required:
            if key not in given:
                raise Invalid(f"{name} needs the field {key!r}")
        return kind(**given)

    return _cached(decode) if kind in REPEATED else decode


def _cached(decode: Decoder) -> Decoder:
    """The same decoder with a cache: equal input gives the same object."""
    known: dict[bytes, Any] = {}

    def decode_once(value: Any) -> Any:
        key = marshal.dumps(value, 2)  # only a cache key; marshal version 2 writes equal values as equal bytes
        found = known.get(key)
        if found is None:
            if len(known) >= CACHED_MAX:
                known.clear()
            found = known[key] = decode(value)
        return found

    return decode_once


def _name_decoder(name: str) -> Decoder:
    def decode(value: Any) -> Any:
        if value != name:
            raise _must_be(json.dumps(name), value)
        return value

    return decode
