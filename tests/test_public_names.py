"""Every public name is documented and typed, and the reference page lists it.

A function has a summary and the sections Args, Returns, Raises and Example that it needs; a class has a summary, an
example, and a word on every field; a method has a summary. No annotation is missing, and none is Any.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._common import ray_option_utils

import stead
from stead.ray.submit.compile import OWN_OPTIONS
from stead.ray.submit.option_types import InitOptions, RemoteOptions
from tests.typed_program import in_the_engine

REFERENCE = Path(__file__).parent.parent / "docs" / "reference.md"

MODULES = ("stead.engine.facts", "stead.engine.decisions", "stead.engine.reasons")
"""Modules whose classes are all public."""

OTHERS = (
    "stead.engine.explain.explanations.Score stead.engine.explain.smallest_change.Change "
    "stead.engine.timing.taint_times.TaintEnd "
    "stead.language.arguments.parse_taints stead.language.asks.AskOptions stead.language.strategies.Wants "
    "stead.language.strategies.spreads stead.language.strategies.tolerations stead.language.strategies.wants "
    "stead.language.taints.tolerated stead.ray.LocalCluster stead.ray.LocalNode stead.ray.NodeOptions "
    "stead.ray.NodeSpec stead.ray.hook stead.ray.install_in_worker stead.ray.local_cluster "
    "stead.sim.cluster.Outcome stead.sim.cluster.run stead.sim.scenario.Scenario stead.sim.scenario.load "
    "stead.sim.scenario.parse stead.solver.found stead.solver.needed"
).split()
"""Other names that the documentation uses, and what their results are made of."""

RAYS_OPTIONS = ("stead.InitOptions", "stead.RemoteOptions")
"""Their other keys are Ray's, and documented there."""


def public() -> Iterator[tuple[str, Any]]:
    for name in stead.__all__:
        yield f"stead.{name}", getattr(stead, name)
    for module in map(import_module, MODULES):
        for name, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == module.__name__:
                yield f"{module.__name__}.{name}", value
    for path in OTHERS:
        module_name, _, name = path.rpartition(".")
        yield path, getattr(import_module(module_name), name)


PUBLIC = dict(public())
FUNCTIONS = [path for path, value in PUBLIC.items() if inspect.isfunction(inspect.unwrap(value))]
CLASSES = [path for path, value in PUBLIC.items() if inspect.isclass(value)]
ALIASES = [path for path in PUBLIC if path not in {*FUNCTIONS, *CLASSES}]


def methods(kind: type) -> Iterator[tuple[str, Callable[..., object]]]:
    """The constructor that a class writes itself, and its public methods and properties."""
    for name, value in vars(kind).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not inspect.isfunction(function) or not function.__module__.startswith("stead."):
            continue  # of a base class of Python's
        if function.__code__.co_filename == "<string>":
            continue  # made by a dataclass
        if name == "__init__" or not name.startswith("_"):
            yield name, function


def documented_fields(kind: type) -> set[str]:
    """The fields with a docstring of their own."""
    body = typing.cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]).body
    return {
        field.target.id
        for field, after in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }


def raises(function: Callable[..., object]) -> bool:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree))


def untyped(hint: object) -> bool:
    """Whether Any is the hint, or a part of it."""
    return hint is Any or any(map(untyped, typing.get_args(hint)))


def check_annotations(path: str, function: Callable[..., object]) -> None:
    seen = typing.get_overloads(function) or [inspect.unwrap(function)]
    for each in seen:
        parameters = list(inspect.signature(each).parameters.values())
        hints = typing.get_type_hints(each)
        missing = [one.name for one in parameters if one.name not in hints and one.name not in ("self", "cls")]
        assert not missing and "return" in hints, f"{path} has no types for {missing or 'its result'}"
        loose = [name for name, hint in hints.items() if untyped(hint)]
        assert not loose, f"{path} has Any for {loose}"


@pytest.mark.parametrize("path", PUBLIC)
def test_the_reference_page_lists_it(path: str) -> None:
    listed = re.findall(r"^::: (\S+)$", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    assert path in listed or (path.rpartition(".")[0] in MODULES and path.rpartition(".")[0] in listed)


@pytest.mark.parametrize("path", FUNCTIONS)
def test_a_function_says_what_it_takes_returns_and_raises(path: str) -> None:
    function = PUBLIC[path]
    text = inspect.getdoc(function) or ""
    summary, _, rest = text.partition("\n\n")
    assert summary.endswith("."), f"{path} opens with a sentence"
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    for name in parameters:
        assert re.search(rf"^    \**{name}: ", rest, re.MULTILINE), f"{path} does not say what {name} is"
    assert ("\nArgs:\n" in text) == bool(parameters)
    assert ("\nReturns:\n" in text) == (typing.get_type_hints(inspect.unwrap(function))["return"] is not type(None))
    assert "\nRaises:\n" in text or not raises(function), f"{path} does not say what it raises"
    assert "\nExample:\n    ```" in text, f"{path} has no example"


@pytest.mark.parametrize("path", CLASSES)
def test_a_class_says_what_it_is_and_what_its_fields_are(path: str) -> None:
    kind = PUBLIC[path]
    text = kind.__doc__ or ""
    assert text.partition("\n\n")[0].rstrip().endswith((".", ".\n    ")), f"{path} opens with a sentence"
    if path.startswith("stead.") and path.count(".") == 1 and not typing.is_typeddict(kind):
        assert "Example:\n" in text, f"{path} has no example"
    fields = list(kind.__members__) if issubclass(kind, enum.Enum) else list(inspect.get_annotations(kind))
    known = {*documented_fields(kind), "code"}  # the code of a reason, which its module explains
    for name in fields if path not in RAYS_OPTIONS else OWN_OPTIONS if path == "stead.RemoteOptions" else ():
        assert name.startswith("_") or name in known or re.search(rf"\b{name}\b", text), f"{path} is silent on {name}"
    for name, method in methods(kind):
        if name == "__init__":
            taken = [each for each in inspect.signature(method).parameters if each != "self"]
            assert all(re.search(rf"\b{each}\b", text) for each in taken), f"{path} is silent on one of {taken}"
        else:
            assert method.__doc__, f"{path}.{name} has no docstring"


@pytest.mark.parametrize("path", FUNCTIONS)
def test_a_function_has_complete_types(path: str) -> None:
    check_annotations(path, PUBLIC[path])


@pytest.mark.parametrize("path", CLASSES)
def test_a_class_has_complete_types(path: str) -> None:
    kind = PUBLIC[path]
    hints = typing.get_type_hints(kind)
    assert not [name for name, hint in hints.items() if not name.startswith("_") and untyped(hint)]
    for name, method in methods(kind):
        check_annotations(f"{path}.{name}", method)


@pytest.mark.parametrize("path", ALIASES)
def test_an_alias_has_no_any(path: str) -> None:
    assert typing.get_args(PUBLIC[path])
    assert not untyped(PUBLIC[path])


def test_remote_options_are_rays_and_steads() -> None:
    rays = {name for name in ray_option_utils.valid_options if not name.startswith("_")}
    assert set(RemoteOptions.__annotations__) == rays | set(OWN_OPTIONS)


def test_init_options_are_rays() -> None:
    rays = {name for name in inspect.signature(ray.init).parameters if name not in ("address", "kwargs")}
    assert set(InitOptions.__annotations__) == rays


def test_a_typed_program_runs() -> None:
    (ring,) = in_the_engine()
    assert "CPU" in str(ring)
