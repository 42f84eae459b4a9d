"""The agent registry: starts and ends agent actors, and knows where they run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

import msgspec

from schedulemesh.domain.actor_names import ActorName, ActorNames
from schedulemesh.domain.agent import Death
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import JobPayload
from schedulemesh.engine.messages.instructions import StartAgent
from schedulemesh.engine.messages.stimuli import AgentReported, AgentStartFailed
from schedulemesh.engine.state.agents import Agent
from schedulemesh.protocol.agents import (
    MessageError,
    RunOrder,
    RunReport,
    StartReport,
    pack,
    unpack,
)
from schedulemesh.runtime.agents.command_queue import CommandQueue
from schedulemesh.runtime.agents.commands import AgentCommands
from schedulemesh.runtime.agents.endings import Endings
from schedulemesh.runtime.agents.job_cleanup import end_jobs, owner_of
from schedulemesh.runtime.agents.process_cleanup import ActorLocation, ProcessCleanup
from schedulemesh.runtime.agents.reported_metrics import ReportedMetrics
from schedulemesh.runtime.agents.start import (
    AgentStart,
    NoReport,
    StartProgress,
    first_report,
    start_failed,
)
from schedulemesh.runtime.agents.usage import AgentUsage
from schedulemesh.runtime.backend import ActorView, Backend, BackendError, Handle
from schedulemesh.runtime.retries import until_answered

logger = logging.getLogger(__name__)

#: Seconds before a run whose call failed is asked for again.
_RUN_RETRY_S = 1.0
#: Seconds that a process may take to answer before Ray is asked whether it is dead.
_PING_S = 1.0
#: Seconds that a recovery waits for the actor of an agent to be found; the search goes on by itself.
_FOUND_S = 5.0
#: How the names of warm hosts begin.
READY = "ready:"
#: Why an agent that was ended meanwhile has not started.
_ENDED = "it was ended before its process was started"


class _Record(msgspec.Struct, kw_only=True):
    """An agent's process, or a member of a gang, from the decision to start it until it has ended."""

    #: Commands for it; its polls wait here from the beginning, whoever started it.
    queue: CommandQueue
    #: Where it is or was; one that began in a warm host has that one's name. None: nothing was started yet.
    place: ActorLocation | None = None
    #: None: its actor is not known to live.
    handle: Handle | None = None
    #: The search for the actor that a former supervisor started; None: it was not started by one.
    search: asyncio.Task[None] | None = None
    #: The control methods of its class.
    capabilities: tuple[str, ...] = ()
    #: Whether it is being ended: nothing is started for it any more, and it gets no commands.
    ending: bool = False
    #: How far its start is; None: it is not being started.
    progress: StartProgress | None = None


class Agents:
    """The processes of agents by name and incarnation, and commands and metrics of each; no decisions."""

    def __init__(
        self,
        backend: Backend,
        scheduler: str,
        namespace: str,
        key_of: Callable[[str, int], bytes] = lambda _name, _incarnation: b"",
    ) -> None:
        self._backend = backend
        #: The key of an agent's process, by name and incarnation; see authentication.py.
        self.key_of = key_of
        self.actor_names = ActorNames(scheduler=scheduler, namespace=namespace)
        self._mark = self.actor_names.mark
        self.namespace = namespace
        self._records: dict[tuple[str, int], _Record] = {}
        #: The processes, and actors of ours that nobody claims, that are being ended.
        self.endings = Endings()
        #: Sends commands to their processes.
        self.commands = AgentCommands(self._queue_of)
        #: (namespace, name) in Ray of actors that the journal does not know: see orphans.py.
        self.orphans: set[tuple[str, str]] = set()
        #: Ends what agents leave on their nodes, and reads the logs there.
        self.cleanup = ProcessCleanup(backend)
        self.metrics = ReportedMetrics()
        self.usage = AgentUsage(self.metrics.aggregates)

    def _open(self, name: str, incarnation: int) -> _Record | None:
        """The record of a process that is not being ended."""
        record = self._records.get((name, incarnation))
        return None if record is None or record.ending else record

    def _queue_of(self, name: str, incarnation: int) -> CommandQueue | None:
        record = self._open(name, incarnation)
        return None if record is None else record.queue

    def _record(self, name: str, incarnation: int) -> _Record:
        """The record of a process, a new one where there is none."""
        return self._records.setdefault((name, incarnation), _Record(queue=CommandQueue()))

    def handle(self, name: str, incarnation: int) -> Handle | None:
        """The agent's handle; None: it is not known to live, or is being ended."""
        record = self._open(name, incarnation)
        return None if record is None else record.handle

    def can(self, name: str, incarnation: int, method: str) -> bool:
        """Whether the agent's class has this control method."""
        record = self._open(name, incarnation)
        return record is not None and method in record.capabilities

    def address(self, process: Agent) -> tuple[str, str]:
        """The (namespace, name) in Ray with which an agent, or a member of a gang, is started."""
        return self._address(process.spec.name, process.incarnation, process.actors)

    def ordered_address(self, order: StartAgent) -> tuple[str, str]:
        """The same of an order to start it."""
        return self._address(order.agent.name, order.incarnation, order.actors)

    def _address(
        self, name: str, incarnation: int, actors: tuple[ActorName, ...]
    ) -> tuple[str, str]:
        actor = actors[0] if actors else self.actor_names.of_process(name, incarnation)
        return actor.address

    def where(self, agent: Agent) -> tuple[str, str]:
        """The (namespace, name) in Ray of an agent, also of one that was built by a warm host."""
        process = agent.process
        if process is not None and process.actor_name:
            return process.actor_namespace, process.actor_name
        record = self._records.get((agent.spec.name, agent.incarnation))
        if record is not None and record.place is not None:
            return record.place.namespace, record.place.actor_name
        return self.address(agent)

    def mark(self, name: str) -> str:
        """A name in Ray that says whose it is."""
        return self._mark + name

    def process_mark(self, namespace: str, name: str) -> int:
        """What the processes of an actor of ours are marked with."""
        return self._backend.process_mark(namespace, name)

    def unclaimed_actors(
        self, living: Iterable[tuple[str, str]], claimed: set[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        """Living actors that carry this scheduler's mark and that nobody claims."""
        marked = (a for a in living if a[0] == self.namespace and self._is_marked(a[1]))
        return [address for address in marked if address not in claimed]

    def _is_marked(self, actor_name: str) -> bool:
        """Whether an actor is an agent's, which ends in its incarnation, or a warm host. The supervisor of a
        scheduler whose name has a colon may begin with our mark, too.
        """
        if not actor_name.startswith(self._mark):
            return False
        unmarked_name = actor_name.removeprefix(self._mark)
        return unmarked_name.startswith(READY) or unmarked_name.rpartition("#")[2].isdecimal()

    def newest_incarnation(self, living: Iterable[tuple[str, str]]) -> int:
        """The highest incarnation in the names of living actors with this scheduler's mark."""
        numbers = [name.rpartition("#")[2] for _, name in self.unclaimed_actors(living, set())]
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def orphan_of(self, agent_name: str) -> str | None:
        """The name in Ray of an orphan of this agent; None: there is none."""
        mark = self.mark(f"{agent_name}#")
        return next((name for _, name in sorted(self.orphans) if name.startswith(mark)), None)

    def addresses(self) -> set[tuple[str, str]]:
        """(namespace, name) of every process that was started and has not ended."""
        places = (record.place for record in self._records.values())
        return {(place.namespace, place.actor_name) for place in places if place is not None}

    async def all_live(self, processes: Iterable[Agent], within_s: float) -> bool:
        """Whether all of these processes live. Each is asked, because Ray learns of the death of a node some
        seconds later. One that does not answer may stand still: it counts as alive where Ray has not found
        it dead within this time. False also where one is being ended.
        """
        silent = list(processes)
        now = asyncio.get_running_loop().time
        until = now() + within_s
        while all(self._open(p.spec.name, p.incarnation) is not None for p in silent):
            answers = await asyncio.gather(
                *(
                    self.commands.execute(p.spec.name, p.incarnation, "ping", _PING_S)
                    for p in silent
                )
            )
            silent = [p for p, answer in zip(silent, answers, strict=True) if answer is None]
            if not silent:
                return True
            if await self._any_dead(silent):
                return False
            if now() >= until:
                return True
        return False

    async def _any_dead(self, processes: Iterable[Agent]) -> bool:
        """Whether Ray knows one of these processes to be dead; False where it cannot be asked."""
        try:
            living = await self._backend.living_actors()
        except BackendError as error:
            logger.debug("cannot ask which actors live: %s", error)
            return False
        return any(self.where(process) not in living for process in processes)

    async def deaths(self, processes: Iterable[Agent]) -> dict[str, Death]:
        """How those of these processes died that are dead, by name, as far as that can be found out."""
        deaths, names_by_address = {}, {}
        for process in processes:
            name = process.spec.name
            record = self._records.get((name, process.incarnation))
            handle = None if record is None else record.handle
            try:
                death = None if handle is None else await self._backend.death_of(handle)
            except BackendError as error:
                logger.debug("cannot ask how agent %s died: %s", name, error)
                continue
            if death is not None:
                deaths[name] = death
            elif handle is None:
                names_by_address[self.where(process)] = name
        return {**deaths, **await self._deaths_at(names_by_address)}

    async def _deaths_at(self, names_by_address: Mapping[tuple[str, str], str]) -> dict[str, Death]:
        """How the agents died, by name, that had these addresses (see ``where``); without those that live,
        and empty where Ray cannot be asked. For agents without a handle.
        """
        if not names_by_address:
            return {}
        try:
            deaths = await self._backend.deaths_of(frozenset(names_by_address))
        except BackendError as error:
            logger.debug("cannot ask how agents died: %s", error)
            return {}
        return {names_by_address[address]: death for address, death in deaths.items()}

    async def adopt(self, agent: Agent) -> None:
        """Take over an agent that a former supervisor started."""
        place = self.know(agent)
        record = self._record(agent.spec.name, agent.incarnation)
        record.capabilities = () if agent.process is None else agent.process.capabilities
        self.metrics.take_over(agent.spec.name)
        if place.node_id is not None:
            self.cleanup.prepare(place.node_id)
        record.search = asyncio.ensure_future(self._search(record, place))
        # Ray may never answer. Nothing but a run needs the handle, and that waits for it.
        await asyncio.wait({record.search}, timeout=_FOUND_S)
        if record.search.done():
            record.search.result()

    async def _search(self, record: _Record, place: ActorLocation) -> None:
        record.handle = await self._find((place.namespace, place.actor_name))

    def know(self, agent: Agent) -> ActorLocation:
        """Remember where an agent runs or ran, so that the processes that it left there can be ended."""
        namespace, name = self.where(agent)
        record = self._record(agent.spec.name, agent.incarnation)
        if record.place is None:
            record.place = ActorLocation(
                namespace=namespace,
                actor_name=name,
                node_id=agent.node_id,
                job=isinstance(agent.spec.payload, JobPayload),
            )
        return record.place

    def expect(self, orders: Iterable[StartAgent]) -> None:
        """Processes are to be started, or were started by a former supervisor: whoever ends their agents from
        now on ends these, too.
        """
        for order in orders:
            record = self._record(order.agent.name, order.incarnation)
            if order.adopt:
                record.place = self._place_of(order, self.ordered_address(order))

    def is_expected(self, order: StartAgent) -> bool:
        """Whether a process is still to be started: it was expected, and nobody has ended it since."""
        return self._open(order.agent.name, order.incarnation) is not None

    async def end_orders(self, orders: Iterable[StartAgent]) -> None:
        """End the processes of these orders, which could not all be started or adopted."""
        await asyncio.gather(*(self.end(order.agent.name, order.incarnation) for order in orders))

    async def start(self, start: AgentStart) -> AgentReported | AgentStartFailed:
        """Make the actor, or have a ready one build, and wait until the object is built; what failed leaves
        nothing alive. Nothing is awaited between the check that the agent is still wanted and its start.
        """
        record = self._open(*start.key)
        if record is None:
            return start_failed(start.order, _ENDED)
        orphan = self.orphan_of(start.order.agent.name)
        if orphan is not None and not start.order.adopt:
            return start_failed(
                start.order,
                f"an agent of this name lives as the orphan {orphan!r}, unknown to the journal that was put "
                "back; end it with end_orphans(), or choose another name",
            )
        address = self._address_of(start)
        try:
            await self._begin(record, start, address)
        except BackendError as error:
            return start_failed(start.order, f"Ray refused to make the actor: {error}")
        if self._open(*start.key) is not record or record.handle is None:
            return start_failed(start.order, _ENDED)
        record.progress = StartProgress.of(start)
        try:
            report = await self._first_report(start, record.handle, record.progress)
        finally:
            record.progress = None
        if isinstance(report, NoReport):
            return await self._end_failed_start(record, start, report)
        if self._open(*start.key) is not record:
            return start_failed(start.order, _ENDED)
        record.capabilities = report.capabilities
        record.place = self._place_of(start.order, address, report.node_id)
        return start.reported(report, address)

    async def _end_failed_start(
        self, record: _Record, start: AgentStart, report: NoReport
    ) -> AgentReported | AgentStartFailed:
        """End what was started in vain; a warm host that died is replaced by a process of its own."""
        if start.ready is not None and report.died and not record.ending:
            # It died while it stood ready, or in the constructor; a process of its own tells which.
            if record.place is not None:
                await self.terminate(record.handle, record.place, start.key[0])
            return await self.start(msgspec.structs.replace(start, ready=None))
        await self.end(*start.key)
        return start_failed(
            start.order,
            report.error,
            report.reason,
            restore_failed=report.restore_failed,
            death=report.death,
            room_lost=report.room_lost,
        )

    def _address_of(self, start: AgentStart) -> tuple[str, str]:
        """The (namespace, name) in Ray of the process that is to be the agent's."""
        if start.ready is not None:
            return self.namespace, start.ready.name
        return self.ordered_address(start.order)

    def know_claim(self, name: str, incarnation: int, node_ids: Iterable[str]) -> None:
        """Remember on which nodes a job has its claim: what it has left there is ended with its runner."""
        record = self._records.get((name, incarnation))
        if record is not None and record.place is not None:
            record.place = msgspec.structs.replace(record.place, claimed=tuple(node_ids))

    def _place_of(
        self, order: StartAgent, address: tuple[str, str], node_id: str | None = None
    ) -> ActorLocation:
        """Where a process is; its node is that of the order where it has not reported another."""
        node_id = node_id or order.node_id
        if node_id is not None:
            self.cleanup.prepare(node_id)
        return ActorLocation(
            namespace=address[0],
            actor_name=address[1],
            node_id=node_id,
            job=isinstance(order.agent.payload, JobPayload),
        )

    async def _begin(self, record: _Record, start: AgentStart, address: tuple[str, str]) -> None:
        """Create the actor, or find that of a former supervisor. Raises BackendError."""
        record.place = self._place_of(start.order, address)
        if start.ready is not None:
            record.handle = start.ready.handle
        elif not start.order.adopt:
            try:
                record.handle = self._backend.start_agent(start.request(address))
            except BackendError:
                # Who has a name that the user has chosen is another actor, which must not be ended.
                is_users = not address[1].startswith(self._mark)
                if is_users or await self._find(address) is None:
                    record.place = None
                raise
        else:
            record.handle = await self._find(address)
            if record.handle is None:
                dead = f"the actor {address[1]!r} that it is to be taken over from is dead"
                raise BackendError(dead)

    async def _first_report(
        self, start: AgentStart, handle: Handle, progress: StartProgress
    ) -> StartReport | NoReport:
        if start.ready is None:
            answer = self._backend.agent_report(handle)
        else:
            answer = self._backend.build_agent(handle, start.packed_for_warm_host, start.refs)
        return await first_report(self._backend, start, handle, answer, progress)

    def note_phase(self, name: str, incarnation: int, phase: str, ago_s: float) -> None:
        """A process tells that its start has been in a phase for so many seconds."""
        record = self._open(name, incarnation)
        if record is not None and record.progress is not None:
            record.progress.enter(phase, ago_s)

    def progress_of(self, name: str, incarnation: int) -> StartProgress | None:
        """How far the start of a process is; None: it is not being started."""
        record = self._open(name, incarnation)
        return None if record is None else record.progress

    def has_environment(self, name: str, incarnation: int) -> bool:
        """Whether Ray sets up a runtime environment for a process that is being started."""
        progress = self.progress_of(name, incarnation)
        return progress is not None and progress.has_environment

    @property
    def longest_start_s(self) -> float:
        """Seconds that the start in progress with the highest limits may take; 0: none is."""
        starts = (record.progress for record in self._records.values())
        return max((sum(s.limits.values()) for s in starts if s is not None), default=0.0)

    async def run(self, name: str, incarnation: int, order: RunOrder) -> RunReport | None:
        """Have an agent run a task, once however often it is asked; returns when the run has ended. None: the
        agent is being ended, or is dead.
        """
        record = self._open(name, incarnation)
        if record is not None and record.search is not None:
            await asyncio.wait({record.search})
        handle = self.handle(name, incarnation)
        while handle is not None:
            try:
                return unpack(await self._backend.run_task(handle, pack(order)), RunReport)
            except MessageError as error:
                message = f"the report of its run cannot be read: {error}"
                return RunReport(kept=b"", reason=TaskEndReason.NOT_RUN, error=message)
            except BackendError as error:
                # Its process may be dead or restarted, which the cluster monitor finds out.
                logger.debug("task %s on agent %s: %s", order.task_id, name, error)
            await asyncio.sleep(_RUN_RETRY_S)
            handle = self.handle(name, incarnation)
        return None

    async def agent_restarted(self, name: str, incarnation: int, node_id: str) -> None:
        """Ray restarted the process; on the same node that has ended what its predecessor started."""
        record = self._open(name, incarnation)
        if record is None:
            return
        record.queue.renew()
        place = record.place
        if place is not None and place.node_id != node_id:
            record.place = msgspec.structs.replace(place, node_id=node_id)
            self.cleanup.prepare(node_id)
            await self.cleanup.terminate(place, name)

    async def end(self, name: str, incarnation: int) -> None:
        """End the process, and return once it and all that it started on its node have ended. However many
        ask for it, it is ended once; one that is not known has ended.
        """
        record = self._records.get((name, incarnation))
        if record is not None:
            record.ending = True
            record.queue.close()
            self._forget_reports(name, incarnation)
            await self.endings.once(
                (name, incarnation), lambda: self._end(record, name, incarnation)
            )

    async def _end(self, record: _Record, name: str, incarnation: int) -> None:
        try:
            if record.place is not None:
                await self._end_at(record.place, record.handle, name)
        finally:
            # It may have reported until it was gone.
            self._forget_reports(name, incarnation)
        # Until then it is known: whoever else ends it has to wait as well.
        self._records.pop((name, incarnation), None)

    async def _end_at(self, place: ActorLocation, handle: Handle | None, name: str) -> None:
        if handle is None:
            # It may be alive all the same: its start is being taken over, or its actor was not found.
            handle = await self._find((place.namespace, place.actor_name))
        await self.terminate(handle, place, name)

    def _forget_reports(self, name: str, incarnation: int) -> None:
        self.metrics.forget(name, incarnation)
        self.usage.forget(name, incarnation)

    async def end_all(self, agents: Iterable[tuple[str, int]], within_s: float) -> None:
        """End these agents; those that have not ended in time are logged and not waited for."""
        ends = {asyncio.ensure_future(self.end(*agent)): agent for agent in agents}
        if not ends:
            return
        _, late = await asyncio.wait(ends, timeout=within_s)
        for end in late:
            end.cancel()
            logger.warning("agent %s has not ended within %g s", ends[end][0], within_s)

    async def end_unclaimed(self, namespace: str, actor_name: str) -> None:
        """End an actor that carries our mark and belongs to no agent of the state."""
        await self.endings.once(
            (namespace, actor_name), lambda: self._end_unclaimed(namespace, actor_name)
        )

    async def _end_unclaimed(self, namespace: str, actor_name: str) -> None:
        handle = await self._find((namespace, actor_name))
        if handle is not None:
            place = ActorLocation(namespace=namespace, actor_name=actor_name, job=True)
            await self.terminate(handle, place, actor_name)

    async def terminate(self, handle: Handle | None, place: ActorLocation, agent_name: str) -> None:
        """End an actor of ours, and return once its process and all that it started have ended, of a job also
        what it started in Ray.

        Both at once: a child that it forked may hold the sockets by which Ray learns that it is dead.
        """
        await asyncio.gather(self._kill(handle), self._clean_up(handle, place, agent_name))
        if place.job:
            owner = owner_of(place.namespace, place.actor_name)
            remains = await end_jobs(self._backend, owner)
            await self.cleanup.terminate_workers(place, agent_name, remains)

    async def _clean_up(self, handle: Handle | None, place: ActorLocation, agent_name: str) -> None:
        if place.node_id is None and handle is not None:
            view = await until_answered(
                f"asking where agent {agent_name} runs", lambda: self._look_up(handle)
            )
            if view is not None and not view.has_process:
                return
            node_id = None if view is None else view.node_id
            place = msgspec.structs.replace(place, node_id=node_id)
        await self.cleanup.terminate(place, agent_name)

    async def end_leftovers(self, agents: Iterable[Agent]) -> None:
        """End what agents have left behind whose own process is dead; as long as it lives, Ray may not
        notice that death.
        """
        nodes: dict[str, dict[int, Agent]] = {}
        for agent in agents:
            if agent.node_id is not None and _pid(agent):
                mark = self.process_mark(*self.where(agent))
                nodes.setdefault(agent.node_id, {})[mark] = agent
        await asyncio.gather(*(self._end_leftovers(*node) for node in nodes.items()))

    async def _end_leftovers(self, node_id: str, agents: Mapping[int, Agent]) -> None:
        hosts = {mark: _pid(agent) for mark, agent in agents.items()}
        for mark, processes in (await self.cleanup.left_behind(node_id, hosts)).items():
            agent = agents[mark]
            handle = self.handle(agent.spec.name, agent.incarnation)
            view = await self._look_up(handle)
            # If Ray has noticed, the restarted process or the end of the agent ends them. By now the agent
            # may have the id of the restarted one, which has the mark, too.
            if view is not None and view.pid == hosts[mark]:
                logger.warning("agent %s is dead; ending what it left behind", agent.spec.name)
                await self.cleanup.kill(node_id, processes)

    async def _look_up(self, handle: Handle | None) -> ActorView | None:
        """What Ray knows of an actor."""
        if handle is None:
            return None
        return await self._backend.actor(handle)

    async def _kill(self, handle: Handle | None) -> None:
        """Kill an actor and wait until Ray knows it dead; None: there is none."""
        if handle is None:
            return
        await until_answered("ending an actor", lambda: self._killed(handle))

    async def _killed(self, handle: Handle) -> None:
        self._backend.kill_actor(handle)
        await self._backend.actor_ended(handle)

    async def _find(self, address: tuple[str, str]) -> Handle | None:
        """The living actor with this (namespace, name); None: there is none. One that cannot be asked for now
        counts as alive.
        """
        namespace, name = address
        return await until_answered(
            f"asking for actor {name}", lambda: self._backend.find_actor(name, namespace)
        )


def _pid(agent: Agent) -> int:
    """The id of the agent's process as last reported; 0: it never ran."""
    return 0 if agent.process is None else agent.process.pid
