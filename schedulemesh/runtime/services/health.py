"""Health checks of agents: which are dead or unresponsive, and which were rebuilt."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable

from schedulemesh.api.agents import HealthDetail, HealthReport, Problem
from schedulemesh.domain.payloads import LeasePayload
from schedulemesh.engine.messages.outcomes import Accepted, Pending, Refused
from schedulemesh.engine.messages.stimuli import RebuildRequested
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.runtime.agents.gangs import processes_of
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.backend import Backend
from schedulemesh.runtime.groups.manager import Groups
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.runtime.services.answers import Answers

logger = logging.getLogger(__name__)

#: Seconds that an agent may take to answer a ping.
PING_S = 5.0
#: Seconds for the processes of an agent to end, before others are rebuilt all the same.
_ENDED_S = 30.0
#: Seconds for the groups of lost agents to be removed before the agents are rebuilt.
_REMOVED_S = 10.0


class HealthCheck:
    """One check: finds dead agents in Ray, pings unresponsive ones, and rebuilds lost ones."""

    def __init__(
        self,
        backend: Backend,
        agents: Agents,
        groups: Groups,
        reactor: Reactor,
        answers: Answers,
        end: Callable[[str, int], Awaitable[None]],
    ) -> None:
        #: Ends an agent, and reports it as gone.
        self._end = end
        self._backend = backend
        self._agents = agents
        self._groups = groups
        self._reactor = reactor
        self._answers = answers

    async def run(self, timeout_s: float) -> HealthReport:
        """Check every running agent. ``timeout_s``: a host without contact for so long is pinged."""
        state = self._reactor.state
        agents = (a for a in state.agents.values() if not isinstance(a.spec.payload, LeasePayload))
        running = [agent for agent in agents if isinstance(agent.phase, Running)]
        living = await self._backend.living_actors()
        problems = await asyncio.gather(*(self._problem(a, living, timeout_s) for a in running))
        sick = [(a, problem) for a, problem in zip(running, problems, strict=True) if problem]
        ending = await self._terminate(sick)
        problem_by_agent = {agent.spec.name: problem for agent, problem in sick}
        await self._groups.removed_from(state.groups, _REMOVED_S)
        lost = [name for name, agent in state.lost.items() if not agent.reported]
        details = [
            detail
            for name in lost
            if (detail := await self._rebuild(name, problem_by_agent.get(name, "dead"))) is not None
        ]
        details += [self._still_ending(agent, problem) for agent, problem in ending]
        return {
            "checked": len({agent.spec.name for agent in running}.union(lost)),
            "healthy": len(running) - len(sick),
            "rebuilt": [d["agent_name"] for d in details if d["action"] == "rebuilt"],
            "removed": [d["agent_name"] for d in details if d["action"] == "removed"],
            "details": details,
        }

    async def _problem(
        self, agent: Agent, living: set[tuple[str, str]], timeout_s: float
    ) -> Problem | None:
        processes = processes_of(self._reactor.state, agent)
        if any(self._agents.where(process) not in living for process in processes):
            return "dead"
        if self._is_busy(agent.spec.name):
            return None
        names = [process.spec.name for process in processes]
        answers = await asyncio.gather(
            *(self._answers_ping(name, agent.incarnation, timeout_s) for name in names)
        )
        return None if all(answers) else "silent"

    async def _answers_ping(self, name: str, incarnation: int, timeout_s: float) -> bool:
        """Whether a process was in contact within ``timeout_s``, may carry out a command, such as to save, or
        answers now.
        """
        commands = self._agents.commands
        if commands.seconds_since_contact(name, incarnation) < timeout_s:
            return True
        if commands.is_awaited(name, incarnation):
            return True
        return await commands.execute(name, incarnation, "ping", PING_S) is not None

    def _is_busy(self, agent_name: str) -> bool:
        """Whether the host is being evicted, which may take longer than a ping."""
        running = self._reactor.state.running
        return any(
            isinstance(running.by_id[task_id].phase, Preempting)
            for task_id in running.on_agent(agent_name)
        )

    async def _terminate(self, sick: list[tuple[Agent, Problem]]) -> list[tuple[Agent, Problem]]:
        """End these agents; returns those that have not ended in time, whose ending goes on."""
        endings: list[asyncio.Future[None]] = []
        for agent, problem in sick:
            logger.warning("agent %s is %s; it is removed", agent.spec.name, problem)
            endings.append(asyncio.ensure_future(self._end(agent.spec.name, agent.incarnation)))
        if endings:
            await asyncio.wait(endings, timeout=_ENDED_S)
        late = [one for one, ending in zip(sick, endings, strict=True) if not ending.done()]
        for ending in endings:
            if ending.done():
                ending.result()
            else:
                ending.cancel()
        return late

    def _still_ending(self, agent: Agent, problem: Problem) -> HealthDetail:
        """That a process of an agent has not ended in time, as where it hangs in a call of the system."""
        return {
            "agent_name": agent.spec.name,
            "pool_name": agent.spec.pool_name,
            "problem": problem,
            "tasks": list(self._reactor.state.running.on_agent(agent.spec.name)),
            "action": "ending",
            "error": "its processes have not ended yet; its resources stay taken until they have",
        }

    async def _rebuild(self, name: str, problem: Problem) -> HealthDetail | None:
        """What was done for one lost agent; None: it was submitted again meanwhile."""
        lost = self._reactor.state.lost.get(name)
        if lost is None:
            return None
        request_id = uuid.uuid4().hex
        step = await self._reactor.step(RebuildRequested(agent_name=name, request_id=request_id))
        outcome = step.outcome
        if isinstance(outcome, Pending):
            outcome = await self._answers.outcome(request_id)
        tasks = [task.task_id for task, _ in lost.tasks]
        detail: HealthDetail = {
            "agent_name": name,
            "pool_name": lost.spec.pool_name,
            "problem": problem,
            "tasks": tasks,
            "action": "removed",
        }
        if isinstance(outcome, Accepted):
            detail["action"] = "rebuilt"
            detail["state_restored"] = bool(outcome.state_restored)
            again = set(self._reactor.state.running.on_agent(name))
            if left_out := [task_id for task_id in tasks if task_id not in again]:
                detail["left_out"] = left_out
            detail["tasks"] = [task_id for task_id in tasks if task_id in again]
        elif isinstance(outcome, Refused):
            detail["error"] = outcome.error
        return detail
