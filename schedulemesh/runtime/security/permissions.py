"""What the holders of tokens may request: submitters are limited to their own tasks, and
operators of pools to these pools (``pool_operators``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from schedulemesh.api.call import Call
from schedulemesh.api.exec_sessions import ReadExec, StartExec, WriteExec
from schedulemesh.api.leases import ReleaseLease, RenewLease, SaveLease, WatchLease
from schedulemesh.api.logs import ReadTaskLog
from schedulemesh.api.queue import ChangeQueuedTask
from schedulemesh.api.states import GetSavedState, RestoreTask, SaveTaskState
from schedulemesh.api.tasks import (
    CancelTask,
    CancelTasks,
    CompleteTask,
    GetResult,
    RegisterTask,
    SetTimeLimit,
    SubmitMany,
    SubmitTask,
)
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import Text, say
from schedulemesh.domain.task import DEFAULT_PRIORITY, TaskSpec
from schedulemesh.domain.tokens import Role, TokenSpec, needs_role
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.runtime.queries import past_of
from schedulemesh.runtime.security.pool_operators import beyond_pools, beyond_priority
from schedulemesh.runtime.security.tasks_on_record import (
    array_on_record,
    lost_tasks,
    task_on_record,
)


def refusal(state: MeshState, caller: TokenCaller, request: Call, now: float) -> Refused | None:
    """Why a caller may not make a request; None: it may."""
    token = state.tokens.get(caller.token.name)
    if token is None or token.secret_hash != caller.token.secret_hash or not token.valid(now):
        return _refused(say("token_is_void", token=caller.token.name))
    if not request.allows(token.role):
        return _refused(needs_role(token.name, token.role, request.least_role))
    if token.role is Role.OPERATOR or request.least_role is Role.VIEWER:
        return None
    beyond = beyond_pools if token.role is Role.POOL_OPERATOR else _why_beyond_limits
    error = beyond(state, token, request)
    return None if error is None else _refused(error)


def limited(request: Call, token: TokenSpec) -> Call:
    """A request whose tasks have the limits of a token: they evict in its pools only, one of the default
    priority has at most the token's highest, and one that runs is not let run longer by a submitter.
    """
    if token.role in (Role.VIEWER, Role.OPERATOR):
        return request
    match request:
        case SubmitTask():
            submission = _limited_submission(request.submission, token)
            return msgspec.structs.replace(request, submission=submission)
        case SubmitMany():
            submissions = tuple(_limited_submission(one, token) for one in request.submissions)
            return msgspec.structs.replace(request, submissions=submissions)
        case RegisterTask():
            return msgspec.structs.replace(request, task=_limited_task(request.task, token))
        case RestoreTask():
            task = _limited_task(request.saved.task, token)
            saved = msgspec.structs.replace(request.saved, task=task)
            return msgspec.structs.replace(request, saved=saved)
        case SetTimeLimit() if token.role is Role.SUBMITTER:
            return msgspec.structs.replace(request, may_lengthen=False)
        case _:
            return request


def _limited_submission(submission: TaskSubmitted, token: TokenSpec) -> TaskSubmitted:
    if submission.task is None:
        return submission
    return msgspec.structs.replace(submission, task=_limited_task(submission.task, token))


def _limited_task(task: TaskSpec, token: TokenSpec) -> TaskSpec:
    priority = task.priority
    if priority == DEFAULT_PRIORITY and token.max_priority is not None:
        priority = min(priority, token.max_priority)
    evict_pools = token.evict_pools
    if evict_pools is None and token.role is Role.POOL_OPERATOR:
        evict_pools = token.pools
    return msgspec.structs.replace(task, priority=priority, evict_pools=evict_pools)


def _why_beyond_limits(state: MeshState, token: TokenSpec, request: Call) -> Text | None:
    """Why a request is beyond the limits of a submitter's token; None: it is not."""
    match request:
        case SubmitTask():
            return _submission(state, token, request.submission)
        case SubmitMany():
            return _first(_submission(state, token, one) for one in request.submissions)
        case RegisterTask():
            return _registration(state, token, request.task, request.agent_name)
        case RestoreTask():
            return _restoration(state, token, request.saved.task)
        case CancelTasks():
            lost = lost_tasks(state)
            return _first(_changeable(state, token, task_id, lost) for task_id in request.task_ids)
        case ChangeQueuedTask():
            if request.to_front:
                return say("operator_moves_to_front")
            return _changeable(state, token, request.task_id) or _priority(token, request.priority)
        case (
            CancelTask()
            | SetTimeLimit()
            | CompleteTask()
            | SaveTaskState()
            | RenewLease()
            | SaveLease()
            | ReleaseLease()
            | StartExec()
        ):
            return _changeable(state, token, request.task_id)
        case (
            GetResult() | GetSavedState() | ReadTaskLog() | ReadExec() | WriteExec() | WatchLease()
        ):
            return _own(state, token, request.task_id)
        case _:
            return say("not_for_submitters")


def _submission(state: MeshState, token: TokenSpec, submission: TaskSubmitted) -> Text | None:
    if submission.task is None:
        return say("submitters_agent_has_task")
    if submission.agent.payload.adopts:
        return say("operator_adopts")
    if token.pools and submission.agent.pool_name not in token.pools:
        return say("token_submits_to", token=token.name, pools=token.pools)
    return _new_task(state, token, submission.task)


def _new_task(state: MeshState, token: TokenSpec, task: TaskSpec) -> Text | None:
    """As ``_task``, for one that is submitted or registered: with the id of somebody else's task on record it
    would replace that task's result or saved state.
    """
    return _task(token, task) or _own(state, token, task.task_id)


def _registration(
    state: MeshState, token: TokenSpec, task: TaskSpec, agent_name: str
) -> Text | None:
    """Whether a task may be registered on an agent: who has a task on an agent may end it, and keeps the
    agent from ending with the others.
    """
    agent, queue = state.agents.get(agent_name), state.queue
    others = [state.running.by_id[other].spec for other in state.running.on_agent(agent_name)]
    if (waiting := queue.agent_names.get(agent_name)) is not None:
        others.append(queue.by_id[waiting].spec)
    for other in others:
        if other.owner != token.owner:
            return say("agent_of_other", agent=agent_name, task=other.task_id, owner=other.owner)
    return _pool(token, "" if agent is None else agent.spec.pool_name) or _new_task(
        state, token, task
    )


def _restoration(state: MeshState, token: TokenSpec, requested_task: TaskSpec) -> Text | None:
    """Whether a task may be restored: as the request describes it, and as it is on record, which is what is
    started again.
    """
    if (
        error := _task(token, requested_task) or _own(state, token, requested_task.task_id)
    ) is not None:
        return error
    past = past_of(state, requested_task.task_id)
    if past is None:
        return None
    task, agent = past
    return _pool(token, "" if agent is None else agent.pool_name) or _task(token, task)


def _task(token: TokenSpec, task: TaskSpec) -> Text | None:
    if task.owner != token.owner:
        return say("token_of_owner", token=token.name, owner=token.owner, other=task.owner)
    return (
        _pool(token, task.pool_name)
        or _priority(token, task.priority)
        or _labels(token, task)
        or _max_preemptions(token, task.max_preemptions)
    )


def _labels(token: TokenSpec, task: TaskSpec) -> Text | None:
    for key, values in token.label_values.items():
        if key in task.labels and task.labels[key] not in values:
            return say(
                "token_label_values",
                label=key,
                token=token.name,
                allowed=", ".join(values) or say("no_label_value"),
                value=task.labels[key],
            )
    return None


def _max_preemptions(token: TokenSpec, max_preemptions: int | None) -> Text | None:
    least = token.least_max_preemptions
    if max_preemptions is None or least is None or max_preemptions >= least:
        return None
    return say("token_max_preemptions", token=token.name, least=least, most=max_preemptions)


def _pool(token: TokenSpec, pool_name: str) -> Text | None:
    """``pool_name``: empty where it is not known."""
    if not token.pools or not pool_name or pool_name in token.pools:
        return None
    return say("token_of_pools", token=token.name, pools=token.pools)


def _priority(token: TokenSpec, priority: float | None) -> Text | None:
    if priority is None or token.max_priority is None or priority <= token.max_priority:
        return None
    return beyond_priority(token, token.max_priority, priority)


def _own(
    state: MeshState, token: TokenSpec, task_id: str, lost: Mapping[str, TaskSpec] | None = None
) -> Text | None:
    """Whether a task is one of the token's owner; one that is not on record is, so that it is not found.
    ``lost``: the lost tasks, where several are looked for.
    """
    task = task_on_record(state, task_id, lost)
    if task is None or task.owner == token.owner:
        return None
    return say("task_of_other", task=task_id, owner=token.owner)


def _changeable(
    state: MeshState, token: TokenSpec, task_id: str, lost: Mapping[str, TaskSpec] | None = None
) -> Text | None:
    """Whether a task is one of the token's owner and waits or runs in one of its pools."""
    waiting, running = state.queue.by_id.get(task_id), state.running.by_id.get(task_id)
    agent = None if running is None else state.agents.get(running.agent_name)
    pool_name = "" if agent is None else agent.spec.pool_name
    if waiting is not None:
        pool_name = waiting.pool_name
    elif running is None and (array := array_on_record(state, task_id)) is not None:
        pool_name = array.spec.pool_name
    return _own(state, token, task_id, lost) or _pool(token, pool_name)


def _first(errors: Iterable[Text | None]) -> Text | None:
    return next((error for error in errors if error is not None), None)


def _refused(error: Text) -> Refused:
    return Refused(reason=Reason.NOT_ALLOWED, error_text=error)
