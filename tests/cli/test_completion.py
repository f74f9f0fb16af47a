"""Shell completion: the script, and the completions while the user types."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from click.shell_completion import BashComplete

from stead.cli import stead
from tests.serving import Served

Run = Callable[..., tuple[int, str, str]]

GPU = "0123456789abcdef0123456789abcdef0123456789abcdef01234567"


def completed(line: str) -> list[str]:
    """The completions of the last word of a line."""
    *words, begin = line.split(" ")[1:]
    shell = BashComplete(stead, {}, "stead", "_STEAD_COMPLETE")
    return [item.value for item in shell.get_completions(words, begin)]


def test_a_shell_asks_with_an_environment_variable(looked_at: Served) -> None:
    said = {"_STEAD_COMPLETE": "bash_complete", "COMP_WORDS": "stead drain spo", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from stead.cli import main; sys.exit(main())"],
        env={**os.environ, **said},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,spot-1\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_calls_stead_back(shell: str, run: Run) -> None:
    code, out, err = run("completion", shell)
    assert (code, err) == (0, "")
    assert f"_STEAD_COMPLETE={shell}_complete" in out


@pytest.mark.usefixtures("looked_at")
class TestOnAService:
    CASES: tuple[tuple[str, list[str]], ...] = (
        ("stead dr", ["drain"]),
        ("stead sub", ["submit"]),
        ("stead submit --to ", ["ray", "kubernetes", "sim"]),
        ("stead submit --sche", ["--scheduler-name"]),
        ("stead submit -o j", ["json", "jsonpath="]),
        ("stead convert --from k", ["kubernetes"]),
        ("stead drain --ev", ["--evict"]),
        ("stead drain cp", ["cpu-1", "cpu-2", "cpu-one", "cpu-two"]),
        ("stead uncordon sp", ["spot-1"]),
        ("stead taint ", ["nodes"]),
        ("stead taint nodes 01", [GPU]),
        ("stead taint nodes cpu-1 k", []),
        ("stead label nodes cpu-t", ["cpu-two"]),
        ("stead taint --node-id s", ["spot-1"]),
        ("stead what-if --drain cpu-o", ["cpu-one"]),
        ("stead why re", ["reader", "render"]),
        ("stead why ri", ["ring", "ring-1", "ring-2", "ring-3"]),
        ("stead replay --ask tr", ["train"]),
        ("stead nodes --format ", ["table", "wide", "name", "json", "yaml", "csv", "jsonpath="]),
        ("stead status -o j", ["json", "jsonpath="]),
        ("stead describe ", ["node", "work", "group"]),
        ("stead describe node cpu-o", ["cpu-one"]),
        ("stead describe work tr", ["train"]),
        ("stead token --role v", ["viewer"]),
    )

    @pytest.mark.parametrize(("line", "expected"), CASES, ids=[line for line, _ in CASES])
    def test_names_are_completed(self, line: str, expected: list[str]) -> None:
        assert completed(line) == expected


@pytest.mark.usefixtures("lone")
@pytest.mark.parametrize("address", ["", "127.0.0.1:6379", "http://127.0.0.1:1", "http://[", "http://"])
def test_without_an_answer_nothing_is_completed_and_nothing_printed(
    address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEAD_ADDRESS", address)
    assert (completed("stead drain c"), completed("stead why c")) == ([], [])
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("looked_at")
def test_a_refused_token_is_ignored(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("STEAD_TOKEN", "wrong")
    assert completed("stead drain sp") == []
    assert capfd.readouterr() == ("", "")
