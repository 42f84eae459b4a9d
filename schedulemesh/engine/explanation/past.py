"""Explains tasks that have ended: how, why, and what of them is kept."""

from __future__ import annotations

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.domain.task import EndState
from schedulemesh.engine.explanation.evictions import (
    RUN_LONGER,
    evictor,
    last_eviction,
    reached,
)
from schedulemesh.engine.messages.explanation import EvictionSummary, Explanation
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.past import EndedTask

_RESUBMIT = (
    "submit it again under the same id, or restore it with restore_task; with on_preempted='requeue' it "
    "joins the queue again by itself"
)
_REBUILD = "ensure_agent_health rebuilds lost agents where possible; restore_task restores one task"
#: What each code says, as the rest of a sentence.
_MEANINGS = {code.value: code.meaning.rstrip(".") for code in (*Reason, *TaskEndReason)}


def explain_past(state: MeshState, task_id: str) -> Explanation | None:
    """The explanation of a task that has ended; None: it is not on record."""
    ended = state.past.ended.get(task_id)
    if ended is None:
        return None
    error, hint = _why(state, ended)
    completed = ended.state is EndState.COMPLETED
    return Explanation(
        task=ended.spec,
        kind=ended.kind,
        state=ended.state.value,
        reason=ended.reason,
        error="" if completed else error,
        hint="" if completed else hint,
        detail=_result(ended) if completed else "",
        agent_name=ended.agent_name,
        since=ended.at,
        preemptions=ended.attempts.preemptions,
        failures=ended.attempts.failures,
        eviction=last_eviction(state, task_id),
    )


def _why(state: MeshState, ended: EndedTask) -> tuple[str, str]:
    """Why it was not completed, in one sentence, and the next step."""
    eviction = last_eviction(state, ended.spec.task_id)
    if ended.reason == TaskEndReason.PREEMPTED and eviction is not None:
        return _evicted(eviction) + "; it does not wait in the queue", _RESUBMIT
    if ended.reason in (TaskEndReason.TIME_LIMIT, TaskEndReason.IDLE_LIMIT):
        return _limited(ended, eviction)
    if ended.reason == TaskEndReason.LOST:
        again = "request another one with lease()" if ended.kind == "lease" else _REBUILD
        return _lost(state, ended), again
    error = ended.error or _MEANINGS.get(ended.reason, "")
    if ended.result_key is not None:
        return (
            error,
            f"result({ended.spec.task_id!r}) raises its exception; max_retries runs it again",
        )
    return error, ""


def _limited(ended: EndedTask, eviction: EvictionSummary | None) -> tuple[str, str]:
    """Which limit in time it has reached and what of it was saved, and the next step."""
    is_idle = ended.reason == TaskEndReason.IDLE_LIMIT
    limit = PreemptionReason.IDLE_LIMIT if is_idle else PreemptionReason.TIME_LIMIT
    why = reached(limit, ended.spec.max_run_s)
    if eviction is not None and eviction.rule == ended.reason:
        why += f"; {_saved_of(eviction)}"
    if is_idle:
        return why, "submit it again with another idle_s if its GPUs may be idle for longer"
    return why, f"submit it again with another max_run_s; {RUN_LONGER}"


def _evicted(eviction: EvictionSummary) -> str:
    """By whom a task was evicted, and what of it was saved."""
    by = evictor(eviction)
    score = "" if eviction.score is None else f", score {eviction.score:.4g}"
    how = f" for {by}" if by else ""
    return f"it was evicted{how} ({eviction.rule}{score}); {_saved_of(eviction)}"


def _saved_of(eviction: EvictionSummary) -> str:
    """What of a task was saved when it was evicted."""
    if eviction.save_error:
        return f"its state was not saved: {eviction.save_error}"
    return "its state is stored" if eviction.state_saved else "no state of it is stored"


def _lost(state: MeshState, ended: EndedTask) -> str:
    """What of a task is stored whose agent was lost."""
    lost = state.lost.get(ended.agent_name)
    keys = {} if lost is None else {spec.task_id: key for spec, key in lost.tasks}
    stored = keys.get(ended.spec.task_id) is not None
    saved = "its last saved state is stored" if stored else "no state of it is stored"
    if ended.kind == "lease":
        return ended.error or f"lease {ended.agent_name!r} was lost"
    return f"{ended.error or f'its agent {ended.agent_name!r} was lost'}; {saved}"


def _result(ended: EndedTask) -> str:
    """What is kept of a completed task."""
    if ended.result_key is not None:
        return f"it was completed; result({ended.spec.task_id!r}) returns what it returned"
    return "it was completed" + ("; its result is no longer kept" if ended.expired else "")
