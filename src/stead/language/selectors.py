"""The two text forms of a selector: the selector language, and Ray's operator strings.

Rule: text is parsed by a grammar and never evaluated. The result is a canonical `Selector`. Printing it
(``str(selector)``, `label_selector_strings`) gives text that parses to the same selector.

The selector language::

    either      = all {"or" all}
    all         = one {("and" | ",") one}
    one         = ("not" | "!") one | "(" either ")" | "anywhere" | "nowhere" | requirement
    requirement = key
                | key ("in" | "not in" | "notin") list
                | key ("=" | "==" | "!=") value
                | key (">" | "<") number

Keywords are case-insensitive. A list is written in [], {} or (). You can quote any key or value, and must quote a key
that is a keyword: ``anywhere`` matches every node, and ``"anywhere"`` is a label key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, product
from math import prod
from typing import Any, NoReturn

from stead.errors import Invalid, did_you_mean
from stead.language.labels import (
    ANYWHERE,
    IDENTITY_KEYS,
    NOWHERE,
    RESERVED_WORDS,
    Operator,
    Requirement,
    Selector,
    check_key,
    check_value,
    integer,
)

TERMS_MAX = 256
"""The maximum number of alternatives in a selector, after its ANDs are distributed over its ORs."""

DEPTH_MAX = 50
"""The maximum nesting of parentheses and negations."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"""|(?P<mark>==|!=|>=|<=|[=!<>(),\[\]{}])"""
    r"""|(?P<word>[^\s"'=!<>(),\[\]{}]+))""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_CLOSING = {"[": "]", "{": "}", "(": ")"}
_OPERATORS = ("in", "not in", "=", "==", "!=", ">", "<", "and", "or")

_EXAMPLE = "'gpu_type in [A100, T100]'"


def check_wanted(key: str, value: object) -> str:
    """`value` if a label `key` can have it; node names need not follow label syntax."""
    if key not in IDENTITY_KEYS:
        return check_value(value, f"the value for label {key!r},")
    if not isinstance(value, str) or not value:
        raise Invalid(f"the value for label {key!r}, {value!r}, must be a non-empty string, for example 'node-1'")
    return value


def wanted_number(key: str, value: object) -> int:
    """The int64 that Gt and Lt compare label `key` with."""
    number = integer(value.strip()) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int) or not -(2**63) <= number < 2**63:
        raise Invalid(
            f"the value {value!r} that label {key!r} is compared with must be a 64-bit integer, for example 3"
        )
    return number


def intersection(selectors: Iterable[Selector]) -> Selector:
    """The AND of the selectors; refused if it would have more than `TERMS_MAX` terms."""
    parts = list(selectors)
    if (count := prod(len(part.terms) for part in parts)) > TERMS_MAX:
        raise _too_many(count)
    return Selector(tuple(tuple(chain.from_iterable(terms)) for terms in product(*(part.terms for part in parts))))


def union(selectors: Iterable[Selector]) -> Selector:
    """The OR of the selectors, with the same limit."""
    result = Selector(tuple(chain.from_iterable(part.terms for part in selectors)))
    if len(result.terms) > TERMS_MAX:
        raise _too_many(len(result.terms))
    return result


def negation(selector: Selector) -> Selector:
    """The NOT of the selector, by De Morgan's laws, with the same limit."""
    return intersection(union(Selector.all_of(_negated(r)) for r in term) for term in selector.terms)


def _negated(requirement: Requirement) -> Requirement:
    if requirement.operator in (Operator.GT, Operator.LT):
        raise Invalid(
            f"'not' cannot precede the comparison '{requirement}', because a label that is not a number is neither "
            f"greater nor less; write the comparison you mean, for example '{requirement.key} < 4'"
        )
    return Requirement(requirement.key, requirement.values, not requirement.complement, not requirement.absent)


def _too_many(count: int) -> Invalid:
    return Invalid(
        f"the selector has {count} alternatives when written as an 'or' of 'and's, but at most {TERMS_MAX} are "
        f"allowed; a list such as 'zone in [a, b]' counts as one"
    )


def parse_selector(text: str) -> Selector:
    """Read a selector from text.

    Args:
        text: A selector such as ``gpu_type in [A100, T100] and not spot``. The operators are ``in``, ``not in``, ``=``,
            ``!=``, ``>``, ``<``, a key alone (the label exists), ``and``, ``or`` and ``not``.

    Returns:
        The selector. ``str(selector)`` gives text that reads back as the same one.

    Raises:
        Invalid: The text is not a selector, or it has too many alternatives.

    Example:
        ```python
        parse_selector("zone in [a, b] and not spot").matches({"zone": "a"})  # True
        ```
    """
    if not isinstance(text, str):
        raise Invalid(f"a selector must be a string such as {_EXAMPLE}, not {text!r}")
    return _Reader(text).selector()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words

    def is_mark(self, *marks: str) -> bool:
        return self.kind == "mark" and self.text in marks

    @property
    def value(self) -> str:
        return _ESCAPE.sub(r"\1", self.text[1:-1]) if self.kind == "quoted" else self.text

    def __str__(self) -> str:
        return "its end" if self.kind == "end" else repr(self.text)


_END = _Token("end", "")


class _Reader:
    """Parses one selector by recursive descent, with one method per rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._position = 0
        self._depth = 0

    def selector(self) -> Selector:
        if not self._tokens:
            self._refuse("is empty; write a label key or a condition")
        result = self._either()
        if (rest := self._peek()) is not _END:
            self._refuse(f"has {rest} where 'and', 'or' or its end was expected")
        return result

    def _either(self) -> Selector:
        first, commas = self._all()
        parts = [first]
        while self._peek().is_word("or"):
            self._next()
            part, more_commas = self._all()
            parts.append(part)
            commas = commas or more_commas
        if commas and len(parts) > 1:
            self._refuse("mixes ',' with 'or', which is ambiguous; write 'and' and parentheses")
        return union(parts)

    def _all(self) -> tuple[Selector, bool]:
        parts, commas = [self._one()], False
        while (token := self._peek()).is_word("and") or token.is_mark(","):
            self._next()
            commas = commas or token.kind == "mark"
            parts.append(self._one())
        return intersection(parts), commas

    def _one(self) -> Selector:
        token = self._peek()
        if token.is_word("not") or token.is_mark("!"):
            self._next()
            return negation(self._nested(self._one))
        if token.is_mark("("):
            self._next()
            inner = self._nested(self._either)
            self._expect(")", "to close '('")
            return inner
        if token.is_word("anywhere", "nowhere"):
            self._next()
            return ANYWHERE if token.is_word("anywhere") else NOWHERE
        return Selector.all_of(self._requirement())

    def _nested(self, read: Callable[[], Selector]) -> Selector:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._refuse(f"nests parentheses or 'not' more than {DEPTH_MAX} levels deep; use fewer levels")
        inner = read()
        self._depth -= 1
        return inner

    def _requirement(self) -> Requirement:
        key = self._key()
        token = self._peek()
        if token.is_mark("=", "=="):
            return Requirement.is_in(key, self._compared(key))
        if token.is_mark("!="):
            return Requirement.not_in(key, self._compared(key))
        if token.is_mark(">"):
            return Requirement.greater_than(key, wanted_number(key, self._compared(key, number=True)))
        if token.is_mark("<"):
            return Requirement.less_than(key, wanted_number(key, self._compared(key, number=True)))
        if token.is_mark(">=", "<="):
            self._refuse(f"has the unknown operator {token} after {key!r}; write '{key} > 3' or '{key} < 3'")
        if token.is_word("in"):
            self._next()
            return Requirement.is_in(key, *self._list(key))
        if token.is_word("notin", "not"):
            self._next()
            if token.is_word("not") and not self._next().is_word("in"):
                self._refuse(f"has 'not' after {key!r} without 'in'; write '{key} not in [..]' or 'not {key}'")
            return Requirement.not_in(key, *self._list(key))
        if token.kind in ("word", "quoted") and not token.is_word("and", "or"):
            self._refuse(f"has the unknown operator {token} after {key!r}{did_you_mean(token.value, _OPERATORS)}")
        return Requirement.exists(key)

    def _key(self) -> str:
        token = self._next()
        if token.kind not in ("word", "quoted"):
            self._refuse(f"has {token} where a label key was expected")
        if token.is_word(*RESERVED_WORDS):
            self._refuse(f"has the word {token} where a label key was expected; put a key of that name in quotes")
        return check_key(token.value)

    def _compared(self, key: str, number: bool = False) -> str:
        operator, token = self._next(), self._next()
        if token.kind not in ("word", "quoted"):
            good = "3" if number else '""'
            problem = f"has {token} where a value for {key!r} was expected"
            self._refuse(f"{problem}; write a value, or '{key} {operator.text} {good}'")
        return token.value if number else check_wanted(key, token.value)

    def _list(self, key: str) -> list[str]:
        opening = self._next()
        if not opening.is_mark(*_CLOSING):
            self._refuse(f"has {opening} where a list in brackets was expected")
        values = []
        while True:
            token = self._next()
            if token.kind not in ("word", "quoted"):
                self._refuse(f"has {token} where a value for {key!r} was expected")
            values.append(check_wanted(key, token.value))
            if not self._peek().is_mark(","):
                break
            self._next()
        self._expect(_CLOSING[opening.text], f"or ',' after {token}")
        return values

    def _split(self, text: str) -> list[_Token]:
        tokens, text, position = [], text.rstrip(), 0
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                self._refuse(f"has a quote that is never closed at {text[position:].strip()[:20]!r}")
            tokens.append(_Token(str(found.lastgroup), str(found[str(found.lastgroup)])))
            position = found.end()
        return tokens

    def _peek(self) -> _Token:
        return self._tokens[self._position] if self._position < len(self._tokens) else _END

    def _next(self) -> _Token:
        token = self._peek()
        self._position += 1
        return token

    def _expect(self, mark: str, why: str) -> None:
        if not (token := self._next()).is_mark(mark):
            self._refuse(f"has {token} where {mark!r} was expected {why}")

    def _refuse(self, problem: str) -> NoReturn:
        raise Invalid(f"selector {self._text!r} {problem}, for example {_EXAMPLE}")


_CALL = re.compile(r"(?P<negated>!?)\s*(?P<name>[^\s()!]*)\s*\((?P<inside>[^()]*)\)")
_PLAIN = re.compile(r"[^\s()!,'\"]+")
_QUOTED_EMPTY = ('""', "''")
_CALLS = ("in", "exists", "gt", "lt")


def parse_label_selector(wanted: Mapping[str, str]) -> Selector:
    """Read a selector in the form of Ray's ``label_selector``: every entry must hold.

    It accepts more than Ray does: operators in any case, ``exists()``, ``gt(3)``, ``lt(3)``, spaces, and ``""`` for the
    empty value. It refuses mistakes that Ray takes for values, such as ``!(x)``, which matches everything there.

    Args:
        wanted: A condition for each label key: a value, or ``in(a,b)``, ``!a`` or ``!in(a,b)``.

    Returns:
        The selector.

    Raises:
        Invalid: A key or a condition is not valid.

    Example:
        ```python
        parse_label_selector({"zone": "!in(a,b)"}).matches({"zone": "c"})  # True
        ```
    """
    if not isinstance(wanted, Mapping):
        raise Invalid(f"label_selector must be a map such as {{'zone': 'in(a,b)'}}, not {wanted!r}")
    for key in wanted:
        check_key(key)
    return Selector.all_of(*(parse_label_condition(key, wanted[key]) for key in sorted(wanted)))


def parse_label_condition(key: str, text: object) -> Requirement:
    """The requirement on label `key` from one of Ray's operator strings, such as ``!in(a,b)``."""
    if not isinstance(text, str):
        values = text if isinstance(text, list | tuple | set | frozenset) and text else ("a", "b")
        good = f"in({','.join(sorted(map(str, values)))})"
        raise Invalid(f"the condition {text!r} on label {key!r} must be a string, for example {good!r}")
    stripped = text.strip()
    if "(" in stripped or ")" in stripped:
        return _called(key, stripped)
    negated = stripped.startswith("!")
    value = _plain(key, text, stripped[negated:].strip(), empty=not negated)
    return Requirement.not_in(key, value) if negated else Requirement.is_in(key, value)


def _called(key: str, text: str) -> Requirement:
    found = _CALL.fullmatch(text)
    if found is None:
        raise _bad_condition(key, text)
    name, inside, negated = found["name"].lower(), found["inside"].strip(), bool(found["negated"])
    match name:
        case "in":
            values = [_plain(key, text, part.strip()) for part in inside.split(",")]
            return Requirement.not_in(key, *values) if negated else Requirement.is_in(key, *values)
        case "exists" if not inside:
            return Requirement.does_not_exist(key) if negated else Requirement.exists(key)
        case "gt" if not negated:
            return Requirement.greater_than(key, wanted_number(key, inside))
        case "lt" if not negated:
            return Requirement.less_than(key, wanted_number(key, inside))
    raise _bad_condition(key, text, "" if name in _CALLS else did_you_mean(name, _CALLS))


def _plain(key: str, text: str, value: str, empty: bool = False) -> str:
    if value in _QUOTED_EMPTY or (empty and not value):
        return check_wanted(key, "")
    if not _PLAIN.fullmatch(value):
        raise _bad_condition(key, text)
    return check_wanted(key, value)


def _bad_condition(key: str, text: str, hint: str = "") -> Invalid:
    return Invalid(
        f"the condition {text!r} on label {key!r} is not valid{hint}; good values are 'a', '!a', 'in(a,b)', "
        f"'!in(a,b)', 'exists()', '!exists()', 'gt(3)', 'lt(3)' and '\"\"' for the empty value"
    )


def label_selector_strings(selector: Selector) -> dict[str, str]:
    """The selector as Ray's ``label_selector=``, the inverse of `parse_label_selector`; refused if it has no such
    form."""
    if len(selector.terms) != 1:
        raise Invalid(
            f"label_selector cannot express '{selector}'; it can express one 'and' of conditions such as 'zone = a'"
        )
    result: dict[str, str] = {}
    for requirement in selector.terms[0]:
        if requirement.key in result:
            raise Invalid(
                f"'{selector}' has two conditions on {requirement.key!r}, but label_selector can hold only one, for "
                f"example 'in(a,b)'"
            )
        result[requirement.key] = _condition_text(requirement)
    return result


def _condition_text(requirement: Requirement) -> str:
    values = [value or '""' for value in sorted(requirement.values)]
    listed = values[0] if len(values) == 1 else f"in({','.join(values)})"
    text = {
        Operator.IN: "" if listed == '""' else listed,
        Operator.NOT_IN: f"!{listed}",
        Operator.EXISTS: "exists()",
        Operator.DOES_NOT_EXIST: "!exists()",
        Operator.GT: f"gt({requirement.greater})",
        Operator.LT: f"lt({requirement.less})",
    }[requirement.operator]
    if _read_back(requirement.key, text) != requirement:
        raise Invalid(f"label_selector cannot express '{requirement}'; use a condition such as 'in(a,b)' or 'gt(3)'")
    return text


def _read_back(key: str, text: str) -> Any:
    try:
        return parse_label_condition(key, text)
    except Invalid:
        return None
