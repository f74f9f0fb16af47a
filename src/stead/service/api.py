"""The REST API: the desk's questions and changes over HTTP.

Rule: a route parses its request, calls the desk and writes the answer; an error is one sentence in ``{"error": ...}``.
Routes are plain functions, so that they run in threads and a slow cluster does not block other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from stead.codec import plain
from stead.errors import Invalid, Unready, sentence
from stead.language.arguments import labels_of, parse_effect, taints_of
from stead.language.labels import Labels, check_key
from stead.language.selectors import parse_selector
from stead.language.taints import Taint
from stead.language.times import parse_duration
from stead.operate.audit import Author, entry_json
from stead.operate.changes import Absent, Conflict, NodeChange, Removal
from stead.operate.desk import Changes, Desk, Unanswered, carried_json, listed
from stead.operate.lint import finding_json
from stead.operate.plans import plan_json
from stead.operate.scale import scale_json
from stead.operate.snapshot import PAGE, PAGE_MAX
from stead.operate.snapshot import Query as Part
from stead.operate.usage import INTERVAL_S, KEPT, History, sample_json
from stead.operate.views import (
    event_json,
    explanation_json,
    group_json,
    node_json,
    owner_json,
    summary_json,
    work_json,
)
from stead.operate.what_if import difference_json
from stead.service import schemas
from stead.service.disconnects import WHILE_WANTED
from stead.service.guard import share_of
from stead.service.metrics import Metrics
from stead.service.schemas import PAIRS_MAX, TEXT_MAX
from stead.service.streams import Streams
from stead.service.writing import NodeTexts, page_text, work_page, written

EVENTS_MAX = 1000
NUMBER_MAX = 2**62

Offset = Annotated[int, Query(ge=0, le=10**9, description="Number of items to skip.")]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="Maximum number of items.")]
Filter = Annotated[
    list[Annotated[str, Query(max_length=TEXT_MAX)]] | None,
    Query(max_length=20, description="Conditions that must all match: state=waiting, name!=a, labels.zone=a."),
]
Selector = Annotated[str, Query(max_length=TEXT_MAX, description="Label selector: zone in [a, b] and not spot.")]
NodeId = Annotated[str, Path(max_length=256, description="A node's id, the beginning of one, its address or name.")]
WorkId = Annotated[str, Path(max_length=512, description="The id of the work.")]
OwnerId = Annotated[str, Path(max_length=512, description="The id or name of the owner.")]
DryRun = Annotated[bool, Query(description="Change nothing; return what the change would do.")]
After = Annotated[
    int,
    Query(ge=-NUMBER_MAX, le=NUMBER_MAX, description="The number of the last one that you have; -n for the last n."),
]
Text = Annotated[str, Query(max_length=256)]
Pairs = Annotated[dict[str, str], Body(examples=[{"gpu_node": "true"}], max_length=PAIRS_MAX)]
Spec = Annotated[dict[str, Any], Body(examples=[{"work": [{"id": "train", "resources": {"GPU": 1}}]}])]
Kinds = Annotated[
    dict[str, Any],
    Body(
        examples=[
            {
                "nodes": [{"id": "gpu", "capacity": {"CPU": 8, "GPU": 2}, "max": 10, "price": 2.5}],
                "quotas": [{"name": "gpus", "resources": {"GPU": 16}}],
                "price_max": 20,
                "work": [{"id": "train", "count": 4, "resources": {"GPU": 1}}],
            }
        ],
        description="The kinds of nodes to choose from, and limits; without nodes, those of the autoscaler or cluster. "
        "Also more work and groups, which are not submitted.",
    ),
]
Question = Annotated[
    dict[str, Any],
    Body(examples=[{"changes": [{"taint": "gpu-1", "taints": "team=blue:NoSchedule"}]}]),
]

STATUSES = {
    400: "The request is invalid.",
    401: "A token is required.",
    403: "This token, or this origin, may not do this.",
    404: "Not found.",
    405: "This method is not allowed.",
    408: "The body arrived too slowly.",
    409: "The current state of the cluster does not allow this.",
    413: "The body is too long.",
    422: "The request is invalid.",
    429: "Too many requests; retry after the seconds in Retry-After.",
    431: "The address and the headers are too long.",
    500: "An error in this service.",
    503: "The cluster does not answer.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "model": schemas.Refused} for status, text in STATUSES.items()
}
CARRIED = schemas.Carried | schemas.CarriedOnMany
CHANGED = CARRIED | schemas.Tried
STREAM = {"description": "Events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}


class Answer(JSONResponse):
    """JSON as `writing` writes it."""

    def render(self, content: Any) -> bytes:
        return written(content).encode()


class Written(Answer):
    """The same for a text that is JSON already."""

    def render(self, content: Any) -> bytes:
        return str(content).encode()


def create_api(desk: Desk, history: History) -> APIRouter:
    """All routes of the REST API."""
    api = APIRouter(responses=ERRORS, default_response_class=Answer)
    _add_nodes(api, desk)
    _add_node_changes(api, desk)
    _add_label_changes(api, desk)
    _add_drains(api, desk)
    _add_work(api, desk)
    _add_questions(api, desk)
    _add_history(api, desk)
    _add_use(api, history)
    _add_for_machines(api, desk)
    return api


def _add_nodes(api: APIRouter, desk: Desk) -> None:
    texts = NodeTexts()

    @api.get("/status", tags=["cluster"], summary="Summary of the cluster", response_model=schemas.Status)
    def status() -> Answer:
        return Answer(summary_json(desk.summary()))

    @api.get("/nodes", tags=["nodes"], summary="List the nodes", response_model=schemas.Nodes)
    def nodes(selector: Selector = "", filter: Filter = None, offset: Offset = 0, limit: Limit = PAGE) -> Answer:
        return Written(texts.page(desk.nodes(_part(selector, filter, offset, limit))))

    @api.get("/nodes/{node_id}", tags=["nodes"], summary="Get a node", response_model=schemas.Node)
    def node(node_id: NodeId) -> Answer:
        return Answer(node_json(desk.node(node_id)))

    @api.get(
        "/labels",
        tags=["nodes"],
        summary="List every label: key, value, nodes",
        response_model=dict[str, dict[str, list[str]]],
    )
    def labels() -> Answer:
        return Answer(
            {key: {value: list(ids) for value, ids in values.items()} for key, values in desk.labels().items()}
        )


def _add_node_changes(api: APIRouter, desk: Desk) -> None:
    @api.patch("/nodes", tags=["changes"], summary="Change several nodes as one change", response_model=CHANGED)
    def edit_many(request: Request, edit: schemas.NodesEdit) -> Answer:
        if [bool(edit.nodes), bool(edit.selector.strip()), bool(edit.changes)].count(True) != 1:
            good = "{'selector': 'zone = a', 'draining': true}"
            raise Invalid(f"give exactly one of nodes, selector and changes, for example {good}")
        if edit.changes:
            if edit.model_fields_set - {"changes", "dry_run"}:
                raise Invalid(f"{min(edit.model_fields_set - {'changes'})} cannot be beside changes; move it into them")
            each = [change_of(_id(desk, one.node), one) for one in edit.changes]
            return _change(desk, each, request, edit.dry_run)
        ids = [_id(desk, name) for name in edit.nodes]
        if edit.selector.strip():
            chosen = desk.nodes(_part(edit.selector, (), 0, PAGE_MAX))
            ids = [view.id for view in chosen.items]
        return _change(desk, [change_of(id, edit) for id in dict.fromkeys(ids)], request, edit.dry_run)

    @api.patch("/nodes/{node_id}", tags=["changes"], summary="Change a node, all or nothing", response_model=CHANGED)
    def edit(request: Request, node_id: NodeId, edit: schemas.NodeEdit) -> Answer:
        return _change(desk, change_of(_id(desk, node_id), edit), request, edit.dry_run)

    @api.post("/nodes/taints/{node_id}", tags=["changes"], summary="Set taints of a node", response_model=CHANGED)
    def taint(
        request: Request,
        node_id: NodeId,
        taints: Pairs,
        effect: Annotated[str, Query(max_length=64)] = "NoSchedule",
        for_: Annotated[str, Query(alias="for", max_length=64, description="Remove them after: 90s, 5m, 2h.")] = "",
        owner: Text = "",
        until_job: Text = "",
        dry_run: DryRun = False,
    ) -> Answer:
        chosen = parse_effect(effect)
        change = NodeChange(
            _id(desk, node_id),
            tuple(Taint(each.key, each.value, chosen) for each in taints_of(taints)),
            for_s=_duration(for_),
            owner=owner,
            until_job=until_job,
        )
        return _change(desk, change, request, dry_run)

    @api.delete(
        "/nodes/taints/{node_id}",
        tags=["changes"],
        summary="Remove taints of a node whose values are equal",
        response_model=CHANGED,
    )
    def untaint(request: Request, node_id: NodeId, taints: Pairs, dry_run: DryRun = False) -> Answer:
        removals = tuple(Removal(taint.key, taint.value) for taint in taints_of(taints))
        return _change(desk, NodeChange(_id(desk, node_id), untaints=removals), request, dry_run)


def _add_label_changes(api: APIRouter, desk: Desk) -> None:
    @api.post("/nodes/labels/{node_id}", tags=["changes"], summary="Set labels of a node", response_model=CHANGED)
    def label(request: Request, node_id: NodeId, labels: Pairs, dry_run: DryRun = False) -> Answer:
        return _change(desk, NodeChange(_id(desk, node_id), labels=Labels(labels_of(labels))), request, dry_run)

    @api.delete(
        "/nodes/labels/{node_id}",
        tags=["changes"],
        summary="Remove labels of a node, by key or if the value is equal",
        response_model=CHANGED,
    )
    def unlabel(
        request: Request,
        node_id: NodeId,
        labels: Annotated[dict[str, str | None], Body(examples=[{"disk": None}], max_length=PAIRS_MAX)],
        dry_run: DryRun = False,
    ) -> Answer:
        values = Labels.checked({key: value for key, value in labels.items() if value is not None})
        change = NodeChange(_id(desk, node_id), unlabels=tuple(map(check_key, labels)), unlabel_values=values)
        return _change(desk, change, request, dry_run)


def _add_drains(api: APIRouter, desk: Desk) -> None:
    @api.post("/nodes/drain/{node_id}", tags=["changes"], summary="Stop scheduling on a node", response_model=CHANGED)
    def drain(
        request: Request, node_id: NodeId, evict: bool = False, rate: float = 0.0, dry_run: DryRun = False
    ) -> Answer:
        return _change(desk, NodeChange(_id(desk, node_id), draining=True, evict=evict, rate=rate), request, dry_run)

    @api.post(
        "/nodes/uncordon/{node_id}",
        tags=["changes"],
        summary="Schedule work on a drained node again",
        response_model=CHANGED,
    )
    def uncordon(request: Request, node_id: NodeId, dry_run: DryRun = False) -> Answer:
        return _change(desk, NodeChange(_id(desk, node_id), draining=False), request, dry_run)


def _add_work(api: APIRouter, desk: Desk) -> None:
    @api.get("/asks", tags=["work"], summary="List the work: waiting first, then running", response_model=schemas.Asks)
    def asks(selector: Selector = "", filter: Filter = None, offset: Offset = 0, limit: Limit = PAGE) -> Answer:
        return Written(work_page(desk.work(_part(selector, filter, offset, limit))))

    @api.get(
        "/asks/{id:path}/why",
        tags=["work"],
        summary="Explain why work is pending, or why it runs where it does",
        response_model=schemas.Explanation,
    )
    def why(id: WorkId) -> Answer:
        return Answer(explanation_json(desk.why(id)))

    @api.get("/asks/{id:path}", tags=["work"], summary="Get one piece of work", response_model=schemas.Work)
    def ask(id: WorkId) -> Answer:
        return Answer(work_json(desk.one(id)))

    @api.get("/groups", tags=["work"], summary="List the groups", response_model=schemas.Groups)
    def groups(filter: Filter = None, offset: Offset = 0, limit: Limit = PAGE) -> Answer:
        page = desk.groups(_part("", filter, offset, limit))
        return Written(page_text(page, [written(group_json(view)) for view in page.items]))

    @api.get("/owners", tags=["work"], summary="List the owners of work", response_model=schemas.Owners)
    def owners(filter: Filter = None, offset: Offset = 0, limit: Limit = PAGE) -> Answer:
        page = desk.owners(_part("", filter, offset, limit))
        return Written(page_text(page, [written(owner_json(view)) for view in page.items]))

    @api.get("/owners/{id:path}", tags=["work"], summary="Get an owner", response_model=schemas.Owner)
    def owner(id: OwnerId) -> Answer:
        return Answer(owner_json(desk.owner(id)))


def _add_questions(api: APIRouter, desk: Desk) -> None:
    @api.post(
        "/why",
        tags=["questions"],
        dependencies=[WHILE_WANTED],
        summary="Explain work that is not submitted",
        response_model=schemas.Explanations,
    )
    def why_spec(spec: Spec) -> Answer:
        return Answer({"items": [explanation_json(found) for found in desk.why_spec(spec)]})

    @api.post(
        "/what-if",
        tags=["questions"],
        summary="Preview what changes would do",
        response_model=schemas.Difference,
        dependencies=[WHILE_WANTED],
    )
    def what_if(changes: Question) -> Answer:
        return Answer(difference_json(desk.what_if(changes)))

    @api.post(
        "/plan",
        tags=["questions"],
        summary="Show which new nodes pending work needs",
        response_model=schemas.Plan,
        dependencies=[WHILE_WANTED],
    )
    def plan(kinds: Kinds) -> Answer:
        return Answer(plan_json(desk.plan(kinds or None)))

    @api.get(
        "/scale",
        tags=["cluster"],
        summary="What the autoscaler does, has launched and plans",
        response_model=schemas.Scale,
    )
    def scale() -> Answer:
        return Answer(scale_json(desk.scale()))

    @api.get(
        "/lint",
        tags=["questions"],
        summary="Find requests of pending work that nothing in the cluster matches",
        response_model=schemas.Findings,
    )
    def lint() -> Answer:
        return Answer({"items": [finding_json(found) for found in desk.lint(None)]})

    @api.post(
        "/lint",
        tags=["questions"],
        summary="Find requests in a spec that nothing in the cluster matches",
        response_model=schemas.Findings,
        dependencies=[WHILE_WANTED],
    )
    def lint_spec(spec: Spec) -> Answer:
        return Answer({"items": [finding_json(found) for found in desk.lint(spec)]})


def _add_history(api: APIRouter, desk: Desk) -> None:
    streams = Streams(desk)

    @api.get(
        "/events",
        tags=["history"],
        summary="List the events; as a stream with 'Accept: text/event-stream'",
        response_model=schemas.Events,
        responses={200: STREAM},
    )
    async def events(
        request: Request,
        after: After = 0,
        limit: Annotated[int, Query(ge=1, le=EVENTS_MAX)] = EVENTS_MAX,
        accept: Annotated[str, Header()] = "",
        last_event_id: Annotated[str, Header()] = "",
    ) -> Response:
        if "text/event-stream" not in accept:
            found = await run_in_threadpool(desk.events, after, limit)
            return Answer({"items": [event_json(event) for event in found]})
        share = share_of(request.state.key)
        if streams.are_full(share):
            raise HTTPException(429, "too many streams are open; retry later", {"retry-after": "5"})
        known = last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 18
        first = int(last_event_id) if known else after
        stream = streams.after(first, share, request.state.stands, request.state.turn)
        return StreamingResponse(stream, media_type="text/event-stream")

    @api.get("/audit", tags=["history"], summary="List who changed what", response_model=schemas.Entries)
    def audit(after: After = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 1000) -> Answer:
        return Answer({"items": [entry_json(entry) for entry in desk.audit(after, limit)], "verified": desk.verify()})

    @api.post("/audit/{number}/undo", tags=["history"], summary="Undo a change", response_model=CARRIED)
    def undo(request: Request, number: Annotated[int, Path(ge=1, le=NUMBER_MAX)]) -> Answer:
        return _carried(desk.undo(number, author_of(request)))

    @api.get("/replay", tags=["history"], summary="Replay a past decision", response_model=schemas.Replayed)
    def replay(
        ask: Annotated[str, Query(max_length=512)] = "",
        at: Annotated[float | None, Query(ge=0, le=1e12, allow_inf_nan=False)] = None,
    ) -> Answer:
        found = desk.replay(ask, at)
        return Answer(
            {
                "step": found.step,
                "steps": found.steps,
                "at": found.moment,
                "decisions": [plain(decision) for decision in found.decisions],
                "ask": found.ask,
                "explanation": explanation_json(found.explanation) if found.explanation else None,
                "oldest": found.oldest,
            }
        )


def _add_use(api: APIRouter, history: History) -> None:
    @api.get("/use", tags=["history"], summary="Pending, used and stranded over time", response_model=schemas.Use)
    def use(
        after: Annotated[
            float, Query(ge=0, le=1e12, allow_inf_nan=False, description="Only samples after this: seconds since 1970.")
        ] = 0.0,
    ) -> Answer:
        items = [sample_json(sample) for sample in history.samples(after)]
        return Answer({"interval_s": INTERVAL_S, "kept": KEPT, "items": items})


def _add_for_machines(api: APIRouter, desk: Desk) -> None:
    metrics = Metrics(desk)

    @api.get("/metrics", tags=["machines"], summary="Metrics for Prometheus", response_class=PlainTextResponse)
    def prometheus() -> PlainTextResponse:
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @api.get("/healthz", tags=["machines"], summary="Check that the service answers", response_model=schemas.Health)
    async def healthz() -> Answer:
        return Answer({"status": "ok"})


# -- from a request to a call


def author_of(request: Request, via: str = "rest") -> Author:
    """The owner of the token, where the request came from, and its id."""
    key = request.state.key
    client = request.client.host if request.client else ""
    return Author(key.name if key else "nobody", client, via, request.state.request)


def change_of(node: str, edit: schemas.NodeEdit) -> NodeChange:
    """The change that a request describes, checked."""
    return NodeChange(
        node,
        tuple(Taint(*_pair(each.key, each.value), parse_effect(each.effect)) for each in edit.taints),
        tuple(
            Removal(
                _pair(each.key, each.value or "")[0],
                each.value,
                None if each.effect is None else parse_effect(each.effect),
            )
            for each in edit.untaints
        ),
        Labels(labels_of(edit.labels)),
        tuple(check_key(key) for key in edit.unlabels),
        edit.draining,
        edit.evict,
        _duration(edit.for_),
        edit.until_job,
        edit.owner,
        edit.overwrite,
        edit.missing_ok,
        edit.rate,
        Labels.checked(edit.unlabel_values),
    )


def _pair(key: str, value: str) -> tuple[str, str]:
    (taint,) = taints_of({key: value})
    return taint.key, taint.value


def _part(selector: str, filters: Sequence[str] | None, offset: int, limit: int) -> Part:
    return Part(tuple(filters or ()), parse_selector(selector) if selector.strip() else None, offset, limit)


def _id(desk: Desk, name: str) -> str:
    return desk.node(name).id


def _duration(value: float | str | None) -> float | None:
    return None if value is None or value == "" else parse_duration(value, "for")


def _change(desk: Desk, changes: Changes, request: Request, dry_run: bool) -> Answer:
    if dry_run:
        return Answer({"dry_run": True, "difference": difference_json(desk.blast(*listed(changes)))})
    return _carried(desk.change(changes, author_of(request)))


def _carried(carried: Any) -> Answer:
    return Answer(carried_json(carried))


# -- errors


REFUSALS: dict[type[Invalid], int] = {
    Absent: 404,
    Conflict: 409,
    Unanswered: 503,
    Unready: 503,
    Invalid: 400,
}


def add_refusals(app: FastAPI) -> None:
    """Every error is one sentence."""
    for kind, status in REFUSALS.items():
        _say(app, kind, status)

    @app.exception_handler(ConnectionError)
    @app.exception_handler(TimeoutError)
    def silent(_: Request, error: Exception) -> Answer:
        return Answer({"error": "the cluster does not answer; retry later"}, 503)

    @app.exception_handler(RequestValidationError)
    def unreadable(_: Request, error: RequestValidationError) -> Answer:
        first = error.errors()[0]
        place = ".".join(str(part)[:100] for part in first["loc"] if part not in ("query", "path", "body"))
        return Answer({"error": sentence(f"{place or 'the body'}: {first['msg'].lower()}")}, 422)

    @app.exception_handler(HTTPException)
    def plain_http(_: Request, error: HTTPException) -> Answer:
        text = UNFOUND if error.status_code == 404 else str(error.detail)
        return Answer({"error": text}, error.status_code, dict(error.headers or {}))

    @app.exception_handler(Exception)
    def broken(request: Request, _: Exception) -> Answer:
        text = f"an error in this service; search its log for {request.state.request}"
        return Answer({"error": text}, 500)


UNFOUND = "there is nothing at this address; /docs lists all routes"


def _say(app: FastAPI, kind: type[Exception], status: int) -> None:
    @app.exception_handler(kind)
    def answer(_: Request, error: Exception) -> Answer:
        return Answer({"error": sentence(error)}, status)
