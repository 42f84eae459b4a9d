"""Requests for commands inside the claims of tasks and leases: start one, read its output, send it input.

The process of an agent starts them beside itself, that of a job beside its driver. A lease has no process, so
they get an actor of their own in its first bundle, which takes no resources.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time

import msgspec

from schedulemesh.api.exec_sessions import ReadExec, StartExec, WriteExec
from schedulemesh.domain.payloads import GangPayload, LeasePayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import Sentence, Text, say
from schedulemesh.domain.task import ENDED_STATES, TaskPhase
from schedulemesh.engine.messages.facts import AgentEnded
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Step
from schedulemesh.protocol.agents import Accelerators, MessageError, unpack
from schedulemesh.protocol.answers import Details, ExecOutput, Refusal, details
from schedulemesh.protocol.exec_messages import ExecOrder
from schedulemesh.runtime.agents.gangs import processes_of
from schedulemesh.runtime.agents.process_cleanup import ActorLocation
from schedulemesh.runtime.backend import BackendError, BundleSlot, Handle
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.queries import task_status
from schedulemesh.runtime.services.running import RunningSupervisor, Service

logger = logging.getLogger(__name__)

#: Sessions at a time of one task, and of all.
MAX_OF_TASK, MAX_SESSIONS = 8, 64
#: Seconds for a runner to start a command, and without a request after which a session counts no more.
_START_S, _COUNTED_S = 30.0, 90.0
#: Seconds for Ray to say which GPUs the bundle of a lease has.
_DEVICES_S = 5.0
#: The exit code of a command that SIGKILL has ended.
_KILLED = 128 + signal.SIGKILL
#: What a task is called, by its kind, where that is no task in the words of people.
_NOUNS = {"job": "job", "lease": "lease"}


class _Runner(msgspec.Struct, frozen=True, kw_only=True):
    """Where a command is started: by the process of an agent, or in the group of a lease."""

    #: The agent of the task or the lease; of an extra member of an elastic gang its own.
    agent_name: str
    incarnation: int
    #: The process that starts it: of a gang that of a member; else that of the agent.
    process_name: str
    node_id: str
    attempt: int
    #: What it is, for people: task, job or lease.
    noun: str
    #: Of a lease: the first bundle of its group; None: it is none.
    slot: BundleSlot | None = None


class _Session(msgspec.Struct, kw_only=True):
    """A command that was started."""

    task_id: str
    runner: _Runner
    #: When somebody last asked for it, by the monotonic clock.
    asked_at: float
    #: Of a lease: the name that the processes of the command are marked with, and their actor.
    marked_as: str = ""
    actor: Handle | None = None


class ExecService(Service):
    """Starts commands inside claims, and passes their streams on. Nothing of it is stored: the commands end
    with the supervisor.
    """

    def __init__(self, running: RunningSupervisor) -> None:
        super().__init__(running)
        self._sessions: dict[str, _Session] = {}
        #: Ends of commands that are under way.
        self._ending: set[asyncio.Future[None]] = set()
        self._reactor.subscribe(self._take)

    @handler
    async def start(self, request: StartExec) -> Details | Refusal:
        """Start a command; repeated, it is the one that was started."""
        session_id = request.request_id
        session = self._sessions.get(session_id)
        if session is None:
            runner = await self._reactor.read(lambda: self._runner_of(request))
            if isinstance(runner, Refused):
                return Refusal(refused=runner)
            session = _Session(task_id=request.task_id, runner=runner, asked_at=time.monotonic())
            self._sessions[session_id] = session
            if (error := await self._begin(session_id, session, request)) is not None:
                self._drop(session_id)
                return _refusal(Reason.TASK_NOT_RUNNING, error)
        runner = session.runner
        facts = {"session_id": session_id, "node_id": runner.node_id, "attempt": runner.attempt}
        return details(facts)

    @handler
    async def read(self, request: ReadExec) -> ExecOutput | Refusal:
        """What a command has written since, once there is something or the time is over."""
        session = self._session_of(request)
        if session is None:
            return _unknown(request)
        part = await self._agents.cleanup.read_exec(session.runner.node_id, request)
        if part is None:
            self._drop(request.session_id)
            return ExecOutput(ended=True, error=await self._end_without_answer(session))
        if part.ended and not part.pieces:
            self._drop(request.session_id)
        error, exit_code = part.error, part.exit_code
        if part.ended and exit_code == _KILLED and await self._is_over(session):
            # It was killed with its task or lease, and its process was there to see it.
            exit_code = None
        if part.ended and exit_code is None:
            error = await self._end_of(session)
        return ExecOutput(
            pieces=part.pieces,
            next=part.first + len(part.pieces),
            ended=part.ended,
            exit_code=exit_code,
            error=error,
        )

    @handler
    async def write(self, request: WriteExec) -> Details | Refusal:
        """Send a command input, tell it the size of its terminal, or end it."""
        session = self._session_of(request)
        if session is None:
            return _unknown(request)
        taken = await self._agents.cleanup.write_exec(session.runner.node_id, request)
        return _unknown(request) if taken is None else details({"taken": taken})

    def _session_of(self, request: ReadExec | WriteExec) -> _Session | None:
        session = self._sessions.get(request.session_id)
        if session is None or session.task_id != request.task_id:
            return None
        session.asked_at = time.monotonic()
        return session

    async def _begin(self, session_id: str, session: _Session, request: StartExec) -> str | None:
        """Have the command started; why it could not be."""
        runner, cleanup = session.runner, self._agents.cleanup
        address = await cleanup.open_exec(runner.node_id, session_id)
        if address is None:
            return f"node {runner.node_id} does not answer"
        order = ExecOrder(
            address=address,
            command=request.command,
            task_id=request.task_id,
            takes_input=request.takes_input,
            terminal=request.terminal,
            rows=request.rows,
            columns=request.columns,
        )
        packed = msgspec.msgpack.encode(order)
        if runner.slot is not None:
            return await self._begin_in_lease(session_id, session, runner.slot, packed)
        result = await self._agents.commands.execute(
            runner.process_name, runner.incarnation, "exec", _START_S, order=packed
        )
        if result is not None and result.able and result.success:
            return None
        await cleanup.end_exec(runner.node_id, session_id)
        if result is None:
            return f"the process of {runner.noun} {request.task_id!r} does not answer"
        return result.error or (
            f"the driver of job {request.task_id!r} has not begun yet, or has ended; try again"
        )

    async def _begin_in_lease(
        self, session_id: str, session: _Session, slot: BundleSlot, order: bytes
    ) -> str | None:
        """Start a command in the group of a lease; why it could not be."""
        settings = self._settings
        session.marked_as = f"{session.runner.agent_name}#exec-{session_id}"
        mark = self._backend.process_mark(settings.namespace, session.marked_as)
        variables = {
            **await self._devices_of(slot),
            "SCHEDULEMESH_NAME": settings.name,
            "SCHEDULEMESH_NAMESPACE": settings.namespace,
            "SCHEDULEMESH_LEASE": session.task_id,
            "SCHEDULEMESH_PLACEMENT_GROUP": slot.ray_id,
        }
        start = self._backend.start_exec(slot, order, mark, variables)
        try:
            session.actor = await asyncio.wait_for(start, _START_S)
        except (BackendError, asyncio.TimeoutError, TimeoutError) as error:
            return f"no command can be started in lease {session.task_id!r}: {error or 'no answer'}"
        self._look(session_id)
        return None

    async def _devices_of(self, slot: BundleSlot) -> dict[str, str]:
        """The variables that make the GPUs of a bundle visible; none where its holder has some in Ray, which
        tells nobody else then which all of them are.
        """
        if not slot.shape.bundles[0].gpu:
            return {}
        try:
            packed = await self._backend.accelerators(slot, _DEVICES_S)
            return dict(unpack(packed, Accelerators).env_vars)
        except (BackendError, MessageError) as error:
            logger.info("a command in a lease is told of no GPUs: %s", error)
            return {}

    def _take(self, step: Step) -> None:
        """With a lease its commands end, also where nobody asks for them any more."""
        ended = {fact.agent_name for fact in step.facts if isinstance(fact, AgentEnded)}
        for session in tuple(self._sessions.values()) if ended else ():
            if session.actor is not None and session.runner.agent_name in ended:
                self._end_actor(session)

    def _look(self, session_id: str) -> None:
        """End the command of a lease that nobody asks for, else look again later."""
        session = self._sessions.get(session_id)
        if session is None:
            return
        remaining_s = session.asked_at + _COUNTED_S - time.monotonic()
        if remaining_s <= 0:
            self._drop(session_id)
        else:
            asyncio.get_running_loop().call_later(remaining_s, self._look, session_id)

    def _drop(self, session_id: str) -> None:
        """Forget a command, and end the actor that it had."""
        session = self._sessions.pop(session_id, None)
        if session is not None and session.actor is not None:
            self._end_actor(session)

    def _end_actor(self, session: _Session) -> None:
        actor, session.actor = session.actor, None
        if actor is None:
            return
        with contextlib.suppress(BackendError):
            self._backend.kill_actor(actor)
        ending = asyncio.ensure_future(self._terminate(session))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _terminate(self, session: _Session) -> None:
        """End what a command has started that outlived its actor."""
        location = ActorLocation(
            namespace=self._settings.namespace,
            actor_name=session.marked_as,
            node_id=session.runner.node_id,
        )
        await self._agents.cleanup.terminate(location, session.runner.agent_name)

    def _runner_of(self, request: StartExec) -> _Runner | Refused:
        """Which process starts the command; or why none does."""
        state, task_id = self._reactor.state, request.task_id
        if not state.policy.allow_exec:
            return Refused(reason=Reason.COMMANDS_OFF, error_text=say("exec_off"))
        task = state.running.by_id.get(task_id)
        agent = None if task is None else state.agents.get(task.agent_name)
        if task is None or agent is None or task.phase is not TaskPhase.RUNNING:
            return _not_running(state, task_id)
        named = _process_of(state, agent, request.rank)
        if named is None:
            return _no_member(task_id, agent, request.rank)
        agent_name, process = named
        slot, node_id = self._place_of(process)
        if node_id is None:
            return _not_running(state, task_id)
        if (too_many := self._too_many(task_id)) is not None:
            return Refused(reason=Reason.TOO_MANY_COMMANDS, error_text=too_many)
        return _Runner(
            agent_name=agent_name,
            incarnation=process.incarnation,
            process_name=process.spec.name,
            node_id=node_id,
            attempt=task.attempts.number,
            noun=_NOUNS.get(agent.spec.payload.kind, "task"),
            slot=slot,
        )

    def _place_of(self, process: Agent) -> tuple[BundleSlot | None, str | None]:
        """Of a lease the first bundle of its group, and the node of that; else the node of the process."""
        if not isinstance(process.spec.payload, LeasePayload):
            return None, process.node_id
        group = self._reactor.state.groups.by_id.get(process.group_id or "")
        slot = self._groups.slot(process.group_id or "")
        if group is None or slot is None or not group.node_ids:
            return None, None
        return slot, group.node_ids[0]

    def _too_many(self, task_id: str) -> Sentence | None:
        """Why no further session is begun; None: one may be."""
        now = time.monotonic()
        for session_id, session in tuple(self._sessions.items()):
            if now - session.asked_at > _COUNTED_S:
                self._drop(session_id)
        of_task = sum(session.task_id == task_id for session in self._sessions.values())
        if of_task < MAX_OF_TASK and len(self._sessions) < MAX_SESSIONS:
            return None
        return say(
            "exec_too_many",
            task=task_id,
            of_task=of_task,
            count=len(self._sessions),
            most_of_task=MAX_OF_TASK,
            most=MAX_SESSIONS,
        )

    async def _end_without_answer(self, session: _Session) -> str:
        """Why a command has ended whose node does not answer: Ray notices late that a node has died."""
        node_id = session.runner.node_id
        if node_id in await self._agents.cleanup.lost_among((node_id,)):
            return f"node {node_id} is lost, and the command with it"
        return await self._end_of(session)

    async def _is_over(self, session: _Session) -> bool:
        """Whether the attempt or the lease has ended, or is ending, in which a command was started."""
        state = self._reactor.state
        return not await self._reactor.read(lambda: _goes_on(state, session))

    async def _end_of(self, session: _Session) -> str:
        """Why a command has ended that did not end by itself."""

        def look() -> str:
            state, runner = self._reactor.state, session.runner
            if runner.node_id not in state.cluster.nodes:
                return f"node {runner.node_id} is lost, and the command with it"
            if _goes_on(state, session):
                return "the connection to the command was lost, so it was ended"
            status = task_status(state, session.task_id)
            how = status.get("reason") or status["state"]
            verb = "has ended" if status["state"] in ENDED_STATES else "is ended"
            what = f"{runner.noun} {session.task_id!r}"
            if runner.slot is None:
                what = f"attempt {runner.attempt} of {what}"
            return f"{what} {verb} ({how}), and the command with it"

        return await self._reactor.read(look)


def _goes_on(state: MeshState, session: _Session) -> bool:
    """Whether the attempt or the lease still runs in which a command was started."""
    agent = state.agents.get(session.runner.agent_name)
    task = state.running.by_id.get(session.task_id)
    is_same = agent is not None and agent.incarnation == session.runner.incarnation
    return is_same and task is not None and task.phase is TaskPhase.RUNNING


def _process_of(state: MeshState, agent: Agent, member: int) -> tuple[str, Agent] | None:
    """A process of an agent, after the name of the agent with which it ends; None: there is no such member,
    or it does not run. Of a lease it is the lease itself.
    """
    processes = processes_of(state, agent) or (agent,)
    if member < len(processes):
        return agent.spec.name, processes[member]
    name = f"{agent.spec.name}-{member}"
    extra = state.agents.get(name) if name in agent.spec.extra_names else None
    return None if extra is None or not isinstance(extra.phase, Running) else (name, extra)


def _no_member(task_id: str, agent: Agent, member: int) -> Refused:
    """Why there is no command beside a member: the task has none of that rank, or it does not run now."""
    count = len(agent.spec.process_names) + len(agent.spec.extra_names)
    if not isinstance(agent.spec.payload, GangPayload):
        no_member = say("exec_no_gang", task=task_id, member=member)
    elif member < count:
        no_member = say("exec_member_away", task=task_id, member=member)
    else:
        no_member = say("exec_no_member", task=task_id, member=member, last=count - 1)
    return Refused(reason=Reason.TASK_NOT_RUNNING, error_text=no_member)


def _not_running(state: MeshState, task_id: str) -> Refused:
    status = task_status(state, task_id)
    if status["state"] == "unknown":
        no_task = say("exec_no_task", task=task_id)
        return Refused(reason=Reason.TASK_NOT_FOUND, error_text=no_task)
    not_running = say("exec_not_running", task=task_id, state=status["state"])
    return Refused(reason=Reason.TASK_NOT_RUNNING, error_text=not_running)


def _unknown(request: ReadExec | WriteExec) -> Refusal:
    no_command = say("exec_no_command", command=request.session_id, task=request.task_id)
    return _refusal(Reason.TASK_NOT_FOUND, no_command)


def _refusal(reason: Reason, error: Text) -> Refusal:
    return Refusal(refused=Refused(reason=reason, error_text=error))
