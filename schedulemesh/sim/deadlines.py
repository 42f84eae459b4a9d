"""When the next tick can change something although nothing else happens before it.

The supervisor ticks at a fixed interval. A tick that finds the state as the last one left it changes nothing
until one of the times that the state holds is reached; the ticks before that are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.tasks import RunningTask


def next_deadline(state: MeshState, now: float) -> float | None:
    """The first such time after ``now``; None: there is none."""
    return min((time for time in _times(state) if time > now), default=None)


def _times(state: MeshState) -> Iterator[float]:
    queue, policy = state.queue, state.policy
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
        yield task.queued_at + queue.policy.passing_limit_s
    if policy.preemption_cooldown:
        yield from (at + policy.preemption_cooldown for at in state.evictions.last_for.values())
    if policy.min_runtime or policy.defragment_after_s or queue.policy.las_preempts:
        for running in state.running.by_id.values():
            yield from _times_of(state, running)


def _times_of(state: MeshState, task: RunningTask) -> Iterator[float]:
    """When a running task may be evicted that may not be before."""
    queue, policy = state.queue.policy, state.policy
    yield task.started_at + policy.min_runtime
    yield task.started_at + policy.defragment_after_s
    if queue.las_preempts and task.resources.gpu:
        left_s = queue.las_threshold_gpu_hours * 3600.0 - task.attempts.gpu_s
        yield task.started_at + left_s / task.resources.gpus
