"""The last eviction of a task: by whom, by which rule, what was saved, what became of what was freed."""

from __future__ import annotations

from schedulemesh.domain.numbers import span_text
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.engine.messages.explanation import EvictionSummary
from schedulemesh.engine.state.mesh_state import MeshState

#: What helps a task that needs more time than it may run.
RUN_LONGER = (
    "with on_time_limit='requeue' it starts again by itself from its saved state; an operator can let a "
    "running task run longer with set_time_limit"
)


def last_eviction(state: MeshState, task_id: str) -> EvictionSummary | None:
    """The last eviction of a task, or the one in progress; None: none is on record."""
    record = state.evictions.of_task(task_id)
    if record is None:
        return None
    by = record.evictor
    by_task = None if by is None else by.task
    return EvictionSummary(
        at=record.decided_at,
        rule=record.reason.value,
        score=record.preempt_score,
        agent_name=record.agent_name,
        by_task="" if by_task is None else by_task.task_id,
        by_agent="" if by is None else by.agent_name,
        by_pool="" if by is None else by.pool_name,
        by_owner="" if by_task is None else by_task.owner,
        by_client=record.client,
        state_saved=record.state_saved,
        saved_at=record.saved_at,
        save_error=record.save_error,
        lost_s=record.lost_s,
        freed_at=record.freed_at,
        used=record.used,
        ran_again_at=record.ran_again_at,
        idle_since=record.idle_since,
    )


def reached(limit: PreemptionReason | None, max_run_s: float | None) -> str:
    """Which limit in time a task has reached, as a sentence."""
    if limit is PreemptionReason.IDLE_LIMIT:
        return "its GPUs were idle for longer than its idle_s allows, though it was warned"
    if max_run_s is None:
        return "it had run for as long as its max_run_s allows"
    return f"it had run for {span_text(max_run_s)}, as long as its max_run_s allows"


def evictor(eviction: EvictionSummary) -> str:
    """Who evicted a task, for a sentence; empty: it was requested, or is not recorded."""
    if not eviction.by_agent:
        return ""
    who = f"task {eviction.by_task!r}" if eviction.by_task else f"agent {eviction.by_agent!r}"
    owner = f" of {eviction.by_owner}" if eviction.by_owner else ""
    return f"{who}{owner} in pool {eviction.by_pool!r}"
