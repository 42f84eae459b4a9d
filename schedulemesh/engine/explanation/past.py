"""Explains tasks that have no agent and do not wait: evicted ones, and those lost with their agents."""

from __future__ import annotations

from schedulemesh.domain.reasons import EndReason
from schedulemesh.engine.explanation.evictions import evictor, last_eviction
from schedulemesh.engine.messages.explanation import Eviction, Explanation
from schedulemesh.engine.state.mesh_state import MeshState

_RESUBMIT = (
    "submit it again under the same id, or restore it with restore_task; with on_preempted='requeue' it "
    "joins the queue again by itself"
)


def explain_past(state: MeshState, task_id: str) -> Explanation | None:
    """The explanation of a task that has ended; None: it is not on record."""
    return _lost(state, task_id) or _evicted(state, task_id)


def _evicted(state: MeshState, task_id: str) -> Explanation | None:
    past = state.preempted.get(task_id)
    eviction = last_eviction(state, task_id)
    if past is None or past.ran_again or eviction is None:
        return None
    return Explanation(
        task=past.fact.task,
        state="cancelled",
        reason=EndReason.PREEMPTED.value,
        error=evicted_sentence(eviction) + "; it does not wait in the queue",
        hint=_RESUBMIT,
        agent_name=past.fact.agent_name,
        since=past.fact.at,
        eviction=eviction,
    )


def evicted_sentence(eviction: Eviction) -> str:
    """By whom a task was evicted, and what of it was saved."""
    by = evictor(eviction)
    score = "" if eviction.score is None else f", score {eviction.score:.4g}"
    how = f" for {by}" if by else ""
    if eviction.save_error:
        saved = f"its state was not saved: {eviction.save_error}"
    else:
        saved = "its state is stored" if eviction.state_saved else "no state of it is stored"
    return f"it was evicted{how} ({eviction.rule}{score}); {saved}"


def _lost(state: MeshState, task_id: str) -> Explanation | None:
    for lost in state.lost.values():
        for spec, state_key in lost.tasks:
            if spec.task_id == task_id:
                saved = (
                    "its last saved state is stored" if state_key else "no state of it is stored"
                )
                return Explanation(
                    task=spec,
                    state="lost",
                    reason=EndReason.LOST.value,
                    error=f"the process of its agent {lost.spec.name!r} died, or its node was lost; {saved}",
                    hint="ensure_agent_health rebuilds lost agents where possible; restore_task restores "
                    "one task",
                    agent_name=lost.spec.name,
                    since=lost.at,
                    eviction=last_eviction(state, task_id),
                )
    return None
