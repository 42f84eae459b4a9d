"""What becomes of agents and tasks after admission: started, failed, ended."""

from __future__ import annotations

import msgspec

from schedulemesh.config.settings import CLIENT_HOLD_S, POOL_HOLD_S
from schedulemesh.domain.agent import AgentPhase
from schedulemesh.domain.reasons import Change, EndReason, Reason
from schedulemesh.engine.admission.pending import ended, undo
from schedulemesh.engine.lifecycle.eviction import task_cancelled
from schedulemesh.engine.lifecycle.groups import is_placed
from schedulemesh.engine.lifecycle.registration import register
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import (
    AgentEnding,
    AgentStarted,
    QuotaHeld,
    TaskCompleted,
)
from schedulemesh.engine.messages.instructions import StopAgent
from schedulemesh.engine.messages.outcomes import (
    Accepted,
    AgentEvicted,
    Candidate,
    Done,
    Pending,
    Refused,
    RequestOutcome,
)
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.mesh_state import FORMER, MeshState
from schedulemesh.engine.state.tasks import Preempting
from schedulemesh.engine.transaction import Transaction

#: Tasks that a sentence names.
_TOLD = 5


def current(state: MeshState, agent_name: str, incarnation: int) -> Agent | None:
    """The agent if this incarnation of it is on the book; late reports of a former life are dropped here."""
    agent = state.agents.get(agent_name)
    return agent if agent is not None and agent.incarnation == incarnation else None


def register_task(tx: Transaction, stimulus: s.TaskAnnounced) -> RequestOutcome:
    """Put a task on the book that runs on an agent, known or not."""
    state, task = tx.state, stimulus.task
    known = state.running.by_id.get(task.task_id)
    if known is not None and (known.spec.as_asked(), known.agent_name) == (
        task,
        stimulus.agent_name,
    ):
        return Done(change=Change.ALREADY_REGISTERED)
    agent = state.agents.get(stimulus.agent_name)
    if known is None and agent is not None and agent.phase is AgentPhase.ENDING:
        return Refused(
            reason=Reason.AGENT_ENDING,
            error=f"agent {stimulus.agent_name!r} is being ended ({agent.ending}); choose another",
        )
    return register(tx, task, stimulus.agent_name) or Done()


def finish_task(tx: Transaction, stimulus: s.TaskFinished) -> RequestOutcome:
    """The task is done; its agent ends with it if asked."""
    state = tx.state
    task = state.running.by_id.get(stimulus.task_id)
    if task is None:
        return Refused(
            reason=Reason.TASK_NOT_FOUND,
            error=f"no task {stimulus.task_id!r} is running; it has ended or was never registered",
        )
    agent = state.agents.get(task.agent_name)
    if isinstance(task.phase, Preempting):
        return Refused(
            reason=Reason.ALREADY_BEING_PREEMPTED,
            error=f"task {stimulus.task_id!r} is being preempted; its state is kept",
        )
    if agent is not None and agent.phase is AgentPhase.ENDING:
        return Pending(agent_name=task.agent_name)
    tx.emit(TaskCompleted(task_id=stimulus.task_id, at=tx.now))
    if agent is None or not stimulus.end_agent:
        return Done()
    if others := state.running.on_agent(task.agent_name):
        message = ", ".join(map(repr, others[:_TOLD]))
        kept = (
            f"agent {task.agent_name!r} was not ended: {len(others)} of its tasks go on ({message})"
        )
        return Done(change=Change.AGENT_KEPT, warnings=(kept,))
    return _end(tx, agent, EndReason.COMPLETED, request_id=stimulus.request_id)


def delete_agent(tx: Transaction, stimulus: s.AgentDeletionRequested) -> RequestOutcome:
    """End an agent; one that is gone already is no error, one that never was is refused."""
    agent = tx.state.agents.get(stimulus.agent_name)
    if agent is None:
        return _forget(tx, stimulus.agent_name)
    if agent.phase is AgentPhase.ENDING:
        if stimulus.destroy_group is not None:
            tx.emit(_still_ending(tx, agent, stimulus.destroy_group))
        return Pending(agent_name=stimulus.agent_name)
    return _end(tx, agent, EndReason.DELETED, destroy_group=stimulus.destroy_group)


def _forget(tx: Transaction, agent_name: str) -> RequestOutcome:
    """What is registered as running on an agent that is not ours ends; one that was ours is gone."""
    state = tx.state
    tasks = state.running.on_agent(agent_name)
    for task_id in tasks:
        if not isinstance(state.running.by_id[task_id].phase, Preempting):
            tx.emit(TaskCompleted(task_id=task_id, at=tx.now))
    if tasks:
        return Done()
    if agent_name in state.former:
        return Done(change=Change.ALREADY_GONE)
    error = f"there is no agent {agent_name!r}, and none of the last {FORMER} had this name"
    return Refused(reason=Reason.AGENT_NOT_FOUND, error=error)


def _still_ending(tx: Transaction, agent: Agent, destroy_group: bool) -> AgentEnding:
    """It ends as before, and this is to become of its group."""
    return AgentEnding(
        agent_name=agent.spec.name,
        reason=agent.ending or EndReason.DELETED,
        at=tx.now,
        hold_for=agent.hold_for,
        hold_for_client=agent.hold_for_client,
        request_id=agent.ended_by,
        destroy_group=destroy_group,
    )


def _end(
    tx: Transaction,
    agent: Agent,
    reason: EndReason,
    *,
    destroy_group: bool | None = None,
    request_id: str | None = None,
) -> RequestOutcome:
    """Stop the actor and wait for its process, or terminate it off the book if there is none yet."""
    name = agent.spec.name
    waiting = agent.phase is AgentPhase.WAITING
    tx.emit(
        AgentEnding(
            agent_name=name,
            reason=reason,
            at=tx.now,
            destroy_group=destroy_group,
            request_id=None if waiting else request_id,
        )
    )
    if waiting:
        _terminate(tx, agent, reason, f"agent {name!r} was deleted before it started")
        return Done()
    tx.instruct(StopAgent(agent_name=name, incarnation=agent.incarnation))
    return Pending(agent_name=name)


def cancel_answered(tx: Transaction, stimulus: s.CancelAnswered) -> RequestOutcome | None:
    """Finish the eviction of a task alone. Its agent is ended only where ``cancel()`` did not return."""
    task = tx.state.running.by_id.get(stimulus.task_id)
    agent = None if task is None else tx.state.agents.get(task.agent_name)
    outcome = task_cancelled(tx, stimulus)
    if stimulus.timed_out and agent is not None and agent.phase is AgentPhase.RUNNING:
        _end(tx, agent, EndReason.DELETED)
    return outcome


def agent_reported(tx: Transaction, stimulus: s.AgentReported) -> RequestOutcome | None:
    """The agent runs where it says; its submission is accepted."""
    agent = current(tx.state, stimulus.agent_name, stimulus.incarnation)
    if agent is None or agent.phase is not AgentPhase.STARTING:
        return None
    if agent.group_id is not None and not is_placed(tx.state, agent.group_id):
        return None  # its group was lost while it started, and it is being stopped
    tx.emit(
        AgentStarted(
            agent_name=stimulus.agent_name,
            incarnation=stimulus.incarnation,
            at=tx.now,
            node_id=stimulus.node_id,
            gpu_ids=stimulus.gpu_ids,
            pid=stimulus.pid,
            capabilities=stimulus.capabilities,
            actor_name=stimulus.actor_name,
            actor_namespace=stimulus.actor_namespace,
            state_restored=stimulus.state_restored,
        )
    )
    quota = tx.state.ledger.accounts[agent.spec.pool_name].spec.resources
    accepted = Accepted(
        agent_name=stimulus.agent_name,
        pool_name=agent.spec.pool_name,
        resources=agent.spec.resources,
        labels=agent.spec.labels,
        task_id=agent.task_id,
        preempted=tuple(_as_evicted(tx, victim) for victim in agent.evicting),
        node_id=agent.node_id,
        restartable=agent.spec.restartable,
        state_restored=stimulus.state_restored,
        group_id=agent.group_id,
        group_path=agent.group_path,
        whole_pool=agent.spec.resources == quota,
    )
    return tx.answer(agent.request_id, accepted)


def _as_evicted(tx: Transaction, victim: Candidate) -> Candidate:
    """A victim, and whether its state was saved."""
    past = tx.state.preempted.get(victim.task_id)
    if past is None or not past.fact.save_error:
        return victim
    return msgspec.structs.replace(victim, save_error=past.fact.save_error)


def start_failed(tx: Transaction, stimulus: s.AgentStartFailed) -> RequestOutcome | None:
    """Everything back as it was: the claim is released and victims run again from their saved states."""
    agent = current(tx.state, stimulus.agent_name, stimulus.incarnation)
    if agent is None:
        return None
    if agent.phase in (AgentPhase.RUNNING, AgentPhase.ENDING):
        return process_gone(tx, agent)
    return undo(tx, agent, stimulus.reason, stimulus.error)


def agent_gone(tx: Transaction, stimulus: s.AgentGone) -> RequestOutcome | None:
    """The process of this incarnation is gone; a report of a former one changes nothing."""
    agent = current(tx.state, stimulus.agent_name, stimulus.incarnation)
    return None if agent is None else process_gone(tx, agent)


def process_gone(tx: Transaction, agent: Agent) -> RequestOutcome | None:
    """Release the claim, to whoever the agent was evicted for, and count its evictions."""
    name = agent.spec.name
    if agent.phase is AgentPhase.STARTING:
        return undo(tx, agent, Reason.AGENT_START_FAILED, "the agent's process died")
    evicted = ended(tx, agent, agent.ending or EndReason.LOST)
    tx.wake(agent.leaves_for, agent.shares)
    if agent.shares and (agent.hold_for or agent.hold_for_client):
        tx.emit(
            QuotaHeld(
                hold_id=f"{name}#{agent.incarnation}",
                for_pool=agent.hold_for,
                for_client=agent.hold_for_client,
                shares=agent.shares,
                until=tx.now + (CLIENT_HOLD_S if agent.hold_for is None else POOL_HOLD_S),
            )
        )
    if agent.ended_by is not None:
        completed = agent.ending == EndReason.COMPLETED
        ending = Done() if completed else AgentEvicted(agent_name=name, task_ids=evicted)
        tx.answer(agent.ended_by, ending)
    if agent.request_id is not None and not agent.committed:
        gone = Refused(reason=Reason.AGENT_DELETED, error="the agent was deleted before it started")
        tx.answer(agent.request_id, gone)
    return Done()


def _terminate(tx: Transaction, agent: Agent, reason: EndReason, error: str) -> None:
    """End an agent that never had a process."""
    ended(tx, agent, reason)
    tx.answer(agent.request_id, Refused(reason=Reason.AGENT_DELETED, error=error))
