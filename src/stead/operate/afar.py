"""A desk over HTTP: the same questions and changes, asked of a service (`stead serve`) by its REST API.

Rule: no third-party client, no redirects, and the token goes only to the host that was named. What the service refuses
is raised in its own words.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stead.codec import loads
from stead.engine.decisions import Decision
from stead.engine.explain import Explanation
from stead.errors import Invalid
from stead.operate.audit import Author, Entry
from stead.operate.changes import NodeChange, change_json
from stead.operate.desk import Carried, Unanswered
from stead.operate.history import Replayed
from stead.operate.lint import Finding
from stead.operate.snapshot import Query
from stead.operate.views import Event, GroupView, NodeView, Page, Summary, TaintEnd, WorkView
from stead.operate.what_if import KINDS, Difference, Fate, Stays
from stead.taints import Effect, Taint

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Told(Explanation):
    """An explanation as a service told it: its words, and its JSON form."""

    told: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.told["text"])


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class HttpDesk:
    def __init__(self, address: str, token: str = "", timeout_s: float = TIMEOUT_S) -> None:
        try:
            parts = urllib.parse.urlsplit(address)
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            known = False
        if not known or not address.isascii() or not address.isprintable() or " " in address:
            raise Invalid(f"address {address!r} must be like http://127.0.0.1:8625")
        self._address, self._token, self._timeout_s = address.rstrip("/"), token, timeout_s
        self._opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))

    # -- asking

    def summary(self) -> Summary:
        return Summary(**self._get("/status"))

    def nodes(self, query: Query) -> Page[NodeView]:
        return self._page("/nodes", query, node_of)

    def node(self, said: str) -> NodeView:
        return node_of(self._get(f"/nodes/{_quoted(said)}"))

    def labels(self) -> Mapping[str, Mapping[str, Sequence[str]]]:
        found: Mapping[str, Mapping[str, Sequence[str]]] = self._get("/labels")
        return found

    def work(self, query: Query) -> Page[WorkView]:
        return self._page("/asks", query, work_of)

    def one(self, id: str) -> WorkView:
        return work_of(self._get(f"/asks/{_quoted(id)}"))

    def groups(self, query: Query) -> Page[GroupView]:
        return self._page("/groups", query, group_of)

    def events(self, after: int, limit: int) -> Sequence[Event]:
        return [Event(**each) for each in self._get("/events", {"after": after, "limit": limit})["items"]]

    def why(self, id: str) -> Explanation:
        return told(self._get(f"/asks/{_quoted(id)}/why"))

    def why_spec(self, written: Any) -> Sequence[Explanation]:
        return [told(each) for each in self._send("POST", "/why", written)["items"]]

    def what_if(self, written: Any) -> Difference:
        return difference_of(self._send("POST", "/what-if", written))

    def lint(self, written: Any | None) -> Sequence[Finding]:
        found = self._get("/lint") if written is None else self._send("POST", "/lint", written)
        return [Finding(tuple(each["ids"]), each["code"], each["text"]) for each in found["items"]]

    def replay(self, ask: str = "", at: float | None = None) -> Replayed:
        found = self._get("/replay", {"ask": ask} | ({} if at is None else {"at": at}))
        decisions = loads(json.dumps(found["decisions"]), tuple[Decision, ...])
        explanation = told(found["explanation"]) if found["explanation"] else None
        return Replayed(
            found["step"], found["steps"], found["at"], decisions, found["ask"], explanation, found["oldest"]
        )

    # -- changing

    def blast(self, change: NodeChange) -> Difference:
        tried = self._send("PATCH", f"/nodes/{_quoted(change.node)}", {**change_json(change), "dry_run": True})
        return difference_of(tried["difference"])

    def change(self, change: NodeChange, author: Author) -> Carried:
        """The service writes down whose token it was; of the author it is told nothing."""
        return carried(self._send("PATCH", f"/nodes/{_quoted(change.node)}", change_json(change)))

    def undo(self, number: int, author: Author) -> Carried:
        return carried(self._send("POST", f"/audit/{number}/undo", None))

    def audit(self, after: int, limit: int) -> Sequence[Entry]:
        return [entry_of(each) for each in self._get("/audit", {"after": after, "limit": limit})["items"]]

    def verify(self) -> int:
        return int(self._get("/audit", {"limit": 1})["verified"])

    # -- how

    def _page(self, path: str, query: Query, read: Any) -> Page[Any]:
        given: dict[str, Any] = {"offset": query.offset, "limit": query.limit, "filter": list(query.filters)}
        if query.selector is not None:
            given["selector"] = str(query.selector)
        found = self._get(path, given)
        return Page(tuple(map(read, found["items"])), found["total"], found["offset"])

    def _get(self, path: str, given: Mapping[str, Any] | None = None) -> Any:
        return self._send("GET", path, None, given)

    def _send(self, method: str, path: str, body: Any, given: Mapping[str, Any] | None = None) -> Any:
        url = f"{self._address}{path}"
        if given:
            url += f"?{urllib.parse.urlencode(given, doseq=True)}"
        request = urllib.request.Request(url, method=method)
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Invalid(_said(error)) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            said = f"the service at {self._address} does not answer ({reason}); start one by: stead serve"
            raise Unanswered(said) from None


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the service answered {error.code} {error.reason}"


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


# -- from JSON


def told(found: Mapping[str, Any]) -> Told:
    return Told(found["id"], told=found)


def node_of(found: Mapping[str, Any]) -> NodeView:
    taints = tuple(Taint(each["key"], each["value"], Effect(each["effect"])) for each in found["taints"])
    ends = tuple(
        TaintEnd(
            found["id"], each["key"], each["effect"], each["since"], each["until"], each["until_job"], each["owner"]
        )
        for each in found["taints"]
        if each["since"] is not None
    )
    return NodeView(**{**found, "taints": taints, "ends": ends})


def work_of(found: Mapping[str, Any]) -> WorkView:
    return WorkView(**{**found, "rules": tuple(found["rules"])})


def group_of(found: Mapping[str, Any]) -> GroupView:
    members = tuple((each["id"], each["node"]) for each in found["members"])
    rest = {name: found[name] for name in ("id", "name", "state", "strategy", "owner", "since")}
    return GroupView(**rest, members=members, resources=tuple(found["bundles"]))


def entry_of(found: Mapping[str, Any]) -> Entry:
    return Entry(**{name: found[name] for name in Entry.__dataclass_fields__})


def carried(found: Mapping[str, Any]) -> Carried:
    return Carried(node_of(found["node"]), entry_of(found["audit"]), tuple(found.get("unconfirmed", ())))


def difference_of(found: Mapping[str, Any]) -> Difference:
    def fate(each: Mapping[str, Any]) -> Fate:
        return Fate(tuple(each["ids"]), each["name"], each["before"], each["after"], each["why"])

    stays = tuple(Stays(tuple(each["ids"]), each["name"], each["node"], each["nodes"]) for each in found["stays"])
    return Difference(
        **{kind: tuple(map(fate, found[kind])) for kind in KINDS},
        stays=stays,
        nodes_before=found["nodes_before"],
        nodes_after=found["nodes_after"],
    )
