"""What the jobs of this scheduler use in Ray, beside what they claim.

A job's claim is held in the state alone: in Ray it is free until the driver's actors and placement groups
take it. Only Ray's tables say whose these are; the drivers of a job name its runner in the metadata of their
Ray jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

import msgspec

from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.resources import NOTHING, Resources, sum_of
from schedulemesh.engine.messages.job_stimuli import JobBeyondClaim
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.job_updates import claimed_by_node
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.protocol.agents import DEVICES_NAMESPACE
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.backend import NodeView
from schedulemesh.runtime.cluster_usage import ClusterUsage, RayJob

logger = logging.getLogger(__name__)

#: The key in the metadata of a Ray job under which its runner is named, as ``namespace/name`` of its actor.
OWNER = "schedulemesh_actor"

#: Amounts by node.
ByNode = Mapping[str, Resources]


class ClaimOfJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job's claim, and what its drivers hold, by node."""

    agent_name: str
    incarnation: int
    claimed: ByNode
    used: ByNode
    #: Of an adopted job: its claim, which is on no node until its work has been found.
    adopted: Resources = NOTHING

    @property
    def beyond(self) -> Resources:
        """What it uses beyond its claim, wherever that is."""
        claimed = sum_of(self.claimed.values()) or self.adopted
        return sum_of(self.used.values()).beyond(claimed)

    def unused(self, node_id: str) -> Resources:
        """What of its claim on a node its drivers do not hold there."""
        claimed = self.claimed.get(node_id, NOTHING)
        return claimed.beyond(self.used.get(node_id, NOTHING))


def jobs_of(state: MeshState) -> list[Agent]:
    """The agents that are jobs."""
    return [agent for agent in state.agents.values() if isinstance(agent.spec.payload, JobPayload)]


def claims_of(
    state: MeshState, agents: Agents, jobs: Iterable[Agent], usage: ClusterUsage
) -> list[ClaimOfJob]:
    """The claim of each of these jobs, with what its drivers hold."""
    owners = {owner_of_work(agents, agent) for agent in jobs_of(state)}
    used = _used_by_owner(usage, owners)
    return [
        ClaimOfJob(
            agent_name=agent.spec.name,
            incarnation=agent.incarnation,
            claimed=claimed_by_node(state.groups, state.cluster, agent),
            used=used.get(owner_of_work(agents, agent), {}),
            adopted=agent.spec.resources if is_adopted(agent) else NOTHING,
        )
        for agent in jobs
    ]


def is_adopted(agent: Agent) -> bool:
    """Whether an agent stands for a Ray job that somebody else has started."""
    return bool(agent.spec.payload.adopts)


def owner_of_work(agents: Agents, agent: Agent) -> str:
    """What a job's work is found by: its runner, which the metadata of its Ray jobs name, or the id of the
    Ray job or submission that it has adopted.
    """
    return agent.spec.payload.adopts or "/".join(agents.where(agent))


def unused_claims(
    claims: Iterable[ClaimOfJob], usage: ClusterUsage, views: Iterable[NodeView]
) -> dict[str, Resources]:
    """What of the claims of jobs on each node is still free in Ray.

    What is in use on a node and in none of Ray's tables is held by plain tasks. Nobody can say whose they
    are; as far as jobs have unused claims on that node, they are taken for theirs.
    """
    claims = list(claims)
    held_by_node = _by_node(part for holder in usage.holders for part in holder.held)
    unused_by_node: dict[str, Resources] = {}
    for view in views:
        unused = sum_of(claim.unused(view.node_id) for claim in claims)
        if unused:
            in_use = view.total - view.free
            tasks = in_use.beyond(held_by_node.get(view.node_id, NOTHING))
            unused_by_node[view.node_id] = unused.beyond(tasks)
    return unused_by_node


class ClaimWatch:
    """Warns once of each attempt of a job that uses more than it claims, and says since when it does."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, int]] = set()
        self._since: dict[tuple[str, int], float] = {}
        #: What jobs use beyond their claims at present, by agent.
        self.beyond: dict[str, Resources] = {}

    def look(self, claims: Iterable[ClaimOfJob], now: float) -> list[JobBeyondClaim]:
        """Compare what jobs use with what they claim: those that use more."""
        over = {(c.agent_name, c.incarnation): c for c in claims if c.beyond}
        self._since = {key: self._since.get(key, now) for key in over}
        self.beyond = {claim.agent_name: claim.beyond for claim in over.values()}
        self._warn(over)
        return [
            JobBeyondClaim(
                agent_name=claim.agent_name,
                incarnation=claim.incarnation,
                beyond=claim.beyond,
                since=self._since[key],
            )
            for key, claim in over.items()
        ]

    def _warn(self, over: Mapping[tuple[str, int], ClaimOfJob]) -> None:
        for key, claim in over.items():
            if key not in self._warned:
                logger.warning(
                    "job %s uses %s more than it claims; ask for that when it is submitted, so that it is "
                    "accounted and room is kept for it",
                    claim.agent_name,
                    claim.beyond,
                )
        self._warned |= over.keys()

    def forget(self, jobs: Iterable[Agent]) -> None:
        """Forget jobs that have ended."""
        self._warned &= {(agent.spec.name, agent.incarnation) for agent in jobs}


def owners_of_jobs(jobs: Mapping[str, RayJob], owners: Collection[str]) -> dict[str, str]:
    """The owner of each Ray job, as ``owner_of_work`` names it: its runner, or for the Ray jobs of others
    their id. ``owners``: those of this scheduler's jobs. A submission may be adopted before its driver
    connects to Ray; that driver is a Ray job with an id of its own then, and belongs to the submission.
    """
    return {
        job_id: job.metadata.get(
            OWNER,
            job.submission_id if job.submission_id in owners and job_id not in owners else job_id,
        )
        for job_id, job in jobs.items()
    }


def _used_by_owner(usage: ClusterUsage, owners: Collection[str]) -> dict[str, dict[str, Resources]]:
    """What the drivers of each runner, and the Ray jobs of others by their ids, hold, by node."""
    owner_of_job = owners_of_jobs(usage.jobs, owners)
    parts: dict[str, list[tuple[str, Resources]]] = {}
    for holder in usage.holders:
        of_driver = holder.name if holder.namespace == DEVICES_NAMESPACE else ""
        if owner := of_driver or owner_of_job.get(holder.job_id, ""):
            parts.setdefault(owner, []).extend(holder.held)
    return {owner: _by_node(owner_parts) for owner, owner_parts in parts.items()}


def _by_node(parts: Iterable[tuple[str, Resources]]) -> dict[str, Resources]:
    """The sums of these parts."""
    sums: dict[str, Resources] = {}
    for node_id, amount in parts:
        sums[node_id] = sums.get(node_id, NOTHING) + amount
    return sums
