"""A real browser for the pages: the machine's own chromium, and the services that tests use.

`visit(served)` opens a tab that records every request, console message and violation of the content security policy; a
test fails on an unexpected one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, expect, sync_playwright

from stead.sim.desk import SimDesk
from tests.autoscaled import ATLAS, report_scaling
from tests.browser.tabs import Tab, Visit
from tests.serving import Served, serving, simulated

ROOT = Path(__file__).parent.parent.parent
SHOWN = ROOT / "scenarios" / "pages.yaml"
WAIT_MS = 60_000

SMALL = """
title: small
nodes:
  - {id: cpu, count: 2, capacity: {CPU: 4}, labels: {zone: a, disk: ssd}}
  - {id: gpu, capacity: {CPU: 4, GPU: 1}, labels: {zone: b}, taints: "gpu_node=true"}
work:
  - {id: web, count: 2, resources: {CPU: 2}, labels: {app: web}, selector: zone=a, owner: shop}
  - {id: train, resources: {GPU: 1}, tolerations: gpu_node}
  - {id: render, count: 3, resources: {GPU: 1}, owner: films}
  - {id: archive, resources: {CPU: 1}, selector: disk=hdd}
groups:
  - {id: pair, bundles: [{CPU: 1}, {CPU: 1}], strategy: STRICT_SPREAD}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for each module: its event loop occupies this thread while it exists."""
    found = shutil.which("chromium")
    if found is None:
        missing = "there is no chromium on this machine, and pages are tested in a real browser; run: make browser"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def shown() -> Iterator[Served]:
    """The cluster of the screenshots, with an autoscaler. No test changes it."""
    with simulated(SHOWN) as desk, serving(desk) as served:
        report_scaling(desk, *ATLAS)
        yield served


@pytest.fixture
def small() -> Iterator[Served]:
    """Three nodes that a test may change."""
    with simulated(SMALL) as desk, serving(desk) as served:
        yield served


@pytest.fixture
def small_desk() -> Iterator[tuple[SimDesk, Served]]:
    with simulated(SMALL) as desk, serving(desk) as served:
        yield desk, served


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    tabs: list[Tab] = []
    contexts = []

    def open_tab(served: Served, **options: Any) -> Tab:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        tab = Tab(context.new_page(), served)
        own = urlsplit(served.url).netloc
        page = tab.page

        def asked(address: str) -> None:
            parts = urlsplit(address)
            if parts.scheme not in ("data", "blob") and parts.netloc != own:
                tab.wrong.append(f"asked another site: {address}")

        def told(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                tab.wrong.append(f"console: {message.text}")

        def opened(dialog: Dialog) -> None:
            tab.wrong.append(f"a dialog: {dialog.message}")
            dialog.dismiss()

        page.on("request", lambda request: asked(request.url))
        page.on("pageerror", lambda error: tab.wrong.append(f"a script failed: {error}"))
        page.on("console", told)
        page.on("dialog", opened)
        page.add_init_script(
            "document.addEventListener('securitypolicyviolation', e => console.error('csp ' + e.violatedDirective))"
        )
        tabs.append(tab)
        return tab

    yield open_tab
    wrong = [each for tab in tabs for each in tab.unexpected()]
    for context in contexts:
        context.close()
    assert not wrong, wrong
