"""Why a task was evicted where it was not for another one."""

from __future__ import annotations

from collections.abc import Mapping

from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.sentences import Sentence, say

_CAUSES: Mapping[str, str] = {
    PreemptionReason.DRAINED: "eviction_for_drain",
    PreemptionReason.WINDOW: "eviction_for_window",
    PreemptionReason.TIME_LIMIT: "eviction_by_limit",
    PreemptionReason.IDLE_LIMIT: "eviction_by_limit",
    PreemptionReason.CALLED_BACK: "eviction_by_callback",
}


def cause_of(reason: str) -> Sentence:
    """Why a task was evicted that no other task evicted, by the reason of its eviction."""
    return say(_CAUSES.get(reason, "eviction_by_request"))
