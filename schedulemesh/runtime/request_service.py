"""Requests of clients: each is executed by the service for its subject, and answered."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from functools import partial

import msgspec

from schedulemesh.config.policy import changed_policy
from schedulemesh.domain.node_names import nodes_named, unknown_node
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Done, Pending, Refused, RequestOutcome
from schedulemesh.errors import InvalidRequestError, JournalError, shown
from schedulemesh.metrics.values import Family
from schedulemesh.protocol import history_requests as h
from schedulemesh.protocol import queue_requests as q
from schedulemesh.protocol import requests as r
from schedulemesh.protocol import state_requests, task_requests
from schedulemesh.protocol import token_requests as tokens
from schedulemesh.protocol.alert_requests import GetAlerts
from schedulemesh.protocol.answers import (
    AnyAnswer,
    Details,
    Explained,
    Listed,
    Malformed,
    Refusal,
    Response,
    WithHandles,
)
from schedulemesh.protocol.audit_requests import QueryAudit
from schedulemesh.protocol.callers import Caller, bound
from schedulemesh.protocol.drain_requests import Drain
from schedulemesh.protocol.job_logs import ListJobs, ReadJobLog
from schedulemesh.protocol.lease_requests import ReleaseLease, RenewLease, SaveLease, WatchLease
from schedulemesh.protocol.metric_requests import GetMetrics, GetReportedMetrics
from schedulemesh.protocol.pages import ListPage
from schedulemesh.runtime.alert_service import AlertService
from schedulemesh.runtime.answers import OpenRequests
from schedulemesh.runtime.audit import AUDITED, Audit
from schedulemesh.runtime.backend import Refs
from schedulemesh.runtime.decision_log import log_unchanged_policy
from schedulemesh.runtime.external_usage import ExternalUsageService
from schedulemesh.runtime.health import HealthCheck
from schedulemesh.runtime.history_service import HistoryService
from schedulemesh.runtime.job_service import JobService
from schedulemesh.runtime.journal_opening import journal_address
from schedulemesh.runtime.lease_service import LeaseService
from schedulemesh.runtime.metrics_service import MetricsService
from schedulemesh.runtime.permissions import limited, refusal, token_change
from schedulemesh.runtime.pool_service import PoolService
from schedulemesh.runtime.preemption_service import PreemptionService
from schedulemesh.runtime.queries import View
from schedulemesh.runtime.queue_service import QueueService
from schedulemesh.runtime.running import Running, Service
from schedulemesh.runtime.state_service import StateService
from schedulemesh.runtime.submission_service import SubmissionService
from schedulemesh.runtime.task_pages import TaskPages
from schedulemesh.runtime.task_service import TaskService
from schedulemesh.runtime.threads import in_thread
from schedulemesh.version import VERSION

logger = logging.getLogger(__name__)

#: Seconds that the answer to a deletion waits for the removal of the agent's placement group.
_GROUP_GOES_S = 10.0


class RequestService(Service):
    """Executes what clients request. Only requests come in, so nobody but the runtime itself can make the
    engine believe that something happened.
    """

    def __init__(self, running: Running) -> None:
        super().__init__(running)
        self.running = running
        self._pools = PoolService(running)
        self._submissions = SubmissionService(running)
        self._preemptions = PreemptionService(running)
        self._tasks = TaskService(running)
        self._external = ExternalUsageService(running)
        self._queue = QueueService(running)
        self._jobs = JobService(running)
        self._pages = TaskPages(running, self._jobs)
        self.leases = LeaseService(running)
        self._metrics = MetricsService(running)
        self.alerts = AlertService(running, self._metrics)
        self._history = HistoryService(running)
        self._audit = Audit(running.reactor)
        self._open = OpenRequests(running.reactor)
        self.states = StateService(running, self._submissions)
        self._began_at = running.reactor.now()

    def metric_families(self) -> Iterator[Family]:
        """All metrics of the present state."""
        return self._metrics.families(self._reactor.state)

    async def answer(
        self,
        request: r.AnyRequest,
        refs: Refs,
        caller: Caller | None = None,
        address: str = "",
    ) -> AnyAnswer | WithHandles:
        """Execute a request, and record it if it is a change. Whatever fails becomes the answer, and concerns
        this caller alone.

        ``caller``: the holder of a token, whose role and limits are checked; None: the call needs none.
        ``address``: where it comes from, for the record.
        """
        if caller is not None:
            request = await self._limited(bound(request, caller), caller)
        request, refused = self._with_node_id(request)
        if caller is not None:
            refused = await self._not_allowed(request, caller) or refused
        kind = type(request)
        with self._open.answering(request) as earlier:
            try:
                if not (kind in AUDITED or (refused and kind in r.CHANGES)):
                    return await self._answered(request, refs, refused)
                return await self._audit.carry_out(
                    request, caller, address, lambda: self._answered(request, refs, refused)
                )
            except JournalError as error:
                await self._open.resolved(error, earlier)
                return Refusal(refused=Refused(reason=Reason.JOURNAL_UNAVAILABLE, error=str(error)))

    async def _answered(
        self, request: r.AnyRequest, refs: Refs, refused: Refused | None
    ) -> AnyAnswer | WithHandles:
        """The answer to a request, which is this refusal if there is one. Raises JournalError."""
        try:
            if refused is not None:
                return Refusal(refused=refused)
            return await self._execute(request, refs)
        except JournalError:
            raise
        except InvalidRequestError as error:
            return Malformed(error=str(error))
        except Exception as error:  # noqa: BLE001  # a broken promise; it is logged and answered
            return _failed(request, error)

    def _with_node_id(self, request: r.AnyRequest) -> tuple[r.AnyRequest, Refused | None]:
        """The request with the id of the node that it names; or why that is not certain."""
        if not isinstance(request, (r.CordonNode, Drain)) or request.node_id is None:
            return request, None
        names = self._monitor.node_names
        nodes = {node_id: names.get(node_id, ()) for node_id in self._reactor.state.cluster.nodes}
        named = nodes_named(request.node_id, nodes)
        if len(named) == 1:
            return msgspec.structs.replace(request, node_id=named[0]), None
        error = unknown_node(request.node_id, named, nodes)
        return request, Refused(reason=Reason.NODE_NOT_FOUND, error=error)

    async def _limited(self, request: r.AnyRequest, caller: Caller) -> r.AnyRequest:
        """The request with the limits of its token, as the token is now."""
        await self._reactor.whole()
        known = self._reactor.state.tokens.get(caller.token.name)
        return request if known is None else limited(request, known)

    async def _not_allowed(self, request: r.AnyRequest, caller: Caller) -> Refused | None:
        """Why a caller may not make a request. What this depends on need not be durable yet: nobody else
        knows of it before it is.
        """
        reactor = self._reactor
        await reactor.whole()
        return refusal(reactor.state, caller, request, reactor.now())

    async def _execute(self, request: r.AnyRequest, refs: Refs) -> AnyAnswer | WithHandles:
        if r.changes_state(request):
            return await self._change(request, refs)
        return await self._query(request)

    async def _change(self, request: r.AnyChange, refs: Refs) -> AnyAnswer | WithHandles:
        match request:
            case r.SubmitTask():
                return await self._submissions.submit(request.submission, request.blobs, refs)
            case q.SubmitMany():
                return await self._submissions.submit_many(request, refs)
            case q.ChangeQueuedTask():
                return await self._queue.change(request)
            case q.CancelTasks():
                return await self._queue.cancel(request)
            case q.ChangeQueuePolicy():
                return await self._queue.change_policy(request)
            case r.CreatePool():
                return await self._pools.create_pool(request)
            case r.EnsurePool():
                return await self._pools.ensure_pool(request)
            case r.ResizePool():
                return await self._pools.resize_pool(request)
            case r.EnsureCohort():
                return await self._pools.ensure_cohort(request)
            case r.ChangePolicy():
                return await self._change_policy(request)
            case r.RegisterStateHandlers():
                return await self._decided(_handlers(request), request.blobs)
            case r.CordonNode():
                stimulus = s.CordonRequested(
                    node_id=request.node_id,
                    cordoned=request.cordoned,
                    request_id=request.request_id,
                )
                return await self._decided(stimulus)
            case Drain():
                return await self._decided(_drain(request))
            case r.RegisterTask():
                announced = s.TaskAnnounced(
                    task=request.task,
                    agent_name=request.agent_name,
                    request_id=request.request_id,
                )
                return await self._decided(announced, request.blobs)
            case r.CompleteTask():
                return await self._complete_task(request)
            case task_requests.CancelTask():
                return await self._tasks.cancel(request)
            case SaveLease():
                return await self.leases.save(request)
            case ReleaseLease():
                return await self.leases.release(request)
            case r.DeleteAgent():
                return await self._delete_agent(request)
            case r.ExecutePreemption():
                return await self._preemptions.execute(request)
            case r.PreemptTask():
                return await self._preemptions.preempt(request)
            case state_requests.SaveTaskState():
                return await self.states.checkpoint(request.task_id)
            case state_requests.RestoreTask():
                return await self.states.restore(request)
            case r.EndOrphans():
                return Details(facts={"ended": await self._orphans.end(request.names)})
            case r.EnsureAgentHealth():
                return Details(facts=await self.ensure_health(request.timeout_s))
            case _:
                return await self._decided(token_change(request))

    async def _query(self, request: r.AnyQuery) -> AnyAnswer | WithHandles:
        match request:
            case q.ListQueue():
                return await self._queue.list(request)
            case r.ListTasks():
                return await self._pages.all()
            case r.ListAgents():
                return await self._pages.agents(request)
            case r.ListPreemptions():
                return await self._pages.preemptions(request)
            case r.ListSavedStates():
                return await self._pages.saved_states()
            case ListPage():
                return await self._pages.page(request)
            case q.GetQueuePolicy():
                return Details(facts=await self._reactor.read(self._queue_policy))
            case task_requests.WaitTasks():
                return await self._tasks.wait(request)
            case task_requests.GetResult():
                return await self._tasks.result(request)
            case r.EvaluatePreemption():
                return await self._preemptions.evaluate(request)
            case r.ExplainTask():
                return await self._explained(request.task_id)
            case state_requests.GetSavedState():
                return await self.states.saved_state(request.task_id)
            case r.GetGroupStats():
                return await self._pools.group_stats(request.pool_name)
            case tokens.ListTokens():
                return Listed(rows=await self._reactor.read(self._public_tokens))
            case tokens.GetTokenHashes():
                tokens_now = await self._reactor.read(self._valid_tokens)
                return Details(facts={"tokens": tokens_now, "time": self._reactor.now()})
            case h.QueryHistory():
                return await self._history.attempts(request)
            case h.QueryUsage():
                return await self._history.usage(request)
            case h.QueryEvents():
                return await self._history.events(request)
            case QueryAudit():
                return await self._audit.query(request)
            case r.ListNodes():
                return await self._external.nodes()
            case r.ListExternalUsage():
                return await self._external.listed()
            case ListJobs():
                return await self._jobs.list()
            case ReadJobLog():
                return await self._jobs.log(request)
            case WatchLease():
                return await self.leases.watch(request)
            case RenewLease():
                return await self.leases.renew(request)
            case r.ListStrategies():
                return Listed(rows=self._plugins.status())
            case GetMetrics():
                return await self._metrics.exposition(per_agent=request.agents)
            case GetReportedMetrics():
                return await self._metrics.reported(request)
            case GetAlerts():
                return self.alerts.listed()
            case r.GetAbout():
                return Details(facts=await self._reactor.read(self._about))
            case _:
                return await self._viewed(request)

    async def _viewed(self, query: r.AnyStateQuery) -> AnyAnswer:
        def look() -> AnyAnswer:
            view = View(self._reactor.state, self._agents, self._groups, self._reactor.now())
            return view.answer(query)

        return await self._reactor.read(look)

    async def _explained(self, task_id: str) -> Explained | Refusal:
        """What is known of a task."""
        reactor = self._reactor
        found = await reactor.read(lambda: reactor.engine.explain(task_id, reactor.now()))
        if isinstance(found, Refused):
            return Refusal(refused=found)
        found = await self._executor.starts.described(found)
        return Explained(explanation=await self._external.named(found))

    async def _decided(
        self, stimulus: s.AnyStimulus, blobs: Mapping[str, bytes] | None = None
    ) -> Response:
        """A change that is done when it is decided."""
        step = await self._reactor.step(stimulus, blobs)
        return Response(outcome=step.outcome or Done())

    async def _change_policy(self, request: r.ChangePolicy) -> Details | Refusal:
        """Change these fields of the policy; returns the complete policy."""
        before = self._reactor.state.policy
        # Many label rules take their time, during which others are served; no other change comes between.
        policy = await in_thread(partial(changed_policy, before, request.changes))
        outcome: RequestOutcome | None = None
        if request.changes:
            step = await self._reactor.step(
                s.PolicyChangeRequested(
                    policy=policy,
                    client=request.client,
                    changes=tuple(request.changes),
                    level=request.level,
                    request_id=request.request_id,
                )
            )
            outcome = step.outcome
            if isinstance(outcome, Refused):
                return Refusal(refused=outcome)
            if policy == before:
                log_unchanged_policy(policy, request.changes, request.level)
        facts: dict[str, object] = {"policy": self._reactor.state.policy.public()}
        if isinstance(outcome, Done) and outcome.warnings:
            facts["warnings"] = list(outcome.warnings)
        return Details(facts=facts)

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
        stimulus = s.AgentDeletionRequested(
            agent_name=name, destroy_group=destroy, request_id=request.request_id
        )
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
            await self._answers.end_of(outcome.agent_name)
            outcome = Done()
        return Response(outcome=outcome)

    async def ensure_health(self, timeout_s: float) -> dict[str, object]:
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

    def _queue_policy(self) -> dict[str, object]:
        return {"policy": self._reactor.state.queue.policy.public()}

    def _public_tokens(self) -> list[dict[str, object]]:
        return [token.public() for token in self._reactor.state.tokens.values()]

    def _valid_tokens(self) -> list[object]:
        now = self._reactor.now()
        return [msgspec.to_builtins(t) for t in self._reactor.state.tokens.values() if t.valid(now)]

    def _about(self) -> dict[str, object]:
        state = self._reactor.state
        return {
            "name": self._settings.name,
            "namespace": self._settings.namespace,
            "detached": self._settings.detached,
            "version": VERSION,
            "started_at": self._began_at,
            "node_id": self._backend.own_node_id(),
            "pid": os.getpid(),
            "journal": str(journal_address(self._settings, self._backend.session_folder())),
            "epoch": state.epoch,
            "time": self._reactor.now(),
            "http": self._http.url,
            "pools": len(state.ledger.accounts),
            "agents": len(state.agents),
            "running_tasks": len(state.running),
            "queued_tasks": len(state.queue),
        }


def _failed(request: r.AnyRequest, error: Exception) -> Refusal:
    """The answer to a request that failed unexpectedly; the log has the details."""
    logger.error("request %s failed", type(request).__name__, exc_info=error)
    message = f"the scheduler failed at this request: {shown(error)}; its log says where"
    return Refusal(refused=Refused(reason=Reason.INTERNAL_ERROR, error=message))


def _drain(request: Drain) -> s.DrainRequested:
    return s.DrainRequested(
        node_id=request.node_id,
        pool_name=request.pool_name,
        drained=request.drained,
        deadline_s=request.deadline_s,
        client=request.client,
        request_id=request.request_id,
    )


def _handlers(request: r.RegisterStateHandlers) -> s.StateHandlersGiven:
    return s.StateHandlersGiven(
        pool_name=request.pool_name,
        preserver_key=request.preserver_key,
        restorer_key=request.restorer_key,
        request_id=request.request_id,
    )
