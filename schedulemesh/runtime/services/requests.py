"""Requests of clients: each is executed by the service for its subject, and answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from schedulemesh.api.call import Call
from schedulemesh.api.calls import AUDITED
from schedulemesh.api.nodes import CordonNode, Drain
from schedulemesh.api.windows import CreateWindow
from schedulemesh.domain.node_names import nodes_named, unknown_node
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError, JournalError, shown
from schedulemesh.metrics.values import Family
from schedulemesh.protocol.answers import (
    AnyAnswer,
    Malformed,
    Refusal,
    WithHandles,
)
from schedulemesh.protocol.callers import NO_SOURCE, RequestSource, TokenCaller, bound
from schedulemesh.runtime.backend import Refs
from schedulemesh.runtime.handlers import handlers_of
from schedulemesh.runtime.security.audit import Audit
from schedulemesh.runtime.security.permissions import limited, refusal
from schedulemesh.runtime.services.agents import AgentService
from schedulemesh.runtime.services.alerts import AlertService
from schedulemesh.runtime.services.answers import OpenRequests
from schedulemesh.runtime.services.arrays import ArrayService
from schedulemesh.runtime.services.cluster import ClusterService
from schedulemesh.runtime.services.exec_sessions import ExecService
from schedulemesh.runtime.services.external_usage import ExternalUsageService
from schedulemesh.runtime.services.history import HistoryService
from schedulemesh.runtime.services.jobs import JobService
from schedulemesh.runtime.services.leases import LeaseService
from schedulemesh.runtime.services.logs import LogService
from schedulemesh.runtime.services.metrics import MetricsService
from schedulemesh.runtime.services.pools import PoolService
from schedulemesh.runtime.services.preemption import PreemptionService
from schedulemesh.runtime.services.queue import QueueService
from schedulemesh.runtime.services.running import RunningSupervisor, Service
from schedulemesh.runtime.services.states import StateService
from schedulemesh.runtime.services.submissions import SubmissionService
from schedulemesh.runtime.services.task_pages import TaskPages
from schedulemesh.runtime.services.tasks import TaskService

logger = logging.getLogger(__name__)


class RequestService(Service):
    """Executes what clients request. Only requests come in, so nobody but the runtime itself can make the
    engine believe that something happened.
    """

    def __init__(self, running: RunningSupervisor) -> None:
        super().__init__(running)
        self.running = running
        self._audit = Audit(running.reactor)
        self._open = OpenRequests(running.reactor)
        self._metrics = MetricsService(running)
        self.alerts = AlertService(running, self._metrics)
        self.leases = LeaseService(running)
        external = ExternalUsageService(running)
        self.agents = AgentService(running, external)
        self.tasks = TaskService(running)
        submissions, jobs = SubmissionService(running), JobService(running)
        self.states = StateService(running, submissions)
        self._handlers = handlers_of(
            self._audit,
            self._metrics,
            self.alerts,
            self.leases,
            self.agents,
            submissions,
            jobs,
            self.states,
            ArrayService(running),
            ClusterService(running),
            ExecService(running),
            external,
            HistoryService(running),
            LogService(running),
            PoolService(running),
            PreemptionService(running),
            QueueService(running),
            TaskPages(running, jobs),
            self.tasks,
        )

    def metric_families(self) -> Iterator[Family]:
        """All metrics of the present state."""
        return self._metrics.families(self._reactor.state)

    async def answer(
        self,
        request: Call,
        refs: Refs,
        caller: TokenCaller | None = None,
        source: RequestSource = NO_SOURCE,
    ) -> AnyAnswer | WithHandles:
        """Execute a request, and record it if it is a change. Whatever fails becomes the answer, and concerns
        this caller alone.

        ``caller``: the holder of a token, whose role and limits are checked; None: the call needs none.
        ``source``: where it comes from, for the record.
        """
        if caller is not None:
            request = await self._limited(bound(request, caller), caller)
        request, refused = self._with_node_id(request)
        if caller is not None:
            refused = await self._not_allowed(request, caller) or refused
        answer = partial(self._recorded, request, refs, refused, caller, source)
        if not request.changes_state:
            return await answer(())
        with self._open.answering(request) as earlier:
            return await answer(earlier)

    async def _recorded(
        self,
        request: Call,
        refs: Refs,
        refused: Refused | None,
        caller: TokenCaller | None,
        source: RequestSource,
        earlier: Sequence[asyncio.Event],
    ) -> AnyAnswer | WithHandles:
        """As ``answer``, once it is known whether it is refused. ``earlier``: see ``OpenRequests``."""
        kind = type(request)
        try:
            if not (kind in AUDITED or (refused and kind.changes_state)):
                return await self._answer(request, refs, refused)
            return await self._audit.carry_out(
                request, caller, source, lambda: self._answer(request, refs, refused)
            )
        except JournalError as error:
            await self._open.resolved(error, earlier)
            return Refusal(
                refused=Refused(reason=Reason.JOURNAL_UNAVAILABLE, error_text=str(error))
            )

    async def _answer(
        self, request: Call, refs: Refs, refused: Refused | None
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

    def _with_node_id(self, request: Call) -> tuple[Call, Refused | None]:
        """The request with the ids of the nodes that it names; or why that is not certain."""
        if isinstance(request, CreateWindow):
            return self._with_node_ids(request)
        if not isinstance(request, (CordonNode, Drain)) or request.node_id is None:
            return request, None
        node_id = self._node_id(request.node_id)
        if isinstance(node_id, Refused):
            return request, node_id
        return msgspec.structs.replace(request, node_id=node_id), None

    def _with_node_ids(self, request: CreateWindow) -> tuple[Call, Refused | None]:
        """A window for the nodes that are named by their ids."""
        node_ids: list[str] = []
        for name in request.nodes or ():
            node_id = self._node_id(name)
            if isinstance(node_id, Refused):
                return request, node_id
            node_ids.append(node_id)
        return msgspec.structs.replace(request, nodes=tuple(node_ids) or None), None

    def _node_id(self, name: str) -> str | Refused:
        """The id of the node that a name means; or why that is not certain."""
        names = self._monitor.node_names
        nodes = {node_id: names.get(node_id, ()) for node_id in self._reactor.state.cluster.nodes}
        named = nodes_named(name, nodes)
        if len(named) == 1:
            return named[0]
        error = unknown_node(name, named, nodes)
        return Refused(reason=Reason.NODE_NOT_FOUND, error_text=error)

    async def _limited(self, request: Call, caller: TokenCaller) -> Call:
        """The request with the limits of its token, as the token is now."""
        await self._reactor.until_consistent()
        token = self._reactor.state.tokens.get(caller.token.name)
        return request if token is None else limited(request, token)

    async def _not_allowed(self, request: Call, caller: TokenCaller) -> Refused | None:
        """Why a caller may not make a request. What this depends on need not be durable yet: nobody else
        knows of it before it is.
        """
        reactor = self._reactor
        await reactor.until_consistent()
        return refusal(reactor.state, caller, request, reactor.now())

    async def _execute(self, request: Call, refs: Refs) -> AnyAnswer | WithHandles:
        return await self._handlers[type(request)](request, refs)


def _failed(request: Call, error: Exception) -> Refusal:
    """The answer to a request that failed unexpectedly; the log has the details."""
    logger.error("request %s failed", type(request).__name__, exc_info=error)
    message = say("request_failed", error=shown(error))
    return Refusal(refused=Refused(reason=Reason.INTERNAL_ERROR, error_text=message))
