"""Scenarios: what would be if some agents were gone. They change no state; dropping one is the undo."""

from __future__ import annotations

from typing import Protocol

import msgspec

from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.device_guarantees import has_unreported, is_sure
from schedulemesh.engine.state.devices import devices_for
from schedulemesh.engine.state.nodes import Node


class VictimAgent(Protocol):
    """An agent that may leave."""

    @property
    def agent(self) -> Agent:
        """The agent."""


class Scenario:
    """What would be if some agents were gone, for one newcomer on at most one node."""

    def __init__(self, need: Resources, short_quota: Resources, node: Node | None) -> None:
        #: ``node`` None: room on a node is not in question.
        self._need = need
        self._short_quota = short_quota
        self._node = node
        self._freed = NOTHING
        self._room = node.free if node is not None else NOTHING
        self._devices = list(node.devices) if node is not None else []
        self._gone: set[str] = set()
        #: Whether others leave before it starts, wherever they are.
        self._waits = bool(short_quota)
        #: Whether it must be looked at who might be in the way.
        self._unsure = node is not None and (bool(node.promised) or has_unreported(node))

    def release(self, unit: VictimAgent) -> None:
        """Try this agent gone."""
        self._move(unit.agent, 1)

    def take_back(self, unit: VictimAgent) -> None:
        """Let this agent stay after all."""
        self._move(unit.agent, -1)

    @property
    def short_quota(self) -> Resources:
        """The quota still lacking."""
        return self._short_quota.beyond(self._freed)

    @property
    def short_room(self) -> Resources:
        """What the node still lacks; free shares of several devices count as if they were one."""
        return NOTHING if self._node is None else self._need.beyond(self._room)

    @property
    def short_device(self) -> bool:
        """Whether no device, or not enough of them, is surely free for the newcomer's GPU amount."""
        if self._node is None or not self._need.gpu:
            return False
        if devices_for(self._devices, self._need.gpu) is None:
            return True
        return self._unsure and not is_sure(
            self._node, (self._need.gpu,), self._gone, waits=self._waits
        )

    @property
    def has_room(self) -> bool:
        """Whether the node, down to its devices, takes the newcomer."""
        if self._node is None:
            return True
        return self._need.fits(self._room) and not self.short_device

    def fits(self) -> bool:
        """Whether both books agree."""
        return self.has_room and not self.short_quota

    def _move(self, agent: Agent, sign: int) -> None:
        paid = agent.spec.resources
        self._freed = self._freed + paid if sign > 0 else self._freed - paid
        if self._node is None or agent.node_id != self._node.node_id:
            return
        name = agent.spec.name
        allocations = self._node.allocations.get(name)
        if allocations is None:
            return
        if sign > 0:
            self._gone.add(name)
        else:
            self._gone.discard(name)
        gpu = 0
        for i, units in allocations.devices.units:
            self._devices[i] += sign * units
            gpu += units
        held = msgspec.structs.replace(allocations.held, gpu=gpu)
        self._room = self._room + held if sign > 0 else self._room - held
