"""What becomes of agents and tasks after admission: started, failed, ended."""

from __future__ import annotations

import msgspec

from schedulemesh.config.settings import POOL_HOLD_S
from schedulemesh.domain.agent import AgentPhase
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine import stimuli as s
from schedulemesh.engine.admission import readmit, start_instruction
from schedulemesh.engine.cluster import Node, devices_for, one_piece
from schedulemesh.engine.eviction import all_preempted
from schedulemesh.engine.facts import (
    AgentEnded,
    AgentEnding,
    AgentReady,
    AgentStarted,
    ClaimGrew,
    Devices,
    QuotaHeld,
    TaskCompleted,
    TaskRegistered,
)
from schedulemesh.engine.instructions import StopAgent
from schedulemesh.engine.ledger import pass_on
from schedulemesh.engine.outcomes import (
    Accepted,
    AgentEvicted,
    Done,
    Pending,
    Refused,
    RequestOutcome,
)
from schedulemesh.engine.state import LOST, Agent, MeshState
from schedulemesh.engine.turn import Turn

#: Why an agent ends that nobody evicts.
COMPLETED, DELETED, START_FAILED = "completed", "deleted", "start_failed"


def current(state: MeshState, agent_name: str, incarnation: int) -> Agent | None:
    """The agent if this incarnation of it is on the book; late reports of a former life are dropped here."""
    agent = state.agents.get(agent_name)
    return agent if agent is not None and agent.incarnation == incarnation else None


def register_task(turn: Turn, stimulus: s.TaskAnnounced) -> RequestOutcome:
    """Put a task on the book that runs on an agent, known or not."""
    state, task = turn.state, stimulus.task
    known = state.running.by_id.get(task.task_id)
    if known is not None:
        if known.spec.as_asked() == task and known.agent_name == stimulus.agent_name:
            return Done(detail="already_registered")
        return Refused(
            reason="duplicate_task",
            error=f"task {task.task_id!r} is already on the book, on agent {known.agent_name!r}, "
            "and is not the same; complete it first or choose another id",
        )
    agent = state.agents.get(stimulus.agent_name)
    if agent is not None and agent.phase is AgentPhase.ENDING:
        return Refused(
            reason="agent_ending",
            error=f"agent {stimulus.agent_name!r} is being ended ({agent.ending}); choose another",
        )
    turn.emit(TaskRegistered(task=task, agent_name=stimulus.agent_name, at=turn.at))
    return Done()


def finish_task(turn: Turn, stimulus: s.TaskFinished) -> RequestOutcome:
    """The task is done; its agent ends with it if asked."""
    state = turn.state
    if stimulus.request_id in state.answers:
        return state.answers[stimulus.request_id].outcome
    task = state.running.by_id.get(stimulus.task_id)
    if task is None:
        return Refused(
            reason="task_not_found",
            error=f"no task {stimulus.task_id!r} is running; it has ended or was never registered",
        )
    agent = state.agents.get(task.agent_name)
    if task.phase is TaskPhase.PREEMPTING:
        return Refused(
            reason="already_being_preempted",
            error=f"task {stimulus.task_id!r} is being preempted; its state is kept",
        )
    if agent is not None and agent.phase is AgentPhase.ENDING:
        return Pending(agent_name=task.agent_name)
    turn.emit(TaskCompleted(task_id=stimulus.task_id, at=turn.at, request_id=stimulus.request_id))
    if agent is None or not stimulus.end_agent:
        return Done()
    return _end(turn, agent, COMPLETED)


def delete_agent(turn: Turn, stimulus: s.AgentDeletionRequested) -> RequestOutcome:
    """End an agent; one that is gone already is no error."""
    agent = turn.state.agents.get(stimulus.agent_name)
    if agent is None:
        return Done(detail="already_gone")
    if agent.phase is AgentPhase.ENDING:
        return Pending(agent_name=stimulus.agent_name)
    return _end(turn, agent, DELETED)


def _end(turn: Turn, agent: Agent, reason: str) -> RequestOutcome:
    """Stop the actor and wait for its process, or strike it off the book if there is none yet."""
    name = agent.spec.name
    waiting = agent.phase is AgentPhase.WAITING
    turn.emit(AgentEnding(agent_name=name, reason=reason, at=turn.at))
    if waiting:
        _strike(turn, agent, reason, f"agent {name!r} was deleted before it started")
        return Done()
    turn.instruct(StopAgent(agent_name=name, incarnation=agent.incarnation))
    return Pending(agent_name=name)


def agent_reported(turn: Turn, stimulus: s.AgentReported) -> RequestOutcome | None:
    """The agent runs where it says; its submission is accepted."""
    agent = current(turn.state, stimulus.agent_name, stimulus.incarnation)
    if agent is None or agent.phase is not AgentPhase.STARTING:
        return None
    turn.emit(
        AgentStarted(
            agent_name=stimulus.agent_name,
            incarnation=stimulus.incarnation,
            at=turn.at,
            node_id=stimulus.node_id,
            devices=stimulus.devices,
            pid=stimulus.pid,
            abilities=stimulus.abilities,
            actor_name=stimulus.actor_name,
            actor_namespace=stimulus.actor_namespace,
            state_restored=stimulus.state_restored,
        )
    )
    accepted = Accepted(
        agent_name=stimulus.agent_name,
        pool_name=agent.spec.pool_name,
        resources=agent.spec.resources,
        labels=agent.spec.labels,
        task_id=agent.task_id,
        preempted=agent.evicting,
        node_id=agent.node_id,
        restartable=agent.spec.restartable,
        state_restored=stimulus.state_restored,
    )
    return turn.answer(agent.request_id, accepted)


def start_failed(turn: Turn, stimulus: s.AgentStartFailed) -> RequestOutcome | None:
    """Everything back as it was: the claim is released and victims run again from their saved states."""
    agent = current(turn.state, stimulus.agent_name, stimulus.incarnation)
    if agent is None:
        return None
    if agent.phase in (AgentPhase.RUNNING, AgentPhase.ENDING):
        return agent_gone(turn, _gone(turn, agent))
    return _undo(turn, agent, stimulus.reason, stimulus.error)


def _undo(turn: Turn, agent: Agent, reason: str, error: str) -> RequestOutcome | None:
    """Strike a newcomer off and run its victims again where ScheduleMesh knows how."""
    _ended(turn, agent, START_FAILED)
    restarted: list[str] = []
    lost: list[str] = []
    made: set[str] = set()
    for candidate in agent.evicting:
        past = turn.state.preempted.get(candidate.task_id)
        again = past is not None and readmit(turn, past, made)
        (restarted if again else lost).append(candidate.task_id)
    refused = Refused(
        reason=reason, error=error, restarted=tuple(restarted), not_restarted=tuple(lost)
    )
    return turn.answer(agent.request_id, refused)


def agent_gone(turn: Turn, stimulus: s.AgentGone) -> RequestOutcome | None:
    """The process is gone: release the claim, count evictions, and let the newcomer in."""
    state = turn.state
    agent = current(state, stimulus.agent_name, stimulus.incarnation)
    if agent is None:
        return None
    evicted = all_preempted(turn, agent)
    lost = agent.phase is not AgentPhase.ENDING
    reason = LOST if lost else agent.ending
    if lost and agent.phase is AgentPhase.STARTING:
        return _undo(turn, agent, "agent_start_failed", "the agent's process died")
    _ended(turn, agent, reason)
    if agent.hold_for is not None and agent.shares:
        turn.emit(
            QuotaHeld(
                hold_id=f"{stimulus.agent_name}#{stimulus.incarnation}",
                for_pool=agent.hold_for,
                shares=agent.shares,
                until=turn.at + POOL_HOLD_S,
            )
        )
    if agent.leaves_for is not None:
        _let_in(turn, agent)
    turn.answer(agent.ended_by, AgentEvicted(agent_name=stimulus.agent_name, task_ids=evicted))
    if agent.request_id is not None and not agent.committed:
        gone = Refused(reason="agent_deleted", error="the agent was deleted before it started")
        turn.answer(agent.request_id, gone)
    return Done()


def _gone(turn: Turn, agent: Agent) -> s.AgentGone:
    return s.AgentGone(at=turn.at, agent_name=agent.spec.name, incarnation=agent.incarnation)


def _ended(turn: Turn, agent: Agent, reason: str) -> None:
    turn.emit(
        AgentEnded(
            agent_name=agent.spec.name, incarnation=agent.incarnation, at=turn.at, reason=reason
        )
    )


def _strike(turn: Turn, agent: Agent, reason: str, error: str) -> None:
    """End an agent that never had a process."""
    _ended(turn, agent, reason)
    turn.answer(agent.request_id, Refused(reason="agent_deleted", error=error))


def _let_in(turn: Turn, victim: Agent) -> None:
    """Pass on what the victim freed to the one that it left for; start it when all have left."""
    state = turn.state
    newcomer = state.agents.get(victim.leaves_for or "")
    if newcomer is None or newcomer.phase is not AgentPhase.WAITING:
        return
    shares, _ = pass_on(victim.shares, newcomer.spec.resources - newcomer.paid)
    held, devices = _room_gained(state, newcomer)
    name = newcomer.spec.name
    turn.emit(ClaimGrew(agent_name=name, shares=shares, held=held, devices=devices))
    if newcomer.waits_for:
        return
    if not _whole(state, newcomer):
        error = "what the victims freed was not what the books had promised; submit again"
        _undo(turn, newcomer, "preemption_failed", error)
        return
    turn.emit(AgentReady(agent_name=name))
    turn.instruct(start_instruction(state, name))


def _room_gained(state: MeshState, newcomer: Agent) -> tuple[Resources, Devices]:
    """What the newcomer still lacks on its node and is free there now."""
    need = msgspec.structs.replace(newcomer.spec.resources, gpu=0)
    node = state.cluster.nodes.get(newcomer.node_id or "")
    if node is None:
        return NOTHING, Devices()
    standing = node.standing.get(newcomer.spec.name)
    if standing is None:
        return need.within(node.free), _devices_gained(node, newcomer, {})
    have = dict(standing.devices.units)
    return (need - standing.held).within(node.free), _devices_gained(node, newcomer, have)


def _devices_gained(node: Node, newcomer: Agent, have: dict[int, int]) -> Devices:
    """What is free now of the promised devices; of any that do, once nobody is left to wait for and
    somebody else was found on the promised ones.
    """
    gpu = newcomer.spec.resources.gpu
    within_reach = [free + have.get(i, 0) for i, free in enumerate(node.devices)]
    wanted = newcomer.wanted_devices
    if not newcomer.waits_for and any(within_reach[i] < part for i, part in wanted.units):
        wanted = devices_for(within_reach, gpu) or wanted
    lacking = gpu - sum(have.values())
    units = []
    for i, whole in wanted.units:
        part = min(node.devices[i], whole - have.get(i, 0), lacking)
        if part > 0:
            units.append((i, part))
            lacking -= part
    return Devices(units=tuple(units))


def _whole(state: MeshState, newcomer: Agent) -> bool:
    """Whether quota and room are complete."""
    need = newcomer.spec.resources
    if newcomer.paid != need:
        return False
    node = state.cluster.nodes.get(newcomer.node_id or "")
    if node is None:
        return newcomer.node_id is None
    standing = node.standing.get(newcomer.spec.name)
    if standing is None:
        return not need
    devices = standing.devices
    gpu = sum(units for _, units in devices.units)
    if not one_piece(devices) or any(node.devices[i] < 0 for i, _ in devices.units):
        return False
    return msgspec.structs.replace(standing.held, gpu=gpu) == need
