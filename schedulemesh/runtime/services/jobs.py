"""Requests about jobs: which there are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import cast

from schedulemesh.api.jobs import JobListing, ListJobs
from schedulemesh.api.tasks import row_of_task
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.links import links_of
from schedulemesh.domain.payloads import RUN_DRIVER, JobPayload
from schedulemesh.domain.priorities import own_class_of
from schedulemesh.domain.reasons import LIMITS
from schedulemesh.domain.resources import sum_of
from schedulemesh.domain.task import Attempts, EndState, TaskSpec
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.explanation.waiting import WaitCauses
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.past import EndedTask
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.protocol.answers import Listed, listed
from schedulemesh.runtime.backend import BackendError
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.jobs.claims import ClaimOfJob, claims_of
from schedulemesh.runtime.queries import limit_at, picked, task_status
from schedulemesh.runtime.services.running import Service

logger = logging.getLogger(__name__)


class JobService(Service):
    """Lists jobs."""

    @handler
    async def list(self, request: ListJobs) -> Listed:
        """The jobs that wait or run, then those that have ended lately; with what those that run hold in Ray,
        as far as Ray can be asked now.
        """
        rows = await self._reactor.read_rows(
            lambda: [make for _, make in self.row_makers(request.task_ids)]
        )
        return listed(await self.with_claims(rows))

    def row_makers(
        self, task_ids: Iterable[object] | None
    ) -> Sequence[tuple[str, Callable[[], JobListing | None]]]:
        """The ids of the jobs among these tasks (None: among all), each with what makes its row."""
        reactor = self._reactor
        return [*_row_makers(reactor.state, reactor.engine, reactor.now(), task_ids)]

    async def with_claims(self, rows: Sequence[JobListing]) -> Sequence[JobListing]:
        """The rows, those of jobs that run with what they hold in Ray, as far as Ray can be asked now."""
        running = {str(row.get("agent_name")): row for row in rows if "started_at" in row}
        claims = await self._claims(running) if running else {}
        for name, claim in claims.items():
            row = running[name]
            row["claimed"] = {n: amount.public() for n, amount in claim.claimed.items()}
            row["used"] = sum_of(claim.used.values()).public()
            row["beyond_claim"] = claim.beyond.public()
        return rows

    async def _claims(self, agent_names: Iterable[str]) -> dict[str, ClaimOfJob]:
        """What each of these jobs holds that still runs, by its agent's name."""
        try:
            usage = await self._backend.usage()
        except BackendError as error:
            logger.warning("what jobs hold in Ray is not known: %s", error)
            return {}
        state = self._reactor.state
        jobs = [
            agent
            for agent in picked(state.agents, agent_names)
            if isinstance(agent.spec.payload, JobPayload)
        ]
        claims = claims_of(state, self._agents, jobs, usage)
        return {claim.agent_name: claim for claim in claims}


def _row_makers(
    state: MeshState, engine: Engine, now: float, task_ids: Iterable[object] | None
) -> Iterator[tuple[str, Callable[[], JobListing | None]]]:
    """What makes the row of each job among these tasks (None: among all) that runs or waits, then of those
    that have ended lately; by their ids.
    """
    causes = engine.wait_causes(now)
    for task in picked(state.running.by_id, task_ids):
        agent = state.agents.get(task.agent_name)
        if agent is not None and isinstance(agent.spec.payload, JobPayload):
            started: JobListing = {
                "node_id": agent.node_id,
                "started_at": task.started_at,
                "running_time": max(0.0, now - task.started_at) if task.started_at else 0.0,
                "limit_at": limit_at(task),
            }
            make = partial(_row, state, task.spec, agent.spec, task.attempts, started)
            yield task.spec.task_id, make
    for waiting in picked(state.queue.by_id, task_ids):
        if isinstance(waiting.common.agent.payload, JobPayload):
            yield waiting.task_id, partial(_waiting_row, state, waiting, causes, now)
    for ended in picked(state.ended, task_ids):
        if ended.spec.run == RUN_DRIVER:
            yield ended.spec.task_id, partial(_ended_row, state, ended)


def _waiting_row(
    state: MeshState, waiting: QueuedTask, causes: WaitCauses, now: float
) -> JobListing | None:
    """The row of a job that waits; None: it waits no more."""
    if state.queue.by_id.get(waiting.task_id) is not waiting:
        return None
    waiting_s = max(0.0, now - waiting.queued_at)
    waited: JobListing = {"waiting_time": waiting_s, "alternative": 0, "flavor": ""}
    row = _row(state, waiting.spec, waiting.submission.agent, waiting.attempts, waited)
    row |= cast("JobListing", task_status(state, waiting.task_id, causes))
    return row


def _ended_row(state: MeshState, ended: EndedTask) -> JobListing:
    # An end that is a failure, or by a limit in time, is counted already.
    counted = ended.state in (EndState.FAILED, EndState.LOST) or ended.reason in LIMITS
    last: JobListing = {"attempt": ended_attempt(ended.attempts, counted=counted)}
    return _row(state, ended.spec, None, ended.attempts, last)


def ended_attempt(attempts: Attempts, *, counted: bool) -> int:
    """The number of the last attempt of a task that has ended; ``counted``: its end is among the attempts."""
    return max(1, attempts.number - counted)


def _row(
    state: MeshState,
    task: TaskSpec,
    agent: AgentSpec | None,
    attempts: Attempts,
    more: JobListing,
) -> JobListing:
    own_class = own_class_of(task.priority, state.policy.priority_classes)
    row = row_of_task(JobListing, task, own_class)
    if agent is not None:
        row["resources"] = agent.resources.public()
        row["label_selector"] = agent.label_selector
        row["alternative"] = agent.taken
        row["flavor"] = agent.taken_flavor
        if agent.payload.adopts:
            row["ray_job_id"] = agent.payload.adopts
    row["attempt"] = attempts.number
    row |= more
    row |= cast("JobListing", task_status(state, task.task_id))
    if links := links_of(state.policy.links, task, row.get("agent_name", ""), row.get("node_id")):
        row["links"] = links
    return row
