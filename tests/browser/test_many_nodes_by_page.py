"""A person selects several nodes and changes them as one; sorts and filters tables; on a desktop and on a phone."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from stead.sim.desk import SimDesk
from tests.browser.tabs import Visit
from tests.browser.test_accessibility import PAGES, complaints
from tests.serving import Served

TABLES = ("/ui/?view=table", "/ui/work", "/ui/groups", "/ui/events", "/ui/history", "/ui/owners", "/ui/nodes/a100-a-1")
RED = "rgb(168, 35, 27)"

pytestmark = pytest.mark.long


class TestSelectedNodes:
    def test_are_tainted_as_one_from_the_map_and_undone(self, small_desk: tuple[SimDesk, Served], visit: Visit) -> None:
        desk, served = small_desk
        tab = visit(served)
        tab.sign_in()
        page = tab.open("/ui/")
        page.get_by_label("Select cpu-1").check()
        page.get_by_label("Select cpu-2").check()
        expect(page.locator("#message")).to_have_text("2 selected")
        page.get_by_label("Change", exact=True).select_option("Taint")
        page.get_by_label("Key").fill("team")
        page.get_by_label("Value").fill("blue")
        page.get_by_role("button", name="Preview the change of the selected nodes").click()
        expect(page.get_by_role("heading", name="Taint 2 nodes with team=blue:NoSchedule")).to_be_visible()
        assert not desk.node("cpu-1").taints
        page.get_by_role("button", name="Apply to 2 nodes").click()
        expect(page.locator("#done")).to_contain_text("taint +team=blue:no-schedule on 2 nodes by operator, entry 1")
        assert desk.node("cpu-1").taints and desk.node("cpu-2").taints
        page.locator("#done").get_by_role("button", name="Undo").click()
        expect(page.locator("#done")).to_contain_text("undo 1")
        assert not desk.node("cpu-2").taints

    def test_are_all_that_match_in_the_table_and_without_scripts(
        self, small_desk: tuple[SimDesk, Served], visit: Visit
    ) -> None:
        desk, served = small_desk
        tab = visit(served, java_script_enabled=False)
        tab.sign_in()
        page = tab.open("/ui/?view=table&q=zone%3Da")
        page.get_by_label("All 2 nodes that match").check()
        page.get_by_role("button", name="Preview the change of the selected nodes").click()
        page.get_by_role("button", name="Apply to 2 nodes").click()
        expect(page.locator("#done")).to_contain_text("drain draining on 2 nodes")
        assert [desk.node(id).draining for id in ("cpu-1", "cpu-2", "gpu")] == [True, True, False]

    def test_stay_selected_while_the_cluster_changes(self, small_desk: tuple[SimDesk, Served], visit: Visit) -> None:
        _, served = small_desk
        page = visit(served).open("/ui/")
        page.get_by_label("All 3 nodes").check()
        expect(page.get_by_label("Select gpu")).to_be_checked()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        with page.expect_request(lambda request: "/ui/strip" in request.url):
            pass
        with page.expect_request(lambda request: "/ui/strip" in request.url):
            pass
        assert not any("seen=" in url for url in asked), "the map does not update while nodes are selected"
        page.get_by_label("Select gpu").uncheck()
        expect(page.get_by_label("All 3 nodes")).not_to_be_checked()
        expect(page.get_by_label("Select cpu-1")).to_be_checked()

    def test_axe_finds_nothing_in_their_preview(self, small: Served, visit: Visit) -> None:
        tab = visit(small)
        tab.sign_in()
        for scheme in ("light", "dark"):
            tab.page.emulate_media(color_scheme=scheme)
            for path in ("/ui/change?do=taint&key=a&node=cpu-1&node=gpu", "/ui/compare?first=changes: []&second=a: 1"):
                tab.expected = ("400",)
                assert complaints(tab.open(path)) == []


class TestTables:
    def test_fit_a_desktop_without_horizontal_scrolling(self, shown: Served, visit: Visit) -> None:
        tab = visit(shown, viewport={"width": 1400, "height": 900})
        tab.expected = ("404", "400")
        wide = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
        assert {path: count for path in {*TABLES, *PAGES} if (count := tab.open(path).evaluate(wide))} == {}

    def test_are_sorted_by_keyboard(self, shown: Served, visit: Visit) -> None:
        page = visit(shown).open("/ui/work")
        head = page.get_by_role("columnheader", name="Work")
        expect(head).to_have_attribute("aria-sort", "none")
        head.get_by_role("link").focus()
        page.keyboard.press("Enter")
        expect(head).to_have_attribute("aria-sort", "ascending")
        expect(page.locator("tbody tr").first).to_contain_text("archive-1")
        head.get_by_role("link").focus()
        page.keyboard.press("Enter")
        expect(head).to_have_attribute("aria-sort", "descending")
        expect(page.locator("tbody tr").first).to_contain_text("transcode-")
        page.get_by_label("Name or id").fill("gateway")
        expect(page.locator("tbody tr")).to_have_count(6)
        assert "sort=-work" in page.url and "name=gateway" in page.url

    @pytest.mark.parametrize("path", TABLES)
    def test_are_cards_on_a_phone(self, path: str, shown: Served, visit: Visit) -> None:
        page = visit(shown, viewport={"width": 390, "height": 844}).open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert _height_of_frame(page) < 100
        rows = page.locator("table.cards-on-phone tbody tr")
        if rows.count():
            boxes = rows.first.locator("> *").evaluate_all("cells => cells.map(e => e.getBoundingClientRect().top)")
            tops = [top for top in boxes if top]  # empty cells are not shown
            assert len(set(tops)) == len(tops), "the cells of a row are below each other"


def _height_of_frame(page: Page) -> float:
    return float(page.evaluate("document.querySelector('.top').getBoundingClientRect().height"))


def test_red_is_only_for_evictions_and_repair(shown: Served, visit: Visit) -> None:
    page = visit(shown).open("/ui/")
    red = page.evaluate(
        """red => [...document.querySelectorAll('#map *')].filter(each => {
             const style = getComputedStyle(each);
             return [style.color, style.borderLeftColor, style.backgroundColor].includes(red);
           }).map(each => each.closest('li').innerText.split('\\n')[0])""",
        RED,
    )
    assert set(red) == {"l4-c-4"}, "the node in repair, and none of the healthy GPU pool"


def test_a_what_if_is_applied_and_two_are_compared(small_desk: tuple[SimDesk, Served], visit: Visit) -> None:
    desk, served = small_desk
    tab = visit(served)
    tab.sign_in()
    page = tab.open("/ui/what-if?kind=label&node=cpu-2&labels=disk%3Dhdd")
    page.get_by_role("link", name="Compare it with another what-if").click()
    expect(page.get_by_label("First what-if")).to_have_value(re.compile("disk: hdd"))
    page.get_by_label("Second what-if").fill("changes: [{untaint: gpu, key: gpu_node}]")
    page.get_by_role("button", name="Compare").click()
    both = page.get_by_role("table", name="Both what-ifs and now")
    expect(both.get_by_role("row", name=re.compile("^archive"))).to_contain_text("would start: cpu-2")
    tab.open("/ui/what-if?kind=label&node=cpu-2&labels=disk%3Dhdd")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#done")).to_contain_text("label +disk=hdd")
    assert desk.one("archive").node == "cpu-2"
