"""Ends tasks: completed by their callers, run to their end by themselves, or cancelled."""

from __future__ import annotations

from collections.abc import Sequence

from schedulemesh.domain.end_reasons import EndReason, TaskEndReason
from schedulemesh.domain.payloads import JobPayload, LeasePayload
from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import EndState
from schedulemesh.engine.admission.arrays import SelectedMembers, cancel_remaining, selected
from schedulemesh.engine.admission.queue import cancel_queued
from schedulemesh.engine.admission.requeue import may_retry
from schedulemesh.engine.lifecycle.agents import current, end_agent
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import TaskEnded
from schedulemesh.engine.messages.outcomes import (
    Done,
    Evicted,
    Pending,
    Refused,
    RequestOutcome,
    TasksCancelled,
)
from schedulemesh.engine.preemption.savable import returns_when_evicted
from schedulemesh.engine.state.agents import Agent, Ending
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.engine.transaction import Transaction

#: Tasks that a sentence names.
_TOLD = 5


def finish_task(tx: Transaction, stimulus: s.TaskFinished) -> RequestOutcome:
    """The task is done; its agent ends with it if asked, and that of a job or a lease in any case."""
    state = tx.state
    task = state.running.by_id.get(stimulus.task_id)
    if task is None:
        return _nothing_to_finish(state, stimulus.task_id)
    agent = state.agents.get(task.agent_name)
    if isinstance(task.phase, Preempting):
        return Refused(
            reason=Reason.ALREADY_BEING_PREEMPTED,
            error_text=say("is_preempted", task=stimulus.task_id),
        )
    tx.emit(TaskEnded(task_id=stimulus.task_id, at=tx.now))
    if agent is not None and isinstance(agent.phase, Ending):
        # A repetition must not be told that there is no such task.
        tx.answer(stimulus.request_id, Done())
        return Pending(agent_name=task.agent_name)
    if agent is None or not (stimulus.end_agent or _serves_one_task(agent)):
        return Done()
    if others := state.running.on_agent(task.agent_name):
        return _kept(task.agent_name, others)
    return end_agent(tx, agent, EndReason.COMPLETED, request_id=stimulus.request_id)


def _serves_one_task(agent: Agent) -> bool:
    """Whether an agent is of no use without its task: the runner of a job, or what a lease holds."""
    return isinstance(agent.spec.payload, (JobPayload, LeasePayload))


def _nothing_to_finish(state: MeshState, task_id: str) -> Refused:
    """The refusal to complete a task that does not run."""
    if task_id in state.queue.by_id:
        return Refused(
            reason=Reason.TASK_NOT_RUNNING,
            error_text=say("only_waits", task=task_id),
            hint_text=say("only_waits_hint", task=task_id),
        )
    return Refused(
        reason=Reason.TASK_NOT_FOUND,
        error_text=say("does_not_run", task=task_id),
    )


def run_ended(tx: Transaction, stimulus: s.RunEnded) -> None:
    """A task that runs by itself has ended, and its agent ends with it; one that failed and has retries left
    joins the queue again when the agent has ended. Late reports are dropped.

    A task that is being evicted ends, too, and one whose agent is being ended, unless it was cancelled for
    that: then what it returned early is not its result. One that fails while it is being evicted, and would
    be tried again, waits again as one that was evicted.
    """
    state = tx.state
    task = state.running.by_id.get(stimulus.task_id)
    agent = current(state, stimulus.agent_name, stimulus.incarnation)
    if task is None or agent is None or task.agent_name != stimulus.agent_name:
        return
    if stimulus.cancelled and (
        isinstance(task.phase, Preempting) or isinstance(agent.phase, Ending)
    ):
        return
    if isinstance(task.phase, Preempting):
        if task.reached_limit and stimulus.reason is not None:
            return  # it failed because it is being ended
        if _waits_again(tx, stimulus, task, agent):
            return
        _answer_eviction(tx, task, task.phase, "ended by itself")
    elif _is_retried(tx, stimulus, task, agent):
        return
    tx.emit(
        TaskEnded(
            task_id=stimulus.task_id,
            at=tx.now,
            state=EndState.COMPLETED if stimulus.reason is None else EndState.FAILED,
            reason=stimulus.reason,
            error=stimulus.error,
            result_key=stimulus.result_key,
        )
    )
    if not isinstance(agent.phase, Ending) and not state.running.on_agent(agent.spec.name):
        end_agent(tx, agent, EndReason.COMPLETED)


def _is_retried(tx: Transaction, stimulus: s.RunEnded, task: RunningTask, agent: Agent) -> bool:
    """Whether the task is started again because this run has failed, which may be reported repeatedly. An
    agent that is being terminated for another reason is not started again.
    """
    if isinstance(agent.phase, Ending):
        return agent.phase.reason is EndReason.RUN_FAILED
    if stimulus.reason is not TaskEndReason.RUN_RAISED or not may_retry(tx.state, task, agent):
        return False
    end_agent(tx, agent, EndReason.RUN_FAILED)
    return True


def _waits_again(tx: Transaction, stimulus: s.RunEnded, task: RunningTask, agent: Agent) -> bool:
    """Whether the eviction of a task whose run has failed goes on, because the task then runs again."""
    if stimulus.reason is not TaskEndReason.RUN_RAISED or not may_retry(tx.state, task, agent):
        return False
    return returns_when_evicted(tx.state, task, agent)


def _answer_eviction(tx: Transaction, task: RunningTask, preempting: Preempting, how: str) -> None:
    """Answer the request that is evicting a task, which has ended otherwise meanwhile; ``how``: in words."""
    ended = Evicted(
        task_id=task.spec.task_id,
        agent_name=task.agent_name,
        reason=preempting.reason,
        state_key=task.state_key,
        state_saved=task.saved_at is not None,
        save_error=preempting.save_error,
        error=f"the task {how} before it was preempted",
    )
    tx.answer(preempting.request_id, ended)


def cancel_task(tx: Transaction, stimulus: s.TaskCancellationRequested) -> RequestOutcome:
    """End a task without a result, and its agent unless that has other tasks. One that is being preempted
    does not return; what it frees still is for whom it was evicted.
    """
    state, task_id = tx.state, stimulus.task_id
    selection = selected(state, task_id)
    if isinstance(selection, Refused):
        return selection
    if selection is not None:
        return _cancel_members(tx, stimulus, selection)
    task = state.running.by_id.get(task_id)
    if task_id in state.queue.by_id:
        return cancel_queued(tx, task_id, stimulus.error)
    if task is None and task_id in state.ended:
        return Done(change=Change.ALREADY_ENDED)
    if task is None:
        return Refused(reason=Reason.TASK_NOT_FOUND, error_text=say("no_task", task=task_id))
    agent = state.agents.get(task.agent_name)
    if isinstance(task.phase, Preempting):
        _answer_eviction(tx, task, task.phase, "was cancelled")
    tx.emit(
        TaskEnded(
            task_id=task_id,
            at=tx.now,
            state=EndState.CANCELLED,
            reason=stimulus.reason,
            error=stimulus.error,
        )
    )
    if agent is None:
        return Done()
    outcome: RequestOutcome = Pending(agent_name=task.agent_name)
    if not isinstance(agent.phase, Ending):
        if others := state.running.on_agent(task.agent_name):
            return _kept(task.agent_name, others)
        outcome = end_agent(tx, agent, EndReason.DELETED)
    if isinstance(outcome, Pending):
        # A repetition must not cancel another task that has the id by then.
        tx.answer(stimulus.request_id, Done())
    return outcome


def _cancel_members(
    tx: Transaction, stimulus: s.TaskCancellationRequested, selection: SelectedMembers
) -> RequestOutcome:
    """Cancel members of an array; with all of them the array ends."""
    ending = []
    members = (*selection.waiting(), *selection.running())
    anything = cancel_remaining(tx, selection, Reason.CANCELLED, stimulus.error)
    for task_id in members:
        one = s.TaskCancellationRequested(
            task_id=task_id, reason=stimulus.reason, error=stimulus.error
        )
        outcome = cancel_task(tx, one)
        if isinstance(outcome, Pending):
            ending.append(outcome.agent_name)
    if not members and not anything:
        return Done(change=Change.ALREADY_ENDED)
    return TasksCancelled(ending=tuple(ending))


def cancel_tasks(tx: Transaction, stimulus: s.TasksCancellationRequested) -> RequestOutcome:
    """Cancel several tasks; what cannot be cancelled does not concern the others."""
    refused: dict[str, Refused] = {}
    ending: list[str] = []
    already_ended: list[str] = []
    for task_id in stimulus.task_ids:
        outcome = cancel_task(tx, s.TaskCancellationRequested(task_id=task_id))
        if isinstance(outcome, Refused):
            refused[task_id] = outcome
        elif isinstance(outcome, Pending):
            ending.append(outcome.agent_name)
        elif isinstance(outcome, TasksCancelled):
            ending += outcome.ending
        elif isinstance(outcome, Done) and outcome.change is Change.ALREADY_ENDED:
            already_ended.append(task_id)
    return TasksCancelled(refused=refused, already_ended=tuple(already_ended), ending=tuple(ending))


def _kept(agent_name: str, others: Sequence[str]) -> Done:
    """The outcome where the agent stays for its other tasks."""
    shown = [*map(repr, others[:_TOLD])]
    warning = say("agent_kept", agent=agent_name, count=len(others), tasks=shown)
    return Done(change=Change.AGENT_KEPT, warning_texts=(warning,))
