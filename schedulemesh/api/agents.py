"""Agents: end, check and list them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypedDict

from schedulemesh.api.call import Call, ChangingCall
from schedulemesh.api.routes import ListRoute, delete, post
from schedulemesh.api.rows import NameOf, OneOf
from schedulemesh.api.tasks import PoolOf, TaskInfo, TaskKind
from schedulemesh.api.values import AgentName, Names, PoolName, Seconds
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Amounts
from schedulemesh.domain.tokens import Role
from schedulemesh.domain.user_data import UserValue


class MeasuredUsage(TypedDict):
    """What a process and those that it has started really use."""

    cpu: float
    memory_mb: float
    #: In per cent, and the memory used on its GPUs; None: they are not measured.
    gpu_utilization: float | None
    gpu_memory_mb: float | None
    #: When it was reported, in seconds since 1970.
    at: float


class PlacementGroupInfo(TypedDict, total=False):
    """A placement group: its id, its name in Ray, the node of each bundle, and how the agent came to it:
    "reserved", "reused", "created" or "preempted".
    """

    #: None: a dry run, in which it would be made.
    id: str | None
    name: str
    node_ids: list[str]
    path: str


class AgentListing(TypedDict, total=False):
    """An agent: what it holds, where it runs, and its tasks."""

    name: str
    #: "agent", "gang", "lease" or "job".
    kind: TaskKind
    resources: Amounts
    labels: dict[str, str]
    pool: PoolOf
    ray_options: dict[str, Any]
    state: Annotated[str, OneOf("waiting", "starting", "running", "ending")]
    node_id: Annotated[str, NameOf.NODE] | None
    #: Of a member of a gang; of an extra member the name of its gang; of a gang its members.
    rank: int
    extra_of: str
    members: list[dict[str, Any]]
    placement_group: PlacementGroupInfo | None
    pid: int
    #: How often Ray restarted its process.
    restarts: int
    #: The ids of its tasks.
    tasks: list[str]
    task_details: list[TaskInfo]
    #: What its process really uses; None: it is not known.
    usage: MeasuredUsage | None
    #: Since when its GPUs are idle by the policy, in seconds since 1970; None: they are not.
    idle_since: float | None
    last_metrics: dict[str, UserValue]


Problem = Literal["dead", "silent"]


class HealthDetail(TypedDict, total=False):
    """What was found and done about one agent."""

    agent_name: str
    pool_name: str
    problem: Problem
    #: "ending": a process of it cannot be ended; it is looked at again at the next check.
    action: Literal["rebuilt", "removed", "ending"]
    tasks: list[str]
    state_restored: bool
    #: Tasks that the rebuilt agent does not run.
    left_out: list[str]
    error: str


class HealthReport(TypedDict, total=False):
    """What a check of all agents found and did."""

    checked: int
    healthy: int
    rebuilt: list[str]
    removed: list[str]
    details: list[HealthDetail]


class DeleteAgent(ChangingCall, tag="delete_agent", frozen=True, kw_only=True):
    """Terminate an agent."""

    least_role: ClassVar[Role] = Role.POOL_OPERATOR

    routes: ClassVar = (delete("/agents/{agent_name}", "End an agent with its tasks"),)

    agent_name: AgentName
    #: Whether its placement group is removed, too; None: as the pool's definition says.
    destroy_group: bool | None = None


class EnsureAgentHealth(ChangingCall, tag="ensure_agent_health", frozen=True, kw_only=True):
    """Check every agent, and rebuild dead and unresponsive ones where possible."""

    routes: ClassVar = (
        post(
            "/agents/check",
            "Check all agents, and rebuild those that are dead or silent",
            renamed={"timeout_s": "timeout"},
        ),
    )

    #: Agents that were silent for so many seconds are asked for a sign of life.
    timeout_s: Seconds = 120.0


class ListAgents(Call, tag="list_agents", frozen=True, kw_only=True):
    """List all agents (of one pool); their Ray handles are sent beside the answer, in the same order."""

    listings: ClassVar = (
        ListRoute(
            path="/agents",
            summary="List the agents",
            row=AgentListing,
            key=("name",),
            missing=Reason.AGENT_NOT_FOUND,
            paged="agents",
        ),
    )

    pool_name: PoolName | None = None
    #: Those of these names only; None: all.
    names: Names | None = None
