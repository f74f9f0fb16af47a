"""Invalid input gives one sentence and the right exit code: 2 for wrong usage, 1 for a refusal."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving import Served

Run = Callable[..., tuple[int, str, str]]

GPU = "0123456789ab"

USAGE = [
    (["taint"], "name nodes, or give a selector, for example: -l zone=a (see 'stead taint --help')"),
    (["taint", "--node-id", "a", "--node-ip", "b", "--append", "k=v"], "name one node"),
    (["taint", "abcdef", "k=v:NoSchedule"], "'abcdef' is not expected here"),
    (["taint", "nodes"], "name a node after 'nodes'"),
    (["taint", "nodes", "abcdef"], "name a taint to set or to remove"),
    (["taint", "nodes", "abcdef", "k-", "--for", "2h"], "--for, --until-job and --owner are for taints that"),
    (
        ["taint", "nodes", "abcdef", "k=v:NoSchedule", "--for", "soon"],
        "Invalid value for '--for': must be a duration such as '90s'",
    ),
    (
        ["taint", "nodes", "abcdef", "k=v:NoSchedule", "--for", "0"],
        "Invalid value for '--for': must be longer than 0 seconds",
    ),
    (["taint", "nodes", "abcdef", "k=v", "--effect", "never"], "Invalid value for '--effect': taint effect"),
    (["label", "nodes", "abcdef"], "name a label to set or to remove, for example disk=ssd or disk-"),
    (["drain"], "name nodes, or give a selector, for example: -l zone=a (see 'stead drain --help')"),
    (["nodes", "--limit", "0"], "Invalid value for '--limit': 0 is not in the range"),
    (["nodes", "--format", "xml"], "Invalid value for '-o' / '--output' / '--format': 'xml' is not an output form"),
    (["nodes", "-o", "jsno"], "Invalid value for '-o' / '--output' / '--format': 'jsno' is not an output form (did"),
    (["nodes", "-o", "jsonpath={.a"], "Invalid value for '-o' / '--output' / '--format': jsonpath '{.a' has no"),
    (["status", "-o", "wide"], "Invalid value for '-o' / '--output' / '--format': 'wide' is not an output form"),
    (["why"], "give the id of one piece of work, or --spec FILE (see 'stead why --help')"),
    (["why", "x", "--spec", "y"], "give the id of one piece of work, or --spec FILE"),
    (["why", "x", "--until", "5m"], "--until needs a scenario; give --scenario FILE too"),
    (["why", "--scenario", "scenarios/demo.yaml"], "give the id of one piece of work, or --spec FILE"),
    (["why", "x", "--scenario", "y", "--address", "z"], "give --scenario or --address, not both"),
    (["what-if"], "give a change, for example --drain NODE, --add CPU=8 or --spec FILE"),
    (["what-if", "--count", "2"], "--count is the number of nodes to add"),
    (["what-if", "--add-like", "cpu-1", "--count", "0"], "Invalid value for '--count'"),
    (["replay"], "choose a decision with --ask ID, --at TIME or both; or give a journal file"),
    (
        ["replay", "--at", "yesterday"],
        "Invalid value for '--at': 'yesterday' is not a time; write '2026-01-31 12:00:00'",
    ),
    (["replay", "--at", "-5"], "Invalid value for '--at': '-5' is not a time"),
    (["replay", "--at", "1066-10-14"], "Invalid value for '--at': '1066-10-14' is not a time"),
    (["replay", "j", "--address", "http://127.0.0.1:1"], "give a journal file or --address, not both"),
    (["events", "--after", "-1"], "Invalid value for '--after'"),
    (["undo"], "Missing argument 'NUMBER'."),
    (["undo", "0"], "Invalid value for 'NUMBER': 0 is not in the range"),
    (["undo", "x"], "Invalid value for 'NUMBER': 'x' is not a valid integer range."),
    (["token"], "create a token with --role and --name, or give --list, or --revoke NAME"),
    (["token", "--list", "--revoke", "x"], "create a token with --role and --name, or give --list, or --revoke NAME"),
    (["token", "--role", "viewer"], "a new token needs a role and a name, for example --role viewer --name grafana"),
    (["token", "--role", "king", "--name", "x"], "Invalid value for '--role'"),
    (["serve", "--until", "5m"], "--until needs a scenario; give --scenario FILE too"),
    (["serve", "--scenario", "x", "--address", "y"], "give --scenario or --address, not both"),
    (["serve", "--address", "http://127.0.0.1:1"], "http://127.0.0.1:1 is a service;"),
    (["serve", "--port", "70000"], "Invalid value for '--port'"),
    (["serve", "--speed", "-1"], "Invalid value for '--speed'"),
    (["completion", "csh"], "Invalid value for '{bash|zsh|fish}': 'csh' is not one of"),
    (["tiant", "nodes"], "No such command 'tiant' (did you mean 'taint'?)."),
]

REFUSED = [
    (
        ["taint", "nodes", "abcdef", "k"],
        "taint 'k' names no effect; write 'k:NoSchedule' to set it or 'k-' to remove it",
    ),
    (["taint", "nodes", "abcdef", "k=v:Never"], "taint effect 'Never' is unknown"),
    (
        ["taint", "nodes", "abcdef", "k=v:NoExecute", "--effect", "NoSchedule"],
        "the effect of taint 'k=v:NoExecute' is given twice; leave out --effect or ':NoExecute'",
    ),
    (["taint", "nodes", "abcdef", "k=v:NoSchedule", "k-"], "taint k=v is set and removed in one change"),
    (["taint", "nodes", "abcdef", "k=v:NoSchedule", "k=w:NoSchedule"], "taint 'k' is given twice; give it"),
    (["taint", "--node-id", "abcdef", "--append", '{"k": 1}'], "the value of taint 'k'"),
    (["label", "nodes", "abcdef", "disk"], "labels 'disk' have the part 'disk' without '='"),
    (["label", "nodes", "abcdef", "disk=a", "disk-"], "label 'disk' is set and removed in one change"),
    (["label", "nodes", "abcdef", "disk=a", "disk=b"], "label 'disk' is given twice"),
    (["label", "nodes", "abcdef", "node_ip-"], "label 'node_ip' is set by stead on every node"),
    (["nodes", "--selector", "zone in"], "selector 'zone in'"),
    (["work", "--selector", "=="], "selector '=='"),
    (["why", "--spec", "none.yaml"], "none.yaml cannot be read: No such file or directory"),
    (["why", "--spec", "nul\0.yaml"], "nul\\x00.yaml cannot be read: it is not UTF-8 text"),
    (["why", "--spec", "two\nlines\x1b"], "two\\nlines\\x1b cannot be read: No such file or directory"),
    (["lint", "--spec", "."], ". cannot be read: Is a directory"),
    (["what-if", "--spec", "none.yaml"], "none.yaml cannot be read: No such file or directory"),
    (["what-if", "--add", "CPU"], "--add 'CPU' has the part 'CPU'; it must be like CPU=8,GPU=1,memory=64Gi"),
    (["what-if", "--add", "CPU=1,CPU=2"], "--add 'CPU=1,CPU=2' has the part 'CPU=2'"),
    (["what-if", "--add", ","], "--add ',' names no resource; it must be like CPU=8,GPU=1"),
    (["what-if", "--add", "{a"], "--add '{a': line 1: this is not YAML"),
    (["what-if", "--add", "{}\n---\n{}"], "--add '{}\\n---\\n{}': line 2: this is not YAML"),
    (["what-if", "--taint", "cpu-1", "k=v:Never"], "taint effect 'Never' is unknown"),
    (["what-if", "--untaint", "cpu-1", ""], "taint '-' has '' where a key was expected"),
    (["what-if", "--label", "cpu-1", ""], "--label cpu-1 '' has no label; good ones are disk=ssd and disk-"),
    (["replay", "none.journal"], "there is no journal at none.journal"),
    (["replay", "README.md"], "README.md cannot be used as a journal: file is not a database"),
    (["token", "--revoke", "nobody"], "there is no token named 'nobody'"),
    (["token", "--role", "viewer", "--name", "\n"], "the name '\\n' must have 1 to 64 printable characters"),
    (["serve", "--scenario", "none.yaml", "--port", "0"], "the scenario none.yaml cannot be read: No such file"),
    (
        ["serve", "--host", "nowhere.invalid", "--port", "0"],
        "on nowhere.invalid every request needs a token, and there is none",
    ),
    (
        ["serve", "--host", "0.0.0.0", "--port", "0"],
        "on 0.0.0.0 every request needs a token, and there is none yet; create one",
    ),
]

ON_A_CLUSTER = [
    (["taint", "nodes", "nobody", "k-"], "there is no node 'nobody' in this cluster; for example, there is "),
    (["label", "--node-ip", "10.9.9.9", "--remove", "k"], "there is no node '10.9.9.9' in this cluster"),
    (["drain", "cpu"], "there is no node 'cpu' in this cluster"),
    (["drain", "10.0.0.3"], f"'10.0.0.3' matches 2 nodes: {GPU}, spot-1; give the id of one, or --all"),
    (["taint", "--node-id", "cpu-one", "--append", "k=v"], "there is no node 'cpu-one' in this cluster"),
    (["taint", "nodes", "cpu-1", "none-"], "node cpu-one has no taint none; it has no taints"),
    (
        ["taint", "--node-id", GPU, "--remove", '{"gpu_node": "false"}'],
        f"node {GPU} has no taint gpu_node=false; it has gpu_node=true",
    ),
    (
        ["taint", "nodes", GPU, "gpu_node=false:NoSchedule"],
        f"node {GPU} is tainted gpu_node=true; to change it to gpu_node=false, give --overwrite",
    ),
    (
        ["taint", "nodes", GPU, "a-", "--effect", "NoSchedule"],
        f"node {GPU} has no taint a:NoSchedule; it has gpu_node=true",
    ),
    (["label", "nodes", "cpu-1", "none-"], "node cpu-one has no label none; it has disk=ssd,zone=a"),
    (
        ["label", "--node-id", "cpu-1", "--delete", '{"disk": "hdd"}'],
        "node cpu-one has no label disk=hdd; it has disk=ssd,zone=a",
    ),
    (["taint", "nodes", "cpu-1", "k=v:NoSchedule", "--until-job", "1"], "a simulation has no jobs"),
    (["nodes", "--filter", "colour=red"], "there is no field 'colour' to filter by"),
    (["nodes", "--filter", "zone"], "filter 'zone' must look like id=VALUE or id!=VALUE"),
    (["work", "--filter", "stat=waiting"], "there is no field 'stat' to filter by (did you mean 'state'?)"),
    (["groups", "--filter", "labels.a=b"], "there is no field 'labels.a' to filter by"),
    (["why", "nobody"], "there is no work 'nobody' in this cluster"),
    (["why", "--spec", "EMPTY"], "EMPTY: the file: must be a map with fields such as 'work', not None"),
    (["lint", "--spec", "CHANGES"], "a spec of work has no changes; good fields are work and groups"),
    (["why", "--spec", "BAD"], "work[0].selector: "),
    (["what-if", "--spec", "EMPTY"], "EMPTY: the file: must be a map with fields such as 'work', not None"),
    (["what-if", "--spec", "BAD"], "work[0].selector: "),
    (["what-if", "--drain", "nobody"], "changes[0].drain: there is no node 'nobody' in this cluster"),
    (["what-if", "--drain", "zone=c"], "no node has zone in {c}; `stead nodes` lists them with their labels"),
    (["what-if", "--add-like", "nobody"], "changes[0].join.like: there is no node 'nobody' in this cluster"),
    (["what-if", "--add", "CPU=many"], "--add 'CPU=many': the amount of 'CPU' 'many' is not a quantity"),
    (
        ["what-if", "--add", "{id: cpu-1, capacity: {CPU: 1}}"],
        "changes[0].join.id: the id 'cpu-1' is already used in the cluster",
    ),
    (["what-if", "--add", "{colour: red}"], "changes[0].join.colour: is not a known field"),
    (["replay", "--ask", "nobody"], "the journal has no decision about 'nobody'"),
    (["replay", "--at", "1h"], "the journal has no decision before that moment"),
    (["undo", "99"], "there is no audit entry 99; `stead audit` lists them"),
]

FILES = {
    "EMPTY": "",
    "CHANGES": "changes: [{drain: cpu-1}]\nwork: [{id: a}]",
    "BAD": "work: [{id: a, selector: 'zone in'}]",
}


def names(table: list[tuple[list[str], str]]) -> list[str]:
    return [" ".join(words) for words, _ in table]


def assert_one_sentence(found: tuple[int, str, str], code: int, sentence: str) -> None:
    assert (found[0], found[1]) == (code, "")
    assert found[2].startswith(f"stead: {sentence}"), found[2]
    assert found[2].count("\n") == 1
    assert "Traceback" not in found[2]


@pytest.mark.usefixtures("lone")
class TestBeforeConnecting:
    @pytest.fixture(autouse=True)
    def nothing_is_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def reached(*_: object) -> None:
            raise AssertionError("the arguments were not checked first")

        for name in ("nodes", "work", "asking", "what_if", "auditing", "describing", "tops"):
            monkeypatch.setattr(f"stead.commands.{name}.reached", reached)

    @pytest.mark.parametrize(("words", "sentence"), USAGE, ids=names(USAGE))
    def test_wrong_usage_exits_with_2(self, words: list[str], sentence: str, run: Run) -> None:
        assert_one_sentence(run(*words), 2, sentence)

    @pytest.mark.parametrize(("words", "sentence"), REFUSED, ids=names(REFUSED))
    def test_invalid_values_exit_with_1(self, words: list[str], sentence: str, run: Run) -> None:
        assert_one_sentence(run(*words), 1, sentence)


@pytest.mark.usefixtures("looked_at")
class TestOnACluster:
    @pytest.mark.parametrize(("words", "sentence"), ON_A_CLUSTER, ids=names(ON_A_CLUSTER))
    def test_a_refusal_exits_with_1(
        self, words: list[str], sentence: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, text in FILES.items():
            (tmp_path / name).write_text(text)
        monkeypatch.chdir(tmp_path)
        assert_one_sentence(run(*words), 1, sentence)

    def test_refusals_are_not_in_the_audit(self, run: Run) -> None:
        assert run("audit")[:2] == (0, "no changes\n")


COMMANDS = [
    ["status"],
    ["nodes"],
    ["work"],
    ["groups"],
    ["describe", "node", "x"],
    ["top"],
    ["events"],
    ["why", "x"],
    ["lint"],
    ["what-if", "--drain", "x"],
    ["replay", "--ask", "x"],
    ["taint", "nodes", "x", "k-"],
    ["label", "nodes", "x", "k-"],
    ["drain", "x"],
    ["uncordon", "x"],
    ["audit"],
    ["undo", "1"],
]


@pytest.mark.usefixtures("lone")
class TestWithoutAnAnswer:
    @pytest.mark.parametrize("words", COMMANDS, ids=map(" ".join, COMMANDS))
    def test_a_service_that_does_not_run(self, words: list[str], run: Run) -> None:
        with socket.socket() as taken:  # a port on which nothing listens
            taken.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{taken.getsockname()[1]}"
            found = run(*words, "--address", address)
        assert_one_sentence(found, 1, f"the service at {address} does not answer (")
        assert found[2].endswith("; start one with: stead serve\n")

    @pytest.mark.parametrize("address", ["http://", "http://[", "https://a b", "http://h:x", "http://h:0", "http://é"])
    def test_an_invalid_address(self, address: str, run: Run) -> None:
        assert_one_sentence(
            run("nodes", "--address", address), 1, f"address {address!r} must look like http://127.0.0.1:8625"
        )

    @pytest.mark.parametrize("words", COMMANDS, ids=map(" ".join, COMMANDS))
    def test_without_ray_a_command_says_what_to_install(
        self, words: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        sentence = f"stead: stead {words[0]} needs Ray; install it with pip install 'stead[ray]'\n"
        assert run(*words) == (1, "", sentence)

    def test_without_a_web_server_serve_says_what_to_install(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        sentence = "stead: stead serve needs a web server; install it with pip install 'stead[server]'\n"
        assert run("serve") == (1, "", sentence)

    def test_a_ray_cluster_that_does_not_run(self, run: Run) -> None:
        sentence = "stead: there is no Ray cluster at 127.0.0.1:1; start one with: stead start --head\n"
        assert run("nodes", "--address", "127.0.0.1:1") == (1, "", sentence)

    @pytest.mark.parametrize("words", COMMANDS, ids=map(" ".join, COMMANDS))
    def test_several_clusters_are_refused(self, words: list[str], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        services = pytest.importorskip("ray._private.services")
        monkeypatch.setattr(services, "find_gcs_addresses", lambda: {"10.0.0.2:6379", "10.0.0.1:6379"})
        monkeypatch.setattr("stead.ray.api.attach", lambda *_: pytest.fail("it guessed"))
        sentence = "there are 2 Ray clusters here: 10.0.0.1:6379, 10.0.0.2:6379; choose one: --address 10.0.0.1:6379"
        assert_one_sentence(run(*words), 1, sentence)


def test_the_token_of_one_service_is_not_shown_in_an_error(looked_at: Served, run: Run) -> None:
    for words, _ in ON_A_CLUSTER[:3]:
        assert looked_at.token not in "".join(map(str, run(*words)))
