"""What the supervisor does: takes requests, decides, remembers and has its executor carry it out."""

from __future__ import annotations

import asyncio
import logging
import platform
import time

import msgspec

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.config.settings import PROTOCOL_VERSION, SchedulerSettings
from schedulemesh.engine.lifecycle.agents import current
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.errors import JournalError, SchedulerUnavailableError
from schedulemesh.plugins.guard import Guarded
from schedulemesh.protocol.agents import MessageError, Report, pack, unpack
from schedulemesh.protocol.answers import Hello
from schedulemesh.runtime.agent_registry import Agents
from schedulemesh.runtime.backend import Backend, BackendError
from schedulemesh.runtime.cluster_monitor import ClusterMonitor
from schedulemesh.runtime.command_queue import POLL_S
from schedulemesh.runtime.executor import Executor
from schedulemesh.runtime.journal_opening import cannot_begin, mark_path, opened
from schedulemesh.runtime.orphans import Orphans
from schedulemesh.runtime.pg_manager import Groups
from schedulemesh.runtime.plugin_watchdog import LoadStrategy, PluginWatchdog
from schedulemesh.runtime.request_service import RequestService
from schedulemesh.runtime.serving import when_ready
from schedulemesh.runtime.witness import Seen, Witness
from schedulemesh.store.journal import Journal

logger = logging.getLogger(__name__)

#: A supervisor that comes back to a journal which it cannot use tries for so many seconds before callers
#: are told; and so long it pauses between two attempts.
_PATIENCE_S, _PAUSE_S = 5.0, 0.2
#: Seconds after which one that was shut down ends itself, where its caller died before it could.
_LAST_WORD_S = 1.0
#: Seconds that a shutdown waits for the processes of agents to end.
_LEAVE_S = 30.0


class SupervisorService(RequestService):
    """One life of a supervisor. Its public coroutines are the calls of clients and agent hosts."""

    def __init__(
        self,
        backend: Backend,
        settings: SchedulerSettings,
        job_id: str,
        load_strategy: LoadStrategy,
    ) -> None:
        super().__init__()
        self._backend, self._settings, self._job_id = backend, settings, job_id
        self._load_strategy = load_strategy
        name, namespace = settings.name, settings.namespace
        self._agents = Agents(backend, name, namespace)
        self._groups = Groups(backend, name, namespace)
        self._began: asyncio.Future[None] | None = None
        #: Whether a former life of it may have begun.
        self._again = backend.was_restarted()
        self._patient_until = time.monotonic() + (_PATIENCE_S if self._again else 0.0)
        self._watching: asyncio.Future[None] | None = None
        self._watchdog = None
        self._witness = Witness(backend, namespace, name)
        self._orphans: Orphans = None  # type: ignore[assignment]  # set when it begins
        self._executor: Executor = None  # type: ignore[assignment]  # set when it begins
        self._monitor: ClusterMonitor = None  # type: ignore[assignment]  # set when it begins

    async def ready(self) -> None:
        """Begin, if nobody asked before or that failed: recover, reconcile, watch the cluster. All others
        wait for it.

        Raises SchedulerUnavailableError where the journal cannot be used.
        """
        if self._watching is None and not self._settings.detached:
            self._watching = asyncio.ensure_future(self._end_with_job())
        failed = self._began is not None and self._began.done() and not self.is_ready
        if self._began is None or failed:
            self._began = asyncio.ensure_future(self._begin_patiently())
        try:
            await asyncio.shield(self._began)
        except JournalError as error:
            told = cannot_begin(self._settings, error, new=not self._again)
            raise SchedulerUnavailableError(told) from error

    @when_ready
    async def hello(self) -> bytes:
        """Who this is: a Hello."""
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            python=platform.python_version(),
            ray=self._backend.version(),
            detached=self._settings.detached,
            job_id=self._job_id,
            settings=self._settings.told(),
        )
        return pack(hello)

    async def alive(self) -> tuple[bool, float]:
        """A sign of life, given at once: whether it has begun, and how many seconds a request may take that
        starts, saves and ends agents.
        """
        policy = self._reactor.state.policy if self.is_ready else PreemptionPolicy()
        return self.is_ready, policy.longest_s

    @when_ready
    async def agent_restarted(self, agent_name: str, incarnation: int, message: bytes) -> None:
        """Ray restarted an agent's process by itself: a Report. One that cannot be read ends the agent."""
        try:
            report = unpack(message, Report)
        except MessageError as error:
            logger.warning("agent %s was restarted by Ray and is ended: %s", agent_name, error)
            await self._agents.end(agent_name, incarnation)
            return
        await self._agents.agent_restarted(agent_name, incarnation, report.node_id)
        logger.warning("agent %s was restarted by Ray, as process %d", agent_name, report.pid)
        agent = current(self._reactor.state, agent_name, incarnation)
        if agent is None:
            return
        await self._reactor.report(
            s.AgentRestarted(
                agent_name=agent_name,
                incarnation=incarnation,
                pid=report.pid,
                node_id=report.node_id,
                gpu_ids=report.gpu_ids,
            )
        )

    async def shutdown(self) -> None:
        """End every agent and group, forget everything, and end this actor. One that cannot begin ends the
        agents and groups that carry its mark, and leaves its journal as it is.
        """
        try:
            await self.ready()
        except SchedulerUnavailableError as error:
            logger.warning("%s; it is given up", error)
            await self._end_marked()
        else:
            self._executor.stop_all()
            living = [(name, a.incarnation) for name, a in self._reactor.state.agents.items()]
            await self._agents.end_all(living, _LEAVE_S)
            await self._executor.ready.remove_all()
            await self._groups.remove_all()
            await self._orphans.remove_all()
            await self._monitor.withdraw()
            await self._reactor.close(destroy=True)
            if self._watchdog is not None:
                self._watchdog.close()
        await self._witness.forget()
        # The caller kills it as soon as it has this answer.
        asyncio.get_running_loop().call_later(_LAST_WORD_S, self._backend.end_supervisor)

    async def withdraw(self) -> None:
        """End this actor if it is new and could not begin, so that its name is free again."""
        if not self.is_ready and not self._again:
            self._backend.end_supervisor()

    async def poll(self, agent_name: str, incarnation: int) -> bytes:
        """A host asks for commands. The call that is made most often, and the one that stays open longest."""
        if not self.is_ready:
            await self.ready()
        return pack(await self._agents.poll(agent_name, incarnation))

    @when_ready
    async def command_done(self, command_id: int, result: bytes) -> None:
        """A host answers a command: a Result."""
        self._agents.done(command_id, result)

    @when_ready
    async def result_part(self, command_id: int, begin: int, data: bytes) -> bool:
        """A host sends a part of a large result ahead; False: it need not go on."""
        return self._agents.part(command_id, begin, data)

    @when_ready
    async def report_metrics(self, message: bytes) -> bool:
        """An agent says how far it is: a MetricsReport. Returns whether it was taken."""
        return self._agents.metrics.take(self._reactor.state, message)

    async def _begin_patiently(self) -> None:
        told = ""
        while True:
            try:
                await self._begin()
            except JournalError as error:
                if time.monotonic() > self._patient_until:
                    raise
                if str(error) != told:
                    told = str(error)
                    logger.warning("%s; trying again for a while", told)
            else:
                return
            await asyncio.sleep(_PAUSE_S)

    async def _begin(self) -> None:
        settings = self._settings
        seen = await self._witness.seen()
        # One that was killed before it first had a journal never began.
        began = self._again and seen is not None
        journal = await opened(settings, self._backend, self._agents, began=began)
        strategies = Strategies(
            settings.node_strategy, settings.pool_strategy, self._strategies(journal)
        )
        self._executor = Executor(
            self._backend, self._agents, self._groups, journal, settings.name, strategies
        )
        self._orphans = Orphans(self._agents, self._groups, journal)
        self._monitor = ClusterMonitor(
            self._backend, self._agents, self._executor, self._orphans, self._witness
        )
        try:
            await self._recover(seen)
        except (JournalError, BackendError):
            # The next attempt opens the journal anew.
            await self._reactor.close(destroy=False)
            raise
        self.is_ready = True
        self._executor.spawn(self._monitor_cluster())
        if settings.health_interval_s is not None:
            self._executor.spawn(self._check_health(settings.health_interval_s))

    async def _recover(self, seen: Seen | None) -> None:
        living = await self._backend.living_actors()
        epoch = await self._reactor.begin(
            self._settings.journal,
            take_over=self._again,
            seen=seen,
            newest_incarnation=self._agents.newest_incarnation(living),
        )
        if self._reactor.rolled_back:
            logger.warning(
                "the journal is older than what was already true, as after a backup was put back: this "
                "life begins above every epoch that agents have seen, and agents that it does not know are "
                "kept as orphans (list_orphans, end_orphans)"
            )
        known = msgspec.structs.replace(
            seen or Seen(), epoch=epoch, unresolved=self._reactor.rolled_back
        )
        await self._witness.note(known)
        self._agents.begin_epoch(epoch)
        await self._monitor.observe()
        await self._monitor.recover()

    def _strategies(self, journal: Journal) -> tuple[Guarded, ...]:
        """The plugins, loaded once in a life."""
        if self._watchdog is None:
            mark = mark_path(self._settings, self._backend.session_folder())
            self._watchdog = PluginWatchdog(
                self._settings.strategies, journal, mark, self._load_strategy
            )
            self._watchdog.load(again=self._again)
        self._watchdog.journal = journal
        return self._watchdog.plugins

    async def _check_health(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.ensure_health(2 * POLL_S)
            except (JournalError, BackendError) as error:
                logger.warning("health: %s", error)

    async def _monitor_cluster(self) -> None:
        while True:
            await asyncio.sleep(self._settings.monitor_interval_s)
            try:
                await self._monitor.observe()
                self._executor.references.release_unused(self._reactor.state)
            except (JournalError, BackendError) as error:
                logger.warning("cluster monitor: %s", error)

    async def _end_with_job(self) -> None:
        """Leave nothing behind when the job has ended, also where this supervisor cannot begin."""
        while True:
            await asyncio.sleep(self._settings.monitor_interval_s)
            try:
                if await self._backend.job_runs(self._job_id):
                    continue
                logger.info("job %s has ended; everything made for it ends too", self._job_id)
                # What a former scheduler of this name left behind is not this job's.
                await (self.shutdown() if self.is_ready or self._again else self.withdraw())
                self._backend.end_supervisor()
            except (JournalError, BackendError) as error:
                logger.warning("leaving: %s", error)

    async def _end_marked(self) -> None:
        """End every agent that carries this scheduler's mark, and its groups."""
        living = await self._backend.living_actors()
        for namespace, name in self._agents.unclaimed_actors(living, set()):
            await self._agents.end_unclaimed(namespace, name)
        await self._groups.remove_all()
