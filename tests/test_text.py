"""Text for people: safe to print, short, and grammatical."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.errors import absent, check_name, several
from stead.text import SHORT, Titles, first_few, joined, plural, printable, quoted, short_id, with_names
from tests.language.sentences import refused

NODE = "0123456789abcdef" * 3 + "01234567"
HEX = st.text("0123456789abcdef", min_size=56, max_size=56)


@given(st.text())
def test_printed_text_has_no_control_characters(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(text, keep="\n").replace("\n", "").isprintable()
    assert printable(printable(text)) == printable(text)


def test_a_control_or_bidi_character_is_shown() -> None:
    assert printable("a\x1b[2J\u202eb") == "a\\x1b[2J\\u202eb"


@pytest.mark.parametrize("name", ["", " a", "a ", "a\n", "a\u202eb", "a\u3164b", "x" * 65])
def test_a_name_that_could_look_like_another_is_refused(name: str) -> None:
    with refused("the name ", "must have 1 to 64 printable characters and no spaces at either end, like 'ci'"):
        check_name("the name", name, 64, "ci")


def test_a_name_that_can_be_read_is_taken() -> None:
    check_name("the name", "Zo\u00eb of ml-team", 64, "ci")


@pytest.mark.parametrize(("count", "said"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (12_000, "12,000 nodes")])
def test_things_are_counted(count: int, said: str) -> None:
    assert plural(count, "node") == said
    assert plural(2, "entry", "entries") == "2 entries"


@pytest.mark.parametrize(("items", "said"), [("", ""), ("a", "a"), ("ab", "a and b"), ("abc", "a, b and c")])
def test_things_are_listed_in_a_sentence(items: str, said: str) -> None:
    assert joined(items) == said


@pytest.mark.parametrize(("items", "said"), [("", ""), ("a", "a"), ("abc", "a, b, c"), ("abcde", "a, b, c and 2 more")])
def test_of_a_long_list_the_first_few_are_shown(items: str, said: str) -> None:
    assert first_few(items, 3) == said


def test_a_quoted_value_is_short() -> None:
    assert quoted("gpu-1") == "'gpu-1'"
    assert len(quoted("x" * 10_000)) == len(quoted(["x" * 10_000])) - 2 == 100


@pytest.mark.parametrize(
    ("id", "shown"),
    [
        ("cpu-1", "cpu-1"),
        ("gpu-node-of-the-blue-team-in-zone-b", "gpu-node-of-the-blue-team-in-zone-b"),
        (NODE, "0123456789ab"),
        (f"{NODE[:36]}/0/1", "0123456789ab/0/1"),
        ("01234567-89ab-cdef-0123-456789abcdef", "01234567-89a"),
        ("deadbeef", "deadbeef"),
        ("x" * 61, "x" * 59 + "…"),
    ],
)
def test_a_generated_id_is_shortened(id: str, shown: str) -> None:
    assert short_id(id) == shown


def test_ids_in_a_text_are_replaced_by_names() -> None:
    text = f"node_id in {{{NODE}}}; near {NODE[:32]}, {NODE}x and a-{NODE}"
    assert with_names(text, lambda id: "gpu-1" if id == NODE else short_id(id)) == (
        f"node_id in {{gpu-1}}; near {NODE[:SHORT]}, {NODE}x and a-{NODE}"
    )


@given(st.dictionaries(HEX | HEX.map(lambda id: "0" * 50 + id[:6]), st.sampled_from(["", "", "a", "b", "c"])))
def test_a_title_is_unique(names: dict[str, str]) -> None:
    titles = Titles(names)
    for id, name in names.items():
        title = titles[id]
        if name and list(names.values()).count(name) == 1:
            assert title == name
        else:
            assert len(title) >= SHORT
            assert [other for other in names if other.startswith(title)] == [id]


def test_a_title_of_what_is_not_there_is_short() -> None:
    assert Titles({})[NODE] == NODE[:SHORT]


def test_an_unknown_name_is_refused_with_the_nearest_or_an_example() -> None:
    assert absent("node", "gpu-9", ["gpu-1", "x"]) == "there is no node 'gpu-9' in this cluster (did you mean 'gpu-1'?)"
    assert absent("node", "y", ["gpu-1", "x"]) == "there is no node 'y' in this cluster; for example, there is 'gpu-1'"
    assert absent("node", "y", []) == "there is no node 'y' in this cluster"


def test_an_ambiguous_name_is_refused_with_all_matches() -> None:
    assert several("a", ["a-1", "a-2"], "nodes") == "'a' matches 2 nodes: a-1, a-2; give the id of one"
