"""The executor: carries out the engine's instructions and reports their results as stimuli."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence

import msgspec
from typing_extensions import assert_never

from schedulemesh.api.logs import TaskKey
from schedulemesh.domain.agent import StartLimits, gang_of
from schedulemesh.domain.payloads import GangPayload, JobPayload, LeasePayload
from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.engine.lifecycle.agents import current
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.instructions import (
    AnswerRequest,
    AnyInstruction,
    CreateGroup,
    EvictAgent,
    EvictTask,
    ProbeClass,
    RemoveGroup,
    RunTask,
    StartAgent,
    StopAgent,
)
from schedulemesh.engine.state.agents import Running
from schedulemesh.engine.state.job_updates import claimed_by_node
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.engine.transaction import Step
from schedulemesh.errors import JournalError
from schedulemesh.protocol.agents import AgentInit, JobStart, MessageError, pack
from schedulemesh.runtime.agents.endings import Endings
from schedulemesh.runtime.agents.eviction import Eviction
from schedulemesh.runtime.agents.gangs import (
    changed_gangs,
    deaths_of,
    end_agent,
    member_orders,
    start_together,
    states_of,
    tell_members,
    with_lost_nodes,
)
from schedulemesh.runtime.agents.job_cleanup import end_jobs, owner_of
from schedulemesh.runtime.agents.references import References
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.agents.start import (
    NO_ROOM_IN_RAY,
    AgentStart,
    fills_group,
    own_need,
    packed_for_warm_host,
    start_failed,
)
from schedulemesh.runtime.agents.start_phases import StartPhases
from schedulemesh.runtime.agents.task_runs import TaskRunner
from schedulemesh.runtime.agents.user_code import UserCode
from schedulemesh.runtime.backend import Backend, BackendError, GroupMember
from schedulemesh.runtime.groups.leases import Leases, not_without_agent
from schedulemesh.runtime.groups.manager import Groups
from schedulemesh.runtime.groups.rooms import Rooms
from schedulemesh.runtime.groups.warm_pool import WarmPool
from schedulemesh.runtime.jobs.ends import adopted_to_end, end_driver
from schedulemesh.runtime.jobs.external_demand import DemandWatch
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.runtime.threads import beside_loop

logger = logging.getLogger(__name__)

#: Seconds for an agent to report that a run has ended, before an eviction is continued that a previous
#: supervisor began.
_ENDED_RUN_S = 5.0
#: Seconds after which it is asked whether a start or a creation is still to be executed.
_OLD_S = 0.5
#: The error of a start whose agent has ended meanwhile.
_ENDED = "it was ended before it was started"


class Executor:
    """Starts, stops and evicts agents, each in a task of its own on the supervisor's event loop.

    It executes what the reactor decides from RecoveryObserved on, which orders everything again that was
    decided before; steps before it may still become durable after it was decided.
    """

    def __init__(
        self,
        backend: Backend,
        agents: Agents,
        groups: Groups,
        reactor: Reactor,
        scheduler: str,
        job_folder: str = "",
    ) -> None:
        self._backend, self._agents = backend, agents
        self.groups = groups
        self.code = UserCode(backend, reactor)
        self._runs = TaskRunner(agents, reactor, self.code)
        self.warm_pool = WarmPool(backend, agents, groups, self.spawn, self.code.class_bytes)
        self.rooms = Rooms(backend, groups, reactor, self.spawn)
        self.demand = DemandWatch(backend, agents, groups.name(""))
        self.starts = StartPhases(backend, agents, reactor)
        self.leases = Leases(agents, groups, self.warm_pool, reactor)
        self._scheduler = scheduler
        #: Where the logs and checkpoints of jobs are kept.
        self.job_folder = job_folder
        self.references = References()
        self._tasks: set[asyncio.Task[None]] = set()
        #: The agents that are being ended, whoever asked for it: the engine, the cluster monitor, a caller;
        #: and lost placement groups that are being removed.
        self.endings = Endings()
        self._stopped = False
        #: By name and incarnation of an agent, whether nobody else is in the placement group that it gets:
        #: asked while its start is being written.
        self._looks: dict[tuple[str, int], asyncio.Task[bool]] = {}
        #: Keys of classes that are being probed.
        self._probing: set[str] = set()
        self._begun = False
        #: What of the claims of jobs on each node is free in Ray, as the cluster monitor saw it last.
        self.unused_claims: Mapping[str, Resources] = {}
        #: Host names, or addresses, of the last nodes that were lost, by id.
        self.lost_hosts: dict[str, str] = {}
        self.reactor = reactor
        groups.confirmed = reactor.confirmed
        reactor.subscribe(self.take)
        reactor.look_ahead(self._look_ahead)

    def begin(self) -> None:
        """Execute the instructions of all steps from now on, where there is nothing to recover."""
        self._begun = True

    def stop_all(self) -> None:
        """Cancel every task but the caller's, and start none from now on: a request
        that is decided while the scheduler is shut down must not start an agent.
        """
        self._stopped = True
        this_task = asyncio.current_task()
        for task in (*self._tasks, *self._looks.values()):
            if task is not this_task:
                task.cancel()
        self.endings.cancel_all()

    def take(self, step: Step) -> None:
        """Begin to execute the instructions of a durable step; each result is the next stimulus."""
        if isinstance(step.stimulus, s.RecoveryObserved):
            self._begun = True
        if not self._begun:
            return
        for instruction in step.instructions:
            self._execute(instruction, step.at)
        for gang_name in changed_gangs(self.reactor.state, step.facts):
            self.spawn(tell_members(self._agents, self.reactor.state, gang_name))

    def _look_ahead(self, step: Step) -> None:
        """Ask who is in the groups of the agents that a step starts, while that is being written."""
        if not self._begun or self._stopped:
            return
        for order in step.instructions:
            if not isinstance(order, StartAgent) or order.group_id is None or order.adopt:
                continue
            if not self.leases.has_started(order):
                self._forget_looks()
                ours = self.warm_pool.names_in(order.group_id)
                look = asyncio.ensure_future(self.groups.has_only(order.group_id, ours))
                look.add_done_callback(_retrieve)
                self._looks[order.agent.name, order.incarnation] = look

    def _forget_looks(self) -> None:
        """Forget those for agents whose start was rolled back, or that ended before they were started."""
        for name, incarnation in tuple(self._looks):
            if current(self.reactor.state, name, incarnation) is None:
                del self._looks[name, incarnation]

    def _execute(self, instruction: AnyInstruction, decided_at: float) -> None:
        match instruction:
            case StartAgent():
                self.spawn(self._start(instruction, decided_at))
            case RunTask():
                self.spawn(self._runs.run(instruction))
            case EvictAgent():
                self.spawn(self._evict_agent(instruction))
            case EvictTask():
                self.spawn(self._evict_task(instruction))
            case StopAgent():
                self.spawn(self._stop(instruction.agent_name, instruction.incarnation))
            case ProbeClass():
                self.spawn(self._probe(instruction))
            case CreateGroup():
                self.spawn(self._create_group(instruction, decided_at))
            case RemoveGroup():
                self.spawn(self._remove_group(instruction.group_id))
            case AnswerRequest():
                pass  # see answers.py
            case _:
                assert_never(instruction)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run a coroutine in the background; an exception is logged."""
        self._spawn_unless_stopped(work)

    def _spawn_unless_stopped(
        self, work: Coroutine[object, object, None]
    ) -> asyncio.Task[None] | None:
        """As ``spawn``; None: the executor has stopped, and starts no work any more."""
        if self._stopped:
            work.close()
            return None
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("an instruction failed", exc_info=task.exception())

    async def _wait_until_confirmed(self, decided_at: float) -> None:
        """Return once an order that was decided then may still be executed: at once, unless it is so old that
        a successor may have begun since; never if one has.
        """
        if self.reactor.now() - decided_at > _OLD_S:
            await self.reactor.confirmed()

    async def _start(self, order: StartAgent, decided_at: float) -> None:
        if isinstance(order.agent.payload, LeasePayload) and self.leases.has_started(order):
            return
        processes = member_orders(order)
        self._agents.expect(processes)
        try:
            result = await self._try_start(order, decided_at)
        except Exception as error:  # reported: nobody else would end its claim
            logger.exception("starting agent %s failed", order.agent.name)
            result = start_failed(order, repr(error))
        if isinstance(result, s.AgentStartFailed):
            await self._log_failed_start(order, result)
            # A successor may have taken its process over.
            await self.reactor.confirmed()
            await self._agents.end_orders(processes)
        await self.reactor.report(result)
        if not self._is_current(order):
            # It belongs to nobody: its end was decided meanwhile.
            await self._agents.end_orders(processes)

    async def _log_failed_start(self, order: StartAgent, failed: s.AgentStartFailed) -> None:
        """Write why an attempt did not start to the log of that attempt, with all that is known: of a job,
        and of an agent whose process there never was.
        """
        agent, death = order.agent, failed.death
        task = self._logged_task(self._task_of(order))
        is_job = isinstance(agent.payload, JobPayload)
        had_process = death is None or not failed.detail
        if task is None or (had_process and not is_job):
            return
        rank = 0 if death is None else death.rank or 0
        key = TaskKey(
            root=self.job_folder,
            namespace=self._agents.namespace,
            scheduler=self._scheduler,
            task_id=task.spec.task_id,
            agent_name=agent.process_names[rank],
        )
        text = "\n".join(
            f"[schedulemesh] {part}" for part in (failed.error, failed.detail.rstrip()) if part
        )
        await self._agents.cleanup.write_log(
            self._backend.own_node_id(),
            key,
            task.attempts.number,
            f"{text}\n",
            None if is_job else order.incarnation,
        )

    async def _try_start(
        self, order: StartAgent, decided_at: float
    ) -> s.AgentReported | s.AgentStartFailed:
        agent = order.agent
        if isinstance(agent.payload, LeasePayload):
            return await self._start_lease(order)
        try:
            foreign, starts = await asyncio.gather(
                self._foreign_members(order), self._agent_starts(order)
            )
        except (JournalError, BackendError, MessageError) as failed:
            return start_failed(order, str(failed))
        if not self._is_current(order):
            return start_failed(order, _ENDED)
        if agent.references and not any(starts[0].refs) and not order.adopt:
            error = "object references given to it were lost with a former supervisor"
            return start_failed(order, error)
        if order.group_id is not None and foreign:
            return await self._fail_occupied(order, order.group_id, foreign)
        if order.group_id is not None and starts[0].slot is None:
            return start_failed(
                order, f"its placement group {order.group_id} is gone", room_lost=True
            )
        try:
            result = await self._start_processes(order, starts, decided_at)
        except BackendError as failed:
            return start_failed(order, str(failed))
        if isinstance(result, s.AgentStartFailed) and result.reason == NO_ROOM_IN_RAY:
            return await self._with_holders(order, result)
        return result

    async def _start_processes(
        self, order: StartAgent, starts: list[AgentStart], decided_at: float
    ) -> s.AgentReported | s.AgentStartFailed:
        """Start the processes of an agent, one with GPUs in a room where it gets one."""
        room = await self.rooms.prepare(order)
        is_full = room is None and await self.rooms.is_full(order)
        await self._wait_until_confirmed(decided_at)
        if isinstance(order.agent.payload, GangPayload):
            return await self._start_gang(order, starts)
        if is_full:
            return start_failed(order, "Ray has no room for it", NO_ROOM_IN_RAY)
        # Nothing is awaited from here until it is started: no warm host is taken for one that has been ended.
        may_be_warm = starts[0].packed_for_warm_host and self._agents.is_expected(order)
        ready = self.warm_pool.take(order) if may_be_warm else None
        start = msgspec.structs.replace(starts[0], slot=room or starts[0].slot, ready=ready)
        return self.rooms.noted(await self._agents.start(start))

    async def _start_gang(
        self, order: StartAgent, starts: list[AgentStart]
    ) -> s.AgentReported | s.AgentStartFailed:
        """Start the members of a gang; where one fails, find out whether their nodes live."""
        group = self.reactor.state.groups.by_id.get(order.group_id or "")
        node_ids = () if group is None else group.node_ids
        for node_id in node_ids:
            self._agents.cleanup.prepare(node_id)
        result = await start_together(self._agents, order, starts)
        if isinstance(result, s.AgentStartFailed):
            return await with_lost_nodes(self._agents, result, node_ids)
        return result

    async def _start_lease(self, order: StartAgent) -> s.AgentReported | s.AgentStartFailed:
        """Hand the groups of a lease over; nothing of ours, nor of a former agent, stays in them."""
        group_id = order.group_id or ""
        if not order.adopt:
            await self.warm_pool.leave(group_id)
        try:
            foreign = await self._foreign_members(order)
        except BackendError as failed:
            return start_failed(order, str(failed))
        if not self._is_current(order):
            return start_failed(order, _ENDED)
        if foreign:
            return await self._fail_occupied(order, group_id, foreign)
        return self.leases.start(order)

    def _is_current(self, order: StartAgent) -> bool:
        """Whether the agent has not ended; once it has, its placement group may be another's."""
        return current(self.reactor.state, order.agent.name, order.incarnation) is not None

    async def _foreign_members(self, order: StartAgent) -> list[GroupMember]:
        """The foreign actors in the agent's placement group that have not ended. Raises BackendError."""
        if order.group_id is None or order.adopt:
            return []
        look = self._looks.pop((order.agent.name, order.incarnation), None)
        if look is not None and await look:
            return []
        orphans = {name for _, name in self._agents.orphans}
        return await self.groups.vacate(
            order.group_id,
            self.warm_pool.names_in(order.group_id),
            orphans,
            lambda: self._is_current(order),
        )

    async def _fail_occupied(
        self, order: StartAgent, group_id: str, foreign: list[GroupMember]
    ) -> s.AgentStartFailed:
        """Fail the start, and remove its placement group unless orphans run in it, which an operator ends."""
        names = ", ".join(member.name or f"process {member.pid}" for member in foreign)
        problem = f"others run in its placement group {group_id} ({names})"
        if {member.name for member in foreign} & {name for _, name in self._agents.orphans}:
            return start_failed(order, f"{problem}; end them with end_orphans()", NO_ROOM_IN_RAY)
        await self._drop_group(order, group_id)
        error = f"{problem}; the group is removed now, submit it again"
        return start_failed(order, error, NO_ROOM_IN_RAY)

    async def _with_holders(
        self, order: StartAgent, failed: s.AgentStartFailed
    ) -> s.AgentStartFailed:
        """The failure of a start for which Ray had no resources although the state had some, with the names
        of those who hold them; the node is observed again.
        """
        node_id, group_id = order.node_id, order.group_id
        if group_id is not None:
            await self._drop_group(order, group_id)
            why = (
                f"others use its placement group {group_id}, which is removed now; submit it again"
            )
        elif node_id is not None:
            try:
                need = own_need(order.agent)
                why = await self.demand.who_has(self.reactor, node_id, need, self.unused_claims)
            except BackendError as unknown:
                logger.warning(
                    "cannot tell who holds the resources of node %s: %s", node_id, unknown
                )
                return failed
        else:
            return failed
        error = f"agent {failed.agent_name!r}: {why}"
        return msgspec.structs.replace(failed, error=error)

    async def _drop_group(self, order: StartAgent, group_id: str) -> None:
        """Remove an agent's group with everything in it from Ray, unless the agent has ended; the cluster
        monitor then reports it as lost.
        """
        if not self._is_current(order):
            return
        await self.warm_pool.leave(group_id)
        if self._is_current(order):
            await self.groups.remove(group_id)

    async def _agent_starts(self, order: StartAgent) -> list[AgentStart]:
        """What is needed to start each process of the agent."""
        orders = member_orders(order)
        saved = await self.reactor.fetch(order.state_key)
        states = [saved]
        if isinstance(order.agent.payload, GangPayload):
            size = len(saved or b"")
            states = await beside_loop(size, lambda: states_of(saved, len(orders)))
        parts = enumerate(zip(orders, states, strict=True))
        return await asyncio.gather(
            *(self._agent_start(one, rank, state) for rank, (one, state) in parts)
        )

    async def _agent_start(self, order: StartAgent, rank: int, saved: bytes | None) -> AgentStart:
        """Everything that is needed to start the agent, or the member of a gang with this rank."""
        init = await self._init_message(order, rank, saved)
        size = len(saved or b"")
        packed_for_warm = b""
        if self.warm_pool.names_in(order.group_id or ""):
            packed_for_warm = await beside_loop(size, lambda: packed_for_warm_host(init))
        slot = self.groups.slot(order.group_id or "")
        if slot is not None and order.world_size:
            slot = msgspec.structs.replace(slot, bundle=rank, whole=False)
        return AgentStart(
            order=order,
            shipped=init.shipped,
            init=init,
            packed=await beside_loop(size, lambda: pack(init)),
            packed_for_warm_host=packed_for_warm,
            refs=self.references.references_of(order.agent),
            timeout_s=self.reactor.state.policy.start_timeout,
            slot=slot,
        )

    async def _probe(self, order: ProbeClass) -> None:
        """Load the class of a queued task once; a probe of the same class that is under way is enough."""
        key = order.class_key
        if key in self._probing:
            return
        self._probing.add(key)
        try:
            shipped = await self.code.class_bytes(key)
            if shipped is None:
                return
            failed = await self.code.probe(key, shipped, order.agent)
        finally:
            self._probing.discard(key)
        if failed is not None:
            await self.reactor.report(
                s.ClassProbeFailed(task_id=order.task_id, reason=failed.reason, error=failed.error)
            )

    async def _create_group(self, order: CreateGroup, decided_at: float) -> None:
        await self._wait_until_confirmed(decided_at)
        result = await self.groups.create(order)
        if result is not None:
            await self.reactor.report_all([result, *self.leases.started_in(result)])
            self.groups.notify()
            self.warm_pool.reconcile(self.reactor.state)

    async def _remove_group(self, group_id: str) -> None:
        await self.warm_pool.leave(group_id)
        await self.groups.remove(group_id)
        await self.reactor.report(s.GroupGone(group_id=group_id))
        self.groups.notify()

    async def _init_message(self, order: StartAgent, rank: int, saved: bytes | None) -> AgentInit:
        """Everything that the agent's process needs to build its object."""
        agent = order.agent
        address = self._agents.ordered_address(order)
        task = self._task_of(order)
        logged = self._logged_task(task)
        return AgentInit(
            scheduler=self._scheduler,
            namespace=self._agents.namespace,
            agent_name=agent.name,
            incarnation=order.incarnation,
            task_id="" if task is None else task.spec.task_id,
            log_task="" if logged is None else logged.spec.task_id,
            attempt=1 if logged is None else logged.attempts.number,
            array={} if task is None else self.reactor.state.arrays.variables(task.spec),
            mark=self._agents.process_mark(*address),
            labels=agent.labels,
            shipped=await self.code.class_bytes(agent.class_key) or b"",
            arguments=await self.code.argument_bytes(agent.arguments_key),
            saved=saved,
            may_restart=bool(json.loads(agent.options).get("max_restarts")),
            rank=order.rank + rank,
            world_size=order.world_size,
            job=await self._job_start(order, address),
            key=self._agents.key_of(agent.name, order.incarnation),
            fills_group=fills_group(agent),
        )

    def _task_of(self, order: StartAgent) -> RunningTask | None:
        """The task for which a process is started, of a member of a gang that of the gang; None: for none."""
        running = self.reactor.state.running
        tasks = running.on_agent(order.agent.name)
        member = gang_of(order.agent.name) if order.world_size else None
        if not tasks and member is not None:
            tasks = running.on_agent(member[0])
        return running.by_id[tasks[0]] if tasks else None

    def _logged_task(self, task: RunningTask | None) -> RunningTask | None:
        """The task whose log a process writes that is started for this one: of an extra member that of its
        gang. None: it is started without one.
        """
        running = self.reactor.state.running
        if task is None or not (core := task.spec.extra_of):
            return task
        tasks = running.on_agent(core)
        return running.by_id[tasks[0]] if tasks else None

    async def _job_start(self, order: StartAgent, address: tuple[str, str]) -> JobStart | None:
        """Which attempt of which job the agent is to run; None: it is no job's runner."""
        state = self.reactor.state
        tasks = state.running.on_agent(order.agent.name)
        if not isinstance(order.agent.payload, JobPayload) or not tasks:
            return None
        task = state.running.by_id[tasks[0]]
        start_limits = order.agent.start_limits or StartLimits()
        return JobStart(
            task_id=task.spec.task_id,
            attempt=task.attempts.number,
            scheduler=self._scheduler,
            namespace=self._agents.namespace,
            owner=owner_of(*address),
            folder=self.job_folder,
            working_dir=await self._publish_job_files(order.agent.payload),
            claimed=self._claim_by_node(order.agent.name),
            mark=self._agents.process_mark(*address),
            array=state.arrays.variables(task.spec),
            devices_limit_s=start_limits.constructor or state.policy.start_timeout,
            label_selector=order.agent.label_selector,
            alternative=order.agent.taken,
        )

    def _claim_by_node(self, agent_name: str) -> dict[str, tuple[float, float]]:
        """CPUs and GPUs of an agent's claim by node."""
        state = self.reactor.state
        agent = state.agents.get(agent_name)
        by_node = {} if agent is None else claimed_by_node(state.groups, state.cluster, agent)
        return {n: (claim.cpu / UNIT, claim.gpu / UNIT) for n, claim in by_node.items()}

    async def _publish_job_files(self, job: JobPayload) -> str:
        """Put what was sent with a job where Ray fetches it: the address of its working directory; empty:
        none was sent.
        """
        for module in job.modules:
            if (packed := await self.reactor.fetch(module.key)) is not None:
                await self._backend.publish_package(module.uri, packed)
        archive = await self.reactor.fetch(job.folder_key)
        if archive is None:
            return ""
        return await self._backend.publish_folder(job.folder_key, job.folder_suffix, archive)

    async def _stop(self, agent_name: str, incarnation: int) -> None:
        agent = self.reactor.state.agents.get(agent_name)
        if (
            agent is not None
            and isinstance(agent.spec.payload, JobPayload)
            and agent.process is not None
        ):
            await self._all([end_driver(self._agents, self.reactor.state, agent)])
        await self.end(agent_name, incarnation, at_once=True)
        self.references.release_unused(self.reactor.state)

    async def end(self, agent_name: str, incarnation: int, *, at_once: bool = False) -> None:
        """End an agent and report it as gone, once however many ask for it; returns when it has ended.

        A successor that has taken over meanwhile keeps it. ``at_once``: that was decided just now, so there
        is none.
        """
        await self.endings.once(
            (agent_name, incarnation),
            lambda: self._end(agent_name, incarnation, at_once=at_once),
        )

    async def _end(self, agent_name: str, incarnation: int, *, at_once: bool) -> None:
        """End an agent with all its processes, or a lease with all that runs in its groups, and report it."""
        if not at_once:
            await self.reactor.confirmed()
        agent = current(self.reactor.state, agent_name, incarnation)
        death = None
        if agent is not None and isinstance(agent.spec.payload, LeasePayload):
            await self.leases.end(agent)
        elif agent is not None and isinstance(agent.phase, Running):
            deaths = await deaths_of(self._agents, self.reactor.state, [agent])
            death = deaths.get(agent_name)
            if death is not None:
                logger.warning("agent %s: its process %s", agent_name, death.how)
        await end_agent(self._agents, self.reactor.state, agent_name, incarnation)
        if agent is not None and (ray_job_id := adopted_to_end(agent)):
            await end_jobs(self._backend, ray_job_id)
        gone = s.AgentGone(
            agent_name=agent_name, incarnation=incarnation, death=death, hosts=self.lost_hosts
        )
        await self.reactor.report(gone)

    async def _take_ended(self, runs: Sequence[RunTask]) -> None:
        """Have the runs reported that ended while there was no supervisor, and await those that go on."""
        ended = await asyncio.gather(*(self._runs.report_ended(run, _ENDED_RUN_S) for run in runs))
        waiting = {}
        for run, has_ended in zip(runs, ended, strict=True):
            task = None if has_ended else self._spawn_unless_stopped(self._runs.run(run))
            if task is not None and has_ended is None:
                waiting[run.task_id] = task
        if waiting:
            await asyncio.wait(waiting.values(), timeout=_ENDED_RUN_S)

    async def _evict_agent(self, order: EvictAgent) -> None:
        # Whatever fails before, the agent is ended: others wait for what it holds.
        await self._all([self._take_ended(order.runs)])
        await self._all([self._take_leave(order)])
        await self.end(order.agent_name, order.incarnation)

    async def _take_leave(self, order: EvictAgent) -> None:
        """Notify an agent, or the holder of a lease, of its eviction, and save and cancel its tasks."""
        agent = current(self.reactor.state, order.agent_name, order.incarnation)
        if agent is not None and isinstance(agent.spec.payload, LeasePayload):
            await self.leases.notify(order)
            await self._all(eviction.note_unsaved() for eviction in self._evictions(order))
        else:
            await self._save_and_cancel(order)

    async def _save_and_cancel(self, order: EvictAgent) -> None:
        """Notify the agent of its eviction, save the states of its tasks, and cancel them."""
        evictions = self._evictions(order)
        await self._all(eviction.notice(order.grace_s) for eviction in evictions)
        await self._all(eviction.save() for eviction in evictions)
        await self._all(eviction.cancel() for eviction in evictions if eviction.can_cancel)
        await self._all(eviction.note_unsaved() for eviction in evictions)

    async def _all(self, steps: Iterable[Coroutine[object, object, object]]) -> None:
        """Run all steps; a failed one is logged, and the eviction continues without it."""
        for result in await asyncio.gather(*steps, return_exceptions=True):
            if isinstance(result, Exception):
                logger.error("a step of an eviction failed", exc_info=result)

    async def _evict_task(self, order: EvictTask) -> None:
        eviction = self.eviction(order.task_id)
        await self._all([self._take_ended(order.runs)])
        task = eviction.task
        if task is None or not isinstance(task.phase, Preempting):
            return
        agent = self.reactor.state.agents.get(task.agent_name)
        if agent is not None and isinstance(agent.spec.payload, LeasePayload):
            await self.reactor.report(not_without_agent(order.task_id))
            return
        await self._all([eviction.save()])
        answered = await eviction.cancel()
        await self._all([eviction.note_unsaved()])
        await self.reactor.report(answered)

    def _evictions(self, order: EvictAgent) -> list[Eviction]:
        """Those of its tasks that still run on this incarnation of the agent, and not again on another."""
        state, name = self.reactor.state, order.agent_name
        if current(state, name, order.incarnation) is None:
            return []
        running = set(order.task_ids).intersection(state.running.on_agent(name))
        return [self.eviction(task_id) for task_id in order.task_ids if task_id in running]

    def eviction(self, task_id: str) -> Eviction:
        """The steps by which a task is saved and cancelled."""
        return Eviction(self._backend, self._agents, self.reactor, task_id)


def _retrieve(look: asyncio.Future[bool]) -> None:
    """Take the error of a question whose answer nobody may wait for, or asyncio reports it as lost."""
    if not look.cancelled():
        look.exception()
