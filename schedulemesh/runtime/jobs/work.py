"""What Ray jobs hold and wait for, beside what is this scheduler's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from schedulemesh.api.nodes import ExternalWork
from schedulemesh.domain.resources import NOTHING, Resources, sum_of
from schedulemesh.engine.messages.explanation import ExternalJob
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.protocol.agents import DEVICES_NAMESPACE
from schedulemesh.runtime.agents.gangs import every_process
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.cluster_usage import ClusterUsage, RayHolder, RayJob
from schedulemesh.runtime.jobs.claims import claims_of, jobs_of, owner_of_work, owners_of_jobs

#: What is said of a job that the cluster has forgotten.
_FORGOTTEN = RayJob(
    job_id="",
    namespace="",
    metadata={},
    driver_node_id="",
    driver_pid=0,
    entrypoint="",
    started_at=0.0,
    ended=True,
)


class WorkOfJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one Ray job has in one namespace, beside what is the scheduler's."""

    job: RayJob
    namespace: str
    holders: tuple[RayHolder, ...]
    #: The job of this scheduler that holds it beyond its claim; empty: it is no job of the scheduler's.
    task_id: str = ""

    def on_node(self, node_id: str) -> Resources:
        """What it holds on a node."""
        return sum_of(amount for at, amount in self._held if at == node_id)

    @property
    def _held(self) -> list[tuple[str, Resources]]:
        return [part for holder in self.holders for part in holder.held]

    def public(self) -> ExternalWork:
        """For callers."""
        node_ids = sorted({node_id for node_id, _ in self._held})
        waiting = [amount for holder in self.holders for amount in holder.waiting]
        return {
            "job_id": self.job.job_id,
            "task_id": self.task_id,
            "namespace": self.namespace,
            "entrypoint": self.job.entrypoint,
            "driver_node_id": self.job.driver_node_id or None,
            "driver_pid": self.job.driver_pid or None,
            "started_at": self.job.started_at or None,
            "ended": self.job.ended,
            "metadata": self.job.metadata,
            "resources": sum_of(amount for _, amount in self._held).public(),
            "nodes": {node_id: self.on_node(node_id).public() for node_id in node_ids},
            "waiting": sum_of(waiting).public(),
            "actors": sum(
                not (self.task_id or each.is_group or each.are_tasks) for each in self.holders
            ),
            "placement_groups": sum(holder.is_group for holder in self.holders),
        }


def work_of_jobs(usage: ClusterUsage, holders: Iterable[RayHolder]) -> list[WorkOfJob]:
    """These holders by job and namespace."""
    holders_of_job: dict[tuple[str, str], list[RayHolder]] = {}
    for holder in holders:
        holders_of_job.setdefault((holder.job_id, holder.namespace), []).append(holder)
    return [
        WorkOfJob(
            job=usage.jobs.get(job_id, msgspec.structs.replace(_FORGOTTEN, job_id=job_id)),
            namespace=namespace,
            holders=tuple(holders_of_job[job_id, namespace]),
        )
        for job_id, namespace in sorted(holders_of_job)
    ]


def beyond_claims(usage: ClusterUsage, state: MeshState, agents: Agents) -> list[WorkOfJob]:
    """What jobs of this scheduler hold beyond their claims, by node."""
    work_beyond = []
    for claim in claims_of(state, agents, jobs_of(state), usage):
        unassigned, parts = claim.beyond, []
        for node_id, used in sorted(claim.used.items()):
            here = used.beyond(claim.claimed.get(node_id, NOTHING))
            here = here.beyond(here.beyond(unassigned))  # the smaller of both
            unassigned = unassigned.beyond(here)
            if here:
                parts.append((node_id, here))
        if parts:
            work_beyond.append(_beyond(state, claim.agent_name, tuple(parts)))
    return work_beyond


def _beyond(
    state: MeshState, agent_name: str, parts: tuple[tuple[str, Resources], ...]
) -> WorkOfJob:
    return WorkOfJob(
        job=msgspec.structs.replace(_FORGOTTEN, ended=False),
        namespace="",
        holders=(
            RayHolder(ray_id="", is_group=False, job_id="", name="", namespace="", held=parts),
        ),
        task_id=next(iter(state.running.on_agent(agent_name)), agent_name),
    )


def external_holders(
    usage: ClusterUsage, state: MeshState, agents: Agents, group_mark: str
) -> Iterator[RayHolder]:
    """The holders that are not this scheduler's. Plain tasks of which nobody knows whose they are may be
    those of its jobs, where it runs any.
    """
    ours = {agents.where(process) for process in every_process(state, state.agents.values())}
    owners = {owner_of_work(agents, agent) for agent in jobs_of(state)}
    own_jobs = {j for j, owner in owners_of_jobs(usage.jobs, owners).items() if owner in owners}
    own_actors = agents.mark("")
    for holder in usage.holders:
        if holder.are_tasks:
            is_ours = bool(owners) and not holder.job_id
        elif holder.is_group:
            is_ours = holder.name.startswith(group_mark)
        else:
            marked = holder.namespace == agents.namespace and holder.name.startswith(own_actors)
            of_driver = holder.namespace == DEVICES_NAMESPACE and holder.name in owners
            is_ours = marked or of_driver or (holder.namespace, holder.name) in ours
        if not is_ours and holder.job_id not in own_jobs:
            yield holder


def jobs_on(work: Iterable[WorkOfJob], node_id: str) -> tuple[ExternalJob, ...]:
    """The jobs that hold something of a node."""
    amounts_on_node = ((job_work, job_work.on_node(node_id)) for job_work in work)
    return tuple(
        ExternalJob(
            job_id=job_work.job.job_id,
            task_id=job_work.task_id,
            namespace=job_work.namespace,
            entrypoint=job_work.job.entrypoint,
            resources=amount,
        )
        for job_work, amount in amounts_on_node
        if amount != NOTHING
    )
