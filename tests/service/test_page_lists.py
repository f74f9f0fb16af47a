"""Lists on the pages: sorted by their headers, filtered by fields, equal groups once; and what is an alarm."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from stead.engine.explain.events import Event, EventKind
from stead.language.taints import Effect, Taint
from stead.operate.audit import Author
from stead.operate.changes import NodeChange
from stead.operate.ordering import natural
from stead.service.pages.sorting import Column, heads, known, ordered_by
from stead.service.pages.wording import TIMES, event_tone, tone
from stead.sim.desk import SimDesk
from tests.service.asking import Service
from tests.service.page_forms import look, words_of
from tests.serving import simulated

NAMES: Column[str] = Column("name", "Name", lambda text: text)
GANGS = """
nodes: [{id: a, capacity: {CPU: 4, GPU: 1}}, {id: b, capacity: {CPU: 4}}]
groups:
  - {id: gang, count: 40, bundles: [{GPU: 2}, {GPU: 2}], strategy: SPREAD, owner: vision}
  - {id: other, bundles: [{GPU: 2}, {GPU: 2}], strategy: SPREAD, owner: speech}
  - {id: placed, bundles: [{CPU: 1}, {CPU: 1}], strategy: STRICT_SPREAD, owner: speech}
work:
  - {id: web, count: 3, resources: {CPU: 1}, owner: shop}
"""


@pytest.fixture
def gangs() -> Iterator[SimDesk]:
    with simulated(GANGS) as desk:
        yield desk


@pytest.fixture
def crowded(service: Service, gangs: SimDesk) -> Service:
    service.desk.instead(lambda: gangs)
    return service


def rows_of(page: str) -> list[str]:
    """The first cell of each row."""
    return [words_of(row).strip() for row in re.findall(r'<tr><th scope="row">(.*?)</th>', page, re.DOTALL)]


class TestSorting:
    @pytest.mark.parametrize(
        ("sort", "expected"),
        [
            ("name", ["cpu-2", "cpu-10", "GPU-1", ""]),
            ("-name", ["GPU-1", "cpu-10", "cpu-2", ""]),
            ("", ["cpu-10", "", "GPU-1", "cpu-2"]),
            ("nothing", ["cpu-10", "", "GPU-1", "cpu-2"]),
        ],
    )
    def test_is_natural_and_puts_missing_values_last(self, sort: str, expected: list[str]) -> None:
        assert ordered_by(["cpu-10", "", "GPU-1", "cpu-2"], [NAMES], sort) == expected

    def test_a_header_shows_its_order_and_links_to_the_other(self) -> None:
        number: Column[str] = Column("size", "Size", len, is_number=True)
        fixed: Column[str] = Column("rules", "Rules")
        name, size, rules = heads([NAMES, number, fixed], "name", lambda order: f"?sort={order}")
        assert (name.order, name.address) == ("ascending", "?sort=-name")
        assert (size.order, size.address) == ("none", "?sort=-size")
        assert (rules.order, rules.address) == ("", "")
        assert known([NAMES, fixed], "rules") == "" == known([NAMES], "x") and known([NAMES], "-name") == "-name"

    def test_any_text_can_be_compared(self) -> None:
        assert sorted(["b", "1", "a1", "", "²", "a10", "a2"], key=natural) == ["", "1", "a1", "a2", "a10", "b", "²"]

    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("/ui/?view=table&sort=-use.CPU", "cpu-one"),
            ("/ui/?view=table&sort=node", "0123456789ab"),
            ("/ui/work?sort=-work", "web-3"),
            ("/ui/work?sort=node&state=running", "train"),
            ("/ui/groups?sort=-members", "ring"),
        ],
    )
    def test_a_list_is_sorted_by_its_url(self, service: Service, path: str, expected: str) -> None:
        page = look(service, path)
        assert rows_of(page)[0].split()[0] == expected
        assert len(re.findall(r'aria-sort="(?:ascending|descending)"', page)) == 1

    @pytest.mark.parametrize("path", ["/ui/?view=table", "/ui/work", "/ui/groups"])
    def test_an_unknown_order_is_no_order(self, service: Service, path: str) -> None:
        mark = "&" if "?" in path else "?"
        assert rows_of(look(service, f"{path}{mark}sort=-nonsense")) == rows_of(look(service, path))


class TestFilters:
    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("name=WE", ["web-1", "web-2", "web-3"]),
            ("name=web&node=cpu-one", ["web-1", "web-3"]),
            ("kind=member&state=running", ["pair-1 of pair", "pair-2 of pair"]),
            ("owner=blue", ["cache"]),
            ("name=nothing", []),
        ],
    )
    def test_work_is_found_by_name_node_and_kind(self, service: Service, query: str, expected: list[str]) -> None:
        assert rows_of(look(service, f"/ui/work?{query}&sort=work")) == expected

    @pytest.mark.parametrize(
        ("query", "expected"),
        [("name=pa", ["pair"]), ("node=cpu-two", ["pair"]), ("kind=STRICT_SPREAD&state=waiting", ["ring"])],
    )
    def test_groups_are_found_by_name_node_and_strategy(
        self, service: Service, query: str, expected: list[str]
    ) -> None:
        assert rows_of(look(service, f"/ui/groups?{query}")) == expected

    @pytest.mark.parametrize("room", ["work", "groups"])
    def test_an_unknown_node_is_one_sentence(self, service: Service, room: str) -> None:
        assert "There is no node 'cpu-tow'" in words_of(look(service, f"/ui/{room}?node=cpu-tow"))

    def test_filters_are_kept_in_the_links_of_the_headers(self, service: Service) -> None:
        page = look(service, "/ui/work?name=web&kind=ask&node=cpu-one")
        assert 'href="/ui/work?name=web&amp;node=cpu-one&amp;kind=ask&amp;sort=work"' in page


def test_a_card_suggests_a_similar_name(service: Service) -> None:
    said = words_of(look(service, "/ui/waiting"))
    assert said.count("No node has the label gpu_tpye (did you mean 'gpu_type'?)") == 1
    assert "did you mean 'gpu_type'" in words_of(look(service, "/ui/work/typo"))


def test_a_page_calls_nodes_by_name_or_by_a_short_id(service: Service) -> None:
    for path in (
        "/ui/",
        "/ui/?view=table",
        "/ui/waiting",
        "/ui/work",
        "/ui/groups",
        "/ui/events",
        "/ui/use",
        "/ui/work/train",
    ):
        assert not re.search("[0-9a-f]{13}", words_of(look(service, path))), path


class TestEqualGroups:
    def test_forty_pending_gangs_are_one_card_with_a_count(self, crowded: Service) -> None:
        page = look(crowded, "/ui/waiting")
        said = words_of(page)
        assert page.count("<article") == 2, "the other owner's is another card"
        assert "40 groups of 2" in said and f"gang {TIMES}40" in said
        assert "82 pieces of work, 2 kinds" in said
        assert 'href="/ui/groups/gang-40"' in page, "each of them can be opened"

    def test_a_group_is_opened_by_its_name_or_id(self, crowded: Service) -> None:
        for path in ("/ui/groups/gang-1", "/ui/find?id=gang-1"):
            answered = crowded.ask("GET", path)
            assert answered.status == 200 or answered.headers["location"] == "/ui/groups/gang-1"


class TestAlarms:
    @pytest.mark.parametrize(
        ("taint", "expected"),
        [
            (Taint("gpu", "true"), "reserved"),
            (Taint("spot", "true", Effect.PREFER_NO_SCHEDULE), "soft"),
            (Taint("gone", "", Effect.NO_EXECUTE), "alarm"),
            (Taint("repair", "fan"), "alarm"),
            (Taint("hardware.example/needs-repair"), "alarm"),
            (Taint("repairable", "yes"), "reserved"),
        ],
    )
    def test_only_evictions_and_repair_are_alarms(self, taint: Taint, expected: str) -> None:
        assert tone(taint) == expected

    @pytest.mark.parametrize(
        ("kind", "text", "expected"),
        [
            ("tainted", "tainted gpu=true", "reserved"),
            ("tainted", "drained:no-execute", "alarm"),
            ("evicted", "evicted from a", "alarm"),
            ("placed", "placed on a", "k-placed"),
        ],
    )
    def test_events_have_the_same_style(self, kind: str, text: str, expected: str) -> None:
        assert event_tone(Event(1, 0.0, EventKind(kind), "x", text)) == expected

    def test_a_healthy_gpu_pool_has_no_alarm_on_the_map_and_in_the_table(self, service: Service) -> None:
        for path in ("/ui/", "/ui/?view=table"):
            shown = look(service, path).partition('id="map"')[2]
            assert "alarm" not in shown and "reserved" in shown
        service.desk.change(NodeChange("cpu-1", (Taint("repair", "disk"),)), Author("me"))
        assert "chip alarm" in look(service, "/ui/")


def test_the_title_of_the_cluster_is_in_the_frame_and_in_the_title_of_every_page(service: Service) -> None:
    for path in ("/ui/", "/ui/work", "/ui/history", "/ui/compare"):
        page = look(service, path)
        assert re.search(r"<title>[^<]* · small · stead</title>", page), path
        assert 'class="where"' in page and "<b>small</b>" in page


def test_the_menu_links_to_the_usage_page(service: Service) -> None:
    assert 'href="/ui/use"' in look(service, "/ui/")
