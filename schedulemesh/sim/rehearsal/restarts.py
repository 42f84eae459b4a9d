"""Restarts of the supervisor in a rehearsal: the state is read again, and reconciled with what exists."""

from __future__ import annotations

from schedulemesh.engine.messages import instructions as i
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.state.agents import Ending, Starting
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.snapshot import parts, restored, take_snapshot

#: An agent by its name and incarnation.
AgentKey = tuple[str, int]


def read_again(state: MeshState) -> MeshState:
    """The state as a supervisor reads it that is started again: without what only spares work."""
    return restored(parts(take_snapshot(state)))


def recovery_observed(state: MeshState, dead: set[AgentKey], gone: set[str]) -> s.RecoveryObserved:
    """What a supervisor finds after a restart: all but these agents and these placement groups."""
    agents = ((name, agent.incarnation) for name, agent in state.agents.items())
    return s.RecoveryObserved(
        living=frozenset(key for key in agents if key not in dead),
        groups=frozenset(state.groups.by_id.keys() - gone),
    )


class Ordered:
    """What was ordered before a restart, and is ordered again by it."""

    def __init__(self, state: MeshState) -> None:
        agents = state.agents.items()
        self._starting = {(n, a.incarnation) for n, a in agents if isinstance(a.phase, Starting)}
        self._ending = {(n, a.incarnation) for n, a in agents if isinstance(a.phase, Ending)}
        groups = state.groups.by_id.items()
        self._creating = {g for g, group in groups if group.phase is GroupPhase.CREATING}
        self._removing = {g for g, group in groups if group.phase is GroupPhase.ENDING}

    def has(self, order: i.AnyInstruction) -> bool:
        """Whether an instruction is one of these."""
        if isinstance(order, i.StartAgent):
            return (order.agent.name, order.incarnation) in self._starting
        if isinstance(order, i.EvictAgent | i.StopAgent):
            return (order.agent_name, order.incarnation) in self._ending
        if isinstance(order, i.CreateGroup):
            return order.group_id in self._creating
        if isinstance(order, i.RemoveGroup):
            return order.group_id in self._removing
        return isinstance(order, i.EvictTask)
