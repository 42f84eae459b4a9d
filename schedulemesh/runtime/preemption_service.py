"""Handles preemption requests: the dry run, the eviction of a task, the eviction of an agent."""

from __future__ import annotations

from collections.abc import Sequence

from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import AgentEvicted, Done, Evicted, Pending
from schedulemesh.engine.messages.query import PreemptionQuery
from schedulemesh.protocol import requests as r
from schedulemesh.protocol.answers import Evaluated, Response
from schedulemesh.runtime.running import Running, Service

#: Tasks whose last evaluation is remembered.
_REMEMBERED = 100_000


class PreemptionService(Service):
    """Evaluates preemptions and executes those that a client chose."""

    def __init__(self, running: Running) -> None:
        super().__init__(running)
        #: By task: the reason and score under which the last evaluation named it.
        self._named: dict[str, tuple[PreemptionReason, float]] = {}

    async def evaluate(self, request: r.EvaluatePreemption) -> Evaluated:
        """The dry run of the preemption decision; evictions that are requested next get its reasons."""
        query = PreemptionQuery(
            priority=request.priority,
            pool_name=request.pool_name,
            labels=request.labels,
            resources=request.resources,
            limit=request.limit,
        )
        found = await self._reactor.read(
            lambda: self._reactor.engine.evaluate(query, self._reactor.now())
        )
        if len(self._named) > _REMEMBERED:
            self._named.clear()
        for candidate in found.candidates:
            self._named[candidate.task_id] = (candidate.reason, candidate.preempt_score)
        return Evaluated(evaluation=found)

    async def execute(self, request: r.ExecutePreemption) -> Response:
        """Evict one task, under the reason that the last evaluation gave."""
        reason, score = self._named.get(request.task_id, (PreemptionReason.MANUAL, None))
        return await self._preempted(
            s.PreemptionRequested(
                task_id=request.task_id,
                agent_name=request.agent_name,
                reason=reason,
                preempt_score=score,
                request_id=request.request_id,
            ),
            request.request_id,
        )

    async def preempt(self, request: r.PreemptTask) -> Response:
        """Evict the agent of a task, with all its tasks."""
        return await self._preempted(
            s.PreemptionRequested(
                task_id=request.task_id,
                agent_name=request.agent_name,
                end_agent=True,
                for_pool=request.for_pool,
                client=request.client,
                request_id=request.request_id,
            ),
            request.request_id,
        )

    async def _preempted(self, stimulus: s.PreemptionRequested, request_id: str) -> Response:
        """An eviction: answered when the task was cancelled, or its agent has ended."""
        step = await self._reactor.step(stimulus)
        outcome = step.outcome or Done()
        if isinstance(outcome, Pending):
            outcome = await self._answers.outcome(request_id)
        if isinstance(outcome, AgentEvicted):
            return Response(outcome=outcome, evicted=await self._past(outcome.task_ids))
        key = outcome.state_key if isinstance(outcome, Evicted) else None
        return Response(outcome=outcome, saved=await self._reactor.fetch(key))

    async def _past(
        self, task_ids: Sequence[str]
    ) -> tuple[tuple[str, PreemptionReason, bytes | None], ...]:
        """Of tasks that were evicted together: id, reason and saved state."""
        found = []
        for task_id in task_ids:
            past = self._reactor.state.preempted.get(task_id)
            if past is not None:
                saved = await self._reactor.fetch(past.state_key)
                found.append((task_id, past.fact.reason, saved))
        return tuple(found)
