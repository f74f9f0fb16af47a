"""/metrics: the text format of Prometheus, where the counts come from, and the example alerts and dashboard."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from stead.controller import DECISION_BOUNDS_S, Tally
from stead.engine.decisions import (
    DeadlinePassed,
    Evicted,
    GroupPlaced,
    Moved,
    NodeUnknown,
    Placed,
    Refusal,
    Refused,
    Verdict,
    Waiting,
)
from stead.engine.explain.events import Event, EventKind
from stead.engine.reasons import Draining, NeverFits, ShortOf
from stead.language.taints import Effect, Taint
from stead.operate.desk import Desk, Unanswered
from stead.operate.snapshot import Snapshot
from stead.service import metrics as module
from stead.service.metrics import Metrics, Standing
from stead.sim.desk import SimDesk
from tests.autoscaled import CPU, GPU, report_scaling
from tests.service.asking import Service
from tests.serving import simulated

ROOT = Path(__file__).parent.parent.parent
ALERTS = ROOT / "docs" / "monitoring" / "alerts.yaml"
DASHBOARD = ROOT / "docs" / "monitoring" / "dashboard.json"

LINE = re.compile(r'([a-z_]+)(?:\{([a-z_]+)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"\})? (\S+)')
GPU_NODE = "0123456789abcdef0123456789abcdef0123456789abcdef01234567"
SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass
class Family:
    """A metric as Prometheus reads it: its type, and a value for each (name, label, value of the label)."""

    kind: str
    help: str
    values: dict[tuple[str, str, str], float] = field(default_factory=dict)


def read(text: str) -> dict[str, Family]:
    """Parse strictly: HELP and TYPE once for each metric, before its values, and no value twice."""
    found: dict[str, Family] = {}
    assert text.endswith("\n")
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("# HELP "):
            name, said = line.removeprefix("# HELP ").split(" ", 1)
            kind = next(lines).removeprefix(f"# TYPE {name} ")
            assert name not in found and kind in ("gauge", "counter", "histogram"), line
            found[name] = Family(kind, said)
            continue
        match = LINE.fullmatch(line)
        assert match, line
        family = found[family_of(match[1], found)]
        key = (match[1], match[2] or "", match[3] or "")
        assert key not in family.values, line
        family.values[key] = float(match[4])
    return found


def family_of(name: str, families: Mapping[str, Family]) -> str:
    short = next((name.removesuffix(each) for each in SUFFIXES if name.endswith(each)), name)
    return short if short in families and families[short].kind == "histogram" else name


def of(desk: Desk) -> dict[str, Family]:
    return read(Metrics(desk).text())


@pytest.fixture
def desk() -> Iterator[Desk]:
    with simulated(ROOT / "tests" / "golden" / "served.yaml") as found:
        yield cast(Desk, found)


class Without:
    """A desk without some of its attributes."""

    def __init__(self, desk: Desk, *missing: str) -> None:
        self._desk, self._missing = desk, missing

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(name)
        return getattr(self._desk, name)


class TestTheForm:
    def test_names_types_and_labels_are_valid_for_prometheus(self, desk: Desk) -> None:
        for name, family in of(desk).items():
            assert family.help.endswith("."), name
            assert name.endswith("_total") == (family.kind == "counter") or name == "stead_resource_total", name
            assert all(value >= 0 for value in family.values.values()), name
            if family.kind != "histogram":
                assert not name.endswith(SUFFIXES)
                assert not any(label == "le" for _, label, _ in family.values), f"{name} is no histogram"

    def test_the_histogram_adds_up(self, desk: Desk) -> None:
        values = of(desk)["stead_decision_seconds"].values
        buckets = [value for (name, _, _), value in values.items() if name.endswith("_bucket")]
        bounds = [bound for name, _, bound in values if name.endswith("_bucket")]
        assert buckets == sorted(buckets)
        assert [float(bound) for bound in bounds] == [*DECISION_BOUNDS_S, float("inf")]
        assert buckets[-1] == values["stead_decision_seconds_count", "", ""] > 0
        assert values["stead_decision_seconds_sum", "", ""] > 0

    def test_names_from_outside_cannot_break_a_line(self) -> None:
        evil = 'a"b\\c\nd\u202e'
        scenario = {"nodes": [{"id": "a", "capacity": {evil: 1}}], "work": [{"id": "w", "resources": {evil: 2}}]}
        with simulated(json.dumps(scenario)) as found:
            families = of(cast(Desk, found))
        said = r"a\"b\\c\\nd\\u202e"
        assert families["stead_resource_total"].values == {("stead_resource_total", "resource", said): 1.0}

    def test_the_answer_has_the_content_type_of_prometheus(self, service: Service) -> None:
        found = service.ask("GET", "/metrics")
        assert found.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


class TestTheCounts:
    REFUSALS = (Refusal(Draining(), 2, 1), Refusal(NeverFits("GPU", 1), 1, 1), Refusal(ShortOf("GPU", 1), 0, 0))
    VERDICT = Verdict(3, 0, REFUSALS)

    @pytest.mark.parametrize(
        ("decision", "counted"),
        [
            (Placed("a", "n"), {"placed": 1}),
            (GroupPlaced("g", 0, (("a", "n"), ("b", "n"))), {"placed": 2}),
            (Moved("a", "n", "m", 5), {"moved": 1}),
            (Evicted("a", "n", Taint("x", "", Effect.NO_EXECUTE)), {"evicted": 1}),
            (Waiting(("a", "b", "c"), (VERDICT,)), {"refusals": {"draining": 3, "never-fits": 3}}),
            (Waiting(("ring",), ()), {"refusals": {"other": 1}}),
            (Refused("a", NodeUnknown(("n",))), {"refusals": {"node-unknown": 1}}),
            (Refused("a", DeadlinePassed(5.0, (VERDICT,))), {"refusals": {"deadline-passed": 1}}),
        ],
        ids=lambda each: type(each).__name__,
    )
    def test_of_every_decision(self, decision: Any, counted: Mapping[str, Any]) -> None:
        tally = Tally()
        tally.count([decision], 0.003)
        assert {name: getattr(tally, name) for name in ("placed", "moved", "evicted", "refusals")} == {
            "placed": 0,
            "moved": 0,
            "evicted": 0,
            "refusals": {},
            **counted,
        }

    @pytest.mark.parametrize(("seconds", "place"), [(0.0, 0), (0.0005, 0), (0.0006, 1), (10.0, 13), (99.0, 14)])
    def test_of_how_long_it_took(self, seconds: float, place: int) -> None:
        tally = Tally()
        tally.count([], seconds)
        assert (tally.took.index(1), sum(tally.took), tally.seconds) == (place, 1, seconds)

    def test_a_copy_stays_as_it_is(self) -> None:
        tally = Tally()
        copy = tally.copy()
        tally.count([Waiting(("a",), (self.VERDICT,))], 0.0)
        assert copy == Tally()

    def test_grow_with_each_decision(self, service: Service) -> None:
        def value(name: str, reason: str = "") -> float:
            found = read(service.ask("GET", "/metrics").body.decode())[name].values
            return found[name, "reason" if reason else "", reason]

        evicted, refused = value("stead_evictions_total"), value("stead_refusals_total", "tainted")
        assert service.do("POST", "/nodes/taints/cpu-1?effect=NoExecute", {"repair": "true"}).status == 200
        assert value("stead_evictions_total") > evicted
        assert value("stead_refusals_total", "tainted") > refused
        placed = value("stead_placements_total")
        assert service.do("DELETE", f"/nodes/taints/{GPU_NODE}", {"gpu_node": "true"}).status == 200
        assert value("stead_placements_total") > placed

    def test_start_at_0_with_every_reason(self) -> None:
        with simulated("nodes: [{id: a, capacity: {CPU: 1}}]") as found:
            families = of(cast(Desk, found))
        assert set(families["stead_refusals_total"].values.values()) == {0.0}
        assert len(families["stead_refusals_total"].values) == len(module.CODES)
        assert families["stead_placements_total"].values == {("stead_placements_total", "", ""): 0.0}


class TestADeskThat:
    def test_has_no_tally_omits_the_counts(self, desk: Desk) -> None:
        found = of(cast(Desk, Without(desk, "tally")))
        assert {family.kind for family in found.values()} == {"gauge"}
        assert "stead_pending_by_reason" in found

    def test_has_no_snapshot_omits_what_needs_one(self, desk: Desk) -> None:
        found = of(cast(Desk, Without(desk, "tally", "snapshot")))
        assert "stead_work" in found
        assert "stead_pending_by_reason" not in found

    @pytest.mark.parametrize("error", [Unanswered("gone"), ConnectionError(), TimeoutError()])
    def test_does_not_answer_is_reported_as_a_metric(self, error: Exception) -> None:
        class Silent:
            def summary(self) -> Any:
                raise error

        found = of(cast(Desk, Silent()))
        assert {name: family.values for name, family in found.items()} == {
            "stead_cluster_answers": {("stead_cluster_answers", "", ""): 0.0}
        }


class TestOnRay:
    """Without a cluster: another process reads the counts of the controller with the snapshot."""

    def test_the_counts_are_sent_with_the_snapshot(
        self, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("ray")
        from stead.ray import remote_desk
        from stead.ray.control.desk import RayDesk

        past = [Event(number, 0.0, EventKind.EVICTED, "a", "") for number in (1, 2)]

        class StateStore:
            def events(self, after: int = 0, limit: int = 1000) -> list[Event]:
                return [event for event in past if event.number > after][-limit:]

        work, tally = SimpleNamespace(tables=SimpleNamespace(address="127.0.0.1:1")), Tally()
        inside = RayDesk(cast(Any, None), RLock(), cast(Any, work), cast(Any, StateStore()), tally, tmp_path)

        def look() -> Snapshot:
            inside._count_evictions()
            inside._counted = replace(tally.copy(), evicted=inside._evicted)
            return Snapshot(cast(Any, desk).snapshot().engine, 0.0, kind="ray")

        monkeypatch.setattr(inside, "_look", look)
        monkeypatch.setattr(remote_desk, "_ask", lambda what, *given: getattr(inside, what)(*given))
        outside = cast(Any, remote_desk.RemoteDesk())
        assert outside.tally == Tally(), "what was evicted before the controller began does not count"
        tally.count([Placed("a", "n")], 0.001)
        past.append(Event(3, 0.0, EventKind.TAINTED, "n", ""))
        past.append(Event(4, 0.0, EventKind.EVICTED, "b", "", count=5))
        inside.expire_snapshot()
        assert (outside.tally.placed, outside.tally.evicted, sum(outside.tally.took)) == (1, 5, 1)
        assert of(outside)["stead_evictions_total"].values == {("stead_evictions_total", "", ""): 5.0}
        inside._audit.close()


class TestExpensiveNumbers:
    @pytest.fixture
    def looks(self, monkeypatch: pytest.MonkeyPatch) -> list[Snapshot]:
        found: list[Snapshot] = []
        plain = module.standing_of

        def look(snapshot: Snapshot) -> Standing:
            found.append(snapshot)
            return plain(snapshot)

        monkeypatch.setattr(module, "standing_of", look)
        return found

    def test_are_computed_once_for_a_snapshot(self, desk: Desk, looks: list[Snapshot]) -> None:
        metrics = Metrics(desk)
        assert metrics.text() == metrics.text()
        assert len(looks) == 1

    def test_are_not_computed_again_at_once(
        self, desk: Desk, looks: list[Snapshot], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "COSTLY_S", 0.0)
        monkeypatch.setattr(module, "PAUSE", 1e9)
        metrics = Metrics(desk)
        for _ in range(3):
            cast(Any, desk)._snapshot = None
            metrics.text()
        assert len(looks) == 1

    def test_are_not_waited_for_while_another_request_computes_them(self, desk: Desk, looks: list[Snapshot]) -> None:
        metrics = Metrics(desk)
        before = metrics.text()
        cast(Any, desk)._snapshot = None
        with metrics._looking:
            assert metrics.text() == before
        assert len(looks) == 1


def expressions() -> dict[str, str]:
    """Every expression of the alerts and the dashboard, by where it is."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    found = {rule["alert"]: rule["expr"] for rule in rules}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        found |= {f"{panel['title']} {target['refId']}": target["expr"] for target in panel["targets"]}
    return found


class TestTheExamples:
    @pytest.mark.parametrize("place", expressions())
    def test_every_metric_and_label_of_them_exists(self, desk: Desk, place: str) -> None:
        report_scaling(cast(SimDesk, desk), CPU, GPU)
        families, expression = of(desk), expressions()[place]
        names = set(re.findall(r"\b(?:stead_[a-z_]+|up)\b", expression)) - {"up"}
        assert names
        for name in names:
            assert family_of(name, families) in families, name
            values = families[family_of(name, families)].values
            for text in re.findall(rf"{name}\{{([^}}]*)\}}", expression):
                for label, value in re.findall(r'([a-z_]+)="([^"]*)"', text):
                    assert label == "job" or (name, label, value) in values, (name, label, value)
        assert expression.count("(") == expression.count(")")

    def test_every_alert_has_a_summary_and_an_action(self) -> None:
        (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
        for rule in group["rules"]:
            assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}, rule
            assert rule["annotations"].keys() == {"summary", "description"}
            assert rule["labels"]["severity"] in ("warning", "critical")

    def test_every_counter_is_shown_as_a_rate(self) -> None:
        for place, expression in expressions().items():
            for name in re.findall(r"stead_[a-z_]+_total|stead_decision_seconds_[a-z]+", expression):
                if name != "stead_resource_total":
                    assert re.search(rf"(rate|increase)\({name}", expression), place

    def test_the_dashboard_fits_grafana(self) -> None:
        found = json.loads(DASHBOARD.read_text())
        assert {"title", "uid", "panels", "templating", "schemaVersion"} <= found.keys()
        ids = [panel["id"] for panel in found["panels"]]
        assert len(set(ids)) == len(ids)
        taken: set[tuple[int, int]] = set()
        for panel in found["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
            taken |= cells

    def test_promtool_accepts_the_alerts_and_the_metrics(self, desk: Desk) -> None:
        promtool = shutil.which("promtool")
        if promtool is None:
            pytest.skip("promtool is not on this machine: names, labels and forms are checked by the tests above only")
        checked = subprocess.run([promtool, "check", "rules", ALERTS], check=False, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
        checked = subprocess.run(
            [promtool, "check", "metrics"], check=False, input=Metrics(desk).text(), capture_output=True, text=True
        )
        assert checked.returncode == 0, checked.stderr
