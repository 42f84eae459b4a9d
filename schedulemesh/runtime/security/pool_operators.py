"""What the operators of named pools may request: everything in these pools, and nothing elsewhere.

A call that is not named here is not for them. What their pools share with others stays with operators:
quotas, cohorts, labels, placement groups on nodes, names, and that a pool exists.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from schedulemesh.api.agents import DeleteAgent
from schedulemesh.api.call import Call
from schedulemesh.api.exec_sessions import ReadExec, StartExec, WriteExec
from schedulemesh.api.leases import ReleaseLease, RenewLease, SaveLease, WatchLease
from schedulemesh.api.logs import ReadTaskLog
from schedulemesh.api.nodes import Drain
from schedulemesh.api.pools import EnsurePool, PoolChanges, ResizePool
from schedulemesh.api.preemption import ExecutePreemption, PreemptTask
from schedulemesh.api.queue import ChangeQueuedTask
from schedulemesh.api.states import (
    GetSavedState,
    RegisterStateHandlers,
    RestoreTask,
    SaveTaskState,
)
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
from schedulemesh.domain.sentences import Sentence, Text, say
from schedulemesh.domain.tokens import TokenSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.runtime.queries import past_of
from schedulemesh.runtime.security.tasks_on_record import task_on_record

#: The fields of a pool that concern nobody else.
FIELDS = (
    "on_preempted",
    "queueing",
    "max_run_s",
    "default_max_run_s",
    "idle_s",
    "min_priority",
    "max_priority",
    "owner_limits",
    "owner_order",
    "owner_budgets",
)


def beyond_pools(state: MeshState, token: TokenSpec, request: Call) -> Text | None:
    """Why a request is not for the operator of these pools; None: it is."""
    match request:
        case SubmitTask():
            return _submission(state, token, request.submission)
        case SubmitMany():
            return _first(_submission(state, token, one) for one in request.submissions)
        case RegisterTask():
            task = request.task
            return (
                _agent(state, token, request.agent_name)
                or _pool(state, token, task.pool_name)
                or _priority(token, task.priority)
                or _task(state, token, task.task_id)
            )
        case RestoreTask():
            return _restoration(state, token, request)
        case CancelTasks():
            return _first(_task(state, token, task_id) for task_id in request.task_ids)
        case ChangeQueuedTask():
            return _task(state, token, request.task_id) or _priority(token, request.priority)
        case ExecutePreemption() | PreemptTask():
            return _eviction(state, token, request)
        case DeleteAgent():
            return _agent(state, token, request.agent_name)
        case Drain():
            return _pool(state, token, request.pool_name or "", what=say("what_node"))
        case RegisterStateHandlers():
            return _pool(state, token, request.pool_name)
        case EnsurePool() | ResizePool():
            return _definition(state, token, request)
        case (
            CancelTask()
            | CompleteTask()
            | GetResult()
            | GetSavedState()
            | ReadExec()
            | ReadTaskLog()
            | ReleaseLease()
            | RenewLease()
            | SaveLease()
            | SaveTaskState()
            | SetTimeLimit()
            | StartExec()
            | WatchLease()
            | WriteExec()
        ):
            return _task(state, token, request.task_id)
        case _:
            return say("not_for_pool_operators", pools=_pools(token))


def _submission(state: MeshState, token: TokenSpec, submission: TaskSubmitted) -> Text | None:
    """Whether something may be submitted: to one of the pools by its name, as which pool a selector finds is
    not known before.
    """
    agent, task = submission.agent, submission.task
    if agent.payload.adopts:
        return say("whole_operator_adopts")
    error = _pool(state, token, agent.pool_name, what=say("what_unnamed_pool"))
    if error is not None or task is None:
        return error
    return (
        _pool(state, token, task.pool_name or agent.pool_name)
        or _priority(token, task.priority)
        or _task(state, token, task.task_id)
    )


def _restoration(state: MeshState, token: TokenSpec, request: RestoreTask) -> Text | None:
    """Whether a task may be restored: where the request says, and where it is on record."""
    task = request.saved.task
    error = (
        _pool(state, token, task.pool_name)
        or _priority(token, task.priority)
        or _task(state, token, task.task_id)
    )
    past = past_of(state, task.task_id)
    if error is not None or past is None or past[1] is None:
        return error
    return _pool(state, token, past[1].pool_name)


def _eviction(
    state: MeshState, token: TokenSpec, request: ExecutePreemption | PreemptTask
) -> Text | None:
    """Whether a task, or all of an agent, may be evicted, and for the pool that it is evicted for."""
    error = _task(state, token, request.task_id) if request.task_id else None
    if error is None and request.agent_name:
        error = _agent(state, token, request.agent_name)
    if error is None and isinstance(request, PreemptTask) and request.for_pool:
        error = _pool(state, token, request.for_pool)
    return error


def _definition(state: MeshState, token: TokenSpec, request: PoolChanges) -> Text | None:
    """Whether a pool may be changed so: it exists, and the change concerns nobody else."""
    if request.name not in state.ledger.accounts:
        return _pool(state, token, "", what=say("what_unknown_pool", pool=request.name))
    changed = {n for n in request.__struct_fields__ if getattr(request, n) is not UNSET}
    changed -= {name for name in ("blobs", "lending") if not getattr(request, name)}
    others = sorted(changed - {*FIELDS, "name", "request_id"})
    if others:
        return say("whole_operator_changes", others=others, pools=_pools(token), fields=FIELDS)
    return _pool(state, token, request.name)


def _agent(state: MeshState, token: TokenSpec, agent_name: str) -> Text | None:
    """Whether an agent, or the one that a task waits for, is in one of the pools; one that is not on record
    is, so that it is not found.
    """
    agent, waiting = state.agents.get(agent_name), state.queue.agent_names.get(agent_name)
    gang, lost = state.gang_with(agent_name), state.lost.get(agent_name)
    pools = [one.spec.pool_name for one in (agent, gang, lost) if one is not None]
    pools += [] if waiting is None else [state.queue.by_id[waiting].pool_name]
    tasks = state.running.on_agent(agent_name)
    return _first(_pool(state, token, name) for name in pools) or _first(
        _task(state, token, task_id) for task_id in tasks
    )


def _task(state: MeshState, token: TokenSpec, task_id: str) -> Text | None:
    """Whether a task is in one of the pools; one that is not on record is, so that it is not found."""
    waiting, running = state.queue.by_id.get(task_id), state.running.by_id.get(task_id)
    pools = [] if waiting is None else [waiting.pool_name]
    if running is not None and (agent := state.agents.get(running.agent_name)) is not None:
        pools.append(agent.spec.pool_name)
    if not pools and (task := task_on_record(state, task_id)) is not None:
        pools.append(task.pool_name)
    return _first(_pool(state, token, name, what=say("what_task", task=task_id)) for name in pools)


def _pool(
    state: MeshState, token: TokenSpec, pool_name: str, *, what: Sentence | None = None
) -> Text | None:
    """Whether a pool, by its present or a former name, is one of the token's; ``what`` names what is in it,
    or is in none.
    """
    if state.pool_names.current(pool_name) in token.pools:
        return None
    where = say("what_pool", pool=pool_name) if pool_name else what or say("what_no_pool")
    return say("token_not_for", token=token.name, pools=_pools(token), what=where)


def _priority(token: TokenSpec, priority: float | None) -> Text | None:
    if priority is None or token.max_priority is None or priority <= token.max_priority:
        return None
    return beyond_priority(token, token.max_priority, priority)


def beyond_priority(token: TokenSpec, most: float, priority: float) -> Sentence:
    """The sentence that a priority is higher than the highest of a token."""
    return say("token_priorities", token=token.name, most=most, priority=priority)


def _pools(token: TokenSpec) -> Sentence:
    return say("named_pools", count=len(token.pools), pools=token.pools)


def _first(errors: Iterable[Text | None]) -> Text | None:
    return next((error for error in errors if error is not None), None)
