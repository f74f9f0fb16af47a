"""A person changes a node on its page: previews, signs in, applies and undoes it, or lacks the rights."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from stead.language.taints import Taint
from stead.operate.audit import Author
from stead.operate.changes import NodeChange
from stead.sim.desk import SimDesk
from tests.browser.tabs import Visit
from tests.serving import Served, serving, simulated


def try_taint(page: Page, key: str, value: str, effect: str = "NoSchedule", **more: str) -> None:
    """Fill in the form of the node page; `more` are its other fields."""
    form = page.locator("section", has=page.get_by_role("heading", name="Taints")).locator("form.add")
    form.get_by_label("Key").fill(key)
    form.get_by_label("Value").fill(value)
    form.get_by_label("Effect").select_option(effect)
    for name, said in more.items():
        form.get_by_label(name.capitalize(), exact=True).fill(said)
    form.get_by_role("button", name="Preview taint").click()


class TestATaint:
    def test_is_previewed_then_set_after_signing_in_and_then_undone(
        self, small_desk: tuple[SimDesk, Served], visit: Visit
    ) -> None:
        desk, served = small_desk
        page = visit(served).open("/ui/nodes/cpu-1")
        try_taint(page, "repair", "disk", "NoExecute", **{"for": "2h", "owner": "hardware"})
        preview = page.get_by_role("region", name="Taint cpu-1 with repair=disk:NoExecute")
        expect(preview).to_contain_text("Nothing has been changed yet")
        row = preview.get_by_role("row", name=re.compile("^web-1"))
        expect(row).to_contain_text("cpu-1")
        assert not desk.node("cpu-1").taints, "a preview changes nothing"

        page.get_by_role("link", name="Sign in to apply").click()
        page.get_by_label("Token").fill(served.token)
        page.keyboard.press("Enter")
        expect(preview).to_be_visible()  # back on the same page
        page.get_by_role("button", name="Apply").click()
        done = page.locator("#done")
        expect(done).to_contain_text("Done: taint +repair=disk:no-execute by operator, entry 1 of the audit")
        (end,) = desk.node("cpu-1").ends
        assert (end.key, end.owner) == ("repair", "hardware")
        assert desk.audit(0, 9)[0].via == "page"

        done.get_by_role("button", name="Undo").click()
        expect(done).to_contain_text("undo 1 -repair=disk:no-execute")
        assert not desk.node("cpu-1").taints

    def test_that_is_removed_lets_pending_work_start(self, visit: Visit) -> None:
        scenario = "nodes: [{id: a, capacity: {CPU: 1}, taints: team=blue}]\nwork: [{id: job, resources: {CPU: 1}}]"
        with simulated(scenario) as desk, serving(desk) as served:
            assert desk.one("job").state == "waiting"
            tab = visit(served)
            tab.sign_in()
            page = tab.open("/ui/nodes/a")
            page.get_by_role("button", name="Remove… the taint team").click()
            expect(page.locator("#try")).to_contain_text("1 piece of work would start")
            page.get_by_role("button", name="Apply").click()
            expect(page.locator("#done")).to_contain_text("-team=blue")
            expect(page.get_by_role("region", name="Running here")).to_contain_text("job")

    def test_that_is_invalid_is_refused_on_the_same_page(self, small: Served, visit: Visit) -> None:
        tab = visit(small)
        tab.expected = ("400",)
        page = tab.open("/ui/nodes/cpu-1")
        try_taint(page, "bad key", "x")
        expect(page.get_by_role("alert")).to_contain_text("'bad key'")
        expect(page.locator("#taint-key")).to_have_value("bad key")

    def test_that_another_user_removed_is_refused_on_the_open_page(
        self, small_desk: tuple[SimDesk, Served], visit: Visit
    ) -> None:
        desk, served = small_desk
        tab = visit(served)
        tab.sign_in()
        tab.expected = ("404",)
        desk.change(NodeChange("gpu", (Taint("x"),)), Author("test"))
        page = tab.open("/ui/nodes/gpu?do=untaint&key=x")
        desk.undo(1, Author("test"))
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("#message")).to_contain_text("Node gpu has no taint x")


class TestLabelsAndDraining:
    def test_a_label_is_changed_in_its_row(self, small_desk: tuple[SimDesk, Served], visit: Visit) -> None:
        desk, served = small_desk
        tab = visit(served)
        tab.sign_in()
        page = tab.open("/ui/nodes/cpu-2")
        row = page.get_by_role("row", name=re.compile("^disk"))
        row.get_by_text("Change").click()
        row.get_by_label("New value of disk").fill("hdd")
        row.get_by_role("button", name="Preview").click()
        preview = page.locator("#try")
        expect(preview).to_contain_text("Label cpu-2 with disk=hdd (now disk=ssd)")
        expect(preview).to_contain_text("1 piece of work would start")
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("#done")).to_contain_text("+disk=hdd")
        assert desk.node("cpu-2").labels["disk"] == "hdd"
        assert desk.one("archive").node == "cpu-2"

    def test_a_node_is_drained_and_takes_work_again(self, small_desk: tuple[SimDesk, Served], visit: Visit) -> None:
        desk, served = small_desk
        tab = visit(served)
        tab.sign_in()
        page = tab.open("/ui/nodes/cpu-1")
        page.get_by_role("button", name="Drain…").click()
        expect(page.locator("#try")).to_contain_text("could not be placed there again")
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("#done")).to_contain_text("drain draining")
        assert desk.node("cpu-1").draining
        page.get_by_role("button", name="Uncordon…").click()
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("#done")).to_contain_text("takes work again")
        assert not desk.node("cpu-1").draining

    def test_a_change_is_undone_from_the_history(self, small_desk: tuple[SimDesk, Served], visit: Visit) -> None:
        desk, served = small_desk
        desk.change(NodeChange("cpu-1", (Taint("team", "blue"),)), Author("mia", "laptop", "cli"))
        tab = visit(served)
        tab.sign_in()
        page = tab.open("/ui/history")
        row = page.get_by_role("row", name=re.compile("mia"))
        expect(row).to_contain_text("cli, laptop")
        row.get_by_role("button", name="Undo entry 1").click()
        expect(page.locator("#done")).to_contain_text("undo 1")
        assert not desk.node("cpu-1").taints


class TestRights:
    def test_a_wrong_token_is_one_sentence(self, small: Served, visit: Visit) -> None:
        tab = visit(small)
        tab.expected = ("401",)
        page = tab.open("/login")
        page.get_by_label("Token").fill("guess")
        page.get_by_role("main").get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_have_text(
            "This token is unknown; the operator's token is in the file ~/.stead/token where the service runs."
        )
        assert page.context.cookies() == []
        assert "guess" not in page.url

    def test_a_viewer_sees_everything_and_why_nothing_can_be_applied(self, small: Served, visit: Visit) -> None:
        tab = visit(small)
        tab.expected = ("403",)
        tab.sign_in(small.keys.give("viewer", "guest"))
        page = tab.open("/ui/nodes/cpu-1?do=drain")
        expect(page.locator("#try")).to_contain_text("Your token is a viewer's; a change needs an operator's.")
        assert page.get_by_role("button", name="Apply").count() == 0
        refused = page.evaluate("fetch('/ui/do/nodes/cpu-1', {method: 'POST', body: 'do=drain'}).then(r => r.status)")
        assert refused == 403

    def test_an_expired_session_leads_to_the_sign_in_and_back(self, small: Served, visit: Visit) -> None:
        tab = visit(small)
        tab.expected = ("401",)
        tab.sign_in()
        page = tab.open("/ui/nodes/cpu-1?do=drain")
        page.context.clear_cookies()
        page.get_by_role("button", name="Apply").click()
        page.wait_for_url("**/login?next=**")
        page.get_by_label("Token").fill(small.token)
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Apply")).to_be_visible()

    def test_signing_out_forgets_the_token(self, small: Served, visit: Visit) -> None:
        tab = visit(small)
        tab.open("/login").get_by_label("Token").fill(small.token)
        tab.page.get_by_role("main").get_by_role("button", name="Sign in").click()
        expect(tab.page.get_by_role("button", name="Sign out")).to_be_visible()
        cookie = tab.page.context.cookies()[0]
        assert cookie.get("httpOnly") and cookie.get("sameSite") == "Strict"
        assert small.token not in str(cookie), "a browser does not store the token itself"
        tab.page.get_by_role("button", name="Sign out").click()
        expect(tab.page.get_by_role("link", name="Sign in")).to_be_visible()
        assert tab.page.context.cookies() == []

    def test_after_signing_in_the_browser_stays_on_this_service(self, small: Served, visit: Visit) -> None:
        tab = visit(small)
        for where in ("https://elsewhere.example/ui/", "//elsewhere.example/", "/\\elsewhere.example", "/ui/../x\n"):
            page = tab.open("/login?next=" + where.replace("\n", "%0A"))
            assert page.locator("input[name=next]").get_attribute("value") == "/ui/", where

    def test_if_reading_needs_a_token_the_browser_is_led_to_the_sign_in(self, visit: Visit) -> None:
        with simulated("nodes: [{id: a, capacity: {CPU: 1}}]") as desk, serving(desk, open_reads=False) as served:
            tab = visit(served)
            page = tab.open("/ui/waiting")
            assert page.url.endswith("/login?next=/ui/waiting")
            tab.sign_in()
            page = tab.open("/ui/waiting")
            expect(page.get_by_text("No work is pending")).to_be_visible()
