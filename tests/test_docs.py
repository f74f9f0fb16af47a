"""Every example in the documentation runs, and prints what the page says it prints.

On one page: ``python`` blocks share a namespace, and a ``text`` block right after one is its exact output;
``yaml`` blocks load as scenarios and are files when their first line is ``# file: name.yaml``;
``cluster.yaml`` is the Ray cluster that the rest of the page runs on, one for all pages, and a page leaves it as
it was; ``served.yaml`` is a scenario that a service serves for the rest of the page with its clock stopped
(other files are then work and changes; ``kinds.yaml`` has kinds of nodes, ``autoscale.yaml`` is for an autoscaler),
and a page of docs/commands that links to the cluster of the index runs on that; in ``console`` blocks the lines
after ``$ stead ...`` are its exact output; ``sh`` blocks only name commands: of the Makefile, of stead, kubectl, docker
and installers. ``yaml`` blocks with an apiVersion are objects of Kubernetes: the pods in them must be ones that stead
can schedule.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click
import pytest
import yaml

from stead.cli import COMMANDS, main, stead
from stead.kubernetes.podspec import ask_of
from stead.kubernetes.ray_clusters import node_templates
from stead.operate.plans import read_catalog
from stead.scaling.catalog import cluster_of
from stead.sim.scenario import parse
from stead.specs.sections import load_yaml
from tests.on_ray.waiting import wait_for
from tests.serving import serving, simulated

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LANGUAGES = {"python", "text", "yaml", "console", "sh"}
OTHERS = {"cd", "curl", "docker", "git", "kubectl", "pip"}
"""Commands of other programs that ``sh`` blocks may name."""

WITHOUT_SPEC = ("PriorityClass", "ClusterRole", "Role", "RoleBinding", "ServiceAccount")
"""Kinds of objects of Kubernetes that tests of their pages look at."""

WRITE = os.environ.get("STEAD_GOLDEN") == "write"
SERVED = "served.yaml"
ELSEWHERE = "index.md#the-cluster-of-these-pages"
"""A page of docs/commands that links there runs on the cluster of that page."""

CHANGING = (
    (r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?=  launching)", "2026-01-31 12:00:00"),
    (r"\b[0-9a-f]{11}-\d+\b", "1a1f640db48-1"),
)
"""What differs each time, and how pages show it: the times of launches, and their ids."""

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
    # Pad with newlines so that the line numbers of a traceback match the page.
    code = compile("\n" * block.line + block.body, name_of(page), "exec")
    with redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def run_command(words: list[str]) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        main(words)
    return printed.getvalue()


def compare(page: Path, printed: str, expected: str, what: str) -> None:
    """The output equals what the page shows, except for times and ids of launches; with STEAD_GOLDEN=write the page is
    rewritten instead."""
    for changing, shown in CHANGING:
        printed = re.sub(changing, shown, printed)
    if printed != expected and expected and WRITE:
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(f"{expected}\n", f"{printed}\n", 1), encoding="utf-8")
        return
    assert printed == expected, what


def check_console(body: str, page: Path) -> None:
    """Each command with the lines up to the next one."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        words = shlex.split(command)
        assert words[0] == "stead", f"console blocks show stead's commands, not {command!r}; use sh"
        compare(page, run_command(words[1:]).strip(), expected.strip(), f"the output of {command!r} differs")


def check_shell(body: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in body.replace(" | ", "\n").splitlines():
        words = shlex.split(line.partition(" > ")[0], comments=True)
        if words and words[0] == "make":
            assert re.search(rf"^{words[-1]}:", makefile, re.MULTILINE), f"the Makefile has no {words[-1]!r}"
        elif words and words[0] == "stead":
            command = stead.get_command(click.Context(stead), words[1])
            assert command is not None, f"{line!r} names no command of stead"
            check_command(command, words[1:], click.Context(stead, **stead.context_settings))
        elif words and words[0] == "eval":
            assert re.fullmatch(r"\$\(stead completion (bash|zsh|fish)\)", words[1]), f"{line!r} is not checked"
        elif words and words[0] == "export" and words[1].startswith("STEAD_ADDRESS="):
            assert words[1].partition("=")[2].startswith("http://")
        elif words and words[0] == "export":
            assert callable(resolve_name(words[1].partition("=")[2])), f"{line!r} names nothing"
        else:
            assert not words or words[0] in OTHERS, f"{line!r} is not checked by anything"


def check_command(command: click.Command, words: list[str], parent: click.Context) -> None:
    """The command accepts these words, and so does its subcommand."""
    context = command.make_context(words[0], words[1:], parent)
    if isinstance(command, click.Group):
        for at, word in enumerate(words):
            if at and word in command.commands:
                check_command(command.commands[word], words[at:], context)
                break


def check_objects(body: str) -> None:
    """Objects of Kubernetes. Pods, also those in templates, are for stead, and stead can schedule them."""
    for found in yaml.safe_load_all(body):
        assert {"apiVersion", "kind", "metadata"} <= found.keys()
        if "spec" not in found or found["kind"] in ("StorageClass", "PersistentVolumeClaim"):
            assert found["kind"] in (*WITHOUT_SPEC, "StorageClass", "PersistentVolumeClaim")
            continue
        if found["kind"] == "RayCluster":
            assert node_templates(found)
            continue
        pod = found if found["kind"] == "Pod" else found["spec"]["template"]
        assert pod["spec"]["schedulerName"] != "default-scheduler"
        ask_of({**pod, "metadata": {"name": "any", "namespace": "any", **(pod.get("metadata") or {})}})


@pytest.fixture(scope="module")
def address_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], str]]:
    """The address of the one cluster of all pages, started by the first page that shows its file."""
    started: dict[str, Any] = {}

    def start(file: Path) -> str:
        pytest.importorskip("ray")
        from stead.ray.local.local_cluster import LocalCluster, read_cluster_file

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
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Serve a scenario until the page ends, so that `stead` commands use it. Returns its desk."""
    with ExitStack() as stack:

        def start(scenario: str) -> Any:
            for name in [name for name in os.environ if name.startswith(("RAY_", "STEAD_"))]:
                monkeypatch.delenv(name)
            desk = stack.enter_context(simulated(scenario))
            served = stack.enter_context(serving(desk))
            for name, value in served.variables.items():
                monkeypatch.setenv(name, value)
            return desk

        yield start


def served_elsewhere(page: Path) -> str | None:
    if f"({ELSEWHERE})" not in page.read_text(encoding="utf-8"):
        return None
    index = page.parent / ELSEWHERE.partition("#")[0]
    return next(block.body for block in blocks(index) if block.body.startswith(f"# file: {SERVED}\n"))


@pytest.fixture
def detached() -> Iterator[None]:
    """Detach after a page that attached to a cluster. Nodes that an autoscaler launched have left by then."""
    yield
    ray = sys.modules.get("ray")
    if ray and ray.is_initialized():
        import stead

        launched = "stead.dev/launch"
        with suppress(stead.Invalid):
            wait_for(lambda: not any(launched in node.labels for node in stead.nodes()), 60, "launched nodes are gone")
        ray.shutdown()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray", "ignore::FutureWarning:ray", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("detached")
def with_marks(page: Path) -> Any:
    """A page that needs real Ray nodes takes long; the README's examples are run every time."""
    on_ray = "# file: cluster.yaml" in page.read_text(encoding="utf-8") and page.name != "README.md"
    return pytest.param(page, id=name_of(page), marks=[pytest.mark.long] if on_ray else [])


@pytest.mark.parametrize("page", [with_marks(page) for page in PAGES])
def test_every_block_of_the_page_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address_of: Callable[[Path], str],
    serve: Callable[[str], Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    names: dict[str, Any] = {"__name__": "__docs__"}
    printed = ""
    elsewhere = served_elsewhere(page)
    desk = None if elsewhere is None else serve(elsewhere)
    for block in blocks(page):
        where = f"{name_of(page)}:{block.line}"
        match block.language:
            case "python":
                printed = run_python(block, page, names)
            case "text" if block.follows:
                what = f"{where}: the example prints something else"
                compare(page, printed.strip("\n"), block.body.strip("\n"), what)
            case "yaml":
                found = re.match(r"# file: (\S+)\n", block.body)
                if found:
                    (tmp_path / found[1]).write_text(block.body, encoding="utf-8")
                if "apiVersion:" in block.body:
                    check_objects(block.body)
                elif found and found[1] == "cluster.yaml":
                    monkeypatch.setenv("RAY_ADDRESS", address_of(tmp_path / "cluster.yaml"))
                elif found and found[1] == SERVED:
                    desk = serve(block.body)
                elif found and found[1] == "autoscale.yaml":
                    assert cluster_of(load_yaml(block.body)).provider
                elif found and found[1] == "kinds.yaml":
                    assert read_catalog(load_yaml(block.body)).kinds
                elif "available_node_types:" in block.body:
                    assert cluster_of(load_yaml(block.body)).catalog
                elif desk is not None and "nodes" not in load_yaml(block.body):
                    desk.what_if(load_yaml(block.body))
                else:
                    parse(block.body)
            case "console":
                check_console(block.body, page)
            case "sh":
                check_shell(block.body)
        assert block.language in LANGUAGES, f"{where}: say what the block is: {', '.join(sorted(LANGUAGES))}"


def test_every_command_has_its_page_and_the_menu_lists_it() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in (name for section in COMMANDS.values() for name in section):
        page = ROOT / "docs" / "commands" / f"{name}.md"
        assert page.read_text(encoding="utf-8").startswith(f"# stead {name}\n"), f"{page} is not about {name}"
        assert f"commands/{name}.md" in menu, f"mkdocs.yml does not list {page}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_the_page_leads_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not broken, f"{name_of(page)} links to {broken}"
    for link, heading in re.findall(r"\]\(([^)#\s:]*\.md)?#([^)\s]+)\)", text):
        target = page.parent / link if link else page
        assert heading in headings(target), f"{name_of(page)} links to {link}#{heading}, which is not there"


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in found}
