"""A desk over HTTP: the same questions and changes, through the REST API of a service (`stead serve`).

Rule: no third-party client, no redirects, and the token goes only to the named host, over TLS unless that is this
machine. What the service refuses is raised with the service's own sentence. The service may be newer: unknown fields
are ignored.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stead.codec import loads
from stead.engine.decisions import Decision
from stead.engine.explain.events import Event
from stead.engine.explain.explanations import Explanation
from stead.engine.scaling.decisions import ScaleDecision
from stead.engine.timing.taint_times import TaintEnd
from stead.errors import Invalid
from stead.language.taints import Effect, Taint
from stead.operate.audit import Author, Entry
from stead.operate.changes import Absent, Conflict, NodeChange, change_json
from stead.operate.desk import Carried, Changes, Unanswered, listed
from stead.operate.history import Replayed
from stead.operate.known_fields import known, picked
from stead.operate.lint import Finding
from stead.operate.origins import check_token, origin_of
from stead.operate.plans import PlanView, plan_of
from stead.operate.scale import ScaleView, scale_of
from stead.operate.snapshot import Query
from stead.operate.views import GroupView, NodeView, OwnerView, Page, Summary, WorkView
from stead.operate.what_if import KINDS, Difference, Fate, Stays

T = TypeVar("T")

TIMEOUT_S = 30.0
REFUSALS = {404: Absent, 409: Conflict}  # every other refusal is an Invalid


@dataclass(frozen=True, slots=True)
class RemoteExplanation(Explanation):
    """An explanation from a service: its text, and its JSON form."""

    document: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.document["text"])


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class HttpDesk:
    """`ca` is a file of certificates to trust instead of this machine's. `insecure` allows the token to cross a network
    in clear text."""

    def __init__(
        self, address: str, token: str = "", timeout_s: float = TIMEOUT_S, ca: str = "", insecure: bool = False
    ) -> None:
        origin = origin_of(address)
        check_token(address, token, insecure)
        self._address, self._token, self._timeout_s = address.rstrip("/"), token, timeout_s
        ways: list[urllib.request.BaseHandler] = [_NoRedirects(), urllib.request.ProxyHandler({})]
        if origin.scheme == "https":
            ways.append(urllib.request.HTTPSHandler(context=trusting(ca)))
        self._opener = urllib.request.build_opener(*ways)

    # -- asking

    def summary(self) -> Summary:
        return self._read(summary_of, self._get("/status"))

    def nodes(self, query: Query) -> Page[NodeView]:
        return self._page("/nodes", query, node_of)

    def node(self, name: str) -> NodeView:
        return self._read(node_of, self._get(f"/nodes/{_quoted(name)}"))

    def labels(self) -> Mapping[str, Mapping[str, Sequence[str]]]:
        found: Mapping[str, Mapping[str, Sequence[str]]] = self._get("/labels")
        return found

    def work(self, query: Query) -> Page[WorkView]:
        return self._page("/asks", query, work_of)

    def one(self, id: str) -> WorkView:
        return self._read(work_of, self._get(f"/asks/{_quoted(id)}"))

    def groups(self, query: Query) -> Page[GroupView]:
        return self._page("/groups", query, group_of)

    def owners(self, query: Query) -> Page[OwnerView]:
        return self._page("/owners", query, owner_of)

    def owner(self, name: str) -> OwnerView:
        return self._read(owner_of, self._get(f"/owners/{_quoted(name)}"))

    def events(self, after: int, limit: int) -> Sequence[Event]:
        return self._items(event_of, self._get("/events", {"after": after, "limit": limit}))

    def why(self, id: str) -> Explanation:
        return self._read(explanation_of, self._get(f"/asks/{_quoted(id)}/why"))

    def why_spec(self, written: Any) -> Sequence[Explanation]:
        return self._items(explanation_of, self._send("POST", "/why", written))

    def what_if(self, written: Any) -> Difference:
        return self._read(difference_of, self._send("POST", "/what-if", written))

    def plan(self, written: Any | None) -> PlanView:
        return self._read(plan_of, self._send("POST", "/plan", {} if written is None else written))

    def scale(self) -> ScaleView | None:
        return self._read(scale_of, self._get("/scale"))

    def report_scale(self, view: ScaleView, decisions: Sequence[ScaleDecision]) -> None:
        good = "stead autoscale --config cluster.yaml"
        raise Invalid(f"an autoscaler reports to the cluster itself, not to a service; on the head node, start {good}")

    def lint(self, written: Any | None) -> Sequence[Finding]:
        return self._items(finding_of, self._get("/lint") if written is None else self._send("POST", "/lint", written))

    def replay(self, ask: str = "", at: float | None = None) -> Replayed:
        return self._read(replayed_of, self._get("/replay", {"ask": ask} | ({} if at is None else {"at": at})))

    # -- changing

    def blast(self, *changes: NodeChange) -> Difference:
        path, body = _asked(changes)
        tried = self._send("PATCH", path, {**body, "dry_run": True})
        return self._read(lambda found: difference_of(found["difference"]), tried)

    def change(self, changes: Changes, author: Author) -> Carried:
        """The service takes the author from the token, so `author` is not sent."""
        path, body = _asked(listed(changes))
        return self._read(carried, self._send("PATCH", path, body))

    def undo(self, number: int, author: Author) -> Carried:
        return self._read(carried, self._send("POST", f"/audit/{number}/undo", None))

    def audit(self, after: int, limit: int) -> Sequence[Entry]:
        return self._items(entry_of, self._get("/audit", {"after": after, "limit": limit}))

    def verify(self) -> int:
        return self._read(lambda found: int(found["verified"]), self._get("/audit", {"limit": 1}))

    # -- how

    def _page(self, path: str, query: Query, read: Callable[[Any], T]) -> Page[T]:
        given: dict[str, Any] = {"offset": query.offset, "limit": query.limit, "filter": list(query.filters)}
        if query.selector is not None:
            given["selector"] = str(query.selector)
        answer = self._get(path, given)
        return self._read(lambda found: Page(tuple(map(read, found["items"])), found["total"], found["offset"]), answer)

    def _items(self, read: Callable[[Any], T], answer: Any) -> list[T]:
        return self._read(lambda found: [read(each) for each in found["items"]], answer)

    def _read(self, read: Callable[[Any], T], answer: Any) -> T:
        """The value of an answer; an answer that this version cannot read is refused in one sentence."""
        try:
            return read(answer)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            problem = f"the service at {self._address} sent an answer that this version of stead cannot read ({reason})"
            raise Invalid(f"{problem}; use the same version as the service") from None

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
            raise REFUSALS.get(error.code, Invalid)(self._refusal(error)) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLError):
                raise Unanswered(_without_tls(self._address, reason)) from None
            text = f"the service at {self._address} does not answer ({reason}); start one with: stead serve"
            raise Unanswered(text) from None

    def _refusal(self, error: urllib.error.HTTPError) -> str:
        if error.code == http.client.UNAUTHORIZED and not self._token:
            good = f"stead context add NAME --address {self._address}"
            return f"the service at {self._address} needs a token, and you have none for it; save one with: {good}"
        try:
            return str(json.load(error)["error"])
        except (ValueError, KeyError, TypeError):
            return f"the service answered {error.code} {error.reason}"


def trusting(ca: str) -> ssl.SSLContext:
    """TLS that trusts the certificates in a file, or those of this machine if `ca` is empty."""
    try:
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
        why = reason or "it has no certificate in PEM form"
        raise Invalid(f"the CA file {ca} cannot be used: {why}; give a file such as ca.pem") from None


def _without_tls(address: str, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        good = f"stead context add NAME --address {address} --ca FILE"
        why = error.verify_message.rstrip(".")
        return f"the certificate of {address} is not trusted ({why}); if it is your own, save its CA with: {good}"
    return f"the service at {address} does not answer over TLS ({error.reason}); does it serve http:// only?"


def _asked(changes: Sequence[NodeChange]) -> tuple[str, dict[str, Any]]:
    """Path and body of a change: of one node, the same for several, or one for each."""
    bodies = [change_json(change) for change in changes]
    if len(changes) == 1:
        return f"/nodes/{_quoted(changes[0].node)}", bodies[0]
    if any(body != bodies[0] for body in bodies):
        return "/nodes", {
            "changes": [{**body, "node": change.node} for body, change in zip(bodies, changes, strict=True)]
        }
    return "/nodes", {**bodies[0], "nodes": [change.node for change in changes]}


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


# -- from JSON


def explanation_of(found: Mapping[str, Any]) -> RemoteExplanation:
    if "text" not in found:
        raise KeyError("text")
    return RemoteExplanation(found["id"], document=found)


def summary_of(found: Mapping[str, Any]) -> Summary:
    return Summary(**picked(found, Summary))


def event_of(found: Mapping[str, Any]) -> Event:
    return Event(**picked(found, Event))


def finding_of(found: Mapping[str, Any]) -> Finding:
    return Finding(tuple(found["ids"]), found["code"], found["text"])


def replayed_of(found: Mapping[str, Any]) -> Replayed:
    decisions = loads(json.dumps(known(found["decisions"], tuple[Decision, ...])), tuple[Decision, ...])
    explanation = explanation_of(found["explanation"]) if found["explanation"] else None
    return Replayed(found["step"], found["steps"], found["at"], decisions, found["ask"], explanation, found["oldest"])


def node_of(found: Mapping[str, Any]) -> NodeView:
    taints = tuple(Taint(each["key"], each["value"], Effect(each["effect"])) for each in found["taints"])
    ends = tuple(
        TaintEnd(
            found["id"], each["key"], each["effect"], each["since"], each["until"], each["until_job"], each["owner"]
        )
        for each in found["taints"]
        if each["since"] is not None
    )
    return NodeView(**{**picked(found, NodeView), "taints": taints, "ends": ends})


def work_of(found: Mapping[str, Any]) -> WorkView:
    return WorkView(**{**picked(found, WorkView), "rules": tuple(found["rules"])})


def group_of(found: Mapping[str, Any]) -> GroupView:
    members = tuple((each["id"], each["node"]) for each in found["members"])
    return GroupView(**{**picked(found, GroupView), "members": members, "resources": tuple(found["bundles"])})


def owner_of(found: Mapping[str, Any]) -> OwnerView:
    return OwnerView(**picked(found, OwnerView))


def entry_of(found: Mapping[str, Any]) -> Entry:
    return Entry(**{name: found[name] for name in Entry.__dataclass_fields__})


def carried(found: Mapping[str, Any]) -> Carried:
    nodes = [found["node"]] if "node" in found else found["nodes"]
    return Carried(tuple(map(node_of, nodes)), entry_of(found["audit"]), tuple(found.get("unconfirmed", ())))


def difference_of(found: Mapping[str, Any]) -> Difference:
    def fate(each: Mapping[str, Any]) -> Fate:
        return Fate(tuple(each["ids"]), each["name"], each["before"], each["after"], each["why"])

    stays = tuple(Stays(tuple(each["ids"]), each["name"], each["node"], each["nodes"]) for each in found["stays"])
    fates: dict[str, Any] = {kind: tuple(map(fate, found.get(kind, ()))) for kind in KINDS}  # older services have fewer
    return Difference(
        **fates,
        stays=stays,
        nodes_before=found["nodes_before"],
        nodes_after=found["nodes_after"],
        added=tuple(found.get("added", ())),
    )
