"""What tests may do to the fake API server: make it fail, hang, lose answers, stop, forget; and count its requests."""

from __future__ import annotations

import gc
import http.client
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import yaml

from tests.kubernetes.objects import ApiError, Kubectl, binding, node, node_of, nodes, pod, pods, taint
from tests.kubernetes.servers.fake import FakeServer

POD = "/api/v1/namespaces/default/pods/web"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(users={"stead": ["schedulers"]}) as server:
        yield server


@pytest.fixture
def kubectl(server: FakeServer) -> Iterator[Kubectl]:
    with Kubectl(server) as kubectl:
        yield kubectl


def test_the_next_requests_fail_and_change_nothing(server: FakeServer, kubectl: Kubectl) -> None:
    kubectl.create(pod("web"))
    server.fail_next("POST", "/binding$", 503, times=2)
    for _ in range(2):
        with pytest.raises(ApiError, match="503") as caught:
            kubectl.bind("web", "a")
        assert caught.value.reason == "ServiceUnavailable"
    kubectl.bind("web", "a")
    assert node_of(kubectl.get("Pod", "web")) == "a"


def test_an_error_says_when_to_try_again(server: FakeServer) -> None:
    server.fail_next("*", "^/version$", 429, retry_after=7)
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/version")
    response = connection.getresponse()
    assert (response.status, response.headers["Retry-After"]) == (429, "7")
    connection.close()


def test_a_request_hangs_until_it_is_released(server: FakeServer, kubectl: Kubectl) -> None:
    kubectl.create(pod("web"))
    server.hang_next("GET", POD)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(kubectl.get, "Pod", "web")
        kubectl.wait_until(lambda: server.hanging == 1)
        assert not answer.done()
        server.release()
        assert answer.result()["metadata"]["name"] == "web"


def test_an_answer_is_lost_after_the_request_took_effect(server: FakeServer, kubectl: Kubectl) -> None:
    kubectl.create(pod("web"))
    server.lose_next("POST", "/binding$")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        kubectl.bind("web", "a")
    with pytest.raises(ApiError, match="already assigned"):
        kubectl.bind("web", "a")


def test_watches_are_cut(server: FakeServer, kubectl: Kubectl) -> None:
    with kubectl.watch("Pod") as events:
        kubectl.wait_until(lambda: server.watches == 1)
        assert server.cut_watches() == 1
        assert next(events, None) is None
    assert server.watches == 0


def test_answers_are_late_on_request(server: FakeServer, kubectl: Kubectl) -> None:
    server.slow(30)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=0.2)
    connection.request("GET", "/version")
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    server.slow(0)
    assert kubectl.request("GET", "/version").status == 200


def test_requests_are_counted_with_their_user(server: FakeServer, kubectl: Kubectl) -> None:
    with Kubectl(server, "stead") as stead:
        kubectl.create(pod("web"))
        stead.bind("web", "a")
    assert [(one.method, one.user) for one in server.writes] == [("POST", "admin"), ("POST", "stead")]
    assert (server.count("POST", "/binding$"), server.count("*"), server.count("GET")) == (1, 2, 0)


def test_a_stopped_server_keeps_its_objects_and_its_port(server: FakeServer, kubectl: Kubectl) -> None:
    kubectl.create(pod("web"))
    server.stop_apiserver()
    with pytest.raises(ConnectionError):
        kubectl.get("Pod", "web")
    server.start_apiserver()
    assert kubectl.get("Pod", "web")["metadata"]["name"] == "web"


def test_events_that_are_too_old_are_gone() -> None:
    with FakeServer(history=3) as server, Kubectl(server) as kubectl:
        first = kubectl.create(pod("first"))["metadata"]["resourceVersion"]
        kubectl.create_many(pods(4))
        with kubectl.watch("Pod", resourceVersion=first) as events:
            assert next(events)["object"]["reason"] == "Expired"


def test_a_watch_gets_bookmarks_if_it_wants_them(server: FakeServer, kubectl: Kubectl) -> None:
    version = kubectl.create(pod("web"))["metadata"]["resourceVersion"]
    with kubectl.watch("Pod", allowWatchBookmarks="true") as wanting, kubectl.watch("Pod") as other:
        assert [next(wanting)["type"], next(other)["type"]] == ["ADDED", "ADDED"]
        server.send_bookmarks()
        kubectl.create(pod("later"))
        bookmark = next(wanting)
        assert (bookmark["type"], bookmark["object"]["metadata"]["resourceVersion"]) == ("BOOKMARK", version)
        assert [next(wanting)["type"], next(other)["type"]] == ["ADDED", "ADDED"]


def test_a_watch_ends_with_a_bookmark_when_it_times_out(kubectl: Kubectl) -> None:
    with kubectl.watch("Pod", allowWatchBookmarks="true", timeoutSeconds="0.05") as events:
        assert [event["type"] for event in events] == ["BOOKMARK"]


def test_a_gated_pod_is_not_bound_until_its_gates_are_removed(kubectl: Kubectl) -> None:
    kubectl.create(pod("web", schedulingGates=[{"name": "test.invalid/wait"}]))
    with pytest.raises(ApiError, match=r"non-empty \.spec\.schedulingGates") as caught:
        kubectl.bind("web", "a")
    assert caught.value.status == 409
    kubectl.patch("Pod", "web", {"spec": {"schedulingGates": [{"name": "test.invalid/wait", "$patch": "delete"}]}})
    kubectl.bind("web", "a")


@pytest.mark.parametrize("wrong", [{"uid": "another"}, {"resourceVersion": "1"}], ids=["uid", "version"])
def test_a_binding_has_preconditions(kubectl: Kubectl, wrong: dict[str, str]) -> None:
    made = kubectl.create(pod("web"))["metadata"]
    wanted = binding("web", "a")
    answer = kubectl.request("POST", f"{POD}/binding", {**wanted, "metadata": {"name": "web", **wrong}})
    assert (answer.status, answer.body["reason"]) == (409, "Conflict")
    right = {"name": "web", "uid": made["uid"], "resourceVersion": made["resourceVersion"]}
    assert kubectl.request("POST", f"{POD}/binding", {**wanted, "metadata": right}).status == 201


def test_a_version_from_the_future_is_a_timeout(kubectl: Kubectl) -> None:
    answer = kubectl.request("GET", "/api/v1/pods", resourceVersion="1000000")
    assert (answer.status, answer.body["reason"]) == (504, "Timeout")


def test_only_known_tokens_are_accepted() -> None:
    with FakeServer(require_token=True) as server, Kubectl(server) as kubectl:
        assert kubectl.request("GET", "/api/v1/pods").status == 200
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        for headers in ({}, {"Authorization": "Bearer nobody"}):
            connection.request("GET", "/api/v1/pods", headers=headers)
            response = connection.getresponse()
            assert (response.status, b'"Unauthorized"' in response.read()) == (401, True)
        connection.close()


def test_it_speaks_tls_on_request() -> None:
    with FakeServer(tls=True) as server, Kubectl(server) as kubectl:
        assert server.url.startswith("https://")
        assert {one["metadata"]["name"] for one in kubectl.list("Namespace")} > {"default", "kube-system"}


def test_the_kubeconfig_has_a_context_for_each_user(server: FakeServer) -> None:
    config = yaml.safe_load(server.kubeconfig_path.read_text())
    assert [one["name"] for one in config["contexts"]] == ["admin", "stead"]
    assert config["users"][1]["user"]["token"] == server.tokens["stead"]


def test_thousands_of_nodes_are_loaded_at_once_and_listed_in_pages(server: FakeServer, kubectl: Kubectl) -> None:
    server.load([*nodes(5000), node("tainted", taints=[taint("team")])])
    assert not server.requests
    assert len(kubectl.list("Node", limit=500)) == 5001
    assert server.count("GET") == 11


def test_connections_that_arrive_while_the_server_stops_are_closed() -> None:
    """asyncio warns about each one that is not, and a warning fails a test."""
    with FakeServer() as server:
        is_over, opened = threading.Event(), []

        def connect() -> None:
            while not is_over.is_set():
                with suppress(OSError):
                    opened.append(socket.create_connection(("127.0.0.1", server.port)))

        thread = threading.Thread(target=connect)
        thread.start()
        for _ in range(20):
            server.stop_apiserver()
            server.start_apiserver()
        server.stop_apiserver()
        is_over.set()
        thread.join()
        for one in opened:
            one.close()
        assert not server.connections
    gc.collect()
