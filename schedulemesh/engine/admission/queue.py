"""The queue: how tasks join it, and how clients change how they wait. ``queue_pass`` serves it.

A task that joins is tried at once, like any submission, evictions included.
"""

from __future__ import annotations

import msgspec

from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.sentences import say
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.admission.arrays import SelectedMembers, selected, split
from schedulemesh.engine.admission.backfill import Backfill, is_behind_in_strict_pool
from schedulemesh.engine.admission.decide import (
    pool_for,
    prioritised,
    understand,
)
from schedulemesh.engine.admission.dependencies import awaited_ends
from schedulemesh.engine.admission.needs import need_of
from schedulemesh.engine.admission.owner_limits import too_many_queued
from schedulemesh.engine.admission.queue_estimates import estimate_new
from schedulemesh.engine.admission.queue_pass import cancel, is_strict, serve_before, start
from schedulemesh.engine.admission.refusals import priority_not_permitted
from schedulemesh.engine.messages.outcomes import Done, Pending, Queued, Refused, RequestOutcome
from schedulemesh.engine.messages.queue_facts import (
    PriorityChanged,
    QueuePlaceChanged,
    QueuePolicyChanged,
    TaskQueued,
)
from schedulemesh.engine.messages.stimuli import (
    ClassProbeFailed,
    QueuedTaskChanged,
    QueuePolicyChangeRequested,
    TaskSubmitted,
)
from schedulemesh.engine.state.gangs import extra_tasks
from schedulemesh.engine.state.long_waits import PROMOTED
from schedulemesh.engine.state.queued_tasks import QueuedTask, front_of
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.engine.state.ways import ways_of_task
from schedulemesh.engine.transaction import Transaction

#: Refusals that only say that a task does not fit now: it may wait in the queue.
_MAY_PASS = frozenset(
    (
        Reason.BUDGET_SPENT,
        Reason.CLUSTER_OUT_OF_RESOURCES,
        Reason.OWNER_LIMIT,
        Reason.POOL_DRAINING,
    )
)


def join(tx: Transaction, stimulus: TaskSubmitted) -> RequestOutcome:
    """A submission that may wait: it starts, or it waits in the queue; what can never start is refused."""
    waiting = submission_to_queue(tx, prioritised(tx, stimulus))
    if isinstance(waiting, Refused):
        return waiting
    state, task = tx.state, waiting.task
    if task is None:
        raise TypeError("only a task can wait in the queue")
    serve_before(tx)
    tx.emit(
        TaskQueued(
            submission=waiting,
            at=tx.now,
            number=state.queue.number_of(task),
            waits_for=awaited_ends(state, task),
        )
    )
    estimate_new(tx)
    return _tried_at_once(tx, state.queue.by_id[task.task_id])


def submission_to_queue(tx: Transaction, stimulus: TaskSubmitted) -> TaskSubmitted | Refused:
    """A submission as it waits in the queue of its pool, or the reason why it may not wait."""
    task, state = stimulus.task, tx.state
    if task is None:
        raise ValueError("only a task can wait in the queue")
    request = understand(tx, stimulus)
    if isinstance(request, Refused) and request.reason not in _MAY_PASS:
        return request
    pool_name = _pool_to_wait_in(tx, stimulus, request)
    if (refused := too_many_queued(state, pool_name, task)) is not None:
        return refused
    if task.pool_name != pool_name:
        task = msgspec.structs.replace(task, pool_name=pool_name)
    agent = stimulus.agent
    if agent.pool_name != pool_name:
        agent = msgspec.structs.replace(agent, pool_name=pool_name)
    request_id = stimulus.request_id if stimulus.until_runs else None
    return msgspec.structs.replace(
        stimulus, agent=agent, task=task, selector=(), request_id=request_id
    )


def _pool_to_wait_in(tx: Transaction, stimulus: TaskSubmitted, request: Request | Refused) -> str:
    """The pool in whose queue a submission waits: that of the way of running that is tried first."""
    if isinstance(request, Request):
        return request.pool_name
    pool_names = (pool_for(tx.state, tx.strategies, each) for each in stimulus.each_alternative)
    return next(filter(None, pool_names), "")


def _tried_at_once(tx: Transaction, task: QueuedTask) -> Queued | Pending:
    """Start a task that has just joined the queue, unless it does not fit or others come before it."""
    agent_name = task.submission.agent.name
    position = tx.state.queue.position(task)
    is_next = _is_next(tx, task)
    if (is_next or _may_be_short(tx, task)) and start(tx, task, may_preempt=is_next):
        position = 0
    if task.submission.until_runs:
        return Pending(agent_name=agent_name)
    return Queued(
        task_id=task.task_id,
        agent_name=agent_name,
        pool_name=task.pool_name,
        position=position,
    )


def _is_next(tx: Transaction, task: QueuedTask) -> bool:
    """Whether nothing that waits has to start before this task may."""
    queue_class = task.queue_class
    if queue_class is None or queue_class.entries[:1] != [tx.state.queue.entry(task)]:
        return False
    return not is_behind_in_strict_pool(tx.state, task.pool_name, queue_class.first)


def _may_be_short(tx: Transaction, task: QueuedTask) -> bool:
    """Whether this task may end before a reserved start that others of its class would delay."""
    if task.queue_class is None or is_strict(tx, task.pool_name):
        return False
    no_room = tx.state.queue.no_room
    if all(
        no_room.includes(each.submission.agent.node_labels, need_of(tx.state, each))
        for each in ways_of_task(tx.state.ledger, task)
    ):
        return False
    return Backfill(tx).may_be_over(task)


def change_policy(tx: Transaction, stimulus: QueuePolicyChangeRequested) -> RequestOutcome:
    """Serve the queue by another policy from now on."""
    if stimulus.policy == tx.state.queue.policy:
        return Done(change=Change.UNCHANGED)
    tx.emit(
        QueuePolicyChanged(
            policy=stimulus.policy,
            at=tx.now,
            client=stimulus.client,
            changes=stimulus.changes,
        )
    )
    return Done()


def change_queued(tx: Transaction, stimulus: QueuedTaskChanged) -> RequestOutcome:
    """Hold or release a queued task, change its priority, or move it to the front. The priority of a task
    that runs is changed likewise.
    """
    selection = selected(tx.state, stimulus.task_id)
    if selection is None:
        return _change_one(tx, stimulus)
    return selection if isinstance(selection, Refused) else _change_members(tx, stimulus, selection)


def _change_members(
    tx: Transaction, stimulus: QueuedTaskChanged, selection: SelectedMembers
) -> RequestOutcome:
    """Change how members of an array wait, and with all of them the array; the priority also of those that
    run. The first refusal of one of them is the outcome, if nothing was changed before.
    """
    queue, array_id = tx.state.queue, selection.array.array_id
    if selection.indices is not None and (refused := split(tx, selection)) is not None:
        return refused
    entry_ids = [array_id] if selection.indices is None and array_id in queue.by_id else []
    running = selection.running() if stimulus.priority is not None else []
    task_ids = [*entry_ids, *selection.waiting(), *running]
    if not task_ids:
        error = say("no_member_waits", members=stimulus.task_id)
        return Refused(reason=Reason.NOT_QUEUED, error_text=error)
    changed = False
    for task_id in reversed(task_ids) if stimulus.to_front else task_ids:
        outcome = _change_one(tx, msgspec.structs.replace(stimulus, task_id=task_id))
        if isinstance(outcome, Refused) and not changed:
            return outcome
        changed = changed or outcome != Done(change=Change.UNCHANGED)
    return Done() if changed else Done(change=Change.UNCHANGED)


def _change_one(tx: Transaction, stimulus: QueuedTaskChanged) -> RequestOutcome:
    queue, running = tx.state.queue, tx.state.running
    task = queue.by_id.get(stimulus.task_id)
    if task is None and stimulus.priority is not None and stimulus.task_id in running.by_id:
        return _change_running(tx, running.by_id[stimulus.task_id], stimulus.priority)
    if task is None:
        return _not_queued(tx, stimulus.task_id)
    refused = _not_permitted(tx, task.pool_name, stimulus.priority)
    if refused is not None:
        return refused
    held = task.held if stimulus.held is None else stimulus.held
    priority = task.spec.priority if stimulus.priority is None else stimulus.priority
    least = PROMOTED if queue.policy.promote_after_s else 0
    started = (front_of(running.by_id[task_id]) for task_id in running.ordered)
    front = max(queue.last_front, least, *started) + 1 if stimulus.to_front else task.front
    if (held, priority, front) == (task.held, task.spec.priority, task.front):
        return Done(change=Change.UNCHANGED)
    tx.emit(
        QueuePlaceChanged(
            task_id=task.task_id, held=held, priority=priority, at=tx.now, front=front
        )
    )
    if is_strict(tx, task.pool_name):
        queue.reopen(task.pool_name)
    return Done()


def _not_permitted(tx: Transaction, pool_name: str, priority: float | None) -> Refused | None:
    """The refusal of a priority that the pool does not permit; None: it does, or none is given."""
    account = tx.state.ledger.accounts.get(pool_name)
    if account is None or priority is None:
        return None
    return priority_not_permitted(account.spec, priority)


def _change_running(tx: Transaction, task: RunningTask, priority: float) -> RequestOutcome:
    """Give a task with an agent another priority, by which others may evict it, or may not, from now on."""
    if task.spec.priority == priority:
        return Done(change=Change.UNCHANGED)
    refused = _not_permitted(tx, task.spec.pool_name, priority)
    if refused is not None:
        return refused
    tx.emit(PriorityChanged(task_id=task.spec.task_id, priority=priority, at=tx.now))
    for extra in tuple(extra_tasks(tx.state, task.agent_name)):
        change_queued(tx, QueuedTaskChanged(task_id=extra.spec.task_id, priority=priority))
    return Done()


def cancel_queued(tx: Transaction, task_id: str, error: str = "") -> RequestOutcome:
    """Cancel a task that waits in the queue. ``error``: why; empty: by request."""
    cancel(tx, tx.state.queue.by_id[task_id], Reason.CANCELLED, error)
    return Done()


def class_probe_failed(tx: Transaction, stimulus: ClassProbeFailed) -> None:
    """Cancel a queued task whose class cannot be loaded: nobody is evicted for it."""
    task = tx.state.queue.by_id.get(stimulus.task_id)
    if task is not None:
        cancel(tx, task, stimulus.reason, stimulus.error)


def _not_queued(tx: Transaction, task_id: str) -> Refused:
    running = tx.state.running.by_id.get(task_id)
    if running is None:
        error = say("not_in_queue", task=task_id)
        return Refused(reason=Reason.TASK_NOT_FOUND, error_text=error)
    return Refused(
        reason=Reason.NOT_QUEUED,
        error_text=say("task_does_not_wait", task=task_id, state=running.phase.value),
    )
