"""Evicted tasks that have left, as they are recorded: whether their state was saved, and who is told."""

from __future__ import annotations

import msgspec

from schedulemesh.engine.messages.facts import SavingFailed, TaskPreempted
from schedulemesh.engine.messages.outcomes import Evicted
from schedulemesh.engine.preemption.savable import saves_states
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.past import attempts_of
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.engine.transaction import Transaction


def all_preempted(tx: Transaction, agent: Agent) -> tuple[str, ...]:
    """Count every task that was being evicted from an agent that is gone; their ids."""
    state = tx.state
    evicted = []
    for task_id in state.running.on_agent(agent.spec.name):
        task = state.running.by_id[task_id]
        preempting = task.phase
        if not isinstance(preempting, Preempting):
            continue
        evicted.append(task_id)
        if _died_unsaved(state, task, agent, preempting):
            error = "its process died before its state was saved"
            tx.emit(SavingFailed(task_id=task_id, at=tx.now, error=error))
            preempting = msgspec.structs.replace(preempting, save_error=error)
        tx.emit(task_preempted(tx, task, agent, preempting))
        if preempting.request_id is not None:
            gone = Evicted(
                task_id=task_id,
                agent_name=task.agent_name,
                reason=preempting.reason,
                state_key=task.state_key,
                state_saved=task.saved_at is not None,
                save_error=preempting.save_error,
                error="the agent's process died before cancel() answered",
            )
            tx.answer(preempting.request_id, gone)
    return tuple(evicted)


def _died_unsaved(
    state: MeshState, task: RunningTask, agent: Agent, preempting: Preempting
) -> bool:
    """Whether an agent that saves states is gone, and it is not known that it saved for the eviction."""
    record = state.evictions.of_task(task.spec.task_id)
    if preempting.save_error or record is None or not saves_states(state, agent):
        return False
    return record.saved_at is None or record.saved_at < record.decided_at


def task_preempted(
    tx: Transaction,
    task: RunningTask,
    agent: Agent | None,
    preempting: Preempting,
    *,
    counted: bool = True,
) -> TaskPreempted:
    """The fact that an evicted task has left; ``counted``: it counts as evicted, and may return."""
    return TaskPreempted(
        task=task.spec,
        agent_name=task.agent_name,
        reason=preempting.reason,
        at=tx.now,
        preempt_score=preempting.score,
        agent=None if agent is None else agent.spec,
        counted=counted,
        save_error=preempting.save_error,
        number=task.number,
        attempts=attempts_of(task, agent, tx.now, evicted=counted),
        choose_node=task.choose_node,
    )
