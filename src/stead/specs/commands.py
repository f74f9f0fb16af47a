"""What a piece of work runs: a command, its environment variables and its container image.

Rule: nothing here affects where the work is placed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from stead.errors import Invalid
from stead.specs.sections import Section
from stead.text import quoted

RUN = ("run", "env", "image")
"""The fields of work, groups and bundles that describe their command."""

SHELL = ("/bin/sh", "-c")

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Command:
    """A command as a list of arguments. Without arguments, a container runs what its image says."""

    arguments: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    image: str = ""

    @property
    def written(self) -> str | list[str]:
        """As it is written in `run`: text for a shell, or a list of arguments."""
        if len(self.arguments) == 3 and self.arguments[:2] == SHELL:
            return self.arguments[2]
        return list(self.arguments)


def read_command(section: Section, outer: Section | None = None) -> Command:
    """The command of an entry. A bundle inherits missing fields from its group (`outer`)."""

    def whose(name: str) -> Section:
        return outer if outer is not None and name not in section else section

    return Command(
        whose("run").read("run", _arguments, ()),
        whose("env").read("env", _variables, ()),
        whose("image").read("image", _image, ""),
    )


def _arguments(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) and value.strip():
        return (*SHELL, _line(value))
    if isinstance(value, list) and value and value[0] != "" and all(isinstance(each, str) for each in value):
        return tuple(map(_line, value))
    raise Invalid(
        f"must be a command such as 'python train.py', or a list of texts such as [python, train.py], not "
        f"{quoted(value)}"
    )


def _variables(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise Invalid(f"must be a map such as {{MODE: fast}}, not {quoted(value)}")
    for name, text in value.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise Invalid(f"has the name {quoted(name)}, which must be letters, digits and '_', for example 'MODE'")
        if not isinstance(text, str):
            good = str(text).lower() if isinstance(text, bool | int | float) else "fast"
            raise Invalid(f"the value of {name} must be text, such as '{good}', not {quoted(text)}")
    return tuple((name, _line(text)) for name, text in value.items())


def _image(value: Any) -> str:
    if not isinstance(value, str) or not value or any(mark.isspace() for mark in value):
        raise Invalid(f"must be the name of a container image such as 'python:3.12', not {quoted(value)}")
    return value


def _line(text: str) -> str:
    if "\0" in text:
        raise Invalid(f"contains the character U+0000, which a command cannot have: {quoted(text)}")
    return text
