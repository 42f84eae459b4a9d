"""Evictions: by hand, their saved states, and how they are counted."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.agent import AgentPhase
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.admission.admit import PREEMPTED, evict_instruction
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import (
    AgentEnding,
    EvictionFailed,
    EvictionStarted,
    SavingFailed,
    StateSaved,
    TaskPreempted,
)
from schedulemesh.engine.messages.instructions import EvictTask
from schedulemesh.engine.messages.outcomes import (
    Evicted,
    Pending,
    Refused,
    RequestOutcome,
)
from schedulemesh.engine.state.mesh_state import Agent
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.engine.transaction import Turn


def preempt(turn: Turn, stimulus: s.PreemptionRequested) -> RequestOutcome:
    """Evict by hand: a task alone, or its agent with all tasks."""
    state = turn.state
    if stimulus.request_id in state.answers:
        return state.answers[stimulus.request_id].outcome
    if stimulus.request_id in state.requests:
        return Pending(agent_name=state.requests[stimulus.request_id])
    agent_name = stimulus.agent_name
    if stimulus.task_id is not None:
        task = state.running.by_id.get(stimulus.task_id)
        named = state.agents.get(stimulus.task_id) if stimulus.end_agent else None
        if task is None and agent_name is None and named is not None:
            return preempt(turn, _of_agent(stimulus, named))
        if task is None or (agent_name is not None and task.agent_name != agent_name):
            where = f" on agent {agent_name!r}" if agent_name is not None else ""
            return Refused(
                reason="task_not_found", error=f"no task {stimulus.task_id!r} is running{where}"
            )
        agent_name = task.agent_name
        if task.phase is not TaskPhase.RUNNING:
            return Refused(
                reason="already_being_preempted",
                error=f"task {stimulus.task_id!r} is {task.phase.value}; only a running one is preempted",
            )
    agent = state.agents.get(agent_name or "")
    if stimulus.for_pool is not None and stimulus.for_pool not in state.ledger.accounts:
        return Refused(reason="pool_not_found", error=f"there is no pool {stimulus.for_pool!r}")
    if stimulus.task_id is not None and (agent is None or not stimulus.end_agent):
        return _evict_task(turn, stimulus, stimulus.task_id, agent_name or "")
    if agent is None:
        return Refused(reason="agent_not_found", error=f"there is no agent {agent_name or ''!r}")
    if agent.phase is not AgentPhase.RUNNING:
        return Refused(
            reason="agent_not_running",
            error=f"agent {agent_name!r} is {agent.phase.value}; only a running one is preempted",
        )
    return _evict_agent(turn, stimulus, agent)


def _of_agent(stimulus: s.PreemptionRequested, agent: Agent) -> s.PreemptionRequested:
    """The name that was given is an agent's."""
    return msgspec.structs.replace(stimulus, task_id=None, agent_name=agent.spec.name)


def _evict_task(
    turn: Turn, stimulus: s.PreemptionRequested, task_id: str, agent_name: str
) -> RequestOutcome:
    turn.emit(
        EvictionStarted(
            task_id=task_id,
            at=turn.at,
            reason=stimulus.reason,
            preempt_score=stimulus.preempt_score,
            request_id=stimulus.request_id,
        )
    )
    turn.instruct(EvictTask(task_id=task_id, agent_name=agent_name))
    return Pending(agent_name=agent_name)


def _evict_agent(turn: Turn, stimulus: s.PreemptionRequested, agent: Agent) -> RequestOutcome:
    name = agent.spec.name
    for task_id in turn.state.running.on_agent(name):
        if turn.state.running.by_id[task_id].phase is TaskPhase.RUNNING:
            turn.emit(
                EvictionStarted(
                    task_id=task_id,
                    at=turn.at,
                    reason=stimulus.reason,
                    preempt_score=(stimulus.preempt_score if task_id == stimulus.task_id else None),
                )
            )
    turn.emit(
        AgentEnding(
            agent_name=name,
            reason=PREEMPTED,
            at=turn.at,
            hold_for=stimulus.for_pool,
            hold_for_client=stimulus.client if stimulus.for_pool is None else None,
            request_id=stimulus.request_id,
        )
    )
    turn.instruct(evict_instruction(turn.state, name))
    return Pending(agent_name=name)


def state_stored(turn: Turn, stimulus: s.StateStored) -> None:
    """A task's state is kept; a task that ended meanwhile needs none."""
    if stimulus.task_id in turn.state.running.by_id:
        turn.emit(
            StateSaved(
                task_id=stimulus.task_id,
                state_key=stimulus.state_key,
                at=turn.at,
                consistent=stimulus.consistent,
                source=stimulus.source,
            )
        )


def state_not_saved(turn: Turn, stimulus: s.StateNotSaved) -> None:
    """A task's present state is not kept; who asked for its eviction is told."""
    if stimulus.task_id in turn.state.running.by_id:
        turn.emit(SavingFailed(task_id=stimulus.task_id, error=stimulus.error))


def cancel_answered(turn: Turn, stimulus: s.CancelAnswered) -> RequestOutcome | None:
    """A task evicted alone is off the book, or runs on where it could not be cancelled; its agent stays."""
    state = turn.state
    task = state.running.by_id.get(stimulus.task_id)
    if task is None or not task.evicted_as:
        return None
    agent = state.agents.get(task.agent_name)
    runs_on = stimulus.runs_on and agent is not None and agent.phase is AgentPhase.RUNNING
    evicted = Evicted(
        task_id=stimulus.task_id,
        agent_name=task.agent_name,
        reason=task.evicted_as,
        state_key=task.state_key,
        cancel_success=stimulus.cancel_success,
        runs_on=runs_on,
        save_error=task.save_error,
        error=stimulus.error,
    )
    request_id = task.evicted_by
    if runs_on:
        turn.emit(EvictionFailed(task_id=stimulus.task_id))
    else:
        turn.emit(_preempted(turn, task, agent, counted=stimulus.cancel_success))
    return turn.answer(request_id, evicted)


def all_preempted(turn: Turn, agent: Agent) -> tuple[str, ...]:
    """Count every task that was being evicted from an agent that is gone; their ids."""
    state = turn.state
    evicted = []
    for task_id in state.running.on_agent(agent.spec.name):
        task = state.running.by_id[task_id]
        if not task.evicted_as:
            continue
        evicted.append(task_id)
        turn.emit(_preempted(turn, task, agent))
        if task.evicted_by is not None:
            gone = Evicted(
                task_id=task_id,
                agent_name=task.agent_name,
                reason=task.evicted_as,
                state_key=task.state_key,
                save_error=task.save_error,
                error="the agent's process died before cancel() answered",
            )
            turn.answer(task.evicted_by, gone)
    return tuple(evicted)


def _preempted(
    turn: Turn, task: RunningTask, agent: Agent | None, *, counted: bool = True
) -> TaskPreempted:
    return TaskPreempted(
        task_id=task.spec.task_id,
        agent_name=task.agent_name,
        pool_name=task.spec.pool_name,
        priority=task.spec.priority,
        reason=task.evicted_as,
        at=turn.at,
        preempt_score=task.preempt_score,
        task=task.spec,
        agent=None if agent is None else agent.spec,
        counted=counted,
        save_error=task.save_error,
    )
