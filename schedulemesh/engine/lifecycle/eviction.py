"""Manual evictions, the saved states of evicted tasks, and the counts of preemptions."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.payloads import JobPayload, LeasePayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import Text, say
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.admission.admit import evict_instruction
from schedulemesh.engine.admission.preempted import task_preempted
from schedulemesh.engine.admission.refusals import pool_not_found
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import (
    AgentEnding,
    EvictionFailed,
    EvictionStarted,
    SavingFailed,
    StateSaved,
    WorkSaved,
)
from schedulemesh.engine.messages.instructions import EvictTask
from schedulemesh.engine.messages.outcomes import (
    Evicted,
    Pending,
    Refused,
    RequestOutcome,
)
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.engine.transaction import Transaction


def preempt(tx: Transaction, stimulus: s.PreemptionRequested) -> RequestOutcome:
    """Evict manually: a task alone, or its agent with all tasks."""
    state = tx.state
    agent_name = stimulus.agent_name
    if stimulus.task_id is not None:
        task = state.running.by_id.get(stimulus.task_id)
        named = state.agents.get(stimulus.task_id) if stimulus.end_agent else None
        if task is None and agent_name is None and named is not None:
            return preempt(tx, _of_agent(stimulus, named))
        if task is None or (agent_name is not None and task.agent_name != agent_name):
            return _not_running(state, stimulus)
        agent_name = task.agent_name
        if task.phase is not TaskPhase.RUNNING:
            return Refused(
                reason=Reason.ALREADY_BEING_PREEMPTED,
                error_text=say(
                    "only_running_preempted", task=stimulus.task_id, state=task.phase.value
                ),
            )
    agent = state.agents.get(agent_name or "")
    if stimulus.for_pool is not None and stimulus.for_pool not in state.ledger.accounts:
        return pool_not_found(state, stimulus.for_pool)
    if stimulus.task_id is not None and (agent is None or not stimulus.end_agent):
        return _evict_task(tx, stimulus, stimulus.task_id, agent_name or "")
    if agent is None:
        return Refused(
            reason=Reason.AGENT_NOT_FOUND, error_text=say("no_agent", agent=agent_name or "")
        )
    if not isinstance(agent.phase, Running):
        return Refused(
            reason=Reason.AGENT_NOT_RUNNING,
            error_text=say("agent_does_not_run", agent=agent_name or "", state=agent.phase.value),
        )
    return _evict_agent(tx, stimulus, agent)


def _not_running(state: MeshState, stimulus: s.PreemptionRequested) -> Refused:
    """The refusal of a name that no running task has, nor an agent where one was meant."""
    further: Text = ""
    if stimulus.task_id in state.queue.by_id:
        waits = say("only_waits", task=stimulus.task_id)
        return Refused(reason=Reason.TASK_NOT_RUNNING, error_text=waits)
    if stimulus.agent_name is not None:
        further = say("on_agent", agent=stimulus.agent_name)
    elif stimulus.end_agent:
        further = say("nor_agent")
    error = say("no_task_runs", task=stimulus.task_id or "", further=further)
    return Refused(reason=Reason.TASK_NOT_FOUND, error_text=error)


def _of_agent(stimulus: s.PreemptionRequested, agent: Agent) -> s.PreemptionRequested:
    """The name that was given is an agent's."""
    return msgspec.structs.replace(stimulus, task_id=None, agent_name=agent.spec.name)


def _evict_task(
    tx: Transaction, stimulus: s.PreemptionRequested, task_id: str, agent_name: str
) -> RequestOutcome:
    tx.emit(
        EvictionStarted(
            task_id=task_id,
            at=tx.now,
            reason=stimulus.reason,
            preempt_score=stimulus.preempt_score,
            request_id=stimulus.request_id,
            client=stimulus.client or "",
        )
    )
    tx.instruct(EvictTask(task_id=task_id))
    return Pending(agent_name=agent_name)


def _evict_agent(tx: Transaction, stimulus: s.PreemptionRequested, agent: Agent) -> RequestOutcome:
    name = agent.spec.name
    for task_id in tx.state.running.on_agent(name):
        if tx.state.running.by_id[task_id].phase is TaskPhase.RUNNING:
            tx.emit(
                EvictionStarted(
                    task_id=task_id,
                    at=tx.now,
                    reason=stimulus.reason,
                    preempt_score=(stimulus.preempt_score if task_id == stimulus.task_id else None),
                    client=stimulus.client or "",
                )
            )
    tx.emit(
        AgentEnding(
            agent_name=name,
            reason=EndReason.PREEMPTED,
            at=tx.now,
            hold_for=stimulus.for_pool,
            hold_for_client=stimulus.client if stimulus.for_pool is None else None,
            request_id=stimulus.request_id,
        )
    )
    tx.instruct(evict_instruction(tx.state, name))
    return Pending(agent_name=name)


def attempt_of(state: MeshState, task_id: str) -> s.TaskAttempt | None:
    """The attempt of a task that runs; None: none does."""
    task = state.running.by_id.get(task_id)
    if task is None:
        return None
    agent = state.agents.get(task.agent_name)
    return s.TaskAttempt(
        agent_name=task.agent_name,
        incarnation=None if agent is None else agent.incarnation,
        started_at=task.started_at,
    )


def task_in(state: MeshState, task_id: str, attempt: s.TaskAttempt | None) -> RunningTask | None:
    """The task while this attempt of it runs; None: it has ended, whether or not another one runs. An agent
    that became known, or ended, during the attempt is no other agent.
    """
    present = attempt_of(state, task_id)
    if present is None or attempt is None:
        return state.running.by_id.get(task_id)
    if None in (present.incarnation, attempt.incarnation):
        present = msgspec.structs.replace(present, incarnation=attempt.incarnation)
    return state.running.by_id[task_id] if present == attempt else None


def state_stored(tx: Transaction, stimulus: s.StateStored) -> None:
    """A task's state is kept; an attempt that ended meanwhile needs none. What cannot be restored never
    replaces a state that is kept already, nor does a state a newer one.
    """
    task = task_in(tx.state, stimulus.task_id, stimulus.attempt)
    if task is None or (task.state_key is not None and not stimulus.restorable):
        return
    saved_at = stimulus.saved_at
    newest_at = task.saved_at if stimulus.restorable else None
    if saved_at is not None and newest_at is not None and saved_at < newest_at:
        if not saves_by_itself(tx.state.agents.get(task.agent_name)):
            return
        saved_at = newest_at  # what it wrote later is not lost either
    tx.emit(
        StateSaved(
            task_id=stimulus.task_id,
            state_key=stimulus.state_key,
            at=tx.now,
            saved_at=saved_at,
            restorable=stimulus.restorable,
        )
    )


def saves_by_itself(agent: Agent | None) -> bool:
    """Whether ``saved_at`` of its tasks may be the time of what they wrote by themselves, and not of a state:
    it is a job or a lease.
    """
    return agent is not None and isinstance(agent.spec.payload, (JobPayload, LeasePayload))


def work_reported(tx: Transaction, stimulus: s.WorkReported) -> None:
    """The work of a job or a lease until then is not lost; what is known already, or was saved before its
    attempt began, changes nothing.
    """
    task = tx.state.running.by_id.get(stimulus.task_id)
    if task is None or task.agent_name != stimulus.agent_name:
        return
    saved_at = min(stimulus.saved_at, tx.now)
    if task.phase is not TaskPhase.STARTING and saved_at > (task.saved_at or task.started_at):
        tx.emit(WorkSaved(task_id=stimulus.task_id, saved_at=saved_at, at=tx.now))


def state_not_saved(tx: Transaction, stimulus: s.StateNotSaved) -> None:
    """The present state of a task that is being preempted could not be saved; the answer will say so."""
    task = task_in(tx.state, stimulus.task_id, stimulus.attempt)
    if task is not None and isinstance(task.phase, Preempting):
        tx.emit(SavingFailed(task_id=stimulus.task_id, at=tx.now, error=stimulus.error))


def task_cancelled(tx: Transaction, stimulus: s.CancelAnswered) -> RequestOutcome | None:
    """Remove a task that was evicted without its agent, or let it run on where it could not be cancelled."""
    state = tx.state
    task = task_in(state, stimulus.task_id, stimulus.attempt)
    if task is None or not isinstance(task.phase, Preempting):
        return None
    preempting = task.phase
    agent = state.agents.get(task.agent_name)
    # A limit ends a task also where it cannot be cancelled.
    may_stay = stimulus.runs_on and not task.reached_limit
    runs_on = may_stay and agent is not None and isinstance(agent.phase, Running)
    evicted = Evicted(
        task_id=stimulus.task_id,
        agent_name=task.agent_name,
        reason=preempting.reason,
        state_key=task.state_key,
        state_saved=task.saved_at is not None,
        cancel_success=stimulus.cancel_success,
        runs_on=runs_on,
        save_error=preempting.save_error,
        error=stimulus.error,
    )
    if runs_on:
        tx.emit(EvictionFailed(task_id=stimulus.task_id, at=tx.now))
    else:
        counted = stimulus.cancel_success or task.reached_limit
        tx.emit(task_preempted(tx, task, agent, preempting, counted=counted))
    return tx.answer(preempting.request_id, evicted)
