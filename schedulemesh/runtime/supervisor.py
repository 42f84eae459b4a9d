"""The supervisor: recovers from the journal, then serves clients and agent hosts until it is shut down."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import platform
import time
from collections.abc import Coroutine, Sequence
from typing import TypeVar, cast

import msgspec

from schedulemesh.api.call import Call
from schedulemesh.config.auth import AuthSettings
from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.config.settings import PROTOCOL_VERSION, SchedulerSettings
from schedulemesh.domain.numbers import MAX_DURATION_S
from schedulemesh.engine.lifecycle.agents import current
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.errors import (
    InvalidRequestError,
    JournalError,
    JournalTakenOverError,
    NotAllowedError,
    SchedulerUnavailableError,
)
from schedulemesh.metrics.recorder import MetricsRecorder
from schedulemesh.protocol.agents import MessageError, StartReport, pack, unpack
from schedulemesh.protocol.answers import (
    AnyAnswer,
    Hello,
    Malformed,
    Refusal,
    WithHandles,
    encode_answer,
)
from schedulemesh.protocol.callers import RequestSource, TokenCaller
from schedulemesh.protocol.frames import AnyAsk
from schedulemesh.protocol.local_sockets import socket_name, user_of
from schedulemesh.protocol.long_answers import with_encoded_rows
from schedulemesh.protocol.processor_time import ProcessorTime
from schedulemesh.protocol.requests import Encoded, decode_request
from schedulemesh.runtime.agents.command_queue import POLL_S
from schedulemesh.runtime.agents.gangs import every_process
from schedulemesh.runtime.agents.job_cleanup import jobs_folder
from schedulemesh.runtime.agents.measurements import EVERY_S as MEASURED_EVERY_S
from schedulemesh.runtime.agents.measurements import Measurements
from schedulemesh.runtime.agents.references import NO_REFS
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.agents.reported_metrics import is_process
from schedulemesh.runtime.alerts.receivers import alerts_of
from schedulemesh.runtime.backend import Backend, BackendError, Handle, Refs
from schedulemesh.runtime.clock import SteadyClock
from schedulemesh.runtime.cluster.monitor import ClusterMonitor
from schedulemesh.runtime.cluster.orphans import Orphans
from schedulemesh.runtime.executor import Executor
from schedulemesh.runtime.groups.manager import Groups
from schedulemesh.runtime.history.recorder import history_of
from schedulemesh.runtime.journal.recovery import EarlierLives
from schedulemesh.runtime.journal.witness import Seen, Witness
from schedulemesh.runtime.journal_opening import OpenJournal, cannot_begin, mark_path, opened
from schedulemesh.runtime.periodic import Loops
from schedulemesh.runtime.plugins.watchdog import LoadStrategy, PluginWatchdog
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.runtime.request_socket import RequestSocket
from schedulemesh.runtime.security.authentication import HTTP_SOURCE, Authentication
from schedulemesh.runtime.services.answers import Answers
from schedulemesh.runtime.services.decision_log import log_step
from schedulemesh.runtime.services.http_process import HttpProcess
from schedulemesh.runtime.services.metrics_export import EVERY_S as EXPORTED_EVERY_S
from schedulemesh.runtime.services.metrics_export import MetricsExport
from schedulemesh.runtime.services.notices import NOTICES_S, notices_of
from schedulemesh.runtime.services.requests import RequestService
from schedulemesh.runtime.services.running import RunningSupervisor
from schedulemesh.runtime.services.traces import TRACES_S, traces_of
from schedulemesh.runtime.threads import in_thread
from schedulemesh.store.journal import Journal

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

#: Bytes of a request above which it is checked beside the loop.
_LARGE = 16 * 1024
#: For so many seconds a restarted supervisor tries to use its journal before callers get an error, and so
#: long it pauses between two attempts.
_PATIENCE_S, _PAUSE_S = 5.0, 0.2
#: Seconds after which a supervisor that was shut down ends itself, if its caller died before it could.
_LINGER_S = 1.0
#: Seconds that a health check may take, which starts agents again.
_HEALTH_S = 600.0
#: Seconds that a shutdown waits for the processes of agents to end.
_ENDS_S = 30.0


class SupervisorService:
    """The supervisor of one scheduler in one process. Its public coroutines are the calls of clients and
    agent hosts; all but ``alive`` and ``withdraw`` wait until it has recovered.
    """

    def __init__(
        self,
        backend: Backend,
        settings: SchedulerSettings,
        job_id: str,
        open_journal: OpenJournal,
        load_strategy: LoadStrategy,
        clock: SteadyClock,
    ) -> None:
        self._backend, self._settings, self._job_id = backend, settings, job_id
        self._open_journal, self._load_strategy = open_journal, load_strategy
        self._clock = clock
        self._authentication = Authentication(settings)
        self._agents = Agents(
            backend, settings.name, settings.namespace, self._authentication.agent_key
        )
        self._groups = Groups(backend, settings.name, settings.namespace)
        self._witness = Witness(backend, settings.namespace, settings.name)
        self._http = HttpProcess(backend, settings, self._authentication.http_key)
        #: The user of this process, and of those who ask over its socket.
        self._user = user_of(os.geteuid())
        #: Whether an earlier process of this supervisor may have begun.
        self._again = backend.was_restarted()
        self._patient_until = time.monotonic() + (_PATIENCE_S if self._again else 0.0)
        #: The plugins, loaded once in a process, with the first journal that could be opened.
        self._plugins: PluginWatchdog | None = None
        #: What answers requests, once it has recovered.
        self._requests: RequestService | None = None
        #: The recovery in progress, or the last that failed.
        self._recovery: asyncio.Task[RequestService] | None = None
        #: Whether a successor took the journal over during the recovery, which is not tried again then.
        self._superseded = False
        self._watching: asyncio.Task[None] | None = None
        #: The shutdown in progress, or the last one.
        self._ending: asyncio.Task[None] | None = None
        self._loops = Loops()
        self._socket = RequestSocket(
            backend.session_folder() / "schedulemesh" / "sockets",
            socket_name(settings.namespace, settings.name),
            self._authentication.socket_id,
            self._ask_here,
        )
        #: What is being carried out for callers, some of whom may have gone away.
        self._for_callers: set[asyncio.Future[object]] = set()
        #: Whether it has been shut down, and answers nothing more.
        self._is_silent = False
        #: Held while a large request is decoded.
        self._large_requests = asyncio.Lock()

    async def ready(self) -> RequestService:
        """Recover, unless that is done or in progress: read the journal, reconcile, watch the cluster.

        Raises SchedulerUnavailableError where the journal cannot be used; the next call tries again.
        """
        if self._requests is not None:
            return self._requests
        if self._watching is None and not self._settings.detached:
            watching = self._loops.run("job", self._settings.monitor_interval_s, self._end_with_job)
            self._watching = asyncio.ensure_future(watching)
        if self._recovery is None or (self._recovery.done() and not self._superseded):
            self._recovery = asyncio.ensure_future(self._recover_patiently())
        try:
            return await asyncio.shield(self._recovery)
        except JournalTakenOverError as error:
            raise SchedulerUnavailableError(
                f"this process of scheduler {self._settings.name!r} has a successor: {error}"
            ) from error
        except JournalError as error:
            message = cannot_begin(self._settings, error, new=not self._again)
            raise SchedulerUnavailableError(message) from error

    async def ask(
        self, data: Encoded, refs: Refs = NO_REFS, credential: bytes = b""
    ) -> bytes | tuple[bytes, list[Handle]]:
        """Answer an encoded request, whose object references come beside it: an encoded answer, with the
        handles that belong to it beside it, if any do. ``credential``: a packed Credential, or the key of
        the process that serves the HTTP API.
        """
        return await self._ask_from(None, data, refs, credential)

    async def _ask_from(
        self, source: RequestSource | None, data: Encoded, refs: Refs, credential: bytes
    ) -> bytes | tuple[bytes, list[Handle]]:
        """As ``ask``. ``source``: where it comes from; None: as the client says."""
        requests = self._requests or await self.ready()
        caller = self._authentication.caller(requests.running.reactor, credential)
        if isinstance(caller, Refused):
            return encode_answer(Refusal(refused=caller))
        source = source or self._authentication.source(credential)
        return await self._decode_and_answer(data, refs, caller, source)

    async def ask_as(
        self, caller: bytes, data: Encoded, key: bytes = b""
    ) -> bytes | tuple[bytes, list[Handle]]:
        """As ``ask``, for the process that serves the HTTP API: on behalf of a packed TokenCaller."""
        requests = self._requests or await self.ready()
        self._authentication.check_http(requests.running.reactor, key)
        holder = unpack(caller, TokenCaller)
        return await self._decode_and_answer(data, NO_REFS, holder, holder.source)

    async def _ask_here(self, ask: AnyAsk) -> bytes | tuple[bytes, list[bytes | None]]:
        """As ``ask`` and ``ask_as``, for a process on this machine that asks over the socket, where handles
        are bytes.
        """
        if ask.caller:
            answer = await self.ask_as(ask.caller, ask.data, ask.credential)
        else:
            source = self._source_of_here(ask.credential)
            answer = await self._ask_from(source, ask.data, NO_REFS, ask.credential)
        if not isinstance(answer, tuple):
            return answer
        if not ask.handles:
            return answer[0]
        pack_handle = self._backend.packed_handle
        return answer[0], [None if each is None else pack_handle(each) for each in answer[1]]

    def _source_of_here(self, credential: bytes) -> RequestSource:
        """Where a request over the socket comes from: that accepts processes of this user only, as the system
        tells it.
        """
        if self._authentication.is_http(credential):
            return HTTP_SOURCE
        source = self._authentication.source(credential)
        return msgspec.structs.replace(source, user=self._user, user_verified=True)

    async def _decode_and_answer(
        self, data: Encoded, refs: Refs, caller: TokenCaller | None, source: RequestSource
    ) -> bytes | tuple[bytes, list[Handle]]:
        """The encoded answer to an encoded request, with the Ray handles that belong to it, if any."""
        try:
            request = await self._decoded(data)
        except InvalidRequestError as error:
            return encode_answer(Malformed(error=str(error)))
        requests = self._requests or await self.ready()
        answering = requests.answer(request, refs, caller, source)
        if request.searches:
            answering = _with_search_time(answering)
        answer = await self._carried_out(request, answering)
        turns = requests.running.reactor.turns
        if isinstance(answer, WithHandles):
            return encode_answer(await with_encoded_rows(answer.answer, turns)), answer.handles
        return encode_answer(await with_encoded_rows(answer, turns))

    async def _decoded(self, data: Encoded) -> Call:
        """The request. Decoding a large one, and hashing what is stored of it, takes its time, during which
        others are served; one at a time, because each that is decoded takes the interpreter's lock from them.
        Raises InvalidRequestError.
        """
        if type(data) not in (bytes, memoryview) or len(data) <= _LARGE:
            return decode_request(data)
        async with self._large_requests:
            return await in_thread(functools.partial(decode_request, data))

    async def _carried_out(
        self, request: Call, answering: Coroutine[object, object, AnyAnswer | WithHandles]
    ) -> AnyAnswer | WithHandles:
        """What a request is answered with. A change is carried out to its end though its caller goes away:
        what follows a durable step is not its caller's. What is read, and waits for nothing, needs no task
        of its own, which would cost a third of it.

        Raises SchedulerUnavailableError where the scheduler is shut down meanwhile: of calls that are still
        open when the process ends, Ray tells everybody.
        """
        if not (request.changes_state or request.waits):
            return await self._read(answering)
        work = self._begun(answering)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.cancelled():
                raise self._was_shut_down() from None
            if not request.changes_state:
                work.cancel()
            raise

    async def _read(self, reading: Coroutine[object, object, Value]) -> Value:
        """What is read, in the task of its caller; see ``_carried_out``."""
        task = cast("asyncio.Task[object]", asyncio.current_task())
        self._for_callers.add(task)
        try:
            return await reading
        except asyncio.CancelledError:
            if self._is_silent:
                raise self._was_shut_down() from None
            raise
        finally:
            self._for_callers.discard(task)

    def _was_shut_down(self) -> SchedulerUnavailableError:
        return SchedulerUnavailableError(f"scheduler {self._settings.name!r} was shut down")

    def _begun(self, work: Coroutine[object, object, Value]) -> asyncio.Future[Value]:
        """What a caller waits for, begun as a task of this supervisor, which ends with it."""
        task = asyncio.ensure_future(work)
        untyped = cast("asyncio.Future[object]", task)
        self._for_callers.add(untyped)
        untyped.add_done_callback(self._for_callers.discard)
        return task

    def _answer_nothing_more(self) -> None:
        """Have the requests that are being carried out be refused."""
        self._is_silent = True
        for task in tuple(self._for_callers):
            task.cancel()

    async def recover(self) -> None:
        """Recover, though nobody asks for anything; again after a while where Ray does not answer."""
        while True:
            try:
                await self.ready()
            except BackendError as error:
                logger.warning("the supervisor cannot recover: %s; trying again", error)
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def hello(self, credential: bytes = b"") -> bytes:
        """Which supervisor this is: a Hello. Raises NotAllowedError."""
        reactor = (await self.ready()).running.reactor
        caller = self._authentication.caller(reactor, credential)
        if isinstance(caller, Refused):
            raise NotAllowedError(caller.error)
        hello = Hello(
            owner="" if caller is None else caller.token.owner,
            protocol=PROTOCOL_VERSION,
            python=platform.python_version(),
            ray=self._backend.version(),
            detached=self._settings.detached,
            job_id=self._job_id,
            settings=msgspec.structs.replace(
                self._settings.public(), auth=AuthSettings(required=reactor.state.tokens.required)
            ),
            socket=self._socket.address,
        )
        return pack(hello)

    async def alive(self) -> tuple[bool, float]:
        """Answered at once: whether it has recovered, and how many seconds a request may take that starts,
        saves and ends agents.
        """
        if self._requests is None:
            return False, PreemptionPolicy().longest_s
        longest_s = self._requests.running.reactor.state.policy.longest_s
        return True, longest_s + self._agents.longest_start_s

    async def agent_restarted(
        self, agent_name: str, incarnation: int, message: bytes, key: bytes = b""
    ) -> None:
        """Ray restarted an agent's process by itself: a StartReport; one that cannot be read ends it."""
        reactor = (await self.ready()).running.reactor
        self._authentication.check_agent(reactor, agent_name, incarnation, key)
        try:
            report = unpack(message, StartReport)
        except MessageError as error:
            logger.warning("agent %s was restarted by Ray and is ended: %s", agent_name, error)
            await self._agents.end(agent_name, incarnation)
            return
        await asyncio.shield(
            self._begun(self._note_restart(reactor, agent_name, incarnation, report))
        )

    async def _note_restart(
        self, reactor: Reactor, agent_name: str, incarnation: int, report: StartReport
    ) -> None:
        """Note that Ray has started the process of an agent again."""
        await self._agents.agent_restarted(agent_name, incarnation, report.node_id)
        logger.warning("agent %s was restarted by Ray, as process %d", agent_name, report.pid)
        if current(reactor.state, agent_name, incarnation) is None:
            return
        await reactor.report(
            s.AgentRestarted(
                agent_name=agent_name,
                incarnation=incarnation,
                pid=report.pid,
                node_id=report.node_id,
                gpu_ids=report.gpu_ids,
            )
        )

    async def start_phase(
        self, agent_name: str, incarnation: int, key: bytes, phase: str, ago_s: float
    ) -> None:
        """A process that is being started has been in a phase of that for so many seconds."""
        reactor = (await self.ready()).running.reactor
        self._authentication.check_agent(reactor, agent_name, incarnation, key)
        self._agents.note_phase(agent_name, incarnation, phase, ago_s)

    async def last_saved(self, agent_name: str, incarnation: int, key: bytes = b"") -> bytes | None:
        """The state last saved of any task of an agent that Ray restarted; None: there is none."""
        requests = await self.ready()
        self._authentication.check_agent(requests.running.reactor, agent_name, incarnation, key)
        return await requests.states.last_saved(agent_name, incarnation)

    async def poll(
        self,
        agent_name: str,
        incarnation: int,
        key: bytes = b"",
        usage: bytes | None = None,
        received: Sequence[int] = (),
    ) -> bytes:
        """A host polls for commands: the most frequent call, and the one that stays open longest. ``usage``:
        its newest Usage, packed; None: it has measured none yet. ``received``: see CommandQueue.ask.
        """
        requests = self._requests or await self.ready()
        self._authentication.check_agent(requests.running.reactor, agent_name, incarnation, key)
        if usage is not None:
            self._take_usage(requests.running.reactor, agent_name, incarnation, usage)
        return pack(await self._agents.commands.poll(agent_name, incarnation, received))

    async def command_done(self, command_id: int, result: bytes) -> None:
        """A host answers a command, whose id only it knows: a CommandResult. Who waits for it finds the
        metrics that came with it stored.
        """
        reactor = (await self.ready()).running.reactor
        done = self._agents.commands.done(command_id, result)
        if done is not None and done.metrics is not None:
            self._agents.metrics.take(reactor.state, done.metrics, reactor.now())

    async def result_part(self, command_id: int, begin: int, data: bytes) -> bool:
        """A host sends a part of a large result before the result; False: it need not send more."""
        await self.ready()
        return self._agents.commands.part(command_id, begin, data)

    async def report_metrics(self, message: bytes, key: bytes = b"") -> bool:
        """An agent reports metrics: a MetricsReport. Returns whether they were accepted. ``key``: that of the
        agent, or a packed Credential where ScheduleMesh did not start it.
        """
        reactor = (await self.ready()).running.reactor
        self._authentication.check_metrics(reactor, message, key)
        return self._agents.metrics.take(reactor.state, message, reactor.now())

    async def report_usage(
        self, agent_name: str, incarnation: int, key: bytes, message: bytes
    ) -> None:
        """A host reports a packed Usage that differs much from what it reported before."""
        reactor = (await self.ready()).running.reactor
        self._authentication.check_agent(reactor, agent_name, incarnation, key)
        self._take_usage(reactor, agent_name, incarnation, message)

    async def work_saved(self, agent_name: str, incarnation: int, key: bytes, ago_s: float) -> None:
        """The runner of a job reports that the job has saved its work so many seconds ago."""
        reactor = (await self.ready()).running.reactor
        self._authentication.check_agent(reactor, agent_name, incarnation, key)
        if type(ago_s) is not float or not 0.0 <= ago_s <= MAX_DURATION_S:
            return
        if current(reactor.state, agent_name, incarnation) is None:
            return
        saved_at = reactor.now() - ago_s
        for task_id in reactor.state.running.on_agent(agent_name):
            report = s.WorkReported(task_id=task_id, agent_name=agent_name, saved_at=saved_at)
            await reactor.step(report)

    def _take_usage(
        self, reactor: Reactor, agent_name: str, incarnation: int, message: bytes
    ) -> None:
        if is_process(reactor.state, agent_name, incarnation):
            self._agents.usage.take(agent_name, incarnation, message, reactor.now())

    async def http_serves(self, url: str, key: bytes = b"", failures: int = 0) -> bytes:
        """The process of the HTTP API says where it serves, and how many requests it has not accepted.
        Returns where the socket is: a packed SocketAddress; empty: there is none.
        """
        self._authentication.check_http((await self.ready()).running.reactor, key)
        self._http.url = url
        self._authentication.failures["http"] = failures
        address = self._socket.address
        return b"" if address is None else pack(address)

    async def shutdown(self, credential: bytes = b"") -> None:
        """End every agent and group, the journal and this process, for operators. Raises NotAllowedError."""
        try:
            reactor: Reactor | None = (await self.ready()).running.reactor
        except SchedulerUnavailableError:
            reactor = None
        author = self._authentication.operator(reactor, credential)
        if author:
            logger.info("shutdown by %s", author)
        await self._end()

    async def _end(self) -> None:
        """As ``shutdown``, for the supervisor itself; once, however many ask for it."""
        if self._ending is None or (self._ending.done() and self._ending.exception() is not None):
            self._ending = asyncio.ensure_future(self._end_all())
        await asyncio.shield(self._ending)

    async def _end_all(self) -> None:
        """End everything that belongs to it.

        A supervisor that cannot recover ends the agents and groups that carry its mark, and leaves its
        journal as it is.
        """
        try:
            running = (await self.ready()).running
        except SchedulerUnavailableError as error:
            logger.warning("%s; it is given up", error)
            await self._end_marked()
        else:
            running.executor.stop_all()
            await running.alerts.end(running.reactor.now())
            state = running.reactor.state
            processes = every_process(state, state.agents.values())
            living = [(process.spec.name, process.incarnation) for process in processes]
            await self._agents.end_all(living, _ENDS_S)
            await running.executor.warm_pool.remove_all()
            await self._groups.remove_all()
            await running.orphans.remove_all()
            await running.monitor.withdraw()
            await running.reactor.close(destroy=True)
            running.plugins.close()
        # The journal is gone, so another attempt could only fail: whatever fails now, this process ends.
        try:
            await self._http.end()
            await self._forget()
        finally:
            self._answer_nothing_more()
            self._socket.close()
            # The caller ends it as soon as it has this answer.
            asyncio.get_running_loop().call_later(_LINGER_S, self._backend.end_supervisor)

    async def _forget(self) -> None:
        """Remove what Ray's store has of this scheduler. What is left there prevents no new one."""
        try:
            await self._witness.forget()
        except BackendError as error:
            logger.warning("what Ray's store has of this scheduler was not removed: %s", error)

    async def withdraw(self) -> bool:
        """End this process if it is new and could not recover; whether it ends, so that its name is free."""
        ends = self._requests is None and not self._again
        if ends:
            self._backend.end_supervisor()
        return ends

    async def _recover_patiently(self) -> RequestService:
        """Recover; one that was restarted tries again for a while where the journal cannot be used."""
        logged_error = ""
        while True:
            try:
                self._requests = await self._recover()
            except JournalTakenOverError:
                self._superseded = True
                raise
            except JournalError as error:
                if time.monotonic() > self._patient_until:
                    raise
                if str(error) != logged_error:
                    logged_error = str(error)
                    logger.warning("%s; trying again for a while", logged_error)
            except BackendError:
                raise
            except Exception as error:
                logger.exception("the recovery failed")
                raise BackendError(f"the recovery failed: {error!r}") from error
            else:
                self._watch(self._requests)
                return self._requests
            await asyncio.sleep(_PAUSE_S)

    async def _recover(self) -> RequestService:
        seen = await self._witness.seen()
        # One that was killed before it first had a journal never began.
        began = self._again and seen is not None
        living = await self._backend.living_actors()
        if await self._witness.has_successor(0 if seen is None else seen.epoch):
            raise JournalTakenOverError("another process has begun meanwhile")
        journal = opened(
            self._open_journal, self._settings, self._backend, self._agents, living, began=began
        )
        plugins = self._load_plugins(journal)
        settings = self._settings
        strategies = Strategies(settings.node_strategy, settings.pool_strategy, plugins.plugins)
        earlier = EarlierLives(
            take_over=self._again,
            seen=seen or Seen(),
            newest_incarnation=self._agents.newest_incarnation(living),
        )
        reactor = await Reactor.recover(
            journal,
            strategies,
            settings.journal,
            self._clock,
            earlier,
            self._agents.actor_names,
        )
        executor = Executor(
            self._backend,
            self._agents,
            self._groups,
            reactor,
            self._settings.name,
            jobs_folder(self._settings, self._backend.session_folder()),
        )
        reactor.at_takeover(functools.partial(self._fall_silent, executor))
        try:
            await self._authentication.begin(reactor)
            return await self._reconcile(executor, journal, plugins, seen)
        except Exception as error:
            # The next attempt opens the journal anew, but never takes it back from a successor.
            executor.stop_all()
            if await reactor.give_up():
                self._fall_silent(executor)
                raise JournalTakenOverError(
                    "another process has taken the journal over during the recovery"
                ) from error
            raise

    def _fall_silent(self, executor: Executor) -> None:
        """Do nothing in Ray any more: a successor has taken over. This process is not ended in Ray, which may
        take it for its successor, whose actor is the same.
        """
        self._loops.end_all()
        executor.stop_all()
        self._socket.close()
        self._agents.endings.cancel_all()
        if self._requests is not None:
            self._requests.running.alerts.close()

    async def _reconcile(
        self, executor: Executor, journal: Journal, plugins: PluginWatchdog, seen: Seen | None
    ) -> RequestService:
        """Compare the state with what runs in the cluster, and return the service with all its parts."""
        backend, agents, groups = self._backend, self._agents, self._groups
        settings = self._settings
        reactor = executor.reactor
        answers = Answers(reactor)
        reactor.subscribe(log_step)
        recorder = MetricsRecorder(reactor.state, reactor.now)
        reactor.observers.add(recorder)
        history = history_of(journal, reactor, self._settings.history)
        orphans = Orphans(agents, groups, journal)
        monitor = ClusterMonitor(backend, agents, executor, orphans, self._witness)
        if reactor.rolled_back:
            logger.warning(
                "the journal is older than what was already true, as after a backup was restored: this "
                "process begins above every epoch that agents have seen, and agents that the journal does "
                "not contain are kept as orphans (list_orphans, end_orphans)"
            )
        newest_seen = msgspec.structs.replace(
            seen or Seen(), epoch=reactor.epoch, unresolved=reactor.rolled_back
        )
        await self._witness.note(newest_seen)
        agents.commands.begin_epoch(reactor.epoch)
        await monitor.observe()
        await monitor.recover()
        if history is not None:
            history.start(self._loops)
        return RequestService(
            RunningSupervisor(
                settings=settings,
                backend=backend,
                agents=agents,
                groups=groups,
                reactor=reactor,
                answers=answers,
                executor=executor,
                orphans=orphans,
                monitor=monitor,
                plugins=plugins,
                http=self._http,
                recorder=recorder,
                alerts=alerts_of(settings, journal),
                loops=self._loops,
                authentication=self._authentication,
                history=history,
            )
        )

    def _load_plugins(self, journal: Journal) -> PluginWatchdog:
        """The plugins, which are loaded once in a process; this journal notes who is disabled."""
        if self._plugins is None:
            mark = mark_path(self._settings, self._backend.session_folder())
            self._plugins = PluginWatchdog(
                self._settings.strategies, journal, mark, self._load_strategy
            )
            self._plugins.load(again=self._again)
        self._plugins.journal = journal
        return self._plugins

    def _watch(self, requests: RequestService) -> None:
        """Begin to watch the cluster, and if the settings say so, to serve HTTP and to check agents."""
        running, settings = requests.running, self._settings
        spawn, loop = running.executor.spawn, running.loops.run
        spawn(self._socket.serve())
        self._http.start()
        requests.alerts.start()
        spawn(loop("cluster_monitor", settings.monitor_interval_s, running.monitor.observe))
        spawn(loop("leases", settings.monitor_interval_s, requests.leases.check))
        measurements = Measurements(running.reactor, self._agents)
        spawn(loop("measurements", MEASURED_EVERY_S, measurements.look))
        spawn(loop("alerts", settings.alerts.interval_s, requests.alerts.evaluate, at_once=True))
        exporting = MetricsExport(running, requests.metric_families).export
        # At once: it notes what is observed from its first round on.
        exports = loop(
            "metrics_export", EXPORTED_EVERY_S, exporting, at_once=True, ended_by=BackendError
        )
        spawn(exports)
        if notices := notices_of(running):
            spawn(loop("notices", NOTICES_S, notices.round, at_once=True))
        if traces := traces_of(running):
            spawn(loop("traces", TRACES_S, traces.round))
        if settings.health_interval_s is not None:
            check = functools.partial(requests.agents.ensure_health, 2 * POLL_S)
            spawn(loop("health", settings.health_interval_s, check, takes_s=_HEALTH_S))

    async def _end_with_job(self) -> None:
        """Leave nothing behind once the job has ended, also where this supervisor cannot recover."""
        if await self._backend.job_runs(self._job_id):
            return
        logger.info("job %s has ended; everything made for it ends too", self._job_id)
        # What a former scheduler of this name left behind is not this job's.
        ended = self._requests is not None or self._again
        await (self._end() if ended else self.withdraw())
        self._backend.end_supervisor()

    async def _end_marked(self) -> None:
        """End every agent that carries this scheduler's mark, and its groups."""
        living = await self._backend.living_actors()
        for namespace, name in self._agents.unclaimed_actors(living, set()):
            await self._agents.end_unclaimed(namespace, name)
        await self._groups.remove_all()


async def _with_search_time(
    searching: Coroutine[object, object, AnyAnswer | WithHandles],
) -> AnyAnswer | WithHandles:
    """The answer to a search, which says for how long this process has computed it."""
    timed = ProcessorTime(searching)
    answer = await timed
    if isinstance(answer, WithHandles):
        return answer
    return msgspec.structs.replace(answer, search_s=timed.seconds)
