"""The same pages on a real Ray cluster: a person taints a node, sees that work avoids it, and undoes it."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.tabs import Visit
from tests.serving import Served, serving

ray: Any = pytest.importorskip("ray")

import stead  # noqa: E402
from stead.operate.snapshot import ALL  # noqa: E402
from stead.ray.local.local_cluster import LocalCluster  # noqa: E402
from stead.ray.remote_desk import remote_desk  # noqa: E402

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SOON_S = 60.0

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        for name in [name for name in os.environ if name.startswith(("RAY_", "__RAY_", "STEAD_"))]:
            patch.delenv(name)
        nodes: list[dict[str, Any]] = [
            {"num_cpus": 0},
            {"num_cpus": 2, "labels": {"zone": "a"}},
            {"num_cpus": 2, "labels": {"zone": "b"}},
        ]
        started = LocalCluster(nodes)
        try:
            stead.init(started.address, namespace="tests", log_to_driver=False, logging_level="error")
            yield started
        finally:
            ray.shutdown()
            started.close()


@pytest.fixture
def served(cluster: LocalCluster) -> Iterator[Served]:
    with serving(remote_desk()) as service:
        yield service


def where_am_i() -> str:
    return str(ray.get_runtime_context().get_node_id())


def until_there(path: str) -> str:
    import os
    import threading

    while not os.path.exists(path):
        threading.Event().wait(0.05)
    return str(ray.get_runtime_context().get_node_id())


def reload_until(page: Page, there: Locator) -> None:
    """Ray's changes are visible after a moment."""
    until = time.monotonic() + SOON_S
    while not there.count() and time.monotonic() < until:
        page.reload()
    expect(there.first).to_be_visible()


def test_work_avoids_a_node_that_is_tainted_by_page_and_starts_when_the_taint_is_removed(
    served: Served, visit: Visit, tmp_path: Path
) -> None:
    nodes = {view.labels["zone"]: view.id for view in remote_desk().nodes(ALL).items if "zone" in view.labels}
    tab = visit(served)
    tab.sign_in()
    page = tab.open("/ui/")
    page.get_by_label("Filter by labels").fill("zone=a")
    expect(page.locator("#map .t")).to_have_count(1)
    page.locator("#map .t").click()
    expect(page.locator("code").filter(has_text=nodes["a"]).first).to_be_visible()
    page.locator("#taint-key").fill("team")
    page.locator("#taint-value").fill("blue")
    page.get_by_role("button", name="Preview taint").click()
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#done")).to_contain_text("+team=blue", timeout=SOON_S * 1000)

    task: Any = ray.remote(num_cpus=1)(where_am_i)
    landed = ray.get([task.options(scheduling_strategy="SPREAD").remote() for _ in range(8)], timeout=SOON_S)
    assert set(landed) == {nodes["b"]}, "work avoids the node"

    over = tmp_path / "over"
    held: Any = ray.remote(num_cpus=2, max_retries=0)(until_there)
    refs = [held.remote(str(over)) for _ in range(2)]
    try:
        page.goto(f"{served.url}/ui/waiting")
        reload_until(page, page.get_by_role("article"))
        expect(page.get_by_role("article").first).to_contain_text("tainted team=blue")
        page.goto(f"{served.url}/ui/nodes/{nodes['a']}")
        page.get_by_role("button", name="Remove… the taint team").click()
        expect(page.locator("#try")).to_contain_text("would start")
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("#done")).to_contain_text("-team=blue", timeout=SOON_S * 1000)
        reload_until(page, page.get_by_role("link", name="until_there"))
    finally:
        over.touch()
    assert set(ray.get(refs, timeout=SOON_S)) == set(nodes.values()), "pending work has started on the node"
    page.goto(f"{served.url}/ui/events")
    expect(page.get_by_role("row", name=re.compile("team")).first).to_be_visible()
