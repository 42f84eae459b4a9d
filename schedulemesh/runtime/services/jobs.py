"""Requests about jobs: which there are, and what their drivers have written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial

from schedulemesh.api.jobs import JobKey, ListJobs, LogPiece, ReadJobLog
from schedulemesh.domain.agent import RUN_DRIVER, AgentSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import sum_of
from schedulemesh.domain.task import Attempts, EndState, TaskSpec, task_row
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.explanation.waiting import WaitCauses
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.past import EndedTask
from schedulemesh.engine.state.queue import QueuedTask
from schedulemesh.protocol.answers import JobLog, Listed, Refusal
from schedulemesh.runtime.backend import BackendError
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.jobs.claims import ClaimOfJob, claims_of, jobs_of
from schedulemesh.runtime.queries import task_status
from schedulemesh.runtime.services.running import RunningSupervisor, Service

logger = logging.getLogger(__name__)

#: How many jobs are remembered whose log was found.
_FOUND = 10_000


class JobService(Service):
    """Lists jobs, and reads their logs where they ran."""

    def __init__(self, running: RunningSupervisor) -> None:
        super().__init__(running)
        #: The node on which the last log of a job was found, by its runner's name.
        self._found_on: dict[str, str] = {}

    @handler
    async def list(self, _: ListJobs) -> Listed:
        """Every job that waits or runs, then those that have ended lately; with what those that run hold in
        Ray, as far as Ray can be asked now.
        """
        reactor = self._reactor
        rows = await reactor.read_rows(
            lambda: _row_makers(reactor.state, reactor.engine, reactor.now())
        )
        claims = await self._claims()
        for row in rows:
            claim = claims.get(str(row.get("agent_name")))
            if claim is not None and "started_at" in row:
                row["claimed"] = {n: amount.public() for n, amount in claim.claimed.items()}
                row["used"] = sum_of(claim.used.values()).public()
                row["beyond_claim"] = claim.beyond.public()
        return Listed(rows=rows)

    async def _claims(self) -> dict[str, ClaimOfJob]:
        """What each job that runs holds, by its agent's name."""
        try:
            usage = await self._backend.usage()
        except BackendError as error:
            logger.warning("what jobs hold in Ray is not known: %s", error)
            return {}
        state = self._reactor.state
        claims = claims_of(state, self._agents, jobs_of(state), usage)
        return {claim.agent_name: claim for claim in claims}

    @handler
    async def log(self, request: ReadJobLog) -> JobLog | Refusal:
        """A part of the log of an attempt; an empty one where no attempt has written yet."""

        def look() -> tuple[str | None, str | None, str]:
            state, task_id = self._reactor.state, request.task_id
            status = task_status(state, task_id)
            node_id = _node_of(state, task_id)
            return runner_of(state, task_id), node_id, str(status["state"])

        runner, node_id, task_state = await self._reactor.read(look)
        if runner is None:
            return _no_job(request.task_id)
        piece = await self._piece(request, self._key(request.task_id, runner), node_id)
        if piece is None and request.attempt is not None:
            return _no_attempt(request.task_id, request.attempt)
        if piece is None:
            return JobLog(state=task_state)
        return JobLog(
            state=task_state,
            attempt=piece.attempt,
            begin=piece.begin,
            data=piece.data,
            end=piece.end,
        )

    def _key(self, task_id: str, runner: str) -> JobKey:
        return JobKey(
            root=self._executor.job_folder,
            namespace=self._settings.namespace,
            scheduler=self._settings.name,
            task_id=task_id,
            agent_name=runner,
        )

    async def _piece(
        self, request: ReadJobLog, key: JobKey, runs_on: str | None
    ) -> LogPiece | None:
        """The part, read on the node where the job runs or was found before, else wherever it is."""
        nodes = list(self._reactor.state.cluster.nodes)
        for node_id in (runs_on, self._found_on.get(key.agent_name)):
            if node_id in nodes:
                piece = await self._read(node_id, request, key)
                if piece is not None:
                    return piece
        pieces = await asyncio.gather(*(self._read(node_id, request, key) for node_id in nodes))
        there = [(p, n) for n, p in zip(nodes, pieces, strict=True) if p is not None]
        if not there:
            return None
        newest, node_id = max(there, key=lambda one: one[0].attempt)
        if len(self._found_on) >= _FOUND:
            self._found_on.clear()
        self._found_on[key.agent_name] = node_id
        return newest

    async def _read(self, node_id: str, request: ReadJobLog, key: JobKey) -> LogPiece | None:
        return await self._agents.cleanup.read_log(
            node_id, key, request.attempt, request.begin, request.limit
        )


def _row_makers(
    state: MeshState, engine: Engine, now: float
) -> Iterator[Callable[[], dict[str, object] | None]]:
    """What makes the row of every job that runs or waits, then of those that have ended lately."""
    causes = engine.wait_causes(now)
    for task in state.running.by_id.values():
        agent = state.agents.get(task.agent_name)
        if agent is not None and agent.spec.job is not None:
            started = {
                "node_id": agent.node_id,
                "started_at": task.started_at,
                "running_time": max(0.0, now - task.started_at) if task.started_at else 0.0,
            }
            yield partial(_row, state, task.spec, agent.spec, task.attempts, **started)
    for waiting in state.queue.by_id.values():
        if waiting.submission.agent.job is not None:
            yield partial(_waiting_row, state, waiting, causes, now)
    for ended in state.ended.values():
        if ended.spec.run == RUN_DRIVER:
            yield partial(_ended_row, state, ended)


def _waiting_row(
    state: MeshState, waiting: QueuedTask, causes: WaitCauses, now: float
) -> dict[str, object] | None:
    """The row of a job that waits; None: it waits no more."""
    if state.queue.by_id.get(waiting.task_id) is not waiting:
        return None
    waited = {"waiting_time": max(0.0, now - waiting.queued_at)}
    row = _row(state, waiting.spec, waiting.submission.agent, waiting.attempts, **waited)
    return {**row, **task_status(state, waiting.task_id, causes)}


def _ended_row(state: MeshState, ended: EndedTask) -> dict[str, object]:
    row = _row(state, ended.spec, None, ended.attempts)
    # An end that is a failure is counted among the failures.
    failed = ended.state in (EndState.FAILED, EndState.LOST)
    return {**row, "attempt": ended_attempt(ended.attempts, failed=failed)}


def ended_attempt(attempts: Attempts, *, failed: bool) -> int:
    """The number of the last attempt of a task that has ended."""
    return max(1, attempts.number - failed)


def runner_of(state: MeshState, task_id: str) -> str | None:
    """The name of the agent on which all attempts of a job run; None: it is no job that is known."""
    task, waiting = state.running.by_id.get(task_id), state.queue.by_id.get(task_id)
    if waiting is not None:
        job, name = waiting.spec, waiting.submission.agent.name
    elif (started_task := task or state.ended.get(task_id)) is not None:
        job, name = started_task.spec, started_task.agent_name
    else:
        return None
    return name if job.run == RUN_DRIVER else None


def _row(
    state: MeshState,
    task: TaskSpec,
    agent: AgentSpec | None,
    attempts: Attempts,
    **more: object,
) -> dict[str, object]:
    claim: dict[str, object] = {} if agent is None else {"resources": agent.resources.public()}
    if agent is not None and agent.job is not None and agent.job.adopts:
        claim["ray_job_id"] = agent.job.adopts
    return {
        **task_row(task),
        **claim,
        "attempt": attempts.number,
        **more,
        **task_status(state, task.task_id),
    }


def _node_of(state: MeshState, task_id: str) -> str | None:
    """The node on which a job runs; None: it does not."""
    task = state.running.by_id.get(task_id)
    agent = None if task is None else state.agents.get(task.agent_name)
    return None if agent is None else agent.node_id


def _no_job(task_id: str) -> Refusal:
    error = f"there is no job {task_id!r}; only jobs, which submit_job starts, have logs"
    return Refusal(refused=Refused(reason=Reason.TASK_NOT_FOUND, error=error))


def _no_attempt(task_id: str, attempt: int) -> Refusal:
    error = f"job {task_id!r} has no log of attempt {attempt} on any node that is alive"
    return Refusal(refused=Refused(reason=Reason.TASK_NOT_FOUND, error=error))
