"""The types of the API's answers and requests: the source of the OpenAPI document.

Rule: answers are written by `views` and the modules next to it, and are not validated again here (100 rows would cost
as much as the rest of a request); `tests/service` validate every answer against these types. Fields are added, never
renamed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PAIRS_MAX = 100
"""Maximum number of taints or labels that one request may set."""

TEXT_MAX = 1000
NODES_MAX = 10_000

Name = Annotated[str, Field(max_length=256)]
Amounts = dict[str, float]
Taking = Annotated[str, Field(max_length=TEXT_MAX)]


class Refused(BaseModel):
    error: str


class Taint(BaseModel):
    key: str
    value: str
    effect: Literal["no-schedule", "prefer-no-schedule", "no-execute"]
    since: float | None
    until: float | None
    until_job: str
    owner: str


class Node(BaseModel):
    id: str
    ip: str
    name: str
    labels: dict[str, str]
    sources: dict[str, str]
    taints: list[Taint]
    draining: bool
    total: Amounts
    available: Amounts
    runs: int


class Work(BaseModel):
    id: str
    kind: str
    name: str
    state: Literal["running", "waiting"]
    node: str
    namespace: str
    owner: str
    group: str
    resources: Amounts
    rules: list[str]
    labels: dict[str, str]
    since: float | None
    count: int
    owner_name: str


class Member(BaseModel):
    id: str
    node: str


class Group(BaseModel):
    id: str
    name: str
    state: Literal["placed", "waiting"]
    strategy: str
    owner: str
    owner_name: str
    since: float | None
    members: list[Member]
    bundles: list[Amounts]
    min_available: int | None
    timeout_s: float | None


class Owner(BaseModel):
    id: str
    kind: Literal["job", "owner"]
    name: str
    state: Literal["running", "ended", ""]
    since: float | None
    running: int
    waiting: int
    groups: int
    uses: Amounts
    asks_for: Amounts


class Event(BaseModel):
    number: int
    at: float
    kind: str
    subject: str
    text: str
    count: int


class _Page(BaseModel):
    total: int
    offset: int


class Nodes(_Page):
    items: list[Node]


class Asks(_Page):
    items: list[Work]


class Groups(_Page):
    items: list[Group]


class Owners(_Page):
    items: list[Owner]


class Events(BaseModel):
    items: list[Event]


class Status(BaseModel):
    title: str
    kind: str
    at: float
    nodes: int
    tainted: int
    draining: int
    running: int
    waiting: int
    groups: int
    groups_waiting: int
    total: Amounts
    available: Amounts
    links: dict[str, str]


class Refusal(BaseModel):
    code: str
    nodes: int
    alone: int
    text: str


class Verdict(BaseModel):
    nodes: int
    candidates: int
    refusals: list[Refusal]
    other_reasons: int
    other_nodes: int


class Change(BaseModel):
    text: str
    edits: list[Any]


class Quorum(BaseModel):
    members: int
    least: int
    placed: int
    fitting: int
    more_members: int


class Explanation(BaseModel):
    id: str
    text: str
    fits: bool
    placed: bool
    choices: list[Verdict]
    change: Change | None
    chosen: dict[str, Any] | None
    runners_up: list[dict[str, Any]]
    members: list[Explanation]
    together: bool | None
    quorum: Quorum | None
    hints: list[str]


class Explanations(BaseModel):
    items: list[Explanation]


class Fate(BaseModel):
    ids: list[str]
    name: str
    count: int
    before: str
    after: str
    why: str


class Stay(BaseModel):
    ids: list[str]
    name: str
    node: str
    nodes: int


class Difference(BaseModel):
    placed: list[Fate]
    moved: list[Fate]
    stranded: list[Fate]
    blocked: list[Fate]
    unplaced: list[Fate]
    waiting: list[Fate]
    refused: list[Fate]
    stays: list[Stay]
    nodes_before: int
    nodes_after: int
    added: list[str]
    harms: int


class NewNodes(BaseModel):
    """New nodes of one kind. If `is_like`, `name` is a node of the cluster that is of this kind."""

    name: str
    count: int
    is_like: bool
    resources: dict[str, float]
    labels: dict[str, str]
    taints: list[str]
    price: float
    serves: list[str]
    at_limit: bool


class StillPending(BaseModel):
    """Work that stays pending; `nearest` is the kind of node that lacks the least, and `limit` the kind or quota whose
    maximum is in the way."""

    ids: list[str]
    nearest: str
    why: str
    limit: str


class Plan(BaseModel):
    """New nodes for pending work; `fits` would run on existing nodes. `coming` were requested before, and `limits` are
    the kinds and quotas of which the plan has the maximum."""

    fits: list[str]
    new_nodes: list[NewNodes]
    pending: list[StillPending]
    price: float
    coming: list[NewNodes]
    limits: list[str]


class NodeKind(BaseModel):
    """A kind of node that the autoscaler can launch. None is launched until `rests_until`, and `why` says why."""

    name: str
    resources: Amounts
    labels: dict[str, str]
    taints: list[str]
    price: float
    count_min: int
    count_max: int
    running: int
    coming: int
    rests_until: float | None
    why: str


class Launch(BaseModel):
    """A launch whose node has not joined."""

    id: str
    kind: str
    since: float
    state: Literal["starting", "running", "ending", "failed"]
    deadline: float
    problem: str


class LaunchedNode(BaseModel):
    """A node that the autoscaler launched; `kept` says why an idle node stays."""

    launch: str
    node: str
    title: str
    kind: str
    price: float
    state: Literal["busy", "idle", "retiring"]
    idle_since: float | None
    kept: str


class WorkMove(BaseModel):
    id: str
    node: str


class Proposal(BaseModel):
    """If this work moved, these nodes would not be needed. Nothing is moved."""

    nodes: list[str]
    moves: list[WorkMove]
    saves: float


class Quota(BaseModel):
    """An upper limit on all nodes with these labels."""

    name: str
    labels: dict[str, str]
    nodes_max: int | None
    resources_max: Amounts | None
    only_launched: bool


class ScaleLimits(BaseModel):
    quotas: list[Quota]
    price_max: float | None


class Tallied(BaseModel):
    """What an autoscaler did since the desk started."""

    launched: int
    failed: int
    retired: int
    lost: int


class Autoscaler(BaseModel):
    """An autoscaler at the moment `at`. `price` is that of all launched nodes, in one hour. If `is_silent`, it has not
    reported for a while."""

    at: float
    provider: str
    is_silent: bool
    price: float
    kinds: list[NodeKind]
    launches: list[Launch]
    nodes: list[LaunchedNode]
    plan: Plan | None
    proposals: list[Proposal]
    limits: ScaleLimits
    tallied: Tallied


class Scale(BaseModel):
    """The autoscaler of the cluster; null if no autoscaler has reported."""

    autoscaler: Autoscaler | None


class Found(BaseModel):
    ids: list[str]
    code: str
    text: str


class Findings(BaseModel):
    items: list[Found]


class NodeState(BaseModel):
    labels: dict[str, str]
    taints: dict[str, dict[str, Any]]
    draining: bool


class NodeStates(BaseModel):
    nodes: dict[str, NodeState]


class Entry(BaseModel):
    number: int
    at: float
    who: str
    origin: str
    via: str
    request: str
    action: str
    node: str
    before: NodeState | NodeStates
    after: NodeState | NodeStates
    hash: str
    changes: str
    self_declared: bool


class Entries(BaseModel):
    items: list[Entry]
    verified: int


class Carried(BaseModel):
    """A change that was carried out. `unconfirmed` are ids of nodes that do not answer yet."""

    node: Node
    audit: Entry
    unconfirmed: list[str] = []


class CarriedOnMany(BaseModel):
    """The same for several nodes, with one audit entry."""

    nodes: list[Node]
    audit: Entry
    unconfirmed: list[str] = []


class Tried(BaseModel):
    """What a change would do; nothing was changed."""

    dry_run: Literal[True]
    difference: Difference


class Replayed(BaseModel):
    step: int
    steps: int
    at: float
    decisions: list[Any]
    ask: str
    explanation: Explanation | None
    oldest: int


class Sample(BaseModel):
    """The cluster at one moment. A minute without a sample is a gap: the cluster did not answer, or was not served."""

    at: float
    pending: int
    running: int
    nodes: int
    total: Amounts
    used: Amounts
    stranded: Amounts


class Use(BaseModel):
    interval_s: float
    kept: int
    items: list[Sample]


class Health(BaseModel):
    status: Literal["ok"]


# -- requests


class _Taken(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TaintToSet(_Taken):
    key: Taking
    value: Taking = ""
    effect: Taking = "NoSchedule"


class TaintToRemove(_Taken):
    key: Taking
    value: Taking | None = None
    effect: Taking | None = None


class NodeEdit(_Taken):
    """A change of a node, made completely or not at all."""

    taints: list[TaintToSet] = Field([], max_length=PAIRS_MAX)
    untaints: list[TaintToRemove] = Field([], max_length=PAIRS_MAX)
    labels: dict[Taking, Taking] = Field({}, max_length=PAIRS_MAX)
    unlabels: list[Taking] = Field([], max_length=PAIRS_MAX)
    unlabel_values: dict[Taking, Taking] = Field(
        {}, max_length=PAIRS_MAX, description="Of unlabels, those to remove only if they have this value."
    )
    draining: bool | None = None
    evict: bool = False
    rate: float = Field(0.0, description="Maximum number of evictions per second; 0 is no limit.")
    for_: Annotated[
        float | Annotated[str, Field(max_length=64)] | None,
        Field(alias="for", description="Remove the taints after: seconds, or 90s, 5m, 2h.", examples=["2h"]),
    ] = None
    owner: Name = ""
    until_job: Name = ""
    overwrite: bool = Field(True, description="Whether a taint or label may get another value.")
    missing_ok: bool = Field(False, description="Whether what is to be removed may be missing.")
    dry_run: bool = Field(False, description="Change nothing; return what the change would do.")


class NodeEditOf(NodeEdit):
    """A change of one of several nodes."""

    node: Taking


class NodesEdit(NodeEdit):
    """One change of several nodes: the same for all that are named or that a selector matches, or one for each."""

    changes: list[NodeEditOf] = Field([], max_length=NODES_MAX)
    nodes: list[Taking] = Field([], max_length=NODES_MAX)
    selector: str = Field("", max_length=TEXT_MAX, examples=["zone in [a, b] and not spot"])
