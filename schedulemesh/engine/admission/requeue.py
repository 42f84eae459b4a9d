"""Tasks that join the queue again: after an eviction, after a failure, or where there turned out to be no
room for them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.domain.agent import Death, with_more_memory
from schedulemesh.domain.end_reasons import EndReason, ReturnReason
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import UNIT, sum_of
from schedulemesh.domain.sentences import Text, say
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.facts import HoldShrank, QuotaHeld, Returned, Share
from schedulemesh.engine.messages.outcomes import Queued, Refused, RequestOutcome
from schedulemesh.engine.messages.queue_facts import StartReserved, TaskQueued
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.preemption.savable import returns_when_evicted
from schedulemesh.engine.state.agents import Agent, Ending, Starting, Submission
from schedulemesh.engine.state.fair_order import Entry
from schedulemesh.engine.state.gangs import core_runs
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.past import attempts_of
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.engine.transaction import Transaction

#: Seconds that a task waits after it turned out that there is no room where the state had some.
_ROOM_RETRY_S = 2.0

#: Seconds that a task waits after its start was lost with its node: doubled with each further one in a row,
#: up to the second number.
_LOST_START_S, _LOST_START_MAX_S = 2.0, 300.0
#: Starts that may be lost in a row; each further one counts as a failure of the task.
LOST_STARTS = 5

#: Seconds that a task waits after its first failure: doubled with each further one, up to the second number.
_RETRY_S, _RETRY_MAX_S = 1.0, 300.0
#: Up to so many seconds of such a wait its place is kept for a task.
_KEPT_S = 10.0

#: Ends of agents after which a task with retries left is started again.
_RETRIED = frozenset((EndReason.RUN_FAILED, EndReason.LOST))

#: Refusals after which a task that was in the queue waits there again: there was no room for it.
_NO_ROOM = frozenset(
    (Reason.PREEMPTION_FAILED, Reason.CLUSTER_OUT_OF_RESOURCES, Reason.GROUP_UNPLACEABLE)
)

#: Refusals of starts that count as failures of the task.
_FAILED_STARTS = frozenset((Reason.AGENT_START_FAILED, Reason.AGENT_START_TIMEOUT))

#: Those by which external work may have got the room that an eviction freed.
ROOM_TAKEN = frozenset((Reason.CLUSTER_OUT_OF_RESOURCES, Reason.GROUP_UNPLACEABLE))


def may_retry(state: MeshState, task: RunningTask, agent: Agent) -> bool:
    """Whether a task is started again after it failed: it has retries left, and an agent of its own that can
    be made again.
    """
    spec = agent.spec
    if not task.number or not spec.class_key or not spec.restartable:
        return False
    alone = len(state.running.on_agent(spec.name)) == 1
    return alone and task.attempts.failures < task.spec.max_retries


def task_to_retry(state: MeshState, agent: Agent) -> RunningTask | None:
    """The task of an agent that is started again when the agent has ended, because it failed; None: there is
    none. What ends before it has run has not failed.
    """
    if _is_deleted(agent) or not agent.committed:
        return None
    for task_id in state.running.on_agent(agent.spec.name):
        task = state.running.by_id[task_id]
        if not isinstance(task.phase, Preempting) and may_retry(state, task, agent):
            return task
    return None


def grown_after(state: MeshState, agent: Agent, death: Death | None) -> tuple[Agent, Text]:
    """An agent as it is started again after a death, and why its task is not where it ran out of memory;
    empty: nothing forbids it.
    """
    tasks = state.running.on_agent(agent.spec.name)
    if death is None or not death.out_of_memory or len(tasks) != 1:
        return agent, ""
    task = state.running.by_id[tasks[0]]
    if task.spec.on_oom == "fail":
        return agent, say("on_oom_fails")
    if task.spec.on_oom != "grow" or not may_retry(state, task, agent):
        return agent, ""
    spec = with_more_memory(agent.spec, death.memory_mb, _most_memory(state, task.spec, agent))
    if spec is None:
        code = "pool_allows_no_more" if task.spec.oom_max_memory is None else "allowed_no_more"
        return agent, say(code, memory=agent.spec.resources.memory / UNIT)
    return msgspec.structs.replace(agent, spec=spec), ""


def _most_memory(state: MeshState, task: TaskSpec, agent: Agent) -> int:
    """The most memory that a task may grow to, in units."""
    account = state.ledger.accounts.get(agent.spec.pool_name)
    quota = 0 if account is None else account.spec.plain_quota.memory
    if task.oom_max_memory is None:
        return quota
    return min(quota, round(task.oom_max_memory * UNIT))


def task_not_started(
    state: MeshState, agent: Agent, reason: Reason, *, restore_failed: bool
) -> RunningTask | None:
    """The task of an agent that did not start, which is tried again as one whose run has failed: it came from
    the queue or had run before. It has retries left, or, where its state could not be restored, may be
    started from another state or anew. None: there is none.
    """
    submission = agent.submission
    if submission is None or reason not in _FAILED_STARTS:
        return None
    task = state.running.by_id.get(submission.task_id or "")
    if task is None or not (submission.queued or task.attempts.number > 1):
        return None
    if may_retry(state, task, agent):
        return task
    if not restore_failed or task.attempts.fell_back or not agent.spec.restartable:
        return None
    how = task.spec.on_restore_failure
    has_other = how == "previous" and task.attempts.previous_state is not None
    return task if has_other or how == "restart" else None


def requeue_not_started(
    tx: Transaction,
    task: RunningTask,
    agent: Agent,
    *,
    restore_failed: bool,
    has_grown: bool = False,
) -> None:
    """Have a task of ``task_not_started`` join the queue again."""
    if not restore_failed or task.attempts.failures < task.spec.max_retries:
        requeue_failed(tx, task, agent, has_grown=has_grown)
        return
    other = task.attempts.previous_state if task.spec.on_restore_failure == "previous" else None
    attempts = msgspec.structs.replace(task.attempts, previous_state=task.state_key, fell_back=True)
    requeue_failed(tx, msgspec.structs.replace(task, state_key=other, attempts=attempts), agent)


def requeue_failed(
    tx: Transaction, task: RunningTask, agent: Agent, *, lost: bool = False, has_grown: bool = False
) -> None:
    """Have a task that failed join the queue again; it waits twice as long each time. One that was ``lost``
    does not wait the first time, nor if it had run for as long: the failure was hardly its own. One that
    ``has_grown`` keeps no place, which was of another size.
    """
    failures = task.attempts.failures
    wait_s = min(_RETRY_MAX_S, _RETRY_S * 2.0**failures)
    if lost and (not failures or tx.now >= task.started_at + wait_s):
        wait_s = 0.0
    not_before = tx.now + wait_s if wait_s else 0.0
    requeue(tx, task, agent, failed=True, not_before=not_before, keeps_place=not has_grown)


def place_if_retried(state: MeshState, agent: Agent) -> Entry | None:
    """The place in the queue of the task of an agent that is only between two attempts of it, if that place
    is kept; None: it is not.
    """
    ending = agent.phase
    if not isinstance(ending, Ending) or ending.reason not in _RETRIED:
        return None
    task = task_to_retry(state, agent)
    if task is None or _RETRY_S * 2.0**task.attempts.failures > _KEPT_S:
        return None
    waiting = QueuedTask(
        submission=TaskSubmitted(agent=agent.spec.with_alternative(0), task=task.spec),
        queued_at=agent.admitted_at,
        number=task.number,
        attempts=task.attempts,
    )
    return state.queue.entry(waiting)


def _is_deleted(agent: Agent) -> bool:
    """Whether its deletion was requested while it was being terminated for another reason."""
    return isinstance(agent.phase, Ending) and agent.phase.deleted


def victims_to_requeue(tx: Transaction, agent: Agent) -> list[RunningTask]:
    """The evicted tasks of an agent that join the queue again when it has ended."""
    if _is_deleted(agent):
        return []
    running = tx.state.running
    tasks = [running.by_id[task_id] for task_id in running.on_agent(agent.spec.name)]
    return [
        task
        for task in tasks
        if isinstance(task.phase, Preempting) and returns_when_evicted(tx.state, task, agent)
    ]


def task_without_room(
    state: MeshState, agent: Agent, reason: Reason, *, room_lost: bool = False
) -> RunningTask | None:
    """The task of an agent that found no room, or lost it with its node while it started (``room_lost``): it
    came from the queue, or had run before. None: it does not wait.
    """
    submission = agent.submission
    has_no_room = reason in _NO_ROOM or (room_lost and reason in _FAILED_STARTS)
    if submission is None or not has_no_room:
        return None
    task = state.running.by_id.get(submission.task_id or "")
    if task is None or task.agent_name != agent.spec.name:
        return None  # it has ended, and may have been submitted again
    if not submission.queued and not _runs_again(task, agent):
        return None
    return task if _may_wait(state, task) else None


def _runs_again(task: RunningTask, agent: Agent) -> bool:
    """Whether a task that did not come from the queue has run before, and its agent can be made again."""
    can_be_made = bool(agent.spec.class_key) and agent.spec.restartable
    return can_be_made and bool(task.number) and task.attempts.number > 1


def return_of(task: RunningTask | None, reason: ReturnReason) -> Returned | None:
    """That a task of ``task_without_room`` waits again for this reason; None: there is none."""
    return None if task is None else Returned(task_id=task.spec.task_id, reason=reason)


def requeue_without_room(tx: Transaction, task: RunningTask, agent: Agent) -> None:
    """Have the task wait again, for a moment at least."""
    requeue(tx, task, agent, not_before=tx.now + _ROOM_RETRY_S)


def was_lost_in_start(agent: Agent, reason: Reason, *, room_lost: bool) -> bool:
    """Whether an agent that did not start was lost with its node while its process was started."""
    return room_lost and reason in _FAILED_STARTS and isinstance(agent.phase, Starting)


def loses_too_many_starts(task: RunningTask) -> bool:
    """Whether one more start that is lost counts as a failure of the task: perhaps it ends its nodes."""
    return task.attempts.lost_starts >= LOST_STARTS


def requeue_lost_start(tx: Transaction, task: RunningTask, agent: Agent) -> None:
    """Have a task join the queue again whose start was lost with its node."""
    lost_starts = task.attempts.lost_starts + 1
    wait_s = min(_LOST_START_MAX_S, _LOST_START_S * 2.0 ** (lost_starts - 1))
    attempts = msgspec.structs.replace(task.attempts, lost_starts=lost_starts)
    requeue(
        tx,
        msgspec.structs.replace(task, attempts=attempts),
        agent,
        failed=loses_too_many_starts(task),
        not_before=tx.now + wait_s,
    )


def requeue(
    tx: Transaction,
    task: RunningTask,
    agent: Agent,
    *,
    evicted: bool = False,
    failed: bool = False,
    not_before: float = 0.0,
    keeps_place: bool = True,
) -> None:
    """Have a task that has ended join the queue again, with its saved state, its first arrival and its id.

    Call it when the task and its agent are no longer part of the state. ``evicted`` and ``failed`` say what
    is counted; neither is where the task did not run. One that has run for as long as it may has had its
    turn, and comes behind those that wait. An extra member whose gang has ended does not return, nor does a
    child whose parent has.
    """
    if not _may_wait(tx.state, task):
        return
    tx.emit(
        TaskQueued(
            submission=_resubmission(task, agent, tx.now),
            at=tx.now,
            number=tx.state.queue.next_number if task.reached_limit else task.number,
            attempts=attempts_of(task, agent, tx.now, evicted=evicted, failed=failed),
            not_before=not_before,
        )
    )
    if keeps_place and tx.now < not_before <= tx.now + _KEPT_S:
        _keep_place(tx, task.spec.task_id, agent, not_before)
        if not isinstance(agent.phase, Ending):  # else it is first for those that wait for its end
            keep_quota(tx, agent, agent.shares)


def _may_wait(state: MeshState, task: RunningTask) -> bool:
    """Whether what a task belongs to runs still: the task that started it, or the core of its gang."""
    if task.spec.parent and task.spec.parent not in state.running.by_id:
        return False
    return not task.spec.extra_of or core_runs(state, task.spec.extra_of)


def _keep_place(tx: Transaction, task_id: str, agent: Agent, not_before: float) -> None:
    """Reserve its start where it was for a task that waits for a moment only: others that come after it would
    have to leave again.
    """
    state, alternative, flavor = tx.state, agent.spec.alternative, agent.spec.taken_flavor
    group = state.groups.by_id.get(agent.group_id or "")
    if group is not None and group.reserved and group.phase is GroupPhase.READY:
        tx.emit(
            StartReserved(
                task_id=task_id,
                at=not_before,
                group_id=group.group_id,
                alternative=alternative,
                flavor=flavor,
            )
        )
        return
    places = (agent.node_id,) if group is None else group.node_ids
    node_ids = tuple(node_id for node_id in places if node_id in state.cluster.nodes)
    if len(node_ids) != max(1, len(agent.spec.bundles)):
        node_ids = ()
    tx.emit(
        StartReserved(
            task_id=task_id,
            at=not_before,
            node_ids=node_ids,
            alternative=alternative,
            flavor=flavor,
        )
    )


def keep_quota(tx: Transaction, agent: Agent, shares: Iterable[Share]) -> None:
    """Hold what is free of these shares and its pool's own for a task that keeps its place until its next
    attempt. Else another pool would borrow it meanwhile, and be evicted when it is taken back.
    """
    queue, ledger, pool_name = tx.state.queue, tx.state.ledger, agent.spec.pool_name
    task = queue.by_id.get(queue.agent_names.get(agent.spec.name, ""))
    if task is None or task.reservation is None or task.not_before <= tx.now:
        return
    own_quota = sum_of(share.amount for share in shares if share.pool_name == pool_name)
    own_quota = own_quota.within(ledger.accounts[pool_name].free)
    release_quota(tx, task.task_id)
    if own_quota and ledger.cohorts.neighbours(pool_name).names:
        tx.emit(
            QuotaHeld(
                hold_id=_hold_of(task.task_id),
                for_pool=pool_name,
                shares=(Share(pool_name=pool_name, amount=own_quota),),
                at=tx.now,
                until=task.not_before,
            )
        )


def release_quota(tx: Transaction, task_id: str) -> None:
    """Hold no quota for a task any more."""
    hold_id = _hold_of(task_id)
    if hold_id in tx.state.ledger.holds:
        tx.emit(HoldShrank(hold_id=hold_id, at=tx.now))


def _hold_of(task_id: str) -> str:
    """The id of the hold for a task that is tried again; no agent's, which ends in its incarnation."""
    return f"{task_id}#retry"


def _resubmission(task: RunningTask, agent: Agent, now: float) -> TaskSubmitted:
    """The submission of a task that joins the queue again. One that did not run yet keeps the request that
    waits for that, and its time limit.
    """
    before = agent.submission
    request_id = expires_at = None
    if before is not None and before.queued:
        request_id, expires_at = before.request_id, before.expires_at
    return TaskSubmitted(
        agent=agent.spec.with_alternative(0),
        task=task.spec,
        choose_node=task.choose_node,
        state_key=task.state_key,
        may_preempt=not task.spec.extra_of,
        queue=True,
        request_id=request_id,
        until_runs=request_id is not None,
        wait_s=None if expires_at is None else max(0.0, expires_at - now),
    )


def answer_not_run(tx: Transaction, submission: Submission, refused: Refused) -> RequestOutcome:
    """Answer the submission of an agent that ended before it ran: its task waits in the queue, or is refused.

    Call it when the task has joined the queue again, if it does. Whoever waits until the task runs is not
    answered then.
    """
    task = tx.state.queue.by_id.get(submission.task_id or "")
    if task is None:
        return tx.answer(submission.request_id, refused)
    queued = Queued(
        task_id=task.task_id,
        agent_name=task.submission.agent.name,
        pool_name=task.pool_name,
        position=tx.state.queue.position(task),
    )
    if task.submission.until_runs:
        return queued
    return tx.answer(submission.request_id, queued)
