"""The dry run of a submission: whether it would start now, and for which victims, or why not."""

from __future__ import annotations

import msgspec

from schedulemesh.engine.admission.decide import prioritised, submit
from schedulemesh.engine.admission.dependencies import awaited_ends
from schedulemesh.engine.admission.queue import submission_to_queue
from schedulemesh.engine.explanation.dependencies import dependency_finding
from schedulemesh.engine.explanation.estimate import start_if_queued
from schedulemesh.engine.messages.outcomes import Refused, RequestOutcome
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.queue_joining import as_joined, position_if_joined
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.transaction import Transaction


def outcome_of_dry_run(tx: Transaction, stimulus: TaskSubmitted) -> RequestOutcome:
    """What a submission would do. Refused: it would be, or it would wait in the queue for this reason; with
    the time at which it could start at the earliest if it waited. Changes nothing.
    """
    stimulus = prioritised(tx, stimulus)
    outcome = _if_queued(tx, stimulus) if stimulus.queue else _at_once(tx, stimulus)
    if isinstance(outcome, Refused):
        return msgspec.structs.replace(outcome, earliest_start=start_if_queued(tx, stimulus))
    return outcome


def _if_queued(tx: Transaction, stimulus: TaskSubmitted) -> RequestOutcome:
    """What a submission would do that may wait, as ``admission.queue.join`` decides it."""
    waiting = submission_to_queue(tx, stimulus)
    if isinstance(waiting, Refused):
        return waiting
    if waiting.task is None:
        raise TypeError("only a task can wait in the queue")
    queue = tx.state.queue
    waits_for = awaited_ends(tx.state, waiting.task)
    task = as_joined(queue, waiting, waiting.task, tx.now, waits_for)
    outcome = _dependency(tx, task) if task.depends else _at_once(tx, waiting)
    if isinstance(outcome, Refused):
        return msgspec.structs.replace(outcome, position=position_if_joined(queue, task))
    return outcome


def _dependency(tx: Transaction, task: QueuedTask) -> Refused:
    """That a task would wait for others to end."""
    finding = dependency_finding(tx, task)
    return Refused(
        reason=finding.reason, error_text=finding.error_text, hint_text=finding.hint_text
    )


def _at_once(tx: Transaction, stimulus: TaskSubmitted) -> RequestOutcome:
    """What a submission would do that does not wait."""
    return submit(tx, stimulus, has_priority=True)
