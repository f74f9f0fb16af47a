"""The pictures of docs/pages.md, made from scenarios/pages.yaml: STEAD_SCREENSHOTS=write takes them again."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.tabs import Visit
from tests.browser.test_accessibility import MANY
from tests.serving import Served, serving, simulated

ROOT = Path(__file__).parent.parent.parent
IMAGES = ROOT / "docs" / "images"
BYTES_MAX = 250_000
PICTURES = {
    "cluster-light": ("light", "/ui/"),
    "cluster-dark": ("dark", "/ui/"),
    "node-blast-radius": (
        "light",
        "/ui/nodes/a100-a-1?do=taint&key=repair&value=nvlink&effect=NoExecute&for=2h&owner=hardware",
    ),
    "several-nodes": (
        "light",
        "/ui/change?do=taint&key=team&value=blue&node=cpu-a-1&node=cpu-a-2&node=cpu-a-3",
    ),
    "waiting": ("light", "/ui/waiting"),
    "work": ("dark", "/ui/work/gateway-1"),
    "what-if": ("light", "/ui/what-if?kind=join&count=4&like=a100-a-1&kind=leave&node=cpu-a-1"),
    "scale": ("light", "/ui/scale"),
    "history": ("light", "/ui/history?ask=solver"),
}


def writes() -> bool:
    return os.environ.get("STEAD_SCREENSHOTS") == "write"


def take(page: Page, name: str, height: int = 900) -> None:
    full = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": 1280, "height": min(full, height)})
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled")


@pytest.mark.skipif(not writes(), reason="STEAD_SCREENSHOTS=write makes the pictures")
def test_make_the_pictures(shown: Served, visit: Visit) -> None:
    for name, (theme, path) in PICTURES.items():
        tab = visit(shown, color_scheme=theme)
        if "?" in path:  # a question in a URL needs a token
            tab.sign_in()
        page = tab.open(path)
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
        take(page, name, 1100)
    with simulated(MANY) as desk, serving(desk) as served:
        page = visit(served).open("/ui/")
        expect(page.locator("#map .t")).to_have_count(5000)
        page.locator("#map .t").nth(1510).hover()
        page.screenshot(path=IMAGES / "five-thousand.png", animations="disabled")


@pytest.mark.parametrize("name", [*PICTURES, "five-thousand"])
def test_a_picture_exists_and_is_small_and_shown(name: str) -> None:
    assert 10_000 < (IMAGES / f"{name}.png").stat().st_size < BYTES_MAX
    assert f"(images/{name}.png)" in (ROOT / "docs" / "pages.md").read_text(encoding="utf-8")


def test_no_picture_is_unused() -> None:
    shown = set(re.findall(r"images/([\w-]+)\.png", (ROOT / "docs" / "pages.md").read_text(encoding="utf-8")))
    assert {path.stem for path in IMAGES.glob("*.png")} == shown == {*PICTURES, "five-thousand"}
