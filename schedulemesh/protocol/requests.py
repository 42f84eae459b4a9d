"""The requests of clients: one struct for each public call, sent as bytes.

A request validates itself whenever it is created, so the client and, on decoding, the supervisor make the
same checks. Object references are sent beside it. Stimuli that only the runtime may send to the engine are
not requests.
"""

from __future__ import annotations

from typing import Any, Union, get_args

import msgspec
from msgspec import UNSET, UnsetType
from typing_extensions import TypeIs

from schedulemesh.config.pools import (
    Lending,
    changed,
    check_lending,
    check_pool,
    parse_queueing,
    parse_target,
)
from schedulemesh.domain.cohort import CohortSpec, parse_weight
from schedulemesh.domain.labels import Labels, parse_labels
from schedulemesh.domain.names import parse_key, parse_name
from schedulemesh.domain.numbers import (
    parse_count,
    parse_priority,
    parse_timeout,
)
from schedulemesh.domain.placement import WarmSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import Resources, check_resources
from schedulemesh.domain.task import TaskSpec, check_task, parse_on_preempted
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol import msgpack_head
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.alert_requests import GetAlerts
from schedulemesh.protocol.audit_requests import QueryAudit
from schedulemesh.protocol.drain_requests import Drain, GetDrainStatus
from schedulemesh.protocol.history_requests import QueryEvents, QueryHistory, QueryUsage
from schedulemesh.protocol.job_logs import ListJobs, ReadJobLog
from schedulemesh.protocol.lease_requests import ReleaseLease, RenewLease, SaveLease, WatchLease
from schedulemesh.protocol.metric_requests import GetMetrics, GetReportedMetrics
from schedulemesh.protocol.pages import ListPage
from schedulemesh.protocol.queue_requests import (
    CancelTasks,
    ChangeQueuedTask,
    ChangeQueuePolicy,
    GetQueuePolicy,
    ListQueue,
    SubmitMany,
)
from schedulemesh.protocol.request_base import (
    Change,
    ChangeWithBlobs,
    Names,
    OfTask,
    Request,
    RequestWithBlobs,
    check_number,
)
from schedulemesh.protocol.state_requests import GetSavedState, RestoreTask, SaveTaskState
from schedulemesh.protocol.submission_checks import check_submission
from schedulemesh.protocol.task_requests import CancelTask, GetResult, WaitTasks
from schedulemesh.protocol.token_requests import AnyTokenChange, AnyTokenQuery

#: The most candidates that one evaluation lists, and the most preemptions that one request lists.
MAX_CANDIDATES, MAX_PREEMPTIONS = 10_000, 10_000

#: The most bytes of an encoded request without those that are stored as they are.
MAX_BYTES = 1024 * 1024


class CreatePool(ChangeWithBlobs, tag="create_pool", frozen=True, kw_only=True):
    """Create a pool; refused if a different pool of this name exists."""

    spec: PoolSpec

    def __post_init__(self) -> None:
        check_pool(self.spec)


class PoolChanges(ChangeWithBlobs, frozen=True, kw_only=True):
    """Base of requests that change the given fields of a pool."""

    name: str
    labels: Labels | UnsetType = UNSET
    resources: Resources | UnsetType = UNSET
    target_agents: int | UnsetType = UNSET
    placement_strategy: str | UnsetType = UNSET
    #: As given by the caller, as plain data without ``warm``; the supervisor merges it with the current one.
    pg_pool_config: dict[str, Any] | UnsetType | None = UNSET
    warm: WarmSpec | UnsetType | None = UNSET
    on_preempted: str | UnsetType = UNSET
    queueing: str | UnsetType = UNSET
    lending: Lending = {}  # noqa: RUF012  # a struct copies it

    def __post_init__(self) -> None:
        parse_name(self.name, "the pool's name")
        check_lending(self.lending)
        if self.labels is not UNSET:
            parse_labels(self.labels)
        if self.resources is not UNSET:
            check_resources(self.resources)
        if self.target_agents is not UNSET:
            parse_target(self.target_agents)
        if self.on_preempted is not UNSET:
            parse_on_preempted(self.on_preempted)
        if self.queueing is not UNSET:
            parse_queueing(self.queueing)

    @property
    def config(self) -> dict[str, Any] | UnsetType | None:
        """The ``pg_pool_config`` including ``warm``."""
        if self.warm is UNSET or not isinstance(self.pg_pool_config, dict):
            return self.pg_pool_config
        return {**self.pg_pool_config, "warm": self.warm}

    def applied_to(self, spec: PoolSpec) -> PoolSpec:
        """The pool with these changes. Raises InvalidRequestError."""
        return changed(
            spec,
            labels=self.labels,
            resources=self.resources,
            target_agents=self.target_agents,
            placement_strategy=self.placement_strategy,
            pg_pool_config=self.config,
            on_preempted=self.on_preempted,
            queueing=self.queueing,
            **self.lending,
        )


class EnsurePool(PoolChanges, tag="ensure_pool", frozen=True, kw_only=True):
    """Create a pool, or change the given fields."""


class ResizePool(PoolChanges, tag="resize_pool", frozen=True, kw_only=True):
    """Change the given fields of a pool."""


class EnsureCohort(Change, tag="ensure_cohort", frozen=True, kw_only=True):
    """Create a cohort, or change the given fields."""

    name: str
    parent: str | UnsetType | None = UNSET
    weight: float | UnsetType = UNSET

    def __post_init__(self) -> None:
        parse_name(self.name, "the cohort's name")
        if self.parent is not UNSET and self.parent is not None:
            parse_name(self.parent, "parent")
        if self.weight is not UNSET:
            parse_weight(self.weight)

    def applied_to(self, spec: CohortSpec) -> CohortSpec:
        """The cohort with these changes."""
        given = {"parent": self.parent, "weight": self.weight}
        return msgspec.structs.replace(
            spec, **{name: value for name, value in given.items() if value is not UNSET}
        )


class ChangePolicy(Change, tag="change_policy", frozen=True, kw_only=True):
    """Change these fields of the policy."""

    changes: dict[str, Any]
    #: Who asks, as host:pid.
    client: str
    level: str | None = None

    def __post_init__(self) -> None:
        parse_name(self.client, "the client's name")
        if self.level is not None:
            parse_name(self.level, "preemption_aggressiveness")


class RegisterStateHandlers(
    ChangeWithBlobs, tag="register_state_handlers", frozen=True, kw_only=True
):
    """Save and restore the states of a pool's tasks with these functions."""

    pool_name: str
    preserver_key: str | None = None
    restorer_key: str | None = None

    def __post_init__(self) -> None:
        parse_name(self.pool_name, "the pool's name")
        for key, what in ((self.preserver_key, "preserver"), (self.restorer_key, "restorer")):
            if key is not None:
                parse_key(key, f"the {what}'s key")


class CordonNode(Change, tag="cordon_node", frozen=True, kw_only=True):
    """Close a node to new agents, or open it again."""

    node_id: str
    cordoned: bool

    def __post_init__(self) -> None:
        parse_name(self.node_id, "node_id")


class SubmitTask(RequestWithBlobs, tag="submit_task", frozen=True, kw_only=True):
    """Start an agent, with or without a task."""

    #: The stimulus for the engine, which gets it unchanged.
    submission: TaskSubmitted

    def __post_init__(self) -> None:
        check_submission(self.submission)


class RegisterTask(ChangeWithBlobs, tag="register_task", frozen=True, kw_only=True):
    """Register a task that runs on an agent."""

    task: TaskSpec
    agent_name: str

    def __post_init__(self) -> None:
        check_task(self.task)
        if self.task.run:
            raise InvalidRequestError("only a submitted task runs by itself, not a registered one")
        parse_name(self.agent_name, "agent_name")


class CompleteTask(Request, tag="complete_task", frozen=True, kw_only=True):
    """Complete a task, and optionally terminate its agent."""

    task_id: str
    end_agent: bool = False
    request_id: str

    def __post_init__(self) -> None:
        parse_name(self.task_id, "task_id")
        parse_name(self.request_id, "request_id")


class DeleteAgent(Change, tag="delete_agent", frozen=True, kw_only=True):
    """Terminate an agent."""

    agent_name: str
    #: Whether its placement group is removed, too; None: as the pool's definition says.
    destroy_group: bool | None = None

    def __post_init__(self) -> None:
        parse_name(self.agent_name, "the agent's name")


class ExecutePreemption(Request, tag="execute_preemption", frozen=True, kw_only=True):
    """Save a task's state and cancel it; its agent is kept."""

    task_id: str
    agent_name: str
    request_id: str

    def __post_init__(self) -> None:
        parse_name(self.task_id, "task_id")
        parse_name(self.agent_name, "agent_name")
        parse_name(self.request_id, "request_id")


class PreemptTask(Request, tag="preempt_task", frozen=True, kw_only=True):
    """Evict manually: save the states of an agent's tasks, cancel them and terminate the agent."""

    task_id: str | None = None
    agent_name: str | None = None
    #: Hold the freed quota for this pool; None: for the client.
    for_pool: str | None = None
    #: Who asks, as host:pid.
    client: str | None = None
    request_id: str

    def __post_init__(self) -> None:
        if self.task_id is None and self.agent_name is None:
            raise InvalidRequestError("preempt_task needs a task_id or an agent_name")
        for name in ("task_id", "agent_name", "for_pool", "client"):
            if getattr(self, name) is not None:
                parse_name(getattr(self, name), name)
        parse_name(self.request_id, "request_id")


class EndOrphans(Change, tag="end_orphans", frozen=True, kw_only=True):
    """Terminate actors of this scheduler that its journal does not know."""

    #: Their names in Ray; None: all.
    names: Names | None = None

    def __post_init__(self) -> None:
        if self.names is not None:
            check_number(self.names, "names")


class EnsureAgentHealth(Change, tag="ensure_agent_health", frozen=True, kw_only=True):
    """Check every agent, and rebuild dead and unresponsive ones where possible."""

    timeout_s: float

    def __post_init__(self) -> None:
        parse_timeout(self.timeout_s, "timeout")


class EvaluatePreemption(Request, tag="evaluate_preemption", frozen=True, kw_only=True):
    """Report which tasks an incoming task may evict."""

    priority: float
    pool_name: str
    labels: Labels = {}  # noqa: RUF012  # a struct copies it
    resources: Resources | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        parse_priority(self.priority, "incoming_task_priority")
        parse_name(self.pool_name, "incoming_task_pool")
        parse_labels(self.labels, "incoming_task_labels")
        if self.resources is not None:
            check_resources(self.resources)
        parse_count(self.limit, "limit", 0, MAX_CANDIDATES)


class ExplainTask(OfTask, tag="explain_task", frozen=True, kw_only=True):
    """Explain a task: why it waits, where it runs, by whom it was evicted."""


class OfPool(Request, frozen=True, kw_only=True):
    """Base of queries about one pool or all pools."""

    pool_name: str | None = None

    def __post_init__(self) -> None:
        if self.pool_name is not None:
            parse_name(self.pool_name, "the pool's name")


class ListAgents(OfPool, tag="list_agents", frozen=True, kw_only=True):
    """List all agents (of one pool); their Ray handles are sent beside the answer, in the same order."""


class GetGroupStats(OfPool, tag="get_group_stats", frozen=True, kw_only=True):
    """Get statistics of the placement groups of all pools (of one)."""


class ListPools(Request, tag="list_pools", frozen=True, kw_only=True):
    """List all pools with their quota."""


class ListCohorts(Request, tag="list_cohorts", frozen=True, kw_only=True):
    """List the cohorts."""


class ListTasks(Request, tag="list_tasks", frozen=True, kw_only=True):
    """List all current tasks."""


class ListNodes(Request, tag="list_nodes", frozen=True, kw_only=True):
    """List all alive nodes."""


class ListExternalUsage(Request, tag="list_external_usage", frozen=True, kw_only=True):
    """List the Ray jobs that hold or wait for something outside of the scheduler."""


class ListSavedStates(Request, tag="list_saved_states", frozen=True, kw_only=True):
    """List all tasks with a stored state."""


class ListOrphans(Request, tag="list_orphans", frozen=True, kw_only=True):
    """List actors and placement groups that the journal does not know."""


class ListStrategies(Request, tag="list_strategies", frozen=True, kw_only=True):
    """List the supplied scheduling strategies."""


class GetPolicy(Request, tag="get_policy", frozen=True, kw_only=True):
    """Get the current policy and its most recent changes."""


class GetPreemptionStats(Request, tag="get_preemption_stats", frozen=True, kw_only=True):
    """Get preemption statistics."""


class ListPreemptions(Request, tag="list_preemptions", frozen=True, kw_only=True):
    """List the last preemptions in which a task, a pool or an owner was evicted or evicted others."""

    task_id: str | None = None
    pool_name: str | None = None
    owner: str | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        for name in ("task_id", "pool_name", "owner"):
            if (given := getattr(self, name)) is not None:
                parse_name(given, name)
        parse_count(self.limit, "limit", 0, MAX_PREEMPTIONS)


class GetStats(Request, tag="get_stats", frozen=True, kw_only=True):
    """Get preemption statistics, pools, and the numbers of agents and nodes."""


class GetAbout(Request, tag="get_about", frozen=True, kw_only=True):
    """Describe the supervisor."""


#: Queries that are answered from the engine's state alone.
AnyStateQuery = Union[
    ListPools,
    ListCohorts,
    ListOrphans,
    GetPolicy,
    GetPreemptionStats,
    GetDrainStatus,
    GetStats,
]

#: Requests that may change the state.
AnyChange = Union[
    CreatePool,
    EnsurePool,
    ResizePool,
    EnsureCohort,
    ChangePolicy,
    RegisterStateHandlers,
    CordonNode,
    Drain,
    SubmitTask,
    SubmitMany,
    ChangeQueuedTask,
    CancelTasks,
    ChangeQueuePolicy,
    RegisterTask,
    CompleteTask,
    CancelTask,
    SaveLease,
    ReleaseLease,
    DeleteAgent,
    ExecutePreemption,
    PreemptTask,
    SaveTaskState,
    RestoreTask,
    EndOrphans,
    EnsureAgentHealth,
    AnyTokenChange,
]

#: Requests that do not change the state.
AnyQuery = Union[
    AnyStateQuery,
    ListAgents,
    ListSavedStates,
    ListPreemptions,
    EvaluatePreemption,
    ExplainTask,
    WaitTasks,
    GetResult,
    ListJobs,
    ReadJobLog,
    WatchLease,
    RenewLease,
    GetSavedState,
    GetGroupStats,
    ListQueue,
    ListTasks,
    ListPage,
    GetQueuePolicy,
    ListNodes,
    ListExternalUsage,
    ListStrategies,
    AnyTokenQuery,
    QueryAudit,
    QueryHistory,
    QueryUsage,
    QueryEvents,
    GetAbout,
    GetMetrics,
    GetReportedMetrics,
    GetAlerts,
]

AnyRequest = Union[AnyChange, AnyQuery]

#: The classes of the requests that may change the state.
CHANGES: tuple[type, ...] = get_args(AnyChange)


def changes_state(request: AnyRequest) -> TypeIs[AnyChange]:
    """Whether a request may change the state."""
    return isinstance(request, CHANGES)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyRequest)


def encode_request(request: AnyRequest) -> bytes:
    """Encode a request."""
    return _encoder.encode(request)


class _SavedBytes(msgspec.Struct):
    """What of a saved state is opaque bytes, which are not copied."""

    state: memoryview | None = None
    payload: memoryview | None = None
    members: tuple[memoryview | None, ...] = ()


class _Restored(msgspec.Struct):
    saved: _SavedBytes


_saved_bytes = msgspec.msgpack.Decoder(_Restored)


def plain_size(data: bytes) -> int:
    """The bytes of an encoded request beside those that are stored as they are: what is to be checked of it,
    for which others wait. Of one that no client of ours has encoded it may be all. Raises ValueError.
    """
    if len(data) <= MAX_BYTES:
        return len(data)
    reader = msgpack_head.Reader(data)
    if reader.size_of_map() == 0 or reader.text() != "request":
        return len(data)
    if reader.text() == RestoreTask.__struct_config__.tag:
        saved = _saved_bytes.decode(data).saved
        opaque = (saved.state, saved.payload, *saved.members)
        return len(data) - sum(len(part) for part in opaque if part is not None)
    if reader.text() != "blobs":
        return len(data)
    for _ in range(reader.size_of_map()):
        reader.text()
        reader.skip_bytes()
    return len(data) - reader.position


def _check_size(data: bytes) -> None:
    if (size := plain_size(data)) > MAX_BYTES:
        raise InvalidRequestError(
            f"a request has at most {MAX_BYTES:,} bytes beside classes, arguments and saved states, not "
            f"{size:,}"
        )


def decode_request(data: object) -> AnyRequest:
    """Decode and validate a request. Raises InvalidRequestError."""
    if type(data) is not bytes:
        raise InvalidRequestError(f"a request is sent as bytes, not as {shown(data)}")
    try:
        _check_size(data)
        request: AnyRequest = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequestError(str(error)) from error
    if isinstance(request, (Change, ChangeWithBlobs, SaveTaskState)):
        parse_name(request.request_id, "request_id")
    if isinstance(request, RequestWithBlobs):
        for key, blob in request.blobs.items():
            if key_of(blob) != key:
                raise InvalidRequestError(f"the bytes sent with key {key} have another SHA-256")
    return request
