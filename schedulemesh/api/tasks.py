"""Tasks: submit, wait for, complete, cancel, explain and list them."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, ClassVar, TypedDict, TypeVar, cast

import msgspec

from schedulemesh.api.call import Call, CallWithBlobs, ChangeWithBlobs, ChangingCall
from schedulemesh.api.routes import ListRoute, get, post, put
from schedulemesh.api.rows import NameOf, OneOf
from schedulemesh.api.values import Checked, Name, Names, RequestId, Seconds, TaskId
from schedulemesh.domain.agent import check_agent
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.labels import check_selector
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_timeout
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Amounts
from schedulemesh.domain.task import (
    FIRST_ATTEMPT,
    ON_PREEMPTED,
    EndState,
    TaskSpec,
    check_task,
    task_row,
)
from schedulemesh.domain.tokens import Role
from schedulemesh.domain.user_data import UserValue
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.errors import InvalidRequestError

#: The most tasks that one call submits, and their bundles of placement groups together: the supervisor
#: decides them without serving others meanwhile.
MAX_SUBMISSIONS, MAX_BUNDLES_TOGETHER = 100, 2_000
#: Seconds for which a call may wait for tasks; callers that wait for longer repeat it.
LONGEST_WAIT_S = 30.0


def _check_wait(wait_s: float, _: str) -> None:
    if not 0.0 <= wait_s <= LONGEST_WAIT_S:
        raise InvalidRequestError(f"a request waits for 0 to {LONGEST_WAIT_S:g} s, not {wait_s}")


#: What rows say in the same words.
TaskName = Annotated[str, NameOf.TASK]
PoolOf = Annotated[str, NameOf.POOL]
Owner = Annotated[str, NameOf.OWNER]
OnPreempted = Annotated[str, OneOf(*ON_PREEMPTED)]
TaskKind = Annotated[str, OneOf("agent", "gang", "lease", "job")]
ReasonCode = Annotated[str, OneOf.codes(Reason)]
#: Why a task waits, or was not completed.
ConditionCode = Annotated[str, OneOf.codes(Reason, TaskEndReason)]
#: Of the phases of tasks that have not ended.
PHASES = ("queued", "starting", "running", "preempting", "ending")

#: Seconds for which the answer waits.
Wait = Annotated[float, Checked(_check_wait)]


class TaskInfo(TypedDict, total=False):
    """A task as every listing shows it: the public fields of its specification."""

    task_id: TaskName
    pool_name: PoolOf
    priority: float
    #: The class that has exactly this priority, one of the policy before others; None: no class has.
    priority_class: str | None
    labels: dict[str, str]
    # begin written rows
    #: Seconds from its start to its end; None: unknown.
    estimated_duration: float | None
    #: The user that it belongs to; empty: unknown.
    owner: Owner
    #: Evictions after which it cannot be evicted any more; None: as the policy says.
    max_preemptions: int | None
    #: "requeue" or "drop" when it is evicted; empty: what its pool says.
    on_preempted: OnPreempted
    #: The task from inside which it was started, and with which it ends; empty: none, or that one was
    #: completed.
    parent: TaskName
    #: Seconds that each of its attempts may run, from its start; then it is saved and ended. None: what its
    #: pool says.
    max_run_s: float | None
    #: Seconds for which its GPUs may be idle before its owner is warned, and again before it is ended; None:
    #: what its pool says.
    idle_s: float | None
    #: The tasks that it starts after, in the queue: an id alone or ``ok:ID`` when that one has completed,
    #: ``any:ID`` however it ends, ``fail:ID`` when it does not complete.
    after: list[str]
    #: Of an array: its indices, such as "0-99", "0-99:5" or "1,4,7-9", with "%10" behind them where at most
    #: ten run at once; or the number of its members. empty: it is none.
    array: str
    #: Of a member of an array: the array's id; empty: it is none.
    array_id: str
    #: Of a member of an array: its index; None: it is none.
    array_index: int | None
    #: How close together its members are placed: "rack", "preferred:rack", "slice:8:rack", with commas
    #: between them, or as a dict such as {"required": "rack"}; empty: anywhere.
    topology: str
    # end written


TaskRow = TypeVar("TaskRow", bound=TaskInfo)


def row_of_task(
    kind: type[TaskRow],  # noqa: ARG001  # the type of the result
    spec: TaskSpec,
    own_class: str = "",
) -> TaskRow:
    """A new row of this kind with the public fields of a task's specification; the others are to be added.
    ``own_class``: the class of the policy that its priority has, if one has.
    """
    return cast("TaskRow", task_row(spec, own_class))


class TaskListing(TaskInfo, total=False):
    """A task that holds resources, is registered, or waits in the queue; times are in seconds."""

    agent_name: str
    #: "agent", "gang", "lease" or "job".
    kind: TaskKind
    phase: Annotated[str, OneOf(*PHASES)]
    #: Where its agent runs, of several processes the first; None: it has none.
    node_id: Annotated[str, NameOf.NODE] | None
    #: Since 1970; None: it does not run yet.
    started_at: float | None
    remaining_time: float
    #: When it has run for as long as it may, since 1970; None: it has no limit, or does not run.
    limit_at: float | None
    last_metrics: dict[str, UserValue]
    #: Only of a task that waits in the queue; see QueueListing.
    position: int
    held: bool
    waiting_time: float
    #: Its resources, of a lease or gang those of all parts.
    resources: Amounts
    #: Conditions on the labels of its nodes; of a task that waits, those that it prefers.
    label_selector: dict[str, str]
    #: The number of the alternative that it runs in, from 1; 0: it has one alone, or waits.
    alternative: int
    #: The flavor of its pool that it runs in; empty: in none, or it waits.
    flavor: str
    #: Only of a task that waits in the queue; see QueueListing.
    reason: ReasonCode
    short: Amounts
    #: Pages about it elsewhere, by name, as the policy says; absent: there are none.
    links: dict[str, str]


class TaskCondition(TypedDict, total=False):
    """What a task does, or how it ended."""

    #: "queued", "starting", "running", "preempting" or "ending"; then "completed", "failed", "cancelled" or
    #: "lost".
    state: Annotated[str, OneOf(*PHASES, *EndState)]
    #: Of a queued task: its place in the queue of its pool, and whether it is held.
    position: int
    held: bool
    #: Of a queued task: how many tasks of its pool wait, and what its pool's quota lacks, or else the closest
    #: node.
    queue_length: int
    short: Amounts
    #: How often it was evicted, and how often its run failed or its agent was lost; absent: never.
    preemptions: int
    failures: int
    #: The agent that it runs on, or ran on last.
    agent_name: str
    #: Seconds since 1970.
    ended_at: float
    #: Why it waits (a code), or was not completed (a code, and one line).
    reason: ConditionCode
    error: str


class TaskStatus(TaskCondition, total=False):
    """The condition of a task, and which task it is."""

    task_id: str


class OfTask(Call, frozen=True, kw_only=True):
    """Base of queries about one task."""

    task_id: TaskId


class OwnTaskChange(ChangingCall, frozen=True, kw_only=True):
    """Base of changes of one task that its submitter may make."""

    least_role: ClassVar[Role] = Role.SUBMITTER

    task_id: TaskId


class SubmitTask(CallWithBlobs, tag="submit_task", frozen=True, kw_only=True):
    """Start an agent, with or without a task."""

    least_role: ClassVar[Role] = Role.SUBMITTER
    changes_state: ClassVar[bool] = True

    #: The stimulus for the engine, which gets it unchanged.
    submission: TaskSubmitted

    @property
    def waits(self) -> bool:
        """See Call."""
        return _starts(self.submission)

    @property
    def searches(self) -> bool:
        """See Call."""
        return self.submission.dry_run

    def __post_init__(self) -> None:
        super().__post_init__()
        check_submission(self.submission)


class SubmitMany(CallWithBlobs, tag="submit_many", frozen=True, kw_only=True):
    """Submit many tasks, which become durable together unless they are large; each is answered."""

    least_role: ClassVar[Role] = Role.SUBMITTER
    changes_state: ClassVar[bool] = True

    submissions: Annotated[tuple[TaskSubmitted, ...], msgspec.Meta(max_length=MAX_SUBMISSIONS)]
    #: For each submission, how many of the object references sent beside the call are its whole
    #: arguments, and how many are nested in them; empty: none of them has any.
    references: Annotated[
        tuple[tuple[int, int], ...], msgspec.Meta(max_length=MAX_SUBMISSIONS)
    ] = ()

    @property
    def waits(self) -> bool:
        """See Call."""
        return any(map(_starts, self.submissions))

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.submissions) > MAX_SUBMISSIONS:
            raise InvalidRequestError(
                f"one request submits up to {MAX_SUBMISSIONS:,} tasks, not {len(self.submissions):,}"
            )
        bundles = sum(len(submission.agent.bundles) for submission in self.submissions)
        if bundles > MAX_BUNDLES_TOGETHER:
            raise InvalidRequestError(
                f"one request submits tasks with up to {MAX_BUNDLES_TOGETHER:,} bundles together, not "
                f"{bundles:,}"
            )
        if self.references and len(self.references) != len(self.submissions):
            raise InvalidRequestError("references are counted for each submission, or for none")
        for number, submission in enumerate(self.submissions):
            if submission.task is None or submission.dry_run:
                raise InvalidRequestError(f"submission {number} is none of a task that is to run")
            check_submission(submission)


def _starts(submission: TaskSubmitted) -> bool:
    """Whether its answer comes when an agent runs, or cannot."""
    return not submission.dry_run and (not submission.queue or submission.until_runs)


def check_submission(submission: TaskSubmitted) -> None:
    """Raise InvalidRequestError for a submission that no client may send."""
    check_agent(submission.agent)
    if submission.client is not None:
        parse_name(submission.client, "the client's name")
    if submission.task is not None:
        check_task(submission.task)
    check_selector(submission.selector)
    parse_name(submission.request_id, "request_id")
    if submission.state_key is not None:
        raise InvalidRequestError("state_key is set by the scheduler, not by its callers")
    if submission.attempts != FIRST_ATTEMPT:
        raise InvalidRequestError("attempts are counted by the scheduler, not by its callers")
    if submission.queue and submission.task is None:
        raise InvalidRequestError("only a task can wait in the queue")
    if submission.until_runs and not submission.queue:
        raise InvalidRequestError("a submission that waits until its task runs must be queued")
    if submission.wait_s is not None:
        parse_timeout(submission.wait_s, "wait")


class RegisterTask(ChangeWithBlobs, tag="register_task", frozen=True, kw_only=True):
    """Register a task that runs on an agent."""

    least_role: ClassVar[Role] = Role.SUBMITTER

    task: TaskSpec
    agent_name: Name

    def __post_init__(self) -> None:
        super().__post_init__()
        check_task(self.task)
        if self.task.run:
            raise InvalidRequestError("only a submitted task runs by itself, not a registered one")
        if self.task.after:
            raise InvalidRequestError("a registered task runs already, so it starts after no other")


class CompleteTask(OwnTaskChange, tag="complete_task", frozen=True, kw_only=True):
    """Complete a task, and optionally terminate its agent."""

    routes: ClassVar = (post("/tasks/{task_id}/complete", "Report that a task is done"),)

    end_agent: bool = False
    request_id: RequestId


class CancelTask(OwnTaskChange, tag="cancel_task", frozen=True, kw_only=True):
    """Cancel a task, and terminate its agent unless that runs other tasks."""

    routes: ClassVar = (post("/tasks/{task_id}/cancel", "Cancel a task"),)

    request_id: RequestId


class CancelTasks(ChangingCall, tag="cancel_tasks", frozen=True, kw_only=True):
    """Cancel these tasks."""

    routes: ClassVar = (post("/tasks/cancel", "Cancel tasks"),)

    least_role: ClassVar[Role] = Role.SUBMITTER

    task_ids: Names


class SetTimeLimit(OwnTaskChange, tag="set_time_limit", frozen=True, kw_only=True):
    """Change for how long a task may run that runs or waits; its submitter only shortens it while it runs."""

    routes: ClassVar = (
        put(
            "/tasks/{task_id}/time_limit",
            "Change for how long a task may run",
            may_lengthen=True,
        ),
    )

    #: Seconds from the start of an attempt; None: as its pool says.
    max_run_s: Seconds | None = None
    #: False: one that runs gets no more than it has. Set for submitters.
    may_lengthen: bool = True
    request_id: RequestId

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_run_s is not None:
            parse_timeout(self.max_run_s, "max_run_s")


class WaitUntil(str, Enum):
    """How far a task that is waited for has to get."""

    RUNNING = "running"
    ENDED = "ended"


class WaitTasks(Call, tag="wait_tasks", frozen=True, kw_only=True):
    """Get the states of tasks, once enough of them have got so far or the time is over."""

    task_ids: Names
    until: WaitUntil
    #: How many of them are enough.
    enough: int
    wait_s: Wait


class GetResult(OfTask, tag="get_result", frozen=True, kw_only=True):
    """Get the result of a task, once it has ended or the time is over."""

    least_role: ClassVar[Role] = Role.SUBMITTER

    wait_s: Wait = 0.0


class ExplainTask(OfTask, tag="explain_task", frozen=True, kw_only=True):
    """Explain a task: why it waits, where it runs, by whom it was evicted."""

    routes: ClassVar = (
        get(
            "/tasks/{task_id}",
            "Explain a task: why it waits, where it runs, by whom it was evicted, how it ended",
        ),
    )

    @property
    def searches(self) -> bool:
        """See Call."""
        return True


class ListTasks(Call, tag="list_tasks", frozen=True, kw_only=True):
    """List all current tasks."""

    listings: ClassVar = (
        ListRoute(
            path="/tasks",
            summary="List the tasks that run or wait",
            row=TaskListing,
            key=("task_id",),
            paged="tasks",
        ),
    )

    #: Those with these ids only; None: all.
    task_ids: Names | None = None
