"""When the next tick can change something although nothing else happens before it.

The supervisor ticks at a fixed interval. A tick that finds the state as the last one left it changes nothing
until one of the times that the state holds is reached; the ticks before that are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from schedulemesh.engine.admission.ends import Ends
from schedulemesh.engine.lifecycle.windows import window_times
from schedulemesh.engine.state.mesh_state import MeshState


def next_deadline(state: MeshState, now: float) -> float | None:
    """The first such time after ``now``; None: there is none."""
    times = [time for time in _times(state, now) if time > now]
    times += _times_of_tasks(state, now)
    return min(times, default=None)


def _times(state: MeshState, now: float) -> Iterator[float]:
    queue, policy = state.queue, state.policy
    yield from (due_at for due_at, _ in state.running.limits_due[:1])
    if state.budgets.by_pool:
        yield state.budgets.due_at
    yield from window_times(state, now)
    yield from (hold.until for hold in state.ledger.holds.values())
    for pool_name, groups in state.groups.free_dynamic():
        spec = state.ledger.accounts[pool_name].spec.groups
        yield from (group.idle_since + spec.idle_s for group in groups if spec is not None)
    if not queue.by_id:
        return
    yield from queue.times()
    for task_id in queue.reserved:
        task = queue.by_id[task_id]
        if task.reservation is not None and task.reservation.at is not None:
            yield task.reservation.at
        if task.reservation is not None and task.reservation.first_at is not None:
            yield task.reservation.first_at + queue.policy.backfill_limit_s
        yield task.queued_at + queue.policy.backfill_limit_s
    for task_id in queue.impossible:
        since = queue.by_id[task_id].impossible_since
        if since is not None:
            yield since + queue.policy.impossible_after_s
    if policy.preemption_cooldown:
        yield from (at + policy.preemption_cooldown for at in state.evictions.last_for.values())


def _times_of_tasks(state: MeshState, now: float) -> list[float]:
    """When running tasks may be evicted that may not be before, or outlive their expected ends."""
    queue, policy = state.queue.policy, state.policy
    if not state.queue.by_id:
        return []
    times = []
    if state.queue.reserved and (queue.estimates or state.running.with_end):
        ends = Ends(state, now, estimated=queue.estimates)
        expected_ends = map(ends.of_task, state.running.by_id.values())
        times += [end for end in expected_ends if end is not None and end > now]
    running = state.running.by_id.values()
    for age in {policy.min_runtime, policy.defragment_after_s} - {0.0}:
        started = [task.started_at for task in running if task.started_at + age > now]
        times += [at + age for at in started]
    if queue.las_preempts and queue.las_limit_s is not None:
        for task in running:
            if task.resources.gpu:
                left_s = queue.las_limit_s - task.attempts.gpu_s
                at = task.started_at + left_s / task.resources.gpus
                if at > now:
                    times.append(at)
    return times
