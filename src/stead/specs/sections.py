"""Reads a YAML file field by field; every error names its place in the file.

Rule: a field's parser says in one sentence what is wrong, and this file adds the place (``work[2].selector: ...``).
Unknown fields are refused, not skipped. Documents are limited in size. A few lines of aliases can stand for billions of
values, so values are counted with every alias expanded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import yaml

from stead.errors import Invalid, did_you_mean
from stead.text import quoted

T = TypeVar("T")
D = TypeVar("D")

BITS_MAX = 4096  # of a whole number: Python refuses to print more than 4300 digits

TEXT_MAX = 16 << 20
"""The longest document, in characters."""

VALUES_MAX = 1_000_000
"""The maximum number of values in a document, with aliases expanded."""


class Misplaced(Invalid):
    """Invalid input; the message already names its place in the file."""


@contextmanager
def at(path: str) -> Iterator[None]:
    """Add the place to an error, unless an inner part has added one."""
    try:
        yield
    except Misplaced:
        raise
    except Invalid as error:
        raise Misplaced(f"{path}: {error}") from None


class Section:
    """One map of the file. `path` is its place, and `known` are the allowed fields."""

    def __init__(self, value: Any, path: str, known: Iterable[str]) -> None:
        self.path = path
        self.known = tuple(known)
        with at(path or "the file"):
            if not isinstance(value, dict):
                raise Invalid(f"must be a map with fields such as {self.known[0]!r}, not {quoted(value)}")
        self.fields: dict[str, Any] = value
        for name in value:
            if name not in self.known:
                hint = did_you_mean(str(name), self.known)
                raise Misplaced(
                    f"{self.place(name)}: is not a known field{hint}; known fields are {', '.join(self.known)}"
                )

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def place(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else str(name)

    def read(self, name: str, parse: Callable[[Any], T], default: D) -> T | D:
        """The field, parsed by `parse`, or the default if it is missing."""
        if name not in self.fields:
            return default
        with at(self.place(name)):
            return parse(self.fields[name])

    def need(self, name: str, parse: Callable[[Any], T], good: str) -> T:
        """The same for a required field; `good` is an example value."""
        if name not in self.fields:
            raise Misplaced(f"{self.place(name)}: is missing; a good value is {good}")
        with at(self.place(name)):
            return parse(self.fields[name])

    def each(self, name: str) -> Iterator[tuple[Any, str]]:
        """The items of a list, each with its place; a single item needs no list."""
        value = self.fields.get(name, [])
        if not isinstance(value, list):
            yield value, self.place(name)
            return
        for index, item in enumerate(value):
            yield item, f"{self.place(name)}[{index}]"

    def sections(self, name: str, known: Iterable[str]) -> Iterator[Section]:
        """The same for a list of maps."""
        for item, path in self.each(name):
            yield Section(item, path, known)


class _Loader(yaml.SafeLoader):
    """Loads only YAML's plain types, and refuses duplicate keys, where the last one would silently win."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        line, kind = node.start_mark.line + 1, node.tag.rpartition(":")[2]
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, OverflowError):
            # Errors that PyYAML does not catch: 2024-99-99, !!int "abc", !!bool "maybe", 5000 digits.
            good = _GOOD.get(kind, "'a'")
            raise Invalid(
                f"line {line}: {quoted(node.value)} cannot be read as {kind}; a good value is {good}"
            ) from None
        if isinstance(value, int) and value.bit_length() > BITS_MAX:
            raise Invalid(f"line {line}: {quoted(node.value)} is too long for a number; a good value is 1")
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise Invalid(f"line {key_node.start_mark.line + 1}: the field {key!r} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


_GOOD = {"int": "1", "float": "0.5", "bool": "true", "timestamp": "2024-12-31, or '2024-12-31' for text"}


def load_yaml(text: str, values_max: int = VALUES_MAX) -> Any:
    """The single document in `text`, or an error of one sentence."""
    return _load(text, lambda loader: _loaded(loader, values_max))


def load_all_yaml(text: str, values_max: int = VALUES_MAX) -> list[Any]:
    """All documents in `text`, without the empty ones."""

    def all_of(loader: _Loader) -> list[Any]:
        found = []
        while loader.check_node():
            found.append(_constructed(loader, loader.get_node(), values_max))
        return [each for each in found if each is not None]

    return list(_load(text, all_of))


def _load(text: str, load: Callable[[_Loader], Any]) -> Any:
    if len(text) > TEXT_MAX:
        raise Invalid(f"this YAML is too long: it may have at most {TEXT_MAX:,} characters")
    try:
        return load(_Loader(text))
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise Invalid(f"{where}this is not YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = f"U+{ord(text[error.position]):04X}"
        raise Invalid(f"line {line}: this is not YAML: the character {character} is not allowed") from None
    except RecursionError:
        raise Invalid("this is nested too deeply; a good file is a few levels deep") from None
    except TypeError:
        raise Invalid("this is not a YAML map with plain keys") from None


def _loaded(loader: _Loader, values_max: int) -> Any:
    return _constructed(loader, loader.get_single_node(), values_max)


def _constructed(loader: _Loader, node: yaml.Node | None, values_max: int) -> Any:
    if node is None:
        return None
    if _size(node, values_max) > values_max:
        raise Invalid(f"this YAML is too large: with aliases expanded it may have at most {values_max:,} values")
    return loader.construct_document(node)


def _size(root: yaml.Node, most: int) -> int:
    """The number of values in a document with aliases expanded; any number above `most` if there are more."""
    sizes: dict[int, int] = {}
    stack = [(root, False)]
    while stack:
        node, is_left = stack.pop()
        children = _children(node)
        if is_left:
            sizes[id(node)] = min(most + 1, 1 + sum(sizes[id(child)] for child in children))
        elif id(node) not in sizes:
            sizes[id(node)] = most + 1  # for an alias that contains itself
            stack.append((node, True))
            stack += [(child, False) for child in children]
    return sizes[id(root)]


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
