"""Every example in the documentation runs, and prints what the page says it prints.

On one page: ``python`` blocks share a namespace, and a ``text`` block right after one is its exact output;
``yaml`` blocks load as scenarios and are files when their first line is ``# file: name.yaml``;
``cluster.yaml`` is the Ray cluster that the rest of the page runs on, one for all pages, and a page leaves it as
it was; in ``console`` blocks the lines after ``$ stead ...`` are its exact output; ``sh`` blocks only name
commands: of the Makefile, of stead, and installers.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from stead.cli import main, stead
from stead.sim.scenario import parse

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LANGUAGES = {"python", "text", "yaml", "console", "sh"}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Block:
    language: str
    body: str
    line: int
    follows: bool
    """Whether nothing but white space stands between the block before and this one."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    end = 0
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        yield Block(fence[1], fence[2], line, end > 0 and not text[end : fence.start()].strip())
        end = fence.end()


def run_python(block: Block, page: Path, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    # As many newlines before it as the page has lines, so that a traceback points at the page.
    code = compile("\n" * block.line + block.body, name_of(page), "exec")
    with redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def run_command(words: list[str]) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        main(words)
    return printed.getvalue()


def check_console(body: str) -> None:
    """Each command with the lines up to the next one."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        words = shlex.split(command)
        assert words[0] == "stead", f"console blocks show stead's commands, not {command!r}; use sh"
        assert run_command(words[1:]).strip() == expected.strip(), f"the output of {command!r} differs"


def check_shell(body: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in body.splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "make":
            assert re.search(rf"^{words[-1]}:", makefile, re.MULTILINE), f"the Makefile has no {words[-1]!r}"
        elif words and words[0] == "stead":
            stead.commands[words[1]].make_context(words[1], words[2:])
        elif words and words[0] == "export":
            assert callable(resolve_name(words[1].partition("=")[2])), f"{line!r} names nothing"
        else:
            assert not words or words[0] in {"pip", "git", "cd"}, f"{line!r} is not checked by anything"


@pytest.fixture(scope="module")
def address_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], str]]:
    """The address of the one cluster of all pages, started by the first page that shows its file."""
    started: dict[str, Any] = {}

    def start(file: Path) -> str:
        pytest.importorskip("ray")
        from stead.ray.local import LocalCluster, read_cluster_file

        text = file.read_text(encoding="utf-8")
        assert text in started or not started, "all pages show the same cluster.yaml, so that one cluster serves them"
        if text not in started:
            patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
            for name in [name for name in os.environ if name.startswith(("RAY_", "__RAY_", "STEAD_"))]:
                patch.delenv(name)
            started[text] = LocalCluster(*read_cluster_file(file))
        return str(started[text].address)

    with pytest.MonkeyPatch.context() as patch:
        yield start
        for cluster in started.values():
            cluster.close()


@pytest.fixture
def detached() -> Iterator[None]:
    """A page that has attached itself to a cluster is detached after it."""
    yield
    ray = sys.modules.get("ray")
    if ray and ray.is_initialized():
        ray.shutdown()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray", "ignore::FutureWarning:ray", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("detached")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_the_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address_of: Callable[[Path], str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    names: dict[str, Any] = {"__name__": "__docs__"}
    printed = ""
    for block in blocks(page):
        where = f"{name_of(page)}:{block.line}"
        match block.language:
            case "python":
                printed = run_python(block, page, names)
            case "text" if block.follows:
                assert printed.strip("\n") == block.body.strip("\n"), f"{where}: the example prints something else"
            case "yaml":
                found = re.match(r"# file: (\S+)\n", block.body)
                if found:
                    (tmp_path / found[1]).write_text(block.body, encoding="utf-8")
                if found and found[1] == "cluster.yaml":
                    monkeypatch.setenv("RAY_ADDRESS", address_of(tmp_path / "cluster.yaml"))
                else:
                    parse(block.body)
            case "console":
                check_console(block.body)
            case "sh":
                check_shell(block.body)
        assert block.language in LANGUAGES, f"{where}: say what the block is: {', '.join(sorted(LANGUAGES))}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_the_page_leads_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not broken, f"{name_of(page)} links to {broken}"
