"""Requests about tasks that wait in the queue, and about the order in which they are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from schedulemesh.api.policies import ChangeQueuePolicy, GetQueuePolicy
from schedulemesh.api.queue import ChangeQueuedTask, ListQueue
from schedulemesh.api.tasks import CancelTasks
from schedulemesh.config.queueing import changed_queue_policy
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.request_ids import portion_id
from schedulemesh.engine.admission.refusals import pool_not_found
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Refused, TasksCancelled
from schedulemesh.errors import JournalError
from schedulemesh.protocol.answers import Details, QueueListed, QueueRow, Refusal, Response, details
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.services.queue_rows import QueueRows, asked_for
from schedulemesh.runtime.services.running import Service
from schedulemesh.store.journal import InDoubtError

#: Tasks that are cancelled in one step, for which others wait.
_PORTION = 50


class QueueService(Service):
    """Changes, cancels and lists queued tasks; changes the policy of the queue."""

    @handler
    async def change(self, request: ChangeQueuedTask) -> Response:
        """Change how a task waits."""
        stimulus = s.QueuedTaskChanged(
            task_id=request.task_id,
            held=request.held,
            priority=request.priority,
            to_front=request.to_front,
            request_id=request.request_id,
        )
        return await self._decide(stimulus)

    @handler
    async def cancel(self, request: CancelTasks) -> Response:
        """Cancel tasks; answered when the processes of those that ran are gone."""
        refused: dict[str, Refused] = {}
        ending: list[str] = []
        already_ended: list[str] = []
        for first in range(0, len(request.task_ids), _PORTION):
            portion = request.task_ids[first : first + _PORTION]
            portion_of = portion_id(request.request_id, first // _PORTION)
            repeated = portion_of in self._reactor.state.answers
            stimulus = s.TasksCancellationRequested(task_ids=portion, request_id=portion_of)
            try:
                outcome = (await self._reactor.step(stimulus)).outcome
            except JournalError as error:
                if first == 0 or isinstance(error, InDoubtError):
                    raise
                why = Refused(reason=Reason.JOURNAL_UNAVAILABLE, error_text=str(error))
                refused |= dict.fromkeys(request.task_ids[first:], why)
                break
            if isinstance(outcome, TasksCancelled):
                refused |= outcome.refused
                already_ended += outcome.already_ended
                # Others may have the names of agents that ended after an earlier request.
                ending += () if repeated else outcome.ending
            # Others are served between two portions, also where nothing had to be written.
            await asyncio.sleep(0)
        await asyncio.gather(*(self._answers.end_of(name) for name in ending))
        # Those of tasks that another request has ended, or that have ended with others.
        for task_id in request.task_ids:
            await self._answers.end_with(task_id)
        return Response(
            outcome=TasksCancelled(
                refused=refused, already_ended=tuple(already_ended), ending=tuple(ending)
            )
        )

    @handler
    async def list(self, request: ListQueue) -> QueueListed | Refusal:
        """The first tasks of a pool's queue, or of each pool's."""
        name = request.pool_name

        await self._reactor.until_consistent()
        if name is not None and name not in self._reactor.state.ledger.accounts:
            return Refusal(refused=pool_not_found(self._reactor.state, name))

        def begin() -> list[Callable[[], QueueRow | None]]:
            state, now = self._reactor.state, self._reactor.now()
            rows = QueueRows(state, self._reactor.engine.wait_causes(now), now)
            return [
                partial(rows.row_if_queued, task, position)
                for position, task in asked_for(state, request)
            ]

        rows = await self._reactor.read_rows(begin, quick=True)
        if request.task_ids is not None:
            return QueueListed(rows=rows, total=len(rows))
        queue = self._reactor.state.queue
        names = [name] if name is not None else sorted(queue.pools)
        return QueueListed(rows=rows, total=sum(map(queue.size, names)))

    @handler
    async def policy(self, _: GetQueuePolicy) -> Details:
        """The policy of the queue."""
        return details(await self._reactor.read(self._policy))

    def _policy(self) -> dict[str, object]:
        return {"policy": self._reactor.state.queue.policy.public()}

    @handler
    async def change_policy(self, request: ChangeQueuePolicy) -> Details | Refusal:
        """Change these fields of the queue's policy; returns the complete policy."""
        await self._reactor.until_consistent()
        policy = changed_queue_policy(self._reactor.state.queue.policy, request.changes)
        if request.changes:
            step = await self._reactor.step(
                s.QueuePolicyChangeRequested(
                    policy=policy,
                    client=request.client,
                    changes=tuple(request.changes),
                    request_id=request.request_id,
                )
            )
            if isinstance(step.outcome, Refused):
                return Refusal(refused=step.outcome)
        return details({"policy": self._reactor.state.queue.policy.public()})
