"""Questions are cheap: a GET computes nothing expensive, and everything that is read is bounded."""

from __future__ import annotations

import socket
import threading
from typing import Any
from urllib.parse import urlencode

import pytest

from stead.errors import SENTENCE_MAX
from stead.operate.cancellation import ClientDisconnected, still_wanted
from stead.operate.what_if import QUESTION_MAX
from stead.sim.desk import SimDesk
from stead.specs.sections import VALUES_MAX, load_yaml
from tests.service.asking import Service
from tests.service.conftest import SCENARIO
from tests.serving import serving, simulated

ORIGIN = [("origin", "http://127.0.0.1:8625"), ("sec-fetch-site", "same-origin")]
FORM = ("content-type", "application/x-www-form-urlencoded")
WHAT_IF = "/ui/what-if?kind=drain&node=cpu-1"
PREVIEW = "/ui/nodes/cpu-1?do=drain"
REPLAY = "/ui/history?ask=web-1"


def bomb(levels: int = 9) -> str:
    """Each level is nine times as large as the previous one."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


class TestAGetComputesNothingExpensive:
    @pytest.fixture(autouse=True)
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        asked: list[str] = []
        for name in ("what_if", "blast", "replay"):
            answer = getattr(SimDesk, name)

            def counting(desk: SimDesk, *given: Any, name: str = name, answer: Any = answer) -> Any:
                asked.append(name)
                return answer(desk, *given)

            monkeypatch.setattr(SimDesk, name, counting)
        return asked

    @pytest.mark.parametrize("path", [WHAT_IF, PREVIEW, REPLAY])
    def test_without_a_token_a_page_shows_the_question_and_does_not_answer_it(
        self, service: Service, counted: list[str], path: str
    ) -> None:
        assert service.ask("GET", path).status == 200
        assert counted == []

    @pytest.mark.parametrize("path", [WHAT_IF, PREVIEW, REPLAY])
    def test_with_a_token_it_answers(self, service: Service, counted: list[str], path: str) -> None:
        assert service.do("GET", path).status == 200
        assert len(counted) == 1

    @pytest.mark.parametrize("path", [WHAT_IF, PREVIEW, REPLAY])
    def test_a_link_on_another_site_does_not_make_it_answer_even_with_a_token(
        self, service: Service, counted: list[str], path: str
    ) -> None:
        headers = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")]
        assert service.ask("GET", path, token=service.token, headers=headers).status == 200
        assert counted == []

    @pytest.mark.parametrize(
        ("path", "form"),
        [
            ("/ui/ask/what-if", {"kind": "drain", "node": "cpu-1", "do": "try"}),
            ("/ui/ask/nodes/cpu-1", {"do": "drain"}),
            ("/ui/ask/history", {"ask": "web-1"}),
        ],
    )
    def test_a_form_of_the_page_is_answered_without_a_token_on_loopback(
        self, service: Service, counted: list[str], path: str, form: dict[str, str]
    ) -> None:
        answered = service.ask("POST", path, urlencode(form).encode(), headers=[*ORIGIN, FORM])
        assert answered.status == 200
        assert len(counted) == 1

    @pytest.mark.parametrize("path", [WHAT_IF, "/ui/", "/replay", "/lint", "/nodes", "/asks/web-1/why"])
    @pytest.mark.parametrize("destination", ["image", "script", "iframe", "empty"])
    def test_no_other_site_can_load_anything_from_here(self, service: Service, path: str, destination: str) -> None:
        headers = [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "no-cors"),
            ("sec-fetch-dest", destination),
        ]
        assert service.ask("GET", path, headers=headers).status == 403


class TestWhatIsReadIsBounded:
    def test_yaml_with_nested_aliases_is_refused_before_expansion(self, service: Service) -> None:
        form = urlencode({"kind": "written", "text": bomb(), "do": "try"}).encode()
        answered = service.ask("POST", "/ui/ask/what-if", form, headers=[*ORIGIN, FORM])
        assert answered.status == 400
        assert b"is too large" in answered.body

    def test_small_aliases_are_accepted(self) -> None:
        assert load_yaml("a: &a {b: [1, 2]}\nc: [*a, *a]") == {"a": {"b": [1, 2]}, "c": [{"b": [1, 2]}, {"b": [1, 2]}]}

    @pytest.mark.parametrize("text", [bomb(), "a: &a [*a]", "a: &a {b: *a}"])
    def test_values_are_counted_as_if_aliases_were_expanded(self, text: str) -> None:
        with pytest.raises(ValueError, match=f"may have at most {VALUES_MAX:,} values"):
            load_yaml(text)

    @pytest.mark.parametrize(
        "written",
        [
            {"work": [{"id": "x", "count": QUESTION_MAX + 1, "resources": {"CPU": 1}}]},
            {"groups": [{"id": "x", "bundles": [{"count": QUESTION_MAX + 1, "resources": {"CPU": 1}}]}]},
            {"changes": [{"join": {"count": QUESTION_MAX + 1, "capacity": {"CPU": 1}}}]},
            {"changes": [{"drain": ["cpu-1"] * (QUESTION_MAX + 1)}]},
        ],
        ids=["work", "bundles", "nodes", "changes"],
    )
    def test_a_question_has_a_bounded_number_of_pieces(self, service: Service, written: dict[str, Any]) -> None:
        answered = service.ask("POST", "/what-if", written)
        assert answered.status == 400
        assert f"at most {QUESTION_MAX:,}" in answered.error

    @pytest.mark.parametrize("path", ["/why", "/lint"])
    def test_a_spec_has_a_bounded_number_of_pieces(self, service: Service, path: str) -> None:
        written = {"work": [{"id": "x", "count": 1_000_000, "resources": {"CPU": 1}}]}
        assert f"at most {QUESTION_MAX:,}" in service.ask("POST", path, written).error

    def test_an_error_is_short_whatever_it_quotes(self, service: Service) -> None:
        written = {"work": [{"id": "x", "selector": "z" * 500_000}]}
        answered = service.ask("POST", "/what-if", written)
        assert answered.status == 400
        assert len(answered.error) < SENTENCE_MAX + 100


class TestAClientThatDisconnects:
    def test_ends_the_work_for_its_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        begun, ended = threading.Event(), threading.Event()

        def slow(desk: SimDesk, written: Any) -> Any:
            begun.set()
            try:
                while not ended.wait(0.01):
                    still_wanted()
            except ClientDisconnected:
                ended.set()
                raise

        monkeypatch.setattr(SimDesk, "what_if", slow)
        with simulated(SCENARIO) as desk, serving(desk) as served:
            host, port = served.url.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port))) as client:
                body = b'{"changes": []}'
                head = f"POST /what-if HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
                client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                assert begun.wait(60)
            try:
                assert ended.wait(60)
            finally:
                ended.set()
