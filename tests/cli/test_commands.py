"""The command line: what it prints, its exit codes, and that an error is one sentence."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import click
import pytest

from stead.cli import COMMANDS, main
from stead.commands import output
from tests.golden_files import assert_golden

ROOT = Path(__file__).parent.parent.parent
DEMO = "scenarios/demo.yaml"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


GOLDEN = [
    ("sim-demo.txt", ["sim", DEMO]),
    ("sim-small.json.txt", ["sim", "tests/golden/small.yaml", "--json"]),
    ("why-render.txt", ["why", "--scenario", DEMO, "render"]),
    ("why-infer.txt", ["why", "--scenario", DEMO, "infer"]),
    ("why-ring.txt", ["why", "--scenario", DEMO, "ring"]),
    ("why-urgent.txt", ["why", "--scenario", DEMO, "urgent"]),
    ("why-train.txt", ["why", "--scenario", DEMO, "train-1"]),
    ("help.txt", ["--help"]),
    *((f"help-{name}.txt", [name, "--help"]) for section in COMMANDS.values() for name in section),
    *((f"help-context-{name}.txt", ["context", name, "--help"]) for name in ("add", "list", "use", "remove")),
]


@pytest.mark.parametrize(("name", "words"), GOLDEN, ids=[name for name, _ in GOLDEN])
def test_output_is_as_in_the_golden_file(name: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert_golden(name, out)


def test_json_has_the_same_content_as_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "sim", DEMO, "--json")
    result = json.loads(out)
    assert [node["id"] for node in result["nodes"]] == ["cpu-a", "cpu-b", "cpu-old", "gpu-a-1", "gpu-a-2", "gpu-b"]
    waiting = {waiter["ids"][0]: waiter for waiter in result["waiting"]}
    assert list(waiting) == ["render", "huge", "archive", "wide", "ring"]
    codes = [refusal["code"] for refusal in waiting["render"]["choices"][0] if refusal["nodes"]]
    assert codes == ["draining", "lacks-label", "tainted"]
    assert waiting["render"]["change"].startswith("Tolerating gpu_node=true would be enough")
    assert [refused["id"] for refused in result["refused"]] == ["urgent"]


def test_a_journal_of_a_run_replays_byte_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = str(tmp_path / "demo.journal")
    assert run(capsys, "sim", DEMO, "--journal", journal)[0] == 0
    code, out, err = run(capsys, "replay", journal)
    assert (code, err) == (0, "")
    assert out.startswith(f"{journal}: ")
    assert out.endswith("steps replayed, every decision byte-equal.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["demo.journal"]


def test_a_long_replay_shows_its_progress_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = str(tmp_path / "demo.journal")
    run(capsys, "sim", DEMO, "--journal", journal)
    monkeypatch.setattr("stead.commands.asking.STEPS_LONG", 1)
    assert run(capsys, "replay", journal)[2] == ""
    monkeypatch.setattr("stead.commands.asking.is_interactive", lambda: True)
    for words in ([], ["--ask", "render"]):
        code, out, err = run(capsys, "replay", journal, *words)
        assert (code, "replayed" in out, "replaying" in err) == (0, True, True)


def test_one_decision_of_a_journal_is_explained_as_it_was_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = str(tmp_path / "demo.journal")
    run(capsys, "sim", DEMO, "--journal", journal)
    told = ""
    for words in (["--ask", "urgent"], ["--at", "45s"], ["--ask", "web-2", "--at", "1m"]):
        told += f"$ stead replay demo.journal {' '.join(words)}\n{run(capsys, 'replay', journal, *words)[1]}"
    assert_golden("replay-journal.txt", told)
    found = json.loads(run(capsys, "replay", journal, "--json")[1])
    assert found == {"journal": journal, "steps": found["steps"], "oldest": 1, "equal": True}


def test_a_changed_journal_is_reported_with_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "demo.journal"
    run(capsys, "sim", DEMO, "--journal", str(journal))
    with closing(sqlite3.connect(journal)) as connection, connection:
        (name,) = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%decisions%'"
        ).fetchone()
        connection.execute(f"UPDATE {name} SET decisions = replace(decisions, 'cpu-a', 'cpu-b')")
    for words in ([], ["--ask", "cache"]):
        code, out, err = run(capsys, "replay", str(journal), *words)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "step 1" in err


def test_a_run_does_not_overwrite_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old").write_text("precious")
    code, out, err = run(capsys, "sim", DEMO, "--journal", str(tmp_path / "old"))
    assert (code, out) == (1, "")
    assert err == f"stead: {tmp_path}/old already exists; a run needs a new journal, so give another name\n"
    assert (tmp_path / "old").read_text() == "precious"


def test_the_seed_changes_what_the_random_policy_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "random.yaml"
    scenario.write_text(
        "nodes: {id: n, count: 8, capacity: {CPU: 9}}\nwork: {id: w, count: 9, policy: random, resources: {CPU: 1}}"
    )
    runs = {seed: run(capsys, "sim", str(scenario), "--seed", seed)[1] for seed in "123"}
    assert len(set(runs.values())) > 1
    assert run(capsys, "sim", str(scenario), "--seed", "1")[1] == runs["1"]


ERRORS = [
    (["sim", "none.yaml"], 1, "stead: the scenario none.yaml cannot be read: No such file or directory"),
    (["replay", "none"], 1, "stead: there is no journal at none"),
    (["replay", "README.md"], 1, "stead: README.md cannot be used as a journal: file is not a database"),
    (
        ["why", "--scenario", DEMO, "rendr"],
        1,
        "stead: there is no work 'rendr' in this scenario (did you mean 'render'?)",
    ),
    (["smi"], 2, "stead: No such command 'smi'."),
    (["sim"], 2, "stead: Missing argument 'SCENARIO'. (see 'stead sim --help')"),
    (["sim", DEMO, "--until", "soon"], 2, "stead: Invalid value for '--until': must be a duration such as '90s'"),
    (["sim", DEMO, "--until", "²"], 2, "stead: Invalid value for '--until': must be a duration such as '90s'"),
    (["sim", DEMO, "--until", "nan"], 2, "stead: Invalid value for '--until': must be a duration such as '90s'"),
    (["sim", DEMO, "--until", "1e400"], 2, "stead: Invalid value for '--until': must be at most 1000000000000 seconds"),
    (["replay", "j" * 300], 1, f"stead: {'j' * 300} cannot be used: File name too long"),
    (["sim", DEMO, "--journal", "j" * 300], 1, f"stead: {'j' * 300} cannot be used: File name too long"),
    (["sim", DEMO, "--seed", "x"], 2, "stead: Invalid value for '--seed': 'x' is not a valid integer."),
    (["sim", DEMO, "--frobnicate"], 2, "stead: No such option"),
]


@pytest.mark.parametrize(("words", "code", "sentence"), ERRORS, ids=[" ".join(words)[:80] for words, _, _ in ERRORS])
def test_an_error_is_one_sentence_and_an_exit_code(
    words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, out, err = run(capsys, *words)
    assert (found, out) == (code, "")
    assert err.startswith(sentence)
    assert err.count("\n") == 1


@pytest.mark.parametrize("error", [MemoryError(), OverflowError("int too large")])
def test_running_out_of_memory_is_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_much(*_: object) -> None:
        raise error

    monkeypatch.setattr("stead.sim.scenario.load", too_much)
    sentence = "stead: this needs more memory than this machine has; use smaller counts\n"
    assert run(capsys, "sim", DEMO) == (1, "", sentence)


def test_no_arguments_shows_the_help_as_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: stead [OPTIONS] COMMAND")


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert run(capsys, "--version") == (0, f"stead {version('stead')}\n", "")


def test_an_interrupt_ends_with_130_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stead.sim.cluster.run", interrupted)
    code, out, err = run(capsys, "sim", DEMO)
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert err.strip() == "stead: interrupted"


def test_a_terminal_gets_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("stead.commands.simulating.is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = run(capsys, "sim", DEMO)
    assert "Waiting" in out
    assert "┃ who" in out
    assert "Tolerating gpu_node=true would be enough" in out


def test_a_long_timeline_is_cut_with_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stead.sim.report.TIMELINE_LINES_MAX", 3)
    _, plain, _ = run(capsys, "sim", DEMO)
    assert plain.splitlines()[-1].endswith("more lines; --json shows all")
    monkeypatch.setattr("stead.commands.simulating.is_terminal", lambda: True)
    _, tables, _ = run(capsys, "sim", DEMO)
    assert "more lines; --json shows all" in tables


@pytest.mark.parametrize(
    ("tty", "variables", "expected"),
    [
        (True, {"TERM": "xterm"}, True),
        (False, {"TERM": "xterm"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_tables_are_for_terminals_that_want_them(
    tty: bool, variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty, raising=False)
    assert output.is_terminal() is expected


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_header_of_a_table_is_highlighted_only_on_a_terminal(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: is_terminal)
    bold = ("\x1b[1m", "\x1b[0m") if is_terminal else ("", "")
    assert output.columns([("ID", "NONE"), ("a", "-"), ("bc", "-")]) == f"{bold[0]}ID{bold[1]}\na\nbc"


def test_a_closed_pipe_is_no_error() -> None:
    """`stead sim ... | head -1` closes the pipe early."""
    command = f"{sys.executable} -c 'import sys; from stead.cli import main; sys.exit(main())' sim {DEMO} --json"
    done = subprocess.run(["bash", "-c", f"{command} | head -1"], capture_output=True, text=True, check=True)
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


HEAVY = {"numpy", "yaml", "rich", "pydantic", "sqlite3", "ray", "fastapi", "uvicorn", "starlette", "jinja2"}


def loaded_by(*words: str) -> set[str]:
    """The modules that a command has imported, in its own process."""
    code = f"import sys; from stead.cli import main; main({list(words)!r}); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].strip("[]").replace("'", "").split(", "))


def test_help_needs_none_of_the_heavy_imports() -> None:
    """This keeps `stead --help` under 200 ms; the time itself is not tested, as machines differ."""
    loaded = loaded_by("--help")
    assert not loaded & HEAVY
    assert {name for name in loaded if name.startswith("stead")} == {"stead", "stead.cli", "stead.errors", "stead.text"}


@pytest.mark.parametrize(
    "command", ["nodes", "work", "taint", "why", "what-if", "serve", "token", "audit", "start", "scheduler"]
)
def test_the_help_of_a_command_needs_no_engine_and_no_server(command: str) -> None:
    assert not loaded_by(command, "--help") & {*HEAVY, "stead.engine", "stead.ray", "stead.service"}


def test_the_help_lists_every_command_with_its_own_line() -> None:
    from stead.cli import stead

    for section in COMMANDS.values():
        for name, (_, line) in section.items():
            command = stead.get_command(click.Context(stead), name)
            assert command is not None
            assert (command.name, command.short_help) == (name, line)


def test_control_c_reaches_a_real_process(tmp_path: Path) -> None:
    """A scenario that runs for years, interrupted once it has started to write its journal."""
    (tmp_path / "endless.yaml").write_text(
        "until: 10000d\n"
        "nodes: {id: n, capacity: {CPU: 1}, taints: 'out:NoExecute'}\n"
        "work: {id: w, resources: {CPU: 1}, tolerations: [{key: out, operator: Exists, seconds: 9}]}\n"
    )
    code = "import sys; from stead.cli import main; sys.exit(main())"
    words = ["sim", str(tmp_path / "endless.yaml"), "--journal", str(tmp_path / "j")]
    with subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True) as process:
        try:
            while not (tmp_path / "j-wal").exists() and process.poll() is None:
                os.sched_yield()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert err.strip() == "stead: interrupted"


def test_the_tests_of_control_c_hold_where_it_is_ignored() -> None:
    """As in the background of a script, or of a CI runner: a child inherits that Ctrl-C is ignored."""
    test = f"{__file__}::{test_control_c_reaches_a_real_process.__name__}"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", test]
    ignoring = ["bash", "-c", "trap '' INT; exec \"$@\"", "-", *words]
    done = subprocess.run(ignoring, check=False, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1].split(" in ")[0]) == (0, "1 passed")
