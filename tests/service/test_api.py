"""The REST API: every route by its golden file and its schema, and how people use it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from pydantic import TypeAdapter

from stead.codec import loads
from stead.engine.decisions import Decision
from stead.language.taints import Taint
from stead.operate.audit import Author
from stead.operate.changes import NodeChange
from stead.operate.desk import Unanswered
from stead.service import schemas
from stead.service.streams import STREAMS_MAX, Streams
from tests.golden_files import assert_golden
from tests.service.asking import Answered, Service
from tests.service.test_every_route import inside

LONG = "0123456789abcdef0123456789abcdef0123456789abcdef01234567"
SPEC = {"work": [{"id": "new", "resources": {"GPU": 1}, "selector": "gpu_type = A100"}]}
CHANGES = {"changes": [{"untaint": LONG, "key": "gpu_node"}, {"drain": "cpu-1"}], **SPEC}
WHOLE = {
    "taints": [{"key": "team", "value": "blue"}, {"key": "team", "value": "red", "effect": "NoExecute"}],
    "untaints": [{"key": "gpu_node", "effect": "NoSchedule"}],
    "labels": {"rack": "7"},
    "unlabels": ["gpu_type"],
    "draining": True,
    "for": "2h",
    "owner": "ann",
}
EACH = [{"node": "cpu-1", "draining": True}, {"node": "cpu-two", "labels": {"rack": "7"}}]
CARRIED = schemas.Carried | schemas.CarriedOnMany | schemas.Tried

GOLDEN: list[tuple[str, str, str, Any, Any]] = [  # file, method, path, body, type
    ("status", "GET", "/status", None, schemas.Status),
    ("nodes", "GET", "/nodes", None, schemas.Nodes),
    ("nodes-selector", "GET", "/nodes?selector=zone+in+[a]&limit=1&offset=1", None, schemas.Nodes),
    ("nodes-filter", "GET", "/nodes?filter=taints=gpu_node&filter=draining!=true", None, schemas.Nodes),
    ("node", "GET", "/nodes/cpu-1", None, schemas.Node),
    ("labels", "GET", "/labels", None, dict[str, dict[str, list[str]]]),
    ("asks", "GET", "/asks", None, schemas.Asks),
    ("asks-filter", "GET", "/asks?filter=state=waiting&filter=labels.app!=web&limit=2", None, schemas.Asks),
    ("ask", "GET", "/asks/cache", None, schemas.Work),
    ("why-waiting", "GET", "/asks/render/why", None, schemas.Explanation),
    ("why-placed", "GET", "/asks/web-1/why", None, schemas.Explanation),
    ("why-group", "GET", "/asks/ring/why", None, schemas.Explanation),
    ("groups", "GET", "/groups", None, schemas.Groups),
    ("owners", "GET", "/owners", None, schemas.Owners),
    ("owner", "GET", "/owners/blue", None, schemas.Owner),
    ("why-spec", "POST", "/why", SPEC, schemas.Explanations),
    ("what-if", "POST", "/what-if", CHANGES, schemas.Difference),
    ("lint", "GET", "/lint", None, schemas.Findings),
    ("lint-spec", "POST", "/lint", {"work": [{"id": "x", "selector": "zonee = a"}]}, schemas.Findings),
    ("events", "GET", "/events?after=10&limit=5", None, schemas.Events),
    ("plan", "POST", "/plan", {}, schemas.Plan),
    ("scale", "GET", "/scale", None, schemas.Scale),
    ("replay", "GET", "/replay?ask=web-1", None, schemas.Replayed),
    ("patch", "PATCH", f"/nodes/{LONG}", WHOLE, CARRIED),
    ("patch-many", "PATCH", "/nodes", {"selector": "zone in [a]", "labels": {"rack": "7"}}, CARRIED),
    ("patch-each", "PATCH", "/nodes", {"changes": EACH}, CARRIED),
    ("patch-dry-run", "PATCH", "/nodes/cpu-1", {"draining": True, "evict": True, "dry_run": True}, CARRIED),
    ("taint", "POST", "/nodes/taints/cpu-1?for=1h&owner=ann", {"gpu_node": "true"}, CARRIED),
    ("untaint", "DELETE", f"/nodes/taints/{LONG}", {"gpu_node": "true"}, CARRIED),
    ("label", "POST", "/nodes/labels/cpu-1", {"rack": "7"}, CARRIED),
    ("unlabel", "DELETE", "/nodes/labels/cpu-1", {"disk": None}, CARRIED),
    ("drain", "POST", "/nodes/drain/cpu-1?evict=true", None, CARRIED),
    ("uncordon", "POST", "/nodes/uncordon/spot-1", None, CARRIED),
    ("use", "GET", "/use", None, schemas.Use),
    ("healthz", "GET", "/healthz", None, schemas.Health),
]


def masked(found: Answered) -> str:
    """Without what differs every time: the request id, and the hash that contains it."""
    text = json.dumps(found.json, indent=1, sort_keys=True) + "\n"
    return re.sub(r'"(hash|request)": "[0-9a-f]+"', r'"\1": "..."', text)


class TestGoldenFiles:
    @pytest.mark.parametrize(("name", "method", "path", "body", "kind"), GOLDEN, ids=[each[0] for each in GOLDEN])
    def test_every_answer_is_as_written(
        self, service: Service, name: str, method: str, path: str, body: Any, kind: Any
    ) -> None:
        found = service.do(method, path, body)
        assert found.status == 200, found.body
        assert found.headers["content-type"] == "application/json"
        TypeAdapter(kind).validate_json(found.body, strict=True)
        assert_golden(f"rest-{name}.json", masked(found))

    def test_the_audit_and_its_undo(self, service: Service) -> None:
        service.do("POST", "/nodes/taints/cpu-1?for=1h&owner=ann", {"gpu_node": "true"})
        undone = service.do("POST", "/audit/1/undo")
        TypeAdapter(schemas.Carried).validate_json(undone.body, strict=True)
        assert_golden("rest-undo.json", masked(undone))
        found = service.do("GET", "/audit")
        TypeAdapter(schemas.Entries).validate_json(found.body, strict=True)
        assert_golden("rest-audit.json", masked(found))

    def test_the_metrics(self, service: Service) -> None:
        found = service.ask("GET", "/metrics")
        assert found.headers["content-type"].startswith("text/plain")
        took = re.compile(r"^(stead_decision_seconds_(?:bucket|sum).*) \S+$", re.MULTILINE)
        assert_golden("rest-metrics.txt", took.sub(r"\1 ...", found.body.decode()))

    def test_the_document(self, service: Service) -> None:
        assert_golden("rest-openapi.json", json.dumps(inside(service).openapi(), indent=1, sort_keys=True) + "\n")

    def test_every_route_of_the_document_has_one(self, service: Service) -> None:
        asked = {(method, path.partition("?")[0]) for _, method, path, _, _ in GOLDEN}
        asked |= {("GET", "/audit"), ("POST", "/audit/1/undo"), ("GET", "/metrics")}
        for path, methods in inside(service).openapi()["paths"].items():
            pattern = re.compile(re.sub(r"\\{[^}]*\\}", "[^?]+", re.escape(path)))
            for method in methods:
                assert any(method.upper() == each and pattern.fullmatch(to) for each, to in asked), (method, path)


class TestTaintRoutes:
    def test_set_and_remove_taints_by_a_map(self, service: Service) -> None:
        def taints() -> dict[str, str]:
            return {each["key"]: each["value"] for each in service.ask("GET", "/nodes/cpu-1").json["taints"]}

        assert service.do("POST", "/nodes/taints/cpu-1", {"gpu_node": "true", "b": ""}).status == 200
        assert taints() == {"gpu_node": "true", "b": ""}
        assert service.do("POST", "/nodes/taints/cpu-1", {"gpu_node": "false"}).status == 200
        assert taints() == {"gpu_node": "false", "b": ""}
        refused = service.do("DELETE", "/nodes/taints/cpu-1", {"gpu_node": "true"})
        assert (refused.status, refused.error) == (
            404,
            "node cpu-one has no taint gpu_node=true; it has b, gpu_node=false",
        )
        assert service.do("DELETE", "/nodes/taints/cpu-1", {"gpu_node": "false"}).status == 200
        assert taints() == {"b": ""}

    def test_name_a_node_by_the_beginning_of_its_id_its_address_or_its_name(self, service: Service) -> None:
        for said, id in (("012345", LONG), ("10.0.0.1", "cpu-1"), ("cpu-two", "cpu-2")):
            assert service.ask("GET", f"/nodes/{said}").json["id"] == id
        assert service.ask("GET", "/nodes/10.0.0.3").status == 409
        assert service.ask("GET", "/nodes/nowhere").status == 404

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            ({"gpu_node": True}, 422),
            ({"gpu_node": None}, 422),
            (["gpu_node"], 422),
            ("gpu_node", 422),
            ({}, 400),
            ({"": "x"}, 400),
            ({"a b": "x"}, 400),
            ({"a": "x y"}, 400),
            (b"{", 422),
            (b"", 422),
            (b"\xff", 400),
            (b"[" * 100_000, 400),
            (b'{"a": ' + b"9" * 5000 + b"}", 400),
        ],
    )
    def test_report_errors_in_one_sentence(self, service: Service, body: Any, status: int) -> None:
        for method in ("POST", "DELETE"):
            found = service.do(method, "/nodes/taints/cpu-1", body)
            assert found.status in (status, 422 if status == 400 else 400), found.body
            assert "\n" not in found.error


class TestOnePatch:
    def test_is_one_entry_of_the_audit_and_one_undo(self, service: Service) -> None:
        before = service.ask("GET", f"/nodes/{LONG}").json
        changed = service.do("PATCH", f"/nodes/{LONG}", WHOLE).json
        assert changed["node"]["draining"] is True
        assert [entry["number"] for entry in service.ask("GET", "/audit").json["items"]] == [1]
        undone = service.do("POST", "/audit/1/undo").json["node"]
        assert {**undone, "taints": sorted(each["key"] for each in undone["taints"])} == {
            **before,
            "taints": sorted(each["key"] for each in before["taints"]),
        }

    def test_is_refused_as_a_whole(self, service: Service) -> None:
        before = service.ask("GET", "/nodes").json
        for body, status in (
            ({"labels": {"rack": "7"}, "untaints": [{"key": "nothing"}]}, 404),
            ({"labels": {"rack": "7"}, "unlabels": ["nothing"]}, 404),
            ({"labels": {"zone": "b"}, "taints": [{"key": "x"}], "overwrite": False}, 409),
            ({"taints": [{"key": "x"}, {"key": "x", "value": "y"}]}, 400),
            ({"taints": [{"key": "x"}], "untaints": [{"key": "x"}]}, 400),
            ({"labels": {"disk": "hdd"}, "unlabels": ["disk"]}, 400),
            ({"unlabels": ["disk"], "unlabel_values": {"disk": "hdd"}}, 404),
            ({"unlabel_values": {"disk": "hdd"}}, 400),
            ({"taints": [{"key": "x", "effect": "Never"}]}, 400),
            ({"taints": [{"key": "x"}], "for": "soon"}, 400),
            ({"taints": [{"key": "x"}], "for": 0}, 400),
            ({"taints": [{"key": "x"}], "until_job": "01"}, 400),
            ({"evict": True, "labels": {"a": "b"}}, 400),
            ({"labels": {"node_id": "x"}}, 400),
            ({"taint": [{"key": "x"}]}, 422),
            ({"draining": "yes"}, 422),
            ({}, 400),
        ):
            found = service.do("PATCH", "/nodes/cpu-1", body)
            assert found.status == status, (body, found.body)
        assert service.ask("GET", "/nodes").json == before
        assert service.ask("GET", "/audit").json == {"items": [], "verified": 0}

    def test_changes_nothing_in_a_dry_run(self, service: Service) -> None:
        before = service.ask("GET", "/nodes").json
        found = service.do("PATCH", "/nodes/cpu-1", {"draining": True, "evict": True, "dry_run": True})
        assert found.json["difference"]["moved"] or found.json["difference"]["stranded"]
        assert service.ask("GET", "/nodes").json == before


class TestQuestions:
    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/asks/nothing", 404),
            ("/asks/nothing/why", 404),
            ("/asks/pair", 400),  # it exists, but is a group
            ("/replay?ask=nothing", 404),
            ("/nodes?selector=zone+in", 400),
            ("/nodes?filter=zone", 400),
            ("/asks?filter=colour=red", 400),
            ("/nodes?limit=0", 422),
            ("/nodes?limit=10001", 422),
            ("/nodes?offset=-1", 422),
            ("/nodes?" + "&".join(["filter=id=a"] * 21), 422),
            ("/nodes?filter=" + "x" * 1001, 422),
            ("/events?after=last", 422),
            ("/replay?at=nan", 422),
            ("/nowhere", 404),
        ],
    )
    def test_that_are_invalid_are_answered_in_one_sentence(self, service: Service, path: str, status: int) -> None:
        found = service.ask("GET", path)
        assert (found.status, "\n" in found.error) == (status, False)

    @pytest.mark.parametrize("path", ["/why", "/what-if", "/lint"])
    def test_change_nothing(self, service: Service, path: str) -> None:
        before = [service.ask("GET", each).body for each in ("/nodes", "/asks", "/events", "/audit", "/groups")]
        service.ask("POST", path, SPEC)
        assert [service.ask("GET", each).body for each in ("/nodes", "/asks", "/events", "/audit", "/groups")] == before

    def test_about_the_past_return_decisions_that_can_be_parsed(self, service: Service) -> None:
        found = service.ask("GET", "/replay?ask=web-1").json
        assert loads(json.dumps(found["decisions"]), tuple[Decision, ...])

    def test_text_that_is_not_valid_utf8_survives(self, service: Service) -> None:
        found = service.ask("POST", "/why", b'{"work": [{"id": "\\ud800", "resources": {"CPU": 1}}]}')
        assert found.status == 200
        assert found.json["items"][0]["id"] == "\ud800"

    @pytest.mark.parametrize("error", [Unanswered("it is silent"), TimeoutError(), ConnectionResetError()], ids=repr)
    def test_a_cluster_that_does_not_answer_is_503(
        self, service: Service, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def silent(*_: Any) -> None:
            raise error

        for name in ("summary", "node", "change"):
            monkeypatch.setattr(f"stead.operate.desk.LocalDesk.{name}", silent)
        assert service.ask("GET", "/status").status == 503
        assert service.do("POST", "/nodes/drain/cpu-1").status == 503

    def test_an_error_in_the_service_is_500_without_details(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: Any) -> None:
            raise RuntimeError("a secret")

        monkeypatch.setattr("stead.operate.desk.LocalDesk.summary", broken)
        with pytest.raises(RuntimeError):  # for the log; the answer was already sent
            service.ask("GET", "/status")


class TestTheReferencePage:
    def test_lists_every_route_and_loads_nothing_from_other_sites(self, service: Service) -> None:
        page = service.ask("GET", "/docs").body.decode()
        for path, methods in inside(service).openapi()["paths"].items():
            for method in methods:
                assert f"<code>{method.upper()} {path}</code>" in page
        assert not re.search(r"https?://|<script|<style| style=| on[a-z]+=", page)
        assert service.ask("GET", "/docs/style.css").headers["content-type"].startswith("text/css")


class TestStreams:
    def test_send_old_events_and_then_new_ones(self, service: Service) -> None:
        desk: Any = service.desk

        async def listen() -> list[str]:
            streams = Streams(desk)
            known = len(desk.events(0, 1000))
            told: list[str] = []
            stream = streams.after(known - 1)
            async with asyncio.timeout(30):
                async for piece in stream:
                    told.append(piece)
                    if len(told) == 2:  # the greeting, and the last old event
                        await asyncio.to_thread(service_change, desk)
                    if "tainted" in piece and len(told) > 2:
                        break
            await stream.aclose()  # type: ignore[attr-defined]
            return told

        told = asyncio.run(listen())
        numbers = [int(found) for piece in told for found in re.findall(r"^id: (\d+)", piece)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert all(piece.endswith("\n\n") for piece in told)

    def test_are_limited_in_number(self, service: Service) -> None:
        desk: Any = service.desk

        async def listen() -> list[str]:
            streams = Streams(desk)
            open_ones = [streams.after(0) for _ in range(STREAMS_MAX)]
            for stream in open_ones:
                await anext(stream)
            assert streams.are_full()
            one_more = [piece async for piece in streams.after(0)]
            for stream in open_ones:
                await stream.aclose()  # type: ignore[attr-defined]
            assert not streams._open
            return one_more

        assert asyncio.run(listen()) == ["retry: 5000\n\n"]


def service_change(desk: Any) -> None:
    desk.change(NodeChange("cpu-1", (Taint("x", "y"),)), Author("test"))
