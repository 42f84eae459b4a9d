"""The queue: how tasks join it, how they are served from it, and how they join it again.

A task that joins is tried at once, like any submission, evictions included. After that the queue is served
whenever something has become free: the classes of all pools in order, the first task of each; a class that
does not fit is passed over for the rest of the pass, because capacity only shrinks while it is served. In a
``strict`` pool, nothing passes a task that does not fit. On each tick, the first task of each pool that does
not fit is also tried with evictions, and gets a reserved start (``reservations``): both change with every
task that starts, and searching at each of these steps would cost more than it gains.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import msgspec

from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.admission.admit import Request, admit
from schedulemesh.engine.admission.decide import (
    plan_for,
    pool_for,
    prioritised,
    understand,
    unprobed,
    veto_for,
)
from schedulemesh.engine.admission.reservations import permitted, reserve_starts
from schedulemesh.engine.messages.facts import (
    AgentEnded,
    AgentProcessRestarted,
    AgentStarted,
    ClassLoaded,
    GroupEnded,
    GroupReady,
    HoldShrank,
    NodeCordoned,
    NodeSeen,
    PolicyChanged,
    PoolEnsured,
)
from schedulemesh.engine.messages.instructions import ProbeClass
from schedulemesh.engine.messages.outcomes import Done, Pending, Queued, Refused, RequestOutcome
from schedulemesh.engine.messages.queue_facts import (
    QueuePlaceChanged,
    QueuePolicyChanged,
    TaskCancelled,
    TaskQueued,
)
from schedulemesh.engine.messages.stimuli import (
    AnyStimulus,
    ClassProbeFailed,
    ClockTicked,
    QueuedTaskChanged,
    QueuePolicyChangeRequested,
    RecoveryObserved,
    TaskCancellationRequested,
    TaskSubmitted,
)
from schedulemesh.engine.preemption.limits import Limits
from schedulemesh.engine.state.queue import QueueClass, QueuedTask
from schedulemesh.engine.state.quota import pay
from schedulemesh.engine.transaction import Transaction

#: Refusals that only say that a task does not fit now: it may wait in the queue.
_MAY_PASS = frozenset((Reason.CLUSTER_OUT_OF_RESOURCES,))

#: Facts after which a task may fit that did not.
_FREEING = frozenset(
    (
        AgentEnded,
        AgentProcessRestarted,
        AgentStarted,
        ClassLoaded,
        GroupEnded,
        GroupReady,
        HoldShrank,
        NodeCordoned,
        NodeSeen,
        PolicyChanged,
        PoolEnsured,
        QueuePlaceChanged,
        QueuePolicyChanged,
        TaskCancelled,
    )
)

#: For how many pools evictions are searched on one tick, and starts are reserved.
_EVICTION_TRIES = 50
_RESERVATIONS = 50


def join(tx: Transaction, stimulus: TaskSubmitted) -> RequestOutcome:
    """A submission that may wait: it starts, or it waits in the queue; what can never start is refused."""
    stimulus = prioritised(tx, stimulus)
    task, state = stimulus.task, tx.state
    if task is None:
        raise ValueError("only a task can wait in the queue")
    request = understand(tx, stimulus)
    if isinstance(request, Refused) and request.reason not in _MAY_PASS:
        return request
    pool_name = pool_for(state, tx.strategies, stimulus) or ""
    if task.pool_name != pool_name:
        task = msgspec.structs.replace(task, pool_name=pool_name)
    agent = stimulus.agent
    if agent.pool_name != pool_name:
        agent = msgspec.structs.replace(agent, pool_name=pool_name)
    request_id = stimulus.request_id if stimulus.until_runs else None
    waiting = msgspec.structs.replace(
        stimulus, agent=agent, task=task, selector=(), request_id=request_id
    )
    tx.emit(TaskQueued(submission=waiting, at=tx.now, number=state.queue.next_number))
    return _tried_at_once(tx, state.queue.by_id[task.task_id])


def _tried_at_once(tx: Transaction, task: QueuedTask) -> Queued | Pending:
    """Start a task that has just joined the queue, unless it does not fit or others come before it."""
    agent_name = task.submission.agent.name
    position = tx.state.queue.position(task)
    if _is_next(tx, task) and _start(tx, task, may_preempt=True):
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
    queue, queue_class = tx.state.queue, task.queue_class
    if queue_class is None or queue_class.first[-1] != task.task_id:
        return False
    spec = tx.state.ledger.accounts[task.pool_name].spec
    return spec.queueing != "strict" or queue.position(task) == 1


def _start(tx: Transaction, task: QueuedTask, *, may_preempt: bool) -> bool:
    """Admit a task from the queue if it fits, or if those may be evicted that keep it from fitting."""
    request = understand(tx, task.submission)
    if isinstance(request, Refused):
        return False
    if request.fits_now:
        allowed = permitted(tx, request, tx.state.queue.entry(task))
        if allowed is not None:
            admit(tx, allowed, None)
        return allowed is not None
    return may_preempt and _start_with_evictions(tx, task, request)


def _start_with_evictions(tx: Transaction, task: QueuedTask, request: Request) -> bool:
    limits = Limits(tx.state, request.pool_name, tx.now)
    plan = plan_for(tx, request, veto_for(tx, request), limits)
    if plan is None:
        return False
    if (class_key := unprobed(tx.state, request, plan)) is not None:
        tx.instruct(
            ProbeClass(task_id=task.task_id, class_key=class_key, agent=task.submission.agent)
        )
        return False
    admit(tx, request, plan)
    return True


def serve_queue(tx: Transaction, stimulus: AnyStimulus) -> None:
    """Start the queued tasks that fit after this step. A dry run changes nothing."""
    if isinstance(stimulus, TaskSubmitted) and stimulus.dry_run:
        return
    queue = tx.state.queue
    ticked = isinstance(stimulus, (ClockTicked, RecoveryObserved))
    if ticked:
        _cancel_expired(tx)
    due = queue.is_due(tx.now)
    if due:
        queue.advance(tx.now)
    if ticked or due or any(type(fact) in _FREEING for fact in tx.facts):
        served = _Pass(tx, evictions=_EVICTION_TRIES if ticked or _loaded(tx) else 0)
        served.run()
        if ticked:
            reserve_starts(tx, served.heads[:_RESERVATIONS])


def _loaded(tx: Transaction) -> bool:
    """Whether a class has been loaded in this step, for which others may be evicted now."""
    return any(type(fact) is ClassLoaded for fact in tx.facts)


def _cancel_expired(tx: Transaction) -> None:
    for task in tx.state.queue.expired(tx.now):
        error = f"task {task.task_id!r} did not start within {task.submission.wait_s:g} s"
        _cancel(tx, task, Reason.WAIT_TIMEOUT, error)


def _cancel(tx: Transaction, task: QueuedTask, reason: Reason, error: str = "") -> None:
    """Remove a task from the queue, and refuse the request that waits until it runs."""
    tx.emit(TaskCancelled(task_id=task.task_id, at=tx.now, reason=reason, error=error))
    sentence = error or f"task {task.task_id!r} was cancelled while it waited in the queue"
    tx.answer(task.submission.request_id, Refused(reason=reason, error=sentence))


class _Pass:
    """One service of the queue: the classes of all pools, in the order of the first task of each."""

    def __init__(self, tx: Transaction, *, evictions: int) -> None:
        self._tx = tx
        #: How often evictions may still be searched.
        self._evictions = evictions
        #: Pools whose first task does not fit, and these tasks.
        self._blocked: set[str] = set()
        self.heads: list[QueuedTask] = []
        #: Needs of single agents that fit on no node.
        self._no_room: set[Resources] = set()

    def run(self) -> None:
        """Start what fits."""
        pools = self._tx.state.queue.pools.values()
        classes = [queue_class for pool in pools for queue_class in pool.classes.values()]
        heap = [(queue_class.first, number) for number, queue_class in enumerate(classes)]
        heapify(heap)
        while heap:
            _, number = heappop(heap)
            queue_class = classes[number]
            if self._serve(queue_class) and queue_class.entries:
                heappush(heap, (queue_class.first, number))

    def _serve(self, queue_class: QueueClass) -> bool:
        """Start the first task of a class; whether that was done."""
        state, pool_name = self._tx.state, queue_class.pool_name
        passes = pool_name in self._blocked
        if passes and state.ledger.accounts[pool_name].spec.queueing == "strict":
            return False
        task = state.queue.by_id[queue_class.first[-1]]
        if self._may_fit(task) and self._started(task):
            return True
        if not passes and self._evictions > 0:
            self._evictions -= 1
            if _start(self._tx, task, may_preempt=True):
                return True
        if not passes:
            self._blocked.add(pool_name)
            self.heads.append(task)
        return False

    def _may_fit(self, task: QueuedTask) -> bool:
        """False: its pool's quota is short, or no node has room. Costs little."""
        state, submission = self._tx.state, task.submission
        spec = state.ledger.accounts[task.pool_name].spec
        need = spec.default_agent() if submission.default_resources else submission.agent.resources
        one_node = submission.choose_node and spec.groups is None and submission.agent.gang is None
        if one_node and need in self._no_room:
            return False
        return not pay(state.ledger, task.pool_name, need, submission.client).short

    def _started(self, task: QueuedTask) -> bool:
        request = understand(self._tx, task.submission)
        if isinstance(request, Refused):
            return False
        if request.fits_now:
            allowed = permitted(self._tx, request, self._tx.state.queue.entry(task))
            if allowed is not None:
                admit(self._tx, allowed, None)
            return allowed is not None
        if request.by_node:
            self._no_room.add(request.need)
        return False


def change_policy(tx: Transaction, stimulus: QueuePolicyChangeRequested) -> RequestOutcome:
    """Serve the queue by another policy from now on."""
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
    """Hold or release a queued task, change its priority, or move it to the front."""
    queue = tx.state.queue
    task = queue.by_id.get(stimulus.task_id)
    if task is None:
        return _not_queued(tx, stimulus.task_id)
    held = task.held if stimulus.held is None else stimulus.held
    priority = task.spec.priority if stimulus.priority is None else stimulus.priority
    front = queue.last_front + 1 if stimulus.to_front else task.front
    if (held, priority, front) == (task.held, task.spec.priority, task.front):
        return Done(change=Change.UNCHANGED)
    tx.emit(QueuePlaceChanged(task_id=task.task_id, held=held, priority=priority, front=front))
    return Done()


def cancel_task(tx: Transaction, stimulus: TaskCancellationRequested) -> RequestOutcome:
    """Cancel a task that waits in the queue."""
    task = tx.state.queue.by_id.get(stimulus.task_id)
    if task is None:
        return _not_queued(tx, stimulus.task_id)
    _cancel(tx, task, Reason.CANCELLED)
    return Done()


def class_probe_failed(tx: Transaction, stimulus: ClassProbeFailed) -> None:
    """Cancel a queued task whose class cannot be loaded: nobody is evicted for it."""
    task = tx.state.queue.by_id.get(stimulus.task_id)
    if task is not None:
        _cancel(tx, task, stimulus.reason, stimulus.error)


def _not_queued(tx: Transaction, task_id: str) -> Refused:
    running = tx.state.running.by_id.get(task_id)
    if running is None:
        error = f"there is no task {task_id!r} in the queue; it has ended or was never submitted"
        return Refused(reason=Reason.TASK_NOT_FOUND, error=error)
    return Refused(
        reason=Reason.NOT_QUEUED,
        error=f"task {task_id!r} does not wait in the queue: it is {running.phase.value}",
    )
