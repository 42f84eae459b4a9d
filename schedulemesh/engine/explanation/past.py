"""Explains tasks that have ended: how, why, and what of them is kept."""

from __future__ import annotations

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.sentences import Sentence, Text, say
from schedulemesh.domain.task import EndState
from schedulemesh.engine.explanation.evictions import (
    RUN_LONGER,
    evictor,
    last_eviction,
    last_saved,
    reached,
    score_of,
)
from schedulemesh.engine.messages.explanation import EvictionSummary, Explanation
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.past import EndedTask

#: Why a job has failed that has run, and may have written why.
_RAN = (TaskEndReason.RUN_RAISED, TaskEndReason.OUT_OF_MEMORY)


def explain_past(state: MeshState, task_id: str) -> Explanation | None:
    """The explanation of a task that has ended; None: it is not on record."""
    ended = state.past.ended.get(task_id)
    if ended is None:
        return None
    error, hint = _why(state, ended)
    completed = ended.state is EndState.COMPLETED
    eviction = last_eviction(state, task_id)
    return Explanation(
        task=ended.spec,
        kind=ended.kind,
        state=ended.state.value,
        reason=ended.reason,
        error_text="" if completed else error,
        hint_text="" if completed else hint,
        detail_text=_result(ended) if completed else "",
        agent_name=ended.agent_name,
        since=ended.at,
        preemptions=ended.attempts.preemptions,
        failures=ended.attempts.failures,
        saved_at=None if completed else last_saved(None, eviction),
        eviction=eviction,
    )


def _why(state: MeshState, ended: EndedTask) -> tuple[Text, Text]:
    """Why it was not completed, in one sentence, and the next step."""
    eviction = last_eviction(state, ended.spec.task_id)
    if ended.reason == TaskEndReason.PREEMPTED and eviction is not None:
        return say("not_queued_again", why=_evicted(eviction)), say("resubmit")
    if ended.reason in (TaskEndReason.TIME_LIMIT, TaskEndReason.IDLE_LIMIT):
        return _limited(ended, eviction)
    if ended.reason == TaskEndReason.LOST:
        return _lost(state, ended), say("lease_again" if ended.kind == "lease" else "rebuild")
    error: Text = ended.error
    if not error and ended.reason:
        error = say("code_means", code=ended.reason)
    if ended.kind == "job" and ended.reason in _RAN:
        return error, say("job_log_kept", task=ended.spec.task_id)
    if ended.result_key is not None:
        return error, say("exception_kept", task=ended.spec.task_id)
    return error, ""


def _limited(ended: EndedTask, eviction: EvictionSummary | None) -> tuple[Text, Text]:
    """Which limit in time it has reached and what of it was saved, and the next step."""
    is_idle = ended.reason == TaskEndReason.IDLE_LIMIT
    limit = PreemptionReason.IDLE_LIMIT if is_idle else PreemptionReason.TIME_LIMIT
    why = reached(limit, ended.spec.max_run_s)
    if eviction is not None and eviction.rule == ended.reason:
        why = say("two_parts", first=why, second=_saved_of(eviction))
    if is_idle:
        return why, say("resubmit_for_idle")
    return why, say("resubmit_for_longer", hint=RUN_LONGER)


def _evicted(eviction: EvictionSummary) -> Sentence:
    """By whom a task was evicted, and what of it was saved."""
    by, score, saved = evictor(eviction), score_of(eviction), _saved_of(eviction)
    if by:
        return say("evicted_for", evictor=by, rule=eviction.rule, score=score, saved=saved)
    return say("evicted", rule=eviction.rule, score=score, saved=saved)


def _saved_of(eviction: EvictionSummary) -> Sentence:
    """What of a task was saved when it was evicted."""
    if eviction.save_error:
        return say("state_not_saved", error=eviction.save_error)
    return say("state_stored" if eviction.state_saved else "no_state_stored")


def _lost(state: MeshState, ended: EndedTask) -> Text:
    """What of a task is stored whose agent was lost."""
    lost = state.lost.get(ended.agent_name)
    keys = {} if lost is None else {spec.task_id: key for spec, key in lost.tasks}
    stored = keys.get(ended.spec.task_id) is not None
    saved = say("last_state_stored" if stored else "no_state_stored")
    if ended.kind == "lease":
        return ended.error or say("lease_was_lost", agent=ended.agent_name)
    how = ended.error or say("agent_was_lost", agent=ended.agent_name)
    return say("two_parts", first=how, second=saved)


def _result(ended: EndedTask) -> Sentence:
    """What is kept of a completed task."""
    if ended.kind == "job":
        return say("job_completed", task=ended.spec.task_id)
    if ended.result_key is not None:
        return say("result_kept", task=ended.spec.task_id)
    return say("result_gone" if ended.expired else "was_completed")
