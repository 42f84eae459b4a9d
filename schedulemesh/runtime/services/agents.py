"""Calls about agents and the tasks that run on them: register, complete, end, check, explain."""

from __future__ import annotations

import time

import msgspec

from schedulemesh.api.agents import DeleteAgent, EnsureAgentHealth, HealthReport
from schedulemesh.api.tasks import CompleteTask, ExplainTask, RegisterTask
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.explanation import Explanation
from schedulemesh.engine.messages.outcomes import Done, Pending, Refused
from schedulemesh.protocol.answers import Details, Explained, Refusal, Response, details
from schedulemesh.runtime.agents.measurements import gpu_utilization
from schedulemesh.runtime.alerts.notices import check_notify
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.services.external_usage import ExternalUsageService
from schedulemesh.runtime.services.health import HealthCheck
from schedulemesh.runtime.services.running import RunningSupervisor, Service

#: Seconds that the answer to a deletion waits for the removal of the agent's placement group.
_GROUP_GOES_S = 10.0


class AgentService(Service):
    """Answers calls about agents."""

    def __init__(self, running: RunningSupervisor, external: ExternalUsageService) -> None:
        super().__init__(running)
        self._external, self._receivers = external, running.alerts.receivers

    @handler
    async def register_task(self, request: RegisterTask) -> Response:
        """Register a task that runs on an agent. Raises InvalidRequestError where its label ``notify`` names
        nobody.
        """
        check_notify(request.task.labels, self._receivers)
        stimulus = s.TaskAnnounced(
            task=request.task, agent_name=request.agent_name, request_id=request.request_id
        )
        return await self._decide(stimulus, request.blobs)

    @handler
    async def complete_task(self, request: CompleteTask) -> Response:
        """The end of a task: answered when the process of its agent is gone, if that ends, too."""
        stimulus = s.TaskFinished(
            task_id=request.task_id,
            end_agent=request.end_agent,
            request_id=request.request_id,
        )
        response = await self._end(stimulus)
        if isinstance(response.outcome, Done):
            # One that is repeated is decided already, and its agent may not have ended.
            await self._answers.end_with(request.task_id)
        return response

    @handler
    async def delete_agent(self, request: DeleteAgent) -> Response:
        """The end of an agent: answered when its process is gone, and its group where that is removed."""
        name, destroy = request.agent_name, request.destroy_group
        agent = self._reactor.state.agents.get(name)
        group_id = agent.group_id if agent is not None and destroy else None
        stimulus = s.AgentDeletionRequested(
            agent_name=name, destroy_group=destroy, request_id=request.request_id
        )
        response = await self._end(stimulus)
        until = time.monotonic() + _GROUP_GOES_S
        while group_id in self._reactor.state.groups.by_id and time.monotonic() < until:
            await self._groups.changed(until - time.monotonic())
        return response

    async def _end(self, stimulus: s.TaskFinished | s.AgentDeletionRequested) -> Response:
        step = await self._reactor.step(stimulus)
        outcome = step.outcome or Done()
        if isinstance(outcome, Pending):
            await self._answers.end_of(outcome.agent_name)
            outcome = Done()
        return Response(outcome=outcome)

    @handler
    async def ensure_agent_health(self, request: EnsureAgentHealth) -> Details:
        """What a check of all agents found and rebuilt."""
        return details(await self.ensure_health(request.timeout_s))

    async def ensure_health(self, timeout_s: float) -> HealthReport:
        """Check all agents once; see HealthCheck.run."""
        check = HealthCheck(
            self._backend,
            self._agents,
            self._groups,
            self._reactor,
            self._answers,
            self._executor.end,
        )
        return await check.run(timeout_s)

    @handler
    async def explain(self, request: ExplainTask) -> Explained | Refusal:
        """What is known of a task."""
        reactor, task_id = self._reactor, request.task_id
        explanation = await reactor.read(lambda: reactor.engine.explain(task_id, reactor.now()))
        if isinstance(explanation, Refused):
            return Refusal(refused=explanation)
        explanation = await self._executor.starts.described(self._with_measured(explanation))
        return Explained(explanation=await self._external.named(explanation))

    def _with_measured(self, explanation: Explanation) -> Explanation:
        """With whether the GPUs of a task that has a limit for their idleness are measured."""
        agent = self._reactor.state.agents.get(explanation.agent_name)
        if explanation.idle_limit_s is None or explanation.state != "running" or agent is None:
            return explanation
        now, names = self._reactor.now(), agent.spec.process_names
        measured = all(gpu_utilization(self._agents, name, now) is not None for name in names)
        return msgspec.structs.replace(explanation, gpus_measured=measured)
