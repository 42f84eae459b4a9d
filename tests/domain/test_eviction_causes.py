"""Why tasks are evicted that no other task evicts is said in both languages, for each reason."""

from __future__ import annotations

import pytest

from schedulemesh.domain.eviction_causes import cause_of
from schedulemesh.domain.reasons import DRAINS, LIMITS, PreemptionReason
from schedulemesh.domain.sentences import in_words

REQUESTED = in_words(cause_of(PreemptionReason.MANUAL), "en")
#: Reasons of evictions for another task; a manual one has that of an evaluation before it.
FOR_A_TASK = {
    PreemptionReason.LABEL,
    PreemptionReason.SAME_POOL,
    PreemptionReason.CROSS_POOL,
    PreemptionReason.RECLAIM,
    PreemptionReason.ATTAINED_SERVICE,
    PreemptionReason.MORE_LEFT,
    PreemptionReason.DEFRAGMENTED,
    PreemptionReason.STRATEGY,
}


@pytest.mark.parametrize(
    "reason", sorted({*PreemptionReason} - FOR_A_TASK - {PreemptionReason.MANUAL})
)
def test_what_nobody_requested_is_not_said_to_be_requested(reason):
    for language in ("en", "zh"):
        cause = in_words(cause_of(reason.value), language)
        assert cause
        assert cause != in_words(cause_of("manual"), language)
    assert reason in DRAINS | LIMITS | {PreemptionReason.CALLED_BACK}


@pytest.mark.parametrize("reason", sorted(FOR_A_TASK | {PreemptionReason.MANUAL}))
def test_a_manual_eviction_was_requested(reason):
    assert in_words(cause_of(reason), "en") == REQUESTED
