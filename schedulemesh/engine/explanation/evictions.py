"""The last eviction of a task: by whom, by which rule, what was saved, what became of what was freed."""

from __future__ import annotations

from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.sentences import Sentence, Text, say
from schedulemesh.engine.messages.explanation import EvictionSummary
from schedulemesh.engine.state.mesh_state import MeshState

#: What helps a task that needs more time than it may run.
RUN_LONGER = say("run_longer")


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


def last_saved(saved_at: float | None, eviction: EvictionSummary | None) -> float | None:
    """When the state of a task was last saved: ``saved_at`` in its present attempt, else in the one that was
    evicted last; None: it was not, or that is not on record.
    """
    if saved_at is None and eviction is not None:
        return eviction.saved_at
    return saved_at


def reached(limit: PreemptionReason | None, max_run_s: float | None) -> Sentence:
    """Which limit in time a task has reached."""
    if limit is PreemptionReason.IDLE_LIMIT:
        return say("was_idle")
    return say("had_run") if max_run_s is None else say("had_run_for", limit=max_run_s)


def evictor(eviction: EvictionSummary) -> Text:
    """Who evicted a task, for a sentence; empty: it was requested, or is not recorded."""
    if not eviction.by_agent:
        return ""
    owner = say("of_owner", owner=eviction.by_owner) if eviction.by_owner else ""
    if eviction.by_task:
        return say("evictor_task", task=eviction.by_task, owner=owner, pool=eviction.by_pool)
    return say("evictor_agent", agent=eviction.by_agent, owner=owner, pool=eviction.by_pool)


def score_of(eviction: EvictionSummary) -> Text:
    """The score that it was evicted with, for a sentence; empty: it had none."""
    return "" if eviction.score is None else say("score", score=eviction.score)
