"""What commands print of a refusal."""

from __future__ import annotations

from schedulemesh.cli.exits import RefusedError
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Refused


def test_a_refusal_is_its_error_and_what_can_be_done():
    refused = Refused(
        reason=Reason.DUPLICATE_TASK, error_text="it exists", hint_text="take another id"
    )
    assert str(RefusedError(refused)) == "it exists. Take another id"


def test_what_became_of_the_victims_of_a_start_that_failed_is_said():
    refused = Refused(
        reason=Reason.CLUSTER_OUT_OF_RESOURCES,
        error_text="its room was taken",
        restarted=("a",),
        requeued=("b", "c"),
        not_restarted=("d",),
    )
    assert str(RefusedError(refused)) == (
        "its room was taken. Evicted for it: a (running again); b, c (waiting in the queue); d (ended)"
    )
