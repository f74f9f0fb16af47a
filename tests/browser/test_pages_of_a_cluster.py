"""A person looks at a cluster: the map, the filter, a node, work and why, groups, events, the past."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from stead.language.labels import EMPTY, Labels
from stead.language.taints import Taint
from stead.operate.audit import Author
from stead.operate.changes import NodeChange
from stead.operate.desk import Unanswered
from stead.sim.desk import SimDesk
from tests.browser.tabs import Tab, Visit
from tests.serving import Served, serving, simulated

ME = Author("somebody")


class TestTheMap:
    def test_shows_every_node_in_its_group_with_its_use_its_taints_and_what_runs_there(
        self, shown: Served, visit: Visit
    ) -> None:
        page = visit(shown).open("/ui/")
        zones = page.get_by_role("heading", level=2).all_inner_texts()
        assert [zone.split()[0] for zone in zones] == ["eu-1a", "eu-1b", "eu-1c"]
        tile = page.get_by_role("link", name=re.compile("^a100-a-2 "))
        assert tile.inner_text().split("\n") == ["a100-a-2", "50 % of 48 CPU", "gpu=true", "train-vision"]
        assert page.locator(".t.draining:not(.swatch)").count() == 1
        assert page.locator("#map .t").count() == 24

    def test_is_grouped_and_filled_as_chosen(self, shown: Served, visit: Visit) -> None:
        page = visit(shown).open("/ui/")
        page.get_by_label("Group by").select_option("gpu")
        expect(page.get_by_role("heading", name="A100")).to_contain_text("5 nodes")
        expect(page.get_by_role("heading", name="without gpu")).to_contain_text("15 nodes")
        page.get_by_label("Fill by usage of").select_option("GPU")
        expect(page.get_by_role("link", name=re.compile("^a100-a-2 "))).to_contain_text("100 % of 8 GPU")
        expect(page.get_by_role("link", name=re.compile("^cpu-a-1 "))).to_contain_text("no GPU")
        assert "by=gpu" in page.url and "of=GPU" in page.url, "the URL leads back to the same view"
        page.reload()
        expect(page.get_by_label("Group by")).to_have_value("gpu")

    def test_is_filtered_while_typing_and_shows_how_many_match(self, shown: Served, visit: Visit) -> None:
        page = visit(shown).open("/ui/")
        page.get_by_label("Filter by labels").press_sequentially("gpu=A100 and zone=eu-1c")
        expect(page.locator("#match")).to_have_text("2 of 24 nodes match")
        expect(page.locator("#map .t")).to_have_count(2)
        expect(page.get_by_label("Filter by labels")).to_be_focused()

    def test_stays_unchanged_while_a_selector_is_invalid(self, shown: Served, visit: Visit) -> None:
        page = visit(shown).open("/ui/")
        page.get_by_label("Filter by labels").fill("zone in [eu-1a")
        expect(page.locator("#match")).to_contain_text("Selector 'zone in [eu-1a'")
        expect(page.locator("#map .t")).to_have_count(24)
        page.get_by_label("Filter by labels").fill("zone in [eu-1a]")
        expect(page.locator("#match")).to_have_text("9 of 24 nodes match")

    def test_says_that_no_node_matches(self, shown: Served, visit: Visit) -> None:
        page = visit(shown).open("/ui/?q=zone%3Dmars")
        expect(page.get_by_text("No node matches")).to_be_visible()

    def test_can_be_a_table(self, shown: Served, visit: Visit) -> None:
        page = visit(shown).open("/ui/")
        page.get_by_label("Show as").select_option("table")
        row = page.get_by_role("row", name=re.compile("^a100-a-2 "))
        expect(row).to_contain_text("24 of 48")

    def test_updates_automatically(self, small_desk: tuple[SimDesk, Served], visit: Visit) -> None:
        desk, served = small_desk
        page = visit(served).open("/ui/")
        link = page.get_by_role("link", name=re.compile("^cpu-1 "))
        link.focus()
        desk.change(NodeChange("cpu-1", (Taint("team", "blue"),)), ME)
        expect(link).to_contain_text("team=blue")
        expect(link).to_be_focused()


class TestANode:
    def test_is_opened_from_the_map_and_found_by_its_name(self, shown: Served, visit: Visit) -> None:
        page = visit(shown).open("/ui/")
        page.get_by_role("link", name=re.compile("^l4-c-4 ")).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("l4-c-4")
        expect(page.get_by_role("row", name=re.compile("repair=fan"))).to_contain_text("no-execute")
        page.get_by_label("Find a node, work or group").fill("cpu-a-1")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("cpu-a-1")
        runs = page.get_by_role("region", name="Running here").get_by_role("link").all_inner_texts()
        assert "feature-store-1" in runs

    def test_that_has_left_is_one_sentence(self, shown: Served, visit: Visit) -> None:
        tab = visit(shown)
        tab.expected = ("404",)
        page = tab.open("/ui/nodes/cpu-z-1")
        expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
        expect(page.locator("#sentence")).to_have_text(
            "There is no node 'cpu-z-1' in this cluster (did you mean 'cpu-b-1'?)"
        )

    def test_shows_the_owner_and_the_end_of_a_taint(self, small_desk: tuple[SimDesk, Served], visit: Visit) -> None:
        desk, served = small_desk
        desk.change(NodeChange("cpu-1", (Taint("team", "blue"),), for_s=7200, owner="ml"), ME)
        page = visit(served).open("/ui/nodes/cpu-1")
        row = page.get_by_role("row", name=re.compile("team=blue"))
        expect(row).to_contain_text("ml until 2026-01-01 02:01:00 (in 2h)")


class TestWork:
    def test_that_is_pending_is_one_card_for_equal_work_with_its_age_request_and_reason(
        self, shown: Served, visit: Visit
    ) -> None:
        page = visit(shown).open("/ui/waiting")
        card = page.get_by_role("article", name=re.compile("^backfill"))
        for said in ("11 equal", "analytics", "pending for 15m", "28 CPU, 32 GiB memory", "disk in {ssd}"):
            expect(card).to_contain_text(said)
        reasons = card.get_by_role("listitem").all_inner_texts()
        assert ["8", "short of 28 CPU"] in [reason.split("\n") for reason in reasons]
        expect(page.get_by_role("article", name="train-language")).to_contain_text("group of 4")

    def test_that_runs_shows_why_with_the_scores_of_other_nodes(self, shown: Served, visit: Visit) -> None:
        page = visit(shown).open("/ui/work?state=running")
        page.get_by_role("link", name="gateway-1").click()
        expect(page.get_by_role("heading", name="Why it runs there")).to_be_visible()
        scores = page.get_by_role("table", name="Scores").get_by_role("row")
        assert scores.count() == 5, "a header, the chosen node and three runners-up"
        expect(scores.nth(1)).to_contain_text("chosen")

    def test_is_found_by_its_labels_while_typing(self, shown: Served, visit: Visit) -> None:
        page = visit(shown).open("/ui/work")
        page.get_by_label("Labels of the work").press_sequentially("app=assistant")
        expect(page.locator("#rows tbody tr")).to_have_count(2)

    def test_no_pending_work_is_good_news(self, visit: Visit) -> None:
        with simulated("nodes: [{id: a, capacity: {CPU: 1}}]") as desk, serving(desk) as served:
            page = visit(served).open("/ui/waiting")
            expect(page.get_by_text("No work is pending.")).to_be_visible()

    def test_a_group_shows_its_members_and_where_they_are(self, shown: Served, visit: Visit) -> None:
        page = visit(shown).open("/ui/groups")
        page.get_by_role("link", name="ranking-ps").click()
        expect(page.get_by_role("row", name=re.compile("^ranking-ps-3"))).to_contain_text("cpu-b-4")


class TestThePast:
    def test_events_are_live(self, small_desk: tuple[SimDesk, Served], visit: Visit) -> None:
        desk, served = small_desk
        page = visit(served).open("/ui/events")
        expect(page.locator("#live")).to_have_text("live")
        desk.change(NodeChange("cpu-2", labels=Labels({"canary": "yes"})), ME)
        top = page.locator("#events tr").first
        expect(top).to_contain_text("labelled canary=yes")
        expect(page.locator("#news")).to_contain_text("1 new; the latest: cpu-2 labelled canary=yes")
        desk.change(NodeChange("cpu-2", labels=EMPTY, unlabels=("canary",)), ME)
        expect(top).to_contain_text("label canary removed")

    def test_events_about_one_subject(self, shown: Served, visit: Visit) -> None:
        page = visit(shown).open("/ui/events")
        page.get_by_label("About").fill("train-vision")
        page.get_by_role("button", name="Show").click()
        said = page.locator("#events tr").all_inner_texts()
        assert said and all("train-vision" in each for each in said)

    def test_a_decision_is_replayed(self, shown: Served, visit: Visit) -> None:
        page = visit(shown).open("/ui/history")
        page.get_by_label("About work or a group").fill("train-vision")
        page.get_by_role("button", name="Replay").click()
        expect(page.get_by_text("byte-equal to the original")).to_be_visible()
        expect(page.get_by_text(re.compile("^Placed on a100-a-2 by hybrid"))).to_be_visible()

    def test_the_last_decision_before_a_moment(self, shown: Served, visit: Visit) -> None:
        tab = visit(shown)
        tab.sign_in()
        page = tab.open("/ui/history?at=2026-01-01T00:10:00")
        expect(page.get_by_text("2026-01-01 00:10:00 UTC")).to_be_visible()

    def test_a_missing_decision_is_one_sentence(self, shown: Served, visit: Visit) -> None:
        page = visit(shown).open("/ui/history?ask=nobody")
        page.get_by_role("button", name="Replay").click()
        expect(page.locator("#undecided")).to_have_text(
            "The journal has no decision about 'nobody'. Work that the cluster itself placed has no decision here."
        )


def test_names_that_look_like_markup_are_shown_as_text(visit: Visit) -> None:
    evil = '\\"><script>alert(1)</script><img src=x onerror=alert(2)>'
    scenario = f"""
title: "{evil}"
nodes:
  - {{id: "n{evil}", name: "{evil}", capacity: {{CPU: 2, "{evil}": 1}}, labels: {{zone: a}}}}
work:
  - {{id: "w{evil}", resources: {{CPU: 1}}, owner: "{evil}"}}
  - {{id: "x{evil}", resources: {{CPU: 9}}, owner: "{evil}"}}
groups:
  - {{id: "g{evil}", bundles: [{{CPU: 5}}], owner: "{evil}"}}
"""
    with simulated(scenario) as desk, serving(desk) as served:
        tab = visit(served)
        tab.sign_in()
        tab.expected = ("400", "404")
        said = evil.replace("\\", "")
        page = tab.open("/ui/")
        page.get_by_role("link", name=said).first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(said)
        for path in ("waiting", "work", "groups", "events", "history?ask=" + "%3Cscript%3E", "find?id=%3Cscript%3E"):
            tab.open(f"/ui/{path}")
            assert page.locator("img, script:not([src])").count() == 0
            expect(page.locator("main")).to_contain_text("<script>")


def test_an_empty_cluster_says_so(visit: Visit) -> None:
    with simulated("nodes: []") as desk, serving(desk) as served:
        page = visit(served).open("/ui/")
        expect(page.get_by_text("This cluster has no nodes yet")).to_be_visible()


class Silent:
    """The desk of a cluster that does not answer."""

    def __getattr__(self, name: str) -> object:
        def ask(*_: object) -> object:
            raise ConnectionError("the controller is not there")

        return ask


def test_a_cluster_that_does_not_answer_is_one_sentence(visit: Visit) -> None:
    with serving(Silent()) as served:  # type: ignore[arg-type]
        tab: Tab = visit(served)
        tab.expected = ("503",)
        for path in ("", "nodes/a", "events"):
            page = tab.open(f"/ui/{path}")
            expect(page.get_by_role("heading", level=1)).to_have_text("The cluster does not answer")
            expect(page.locator("#sentence")).to_contain_text("the controller is not there")


def test_a_cluster_that_stops_answering_is_reported_on_the_open_page(
    small_desk: tuple[SimDesk, Served], visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, served = small_desk
    tab = visit(served)
    tab.expected = ("503",)
    page = tab.open("/ui/")

    def silent(*_: object) -> None:
        raise Unanswered("the controller of the cluster did not answer; try again")

    monkeypatch.setattr(desk, "summary", silent)
    page.get_by_label("Filter by labels").fill("zone=a")
    expect(page.locator("#message")).to_contain_text("The controller of the cluster did not answer; try again")
    expect(page.locator("#map .t")).to_have_count(3)
