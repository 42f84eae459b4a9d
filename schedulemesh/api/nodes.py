"""Nodes: list, close and drain them; pools are drained by the same call."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypedDict

from schedulemesh.api.call import Call, ChangingCall
from schedulemesh.api.routes import ListRoute, delete, put
from schedulemesh.api.rows import NameOf
from schedulemesh.api.tasks import PoolOf, TaskName
from schedulemesh.api.values import ClientName, NodeId, Seconds
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Amounts
from schedulemesh.domain.tokens import Role
from schedulemesh.errors import InvalidRequestError


class ExternalJobInfo(TypedDict, total=False):
    """What a Ray job that is not the scheduler's holds of a node, or a job of the scheduler's holds there
    beyond its claim.
    """

    job_id: str
    #: Of the scheduler's job; empty: it is none.
    task_id: str
    namespace: str
    #: The command of its driver.
    entrypoint: str
    resources: Amounts


class GpuHolderInfo(TypedDict):
    """What an agent holds of one GPU of a node, as the agent has reported."""

    agent_name: str
    #: As Ray names it, and its number among the GPUs of the node.
    gpu_id: str
    index: int
    #: 1.0: all of it.
    amount: float


class ExternalWork(TypedDict, total=False):
    """What a Ray job holds and waits for in one namespace, beside what is the scheduler's; or what a job of
    the scheduler's holds beyond its claim.
    """

    #: Empty: it is a job of the scheduler's.
    job_id: str
    #: Of the scheduler's job; empty: it is none.
    task_id: TaskName
    #: Of its actors and placement groups.
    namespace: str
    #: The command of its driver; empty: Ray has forgotten it.
    entrypoint: str
    driver_node_id: Annotated[str, NameOf.NODE] | None
    driver_pid: int | None
    #: Seconds since 1970.
    started_at: float | None
    #: Whether its driver has ended; what is detached may still hold resources.
    ended: bool
    #: The metadata of its job config.
    metadata: dict[str, str]
    #: What it holds, altogether and by node.
    resources: Amounts
    nodes: dict[str, Amounts]
    #: What it waits for.
    waiting: Amounts
    #: How many actors outside placement groups, and placement groups, hold this or wait.
    actors: int
    placement_groups: int


OneNode = Annotated[str, NameOf.NODE]


class NodeName(TypedDict, total=False):
    """What a living node is called."""

    node_id: OneNode
    #: The shortest beginning of ``node_id`` that no other node has, of at least four characters.
    short_id: OneNode
    #: The name of its machine, and its IP address; empty: unknown.
    host: OneNode
    address: OneNode
    #: What people are shown: ``host``, ``address`` or ``short_id``, the first that no other node has.
    name: OneNode


class NextWindow(TypedDict):
    """The window of a node that is open, or else the next one; None: it has none. Times are seconds since
    1970.
    """

    window: str | None
    window_start: float | None
    window_end: float | None
    #: Whether it reserves the node for some tasks; else it is for maintenance.
    window_reserves: bool
    #: Whether a maintenance window drains the node now.
    in_window: bool


class NodeInfo(NodeName, NextWindow, total=False):
    """A living node of the cluster."""

    labels: dict[str, str]
    #: Its domain at each level of the topology, the widest first: the values of those labels that it has.
    topology: dict[str, str]
    total: Amounts
    #: By the scheduler's own accounting.
    free: Amounts
    #: What Ray work that is not the scheduler's uses.
    external_usage: Amounts
    #: Who that is, as far as Ray knows; it keeps no record of what plain tasks hold.
    external_jobs: list[ExternalJobInfo]
    cordoned: bool
    draining: bool
    agents: list[str]
    #: Who holds which GPU, as far as agents have reported it.
    gpu_holders: list[GpuHolderInfo]


class DrainInfo(TypedDict, total=False):
    """A drain in progress, of a node or of a pool; times are seconds since 1970."""

    node_id: Annotated[str, NameOf.NODE] | None
    pool_name: PoolOf | None
    started_at: float
    #: By when all agents should have ended; None: there is no time limit.
    deadline: float | None
    #: The client that asked for it (host:pid); None: Ray drains the node.
    requested_by: str | None
    by_ray: bool
    #: The agents that have not ended yet, and their tasks.
    agents: list[str]
    tasks: list[str]
    #: Whether no agent is left.
    done: bool


class CordonNode(ChangingCall, tag="cordon_node", frozen=True, kw_only=True):
    """Close a node to new agents, or open it again."""

    routes: ClassVar = (
        put("/nodes/{node_id}/cordon", "Close a node to new agents", cordoned=True),
        delete("/nodes/{node_id}/cordon", "Open a node to new agents again", cordoned=False),
    )

    node_id: NodeId
    cordoned: bool


class Drain(ChangingCall, tag="drain", frozen=True, kw_only=True):
    """Drain a node or a pool, or end its drain."""

    least_role: ClassVar[Role] = Role.POOL_OPERATOR

    routes: ClassVar = (
        put(
            "/pools/{pool_name}/drain",
            "Drain a pool: nothing new starts in it, and what runs waits in its queue",
            renamed={"deadline_s": "deadline"},
            drained=True,
            node_id=None,
        ),
        delete(
            "/pools/{pool_name}/drain",
            "End the drain of a pool",
            drained=False,
            node_id=None,
            deadline_s=None,
        ),
        put(
            "/nodes/{node_id}/drain",
            "Drain a node: nothing new starts on it, and what runs is saved and moved",
            renamed={"deadline_s": "deadline"},
            drained=True,
            pool_name=None,
        ),
        delete(
            "/nodes/{node_id}/drain",
            "End the drain of a node",
            drained=False,
            pool_name=None,
            deadline_s=None,
        ),
    )

    #: One of the two is given.
    node_id: str | None = None
    pool_name: str | None = None
    drained: bool = True
    #: Seconds by which all agents should have ended; None: there is no time limit.
    deadline_s: Seconds | None = None
    client: ClientName

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.node_id is None) == (self.pool_name is None):
            raise InvalidRequestError("a drain names a node or a pool")
        parse_name(self.node_id or self.pool_name, "the name of what is drained")


class GetDrainStatus(Call, tag="get_drain_status", frozen=True, kw_only=True):
    """List the drains in progress, and what is left of each."""

    listings: ClassVar = (
        ListRoute(
            path="/drains",
            summary="List the drains in progress",
            row=DrainInfo,
            key=("started_at", "node_id", "pool_name"),
        ),
    )


class ListNodes(Call, tag="list_nodes", frozen=True, kw_only=True):
    """List all alive nodes."""

    listings: ClassVar = (
        ListRoute(
            path="/nodes",
            summary="List the living nodes",
            row=NodeInfo,
            key=("node_id",),
            missing=Reason.NODE_NOT_FOUND,
        ),
    )


class ListNodeNames(Call, tag="list_node_names", frozen=True, kw_only=True):
    """List what all alive nodes are called."""

    listings: ClassVar = (
        ListRoute(
            path="/node_names",
            summary="List what the living nodes are called",
            row=NodeName,
            key=("node_id",),
            missing=Reason.NODE_NOT_FOUND,
        ),
    )


class ListExternalUsage(Call, tag="list_external_usage", frozen=True, kw_only=True):
    """List the Ray jobs that hold or wait for something outside of the scheduler."""

    listings: ClassVar = (
        ListRoute(
            path="/external_usage",
            summary="List the Ray jobs that hold or wait for something outside of the scheduler",
            row=ExternalWork,
            key=("job_id", "namespace"),
        ),
    )
