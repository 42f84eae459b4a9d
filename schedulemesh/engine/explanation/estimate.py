"""When a queued task can start at the earliest, if the tasks that run end when they are estimated to.

A task needs quota, and room on a node or for a placement group. The quota of its pool has to be enough for
the tasks that come before it, too; the room for it alone. Tasks of other pools that wait are not considered,
nor are evictions, so it may start later than this, or earlier. Of the first task of a pool it is the start
that is reserved for it.

Where tasks that hold what is short declare no duration, earlier runs say when they end, whether or not the
policy lets decisions use that. Where they run for longer than they declared, they are expected to run on for
a time that grows with their overrun, and the start is said to rest on a guess.
"""

from __future__ import annotations

import math

import msgspec

from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.domain.sentences import Sentence, Text, say
from schedulemesh.domain.task import TaskSpec
from schedulemesh.domain.task_kinds import TaskKind
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.admission.budgets import held_until
from schedulemesh.engine.admission.decide import understand
from schedulemesh.engine.admission.delays import counts_guesses
from schedulemesh.engine.admission.dependencies import awaited_ends
from schedulemesh.engine.admission.ends import Ends, estimate_of
from schedulemesh.engine.admission.needs import is_ruled_out, quota_need_of
from schedulemesh.engine.admission.projection import Projection, classes_by_pool, quota_free_at
from schedulemesh.engine.admission.windows import outside, outside_windows
from schedulemesh.engine.messages.explanation import DurationEstimate
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.estimates import Estimate
from schedulemesh.engine.state.lending import could_ever_borrow
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.ways import ways_of_task
from schedulemesh.engine.transaction import Transaction


class Start(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When a task can start at the earliest, or why that is not known."""

    #: In seconds since 1970; None: not known.
    at: float | None = None
    #: Why not; empty: it is known.
    unknown: Text = ""
    #: The running task whose end it waits for, and how long that runs by earlier runs; None: it rests on
    #: declared durations alone.
    rests_on: DurationEstimate | None = None
    #: Whether it rests on the ends of tasks that run for longer than they declared.
    overdue: bool = False
    #: The running task whose time limit ends it then at the latest; empty: it rests on none.
    by_limit: str = ""


def earliest_start(state: MeshState, task: QueuedTask, request: Request, now: float) -> Start:
    """When the task can start at the earliest in any of its alternatives, or why that is not known. Earlier
    runs count where decisions count them, and where nothing is known without them.
    """
    starts = [_earliest_start(state, task, each, now) for each in request.each_alternative]
    return min(starts, key=lambda start: math.inf if start.at is None else start.at)


def _earliest_start(state: MeshState, task: QueuedTask, request: Request, now: float) -> Start:
    """The same for one of its alternatives."""
    if task.held:
        return Start(unknown=say("start_held"))
    if state.arrays.is_full(task.spec):
        return Start(unknown=say("start_array_full"))
    if task.depends:
        return Start(unknown=say("start_depends"))
    # First by the ends that decisions count; where they tell nothing, by those of earlier runs, too.
    may_guess = counts_guesses(state, task, now)
    use_earlier_runs = may_guess and state.queue.policy.estimates
    ends = Ends(state, now, estimated=use_earlier_runs, overruns=may_guess)
    start = _by_ends(state, task, request, ends)
    reserved_at = None if task.reservation is None else task.reservation.at
    if reserved_at is not None:
        start = msgspec.structs.replace(start, at=reserved_at, unknown="")
    elif start.at is None and not use_earlier_runs:
        start_by_earlier_runs = _by_ends(state, task, request, Ends(state, now, estimated=True))
        if start_by_earlier_runs.at is not None:
            start = start_by_earlier_runs
    turns_at = held_until(state, task)
    if start.at is None:
        return start if turns_at is None else Start(at=turns_at)
    return msgspec.structs.replace(start, at=max(start.at, now, task.not_before, turns_at or now))


def _by_ends(state: MeshState, task: QueuedTask, request: Request, ends: Ends) -> Start:
    """When a task can start by these ends, and whether that rests on tasks that have outlived theirs."""
    start = _estimated(state, task, request, ends)
    if start.at is None or not ends.guessed:
        return start
    sure_ends = Ends(state, ends.now, estimated=ends.estimated, overruns=False)
    overdue = _estimated(state, task, request, sure_ends).at != start.at
    return msgspec.structs.replace(start, overdue=overdue)


def start_if_queued(tx: Transaction, submission: TaskSubmitted) -> float | None:
    """When a task that is not submitted yet could start at the earliest, if it joined the queue now; None:
    that is not known, or it could not start.
    """
    with outside_windows(tx.state, submission, tx.now):
        return _start_if_queued(tx, submission)


def _start_if_queued(tx: Transaction, submission: TaskSubmitted) -> float | None:
    request = understand(tx, submission)
    if isinstance(request, Refused) and request.reason is Reason.BUDGET_SPENT:
        request = understand(tx, submission, limits_owner=False)
    if isinstance(request, Refused) or submission.task is None:
        return None
    agent = msgspec.structs.replace(submission.agent, pool_name=request.pool_name)
    task = QueuedTask(
        submission=msgspec.structs.replace(submission, agent=agent),
        queued_at=tx.now,
        number=tx.state.queue.next_number,
        waits_for=awaited_ends(tx.state, submission.task),
    )
    return earliest_start(tx.state, task, request, tx.now).at


def duration_of(state: MeshState, spec: TaskSpec, need: Resources) -> DurationEstimate | None:
    """How long a task runs in all by earlier runs; None: it says so itself, or too few are known."""
    if spec.estimated_duration is not None:
        return None
    estimate = state.past.estimates.estimate(TaskKind.of(spec, need))
    return None if estimate is None else described(spec.task_id, estimate)


def described(task_id: str, estimate: Estimate) -> DurationEstimate:
    """An estimate of a task's duration, for callers."""
    key = estimate.key
    return DurationEstimate(
        task_id=task_id,
        seconds=estimate.seconds,
        low_s=estimate.low_s,
        high_s=estimate.high_s,
        runs=estimate.runs,
        owner=key.owner,
        pool_name=key.pool_name,
        pattern=key.pattern,
        gpus=None if key.gpu is None else key.gpu / UNIT,
        cpus=None if key.cpu is None else key.cpu / UNIT,
    )


def _estimated(state: MeshState, task: QueuedTask, request: Request, ends: Ends) -> Start:
    """When there is quota and room for a task whose start is not reserved."""
    total_need = request.quota_need + _asked_before(state, task)
    pool_quota = state.ledger.accounts[task.pool_name].spec.resources
    if total_need == request.quota_need and not request.payment.short:
        total_need = NOTHING
    elif not total_need.fits(pool_quota + could_ever_borrow(state.ledger, task.pool_name)):
        return Start(unknown=say("start_behind_too_many"))
    elif not total_need.fits(pool_quota):
        return Start(unknown=say("start_by_borrowing"))
    classes = classes_by_pool(state)
    quota_at = quota_free_at(
        state, task.pool_name, total_need, classes.get(task.pool_name, []), ends
    )
    place_at: float | None = ends.now
    if request.unassigned:
        shape, group_request = request.node_shape, request.group_request
        place = Projection(state, ends).place(shape, group_request)
        submission = request.stimulus
        place_at = outside(state, place, group_request, shape, submission, ends.now).at
    if quota_at is None or place_at is None:
        return Start(unknown=_unknown(ends))
    at = max(quota_at, place_at)
    return Start(at=at, rests_on=_last_of(state, ends, at), by_limit=ends.by_limit.get(at, ""))


def _unknown(ends: Ends) -> Sentence:
    """Why nobody knows when what is short becomes free."""
    return say("start_no_durations" if ends.overruns else "start_no_durations_overdue")


def _last_of(state: MeshState, ends: Ends, at: float) -> DurationEstimate | None:
    """The task that ends at a time by earlier runs; None: there is none."""
    for task_id in (task_id for task_id, end in ends.looked_at.items() if end == at):
        estimate = estimate_of(state, state.running.by_id[task_id], ends.now)
        if estimate is not None:
            return described(task_id, estimate)
    return None


def _asked_before(state: MeshState, task: QueuedTask) -> Resources:
    """What all tasks that come before it in its pool ask for, without those that the pool cannot hold."""
    queue, need_before = state.queue, NOTHING
    entry = queue.entry(task)
    pool = queue.pools.get(task.pool_name)
    for queue_class in () if pool is None else pool.classes.values():
        count, first = queue_class.entries.bisect_left(entry), queue.by_id[queue_class.first[-1]]
        if count and not is_ruled_out(state, first):
            first_way = ways_of_task(state.ledger, first)[0]
            need_before = need_before + quota_need_of(state, first_way).times(count)
    return need_before
