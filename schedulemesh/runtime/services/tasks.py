"""Requests about tasks after their submission: wait for them, read their results, cancel them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from schedulemesh.api.tasks import CancelTask, GetResult, SetTimeLimit, TaskStatus, WaitTasks
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Done, Pending, Refused, TasksCancelled
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.past import ENDED, EndedTask
from schedulemesh.protocol.answers import Listed, Refusal, Response, TaskResult, listed
from schedulemesh.protocol.portions import PORTION
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.queries import task_status
from schedulemesh.runtime.services.running import RunningSupervisor, Service
from schedulemesh.runtime.services.task_waits import CONDITIONS, TaskWaits, has_ended

#: States of a task that ended without having been run to its end by its agent.
_WITHOUT_RESULT = {
    EndState.CANCELLED: Reason.TASK_CANCELLED,
    EndState.LOST: Reason.TASK_LOST,
}


class TaskService(Service):
    """Waits for tasks, returns their results and cancels them."""

    def __init__(self, running: RunningSupervisor) -> None:
        super().__init__(running)
        self._waits = TaskWaits(running.reactor)

    @handler
    async def wait(self, request: WaitTasks) -> Listed | Refusal:
        """The states of tasks, once enough of them have got so far or the time is over."""
        refused = await self._unknown(request.task_ids)
        if refused is not None:
            return refused
        reached = CONDITIONS[request.until]
        await self._waits.until(request.task_ids, reached, request.enough, request.wait_s)

        def begin() -> list[Callable[[], TaskStatus]]:
            state = self._reactor.state
            causes = self._reactor.engine.wait_causes(self._reactor.now())
            return [partial(task_status, state, one, causes) for one in request.task_ids]

        if len(request.task_ids) > PORTION:
            return listed(await self._reactor.read_rows(begin))
        return listed(await self._reactor.read(lambda: [make() for make in begin()]))

    @handler
    async def result(self, request: GetResult) -> TaskResult | Refusal:
        """The kept result or exception of a task, once it has ended; a task that its caller has completed has
        none.
        """
        task_id = request.task_id
        refused = await self._unknown((task_id,))
        if refused is not None:
            return refused
        await self._waits.until((task_id,), has_ended, 1, request.wait_s)
        ended = await self._reactor.read(lambda: self._reactor.state.ended.get(task_id))
        if ended is None:
            return await self._reactor.read(lambda: _not_ended(self._reactor.state, task_id))
        if ended.expired or ended.state in _WITHOUT_RESULT:
            return Refusal(refused=_no_result(ended))
        stored_result = await self._reactor.blob(ended.result_key)
        return TaskResult(state=ended.state.value, error=str(ended.error), kept=stored_result)

    @handler
    async def limit(self, request: SetTimeLimit) -> Response:
        """Change for how long a task may run."""
        stimulus = s.TimeLimitRequested(
            task_id=request.task_id,
            max_run_s=request.max_run_s,
            may_lengthen=request.may_lengthen,
            request_id=request.request_id,
        )
        return await self._decide(stimulus)

    @handler
    async def cancel(self, request: CancelTask) -> Response:
        """End a task; answered when the process of its agent is gone, if that ends with it, even if another
        request has ended it.
        """
        stimulus = s.TaskCancellationRequested(
            task_id=request.task_id, request_id=request.request_id
        )
        step = await self._reactor.step(stimulus)
        outcome = step.outcome or Done()
        if isinstance(outcome, TasksCancelled):
            await asyncio.gather(*(self._answers.end_of(name) for name in outcome.ending))
            outcome = Done()
        elif isinstance(outcome, Pending):
            await self._answers.end_of(outcome.agent_name)
            outcome = Done()
        else:
            await self._answers.end_with(request.task_id)
        return Response(outcome=outcome)

    async def _unknown(self, task_ids: tuple[str, ...]) -> Refusal | None:
        """The refusal if one of these tasks is not known."""

        def look() -> str | None:
            state = self._reactor.state
            return next(
                (t for t in task_ids if not state.is_alive(t) and state.end_of(t) is None), None
            )

        task_id = await self._reactor.read(look)
        if task_id is None:
            return None
        error = say("no_task_on_record", task=task_id, count=ENDED)
        return Refusal(refused=Refused(reason=Reason.TASK_NOT_FOUND, error_text=error))


def _not_ended(state: MeshState, task_id: str) -> Refusal:
    phase = task_status(state, task_id)["state"]
    refused = Refused(
        reason=Reason.TASK_NOT_ENDED,
        error_text=say("no_result_yet", task=task_id, state=str(phase)),
        hint_text=say("no_result_yet_hint", task=task_id),
    )
    return Refusal(refused=refused)


def _no_result(ended: EndedTask) -> Refused:
    task_id = ended.spec.task_id
    if ended.expired:
        error = say("result_not_kept", task=task_id)
        return Refused(reason=Reason.RESULT_EXPIRED, error_text=error)
    has_reason = ended.reason not in ("", ended.state.value)
    why = say("ended_because", reason=ended.reason) if has_reason else ""
    cause = say("ended_with_error", error=ended.error) if ended.error else ""
    error = say("ended_without_result", task=task_id, state=ended.state.value, why=why, cause=cause)
    return Refused(reason=_WITHOUT_RESULT[ended.state], error_text=error)
