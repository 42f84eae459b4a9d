"""Turns jobs into submissions, as a client would make them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from schedulemesh.domain.agent import AgentSpec, Alternative, with_alternatives
from schedulemesh.domain.dependencies import parse_after
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.node_labels import parse_node_labels
from schedulemesh.domain.payloads import SINGLE_PROCESS, GangPayload
from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.domain.task import MAX_RETRIES, TaskSpec
from schedulemesh.domain.topology import parse_topology
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim.jobs import Job, JobAlternative

_MB_PER_GB = 1024.0
#: The class of every agent; it counts as loaded.
CLASS_KEY = "job"
_GANG = GangPayload(strategy="PACK")


class Submissions:
    """Makes the submissions of jobs for one cluster: a job that is too large for every node is a gang, with
    as many members as it needs of the largest nodes.
    """

    def __init__(self, nodes: Iterable[NodeReport], only_pool: str = "", retries: int = 0) -> None:
        #: ``only_pool``: the pool of all jobs; empty: each job's own. ``retries``: for processes that die.
        self._only_pool = only_pool
        self._retries = retries
        totals = [node.total for node in nodes]
        self._largest = Resources(
            cpu=max((total.cpu for total in totals), default=0),
            memory=max((total.memory for total in totals), default=0),
            gpu=max((total.gpu for total in totals), default=0),
        )
        self._bundles: dict[Resources, tuple[Resources, ...]] = {}

    def submission_of(self, job: Job) -> TaskSubmitted:
        """The submission of this job. Raises InvalidRequestError where no node has the kind of it at all."""
        pool_name = self._only_pool or job.pool
        agent = self._agent(job, pool_name)
        return TaskSubmitted(
            agent=agent,
            task=TaskSpec(
                task_id=job.job_id,
                pool_name=pool_name,
                priority=job.priority,
                labels=job.labels,
                estimated_duration=job.estimate_s,
                owner=job.user,
                run="run",
                max_retries=min(len(job.fails_at_s) + self._retries, MAX_RETRIES),
                on_preempted="requeue",
                max_run_s=job.max_run_s,
                after=parse_after(job.after),
                array=job.array,
                # What is on one node has no members.
                topology=parse_topology(job.topology) if job.topology and agent.bundles else "",
                on_time_limit="requeue" if job.requeued_at_limit else "",
            ),
            queue=True,
        )

    def _agent(self, job: Job, pool_name: str) -> AgentSpec:
        """The agent of a job, a gang where it is too large for every node in any of its alternatives."""
        each = [job, *(_in_place(job, other) for other in job.alternatives)]
        needs = [self.need(one) for one in each]
        parts = [self._bundles_of(one, need) for one, need in zip(each, needs, strict=True)]
        if any(parts):
            parts = [bundles or (need,) for bundles, need in zip(parts, needs, strict=True)]
        agent = AgentSpec(
            name=job.job_id,
            pool_name=pool_name,
            resources=needs[0],
            class_key=CLASS_KEY,
            bundles=parts[0],
            payload=_GANG if parts[0] else SINGLE_PROCESS,
            node_labels=parse_node_labels(job.node_labels, "node_labels"),
        )
        others = tuple(
            Alternative(
                node_labels=parse_node_labels(one.node_labels, "node_labels"),
                resources=need,
                bundles=bundles,
            )
            for one, need, bundles in zip(each[1:], needs[1:], parts[1:], strict=True)
        )
        return with_alternatives(agent, others)

    def _bundles_of(self, job: Job, need: Resources) -> tuple[Resources, ...]:
        """The members of a gang; empty: it fits on one node."""
        bundles = self._bundles.get(need)
        if bundles is None:
            bundles = self._bundles[need] = self._divided(job, need)
        return bundles

    def need(self, job: Job) -> Resources:
        """What it asks for; CPU and memory only where the nodes of the cluster have any."""
        has = self._largest
        return Resources(
            cpu=round(job.cpus * UNIT) if has.cpu else 0,
            memory=round(job.memory_gb * _MB_PER_GB * UNIT) if has.memory else 0,
            gpu=round(job.gpus * UNIT),
        )

    def _divided(self, job: Job, need: Resources) -> tuple[Resources, ...]:
        """The members of a gang; empty: it fits on one node."""
        has = self._largest
        if need.fits(has):
            return ()
        pairs = ((need.cpu, has.cpu), (need.memory, has.memory), (need.gpu, has.gpu))
        if any(amount and not most for amount, most in pairs):
            raise InvalidRequestError(
                f"job {job.job_id!r} needs {need}, and the largest node has {has}; simulate it on other nodes"
            )
        count = max(math.ceil(amount / most) for amount, most in pairs if amount)
        cpus = _shares(need.cpu, min(has.cpu, math.ceil(need.cpu / count)), count)
        memories = _shares(need.memory, min(has.memory, math.ceil(need.memory / count)), count)
        gpus = _shares(need.gpu, _gpus_of_a_member(need.gpu, has.gpu, count), count)
        return tuple(
            Resources(cpu=cpu, memory=memory, gpu=gpu)
            for cpu, memory, gpu in zip(cpus, memories, gpus, strict=True)
        )


def _in_place(job: Job, other: JobAlternative) -> Job:
    """The job as it is in one of its alternatives."""
    amounts = {name: getattr(other, name) for name in ("gpus", "cpus", "memory_gb")}
    changed = {name: amount for name, amount in amounts.items() if amount is not None}
    return msgspec.structs.replace(job, node_labels=other.node_labels, **changed)


def _gpus_of_a_member(amount: int, most: int, count: int) -> int:
    """All of a node where the GPUs determine the number of members; otherwise whole ones, divided evenly."""
    if amount and math.ceil(amount / most) == count:
        return most
    return min(most, math.ceil(amount / count / UNIT) * UNIT)


def _shares(amount: int, each: int, count: int) -> list[int]:
    """What each of ``count`` members has of what is asked: at most ``each``, the last ones what is left."""
    return [max(0, min(each, amount - each * at)) for at in range(count)]
