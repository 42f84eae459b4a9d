"""Answers of the supervisor to requests. They are sent as bytes; actor handles are sent beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar, Union, cast

import msgspec

from schedulemesh.api.pools import ReservedGroups
from schedulemesh.api.queue import QueueListing
from schedulemesh.api.tasks import row_of_task
from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.explanation import Explanation
from schedulemesh.engine.messages.outcomes import Evaluation, Refused, RequestOutcome
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.local_sockets import SocketAddress


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the supervisor; readable by clients of every version."""

    protocol: int
    python: str
    ray: str
    detached: bool
    #: The job that created it.
    job_id: str
    #: Its settings, without the code of strategies.
    settings: SchedulerSettings
    #: The owner of this caller's tasks; empty: its token says none.
    owner: str = ""
    #: Where it takes requests of processes on its machine; None: over Ray only.
    socket: SocketAddress | None = None


class GroupPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A placement group's name in Ray and its nodes; of a lease also its id and its shape."""

    name: str
    node_ids: tuple[str, ...] = ()
    ray_id: str = ""
    shape: GroupShape | None = None


class MemberPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a gang: the name of its process, where it runs, and what it takes."""

    name: str
    node_id: str | None
    resources: Resources


class Answer(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="answer", gc=False
):
    """Base of all answers."""

    #: Of a search: seconds that the supervisor computed for it.
    search_s: float = 0.0


class Malformed(Answer, tag="malformed", frozen=True, kw_only=True):
    """The request is not valid; the client raises InvalidRequestError."""

    error: str


class Refusal(Answer, tag="refusal", frozen=True, kw_only=True):
    """The request is refused."""

    refused: Refused


class EvictedState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A task that was evicted by request, and what is kept of it."""

    task_id: str
    reason: PreemptionReason
    #: A packed SavedState.
    saved: bytes
    #: Whether something that it can be restored from was saved since its attempt began.
    state_saved: bool = False
    #: Why its state could not be saved for the eviction; empty: it was, or it has none.
    save_error: str = ""


class Response(Answer, tag="reply", frozen=True, kw_only=True):
    """An outcome with related data; the Ray handle of an accepted agent is sent beside it."""

    outcome: RequestOutcome
    #: The placement group that the outcome refers to.
    group: GroupPlace | None = None
    #: The members of the gang that runs, in the order of ranks; a handle of each is sent beside it.
    members: tuple[MemberPlace, ...] = ()
    #: The saved state that the outcome refers to.
    saved: bytes | None = None
    #: The tasks of an agent that was evicted by request.
    evicted: tuple[EvictedState, ...] = ()


class Responses(Answer, tag="responses", frozen=True, kw_only=True):
    """The outcomes of many submissions, in their order."""

    responses: list[Response]
    #: How many of the Ray handles that are sent beside it belong to each.
    handles: list[int]


class QueueRow(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True, gc=False
):
    """A task that waits in the queue."""

    task: TaskSpec
    agent_name: str
    #: How many tasks of its pool come before it, plus one.
    position: int
    #: Seconds since it joined the queue, and when that was, in seconds since 1970.
    waiting_s: float
    queued_at: float
    #: When it was first submitted, in seconds since 1970.
    arrived_at: float
    held: bool = False
    #: When it may start, in seconds since 1970; 0: at once.
    not_before: float = 0.0
    #: How often it was evicted.
    preemptions: int = 0
    #: What it asks for: "agent", "gang", "lease" or "job".
    kind: str = "agent"
    #: The start that is reserved for it, in seconds since 1970; None: none is, or its time is not known.
    reserved_start: float | None = None
    #: Seconds that it runs in all, as declared, else by so many earlier runs; None: not known.
    expected_s: float | None = None
    estimated_from: int = 0
    #: Why its pool as it is defined could not hold it even if nothing else ran; None: it could.
    cannot_start: str | None = None
    #: What it asks for.
    resources: Resources = NOTHING
    #: Why it waits: a code of Reason.
    reason: str = ""
    #: What its pool's quota lacks, or else the closest node.
    short: Resources = NOTHING
    #: Seconds that it may run when it starts; None: no limit.
    run_limit_s: float | None = None
    #: The labels of nodes that it asks for, as it prefers to run.
    node_labels: NodeLabels = ()
    #: The class of the policy that has its priority; empty: none has.
    own_class: str = ""

    def public(self) -> QueueListing:
        """The task as listings show it; times are in seconds."""
        row = row_of_task(QueueListing, self.task, self.own_class)
        row |= {
            "agent_name": self.agent_name,
            "kind": self.kind,
            "state": "queued",
            "position": self.position,
            "held": self.held,
            "waiting_time": self.waiting_s,
            "queued_at": self.queued_at,
            "arrived_at": self.arrived_at,
            "not_before": self.not_before or None,
            "preemptions": self.preemptions,
            "reserved_start": self.reserved_start,
            "expected_duration": self.expected_s,
            "estimated_from": self.estimated_from,
            "run_limit_s": self.run_limit_s,
            "cannot_start": self.cannot_start,
            "resources": self.resources.public(),
            "label_selector": dict(self.node_labels),
            "reason": self.reason,
            "short": self.short.public(),
        }
        return row

    def in_short(self) -> QueueListing:
        """The fields of ``public`` that a table shows. Rows share amounts, which are not to be changed."""
        task = self.task
        return {
            "pool_name": task.pool_name,
            "position": self.position,
            "task_id": task.task_id,
            "array": task.array,
            "owner": task.owner,
            "priority": task.priority,
            "resources": _amounts(self.resources),
            "waiting_time": self.waiting_s,
            "reason": self.reason,
            "short": _amounts(self.short),
            "preemptions": self.preemptions,
        }


#: The amounts of resources as callers see them. Many tasks ask for the same.
_amounts = lru_cache(maxsize=1024)(Resources.public)


class QueueListed(Answer, tag="queue_listed", frozen=True, kw_only=True):
    """Tasks that wait in the queue."""

    rows: list[QueueRow]
    #: How many wait, those that are not listed included.
    total: int


class PoolResponse(Answer, tag="pool", frozen=True, kw_only=True):
    """The result of creating or changing a pool."""

    outcome: RequestOutcome
    #: The pool's current definition; None: the request was refused.
    spec: PoolSpec | None = None
    #: The status of its reserved groups; None: it has none.
    groups: ReservedGroups | None = None


class Evaluated(Answer, tag="evaluated", frozen=True, kw_only=True):
    """The result of a dry run of the preemption decision."""

    evaluation: Evaluation


class Explained(Answer, tag="explained", frozen=True, kw_only=True):
    """What is known of a task."""

    explanation: Explanation


class TaskResult(Answer, tag="task_result", frozen=True, kw_only=True):
    """How a task that runs by itself has ended, with what is kept of it."""

    #: "completed" or "failed".
    state: str
    #: One line for people; empty: it was completed.
    error: str = ""
    #: A packed KeptResult; None: nothing is kept.
    kept: bytes | None = None


class TaskLog(Answer, tag="job_log", frozen=True, kw_only=True):
    """A part of what an attempt of a task has written."""

    #: The state of the task.
    state: str
    #: "stdout" or "stderr"; empty: both, as jobs write them.
    stream: str = ""
    #: 0: no attempt has begun.
    attempt: int = 0
    #: The position of the first byte: above that asked for where earlier bytes are no longer kept.
    begin: int = 0
    data: bytes = b""
    #: How much the attempt has written up to now.
    end: int = 0


class ExecOutput(Answer, tag="exec_output", frozen=True, kw_only=True):
    """What a command inside a claim has written since it was last asked for, and how it ended."""

    #: The number of its stream, 1 or 2, and bytes.
    pieces: tuple[tuple[int, bytes], ...] = ()
    #: How many pieces there were up to now.
    next: int = 0
    ended: bool = False
    #: None: it runs, or has ended in another way than by itself, as ``error`` says.
    exit_code: int | None = None
    #: Why it could not be started, or has no exit code, in one line.
    error: str = ""


class LeaseView(Answer, tag="lease", frozen=True, kw_only=True):
    """How a lease stands."""

    #: That of its task, and its pool; empty: it is not known.
    state: str
    pool_name: str = ""
    #: Its agent, which tells it from other leases of the same id; empty: it is not known.
    agent_name: str = ""
    #: The id of its placement groups in Ray; empty: it has none now.
    ray_id: str = ""
    shape: GroupShape | None = None
    #: Seconds until it ends, because it is being evicted; None: it is not.
    grace_s: float | None = None
    #: Why it has ended, as a code and as one line for people.
    reason: str = ""
    error: str = ""


class SavedBytes(Answer, tag="saved", frozen=True, kw_only=True):
    """A saved state; None if there is none."""

    state: bytes | None = None


class Listed(Answer, tag="listed", frozen=True, kw_only=True):
    """Rows of plain data."""

    rows: list[dict[str, Any]]


class Details(Answer, tag="details", frozen=True, kw_only=True):
    """Plain data by name."""

    facts: dict[str, Any]


def listed(rows: Sequence[Mapping[str, object]]) -> Listed:
    """The answer of a call that lists rows, each of them a dict of a declared type."""
    return Listed(rows=cast("list[dict[str, Any]]", rows))


def details(facts: Mapping[str, object]) -> Details:
    """The answer of a call that is one dict of a declared type."""
    return Details(facts=cast("dict[str, Any]", facts))


AnyAnswer = Union[
    Malformed,
    Refusal,
    Response,
    Responses,
    QueueListed,
    PoolResponse,
    Evaluated,
    Explained,
    TaskResult,
    TaskLog,
    ExecOutput,
    LeaseView,
    SavedBytes,
    Listed,
    Details,
]


class WithHandles(NamedTuple):
    """An answer and the Ray handles that are sent beside it."""

    answer: AnyAnswer
    handles: list[Any]


AnswerT = TypeVar("AnswerT", bound=Answer)

_encoder = msgspec.msgpack.Encoder()


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Decodes answers of this type. One for all of them takes as long as a short command, so clients make
    only those that they need.
    """
    return msgspec.msgpack.Decoder(kind)


class _SearchTime(msgspec.Struct):
    """What is read of an encoded answer of which nothing else is needed."""

    search_s: float = 0.0


_search_time_decoder = msgspec.msgpack.Decoder(_SearchTime)


def encode_answer(answer: AnyAnswer) -> bytes:
    """Encode an answer."""
    return _encoder.encode(answer)


def read_answer(data: bytes) -> AnyAnswer:
    """Decode an answer of any type."""
    answer: AnyAnswer = _decoder(AnyAnswer).decode(data)
    return answer


def search_seconds(answer: AnyAnswer | bytes) -> float:
    """Seconds that the supervisor computed for an answer, which may be encoded; 0: it is not that of a
    search.
    """
    if isinstance(answer, bytes):
        return _search_time_decoder.decode(answer).search_s
    return answer.search_s


def decode_answer(data: bytes, expected: type[AnswerT]) -> AnswerT | Refused:
    """Decode an answer of the expected type, or a refusal.

    Raises InvalidRequestError if the supervisor found the request malformed.
    """
    try:
        answer = _decoder(Union[expected, Malformed, Refusal]).decode(data)
    except msgspec.ValidationError:
        answer = read_answer(data)
        raise TypeError(f"the supervisor answered {answer!r}, not {expected.__name__}") from None
    if isinstance(answer, Malformed):
        raise InvalidRequestError(answer.error)
    if isinstance(answer, Refusal):
        return answer.refused
    return cast("AnswerT", answer)
