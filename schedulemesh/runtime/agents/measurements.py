"""Looks every few seconds at what agents use and report, and has the engine told of what changes decisions.

What the engine was told is in the journal. After a restart an agent that was idle counts as idle until it has
been measured again, at most for as long as a measurement is valid.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterator

from schedulemesh.engine.lifecycle.measurements import changes_anything
from schedulemesh.engine.lifecycle.time_limits import idle_limit
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.runtime.agents.progress import number
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.agents.usage import STALE_S
from schedulemesh.runtime.reactor import Reactor

logger = logging.getLogger(__name__)

#: Seconds between two looks.
EVERY_S = 5.0
#: GPUs that are used less than this, in per cent, are idle for ``idle_s`` where the policy has no
#: ``idle_gpu_percent``.
UNUSED_PERCENT = 1.0
#: Agents that are looked at before other work gets its turn.
_AT_ONCE = 200


class Measurements:
    """What was seen of agents since when, as far as the policy or a limit in time asks for it."""

    def __init__(self, reactor: Reactor, agents: Agents) -> None:
        self._reactor = reactor
        self._agents = agents
        self._started_at = reactor.now()
        #: Processes whose GPUs were used too little at each look, and since when; by name and incarnation.
        self._below: dict[tuple[str, int], float] = {}

    async def look(self) -> None:
        """Look once, and tell the engine where that changes anything."""
        reactor = self._reactor
        policy = reactor.state.policy
        by_policy = policy.idle_gpu_percent or policy.measured_progress
        if not by_policy and not self._any_idle_limit():
            self._below.clear()
            return
        idle, unused, seen = [], [], set[tuple[str, int]]()
        ends: list[tuple[str, float | None]] = []
        async for agent in self._running_agents():
            now = reactor.now()
            seen.update((name, agent.incarnation) for name in agent.spec.process_names)
            since = self._idle_since(agent, now)
            policy = reactor.state.policy
            if since is not None and policy.idle_gpu_percent and now - since >= policy.idle_gpu_s:
                idle.append((agent.spec.name, since))
            if since is not None and self._has_idle_limit(agent):
                unused.append((agent.spec.name, since))
            ends.extend(self._ends(agent))
        for key in self._below.keys() - seen:
            del self._below[key]
        measured = s.AgentsMeasured(idle=tuple(idle), ends=tuple(ends), unused=tuple(unused))
        if await reactor.read(lambda: changes_anything(reactor.state, measured, reactor.now())):
            await reactor.step(measured)

    def _any_idle_limit(self) -> bool:
        """Whether any task that runs has a limit for how long its GPUs may be idle, or a pool has one."""
        state = self._reactor.state
        if any(account.spec.idle_s is not None for account in state.ledger.accounts.values()):
            return True
        return any(task.spec.idle_s is not None for task in state.running.by_id.values())

    def _has_idle_limit(self, agent: Agent) -> bool:
        """Whether a task of an agent has such a limit."""
        state = self._reactor.state
        tasks = map(state.running.by_id.__getitem__, state.running.on_agent(agent.spec.name))
        return any(idle_limit(state, task) is not None for task in tasks)

    async def _running_agents(self) -> AsyncIterator[Agent]:
        """Every running agent; decisions are made in between."""
        for count, name in enumerate(list(self._reactor.state.agents), 1):
            agent = self._reactor.state.agents.get(name)
            if agent is not None and isinstance(agent.phase, Running):
                yield agent
            if not count % _AT_ONCE:
                await asyncio.sleep(0)

    def _idle_since(self, agent: Agent, now: float) -> float | None:
        """Since when the GPUs of all its processes are used too little; None: they are used, it has none, or
        nobody knows.
        """
        limit = self._reactor.state.policy.idle_gpu_percent
        if not limit and self._has_idle_limit(agent):
            limit = UNUSED_PERCENT
        if not agent.spec.resources.gpu or not limit:
            return None
        latest = -math.inf
        for name in agent.spec.process_names:
            key, reading = (name, agent.incarnation), gpu_utilization(self._agents, name, now)
            if reading is None:
                reading = self._recorded(agent, now)
            if reading is None or reading[0] >= limit:
                self._below.pop(key, None)
                return None
            latest = max(latest, self._below.setdefault(key, reading[1]))
        return latest

    def _ends(self, agent: Agent) -> Iterator[tuple[str, float | None]]:
        """The measured ends of the agent's tasks; None: one that was measured before is no longer true."""
        tasks = self._reactor.state.running.on_agent(agent.spec.name)
        if len(tasks) > 1:  # what several tasks do cannot be told apart
            yield from ((task_id, None) for task_id in tasks)
            return
        progress = self._agents.metrics.progress_of(agent.spec.process_names[0])
        if tasks and progress is not None and (progress.fell or progress.ends_at is not None):
            yield tasks[0], progress.ends_at

    def _recorded(self, agent: Agent, now: float) -> tuple[float, float] | None:
        """As ``gpu_utilization``, of an agent that an earlier supervisor found idle and that cannot have been
        measured again yet.
        """
        state = self._reactor.state
        since = state.running.idle.get(agent.spec.name)
        for task_id in state.running.on_agent(agent.spec.name) if since is None else ():
            since = state.running.by_id[task_id].idle_since
        return None if since is None or now - self._started_at > STALE_S else (0.0, since)


def gpu_utilization(agents: Agents, name: str, now: float) -> tuple[float, float] | None:
    """The utilisation of a process's GPUs in per cent, as measured or as it reports it itself, and when that
    was; None: not known.
    """
    measured = agents.usage.newest_of(name, now)
    if measured is not None and measured.usage.gpu_utilization is not None:
        return measured.usage.gpu_utilization, measured.at
    at = agents.metrics.at(name)
    reported = number(agents.metrics.newest_of(name).get("gpu_utilization"))
    if reported is None or at is None or now - at > STALE_S:
        return None
    return reported, at
