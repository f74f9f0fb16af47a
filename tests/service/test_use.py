"""Usage over time as JSON and as a page; and the title of a cluster."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

from stead.errors import Invalid
from stead.operate.desk import Desk
from stead.operate.usage import DAY_S, History, Sample
from stead.service import schemas
from stead.service.app import create_inner, titled
from stead.service.guard import App
from stead.service.keys import Keys
from stead.service.pages import use
from tests.service.asking import Changing, Service
from tests.serving import simulated

SCENARIO = Path(__file__).parent.parent / "golden" / "served.yaml"
GIB = 1 << 30


def sample(at: float, pending: int = 0, used: float = 2.0, lost: float = 0.0, name: str = "CPU") -> Sample:
    return Sample(at, pending, 3, 4, {name: 8.0}, {name: used}, {name: lost})


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def service(history: History, tmp_path: Path) -> Iterator[Service]:
    desk, keys = Changing(), Keys(tmp_path / "home")
    with asyncio.Runner() as runner, simulated(SCENARIO) as found:
        desk.instead(lambda: titled(cast(Desk, found), "Training"))
        yield Service(cast(App, create_inner(cast(Desk, desk), keys, history)), desk, keys, runner)


class Reading(HTMLParser):
    """The text of a page that a screen reader would read, and its tags with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags = "", list[tuple[str, dict[str, str | None]]]()
        self._silent: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "path", "br"):
            if self._silent or dict(attrs).get("aria-hidden") == "true":
                self._silent.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._silent and self._silent[-1] == tag:
            self._silent.pop()

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.text += f" {data.strip()}" if data.strip() else ""

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag and wanted.items() <= found.items()]


class TestTheJson:
    def test_has_every_sample_and_its_gaps(self, service: Service, history: History) -> None:
        now = time.time()
        for at in (now - 600, now - 60, now):
            history.add(sample(at, 5))
        found = service.ask("GET", "/use")
        TypeAdapter(schemas.Use).validate_json(found.body, strict=True)
        assert (found.json["interval_s"], found.json["kept"]) == (60.0, 1440)
        assert found.json["items"][-1] == {
            "at": now,
            "pending": 5,
            "running": 3,
            "nodes": 4,
            "total": {"CPU": 8.0},
            "used": {"CPU": 2.0},
            "stranded": {"CPU": 0.0},
        }
        assert [each["at"] for each in found.json["items"]] == [now - 600, now - 60, now]

    def test_can_be_limited_to_later_samples(self, service: Service, history: History) -> None:
        now = round(time.time())
        for at in (now - 120, now - 60):
            history.add(sample(at))
        assert [each["at"] for each in service.ask("GET", f"/use?after={now - 120}").json["items"]] == [now - 60]
        assert service.ask("GET", "/use?after=nan").status == 422

    def test_needs_a_token_if_everything_does(self, service: Service) -> None:
        closed = Service(service.app._app, service.desk, service.keys, service._runner, open_reads=False)
        assert closed.ask("GET", "/use").status == 401
        assert closed.do("GET", "/use").status == 200


class TestThePage:
    def read(self, service: Service) -> Reading:
        found = service.ask("GET", "/ui/use")
        assert found.status == 200, found.body
        return Reading(found.body.decode())

    def test_says_that_there_are_no_samples_yet(self, service: Service) -> None:
        found = self.read(service)
        assert "There are no samples yet" in found.text
        assert not found.all("figure")

    def test_describes_its_charts_as_text(self, service: Service, history: History) -> None:
        noon = time.time() // 3600 * 3600 - 3600
        history.add(sample(noon, 40, 7.0, 1.0))
        history.add(sample(time.time(), 7, 2.0, 3.0))
        at = time.strftime("%H:%M", time.gmtime(noon))
        text = self.read(service).text
        assert f"7 pieces of work pending now; at most 40, at {at} UTC." in text
        assert f"2 of 8 used now (25 %); at most 7, at {at} UTC. 3 stranded." in text
        assert "No sample for" in text, "an hour is missing"

    def test_has_a_table_with_the_same_values(self, service: Service, history: History) -> None:
        hour = time.time() // 3600 * 3600
        for minute, pending in enumerate((3, 9, 4)):
            history.add(sample(hour - 600 + 60 * minute, pending, pending / 2, 1.0))
        begins = time.strftime("%Y-%m-%d %H:%M", time.gmtime(hour - 3600))
        assert f"{begins} 9 4.5 1" in self.read(service).text

    def test_its_charts_need_no_script_and_no_inline_style(self, service: Service, history: History) -> None:
        history.add(sample(time.time(), 7))
        found = self.read(service)
        assert len(found.all("svg", preserveaspectratio="none")) == 2
        kinds = {"line", "area", "grid"}
        drawn = [each for each in found.all("path") if kinds & set(str(each.get("class")).split())]
        assert len(drawn) == 8
        assert all(re.fullmatch(r"[MHVZ0-9.,e-]+", path["d"] or "") for path in drawn)
        assert not any("style" in attributes for _, attributes in found.tags)
        assert {str(each["src"]).split("?")[0] for each in found.all("script")} == {
            "/static/htmx.min.js",
            "/static/stead.js",
        }

    def test_is_small_even_after_a_whole_day(self, service: Service, history: History) -> None:
        now = time.time()
        for minute in range(1440):
            amounts = {f"{name}": float(minute * 7919 % 97) for name in range(16)}
            full = dict.fromkeys(amounts, 100.0)
            history.add(Sample(now - DAY_S + 60 * (minute + 1), minute % 13, 0, 4, full, amounts, amounts))
        found = service.ask("GET", "/ui/use")
        assert len(found.body) < 150_000
        assert len(Reading(found.body.decode()).all("figure")) == 1 + use.CHARTS_MAX

    def test_names_from_outside_are_escaped(self, service: Service, history: History) -> None:
        history.add(sample(time.time(), name="<script>alert(1)</script>\u202e"))
        body = service.ask("GET", "/ui/use").body.decode()
        assert "<script>alert" not in body and "\u202e" not in body
        assert "&lt;script&gt;alert" in body

    def test_is_in_the_menu(self, service: Service) -> None:
        assert self.read(service).all("a", href="/ui/use", **{"aria-current": "page"})


class TestADrawing:
    @pytest.mark.parametrize(
        ("heights", "line", "area"),
        [
            ([], "", ""),
            ([None, None], "", ""),
            ([0.0], "M0,100H1", "M0,100V100H1V100Z"),
            ([1.0, 1.0, 2.0], "M0,50H2V0H3", "M0,100V50H2V0H3V100Z"),
            ([1.0, None, 1.0], "M0,50H1M2,50H3", "M0,100V50H1V100ZM2,100V50H3V100Z"),
        ],
        ids=["of nothing", "of a gap", "of one step", "of steps", "with a gap"],
    )
    def test_is_a_path(self, heights: list[float | None], line: str, area: str) -> None:
        assert (use.path(heights, 2.0), use.area(heights, 2.0)) == (line, area)

    def test_has_the_highest_of_every_five_minutes_and_ends_now(self) -> None:
        now = 86_400.0 * 20_000
        samples = [sample(now - DAY_S, 1), sample(now - 300, 2), sample(now - 60, 7), sample(now, 3)]
        found = use.highest(samples, lambda each: each.pending, now)
        assert len(found) == use.STEPS
        assert [each for each in found if each is not None] == [7.0, 3.0]
        assert found[-2:] == [7.0, 3.0]

    @pytest.mark.parametrize(
        ("most", "unit", "top"),
        [
            (0, 1, 1),
            (1, 1, 1),
            (3, 1, 4),
            (8, 1, 8),
            (9, 1, 10),
            (41, 1, 50),
            (1000, 1, 1000),
            (13 * GIB, GIB, 20 * GIB),
        ],
    )
    def test_ends_at_a_round_number(self, most: float, unit: float, top: float) -> None:
        assert use.round_up(most, unit) == top


class TestTheTitle:
    def test_is_on_every_page_and_in_the_status(self, service: Service) -> None:
        assert service.ask("GET", "/status").json["title"] == "Training"
        assert "Training" in service.ask("GET", "/ui/").body.decode()
        assert service.do("POST", "/nodes/drain/cpu-1").status == 200, "everything else comes from the desk"

    @pytest.mark.parametrize("title", ["", "  ", "x" * 65, "a\nb", "a\u202eb", "\x1b[31m"])
    def test_that_cannot_be_shown_is_refused(self, title: str) -> None:
        with pytest.raises(Invalid, match="must have 1 to 64 printable characters") as refused:
            titled(cast(Any, None), title)
        assert str(refused.value).isprintable()
