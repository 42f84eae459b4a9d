"""The supervisor's one entry for clients: decode a request, carry it out, encode the answer."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from typing_extensions import assert_never

from schedulemesh.config.policy import changed_policy
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.engine.admission.decide import pool_for
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import (
    Accepted,
    AgentEvicted,
    Done,
    Evicted,
    Pending,
    ProbeNeeded,
    Refused,
    RequestOutcome,
)
from schedulemesh.errors import InvalidRequestError, JournalError, shown
from schedulemesh.protocol import requests as r
from schedulemesh.protocol.answers import (
    AnyAnswer,
    Details,
    Evaluated,
    GroupPlace,
    Listed,
    Malformed,
    Refusal,
    Response,
    WithHandles,
    encode_answer,
)
from schedulemesh.runtime.backend import Refs
from schedulemesh.runtime.decision_log import log_refusal
from schedulemesh.runtime.health import HealthCheck
from schedulemesh.runtime.journal_opening import journal_address
from schedulemesh.runtime.orphans import Orphans
from schedulemesh.runtime.plugin_watchdog import PluginWatchdog
from schedulemesh.runtime.pool_service import PoolService
from schedulemesh.runtime.queries import View
from schedulemesh.runtime.references import NO_REFS
from schedulemesh.runtime.restarts import with_real_restarts
from schedulemesh.runtime.serving import unavailable
from schedulemesh.runtime.state_service import StateService

logger = logging.getLogger(__name__)

#: Seconds that the answer to a deletion waits for the removal of the agent's placement group.
_GROUP_GOES_S = 10.0

#: Characters of its pool's name that an agent without a name is called by.
_POOL_CHARS = 200

#: Names of running tasks whose last evaluation is remembered.
_NAMED = 100_000


class RequestService(StateService, PoolService):
    """Carries out what clients ask for. Only requests come in, so nobody but the runtime itself can make
    the engine believe that something happened.
    """

    #: Set when it begins.
    _watchdog: PluginWatchdog | None
    _orphans: Orphans

    def __init__(self) -> None:
        #: By task: the reason and score under which the last evaluation named it.
        self._named: dict[str, tuple[PreemptionReason, float]] = {}

    async def ask(self, data: bytes, refs: Refs = NO_REFS) -> bytes | tuple[bytes, list[Any]]:
        """Answer an encoded request, whose object references come beside it: an encoded answer, with the
        Ray handles that belong to it beside it, if any do.
        """
        try:
            request = r.decode_request(data)
        except InvalidRequestError as error:
            return encode_answer(Malformed(error=str(error)))
        if not self.is_ready:
            await self.ready()
        answer = await self._safely(request, refs)
        if isinstance(answer, WithHandles):
            return encode_answer(answer.answer), answer.handles
        return encode_answer(answer)

    async def _safely(self, request: r.AnyRequest, refs: Refs) -> AnyAnswer | WithHandles:
        """Carry a request out; whatever goes wrong becomes the answer, and concerns this caller alone."""
        try:
            return await self._carry_out(request, refs)
        except JournalError as error:
            return Refusal(refused=unavailable(error))
        except InvalidRequestError as error:
            return Malformed(error=str(error))
        except Exception as error:  # noqa: BLE001  # a broken promise; it is logged and answered
            return _failed(request, error)

    async def _carry_out(  # one straight list
        self, request: r.AnyRequest, refs: Refs
    ) -> AnyAnswer | WithHandles:
        match request:
            case r.SubmitTask():
                return await self.submit(request.submission, request.blobs, refs)
            case r.CreatePool():
                return await self.create_pool(request)
            case r.EnsurePool():
                return await self.ensure_pool(request)
            case r.ResizePool():
                return await self.resize_pool(request)
            case r.ChangePolicy():
                return await self._change_policy(request)
            case r.RegisterStateHandlers():
                return await self._decided(_handlers(request), request.blobs)
            case r.CordonNode():
                stimulus = s.CordonRequested(node_id=request.node_id, cordoned=request.cordoned)
                return await self._decided(stimulus)
            case r.RegisterTask():
                announced = s.TaskAnnounced(task=request.task, agent_name=request.agent_name)
                return await self._decided(announced, request.blobs)
            case r.CompleteTask():
                return await self._complete_task(request)
            case r.DeleteAgent():
                return await self._delete_agent(request)
            case r.ExecutePreemption():
                return await self._execute_preemption(request)
            case r.PreemptTask():
                return await self._preempt_task(request)
            case r.SaveTaskState():
                return await self.checkpoint(request.task_id)
            case r.RestoreTask():
                return await self.restore(request)
            case r.EndOrphans():
                return Details(facts={"ended": await self._orphans.end(request.names)})
            case r.EnsureAgentHealth():
                return Details(facts=await self.ensure_health(request.timeout_s))
            case r.EvaluatePreemption():
                return await self._evaluate(request)
            case r.GetSavedState():
                return await self.saved_state(request.task_id)
            case r.GetGroupStats():
                return await self.group_stats(request.pool_name)
            case r.ListStrategies():
                return Listed(rows=[] if self._watchdog is None else self._watchdog.status())
            case r.GetAbout():
                return Details(facts=await self._reactor.read(self._about))
            case (
                r.ListAgents()
                | r.ListPools()
                | r.ListTasks()
                | r.ListNodes()
                | r.ListSavedStates()
                | r.ListOrphans()
                | r.GetPolicy()
                | r.GetPreemptionStats()
                | r.GetStats()
            ):
                return await self._viewed(request)
            case _:
                assert_never(request)

    async def _viewed(self, query: r.AnyStateQuery) -> AnyAnswer | WithHandles:
        def look() -> AnyAnswer | WithHandles:
            view = View(self._reactor.state, self._agents, self._groups, self._reactor.now())
            return view.answer(query)

        return await self._reactor.read(look)

    async def _decided(
        self, stimulus: s.AnyStimulus, blobs: Mapping[str, bytes] | None = None
    ) -> Response:
        """A change that is done when it is decided."""
        step = await self._reactor.step(stimulus, blobs)
        return Response(outcome=step.outcome or Done())

    async def _change_policy(self, request: r.ChangePolicy) -> Details:
        """Change these fields of the policy; tells the whole policy in force."""
        policy = changed_policy(self._reactor.state.policy, request.changes)
        outcome: RequestOutcome | None = None
        if request.changes:
            step = await self._reactor.step(
                s.PolicyChangeRequested(
                    policy=policy,
                    client=request.client,
                    changes=tuple(request.changes),
                    level=request.level,
                )
            )
            outcome = step.outcome
        facts: dict[str, Any] = {"policy": self._reactor.state.policy.public()}
        if isinstance(outcome, Done) and outcome.warnings:
            facts["warnings"] = list(outcome.warnings)
        return Details(facts=facts)

    async def submit(
        self, stimulus: s.TaskSubmitted, blobs: Mapping[str, bytes], refs: Refs
    ) -> Response | WithHandles:
        """A submission: answered when the agent runs, or cannot."""
        class_key = stimulus.agent.class_key
        known = await self._executor.class_bytes(class_key, blobs)
        if known is None:
            return Response(outcome=ProbeNeeded(class_key=class_key))
        # The journal forgets classes that nothing refers to; this process may remember them for longer.
        blobs = {**blobs, class_key: known}
        self._executor.expect(stimulus.agent.arguments_key, blobs)
        references = self._executor.references
        stimulus = references.given_with(self._with_name(stimulus), refs)
        with references.held_for(stimulus.agent, refs):
            outcome = await self._admitted(stimulus, blobs)
        references.release_unused(self._reactor.state)
        return self._with_handle(outcome)

    async def answered(self, request_id: str) -> Response | WithHandles:
        """The first answer to a submission that is asked for again."""
        outcome = await self._reactor.answer(request_id)
        return self._with_handle(await with_real_restarts(self._reactor, outcome))

    async def _admitted(
        self, stimulus: s.TaskSubmitted, blobs: Mapping[str, bytes]
    ) -> RequestOutcome:
        """What becomes of a submission."""
        class_key = stimulus.agent.class_key
        step = await self._reactor.step(stimulus, blobs)
        if isinstance(step.outcome, ProbeNeeded):
            failed = await self._executor.probe(class_key, blobs[class_key], stimulus)
            if failed is not None:
                return failed
            step = await self._reactor.step(stimulus, blobs)
        outcome = step.outcome or Done()
        log_refusal(stimulus, outcome)
        if isinstance(outcome, Pending) and stimulus.request_id is not None:
            outcome = await self._reactor.answer(stimulus.request_id)
        return await with_real_restarts(self._reactor, outcome)

    def _with_handle(self, outcome: RequestOutcome) -> Response | WithHandles:
        """The outcome of a submission, with its group and the agent's Ray handle."""
        reply = Response(outcome=outcome, group=self._group_of(outcome))
        if not isinstance(outcome, Accepted):
            return reply
        agent = self._reactor.state.agents.get(outcome.agent_name)
        if agent is None:
            return reply
        return WithHandles(reply, [self._agents.handle(agent.spec.name, agent.incarnation)])

    def _group_of(self, outcome: RequestOutcome) -> GroupPlace | None:
        """Where the placement group stands that a submission was given."""
        if not isinstance(outcome, Accepted) or outcome.group_id is None:
            return None
        group = self._reactor.state.groups.by_id.get(outcome.group_id)
        return GroupPlace(
            name=self._groups.name(outcome.group_id),
            node_ids=() if group is None else group.node_ids,
        )

    async def _complete_task(self, request: r.CompleteTask) -> Response:
        stimulus = s.TaskFinished(
            task_id=request.task_id,
            end_agent=request.end_agent,
            request_id=request.request_id,
        )
        return await self._ended(stimulus)

    async def _delete_agent(self, request: r.DeleteAgent) -> Response:
        name, destroy = request.agent_name, request.destroy_group
        agent = self._reactor.state.agents.get(name)
        group_id = agent.group_id if agent is not None and destroy else None
        stimulus = s.AgentDeletionRequested(agent_name=name, destroy_group=destroy)
        reply = await self._ended(stimulus)
        until = time.monotonic() + _GROUP_GOES_S
        while group_id in self._reactor.state.groups.by_id and time.monotonic() < until:
            await self._groups.changed(until - time.monotonic())
        return reply

    async def _ended(self, stimulus: s.TaskFinished | s.AgentDeletionRequested) -> Response:
        """The end of a task or an agent: answered when the process is gone."""
        step = await self._reactor.step(stimulus)
        outcome = step.outcome or Done()
        if isinstance(outcome, Pending):
            await self._reactor.end_of(outcome.agent_name)
            outcome = Done()
        return Response(outcome=outcome)

    async def _execute_preemption(self, request: r.ExecutePreemption) -> Response:
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

    async def _preempt_task(self, request: r.PreemptTask) -> Response:
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
        """An eviction by hand: answered when the task was cancelled, or its agent is gone."""
        step = await self._reactor.step(stimulus)
        outcome = step.outcome or Done()
        if isinstance(outcome, Pending):
            outcome = await self._reactor.answer(request_id)
        if isinstance(outcome, AgentEvicted):
            return Response(outcome=outcome, evicted=await self._past(outcome.task_ids))
        key = outcome.state_key if isinstance(outcome, Evicted) else None
        return Response(outcome=outcome, saved=await self._reactor.fetch(key))

    async def _past(
        self, task_ids: Sequence[str]
    ) -> tuple[tuple[str, PreemptionReason, bytes | None], ...]:
        found = []
        for task_id in task_ids:
            past = self._reactor.state.preempted.get(task_id)
            if past is not None:
                saved = await self._reactor.fetch(past.state_key)
                found.append((task_id, past.fact.reason, saved))
        return tuple(found)

    async def ensure_health(self, timeout_s: float) -> dict[str, Any]:
        """A round of looking after agents."""
        return await HealthCheck(self._backend, self._agents, self._reactor).run(timeout_s)

    async def _evaluate(self, request: r.EvaluatePreemption) -> Evaluated:
        """The dry run of the preemption decision; its reasons count for evictions by hand that follow."""
        query = s.PreemptionQuery(
            priority=request.priority,
            pool_name=request.pool_name,
            labels=request.labels,
            resources=request.resources,
            limit=request.limit,
        )
        found = await self._reactor.read(
            lambda: self._reactor.engine.evaluate(query, self._reactor.now())
        )
        if len(self._named) > _NAMED:
            self._named.clear()
        for candidate in found.candidates:
            self._named[candidate.task_id] = (candidate.reason, candidate.preempt_score)
        return Evaluated(evaluation=found)

    def _about(self) -> dict[str, Any]:
        state = self._reactor.state
        return {
            "name": self._settings.name,
            "namespace": self._settings.namespace,
            "detached": self._settings.detached,
            "node_id": self._backend.own_node_id(),
            "pid": os.getpid(),
            "journal": str(journal_address(self._settings, self._backend.session_folder())),
            "epoch": state.epoch,
            "pools": len(state.ledger.accounts),
            "agents": len(state.agents),
            "running_tasks": len(state.running),
        }

    def _with_name(self, stimulus: s.TaskSubmitted) -> s.TaskSubmitted:
        """An agent without a name gets one that begins with its pool's."""
        agent = stimulus.agent
        if agent.name:
            return stimulus
        engine = self._reactor.engine
        pool = pool_for(engine.state, engine.strategies, stimulus) or ""
        name = f"{pool[:_POOL_CHARS]}-agent-{secrets.token_hex(3)}"
        named = msgspec.structs.replace(agent, name=name, pool_name=pool)
        return msgspec.structs.replace(stimulus, agent=named)


def _failed(request: r.AnyRequest, error: Exception) -> Refusal:
    """The answer to a request that nobody foresaw to fail; the log has what there is to know."""
    logger.error("request %s failed", type(request).__name__, exc_info=error)
    message = f"the scheduler failed at this request: {shown(error)}; its log says where"
    return Refusal(refused=Refused(reason=Reason.INTERNAL_ERROR, error=message))


def _handlers(request: r.RegisterStateHandlers) -> s.StateHandlersGiven:
    return s.StateHandlersGiven(
        pool_name=request.pool_name,
        preserver_key=request.preserver_key,
        restorer_key=request.restorer_key,
    )
