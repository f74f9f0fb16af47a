"""Every command that prints a list prints it in every form, and sorted."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable

import pytest

from stead.commands.lists import Column, Listing
from stead.errors import Invalid
from tests.cli.test_on_a_service import GPU

Run = Callable[..., tuple[int, str, str]]

LISTS: dict[str, list[str]] = {
    "nodes": ["nodes"],
    "work": ["work"],
    "groups": ["groups"],
    "events": ["events"],
    "lint": ["lint"],
    "top": ["top"],
    "top owners": ["top", "owners"],
}
NAMES: list[tuple[list[str], list[str]]] = [
    (["nodes"], [GPU, "spot-1", "cpu-one", "cpu-two"]),
    (["nodes", "--filter", "id=cpu-1"], ["cpu-one"]),
    (["work", "--running", "--filter", "owner=blue"], ["cache"]),
    (["groups"], ["ring", "pair"]),
    (["lint"], ["typo", "big-1", "big-2"]),
    (["top", "--limit", "1"], ["cpu-one"]),
    (["top", "owners", "--sort-by", "id"], ["blue", "red"]),
    (["nodes", "--filter", "name=nobody"], []),
]
SORTED: list[tuple[list[str], str, list[str]]] = [
    (["nodes", "--sort-by", "cpu"], "{.items[*].available.CPU}", ["0.0", "2.0", "2.5", "7.0"]),
    (["nodes", "--sort-by", "-cpu"], "{.items[*].available.CPU}", ["7.0", "2.5", "2.0", "0.0"]),
    (["nodes", "--sort-by", "-total.CPU", "--limit", "1"], "{.items[*].id}", [GPU]),
    (["nodes", "--sort-by", "{.runs}"], "{.items[*].runs}", ["0", "1", "2", "5"]),
    (["nodes", "--sort-by", "name"], "{.items[*].id}", ["cpu-1", "cpu-2", GPU, "spot-1"]),
    (["nodes", "--sort-by", "-name"], "{.items[*].id}", ["cpu-2", "cpu-1", GPU, "spot-1"]),
    (["groups", "--sort-by", "-bundles"], "{.items[*].id}", ["ring", "pair"]),
    (["top", "--sort-by", "cpu%", "--limit", "2"], "{.items[*].id}", ["spot-1", GPU]),
    (["events", "--sort-by", "-number", "--after", "0", "--limit", "3"], "{.items[*].number}", ["3", "2", "1"]),
]
REFUSED: list[tuple[list[str], str]] = [
    (["nodes", "-o", "jsonpath={.name}"], "jsonpath takes the field 'name' of a list"),
    (
        ["nodes", "--sort-by", "nmae"],
        "cannot sort by 'nmae' (did you mean 'name'?); good columns are NODE,",
    ),
    (["work", "--sort-by", "["], "jsonpath '[' cannot be read"),
]


@pytest.mark.usefixtures("looked_at")
class TestForms:
    @pytest.mark.parametrize("name", LISTS)
    def test_csv_has_the_columns_of_the_table_and_a_row_for_each(self, name: str, run: Run) -> None:
        found = json.loads(run(*LISTS[name], "-o", "json")[1])
        code, out, err = run(*LISTS[name], "-o", "csv")
        rows = list(csv.reader(io.StringIO(out)))
        assert (code, err, len(rows)) == (int(name == "lint"), "", len(found) + 1)
        assert len({len(row) for row in rows}) == 1
        wide = run(*LISTS[name], "-o", "wide")[1].splitlines()[0].split("  ")
        assert {title.strip() for title in wide if title.strip()} <= set(rows[0])

    @pytest.mark.parametrize(("words", "names"), NAMES, ids=[" ".join(words) for words, _ in NAMES])
    def test_name_prints_one_name_on_each_line_and_nothing_else(
        self, words: list[str], names: list[str], run: Run
    ) -> None:
        _, out, err = run(*words, "-o", "name")
        assert (out.splitlines(), err) == (names, "")

    def test_a_name_is_taken_by_other_commands(self, run: Run) -> None:
        for name in run("nodes", "-o", "name")[1].split():
            assert run("nodes", name, "-o", "name") == (0, f"{name}\n", "")
        for id in run("work", "-o", "name")[1].split():
            assert run("why", id)[0] == 0

    @pytest.mark.parametrize(("words", "path", "expected"), SORTED, ids=[" ".join(words) for words, _, _ in SORTED])
    def test_lists_are_sorted_by_a_column_or_a_field_numbers_as_numbers(
        self, words: list[str], path: str, expected: list[str], run: Run
    ) -> None:
        code, out, _ = run(*words, "-o", f"jsonpath={path}")
        assert (code, out.split()) == (0, expected)

    def test_wide_adds_columns_and_cuts_nothing(self, run: Run) -> None:
        table, wide = run("work")[1], run("work", "-o", "wide")[1]
        assert "OWNER" not in table and "OWNER" in wide
        assert GPU not in run("nodes")[1] and GPU in run("nodes", "-o", "wide")[1]

    @pytest.mark.parametrize("words", [["--output", "json"], ["--format", "json"], ["--json"], ["-o", "json"]])
    def test_all_json_options_are_the_same(self, words: list[str], run: Run) -> None:
        assert run("nodes", *words) == run("nodes", "-ojson")

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["status", "-o", "jsonpath={.nodes} nodes"], "4 nodes\n"),
            (
                ["why", "typo", "-o", "jsonpath={.choices[0].refusals[*].code}"],
                "draining lacks-label tainted short-now\n",
            ),
            (["nodes", "-o", 'jsonpath={.items[?(@.draining==true)].id}{"\\n"}'], "spot-1\n"),
            (["work", "--filter", "name=nobody", "-o", "jsonpath={.items[*].id}"], ""),
        ],
    )
    def test_jsonpath_picks_values_of_every_command(self, words: list[str], expected: str, run: Run) -> None:
        assert run(*words) == (0, expected, "")

    @pytest.mark.parametrize(("words", "sentence"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
    def test_an_invalid_path_or_sort_field_is_one_sentence(self, words: list[str], sentence: str, run: Run) -> None:
        code, out, err = run(*words)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith(f"stead: {sentence}")

    def test_following_prints_no_table(self, run: Run) -> None:
        code, _, err = run("events", "-f", "-o", "csv")
        assert (code, err.startswith("stead: --follow prints each event when it happens")) == (2, True)


@pytest.mark.usefixtures("looked_at")
class TestNodesByName:
    @pytest.mark.parametrize(
        ("names", "ids"),
        [
            (["cpu-one"], ["cpu-1"]),
            (["cpu-2", "cpu-one"], ["cpu-2", "cpu-1"]),
            (["cpu-1", "cpu-one"], ["cpu-1"]),
            ([GPU[:8]], [GPU]),
            (["10.0.0.3"], [GPU, "spot-1"]),
        ],
    )
    def test_only_the_named_nodes_are_shown(self, names: list[str], ids: list[str], run: Run) -> None:
        assert [each["id"] for each in json.loads(run("nodes", *names, "--json")[1])] == ids

    def test_one_that_is_not_there_is_refused(self, run: Run) -> None:
        code, out, err = run("nodes", "cpu-one", "nobody")
        assert (code, out) == (1, "")
        assert err.startswith("stead: there is no node 'nobody' in this cluster")

    def test_names_and_conditions_cannot_be_combined(self, run: Run) -> None:
        code, _, err = run("nodes", "cpu-one", "-l", "zone=a")
        assert (code, "name nodes, or choose them with --selector and --filter, not both" in err) == (2, True)


class TestListing:
    LISTING: Listing[dict[str, object]] = Listing(
        (
            Column("NAME", lambda each: str(each["name"])),
            Column("NOTE", lambda each: str(each.get("note", ""))),
        ),
        lambda each: str(each["name"]),
        lambda each: each,
    )

    def test_a_cell_cannot_move_the_cursor_or_break_a_row_of_csv(self) -> None:
        items: list[dict[str, object]] = [{"name": "a\x1b[2J", "note": 'say "hi", you\nthere'}]
        assert self.LISTING.text("csv", items) == 'NAME,NOTE\na\\x1b[2J,"say ""hi"", you\\nthere"'
        assert self.LISTING.text("name", items) == "a\\x1b[2J"

    def test_numbers_in_names_are_compared_as_numbers_and_missing_values_come_last(self) -> None:
        items: list[dict[str, object]] = [{"name": name} for name in ("node-10", "", "node-2", "a")]
        assert [each["name"] for each in self.LISTING.sorted(items, "name")] == ["a", "node-2", "node-10", ""]
        assert [each["name"] for each in self.LISTING.sorted(items, "-name")] == ["node-10", "node-2", "a", ""]

    def test_equal_items_keep_their_order_in_both_directions(self) -> None:
        items: list[dict[str, object]] = [{"name": name, "rank": 1} for name in "bac"]
        assert self.LISTING.sorted(items, "rank") == self.LISTING.sorted(items, "-rank") == items

    def test_values_of_several_kinds_can_be_compared(self) -> None:
        items: list[dict[str, object]] = [{"name": n, "x": x} for n, x in zip("abcd", ["t", 3, None, [1]], strict=True)]
        assert [each["name"] for each in self.LISTING.sorted(items, "x")] == ["d", "b", "a", "c"]

    def test_an_unknown_field_is_refused(self) -> None:
        with pytest.raises(Invalid, match="cannot sort by 'rnak'"):
            self.LISTING.sorted([{"name": "a", "rank": 1}], "rnak")
        assert self.LISTING.sorted([], "rnak") == []
