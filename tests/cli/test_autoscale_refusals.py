"""`stead autoscale` refuses what it cannot do before it connects to a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from stead.cli import REFUSED, USAGE, main

GOOD = "provider: {type: raylets}\navailable_node_types: {cpu: {resources: {CPU: 1}}}\n"


@pytest.mark.parametrize(
    ("file", "words", "code", "says"),
    [
        (GOOD, ["--dry-run", "--once"], USAGE, "give --dry-run or --once, not both"),
        (GOOD, ["--down", "--down-on-exit"], USAGE, "--down ends by itself, so it takes no --down-on-exit"),
        (GOOD, ["-o", "yaml"], USAGE, "'yaml' is not one of 'text', 'json'"),
        (GOOD, ["--address", "http://127.0.0.1:8080"], REFUSED, "http://127.0.0.1:8080 is a service; give the Ray clu"),
        (GOOD, ["--address", "127.0.0.1:1"], REFUSED, "there is no Ray cluster at 127.0.0.1:1"),
        (GOOD.replace("raylets", "aws"), [], REFUSED, "stead launches nodes with raylets and kuberay, not with aws"),
        (GOOD.replace("CPU: 1", "CPU: x"), [], REFUSED, "available_node_types.cpu.resources: the amount of 'CPU' 'x'"),
        (None, [], REFUSED, "cluster.yaml cannot be read: No such file or directory"),
    ],
)
def test_refused_in_a_sentence(
    file: str | None,
    words: list[str],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if file is not None:
        Path("cluster.yaml").write_text(file)
    assert main(["autoscale", "--config", "cluster.yaml", *words]) == code
    printed = capsys.readouterr()
    assert says in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
