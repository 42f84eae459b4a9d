"""When the next tick can change something although nothing else happens before it.

The supervisor ticks at a fixed interval. A tick that finds the state as the last one left it changes nothing
until one of the times that the state holds is reached; the ticks before that are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from schedulemesh.engine.state.mesh_state import MeshState


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
    if policy.min_runtime:
        for task_class in state.running.classes.values():
            if task_class.young:
                yield task_class.young[0][0]
