"""What every command prints through a service: golden files of the text and of the JSON.

The cluster is `tests/golden/served.yaml` at its end; commands that change it have their own.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.golden_files import assert_golden
from tests.serving import Served

Run = Callable[..., tuple[int, str, str]]

GPU = "0123456789abcdef0123456789abcdef0123456789abcdef01234567"
SPEC, CHANGES = "tests/golden/work.yaml", "tests/golden/what-if.yaml"

LOOKS: dict[str, list[str]] = {
    "status": ["status"],
    "nodes": ["nodes"],
    "nodes-selector": ["nodes", "--selector", "zone = a"],
    "work": ["work"],
    "work-waiting": ["work", "--waiting"],
    "groups": ["groups"],
    "nodes-wide": ["nodes", "--output", "wide", "--sort-by", "name"],
    "describe-node": ["describe", "node", "cpu-one"],
    "describe-running": ["describe", "work", "train"],
    "describe-waiting": ["describe", "work", "big-2"],
    "describe-group": ["describe", "group", "ring"],
    "top": ["top"],
    "top-owners": ["top", "owners"],
    "events": ["events", "--after", "36"],
    "why-waits": ["why", "render"],
    "why-runs": ["why", "web-1"],
    "why-group": ["why", "ring"],
    "why-spec": ["why", "--spec", SPEC],
    "lint": ["lint"],
    "plan": ["plan"],
    "scale-none": ["scale"],
    "plan-kinds": ["plan", "--nodes", "tests/golden/kinds.yaml"],
    "lint-spec": ["lint", "--spec", SPEC],
    "what-if-evict": ["what-if", "--evict", "cpu-1"],
    "what-if-many": [
        "what-if",
        "--add-like",
        "cpu-2",
        "--count",
        "2",
        "--remove",
        "cpu-1",
        "--label",
        "cpu-2",
        "disk-",
    ],
    "what-if-spec": ["what-if", "--spec", CHANGES],
    "what-if-compare": ["what-if", CHANGES, "--compare", "tests/golden/other-changes.yaml"],
    "replay-ask": ["replay", "--ask", "late"],
    "replay-at": ["replay", "--at", "2026-01-01 00:00:20"],
    "audit-empty": ["audit"],
    "audit-verify": ["audit", "--verify"],
    "dry-run-taint": ["taint", "nodes", "cpu-1", "k=v:NoExecute", "--dry-run"],
    "dry-run-drain": ["drain", "cpu-2", "--dry-run"],
}
FOUND = {"lint", "lint-spec"}
"""Commands that exit with 1 because they find something."""

FILTERS = [
    (["nodes", "--filter", "draining=true"], ["spot-1"]),
    (["nodes", "--filter", "labels.zone=a", "--filter", "taints!=gpu_node"], ["cpu-1"]),
    (["nodes", "--filter", "ip=10.0.0.3", "-l", "zone in [b, c]"], ["spot-1"]),
    (["work", "--filter", "owner=blue"], ["cache"]),
    (["work", "--running", "--filter", "node=cpu-2", "--filter", "labels.app=web"], ["web-2"]),
    (["work", "-l", "app = cache"], ["cache"]),
    (["groups", "--filter", "state=waiting"], ["ring"]),
]

SAME = [
    (["--drain", "cpu-1"], {"changes": [{"drain": "cpu-1"}]}),
    (["--drain", "cpu-one"], {"changes": [{"drain": "cpu-1"}]}),
    (["--uncordon", "spot-1"], {"changes": [{"undrain": "spot-1"}]}),
    (["--remove", "cpu-1", "--remove", "cpu-2"], {"changes": [{"leave": ["cpu-1", "cpu-2"]}]}),
    (["--remove", "zone = a"], {"changes": [{"leave": ["cpu-1", GPU]}]}),
    (["--taint", "cpu-1", "k=v:NoExecute"], {"changes": [{"taint": "cpu-1", "taints": "k=v:NoExecute"}]}),
    (["--untaint", GPU[:12], "gpu_node-"], {"changes": [{"untaint": GPU, "key": "gpu_node"}]}),
    (["--untaint", GPU, "gpu_node:NoSchedule"], {"changes": [{"untaint": GPU, "key": "gpu_node"}]}),
    (["--label", "cpu-2", "disk=ssd,fast=yes"], {"changes": [{"label": "cpu-2", "labels": {"disk": "ssd"}}]}),
    (["--label", "cpu-1", "disk-"], {"changes": [{"label": "cpu-1", "remove": "disk"}]}),
    (["--add", "CPU=16"], {"changes": [{"join": {"id": "new", "capacity": {"CPU": 16}}}]}),
    (
        ["--add", "CPU=16", "--count", "2"],
        {"changes": [{"join": {"id": "new", "count": 2, "capacity": {"CPU": 16}}}]},
    ),
    (["--add", "{capacity: {CPU: 16}}"], {"changes": [{"join": {"id": "new", "capacity": {"CPU": 16}}}]}),
    (["--add-like", "cpu-2"], {"changes": [{"join": {"id": "new", "like": "cpu-2"}}]}),
]

SAYS = [
    (["taint", "nodes", "cpu-1", "k=v:NoSchedule"], "node/cpu-1 tainted"),
    (["taint", "node", "cpu-one", "k=v:NoSchedule", "l:NoExecute"], "node/cpu-one tainted"),
    (["taint", "nodes", GPU[:12], "gpu_node-"], f"node/{GPU[:12]} untainted"),
    (["taint", "nodes", GPU[:12], "gpu_node:NoSchedule-", "k=v:NoSchedule"], f"node/{GPU[:12]} modified"),
    (["taint", "nodes", GPU, "gpu_node=no:NoSchedule", "--overwrite"], f"node/{GPU} modified"),
    (
        ["taint", "nodes", "cpu-1", "k=v:NoSchedule", "--for", "2h", "--owner", "blue"],
        "node/cpu-1 tainted for 2h, by blue",
    ),
    (["label", "nodes", "cpu-1", "rack=7"], "node/cpu-1 labeled"),
    (["label", "nodes", "cpu-1", "disk-"], "node/cpu-1 unlabeled"),
    (["label", "nodes", "cpu-1", "disk-", "rack=7"], "node/cpu-1 labeled"),
    (["taint", "--node-id", "cpu-1", "--append", '{"k": "v"}'], "node cpu-one: tainted k=v"),
    (["taint", "--node-id", "cpu-1", "--apend", "{k:v}"], "node cpu-one: tainted k=v"),
    (
        ["taint", "--node-ip", "10.0.0.1", "--append", "k=v,l=w:NoExecute"],
        "node cpu-one: tainted k=v, l=w:no-execute",
    ),
    (
        ["taint", "--node-id", GPU[:6], "--remove", '{"gpu_node": "true"}'],
        f"node {GPU[:12]}: no longer tainted gpu_node=true",
    ),
    (["taint", "--node-id", GPU, "--delete", "gpu_node"], f"node {GPU[:12]}: no longer tainted gpu_node=true"),
    (
        ["taint", "--node-id", "cpu-1", "--append", "k=v", "--effect", "prefer-no-schedule"],
        "node cpu-one: tainted k=v:prefer-no-schedule",
    ),
    (
        ["label", "--node-id", "cpu-1", "--append", '{"disk": "hdd"}', "--remove", "zone"],
        "node cpu-one: labelled disk=hdd; no longer labelled zone",
    ),
    (["drain", "cpu-1"], "node cpu-one: takes no new work"),
    (["drain", "cpu-one", "--evict"], "node cpu-one: takes no new work, and running work is evicted"),
    (
        ["drain", "cpu-1", "--evict", "--rate", "10/s"],
        "node cpu-one: takes no new work, and running work is evicted",
    ),
    (["uncordon", "spot-1"], "node spot-1: takes work again"),
]


@pytest.mark.usefixtures("looked_at")
class TestLooking:
    @pytest.mark.parametrize("name", LOOKS)
    def test_the_text_is_as_in_the_golden_file(self, name: str, run: Run) -> None:
        code, out, err = run(*LOOKS[name])
        assert (code, err) == (int(name in FOUND), "")
        assert_golden(f"commands/{name}.txt", out)
        assert name.endswith("wide") or not re.search("[0-9a-f]{13}", out), "ids are short for people"

    @pytest.mark.parametrize("name", LOOKS)
    def test_the_json_is_as_in_the_golden_file(self, name: str, run: Run) -> None:
        code, out, err = run(*LOOKS[name], "-o", "json")
        assert (code, err) == (int(name in FOUND), "")
        assert_golden(f"commands/{name}.json.txt", out)

    @pytest.mark.parametrize("name", LOOKS)
    def test_yaml_has_the_same_content_as_json(self, name: str, run: Run) -> None:
        as_yaml = yaml.safe_load(run(*LOOKS[name], "--format", "yaml")[1])
        assert as_yaml == json.loads(run(*LOOKS[name], "--format", "json")[1])

    @pytest.mark.parametrize("name", ["status", "nodes", "work", "groups", "events"])
    def test_table_is_the_default(self, name: str, run: Run) -> None:
        assert run(name, "--format", "table") == run(name)

    @pytest.mark.parametrize("name", ["nodes", "work", "groups"])
    def test_detail_shows_the_same_fields_as_json(self, name: str, run: Run) -> None:
        shown = [yaml.safe_load(part) for part in run(name, "--detail")[1].split("\n\n")]
        assert shown == json.loads(run(name, "--json")[1])

    def test_a_cut_list_says_so_on_stderr(self, run: Run) -> None:
        code, out, err = run("nodes", "--limit", "1")
        assert (code, len(out.splitlines())) == (0, 2)
        assert err == "1 of 4 shown; see more with --limit 4, or less with --filter\n"

    @pytest.mark.parametrize(("words", "ids"), FILTERS, ids=[" ".join(words) for words, _ in FILTERS])
    def test_filters_and_selectors_choose(self, words: list[str], ids: list[str], run: Run) -> None:
        assert [each["id"] for each in json.loads(run(*words, "--json")[1])] == ids

    def test_an_empty_list_is_one_line(self, run: Run) -> None:
        assert run("nodes", "-l", "zone = c")[:2] == (0, "no node has zone in {c}\n")
        assert run("nodes", "--filter", "name=nobody")[:2] == (0, "no nodes\n")
        assert run("work", "--filter", "name=nobody")[:2] == (0, "no work\n")
        assert run("groups", "--filter", "name=nobody")[:2] == (0, "no groups\n")

    def test_the_beginning_of_an_id_is_enough(self, run: Run) -> None:
        assert run("why", "reader")[1] == run("why", "reade" + "r")[1]
        code, _, err = run("why", "nobody-1")
        assert (code, err.count("\n")) == (1, 1)
        assert "nobody-1" in err

    def test_what_if_changes_nothing(self, run: Run) -> None:
        before = run("nodes", "--json"), run("work", "--json")
        for words in (LOOKS[name] for name in LOOKS if name.startswith(("what-if", "dry-run"))):
            run(*words)
        assert (run("nodes", "--json"), run("work", "--json"), run("audit")[1]) == (*before, "no changes\n")

    @pytest.mark.parametrize(("words", "document"), SAME, ids=[" ".join(words) for words, _ in SAME])
    def test_an_option_of_what_if_is_one_change_of_the_document(
        self, words: list[str], document: Any, run: Run, tmp_path: Any
    ) -> None:
        (tmp_path / "changes.yaml").write_text(json.dumps(document))
        by_option = run("what-if", *words, "--json")
        assert by_option[0] == 0
        assert by_option == run("what-if", "--spec", str(tmp_path / "changes.yaml"), "--json")

    def test_a_spec_can_come_from_standard_input(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = run("why", "--spec", SPEC)
        monkeypatch.setattr("sys.stdin", io.StringIO(Path(SPEC).read_text(encoding="utf-8")))
        assert run("why", "--spec", "-") == expected

    def test_no_proxy_sees_a_token(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert run("nodes")[0] == 0

    def test_a_cluster_of_many_pages_is_read_page_by_page(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = run("work")[1], run("drain", "10.0.0.3")[2]
        monkeypatch.setattr("stead.operate.snapshot.PAGE_MAX", 3)
        monkeypatch.setattr("stead.operate.snapshot.Query.__post_init__", lambda _: None)
        assert (run("work")[1], run("drain", "10.0.0.3")[2]) == expected

    def test_node_ids_are_short_for_people_and_whole_for_scripts(self, run: Run) -> None:
        assert GPU not in run("nodes")[1] + run("work")[1] + run("why", "train")[1] + run("events")[1]
        assert GPU in run("nodes", "--json")[1]


class TestChanging:
    """kubectl's form prints kubectl's sentences, the options print stead's."""

    @pytest.mark.parametrize(("words", "sentence"), SAYS, ids=[" ".join(words) for words, _ in SAYS])
    def test_a_change_is_one_sentence_and_one_entry_of_the_audit_and_can_be_undone(
        self, words: list[str], sentence: str, left_as_it_was: Served, run: Run
    ) -> None:
        before, entries = (
            json.loads(run("nodes", "--json")[1]),
            json.loads(run("audit", "--verify", "--json")[1])["entries"],
        )
        assert run(*words) == (0, f"{sentence}\n", "")
        (entry,) = json.loads(run("audit", "--json", "--after", str(entries))[1])
        assert (entry["who"], entry["number"]) == ("operator", entries + 1)
        assert entry["before"] != entry["after"]
        assert json.loads(run("nodes", "--json")[1]) != before
        code, out, err = run("undo", str(entries + 1))
        assert (code, err) == (0, "")
        assert re.fullmatch(rf"node \S+: entry {entries + 1} is undone: .+\n", out)
        after = json.loads(run("nodes", "--json")[1])
        for node in (*before, *after):  # work that was placed or evicted in between stays so
            node["available"] = node["runs"] = node["sources"] = None
            for taint in node["taints"]:
                taint["since"] = None
        assert after == before

    def test_several_nodes_at_one_address_are_refused_without_all(self, changed: Served, run: Run) -> None:
        code, _, err = run("taint", "--node-ip", "10.0.0.3", "--append", "k=v")
        assert (code, err) == (
            1,
            f"stead: '10.0.0.3' matches 2 nodes: {GPU[:12]}, spot-1; give the id of one, or --all\n",
        )
        assert run("audit")[1] == "no changes\n"
        code, out, _ = run("taint", "--node-ip", "10.0.0.3", "--append", "k=v", "--all")
        assert (code, out) == (0, f"node {GPU[:12]}: tainted k=v\nnode spot-1: tainted k=v\n")
        code, out, _ = run("taint", "nodes", "10.0.0.3", "k-", "--all")
        assert (code, out) == (0, f"node/{GPU[:12]} untainted\nnode/spot-1 untainted\n")

    def test_kubectls_form_changes_a_value_only_with_overwrite(self, changed: Served, run: Run) -> None:
        assert run("taint", "nodes", "cpu-1", "k=v:NoSchedule")[0] == 0
        assert run("taint", "nodes", "cpu-1", "k=v:NoSchedule")[0] == 0
        code, _, err = run("taint", "nodes", "cpu-1", "k=w:NoSchedule")
        assert (code, err) == (1, "stead: node cpu-one is tainted k=v; to change it to k=w, give --overwrite\n")
        code, _, err = run("label", "nodes", "cpu-1", "disk=hdd")
        sentence = "stead: node cpu-one is labelled disk=ssd; to change it to disk=hdd, give --overwrite\n"
        assert (code, err) == (1, sentence)
        assert run("taint", "nodes", "cpu-1", "k=w:NoExecute")[0] == 0

    def test_an_owner_and_an_end_are_shown(self, changed: Served, run: Run) -> None:
        run("taint", "nodes", "cpu-1", "team=blue:NoSchedule", "--owner", "blue", "--for", "90m")
        assert "team=blue (1h30m left, by blue)" in run("nodes")[1]
        (node,) = json.loads(run("nodes", "--filter", "id=cpu-1", "--json")[1])
        assert node["taints"] == [
            {
                "key": "team",
                "value": "blue",
                "effect": "no-schedule",
                "since": 1767225690.0,
                "until": 1767231090.0,
                "until_job": "",
                "owner": "blue",
            }
        ]

    def test_the_audit_and_a_change_are_as_in_the_golden_files(self, changed: Served, run: Run) -> None:
        told = ""
        for words in (
            ["taint", "nodes", "cpu-1", "k=v:NoSchedule"],
            ["taint", "nodes", "cpu-1", "k-", "l=w:NoExecute"],
            ["label", "nodes", "cpu-2", "rack=7"],
            ["drain", "cpu-2"],
            ["undo", "3"],
            ["audit"],
            ["audit", "--limit", "1"],
            ["audit", "--after", "1", "--limit", "1"],
            ["audit", "--verify"],
        ):
            told += f"$ stead {' '.join(words)}\n{run(*words)[1]}"
        assert_golden("commands/audit.txt", told)
        told = run("taint", "nodes", "cpu-1", "m=n:NoSchedule", "--json")[1] + run("audit", "--limit", "2", "--json")[1]
        told = re.sub(r'("request": )"[0-9a-f]+"', r'\1"..."', told)
        assert_golden("commands/audit.json.txt", re.sub(r'("hash": )"[0-9a-f]{64}"', r'\1"..."', told))

    def test_an_entry_that_was_changed_since_cannot_be_undone(self, changed: Served, run: Run) -> None:
        run("taint", "nodes", "cpu-1", "k=v:NoSchedule")
        run("taint", "nodes", "cpu-1", "k=w:NoSchedule", "--overwrite")
        code, out, err = run("undo", "1")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith("stead: entry 1 cannot be undone: k:no-schedule of node cpu-one was changed since")

    KUBECTLS = (("--dry-run=client", True), ("--dry-run=server", True), ("--dry-run=none", False))

    @pytest.mark.parametrize(("option", "dry"), KUBECTLS)
    def test_kubectls_dry_run_is_accepted(self, option: str, dry: bool, changed: Served, run: Run) -> None:
        code, out, err = run("taint", "nodes", "spot-1", option, "k=v:NoSchedule")
        assert (code, err) == (0, "")
        said = "node/spot-1 tainted (dry run)\nNo work would be affected.\n" if dry else "node/spot-1 tainted\n"
        assert out == said
        assert ("k=v" in run("nodes")[1]) is not dry

    def test_a_label_that_is_there_already_is_not_labeled(self, changed: Served, run: Run) -> None:
        assert run("label", "nodes", "cpu-1", "disk=ssd")[:2] == (0, "node/cpu-1 not labeled\n")
        assert run("label", "nodes", "cpu-1", "disk=ssd", "rack=7")[:2] == (0, "node/cpu-1 labeled\n")
        assert run("label", "nodes", "cpu-1", "disk=ssd", "rack-")[:2] == (0, "node/cpu-1 unlabeled\n")

    def test_a_control_character_in_an_owner_is_refused_and_shown(self, changed: Served, run: Run) -> None:
        code, out, err = run("taint", "nodes", "cpu-1", "k=v:NoSchedule", "--owner", "\x1b]0;me\x07")
        assert (code, out) == (1, "")
        assert err.startswith("stead: owner '\\x1b]0;me\\x07' must have 1 to 256 printable characters")
        assert "k=v" not in run("nodes")[1]

    def test_a_viewer_can_read_and_not_change(self, changed: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STEAD_TOKEN", changed.keys.give("viewer", "ci"))
        assert run("nodes")[0] == 0
        code, out, err = run("drain", "cpu-1")
        assert (code, out) == (1, "")
        assert err == "stead: the token of 'ci' is a viewer's; a change needs an operator's\n"

    def test_a_wrong_token_is_refused_and_not_printed(
        self, changed: Served, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STEAD_TOKEN", "wrong-secret")
        code, out, err = run("drain", "cpu-1")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "wrong-secret" not in err
        assert "a token is required" in err
