"""The pages with a keyboard, with a screen reader, with a dark theme, on a phone and with 5,000 nodes."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from tests.browser.tabs import Visit
from tests.serving import Served, serving, simulated

PAGES = (
    "/ui/",
    "/ui/?view=table",
    "/ui/?q=zone%20in%20[",
    "/ui/nodes/a100-a-1",
    "/ui/nodes/a100-a-1?do=taint&key=repair&value=disk&effect=NoExecute",
    "/ui/nodes/nobody",
    "/ui/waiting",
    "/ui/work",
    "/ui/work/gateway-1",
    "/ui/work/solver",
    "/ui/groups",
    "/ui/groups/train-language",
    "/ui/what-if",
    "/ui/what-if?kind=leave&node=cpu-a-1&kind=join&count=2&like=a100-a-1&kind=written&text=work:%20[]",
    "/ui/scale",
    "/ui/events",
    "/ui/history?ask=solver",
    "/ui/change?do=drain&node=cpu-a-1&node=cpu-a-2",
    "/ui/compare?first=changes:%20[]",
    "/ui/about/etl-1",
    "/ui/groups/ranking-ps",
    "/login",
)

COLOURFUL = (
    *("/ui/", PAGES[4], "/ui/waiting", "/ui/work", PAGES[13], "/ui/scale"),
    *("/ui/events", "/ui/history?ask=nobody", "/login"),
)

MANY = """
title: five thousand
nodes:
  - {id: cpu-a, count: 1500, capacity: {CPU: 32}, labels: {zone: eu-1a, type: cpu}}
  - {id: cpu-b, count: 2300, capacity: {CPU: 32}, labels: {zone: eu-1b, type: cpu}}
  - {id: gpu-a, count: 700, capacity: {CPU: 48, GPU: 8}, labels: {zone: eu-1a, type: gpu}, taints: gpu=true}
  - {id: gpu-c, count: 500, capacity: {CPU: 48, GPU: 8}, labels: {zone: eu-1c, type: gpu}, taints: gpu=true}
work:
  - {id: web, count: 3000, resources: {CPU: 9}, policy: spread}
  - {id: batch, count: 1400, resources: {CPU: 14}, policy: pack}
  - {id: train, count: 900, resources: {GPU: 3, CPU: 6}, tolerations: gpu=true}
  - {id: tune, count: 500, resources: {GPU: 1, CPU: 11}, tolerations: gpu=true, policy: spread}
  - {id: wide, count: 200, resources: {CPU: 30}, selector: type=gpu}
events:
  - {at: 0, drain: [cpu-a-10, cpu-a-11]}
"""


def complaints(page: Page, *rules: str) -> list[str]:
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    found = Axe().run(page, options=options).response["violations"]
    return [f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}" for each in found]


@pytest.mark.long
@pytest.mark.parametrize(("theme", "rules"), [("light", ()), ("dark", ("color-contrast",))])
def test_axe_finds_nothing_on_any_page(theme: str, rules: tuple[str, ...], shown: Served, visit: Visit) -> None:
    """The dark theme differs only in its colors."""
    tab = visit(shown, color_scheme=theme)
    tab.expected = ("404", "400")
    found = {}
    for path in PAGES if theme == "light" else COLOURFUL:
        if complained := complaints(tab.open(path), *rules):
            found[path] = complained
    assert not found


def test_every_page_fits_a_phone_and_a_zoom_of_two(shown: Served, visit: Visit) -> None:
    tab = visit(shown, viewport={"width": 360, "height": 740})
    tab.expected = ("404", "400")
    too_wide = {}
    for path in PAGES:
        width = tab.open(path).evaluate("document.documentElement.scrollWidth")
        if width > 360:
            too_wide[path] = width
    assert not too_wide


def test_the_theme_follows_the_system_until_the_user_chooses(shown: Served, visit: Visit) -> None:
    page = visit(shown, color_scheme="dark").open("/ui/")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("radio", name="light").check(force=True)
    light = page.evaluate(ground)
    assert light != dark
    page.goto(page.url.replace("/ui/", "/ui/work"))
    assert page.evaluate(ground) == light, "the choice is stored"
    expect(page.get_by_role("radio", name="light")).to_be_checked()


def test_a_taint_is_set_by_keyboard_alone(small: Served, visit: Visit) -> None:
    tab = visit(small)
    tab.sign_in()
    page = tab.open("/ui/")
    keys = page.keyboard
    keys.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    keys.press("Enter")
    page.get_by_label("Show as").focus()
    keys.press("Tab")
    expect(page.get_by_role("link", name=re.compile("^cpu-1 "))).to_be_focused()
    keys.press("ArrowRight")
    expect(page.get_by_role("link", name=re.compile("^cpu-2 "))).to_be_focused()
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("cpu-2")
    page.locator("#taint-key").focus()
    for text in ("team", "blue"):
        keys.type(text)
        keys.press("Tab")
    keys.press("Enter")  # a select does not submit the form
    for _ in range(3):
        keys.press("Tab")
    keys.press("Enter")
    expect(page.get_by_role("heading", name="Taint cpu-2 with team=blue:NoSchedule")).to_be_focused()
    reached = False
    for _ in range(12):
        keys.press("Tab")
        reached = reached or page.evaluate("document.activeElement.textContent") == "Apply"
        if reached:
            break
    assert reached, "Apply is a few steps from the heading of the preview"
    keys.press("Enter")
    expect(page.locator("#done")).to_contain_text("+team=blue")
    expect(page.get_by_role("button", name="Undo", exact=True)).to_be_focused()
    keys.press("Enter")
    expect(page.locator("#done")).to_contain_text("-team=blue")


@pytest.mark.long
class TestFiveThousandNodes:
    def test_are_one_page_that_can_be_filtered_navigated_and_opened(self, visit: Visit) -> None:
        with simulated(MANY) as desk, serving(desk) as served:
            page = visit(served).open("/ui/")
            expect(page.locator("#map .t")).to_have_count(5000)
            size = len(page.content())
            assert size < 1_000_000, f"{size} characters"
            dots = page.locator("[data-tiles]").first.locator("a.t")
            dots.first.focus()
            expect(page.locator("#hint")).to_contain_text("cpu-a-1, ")
            page.keyboard.press("ArrowRight")
            page.keyboard.press("ArrowDown")
            assert (
                page.evaluate("document.activeElement.getBoundingClientRect().top")
                > (dots.nth(1).bounding_box() or {"y": 0})["y"]
            )
            stops = page.locator("[data-tiles] a.t:not([tabindex='-1'])").count()
            assert stops == 3, "a tab stop for each zone, not for each node"
            page.get_by_label("Filter by labels").fill("type=gpu and zone=eu-1c")
            expect(page.locator("#match")).to_have_text("500 of 5,000 nodes match")
            page.locator("#map .t").first.click()
            expect(page.get_by_role("heading", level=1)).to_have_text("gpu-c-1")

    def test_pass_axe_too(self, visit: Visit) -> None:
        fewer = MANY
        for count in ("1500", "2300", "700", "500"):
            fewer = fewer.replace(f"count: {count}", "count: 160")
        with simulated(fewer) as desk, serving(desk) as served:
            page = visit(served).open("/ui/")
            assert page.locator(".groups.dots").count() == 1
            assert complaints(page) == []
            page.get_by_label("Filter by labels").fill("zone=eu-1c")
            expect(page.locator(".groups.tiles")).to_have_count(1)
            assert complaints(page) == []
