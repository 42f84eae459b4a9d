"""Requests for what the processes of tasks have written: the drivers of jobs, and agents."""

from __future__ import annotations

import asyncio

import msgspec

from schedulemesh.api.logs import LogPiece, ReadTaskLog, TaskKey
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.protocol.answers import Refusal, TaskLog
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.queries import task_status
from schedulemesh.runtime.services.running import RunningSupervisor, Service

#: How many agents are remembered whose log was found.
_FOUND = 10_000


#: States of tasks of which no process runs yet.
_BEFORE_START = ("queued", "starting")


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """Whose processes write the log of a task."""

    #: The agent on which all attempts run.
    agent_name: str
    #: "agent", "gang", "job" or "lease".
    kind: str
    #: Where it runs, of a gang the first member; None: it does not.
    node_id: str | None = None


class LogService(Service):
    """Reads logs where tasks run or ran."""

    def __init__(self, running: RunningSupervisor) -> None:
        super().__init__(running)
        #: The node on which the last log was found, by the process's name.
        self._found_on: dict[str, str] = {}

    @handler
    async def log(self, request: ReadTaskLog) -> TaskLog | Refusal:
        """A part of the log of an attempt; an empty one where no attempt has written yet."""

        def look() -> tuple[Writer | None, str]:
            state = self._reactor.state
            status = task_status(state, request.task_id)
            return writer_of(state, request.task_id), str(status["state"])

        writer, task_state = await self._reactor.read(look)
        if writer is None:
            return _refusal(f"there is no log of task {request.task_id!r}: {_NO_WRITER}")
        if (error := _contradiction(writer, request)) is not None:
            return _refusal(error)
        if writer.kind != "job" and request.stream is None:
            request = msgspec.structs.replace(request, stream="stdout")
        piece = await self._piece(request, writer, request.task_id)
        if piece is None and writer.node_id is not None:
            # It may have been registered on an agent that was started without a task.
            piece = await self._piece(request, writer, "")
        has_begun = task_state not in _BEFORE_START
        if piece is None and (request.attempt is not None or (request.rank and has_begun)):
            return _refusal(_no_log(writer, request))
        if piece is None:
            return TaskLog(state=task_state, stream=request.stream or "")
        if piece.removed:
            return _refusal(
                f"Ray has removed what attempt {piece.attempt} of task {request.task_id!r} wrote to "
                f"{request.stream}; what must be kept belongs into a file of the task's own"
            )
        return TaskLog(
            state=task_state,
            attempt=piece.attempt,
            begin=piece.begin,
            data=piece.data,
            end=piece.end,
            stream=request.stream or "",
        )

    async def _piece(
        self, request: ReadTaskLog, writer: Writer, started_for: str
    ) -> LogPiece | None:
        """The part, read on the node where the task runs or was found before, else wherever it is."""
        process = writer.agent_name
        if writer.kind == "gang":
            process = f"{process}-{request.rank}"
        key = TaskKey(
            root=self._executor.job_folder,
            namespace=self._settings.namespace,
            scheduler=self._settings.name,
            task_id=started_for,
            agent_name=process,
        )
        nodes = list(self._reactor.state.cluster.nodes)
        for node_id in (writer.node_id, self._found_on.get(process)):
            if node_id in nodes:
                piece = await self._read(node_id, request, key)
                if piece is not None:
                    return piece
        pieces = await asyncio.gather(*(self._read(node_id, request, key) for node_id in nodes))
        there = [(p, n) for n, p in zip(nodes, pieces, strict=True) if p is not None]
        if not there:
            return None
        newest, node_id = max(there, key=lambda one: (one[0].incarnation, one[0].attempt))
        if len(self._found_on) >= _FOUND:
            self._found_on.clear()
        self._found_on[process] = node_id
        return newest

    async def _read(self, node_id: str, request: ReadTaskLog, key: TaskKey) -> LogPiece | None:
        return await self._agents.cleanup.read_log(node_id, key, request)


#: Of which tasks there is a log.
_NO_WRITER = (
    "it is not known, or runs in an actor that the scheduler has not started; "
    "there are logs of the agents, gangs and jobs that were submitted"
)


def writer_of(state: MeshState, task_id: str) -> Writer | None:
    """Whose processes write the log of a task; None: the scheduler has started none for it."""
    if (waiting := state.queue.by_id.get(task_id)) is not None:
        agent = waiting.submission.agent
        return Writer(agent_name=agent.name, kind=agent.kind)
    if (running := state.running.by_id.get(task_id)) is not None:
        runs_on = state.agents.get(running.agent_name)
        if runs_on is None:
            return None
        return Writer(agent_name=runs_on.spec.name, kind=runs_on.spec.kind, node_id=runs_on.node_id)
    ended = state.ended.get(task_id)
    return None if ended is None else Writer(agent_name=ended.agent_name, kind=ended.kind)


def _contradiction(writer: Writer, request: ReadTaskLog) -> str | None:
    """Why there can be no such log; None: there can."""
    task_id, kind = request.task_id, writer.kind
    if kind == "lease":
        return f"{task_id!r} is a lease, which starts no process; the log is where you run what uses it"
    if kind == "job" and request.stream is not None:
        return f"job {task_id!r} has one log with stdout and stderr; leave stream out"
    if kind != "gang" and request.rank:
        return f"task {task_id!r} is no gang, so there is no member of rank {request.rank}"
    return None


def _no_log(writer: Writer, request: ReadTaskLog) -> str:
    noun = "job" if writer.kind == "job" else "task"
    of_attempt = "any attempt" if request.attempt is None else f"attempt {request.attempt}"
    of_member = f", rank {request.rank}" if writer.kind == "gang" else ""
    return f"{noun} {request.task_id!r} has no log of {of_attempt}{of_member} on any node that is alive"


def _refusal(error: str) -> Refusal:
    return Refusal(refused=Refused(reason=Reason.TASK_NOT_FOUND, error_text=error))
