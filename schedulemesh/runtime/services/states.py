"""Handles requests about saved states: save, restore, read."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from schedulemesh.api.states import GetSavedState, RestoreTask, SaveTaskState
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.admission.registration import duplicate_task
from schedulemesh.engine.lifecycle.agents import current
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Done, Refused, RequestOutcome
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.protocol.agents import key_of, line_and_traceback, pack
from schedulemesh.protocol.answers import Refusal, Response, SavedBytes, WithHandles
from schedulemesh.runtime.agents.references import NO_REFS
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.queries import past_of, saved_key, task_status
from schedulemesh.runtime.services.running import RunningSupervisor, Service
from schedulemesh.runtime.services.submissions import SubmissionService
from schedulemesh.runtime.threads import beside_loop

logger = logging.getLogger(__name__)


class StateService(Service):
    """Saves, returns and restores the states of tasks."""

    def __init__(self, running: RunningSupervisor, submissions: SubmissionService) -> None:
        super().__init__(running)
        self._submissions = submissions
        #: The restorations in progress, with their requests, by request id.
        self._restorations: dict[
            str, tuple[RestoreTask, asyncio.Future[Response | WithHandles]]
        ] = {}

    @handler
    async def restore(self, request: RestoreTask) -> Response | WithHandles:
        """Pass a saved state to the pool's restorer, and restart the task if it was submitted. A request that
        is repeated while it is in progress gets the answer of the first, so that the restorer runs once.
        """
        first_request, restoration = self._restorations.get(request.request_id, (None, None))
        if restoration is not None and first_request == request:
            return await asyncio.shield(restoration)
        restoration = asyncio.ensure_future(self._restore(request))
        self._restorations[request.request_id] = request, restoration
        try:
            return await restoration
        finally:
            if self._restorations.get(request.request_id) == (request, restoration):
                del self._restorations[request.request_id]

    async def _restore(self, request: RestoreTask) -> Response | WithHandles:
        """Pass a saved state to the restorer of its pool, if there is one, and submit the task again where it
        can be rebuilt.
        """
        size = request.saved.size
        saved_state = await beside_loop(size, lambda: pack(request.saved))
        # What is refused or repeated is compared with what is durable: the rest may be rolled back.
        await self._reactor.flushed()
        state, task_id = self._reactor.state, request.saved.task.task_id
        if request.request_id in state.answers or request.request_id in state.requests:
            return await self._submissions.answered(request.request_id)
        if (taken := _leaving(state, task_id) or duplicate_task(state, task_id)) is not None:
            return Response(outcome=taken)
        task, agent = past_of(state, task_id) or (None, None)
        pool = request.saved.task.pool_name or ("" if task is None else task.pool_name)
        handlers = state.handlers.get(pool)
        restorer = None if handlers is None else await self._reactor.blob(handlers.restorer_key)
        if (too_large := self._too_large(task_id, len(saved_state))) is not None:
            return Response(outcome=too_large)
        if restorer is not None:
            handled = await self._executor.code.restore_state(restorer, saved_state)
            if handled.error:
                return Response(outcome=_restorer_failed(pool, task_id, handled.error))
        if agent is None or not agent.class_key:
            return Response(outcome=_cannot_resubmit(task_id, restored=restorer is not None))
        if not agent.restartable:
            error = say("task_has_references", task=task_id)
            return Response(outcome=Refused(reason=Reason.NOT_RESTARTABLE, error_text=error))
        state_key = await beside_loop(size, lambda: key_of(saved_state))
        await self._reactor.keep({state_key: saved_state})
        stimulus = s.TaskSubmitted(
            agent=agent,
            # Whoever restores it decides that it runs, not the task that once started it.
            task=None if task is None else msgspec.structs.replace(task, parent=""),
            request_id=request.request_id,
            state_key=state_key,
            client=request.client,
        )
        return await self._submissions.submit(stimulus, {}, NO_REFS)

    def _too_large(self, task_id: str, size: int) -> Refused | None:
        """The refusal of a state that is larger than those that are kept."""
        limit_bytes = self._reactor.saved_state_bytes
        if size <= limit_bytes:
            return None
        too_large = say("state_above_limit", task=task_id, size=size, limit=limit_bytes)
        return Refused(reason=Reason.STATE_TOO_LARGE, error_text=too_large)

    @handler
    async def saved_state(self, request: GetSavedState) -> SavedBytes | Refusal:
        """The stored state of a task that was preempted; refused with the cause where its save failed."""
        task_id = request.task_id

        def look() -> tuple[str | None, str]:
            state = self._reactor.state
            eviction = state.evictions.of_task(task_id)
            return saved_key(state, task_id), "" if eviction is None else eviction.save_error

        key, save_error = await self._reactor.read(look)
        if key is None and save_error:
            return Refusal(refused=_not_saved(task_id, save_error))
        return SavedBytes(state=await self._reactor.blob(key))

    async def last_saved(self, agent_name: str, incarnation: int) -> bytes | None:
        """The state last saved of any task of an agent that Ray restarted; None: there is none."""
        state = self._reactor.state
        tasks = [state.running.by_id[t] for t in state.running.on_agent(agent_name)]
        keys = [task.state_key for task in tasks if task.state_key is not None]
        agent = current(state, agent_name, incarnation)
        return None if agent is None or not keys else await self._reactor.fetch(keys[0])

    @handler
    async def checkpoint(self, request: SaveTaskState) -> SavedBytes | Refusal:
        """Save a running task's state, and let it go on; nothing where there is no such task."""
        refused = await self._reactor.read(
            lambda: _does_not_run(self._reactor.state, request.task_id)
        )
        if refused is not None:
            return Refusal(refused=refused)
        eviction = self._executor.eviction(request.task_id)
        task = eviction.task
        if task is None or task.phase is not TaskPhase.RUNNING:
            return SavedBytes()
        try:
            saved = await eviction.checkpoint()
            if isinstance(saved, Refused):
                return Refusal(refused=saved)
            if saved is None:
                return SavedBytes()
            return SavedBytes(state=await beside_loop(saved.size, lambda: pack(saved)))
        finally:
            await eviction.resume()


#: What to do about a task that is in this state and cannot be saved.
_SAVED_HOW = {
    "queued": say("save_when_it_runs"),
    "starting": say("save_when_it_runs"),
    "preempting": say("saved_at_eviction"),
}


def _does_not_run(state: MeshState, task_id: str) -> Refused | None:
    """The refusal of a save if a task does not run; None: it does, or there is no such task."""
    word = task_status(state, task_id)["state"]
    if word in ("running", "unknown"):
        return None
    return Refused(
        reason=Reason.TASK_NOT_RUNNING,
        error_text=say("no_state_while", task=task_id, state=word),
        hint_text=_SAVED_HOW.get(word, say("saved_before", task=task_id)),
    )


def _leaving(state: MeshState, task_id: str) -> Refused | None:
    """The refusal if a task is still being preempted: it is restored only after its agent has ended."""
    task = state.running.by_id.get(task_id)
    if task is None or not isinstance(task.phase, Preempting):
        return None
    return Refused(
        reason=Reason.ALREADY_BEING_PREEMPTED,
        error_text=say("is_still_preempted", task=task_id, agent=task.agent_name),
        hint_text=say("is_still_preempted_hint"),
    )


def _not_saved(task_id: str, save_error: str) -> Refused:
    line, detail = line_and_traceback(save_error)
    return Refused(
        reason=Reason.STATE_NOT_FOUND,
        error_text=say("no_state_of_eviction", task=task_id, why=line),
        hint_text=say("no_state_of_eviction_hint"),
        detail=detail,
    )


def _restorer_failed(pool: str, task_id: str, error: str) -> Refused:
    logger.warning("the restorer of pool %s failed: task_id=%s error=%s", pool, task_id, error)
    line, detail = line_and_traceback(error)
    return Refused(
        reason=Reason.RESTORE_FAILED,
        error_text=say("restorer_failed", pool=pool, task=task_id, why=line),
        detail=detail,
    )


def _cannot_resubmit(task_id: str, *, restored: bool) -> RequestOutcome:
    if restored:
        return Done()
    return Refused(
        reason=Reason.NOT_RESUBMITTABLE,
        error_text=say("not_resubmittable_by_us", task=task_id),
    )
