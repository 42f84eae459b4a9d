"""Requests about leases, and the end of those whose holder has ended or did not renew them."""

from __future__ import annotations

import asyncio
import logging

from schedulemesh.api.leases import ReleaseLease, RenewLease, SaveLease, WatchLease
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import LeasePayload
from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.sentences import say
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import AgentAdmitted
from schedulemesh.engine.messages.outcomes import Done, Pending, Refused
from schedulemesh.engine.messages.queue_facts import TaskQueued
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.transaction import Step
from schedulemesh.protocol.answers import LeaseView, Refusal, Response
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.queries import task_status
from schedulemesh.runtime.services.running import RunningSupervisor, Service

logger = logging.getLogger(__name__)


class LeaseService(Service):
    """Answers requests about leases, and ends those that nobody holds any more."""

    def __init__(self, running: RunningSupervisor) -> None:
        super().__init__(running)
        self._leases = running.executor.leases
        #: Tasks that are leases and wait or run; those that have ended are removed at the next check.
        self._tasks: set[str] = set()
        #: When granted leases with a time to live end, by the incarnation of their agents and by the clock of
        #: the event loop. It is not stored: a supervisor that is started again gives them their whole time.
        self._expires: dict[int, float] = {}
        state = self._reactor.state
        for task_id in (*state.running.by_id, *state.queue.by_id):
            self._note(_agent_of(state, task_id), task_id)
        self._reactor.subscribe(self._take)

    @handler
    async def watch(self, request: WatchLease) -> LeaseView | Refusal:
        """How a lease stands, once that is not what the caller knows or the time is over."""
        until = _now() + request.wait_s
        agent = _agent_of(self._reactor.state, request.task_id)
        agent_name = request.agent_name if agent is None else agent.name
        with self._leases.watched(request.task_id, agent_name) as changed:
            while True:
                changed.clear()
                view = await self._reactor.read(lambda: self._view_of(request))
                left_s = until - _now()
                if isinstance(view, Refusal) or left_s <= 0:
                    return view
                if (view.state, view.grace_s is not None) != (request.known, request.notified):
                    return view
                try:
                    await asyncio.wait_for(changed.wait(), left_s)
                except (asyncio.TimeoutError, TimeoutError):
                    return view

    @handler
    async def renew(self, request: RenewLease) -> Response:
        """Have the time to live of a lease begin again."""
        agent = await self._living(request)
        if isinstance(agent, Refused):
            return Response(outcome=agent)
        granted = _granted(self._reactor.state, request.task_id)
        if granted is not None:
            self._begin_again(granted)
        return Response(outcome=Done())

    @handler
    async def save(self, request: SaveLease) -> Response:
        """Note that the work that is done in a lease can be restored from what its holder has saved."""
        agent = await self._living(request)
        if isinstance(agent, Refused):
            return Response(outcome=agent)
        saved = s.WorkReported(
            task_id=request.task_id, agent_name=agent.name, saved_at=self._reactor.now()
        )
        await self._reactor.step(saved)
        return Response(outcome=Done())

    async def _living(self, request: RenewLease | SaveLease) -> AgentSpec | Refused:
        """The agent of the lease that is meant."""
        view = await self._reactor.read(lambda: self._view_of(request))
        if isinstance(view, Refusal):
            return view.refused
        agent = _agent_of(self._reactor.state, request.task_id)
        if (
            agent is None
            or not isinstance(agent.payload, LeasePayload)
            or self._is_another(request)
        ):
            error = say("lease_has_ended", lease=request.task_id, why=view.reason or view.state)
            return Refused(reason=Reason.LEASE_ENDED, error_text=error)
        return agent

    @handler
    async def release(self, request: ReleaseLease) -> Response:
        """End a lease; answered when what ran in its groups has ended. One that is being evicted ends now."""
        task_id, state = request.task_id, self._reactor.state
        view = await self._reactor.read(lambda: self._view_of(request))
        if isinstance(view, Refusal):
            return Response(outcome=view.refused)
        if self._is_another(request):
            return Response(outcome=Done(change=Change.ALREADY_ENDED))
        task = state.running.by_id.get(task_id)
        if task is None:
            return await self._withdraw(request)
        self._leases.release(task.agent_name)
        if isinstance(task.phase, Preempting):
            await self._answers.end_of(task.agent_name)
            return Response(outcome=Done())
        stimulus = s.TaskFinished(task_id=task_id, end_agent=True, request_id=request.request_id)
        try:
            outcome = (await self._reactor.step(stimulus)).outcome or Done()
            if isinstance(outcome, Pending):
                await self._answers.end_of(task.agent_name)
                outcome = Done()
        finally:
            # Where it has not ended, its holder is notified of an eviction as before.
            self._leases.release(task.agent_name, released=False)
        return Response(outcome=outcome)

    async def _withdraw(self, request: ReleaseLease) -> Response:
        """Remove a lease from the queue; one that has ended before is no error."""
        if request.task_id not in self._reactor.state.queue.by_id:
            await self._answers.end_with(request.task_id)
            return Response(outcome=Done(change=Change.ALREADY_ENDED))
        stimulus = s.TaskCancellationRequested(
            task_id=request.task_id, request_id=request.request_id
        )
        return await self._decide(stimulus)

    async def check(self) -> None:
        """End the leases whose holder's job has ended, and those that were not renewed in time. Raises what
        was raised where it is not known of a job whether it runs, after all others.
        """
        state, over = self._reactor.state, dict[str, bool]()
        unknown: Exception | None = None
        self._forget_ended()
        for task_id in sorted(self._tasks):
            agent = _agent_of(state, task_id)
            if agent is None or not isinstance(agent.payload, LeasePayload):
                self._tasks.discard(task_id)
                continue
            job_id = agent.payload.holder_job
            if job_id and job_id not in over:
                try:
                    over[job_id] = not await self._backend.job_runs(job_id)
                except Exception as error:  # noqa: BLE001  # raised below; the others are checked first
                    over[job_id], unknown = False, error
            if job_id and over[job_id]:
                reason = f"job {job_id} of its holder has ended"
                # What the job ran has ended with it.
                self._leases.release(agent.name)
                await self._end(task_id, TaskEndReason.HOLDER_ENDED, reason)
            elif self._is_expired(_granted(state, task_id)):
                reason = f"it was not renewed within {agent.payload.ttl_s:g} s"
                await self._end(task_id, TaskEndReason.EXPIRED, reason)
        if unknown is not None:
            raise unknown

    def _forget_ended(self) -> None:
        if self._expires:
            incarnations = {agent.incarnation for agent in self._reactor.state.agents.values()}
            self._expires = {one: at for one, at in self._expires.items() if one in incarnations}

    def _is_expired(self, granted: Agent | None) -> bool:
        """Whether the time to live of a lease is over, which begins when it is granted. One that is being
        evicted has its grace.
        """
        if granted is None or _ttl_s(granted) is None:
            return False
        if granted.incarnation not in self._expires:
            self._begin_again(granted)
        return _now() > self._expires[granted.incarnation]

    def _begin_again(self, granted: Agent) -> None:
        if (ttl_s := _ttl_s(granted)) is not None:
            self._expires[granted.incarnation] = _now() + ttl_s

    async def _end(self, task_id: str, reason: TaskEndReason, error: str) -> None:
        logger.info("lease %s is ended: %s", task_id, error)
        stimulus = s.TaskCancellationRequested(task_id=task_id, reason=reason, error=error)
        await self._reactor.step(stimulus)

    def _is_another(self, request: WatchLease | RenewLease | SaveLease | ReleaseLease) -> bool:
        """Whether the lease that is meant has ended, and its id is that of another task by now."""
        agent = _agent_of(self._reactor.state, request.task_id)
        return bool(request.agent_name) and agent is not None and agent.name != request.agent_name

    def _view_of(
        self, request: WatchLease | RenewLease | SaveLease | ReleaseLease
    ) -> LeaseView | Refusal:
        """How the lease that is meant stands."""
        if self._is_another(request):
            return LeaseView(
                state="unknown", error="it has ended, and its id is that of another task now"
            )
        return self._view(request.task_id)

    def _view(self, task_id: str) -> LeaseView | Refusal:
        state = self._reactor.state
        status = task_status(state, task_id)
        agent, task = _agent_of(state, task_id), state.running.by_id.get(task_id)
        if status["state"] == "unknown" or (
            agent is not None and not isinstance(agent.payload, LeasePayload)
        ):
            error = say("no_lease", lease=task_id)
            return Refusal(refused=Refused(reason=Reason.TASK_NOT_FOUND, error_text=error))
        placed = None if task is None else state.agents.get(task.agent_name)
        group_id = None if placed is None else placed.group_id
        slot = None if group_id is None else self._groups.slot(group_id)
        grace_s = None if task is None else self._leases.grace_left(task.agent_name)
        return LeaseView(
            state=str(status["state"]),
            pool_name="" if agent is None else agent.pool_name,
            agent_name=str(status.get("agent_name", "" if agent is None else agent.name)),
            ray_id="" if slot is None else slot.ray_id,
            shape=None if slot is None else slot.shape,
            grace_s=grace_s,
            reason=str(status.get("reason", "")),
            error=str(status.get("error", "")),
        )

    def _take(self, step: Step) -> None:
        for fact in step.facts:
            if isinstance(fact, TaskQueued) and fact.submission.task is not None:
                self._note(fact.submission.agent, fact.submission.task.task_id)
            elif isinstance(fact, AgentAdmitted) and fact.task is not None:
                self._note(fact.agent, fact.task.task_id)

    def _note(self, agent: AgentSpec | None, task_id: str) -> None:
        if agent is not None and isinstance(agent.payload, LeasePayload):
            self._tasks.add(task_id)


def _ttl_s(agent: Agent) -> float | None:
    """Seconds after which a lease ends unless it is renewed; None: it need not be, or is no lease."""
    payload = agent.spec.payload
    return payload.ttl_s if isinstance(payload, LeasePayload) else None


def _agent_of(state: MeshState, task_id: str) -> AgentSpec | None:
    """The agent of a task that waits or runs; None: it does neither."""
    task, waiting = state.running.by_id.get(task_id), state.queue.by_id.get(task_id)
    if waiting is not None:
        return waiting.submission.agent
    agent = None if task is None else state.agents.get(task.agent_name)
    return None if agent is None else agent.spec


def _granted(state: MeshState, task_id: str) -> Agent | None:
    """The agent of a lease that is granted and not being ended; None: it is not."""
    task = state.running.by_id.get(task_id)
    agent = None if task is None else state.agents.get(task.agent_name)
    return agent if agent is not None and isinstance(agent.phase, Running) else None


def _now() -> float:
    """The time of the event loop in seconds."""
    return asyncio.get_running_loop().time()
