"""The queue as rows for listings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.protocol.answers import QueueRow


def queued(
    state: MeshState, pool_name: str, now: float, first: int = 0, last: int | None = None
) -> Iterator[QueueRow]:
    """The tasks in a pool's queue, in their order: those after position ``first``, up to ``last``."""
    tasks = islice(state.queue.of_pool(pool_name), first, last)
    for position, task in enumerate(tasks, first + 1):
        yield QueueRow(
            task=task.spec,
            agent_name=task.submission.agent.name,
            kind=task.submission.agent.kind,
            position=position,
            waiting_s=max(0.0, now - task.queued_at),
            queued_at=task.queued_at,
            arrived_at=task.arrived_at,
            held=task.held,
            not_before=task.not_before,
            preemptions=task.attempts.preemptions,
        )
