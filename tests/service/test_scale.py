"""The autoscaler over HTTP: `GET /scale`, its metrics, its events, and its page."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from threading import RLock
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

from stead.controller import Tally
from stead.engine.scaling.decisions import NodeArrived, NodeRequested
from stead.language.nodes import NodeTemplate
from stead.language.resources import Resources
from stead.operate.http_client import HttpDesk
from stead.operate.scale import ScaleView, scale_of
from stead.service import schemas
from stead.service.pages.wording import TIMES
from tests.autoscaled import CPU, GPU, report_scaling
from tests.golden_files import assert_golden
from tests.service.asking import Service
from tests.service.page_forms import look, send, words_of
from tests.serving import serving, simulated

SPOT = NodeTemplate("spot", Resources.of(CPU=2), count_max=1)
KINDS = (replace(CPU, capacity=Resources.of(CPU=4, memory=2**33)), SPOT, GPU)


@pytest.fixture
def scaled(service: Service) -> Service:
    """The service of a cluster whose autoscaler has reported."""
    report_scaling(service.desk, *KINDS)  # type: ignore[arg-type]  # it stands for the desk
    return service


def changed(service: Service, **fields: object) -> ScaleView:
    """Report the same view with other fields."""
    view = service.desk.scale()
    service.desk.report_scale(replace(view, **fields), ())
    found = service.desk.scale()
    assert isinstance(found, ScaleView)
    return found


class TestTheRoute:
    def test_says_that_there_is_no_autoscaler(self, service: Service) -> None:
        assert service.ask("GET", "/scale").json == {"autoscaler": None}

    def test_has_everything_that_was_reported(self, scaled: Service) -> None:
        found = scaled.ask("GET", "/scale")
        TypeAdapter(schemas.Scale).validate_json(found.body, strict=True)
        assert scale_of(found.json) == scaled.desk.scale()
        assert_golden("rest-scale-reported.json", json.dumps(found.json, indent=1, sort_keys=True) + "\n")

    def test_needs_a_token_if_everything_does(self, scaled: Service) -> None:
        closed = Service(scaled.app._app, scaled.desk, scaled.keys, scaled._runner, open_reads=False)
        assert closed.ask("GET", "/scale").status == 401
        assert closed.do("GET", "/scale").status == 200

    def test_the_desk_of_a_service_reads_it_and_takes_no_report(self) -> None:
        with simulated("nodes: [{id: cpu-1, capacity: {CPU: 8}}]\nwork: [{id: web}]") as desk, serving(desk) as served:
            client = HttpDesk(served.url, served.token)
            assert client.scale() is None
            view = report_scaling(desk, CPU)
            assert client.scale() == view
            with pytest.raises(Exception, match="reports to the cluster itself, not to a service"):
                client.report_scale(view, ())


class TestOnRay:
    """Without a cluster: the desk in the controller, and that of another process."""

    def test_the_controller_keeps_the_report_and_writes_its_decisions_as_events(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("ray")
        from stead.ray import remote_desk
        from stead.ray.control.desk import METHODS, RayDesk
        from stead.ray.control.state_store import StateStore

        store = StateStore(tmp_path / "state.sqlite")
        work = SimpleNamespace(
            tables=SimpleNamespace(address="127.0.0.1:1"), placing=SimpleNamespace(titles={"n": "node-1"})
        )
        inside = RayDesk(cast(Any, None), RLock(), cast(Any, work), store, Tally(), tmp_path)

        def ask(what: str, *given: Any) -> Any:
            """As between processes."""
            assert what in METHODS
            return pickle.loads(pickle.dumps(getattr(inside, what)(*pickle.loads(pickle.dumps(given)))))

        again = [False]
        monkeypatch.setattr(remote_desk, "_ask", ask)
        monkeypatch.setattr("stead.ray.control.desk.is_called_again", lambda: again[0])
        outside = remote_desk.RemoteDesk()
        assert outside.scale() is None
        with simulated("nodes: [{id: cpu-1, capacity: {CPU: 8}}]\nwork: [{id: web}]") as desk:
            view = report_scaling(desk, CPU)
        decisions = (NodeRequested("cpu-7", CPU, 5), NodeArrived("cpu-6", "cpu", "n"))
        outside.report_scale(view, decisions)
        again[0] = True
        outside.report_scale(view, decisions)  # the controller was killed before it answered
        found = outside.scale()
        assert found is not None and replace(found, tallied=view.tallied) == view
        assert [str(event) for event in inside.events(0, 10)] == [
            "launching cpu-7: launching a node of kind cpu for 5 pieces of work",
            "launched  cpu-6: joined as node-1, of kind cpu",
        ]
        store.close()
        inside._audit.close()


class TestMetrics:
    def read(self, service: Service) -> dict[str, str]:
        lines = service.ask("GET", "/metrics").body.decode().splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if line.startswith(("stead_scale", "stead_autoscaler")))

    def test_are_missing_without_an_autoscaler(self, service: Service) -> None:
        assert self.read(service) == {}

    def test_count_nodes_by_kind_prices_and_what_was_done(self, scaled: Service) -> None:
        found = self.read(scaled)
        assert found['stead_scale_nodes{kind="cpu"}'] == "2"
        assert found['stead_scale_coming{kind="cpu"}'] == "2"
        assert (found['stead_scale_rests{kind="gpu"}'], found['stead_scale_rests{kind="cpu"}']) == ("1", "0")
        assert found["stead_scale_price_per_hour"] == "3"
        assert (found["stead_scale_launches_total"], found["stead_scale_launch_failures_total"]) == ("3", "1")
        assert found["stead_autoscaler_reports"] == "1"

    def test_say_that_an_autoscaler_is_silent(self, scaled: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stead.operate.scale.SILENT_S", -1.0)
        assert self.read(scaled)["stead_autoscaler_reports"] == "0"
        assert scaled.ask("GET", "/scale").json["autoscaler"]["is_silent"] is True


class TestThePage:
    def test_is_in_the_menu_and_updates_itself(self, scaled: Service) -> None:
        page = look(scaled, "/ui/scale")
        assert '<a href="/ui/scale" aria-current="page">Scale</a>' in page
        assert re.search(r'<div id="scale" hx-get="/ui/scale" [^>]*data-poll>', page)

    @pytest.mark.parametrize(
        "sentence",
        [
            "Nodes from local raylets",
            "Price per hour 3 Launched nodes 3 Busy 2 Idle 0 Retiring 1 Coming 2 Launches given up 1 of 4",
            "cpu 4 CPU, 8 GiB memory zone=a 1.5 2 2 0 10 available",
            "spot 2 CPU 1 0 0 1 at maximum",
            "rests the provider has no more such nodes; next launch in 4m",
            "Limits: spare: at most 40 nodes; price: at most 200 per hour.",
            "cpu-7 cpu starting 40s ago in 4m20s",
            "cpu-8 cpu failed no disk 1m35s ago in 3m25s",
            "cpu-one cpu 1.5 busy",
            "spot-1 spot retiring idle for 3m10s",
            "1 node of the kind cpu is coming.",
            "ring The nearest kind is gpu: it rests: the provider has no more such nodes.",
            "typo The nearest kind is cpu: lacks gpu_tpye in {A100}.",
            "would not be needed (1.5 per hour less) if",
        ],
    )
    def test_says(self, scaled: Service, sentence: str) -> None:
        assert sentence in words_of(look(scaled, "/ui/scale"))

    def test_says_since_when_the_autoscaler_is_silent(self, scaled: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stead.operate.scale.SILENT_S", -1.0)
        text = words_of(look(scaled, "/ui/scale"))
        assert re.search(r"The autoscaler has not reported since 2026-01-01 00:01:30 +UTC \(0s ago\)", text)

    def test_says_that_a_launch_is_overdue(self, scaled: Service) -> None:
        (first, *_) = scaled.desk.scale().launches
        changed(scaled, launches=(replace(first, deadline=first.since),))
        assert "starting 40s ago overdue 40s ago" in words_of(look(scaled, "/ui/scale"))

    def test_shows_no_price_if_no_kind_has_one(self, scaled: Service) -> None:
        view = scaled.desk.scale()
        kinds = tuple(replace(each, price=0.0) for each in view.kinds)
        plan = replace(view.plan, new_nodes=(), price=0.0)
        changed(scaled, kinds=kinds, plan=plan, proposals=())
        page = look(scaled, "/ui/scale")
        assert "Price per hour" not in page
        assert "It needs no new node." in page

    def test_lists_a_bounded_number_of_nodes(self, scaled: Service) -> None:
        (first, *_) = scaled.desk.scale().nodes
        changed(scaled, nodes=tuple(replace(first, title=f"n-{number}") for number in range(2000)))
        page = look(scaled, "/ui/scale")
        assert page.count(">n-") == 500
        assert "The first 500 of 2,000" in page

    def test_names_from_outside_are_escaped(self, scaled: Service) -> None:
        evil = "<script>alert(1)</script>\u202e"
        (launch, *_), (node, *_), (kind, *_) = (
            getattr(scaled.desk.scale(), name) for name in ("launches", "nodes", "kinds")
        )
        changed(
            scaled,
            provider=evil,
            launches=(replace(launch, id=evil, kind=evil, problem=evil),),
            nodes=(replace(node, title=evil, kept=evil, kind=evil),),
            kinds=(replace(kind, name=evil, why=evil, rests_until=9e9, labels={evil: evil}, taints=(evil,)),),
        )
        page = look(scaled, "/ui/scale")
        assert "<script>alert" not in page and "\u202e" not in page
        assert page.count("&lt;script&gt;alert") > 8


class TestThePageWithoutAnAutoscaler:
    def test_computes_a_plan_only_for_those_who_may_ask_for_one(self, service: Service) -> None:
        """Any site can make a browser open a URL, and a plan takes time."""
        page = look(service, "/ui/scale")
        assert "No autoscaler has reported to this cluster." in page
        assert 'action="/ui/ask/scale"' in page and "data-poll" not in page
        assert "Pending even then" not in page
        assert "Pending even then" in look(service, "/ui/scale", service.token)

    def test_shows_the_plan_with_the_kinds_that_the_cluster_has(self, service: Service) -> None:
        text = words_of(send(service, "/ui/ask/scale", []))
        assert re.search(rf"like 0123456789ab [23] +ring {TIMES}[23]", text)
        assert "typo The nearest kind is cpu-one: lacks gpu_tpye in {A100}." in text

    def test_says_why_there_is_no_plan(self, service: Service) -> None:
        with simulated("work: [{id: web}]") as empty:
            service.desk.instead(lambda: empty)
            assert "The cluster has no node, so describe kinds of nodes" in words_of(send(service, "/ui/ask/scale", []))
