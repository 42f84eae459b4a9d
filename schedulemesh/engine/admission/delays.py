"""What later tasks must leave for those with a reserved start.

A task delays a reserved start if it is not over by then, and takes quota, room on a node, or a placement
group of which too little would be left for it. Where the start is not known, a task delays it if it takes
anything that is short even now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

import msgspec

from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.task_kinds import TaskKind
from schedulemesh.engine.admission.ends import Ends
from schedulemesh.engine.admission.needs import (
    bundles_of,
    can_be_paid,
    groups_asked,
    need_of,
    quota_need_of,
)
from schedulemesh.engine.admission.projection import Projection, classes_by_pool, quota_free_at
from schedulemesh.engine.admission.time_limits import longest_run_s
from schedulemesh.engine.admission.windows import is_emptied
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.placement.group_choice import GroupRequest, suits
from schedulemesh.engine.state.fair_order import Entry
from schedulemesh.engine.state.groups import Group
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask, Reservation
from schedulemesh.engine.state.tasks import TaskClass
from schedulemesh.engine.state.ways import as_reserved
from schedulemesh.engine.transaction import Transaction

#: What a task takes, by node.
Taken = Mapping[str, Resources]


class Projections:
    """The projections of one time: with ends that are guessed, and without them."""

    def __init__(
        self, state: MeshState, now: float, estimated_ends: dict[str, float | None] | None = None
    ) -> None:
        self._state = state
        self._now = now
        #: See ``Ends``.
        self._known = estimated_ends
        self._made: dict[bool, Projection] = {}

    def of(self, head: QueuedTask) -> Projection:
        """By which the start of a task is reserved."""
        guessed = counts_guesses(self._state, head, self._now)
        if guessed not in self._made:
            estimated = guessed and self._state.queue.policy.estimates
            ends = Ends(
                self._state,
                self._now,
                estimated=estimated,
                overruns=guessed,
                estimated_ends=self._known,
            )
            self._made[guessed] = Projection(self._state, ends)
        return self._made[guessed]


def counts_guesses(state: MeshState, head: QueuedTask, now: float) -> bool:
    """Whether the start of a task may be reserved by ends that are guessed: those of tasks that run for
    longer than they declared, and, where the policy says so, those by earlier runs.
    """
    reserved = head.reservation
    if reserved is None or reserved.first_at is None:
        return True
    return now <= reserved.first_at + state.queue.policy.backfill_limit_s


def counts_estimates(state: MeshState, head: QueuedTask, now: float) -> bool:
    """Whether the start of a task may be reserved by the durations of earlier runs."""
    return state.queue.policy.estimates and counts_guesses(state, head, now)


class RunTimes(msgspec.Struct, frozen=True, gc=False):
    """Two times in seconds: by declared durations alone, and with those of earlier runs in place of missing
    ones. Infinite where nothing is known.
    """

    declared: float
    estimated: float

    def within(self, limits: RunTimes) -> bool:
        """Whether one of them is no longer than the limit for it."""
        return self.declared <= limits.declared or self.estimated <= limits.estimated


def run_times(
    tx: Transaction, submission: TaskSubmitted, pool_name: str, need: Resources
) -> RunTimes:
    """After how long a task is over: at the latest when its time limit has ended it."""
    task = submission.task
    if task is None:
        return RunTimes(inf, inf)
    limit = longest_run_s(tx.state, pool_name, task, submission.agent)
    longest = inf if limit is None else limit
    if task.estimated_duration is not None:
        declared = min(task.estimated_duration, longest)
        return RunTimes(declared, declared)
    if not tx.state.queue.policy.estimates:
        return RunTimes(longest, longest)
    estimate = tx.state.past.estimates.estimate(TaskKind.of(task, need))
    return RunTimes(longest, longest if estimate is None else min(estimate.high_s, longest))


class Delays:
    """Which tasks delay which reserved starts, as things are now."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        #: The number of facts at which the next two were made: any further one may change them.
        self._facts = -1
        self._projections = Projections(tx.state, tx.now, tx.estimated_ends)
        self._classes: dict[str, list[TaskClass]] | None = None
        #: By task with a reserved start, whether what is leaving makes room for it before that.
        self._soon: dict[str, bool] = {}
        #: By task with a reserved start: that start, and what it needs on each node.
        self._places: dict[str, tuple[Reservation, dict[str, Resources]]] = {}

    def reserved_before(self, entry: Entry) -> list[QueuedTask]:
        """The tasks with a reserved start that come before this place in the queue."""
        queue = self._tx.state.queue
        heads = map(queue.by_id.__getitem__, queue.reserved)
        ledger = self._tx.state.ledger
        return [as_reserved(ledger, head) for head in heads if queue.entry(head) < entry]

    def outlasted(
        self,
        heads: Iterable[QueuedTask],
        submission: TaskSubmitted,
        pool_name: str,
        need: Resources,
    ) -> list[QueuedTask]:
        """Those of them before whose starts a task is not over, if it starts now. An agent without a task has
        no end.
        """
        times = run_times(self._tx, submission, pool_name, need) if submission.task else None
        return [head for head in heads if not self._is_over(times, head)]

    def _is_over(self, times: RunTimes | None, head: QueuedTask) -> bool:
        """Whether a task is over, or may be backfilled, before the start that is reserved for this one."""
        tx, reservation = self._tx, head.reservation
        if reservation is None:
            return True
        if reservation.at is None:
            return tx.now - head.queued_at < tx.state.queue.policy.backfill_limit_s
        if times is None:
            return False
        estimated = counts_estimates(tx.state, head, tx.now)
        over_at = tx.now + (times.estimated if estimated else times.declared)
        return over_at <= reservation.at and over_at <= self._start_at(head)

    def limits(self, heads: Iterable[QueuedTask]) -> RunTimes:
        """The longest run times with which a task is over before the start of one of these tasks."""
        tx, declared, estimated = self._tx, -inf, -inf
        for head in heads:
            if head.reservation is None or head.reservation.at is None:
                continue
            left_s = head.reservation.at - tx.now
            if counts_estimates(tx.state, head, tx.now):
                estimated = max(estimated, left_s)
            else:
                declared = max(declared, left_s)
        return RunTimes(declared, estimated)

    def takes_quota(self, pool_name: str, taken: Resources, head: QueuedTask) -> bool:
        """Whether the quota that is left of a pool at the reserved start would not be enough for its task."""
        if pool_name != head.pool_name:
            return False
        self._refresh()
        state = self._tx.state
        head_need = quota_need_of(state, head)
        if can_be_paid(state, pool_name, head_need + taken, head.submission.client):
            return False
        need = head_need.of_kinds(taken)
        if self._classes is None:
            self._classes = classes_by_pool(state)
        classes, ends = self._classes.get(pool_name, []), self._projections.of(head).ends
        at = quota_free_at(state, pool_name, need, classes, ends, taken=taken)
        return at is None or at > self._start_at(head)

    def takes_room(self, taken: Taken, heads: Iterable[QueuedTask]) -> bool:
        """Whether what is left on some node at a reserved start would not be enough for its task."""
        self._refresh()
        return any(
            self._is_short(node_id, need, head)
            for head in heads
            if head.reservation is not None
            for node_id, need in taken.items()
        )

    def _is_short(self, node_id: str, taken: Resources, head: QueuedTask) -> bool:
        need = self._needs_of(head).get(node_id)
        node = self._tx.state.cluster.nodes.get(node_id)
        if need is None or node is None:
            return False
        start, state = self._start_at(head), self._tx.state
        if state.windows.by_name and is_emptied(state, node_id, self._tx.now, start):
            return False
        free = self._projections.of(head).free_by(node, start)
        return not need.of_kinds(taken).fits(free - taken)

    def _needs_of(self, head: QueuedTask) -> dict[str, Resources]:
        """What a task needs on each node on which it has a reserved start."""
        if head.reservation is None:
            return {}
        cached = self._places.get(head.task_id)
        if cached is not None and cached[0] is head.reservation:
            return cached[1]
        state = self._tx.state
        bundles = bundles_of(state, head.submission.agent, need_of(state, head))
        needs = sums_on(head.reservation.node_ids, bundles)
        self._places[head.task_id] = (head.reservation, needs)
        return needs

    def outlasts(self, agent_name: str, head: QueuedTask) -> bool:
        """Whether a running agent is expected to hold what it has until after a reserved start."""
        self._refresh()
        end = self._projections.of(head).ends.of_agent(agent_name)
        return end is None or end > self._start_at(head)

    def _start_at(self, head: QueuedTask) -> float:
        """The reserved time; now where what is leaving makes room for it. Starts are reserved at ticks, and
        what has begun to leave since then may have brought them forward.
        """
        at, now = start_at(head, self._tx.now), self._tx.now
        if at <= now:
            return now
        self._refresh()
        soon = self._soon.get(head.task_id)
        if soon is None:
            soon = self._soon[head.task_id] = self._may_start_soon(head)
        return now if soon else at

    def _may_start_soon(self, head: QueuedTask) -> bool:
        """Whether all that a task needs is free once what is leaving its nodes is gone."""
        state, projection = self._tx.state, self._projections.of(head)
        needs = self._needs_of(head)
        if not any(map(projection.is_being_left, needs)):
            return False
        for node_id, need in needs.items():
            node = state.cluster.nodes.get(node_id)
            if node is None or not need.fits(projection.free_by(node, self._tx.now)):
                return False
        if self._classes is None:
            self._classes = classes_by_pool(state)
        classes, need = self._classes.get(head.pool_name, []), quota_need_of(state, head)
        at = quota_free_at(state, head.pool_name, need, classes, projection.ends)
        return at is not None and at <= self._tx.now

    def takes_group(
        self, group_request: GroupRequest, group: Group | None, head: QueuedTask
    ) -> bool:
        """Whether a task of the same pool would use the group that this task is to get, or the last one that
        the pool may have.
        """
        if head.pool_name != group_request.pool_name or head.reservation is None:
            return False
        if head.reservation.group_id is not None:
            return group is not None and self._is_last_for(group, head, head.reservation.group_id)
        if group is not None and group.reserved:
            return False
        groups = self._tx.state.groups
        living = groups.dynamic_count(group_request.pool_name) + (group is None)
        if living < group_request.spec.max_dynamic:
            return False
        self._refresh()
        ends = self._projections.of(head).ends
        ending = self._ending_groups(group_request.pool_name, start_at(head, self._tx.now), ends)
        return (
            living - ending + (group is not None and group.free) >= group_request.spec.max_dynamic
        )

    def _is_last_for(self, group: Group, head: QueuedTask, reserved_id: str) -> bool:
        """Whether a task with a reserved start in an existing group would find none like it without this one:
        any that is free will do.
        """
        state, need = self._tx.state, need_of(self._tx.state, head)
        head_request = groups_asked(state, head.submission, head.pool_name, need)

        def is_usable(other: Group) -> bool:
            return other.free and head_request is not None and suits(state, head_request, other)

        if group.group_id != reserved_id and not is_usable(group):
            return False
        alike = state.groups.free_of(head.pool_name, reserved=group.reserved, shape=group.shape)
        return not any(other is not group and is_usable(other) for other in alike)

    def _ending_groups(self, pool_name: str, until: float, ends: Ends) -> int:
        """How many dynamic groups of a pool nobody uses at a time."""
        groups = self._tx.state.groups
        living = map(groups.by_id.__getitem__, groups.of_pool.get(pool_name, ()))
        times = (ends.of_group(group) for group in living if group.dynamic)
        return sum(end is not None and end <= until for end in times)

    def _refresh(self) -> None:
        """Forget what facts have changed."""
        tx = self._tx
        if len(tx.facts) != self._facts:
            self._facts = len(tx.facts)
            self._projections = Projections(tx.state, tx.now, tx.estimated_ends)
            self._classes = None
            self._soon.clear()


def sums_on(node_ids: Iterable[str], bundles: Iterable[Resources]) -> dict[str, Resources]:
    """What bundles take on each node."""
    sums: dict[str, Resources] = {}
    for node_id, need in zip(node_ids, bundles, strict=False):
        sums[node_id] = sums.get(node_id, NOTHING) + need
    return sums


def start_at(head: QueuedTask, now: float) -> float:
    """The reserved time; now where it is not known, or has come and the task could not start yet."""
    reserved = head.reservation
    return now if reserved is None or reserved.at is None else max(reserved.at, now)
