"""Gangs as their members: each process of an agent as an agent of its own, and a start or an end of all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from schedulemesh.domain.agent import AgentSpec, Death, MemberProcess, gang_of
from schedulemesh.domain.payloads import (
    SINGLE_PROCESS,
    GangPayload,
    JobPayload,
    LeasePayload,
)
from schedulemesh.domain.placement import InGroup
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.engine.lifecycle.agents import current
from schedulemesh.engine.messages.facts import AgentEnded, AgentStarted, AnyFact
from schedulemesh.engine.messages.instructions import StartAgent
from schedulemesh.engine.messages.stimuli import AgentReported, AgentStartFailed
from schedulemesh.engine.state.agents import Agent, AgentPhase, Ending, Running
from schedulemesh.engine.state.gangs import members_running
from schedulemesh.engine.state.job_updates import claimed_by_node
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.protocol.agents import pack, unpack
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.agents.start import AgentStart

#: Failures of members that the loss of another one's node may have caused.
_MAY_BE_LOST = frozenset((Reason.AGENT_START_FAILED, Reason.AGENT_START_TIMEOUT))
#: Seconds that a member may take to be told which others run.
_TELL_S = 30.0


def member_specs(spec: AgentSpec) -> tuple[AgentSpec, ...]:
    """Its processes as agents: itself; of a gang each member in the order of ranks; of a lease none."""
    if isinstance(spec.payload, LeasePayload):
        return ()
    if isinstance(spec.payload, GangPayload):
        return tuple(_member(spec, rank, name) for rank, name in enumerate(spec.process_names))
    return (spec,)


def _member(spec: AgentSpec, rank: int, name: str) -> AgentSpec:
    members = spec.payload.members
    member = members[rank] if members else None
    return msgspec.structs.replace(
        spec,
        name=name,
        resources=spec.bundles[rank],
        class_key=spec.class_key if member is None else member.class_key,
        arguments_key=spec.arguments_key if member is None else member.arguments_key,
        bundles=(),
        payload=SINGLE_PROCESS,
    )


def processes_of(state: MeshState, agent: Agent) -> tuple[Agent, ...]:
    """Its processes as agents: itself; of a gang each member in the order of ranks; of a lease none."""
    if isinstance(agent.spec.payload, LeasePayload):
        return ()
    if not isinstance(agent.spec.payload, GangPayload):
        return (agent,)
    group = state.groups.by_id.get(agent.group_id or "")
    return tuple(
        msgspec.structs.replace(
            agent,
            spec=spec,
            phase=_phase_of(agent.phase, rank),
            place=(
                agent.place
                if group is None or not isinstance(agent.place, InGroup)
                else msgspec.structs.replace(agent.place, node_id=group.node_ids[rank])
            ),
            shares=(),
            actors=agent.actors[rank : rank + 1],
        )
        for rank, spec in enumerate(member_specs(agent.spec))
    )


def every_process(state: MeshState, agents: Iterable[Agent]) -> list[Agent]:
    """The processes of all these agents."""
    return [process for agent in agents for process in processes_of(state, agent)]


def _phase_of(phase: AgentPhase, rank: int) -> AgentPhase:
    """The phase of a gang with the data of one member."""
    if isinstance(phase, Ending) and isinstance(phase.previous, Running):
        return msgspec.structs.replace(phase, previous=_process(phase.previous, rank))
    return _process(phase, rank) if isinstance(phase, Running) else phase


def _process(running: Running, rank: int) -> Running:
    member = running.members[rank] if rank < len(running.members) else MemberProcess()
    return Running(
        started_at=running.started_at,
        pid=member.pid,
        actor_name=member.actor_name,
        actor_namespace=member.actor_namespace,
        capabilities=member.capabilities,
    )


def member_orders(order: StartAgent) -> tuple[StartAgent, ...]:
    """The order to start an agent as one order for each of its processes."""
    specs = member_specs(order.agent)
    if not isinstance(order.agent.payload, GangPayload) and specs:
        return (order,)
    return tuple(
        msgspec.structs.replace(
            order, agent=spec, node_id=None, actors=order.actors[rank : rank + 1]
        )
        for rank, spec in enumerate(specs)
    )


def states_of(saved: bytes | None, size: int) -> list[bytes | None]:
    """What each of so many members is built from, of the saved state of a gang; None: a member has no state.

    What a preserver saved, or a caller gave, belongs to all of them.
    """
    if saved is None:
        return [None] * size
    gang_state = unpack(saved, SavedState)
    if not gang_state.members:
        return [saved] * size
    member_states = [*gang_state.members, *[None] * size][:size]
    return [
        None
        if state is None
        else pack(msgspec.structs.replace(gang_state, state=state, members=()))
        for state in member_states
    ]


async def start_together(
    agents: Agents, order: StartAgent, starts: Sequence[AgentStart]
) -> AgentReported | AgentStartFailed:
    """Start all members of a gang at the same time. When one of them fails, all others are ended, and the
    gang has failed for the same reason.
    """
    reported: dict[int, AgentReported] = {}
    tasks = {asyncio.ensure_future(agents.start(start)): i for i, start in enumerate(starts)}
    failed: AgentStartFailed | None = None
    while tasks:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            rank, result = tasks.pop(task), task.result()
            if isinstance(result, AgentReported):
                reported[rank] = result
            elif failed is None:
                failed = result
                await end_processes(agents, (start.key for start in starts))
            elif result.room_lost:
                # A member may fail before Ray knows that the node of another has died.
                failed = result
    if failed is not None:
        await end_processes(agents, (start.key for start in starts))
        return msgspec.structs.replace(
            failed,
            agent_name=order.agent.name,
            incarnation=order.incarnation,
            error=f"agent {order.agent.name!r}: {failed.error}",
        )
    return _all_reported(order, [reported[rank] for rank in range(len(starts))])


async def with_lost_nodes(
    agents: Agents, failed: AgentStartFailed, node_ids: Sequence[str]
) -> AgentStartFailed:
    """A start that has failed, with the nodes of its members that are lost, if any is: then the member that
    failed first need not be the one whose node has died, which Ray learns later. ``node_ids``: in the order
    of ranks.
    """
    by_itself = failed.restore_failed or (failed.death is not None and failed.death.out_of_memory)
    if failed.room_lost or by_itself or failed.reason not in _MAY_BE_LOST:
        return failed
    lost = await agents.cleanup.lost_among(node_ids)
    if not lost:
        return failed
    ranks = (f"node {n} of rank {rank}" for rank, n in enumerate(node_ids) if n in lost)
    error = f"{failed.error}; {', '.join(ranks)} has died"
    return msgspec.structs.replace(failed, error=error, room_lost=True)


def _all_reported(order: StartAgent, members: Sequence[AgentReported]) -> AgentReported:
    """All members run. A saved state counts as restored where every member that had one took it."""
    restored = [m.state_restored for m in members if m.state_restored is not None]
    return msgspec.structs.replace(
        members[0],
        agent_name=order.agent.name,
        state_restored=all(restored) if restored else None,
        members=tuple(
            MemberProcess(
                node_id=member.node_id,
                gpu_ids=member.gpu_ids,
                pid=member.pid,
                capabilities=member.capabilities,
                actor_name=member.actor_name,
                actor_namespace=member.actor_namespace,
            )
            for member in members
        ),
    )


async def deaths_of(agents: Agents, state: MeshState, dead: Sequence[Agent]) -> dict[str, Death]:
    """How agents died that nobody has ended, by name, as far as it is known: of a gang the first member of
    which it is, before all one that lacked memory.
    """
    processes = {agent.spec.name: processes_of(state, agent) for agent in dead}
    process_deaths = await agents.deaths(process for each in processes.values() for process in each)
    deaths = {}
    for agent in dead:
        member_deaths = [
            msgspec.structs.replace(process_deaths[process.spec.name], detail="", rank=rank)
            for rank, process in enumerate(processes[agent.spec.name])
            if process.spec.name in process_deaths
        ]
        if member_deaths:
            first = min(member_deaths, key=lambda death: not death.out_of_memory)
            is_gang = isinstance(agent.spec.payload, GangPayload)
            deaths[agent.spec.name] = (
                first if is_gang else msgspec.structs.replace(first, rank=None)
            )
    return deaths


async def end_processes(agents: Agents, keys: Iterable[tuple[str, int]]) -> None:
    """End these processes, and return once all of them have ended."""
    await asyncio.gather(*(agents.end(*key) for key in keys))


async def end_agent(agents: Agents, state: MeshState, name: str, incarnation: int) -> None:
    """End an agent with all its processes, and return once they have ended."""
    agent = current(state, name, incarnation)
    if agent is None:
        await agents.end(name, incarnation)
        return
    processes = processes_of(state, agent)
    for process in processes:
        if process.process is not None:
            agents.know(process)
    if isinstance(agent.spec.payload, JobPayload):
        claimed = claimed_by_node(state.groups, state.cluster, agent)
        agents.know_claim(name, incarnation, claimed)
    await end_processes(agents, ((process.spec.name, incarnation) for process in processes))


def changed_gangs(state: MeshState, facts: Iterable[AnyFact]) -> set[str]:
    """The elastic gangs that run and of which a member started or ended with these facts."""
    changed: set[str] = set()
    for fact in facts:
        if isinstance(fact, AgentStarted | AgentEnded):
            member = gang_of(fact.agent_name)
            core = None if member is None else state.agents.get(member[0])
            if core is not None and fact.agent_name in core.spec.extra_names:
                changed.add(core.spec.name)
    return changed


def elastic_gangs(state: MeshState) -> list[str]:
    """The agents that are the cores of elastic gangs and run."""
    return [
        name
        for name, agent in state.agents.items()
        if agent.spec.extra_names and isinstance(agent.phase, Running)
    ]


async def tell_members(agents: Agents, state: MeshState, gang_name: str) -> None:
    """Tell every member of an elastic gang that has ``on_members_changed`` which ranks run now."""
    ranks = tuple(members_running(state, gang_name))
    core = state.agents.get(gang_name)
    names = (f"{gang_name}-{rank}" for rank in ranks)
    members = ((name, state.agents.get(name) or core) for name in names)
    await asyncio.gather(
        *(
            agents.commands.execute(name, agent.incarnation, "members", _TELL_S, ranks=ranks)
            for name, agent in members
            if agent is not None and agents.can(name, agent.incarnation, "on_members_changed")
        )
    )
