"""The house style, checked: sizes, names, purity, dead files, and pages that must mention what exists.

Rule: a failure names the file and what to do. If a rule needs an exception, write a better rule.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import LONGEST

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "stead"

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
CORE_LINES_MAX = 3_000

NAMED_BY_PYTHON = {"data_received"}  # of asyncio.Protocol
NAMES_NOT_USED = frozenset({"manager", "helper", "util", "handler", "info", "data", "context", "base", "impl", "v2"})

ENTRY_POINTS = frozenset(
    {
        "stead",
        "stead.cli",
        "stead.kubernetes.podspec",
        "stead.kubernetes.ray_clusters",
        "stead.ray.local.idle_agent",
        "stead.ray.local.setup_worker",
    }
)
"""Modules that people and scripts import; every other module must be imported by one of the package."""

PURE = ("engine/", "planner/")
PURE_IMPORTS = frozenset(
    "__future__ abc bisect collections copy dataclasses decimal enum functools graphlib hashlib heapq itertools math "
    "numpy operator random re stead string types typing".split()
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "breakpoint", "__import__"})

SOURCE = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
EVERYTHING = SOURCE + TESTS + BENCHMARKS


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    """``stead.engine.facts`` for src/stead/engine/facts.py, and ``stead.engine`` for its __init__.py."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_pure(path: Path) -> bool:
    return path.relative_to(PACKAGE).as_posix().startswith(PURE)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def definitions(path: Path) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, also inside functions, and every name it takes from one."""
    for node in ast.walk(tree_of(path)):
        yield from imports_of(node)


def imports_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dotted(node: ast.AST) -> str:
    """``time.sleep`` for the expression of that name, else the empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)):
        return f"{left}.{node.attr}"
    return ""


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def words(name: str) -> set[str]:
    """The words of a name: NodeTemplate and node_template give node and template; plurals count as singular."""
    parts = re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*", name)
    lowered = {part.lower() for part in parts}
    return lowered | {word.removesuffix("s") for word in lowered}


@pytest.mark.parametrize("path", EVERYTHING, ids=name_of)
def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES_MAX, f"{name_of(path)} has {lines} lines; split it by what its parts know"


@pytest.mark.parametrize("path", EVERYTHING, ids=name_of)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    for node in definitions(path):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        assert isinstance(node, ast.ClassDef) or lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", SOURCE, ids=name_of)
def test_a_module_says_what_it_is(path: Path) -> None:
    docstring = ast.get_docstring(tree_of(path))
    assert docstring, "a module opens with what it is, in the domain's words, and then its rule"
    assert docstring.splitlines()[0].rstrip().endswith((".", ":", ",")), "the first line is a sentence"


@pytest.mark.parametrize("path", SOURCE, ids=name_of)
def test_names_say_something(path: Path) -> None:
    names = {*(node.name for node in definitions(path)), path.stem} - NAMED_BY_PYTHON
    empty = {name: words(name) & NAMES_NOT_USED for name in names if words(name) & NAMES_NOT_USED}
    assert not empty, f"names with a word that says nothing: {empty}"


@pytest.mark.parametrize("path", [path for path in SOURCE if is_pure(path)], ids=name_of)
def test_the_engine_is_pure(path: Path) -> None:
    roots = {name.partition(".")[0] for name in imports(path)}
    assert roots <= PURE_IMPORTS, f"imports {sorted(roots - PURE_IMPORTS)}; facts bring in what the engine must know"
    used = {name for name in imports(path) if name.startswith("random.")}
    used |= {name for node in ast.walk(tree_of(path)) if (name := dotted(node)).startswith("random.")}
    assert used <= {"random.Random"}, f"uses {sorted(used)}; only a seeded random.Random gives the same decision twice"
    assert not any(re.match(r"(np|numpy)\.random\b", dotted(node)) for node in ast.walk(tree_of(path)))
    called = {name for name, _ in calls(path)}
    assert not called & IMPURE_CALLS, f"calls {sorted(called & IMPURE_CALLS)}"


def test_the_core_of_the_engine_can_be_read_in_an_afternoon() -> None:
    """Its own files: groups, timing, restarts, batches and explanations have folders of their own."""
    lines = sum(len(lines_of_code(path)) for path in (PACKAGE / "engine").glob("*.py"))
    assert lines < CORE_LINES_MAX, f"engine/*.py has {lines} lines of code"


def lines_of_code(path: Path) -> set[int]:
    """Line numbers without blank lines, comments and docstrings."""
    docs = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Expr) and _is_text(node.value)]
    of_docs = {line for node in docs for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    text = path.read_text(encoding="utf-8").splitlines()
    return {n for n, line in enumerate(text, start=1) if line.strip() and not line.strip().startswith("#")} - of_docs


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


@pytest.mark.parametrize("path", [path for path in SOURCE if path.name == "__init__.py"], ids=name_of)
def test_importing_a_package_imports_none_of_its_modules(path: Path) -> None:
    """If it did, two threads that import the package and one of its modules at the same time would wait for each other,
    and Python would give one of them a module that is only partly there."""
    own = module_of(path) + "."
    eager = [
        module
        for node in tree_of(path).body
        if isinstance(node, ast.ImportFrom | ast.Import)
        for module in imports_of(node)
        if module.startswith(own)
    ]
    assert not eager, f"move what needs {eager} into a module of the package"


def test_no_file_is_dead() -> None:
    """A module counts as used when another imports it, or names it in a table of lazy imports."""
    used: set[str] = set(ENTRY_POINTS)
    for path in SOURCE:
        mine = module_of(path)
        texts = {node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant)}
        used |= {name for name in {*imports(path), *map(str, texts)} if name != mine}
    dead = sorted(module_of(path) for path in SOURCE if module_of(path) not in used)
    packages = {module_of(path) for path in SOURCE if path.name == "__init__.py"}
    dead = [name for name in dead if not (name in packages and any(other.startswith(f"{name}.") for other in used))]
    assert not dead, f"nothing imports {dead}"


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_no_test_sleeps(path: Path) -> None:
    sleeps = [node.lineno for name, node in calls(path) if name in {"sleep", "time.sleep", "asyncio.sleep"}]
    assert not sleeps, f"sleeps in lines {sleeps}; wait for the event, or use virtual time"


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_no_test_moves_the_clock_of_the_whole_process(path: Path) -> None:
    """A service left running by another test would wait forever: patch the clock of one module instead."""
    moved = re.findall(r"""setattr\((?:time,|f?["'][\w.]*\btime\.).*""", path.read_text(encoding="utf-8"))
    assert not moved, f"patch the module's name `time` instead: {moved}"


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_a_skip_says_why(path: Path) -> None:
    for name, node in calls(path):
        if name in {"pytest.skip", "pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail"}:
            by_name = any(word.arg == "reason" for word in node.keywords)
            assert by_name or (name == "pytest.skip" and node.args), f"line {node.lineno}: {name} without a reason"
    bare = [node for node in ast.walk(tree_of(path)) if dotted(node) == "pytest.mark.skip"]
    called = [node for name, node in calls(path) if name == "pytest.mark.skip"]
    assert len(bare) == len(called), "pytest.mark.skip without a reason"


@pytest.mark.parametrize("path", EVERYTHING, ids=name_of)
def test_nothing_is_left_for_later(path: Path) -> None:
    found = re.findall(r"#.*\b(?:TO[D]O|FIX[M]E|X[X]X)\b.*", path.read_text(encoding="utf-8"))
    assert not found, f"finish it or open an issue: {found}"


@pytest.mark.parametrize("name", LONGEST)
def test_what_takes_long_is_there(name: str) -> None:
    assert (ROOT / "tests" / name).exists(), "take it from tests/conftest.py"


def test_the_architecture_page_names_every_module() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    expected = {f"{path.parent.name}/" if path.name == "__init__.py" else path.name for path in SOURCE}
    missing = sorted(name for name in expected if not re.search(rf"(?<![\w.]){re.escape(name)}", page))
    assert not missing, f"ARCHITECTURE.md does not name {missing}"


def test_every_decision_is_listed_and_complete() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = sorted(folder.glob("[0-9]*.md"))
    assert pages
    for page in pages:
        assert f"({page.name})" in index, f"{page.name} is not in docs/decisions/README.md"
        headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert headings == ["Context", "Choice", "Consequences", "Rejected"], f"{page.name} has {headings}"
