"""The results of evictions, with the saved states, which are loaded in the caller's process."""

from __future__ import annotations

import msgspec

from schedulemesh.client.pickling import Load
from schedulemesh.client.results import EvictedTask, PreemptionResult
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.saved_state import SavedState, public_state
from schedulemesh.domain.user_data import UserValue
from schedulemesh.engine.messages.outcomes import Evicted, Refused, RequestOutcome
from schedulemesh.protocol.answers import EvictedState


def preempted(outcome: RequestOutcome, saved: bytes | None, load: Load) -> PreemptionResult:
    """The answer of ``execute_preemption``."""
    if isinstance(outcome, Refused):
        return {
            "success": False,
            "error": outcome.error,
            "reason": outcome.reason.value,
            "saved_state": None,
            "cancel_success": False,
        }
    if not isinstance(outcome, Evicted):
        raise TypeError(f"a preemption cannot end in {outcome!r}")
    answer: PreemptionResult = {
        "success": True,
        "task_id": outcome.task_id,
        "agent_name": outcome.agent_name,
        "saved_state": None if saved is None else saved_state(saved, load),
        "cancel_success": outcome.cancel_success,
        "state_saved": outcome.state_saved,
        "reason": outcome.reason.value,
    }
    if outcome.save_error:
        answer["save_error"] = outcome.save_error
    if outcome.error:
        answer["error"] = outcome.error
    if not outcome.runs_on:
        return answer
    saved_or_not = "was saved" if outcome.state_saved else "was not saved"
    message = (
        f"task {outcome.task_id!r} was not cancelled and runs on: {outcome.error or 'cancel() failed'}; its "
        f"state {saved_or_not}. preempt_task ends it with its agent"
    )
    return {**answer, "success": False, "reason": Reason.NOT_CANCELLED.value, "error": message}


def evicted_task(evicted: EvictedState, load: Load) -> EvictedTask:
    """A manually evicted task with its saved state."""
    answer: EvictedTask = {
        "task_id": evicted.task_id,
        "reason": evicted.reason.value,
        "saved_state": saved_state(evicted.saved, load),
        "state_saved": evicted.state_saved,
    }
    if evicted.save_error:
        answer["save_error"] = evicted.save_error
    return answer


def saved_state(saved: bytes, load: Load) -> dict[str, UserValue]:
    """A stored state as its dict."""
    return public_state(msgspec.msgpack.decode(saved, type=SavedState), load)
