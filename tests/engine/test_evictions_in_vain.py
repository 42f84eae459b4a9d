"""Agents with shares of GPUs start where Ray likes, and nobody may have left in vain.

The devices here are as wilful as Ray may be: an agent that was told to start gets any devices with room, at
any later moment, whatever the book assumed, and tells them later still.
"""

from __future__ import annotations

import os
import random

from schedulemesh.domain.resources import UNIT
from tests.engine.builders import Mesh, node, on, pool

#: Evictions that one run waits for; the long form: 10,000.
EVICTIONS = int(os.environ.get("SCHEDULEMESH_EVICTIONS", "400"))
SHARES = (0.2, 0.25, 0.3, 0.5, 0.5, 0.7, 1, 1, 2)


class Devices:
    """What agents really hold, node by node and device by device."""

    def __init__(self, chance: random.Random, nodes: dict[str, int]) -> None:
        self.chance = chance
        self.free = {node_id: [UNIT] * gpus for node_id, gpus in nodes.items()}
        self.held: dict[str, tuple[str, dict[int, int]]] = {}

    def place(self, name: str, node_id: str, gpu: int) -> bool:
        """Give the agent devices, any that will do; whether there are."""
        free = self.free[node_id]
        if gpu < UNIT:
            able = [i for i, units in enumerate(free) if units >= gpu]
            taken = {self.chance.choice(able): gpu} if able else None
        else:
            able = [i for i, units in enumerate(free) if units == UNIT]
            many = gpu // UNIT
            taken = (
                dict.fromkeys(self.chance.sample(able, many), UNIT) if len(able) >= many else None
            )
        if taken is None:
            return False
        for i, units in taken.items():
            free[i] -= units
        self.held[name] = (node_id, taken)
        return True

    def release(self, name: str) -> None:
        """The agent's process is gone."""
        node_id, taken = self.held.pop(name, ("", {}))
        for i, units in taken.items():
            self.free[node_id][i] += units


class Trial:
    """A full cluster, and one thing after the other that happens there."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        nodes = {f"n{i}": self.chance.randint(1, 4) for i in range(self.chance.randint(1, 3))}
        self.mesh = Mesh(
            pool("p", cpu=1000, gpu=100),
            nodes=[node(name, cpu=16, gpu=gpus) for name, gpus in nodes.items()],
        )
        self.devices = Devices(self.chance, nodes)
        self.made = 0
        #: Incoming agents with victims, and the victims that ended for each.
        self.evicted_for: dict[str, int] = {}
        self.evictions = 0
        self.in_vain = 0

    def step(self) -> None:
        """Something happens."""
        often = (self._submit, self._place, self._tell, self._go)
        self.chance.choice((*often, *often, self._finish))()
        self.mesh.now += 1.0

    def settle(self) -> None:
        """Let all that is under way come to its end: nobody may be left without devices."""
        for _ in range(200):
            if not self.mesh.starts and not self.mesh.ends:
                break
            for act in (self._place, self._tell, self._go):
                act()
        for name in list(self.mesh.starts):
            assert name not in self.devices.held, "somebody was placed and never told"
            self.in_vain += self.evicted_for.pop(name, 0)
            self.mesh.fail(name)
        self._count()

    def _submit(self) -> None:
        self.made += 1
        gpu = self.chance.choice(SHARES)
        self.mesh.submit(
            f"a{self.made}", priority=float(self.chance.randint(0, 40)), cpu=0.1, gpu=gpu
        )
        agent = self.mesh.state.agents.get(f"a{self.made}")
        if agent is not None and agent.submission is not None and agent.submission.evicting:
            self.evicted_for[agent.spec.name] = len(agent.submission.evicting)
            self.evictions += len(agent.submission.evicting)

    def _place(self) -> None:
        waiting = [name for name in self.mesh.starts if name not in self.devices.held]
        if waiting:
            name = self.chance.choice(waiting)
            order = self.mesh.starts[name]
            self.devices.place(name, order.node_id or "", order.agent.resources.gpu)

    def _tell(self) -> None:
        placed = [name for name in self.mesh.starts if name in self.devices.held]
        if placed:
            name = self.chance.choice(placed)
            taken = self.devices.held[name][1]
            self.mesh.report(name, devices=on(*((i, n / UNIT) for i, n in sorted(taken.items()))))
            self.evicted_for.pop(name, None)

    def _go(self) -> None:
        if self.mesh.ends:
            name = self.chance.choice(sorted(self.mesh.ends))
            self.devices.release(name)
            self.mesh.leave(name)
            self._count()

    def _finish(self) -> None:
        running = self.mesh.state.running.by_id
        able = [t for t, task in running.items() if task.phase.value == "running"]
        if able:
            self.mesh.complete(self.chance.choice(able))
            for name in [n for n in self.devices.held if n not in self.mesh.state.agents]:
                self.devices.release(name)

    def _count(self) -> None:
        """Incoming agents that were removed although others had been evicted for them."""
        for name in [n for n in self.evicted_for if n not in self.mesh.state.agents]:
            self.in_vain += self.evicted_for.pop(name)


def test_nobody_leaves_in_vain():
    seed = int(os.environ.get("SCHEDULEMESH_SEED", "1"))
    print(f"seed {seed}")
    chance = random.Random(seed)
    evictions = in_vain = 0
    while evictions < EVICTIONS:
        trial = Trial(chance.randrange(10**9))
        for _ in range(120):
            trial.step()
        trial.settle()
        evictions += trial.evictions
        in_vain += trial.in_vain
    assert not in_vain, f"{in_vain} of {evictions} evictions were in vain"
