"""Placement groups of agents with GPUs, which an incoming agent gets without that anything returns to Ray.

What an actor holds on its node returns to Ray when it ends, and Ray gives it to whoever waits. What is in a
placement group stays there. So each agent with GPUs for which the engine has chosen a node runs in a group
of its own there, its room, if Ray can place one at once. When such an agent ends and another one that starts
asks for the same, that one gets the room; else it is removed. The engine knows only whether an agent has a
room: on its node it holds the same with and without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping

import msgspec

from schedulemesh.domain.payloads import AgentPayload
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.lifecycle.agents import current
from schedulemesh.engine.messages.facts import AgentEnded, AgentEnding
from schedulemesh.engine.messages.instructions import CreateGroup, StartAgent
from schedulemesh.engine.messages.stimuli import AgentReported, AgentStartFailed, GroupCreated
from schedulemesh.engine.state.agents import Agent, Starting
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Step
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.backend import Backend, BundleSlot, GroupView
from schedulemesh.runtime.groups.manager import REMOVED_S, ROOM, Groups
from schedulemesh.runtime.reactor import Reactor

#: Seconds that Ray may take to place a room. It needs 3 ms where it sees the resources as free, which it does
#: 0.1 s after they became so, and it tries again after 0.1 s.
_PLACED_S = 0.5

#: An agent's name and incarnation.
Key = tuple[str, int]

#: A node, and an amount there.
Place = tuple[str, Resources]


class Rooms:
    """The rooms of one scheduler's agents."""

    def __init__(
        self,
        backend: Backend,
        groups: Groups,
        reactor: Reactor,
        spawn: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        self._backend, self._groups = backend, groups
        self._reactor, self._spawn = reactor, spawn
        #: The id of each agent's room.
        self._of: dict[Key, str] = {}
        self._places: dict[str, Place] = {}
        #: Rooms without an agent, each with the name of the incoming agent that may still get it.
        self._vacant: dict[str, str] = {}
        #: Rooms that Ray is asked to place: they are nobody else's before that has an end.
        self._in_creation: set[str] = set()
        #: By victim, the incoming agent.
        self._leaving: dict[str, str] = {}
        #: Removals in progress for which starts wait, because Ray needs what they free.
        self._removals: set[asyncio.Future[None]] = set()
        reactor.subscribe(self._take)

    def room_of(self, name: str, incarnation: int) -> str:
        """The id of an agent's room; empty: it has none."""
        return self._of.get((name, incarnation), "")

    async def prepare(self, order: StartAgent) -> BundleSlot | None:
        """The room of an agent that is to start: one that it was handed, or a new one. None: it gets none."""
        if not has_room(order) or order.adopt:
            return None
        key = (order.agent.name, order.incarnation)
        room = self._of.get(key)
        if room is not None:
            remaining = await self._groups.vacate(
                room, (), still_ours=lambda: self._of.get(key) == room
            )
            if self._of.get(key) != room:
                return None  # the agent has ended, and another one may have the room
            if not remaining:
                return self._groups.slot(room)
            self._drop(room)
        if self._removals:
            # Each is waited for once: a group that Ray does not remove must not delay every start.
            _, late = await asyncio.wait(self._removals, timeout=REMOVED_S)
            self._removals -= late
        return await self._create_room(key, (order.node_id or "", order.agent.resources))

    def noted(self, result: AgentReported | AgentStartFailed) -> AgentReported | AgentStartFailed:
        """The result of a start, with the room of the agent."""
        if isinstance(result, AgentStartFailed):
            return result
        room = self.room_of(result.agent_name, result.incarnation)
        return msgspec.structs.replace(result, room=room)

    async def is_full(self, order: StartAgent) -> bool:
        """Whether an agent for which no room could be created finds none outside of one either."""
        if not has_room(order) or order.adopt:
            return False
        views = await self._backend.nodes()
        free = next((view.free for view in views if view.node_id == order.node_id), None)
        return free is not None and not order.agent.resources.fits(free)

    async def recover(
        self, state: MeshState, agents: Agents, living: Mapping[str, GroupView]
    ) -> None:
        """Take over the rooms among the living groups, which a former supervisor created, and remove those
        in which nothing runs.
        """
        agent_of_room = dict(_known_rooms(state))
        starting = {
            agents.address(agent): agent
            for agent in state.agents.values()
            if isinstance(agent.phase, Starting)
        }
        for room, view in living.items():
            if not room.startswith(ROOM):
                continue
            agent = agent_of_room.get(room)
            if agent is not None and agent.process is None and not view.placed:
                agent = None  # unless its process is in it, another one is created for it
            members = [] if agent is not None else await self._backend.members(view.ray_id)
            for member in members:
                agent = agent or starting.get((member.namespace, member.name))
            if agent is not None:
                self._adopt(room, view, agent)
            elif not members:
                self._groups.adopt(room, BundleSlot(ray_id=view.ray_id, shape=_shape()))
                self._drop(room)

    def _adopt(self, room: str, view: GroupView, agent: Agent) -> None:
        need = agent.spec.resources
        self._of[agent.spec.name, agent.incarnation] = room
        self._places[room] = (agent.node_id or "", need)
        self._groups.adopt(room, BundleSlot(ray_id=view.ray_id, shape=_shape(need)))

    async def _create_room(self, key: Key, place: Place) -> BundleSlot | None:
        """Create a room for an agent; None: Ray did not place it at once, or the agent has ended."""
        if current(self._reactor.state, *key) is None:
            return None  # its end has been reported, so nothing would remove the room
        room = f"{ROOM}{key[0]}#{key[1]}"
        self._of[key], self._places[room] = room, place
        order = CreateGroup(
            group_id=room, shape=_shape(place[1]), node_ids=(place[0],), wait_s=_PLACED_S
        )
        self._in_creation.add(room)
        creating = asyncio.ensure_future(self._groups.create(order))
        try:
            await asyncio.wait({creating}, timeout=_PLACED_S + REMOVED_S)
        except asyncio.CancelledError:
            creating.cancel()
            raise
        finally:
            self._in_creation.discard(room)
        if not creating.done():
            # Ray does not place it, and does not remove it either.
            self._drop(room)
            return None
        if isinstance(creating.result(), GroupCreated):
            return self._groups.slot(room)
        if self._of.get(key) == room:
            del self._of[key], self._places[room]
        return None

    def _take(self, step: Step) -> None:
        """Pass on the rooms of agents that have ended in this step, before what it orders is executed."""
        if not self._of and not self._vacant:
            return
        for fact in step.facts:
            if isinstance(fact, AgentEnding) and fact.leaves_for is not None:
                self._leaving[fact.agent_name] = fact.leaves_for
            elif isinstance(fact, AgentEnded):
                incoming = self._leaving.pop(fact.agent_name, "")
                room = self._of.pop((fact.agent_name, fact.incarnation), None)
                if room in self._in_creation:
                    self._drop(room)
                elif room is not None:
                    self._vacant[room] = incoming
        if not self._vacant:
            return
        started = [order for order in step.instructions if isinstance(order, StartAgent)]
        for order in started:
            self._hand_over(order)
        begun = {order.agent.name for order in started}
        for room in [
            room for room, name in self._vacant.items() if not self._is_for(room, name, begun)
        ]:
            del self._vacant[room]
            self._drop(room)

    def _is_for(self, room: str, agent_name: str, begun: set[str]) -> bool:
        """Whether a vacant room is kept for an agent that has not begun to start and will take it."""
        agent = self._reactor.state.agents.get(agent_name)
        if agent is None or agent_name in begun:
            return False
        return self._places[room] == (agent.node_id or "", agent.spec.resources)

    def _hand_over(self, order: StartAgent) -> None:
        """Give an agent a vacant room of its shape, if there is one."""
        name, key = order.agent.name, (order.agent.name, order.incarnation)
        if not has_room(order) or order.adopt or key in self._of:
            return
        place = (order.node_id, order.agent.resources)
        for room, incoming in self._vacant.items():
            if incoming in ("", name) and self._places[room] == place:
                self._of[key] = room
                del self._vacant[room]
                return

    def _drop(self, room: str) -> None:
        """Remove a room."""
        self._places.pop(room, None)
        for key in [key for key, other in self._of.items() if other == room]:
            del self._of[key]
        done = asyncio.get_running_loop().create_future()
        self._removals.add(done)
        self._spawn(self._remove_room(room, done))

    async def _remove_room(self, room: str, done: asyncio.Future[None]) -> None:
        try:
            await self._groups.remove(room)
        finally:
            self._removals.discard(done)
            done.cancel()


def has_room(order: StartAgent) -> bool:
    """Whether an agent is to have a room: it has GPUs, is one process, and its node is chosen."""
    agent = order.agent
    placed = order.node_id is not None and order.group_id is None
    return placed and bool(agent.resources.gpu) and isinstance(agent.payload, AgentPayload)


def _shape(*bundles: Resources) -> GroupShape:
    return GroupShape(bundles=bundles)


def _known_rooms(state: MeshState) -> Iterator[tuple[str, Agent]]:
    """The rooms that the agents of the state have reported, with these; of those that start the rooms that
    were created for them.
    """
    for name, agent in state.agents.items():
        process = agent.process
        if process is not None and process.room:
            yield process.room, agent
        elif isinstance(agent.phase, Starting):
            yield f"{ROOM}{name}#{agent.incarnation}", agent
