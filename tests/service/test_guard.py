"""Closed by default: a test for each promise of the guard."""

from __future__ import annotations

import re

import pytest

from stead.operate.origins import is_loopback
from stead.service.guard import Limits
from stead.service.keys import COOKIE
from tests.service.asking import HERE, ORIGIN, Service
from tests.service.conftest import Serve, Slow

TAINT = ("POST", "/nodes/taints/cpu-1", {"gpu_node": "true"})
FOREIGN = ("http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1", "http://localhost:8625", "")


def taints(service: Service) -> list[str]:
    return [taint["key"] for taint in service.ask("GET", "/nodes/cpu-1").json["taints"]]


class TestATokenIsNeeded:
    @pytest.mark.parametrize(
        "shown", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic b3A6b3A=", "bearer  ", "Bearer \x80", "Token x"]
    )
    def test_for_every_change_on_loopback_too(self, service: Service, shown: str) -> None:
        headers = [("authorization", shown)] if shown else []
        found = service.ask(*TAINT, headers=headers)
        assert found.status == 401
        assert found.headers["www-authenticate"] == "Bearer"
        assert not taints(service)

    def test_and_a_right_one_is_enough(self, service: Service) -> None:
        assert service.do(*TAINT).status == 200
        assert taints(service) == ["gpu_node"]

    def test_a_viewer_can_read_but_not_change(self, serve: Serve) -> None:
        service = serve(open_reads=False)
        viewer = service.keys.give("viewer", "eve")
        assert service.ask("GET", "/nodes", token=viewer).status == 200
        refused = service.ask(*TAINT, token=viewer)
        assert (refused.status, refused.error) == (
            403,
            "the token of 'eve' is a viewer's; a change needs an operator's",
        )

    def test_a_revoked_token_is_refused_at_once(self, service: Service) -> None:
        token = service.keys.give("operator", "ann")
        assert service.ask(*TAINT, token=token).status == 200
        service.keys.take_back("ann")
        assert service.ask("DELETE", *TAINT[1:], token=token).status == 401

    def test_on_other_addresses_than_loopback_for_every_question_too(self, serve: Serve) -> None:
        service = serve(open_reads=False)
        for path in ("/nodes", "/status", "/metrics", "/openapi.json", "/docs", "/audit"):
            assert service.ask("GET", path).status == 401, path
            assert service.do("GET", path).status == 200, path
        assert service.ask("POST", "/what-if", {}).status == 401
        assert service.ask("GET", "/healthz").status == 200

    def test_a_wrong_token_does_not_count_as_no_token(self, service: Service) -> None:
        assert service.ask("GET", "/nodes").status == 200
        assert service.ask("GET", "/nodes", token="wrong").status == 401

    @pytest.mark.parametrize("path", ["/nodes?token={}", "/nodes/taints/cpu-1?token={}", "/login?token={}"])
    def test_in_the_url_it_is_ignored(self, serve: Serve, path: str) -> None:
        service = serve(open_reads=False)
        assert service.ask("PATCH", path.format(service.token), {}).status in (401, 405)

    def test_two_of_them_are_refused(self, service: Service) -> None:
        headers = [("authorization", f"Bearer {service.token}"), ("authorization", "Bearer other")]
        assert service.ask(*TAINT, headers=headers).status == 400

    def test_no_answer_shows_it(self, service: Service) -> None:
        for method, path in (("GET", "/nodes"), ("GET", "/audit"), ("POST", "/nodes/drain/cpu-1"), ("GET", "/x")):
            found = service.do(method, path)
            assert service.token not in found.body.decode() + str(found.headers)


class TestTheHost:
    @pytest.mark.parametrize(
        "host",
        [
            None,
            "",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example:8625",
            "evil.example:8625",
            "127.0.0.1@evil.example",
            "127.0.0.1:8625@evil.example",
            "[::1]evil.example",
            "[::1]:80:evil",
            "127.0.0.1:port",
            "127.0.0.1, evil.example",
            "127.0.0.1 evil.example",
            "localhost.",
            "0.0.0.0",
            "10.0.0.1",
            "2130706433",
        ],
    )
    @pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "DELETE", "PATCH", "TRACE"])
    def test_another_host_name_is_refused_on_every_request(
        self, service: Service, method: str, host: str | None
    ) -> None:
        for path in ("/nodes", "/healthz", "/login", "/static/x", "/nowhere"):
            assert service.ask(method, path, token=service.token, host=host).status == 403, path

    @pytest.mark.parametrize(
        "host", ["127.0.0.1", "127.0.0.1:1", "localhost", "LocalHost:80", "[::1]:8625", "127.1.2.3"]
    )
    def test_loopback_by_any_port_is_accepted(self, service: Service, host: str) -> None:
        assert service.ask("GET", "/nodes", host=host).status == 200

    def test_an_allowed_host_name_is_accepted(self, serve: Serve) -> None:
        service = serve(hosts=["Stead.Example"])
        assert service.ask("GET", "/nodes", host="stead.example:443").status == 200
        assert service.ask("GET", "/nodes", host="other.example").status == 403

    def test_two_hosts_are_refused(self, service: Service) -> None:
        assert service.ask("GET", "/nodes", headers=[("host", "127.0.0.1")]).status == 400

    def test_no_header_of_a_proxy_changes_it(self, service: Service) -> None:
        for name in ("x-forwarded-host", "x-host", "forwarded", "x-original-url"):
            assert service.ask("GET", "/nodes", host="evil.example", headers=[(name, HERE)]).status == 403

    def test_is_loopback_accepts_only_localhost_as_a_name(self) -> None:
        assert [is_loopback(name) for name in ("localhost", "::1", "127.0.0.1", "127.1", "lo", "")] == [
            True,
            True,
            True,
            False,
            False,
            False,
        ]


class TestThePageOfAnotherSite:
    @pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH", "PUT", "TRACE", "get", "PROPFIND"])
    @pytest.mark.parametrize("origin", FOREIGN)
    def test_may_send_nothing_that_is_not_safe(self, service: Service, method: str, origin: str) -> None:
        found = service.ask(method, TAINT[1], TAINT[2], service.token, [("origin", origin)])
        assert found.status == 403
        assert not taints(service)

    @pytest.mark.parametrize("site", ["cross-site", "same-site", "CROSS-SITE", "other", ""])
    def test_is_recognised_by_the_headers_of_the_browser(self, service: Service, site: str) -> None:
        assert service.ask(*TAINT, service.token, [("sec-fetch-site", site)]).status == 403

    @pytest.mark.parametrize("path", ["/what-if", "/why", "/lint", "/login", "/logout"])
    def test_may_not_even_ask_or_sign_in(self, service: Service, path: str) -> None:
        assert service.ask("POST", path, {}, headers=[("origin", "http://evil.example")]).status == 403

    def test_two_origins_are_refused(self, service: Service) -> None:
        headers = [("origin", ORIGIN), ("origin", "http://evil.example")]
        assert service.ask(*TAINT, service.token, headers).status == 400

    def test_a_page_of_this_service_may_send_changes(self, service: Service) -> None:
        own = [("origin", ORIGIN), ("sec-fetch-site", "same-origin")]
        assert service.ask(*TAINT, service.token, own).status == 200

    def test_no_answer_can_be_read_by_other_sites(self, service: Service) -> None:
        found = service.ask("GET", "/nodes", headers=[("origin", "http://evil.example")])
        assert not [name for name in found.headers if name.startswith("access-control")]
        assert found.headers["cross-origin-resource-policy"] == "same-origin"


class TestACookie:
    @staticmethod
    def cookie(service: Service, token: str = "") -> str:
        made = service.keys.cookie(token or service.token)
        assert made is not None
        return made.partition(";")[0]

    def test_is_enough_to_read_where_a_token_is_required(self, serve: Serve) -> None:
        service = serve(open_reads=False)
        assert service.ask("GET", "/nodes", headers=[("cookie", self.cookie(service))]).status == 200

    def test_is_enough_to_change_only_from_a_page_of_this_service(self, service: Service) -> None:
        cookie = ("cookie", self.cookie(service))
        refused = service.ask(*TAINT, headers=[cookie])
        assert (refused.status, refused.error) == (403, "a change by cookie must come from a page of this service")
        assert service.ask(*TAINT, headers=[cookie, ("sec-fetch-site", "none")]).status == 403
        assert service.ask(*TAINT, headers=[cookie, ("origin", "http://127.0.0.1:1")]).status == 403
        assert service.ask(*TAINT, headers=[cookie, ("origin", ORIGIN)]).status == 200

    def test_of_a_viewer_changes_nothing(self, service: Service) -> None:
        cookie = self.cookie(service, service.keys.give("viewer", "eve"))
        assert service.ask(*TAINT, headers=[("cookie", cookie), ("origin", ORIGIN)]).status == 403

    @pytest.mark.parametrize(
        "spoiled",
        ["{}x", "1{}", "{}; {name}=1.2", "{name}=", "{name}=9999999999.", "{name}=²³.x", "{name}=1e9.x", "other{}"],
    )
    def test_that_was_modified_is_refused(self, serve: Serve, spoiled: str) -> None:
        service = serve(open_reads=False)
        value = spoiled.format(self.cookie(service), name=COOKIE)
        assert service.ask("GET", "/nodes", headers=[("cookie", value)]).status == 401

    def test_is_not_the_token(self, serve: Serve) -> None:
        service = serve(open_reads=False)
        assert service.token not in self.cookie(service)
        assert service.ask("GET", "/nodes", headers=[("cookie", f"{COOKIE}={service.token}")]).status == 401

    def test_is_ignored_beside_a_wrong_token(self, serve: Serve) -> None:
        service = serve(open_reads=False)
        headers = [("cookie", self.cookie(service))]
        assert service.ask("GET", "/nodes", token="wrong", headers=headers).status == 401


class TestLimits:
    def test_a_long_body_is_refused_by_its_announcement_and_by_its_length(self, serve: Serve) -> None:
        service = serve(limits=Limits(body=100))
        assert service.do("POST", "/why", {"work": "x" * 200}).status == 413
        assert service.ask("POST", "/why", headers=[("transfer-encoding", "chunked")]).status in (400, 422)
        for written in ("1" * 5000, "-1", "1e3", "", "0x10", "\xb2"):
            assert service.ask("POST", "/why", headers=[("content-length", written)]).status == 413, written

    def test_too_many_labels_or_taints_are_refused(self, service: Service) -> None:
        many = {f"key-{number}": "x" for number in range(101)}
        for method, path, body in (
            ("POST", "/nodes/taints/cpu-1", many),
            ("DELETE", "/nodes/taints/cpu-1", many),
            ("POST", "/nodes/labels/cpu-1", many),
            ("PATCH", "/nodes/cpu-1", {"labels": many}),
            ("PATCH", "/nodes/cpu-1", {"taints": [{"key": key} for key in many]}),
            ("PATCH", "/nodes/cpu-1", {"unlabels": list(many)}),
        ):
            assert service.do(method, path, body).status == 422, path

    def test_too_many_requests_get_a_retry_after(self, serve: Serve) -> None:
        service = serve(limits=Limits(reads=1, burst=2))
        assert [service.ask("GET", "/healthz").status for _ in range(3)] == [200, 200, 429]
        refused = service.ask("GET", "/healthz")
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.error == "too many requests; retry later"

    def test_writes_are_counted_separately(self, serve: Serve) -> None:
        service = serve(limits=Limits(writes=1, burst=1))
        assert [service.do(*TAINT).status for _ in range(2)] == [200, 429]
        assert service.do("GET", "/nodes").status == 200

    def test_requests_without_a_token_do_not_use_up_the_share_of_a_token(self, serve: Serve) -> None:
        service = serve(limits=Limits(reads=1, writes=1, burst=1))
        for _ in range(3):
            service.ask("GET", "/nodes")
            service.ask(*TAINT)
            service.ask("GET", "/nodes", token="wrong")
        assert service.do("GET", "/nodes").status == 200
        assert service.do(*TAINT).status == 200

    def test_wrong_tokens_are_limited(self, serve: Serve) -> None:
        service = serve(limits=Limits(wrong=1, burst=3))
        assert [service.ask("GET", "/nodes", token="wrong").status for _ in range(4)] == [401, 401, 401, 429]
        assert service.do("GET", "/nodes").status == 200
        assert service.ask("GET", "/nodes", token="wrong", client="127.0.0.2").status == 401

    def test_a_failed_sign_in_counts_as_a_wrong_token(self, serve: Serve) -> None:
        service = serve(limits=Limits(wrong=1, burst=3))
        assert [service.ask("POST", "/login", b"token=x").status == 429 for _ in range(4)] == [False] * 3 + [True]

    def test_a_proxy_header_does_not_change_the_client(self, serve: Serve) -> None:
        service = serve(limits=Limits(reads=1, burst=1))
        found = [
            service.ask("GET", "/healthz", headers=[("x-forwarded-for", f"10.0.0.{number}")]).status
            for number in range(2)
        ]
        assert found == [200, 429]

    def test_the_memory_for_clients_is_bounded(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stead.service.guard.CLIENTS_MAX", 10)
        service = serve()
        for number in range(50):
            service.ask("GET", "/healthz", client=f"127.0.0.{number}")
        assert len(service.app._buckets) == 10


class TestManyAtOnce:
    """Requests that all wait for a slow cluster."""

    def test_are_answered_at_once_with_429_and_not_queued(self, slow: Slow) -> None:
        service, going = slow
        found = service.all_at_once([("GET", "/status", None, "")] * 6, going, refused=2)
        assert sorted(each.status for each in found) == [400] * 4 + [429] * 2
        assert {each.headers["retry-after"] for each in found if each.status == 429} == {"1"}

    def test_do_not_block_requests_with_a_token(self, slow: Slow) -> None:
        service, going = slow
        asked = [("GET", "/status", None, "")] * 6 + [("GET", "/status", None, service.token)]
        assert [each.status for each in service.all_at_once(asked, going, refused=2)][-1] == 400

    def test_that_are_long_questions_are_fewer(self, slow: Slow) -> None:
        service, going = slow
        spec = {"work": [{"id": "x"}]}
        found = service.all_at_once([("POST", "/lint", spec, "")] * 3 + [("GET", "/nodes", None, "")], going, refused=1)
        assert [each.status for each in found].count(429) == 1
        assert found[-1].status == 200

    def test_release_their_places(self, slow: Slow) -> None:
        service, going = slow
        going.set()
        for _ in range(3):
            assert service.ask("GET", "/status").status == 400
        assert not any(share.requests for share in service.app._shares.values())


class TestWaysAround:
    @pytest.mark.parametrize(
        "path",
        [
            "//nodes/taints/cpu-1",
            "/nodes//taints/cpu-1",
            "/nodes/taints/cpu-1/",
            "/Nodes/Taints/cpu-1",
            "/static/../nodes/taints/cpu-1",
            "/static/../../nodes/taints/cpu-1",
            "/ui/ask/../do/taint",
            "/ui/ask//do",
            "/what-if/../nodes/taints/cpu-1",
            "/healthz/../nodes/taints/cpu-1",
            "/login/../nodes/taints/cpu-1",
            "/nodes/taints/cpu-1;/what-if",
            "/nodes/taints/%2e%2e",
            "/what-if/",
            "/WHY",
            "http://127.0.0.1/nodes/taints/cpu-1",
            "*",
        ],
    )
    def test_no_other_spelling_of_a_path_needs_fewer_rights(self, service: Service, path: str) -> None:
        for method in ("POST", "DELETE", "PATCH", "PUT"):
            assert service.ask(method, path, TAINT[2]).status == 401, method
            assert service.ask(method, path, TAINT[2], token=service.keys.give("viewer", "eve")).status == 403
        assert not taints(service)

    @pytest.mark.parametrize("name", ["x-http-method-override", "x-http-method", "x-method-override"])
    def test_no_header_changes_the_method_of_a_request(self, service: Service, name: str) -> None:
        service.ask("GET", TAINT[1], TAINT[2], headers=[(name, "POST")])
        service.ask("POST", "/what-if", {}, headers=[(name, "DELETE")])
        assert not taints(service)

    @pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PUT", "get", "POST ", "FOO"])
    def test_an_unknown_method_needs_a_token(self, service: Service, method: str) -> None:
        assert service.ask(method, "/nodes").status == 401
        assert service.do(method, "/nodes").status == 405

    @pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
    def test_safe_methods_change_nothing_anywhere(self, service: Service, method: str) -> None:
        for path in ("/nodes/taints/cpu-1", "/nodes/drain/cpu-1", "/audit/1/undo"):
            assert service.ask(method, path).status == 405

    def test_a_question_depends_on_its_method_too(self, service: Service) -> None:
        assert service.ask("DELETE", "/what-if", {}).status == 401
        assert service.ask("PUT", "/lint", {}).status == 401


class TestPages:
    HTML = (("accept", "text/html,application/xhtml+xml"),)

    @pytest.mark.parametrize("path", ["/", "/ui/", "/ui/nodes/x", "/docs", "/ui"])
    def test_a_browser_is_redirected_to_the_sign_in(self, serve: Serve, path: str) -> None:
        found = serve(open_reads=False).ask("GET", path, headers=self.HTML)
        assert (found.status, found.headers["location"]) == (303, f"/login?next={path}")

    def test_a_program_is_not_redirected(self, serve: Serve) -> None:
        service = serve(open_reads=False)
        assert service.ask("GET", "/ui/").status == 401
        assert service.ask("GET", "/nodes", headers=self.HTML).status == 401
        assert service.ask("POST", "/ui/do/taint", {}, headers=self.HTML).status == 401

    def test_a_question_by_page_needs_the_same_rights_as_by_api(self, serve: Serve) -> None:
        open_to_all, closed = serve(), serve(open_reads=False)
        assert open_to_all.ask("POST", "/ui/ask/nothing", {}).status in (404, 405)
        assert closed.ask("POST", "/ui/ask/nothing", {}).status == 401
        viewer = closed.keys.give("viewer", "eve")
        assert closed.ask("POST", "/ui/ask/nothing", {}, viewer).status in (404, 405)
        assert closed.ask("POST", "/ui/do/nothing", {}, viewer).status == 403


class TestEveryAnswer:
    @pytest.mark.parametrize(
        ("method", "path"), [("GET", "/nodes"), ("GET", "/docs"), ("POST", "/nodes/drain/x"), ("GET", "/nowhere")]
    )
    def test_carries_the_strict_headers(self, service: Service, method: str, path: str) -> None:
        headers = service.ask(method, path).headers
        policy = dict(re.findall(r"([a-z-]+) ([^;]+)", headers["content-security-policy"]))
        assert policy["default-src"] == "'none'"
        assert "unsafe" not in headers["content-security-policy"]
        assert not re.search(r"https?:|\*", headers["content-security-policy"])
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert re.fullmatch("[0-9a-f]{16}", headers["x-request-id"])

    def test_has_a_request_id_that_the_audit_shows(self, service: Service) -> None:
        made = service.do(*TAINT)
        assert made.json["audit"]["request"] == made.headers["x-request-id"]
        assert service.do("GET", "/nodes").headers["x-request-id"] != made.headers["x-request-id"]


def test_damaged_tokens_close_the_service_instead_of_opening_it(service: Service) -> None:
    service.keys.give("viewer", "eve")
    (service.keys._folder / "tokens.json").write_text("{")
    assert service.do("GET", "/nodes").status == 503
    assert service.ask(*TAINT).status in (401, 503)
