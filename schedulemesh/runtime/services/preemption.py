"""Handles preemption requests: the dry run, the eviction of a task, the eviction of an agent."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from schedulemesh.api.preemption import EvaluatePreemption, ExecutePreemption, PreemptTask
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import AgentEvicted, Done, Evicted, Pending
from schedulemesh.engine.messages.query import PreemptionQuery
from schedulemesh.protocol.agents import pack, unpack
from schedulemesh.protocol.answers import Evaluated, EvictedState, Response
from schedulemesh.runtime.agents.eviction import without_state
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.queries import past_of
from schedulemesh.runtime.services.running import RunningSupervisor, Service
from schedulemesh.runtime.threads import beside_loop

#: Tasks whose last evaluation is remembered.
_REMEMBERED = 100_000


class PreemptionService(Service):
    """Evaluates preemptions and executes those that a client chose."""

    def __init__(self, running: RunningSupervisor) -> None:
        super().__init__(running)
        #: By task: the reason and score under which the last evaluation named it.
        self._named: dict[str, tuple[PreemptionReason, float]] = {}

    @handler
    async def evaluate(self, request: EvaluatePreemption) -> Evaluated:
        """The dry run of the preemption decision; evictions that are requested next get its reasons."""
        query = PreemptionQuery(
            priority=request.priority,
            pool_name=request.pool_name,
            labels=request.labels,
            resources=request.resources,
            limit=request.limit,
        )
        evaluation = await self._reactor.read(
            lambda: self._reactor.engine.evaluate(query, self._reactor.now())
        )
        if len(self._named) > _REMEMBERED:
            self._named.clear()
        for candidate in evaluation.candidates:
            self._named[candidate.task_id] = (candidate.reason, candidate.preempt_score)
        return Evaluated(evaluation=evaluation)

    @handler
    async def execute(self, request: ExecutePreemption) -> Response:
        """Evict one task, under the reason that the last evaluation gave."""
        reason, score = self._named.get(request.task_id, (PreemptionReason.MANUAL, None))
        return await self._preempt(
            s.PreemptionRequested(
                task_id=request.task_id,
                agent_name=request.agent_name,
                reason=reason,
                preempt_score=score,
                request_id=request.request_id,
            ),
            request.request_id,
        )

    @handler
    async def preempt(self, request: PreemptTask) -> Response:
        """Evict the agent of a task, with all its tasks."""
        return await self._preempt(
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

    async def _preempt(self, stimulus: s.PreemptionRequested, request_id: str) -> Response:
        """Evict by this request; the answer, once the task was cancelled or its agent has ended."""
        step = await self._reactor.step(stimulus)
        outcome = step.outcome or Done()
        if isinstance(outcome, Pending):
            outcome = await self._answers.outcome(request_id)
        if isinstance(outcome, AgentEvicted):
            return Response(outcome=outcome, evicted=await self._evicted_states(outcome.task_ids))
        if not isinstance(outcome, Evicted):
            return Response(outcome=outcome)
        task = self._task(outcome.task_id)
        key = outcome.state_key
        if task is None:
            return Response(outcome=outcome, saved=await self._reactor.fetch(key))
        saved = await self._packed_state(task, outcome.agent_name, key, outcome.save_error)
        return Response(outcome=outcome, saved=saved)

    def _task(self, task_id: str) -> TaskSpec | None:
        """A task that was evicted or runs on; None: it is not on record any more."""
        running = self._reactor.state.running.by_id.get(task_id)
        if running is not None:
            return running.spec
        past = past_of(self._reactor.state, task_id)
        return None if past is None else past[0]

    async def _evicted_states(self, task_ids: Sequence[str]) -> tuple[EvictedState, ...]:
        """What was saved of each of these tasks, which were evicted together; forgotten ones are
        left out.
        """
        state, evicted = self._reactor.state, []
        for task_id in task_ids:
            past, record = state.preempted.get(task_id), state.evictions.of_task(task_id)
            if past is None:
                continue
            fact = past.fact
            saved = await self._packed_state(
                fact.task, fact.agent_name, past.state_key, fact.save_error
            )
            evicted.append(
                EvictedState(
                    task_id=task_id,
                    reason=fact.reason,
                    saved=saved,
                    state_saved=record is not None and record.state_saved,
                    save_error=fact.save_error,
                )
            )
        return tuple(evicted)

    async def _packed_state(
        self, task: TaskSpec, agent_name: str, state_key: str | None, save_error: str
    ) -> bytes:
        """The packed state of an evicted task, or what is known of it without one. A state that was saved
        before the eviction says so.
        """
        stored = await self._reactor.fetch(state_key)
        if stored is not None and not save_error:
            return stored
        if stored is not None:
            warning = f"{save_error} This is the state that was saved before."
            return await beside_loop(len(stored), lambda: _earlier(stored, warning))
        partial_state = await without_state(self._reactor, task, agent_name)
        metrics = self._agents.metrics.newest_of(agent_name)
        return pack(
            msgspec.structs.replace(
                partial_state, last_metrics=metrics, warning=save_error, current=False
            )
        )


def _earlier(stored: bytes, warning: str) -> bytes:
    """A stored state as one that was saved before."""
    saved = unpack(stored, SavedState)
    return pack(msgspec.structs.replace(saved, warning=warning, current=False))
