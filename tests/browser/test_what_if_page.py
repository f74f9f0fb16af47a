"""A person previews changes before applying them: from pending work, and row by row."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.tabs import Visit
from tests.serving import Served


def test_the_smallest_change_for_pending_work_opens_as_a_what_if(small: Served, visit: Visit) -> None:
    page = visit(small).open("/ui/waiting")
    card = page.get_by_role("article", name=re.compile("^archive"))
    expect(card).to_contain_text("Allowing disk=ssd would be enough")
    card.get_by_role("link", name="Try it as a what-if").click()
    expect(page.get_by_label("Work", exact=True)).to_have_value("archive")
    page.get_by_role("button", name="Show what would happen").click()
    expect(page.locator(".note")).to_contain_text("Allowing disk=ssd would be enough")
    row = page.get_by_role("row", name=re.compile("^archive"))
    expect(row).to_contain_text("pending")
    expect(row.get_by_role("link", name=re.compile("^cpu-"))).to_be_visible()


def test_a_what_if_is_built_row_by_row(small: Served, visit: Visit) -> None:
    page = visit(small).open("/ui/what-if")
    page.get_by_role("button", name="Add nodes").click()
    expect(page.get_by_label("How many")).to_be_focused()
    page.get_by_label("How many").fill("2")
    page.get_by_label("or with").fill("CPU=4, GPU=1")
    page.get_by_role("button", name="Remove a node").click()
    page.get_by_label("Node", exact=True).fill("cpu-2")
    page.get_by_role("button", name="Add work").click()
    page.get_by_role("group", name="3. Add work").get_by_label("Each needs").fill("CPU=100")
    page.get_by_role("button", name="Show what would happen").click()
    expect(page.get_by_role("heading", name="What would happen")).to_be_focused()
    numbers = page.get_by_role("table", name="Now and after the changes, in numbers")
    expect(numbers.get_by_role("row", name=re.compile("^After"))).to_contain_text("4")
    fates = page.get_by_role("table", name="What would happen to the work")
    expect(fates).to_contain_text("render-1")
    expect(fates).to_contain_text("new-1-1")
    page.get_by_role("button", name="Remove row 1").click()
    expect(page.get_by_role("group", name="1. Remove a node")).to_be_visible()
    expect(page.get_by_role("group", name=re.compile("Add nodes"))).to_have_count(0)


@pytest.mark.long
def test_a_what_if_can_be_sent_to_a_colleague(small: Served, visit: Visit) -> None:
    page = visit(small).open("/ui/what-if")
    page.get_by_role("button", name="Taint a node").click()
    page.get_by_label("Node", exact=True).fill("gpu")
    page.get_by_label("Taint", exact=True).fill("repair=yes:NoExecute")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="lose its place")).to_be_visible()
    address = page.get_by_role("link", name="A link to this what-if").get_attribute("href")
    assert address
    other = visit(small).open(address)
    other.get_by_role("button", name="Show what would happen").click()
    expect(other.get_by_role("row", name=re.compile("^train"))).to_contain_text("pending")


def test_an_invalid_row_is_named_and_nothing_is_lost(small: Served, visit: Visit) -> None:
    tab = visit(small)
    tab.expected = ("400",)
    page = tab.open("/ui/what-if")
    page.get_by_role("button", name="Add work").click()
    page.get_by_label("Each needs").fill("four")
    page.get_by_role("button", name="Show what would happen").click()
    expect(page.get_by_role("alert")).to_have_text(
        "Row 1 (add work): amounts 'four' has the part 'four'; it must be like CPU=8,GPU=1,memory=64Gi"
    )
    expect(page.get_by_label("Each needs")).to_have_value("four")


def test_a_what_if_can_be_a_document(small: Served, visit: Visit) -> None:
    page = visit(small).open("/ui/what-if")
    page.get_by_role("button", name="As a file").click()
    page.get_by_label("Changes and work, in YAML").fill("work:\n- {id: trial, resources: {CPU: 1}}\n")
    page.get_by_role("button", name="Show what would happen").click()
    expect(page.get_by_role("row", name=re.compile("^trial"))).to_contain_text("not submitted")


def test_it_works_without_scripts(small: Served, visit: Visit) -> None:
    page = visit(small, java_script_enabled=False).open("/ui/what-if")
    page.get_by_role("button", name="Drain a node").click()
    page.get_by_label("Node", exact=True).fill("cpu-1")
    page.get_by_role("button", name="Show what would happen").click()
    expect(page.get_by_text("could not be placed there again").first).to_be_visible()
