"""Describes starts in progress: which phase runs, for how long, and how long it may take."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.sentences import Sentence, say
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.messages.explanation import Explanation
from schedulemesh.engine.state.agents import Agent, Starting
from schedulemesh.runtime.agents.gangs import processes_of
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.backend import Backend, BackendError
from schedulemesh.runtime.reactor import Reactor

logger = logging.getLogger(__name__)

#: Seconds to ask the cluster about a start.
_ASK_S = 2.0
_DOING = {"load": say("start_loads"), "constructor": say("start_constructs")}


class StartPhases:
    """Adds to explanations of tasks that start what their processes are doing."""

    def __init__(self, backend: Backend, agents: Agents, reactor: Reactor) -> None:
        self._backend, self._agents, self._reactor = backend, agents, reactor

    async def described(self, explained: Explanation) -> Explanation:
        """The explanation, with the phase in which its start is where its process is being started."""
        agent = self._reactor.state.agents.get(explained.agent_name)
        if (
            agent is None
            or explained.state != TaskPhase.STARTING.value
            or not isinstance(agent.phase, Starting)
        ):
            return explained
        try:
            phase = await asyncio.wait_for(self._phase(agent), _ASK_S)
        except (BackendError, asyncio.TimeoutError, TimeoutError) as error:
            logger.debug("cannot ask about the start of %s: %s", agent.spec.name, error)
            return explained
        if phase is None:
            return explained
        detail = say("two_parts", first=explained.detail_text, second=phase)
        return msgspec.structs.replace(explained, detail_text=detail)

    async def _phase(self, agent: Agent) -> Sentence | None:
        """What the first process of an agent does that is not ready yet; None: not known."""
        for process in processes_of(self._reactor.state, agent):
            name, incarnation = process.spec.name, process.incarnation
            progress = self._agents.progress_of(name, incarnation)
            if progress is None:
                continue
            doing = _DOING.get(progress.phase) or await self._before_it_runs(process)
            is_member = isinstance(agent.spec.payload, GangPayload)
            line = await self._last_line(process) if progress.phase == "environment" else ""
            return say(
                "start_phase",
                member=say("start_member", name=name) if is_member else "",
                doing=doing,
                seconds=progress.seconds(),
                limit=progress.limit_s,
                line=say("start_last_line", line=line) if line else "",
            )
        return None

    async def _before_it_runs(self, process: Agent) -> Sentence:
        """What Ray does for a process that has not told anything yet."""
        handle = self._agents.handle(process.spec.name, process.incarnation)
        view = None if handle is None else await self._backend.actor(handle)
        if view is not None and view.has_process:
            return _DOING["load"]
        if self._agents.has_environment(process.spec.name, process.incarnation):
            return say("start_environment")
        return say("start_process")

    async def _last_line(self, process: Agent) -> str:
        """What was written last while environments were set up on the node of a process."""
        if not self._agents.has_environment(process.spec.name, process.incarnation):
            return ""
        node_id = process.node_id or self._backend.own_node_id()
        return await self._agents.cleanup.environment_line(node_id)
