"""The commands states, save and restore: the stored states of tasks."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import typer

from schedulemesh.cli.command import Output, Target, Tasks, command
from schedulemesh.domain.reasons import Reason

if TYPE_CHECKING:
    from schedulemesh.api.states import RestoreTask, SaveTaskState
    from schedulemesh.cli.gateway import Gateway
    from schedulemesh.domain.sentences import Sentence
    from schedulemesh.protocol.answers import Response, SavedBytes

app = typer.Typer()


@command(app)
def save(target: Target, output: Output, tasks: Tasks) -> int:
    """Save the states of running tasks, which go on."""
    from schedulemesh.api.states import SaveTaskState
    from schedulemesh.cli.changes import change_each
    from schedulemesh.domain.sentences import say
    from schedulemesh.protocol.answers import SavedBytes

    names: list[str] = []

    def request(task_id: str) -> SaveTaskState:
        names.append(task_id)
        return SaveTaskState(task_id=task_id)

    def saved(answer: SavedBytes) -> Sentence:
        if answer.state is None:
            raise _refused(Reason.TASK_NOT_FOUND, say("nothing_to_save", task=names[-1]))
        return say("result_state_saved", size=len(answer.state))

    return change_each(target, output, tasks, request, SavedBytes, saved)


@command(app)
def restore(target: Target, output: Output, tasks: Tasks) -> int:
    """Start evicted or lost tasks again, each from the state that was saved of it last."""
    from schedulemesh.cli.changes import change_each
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.protocol.answers import Response

    with gateway_to(target) as gateway:
        return change_each(
            target, output, tasks, lambda task_id: _restoring(gateway, task_id), Response, _restored
        )


def _restoring(gateway: Gateway, task_id: str) -> RestoreTask:
    """The request that restores a task. Raises RefusedError where no state of it is stored."""
    from schedulemesh.api.states import GetSavedState, RestoreTask
    from schedulemesh.api.values import client_name
    from schedulemesh.domain.saved_state import SavedState
    from schedulemesh.domain.sentences import say
    from schedulemesh.protocol.agents import unpack
    from schedulemesh.protocol.answers import SavedBytes

    stored = gateway.ask(GetSavedState(task_id=task_id), SavedBytes).state
    if stored is None:
        raise _refused(Reason.STATE_NOT_FOUND, say("no_saved_state", task=task_id))
    return RestoreTask(
        saved=unpack(stored, SavedState), client=client_name(), request_id=uuid.uuid4().hex
    )


def _restored(answer: Response) -> Sentence:
    from schedulemesh.domain.sentences import say
    from schedulemesh.engine.messages.outcomes import Done, Queued

    if isinstance(answer.outcome, Done):
        return say("result_restorer")
    queued = isinstance(answer.outcome, Queued)
    return say("result_queued_again" if queued else "result_runs_again")


def _refused(reason: Reason, error: Sentence) -> Exception:
    from schedulemesh.cli.exits import RefusedError
    from schedulemesh.engine.messages.outcomes import Refused

    return RefusedError(Refused(reason=reason, error_text=error))
