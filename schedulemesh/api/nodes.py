"""Nodes: list, close and drain them; pools are drained by the same call."""

from __future__ import annotations

from typing import ClassVar

from schedulemesh.api.call import Call, Change
from schedulemesh.api.routes import delete, put
from schedulemesh.api.values import ClientName, NodeId, Seconds
from schedulemesh.domain.names import parse_name
from schedulemesh.errors import InvalidRequestError


class CordonNode(Change, tag="cordon_node", frozen=True, kw_only=True):
    """Close a node to new agents, or open it again."""

    routes: ClassVar = (
        put("/nodes/{node_id}/cordon", "Close a node to new agents", cordoned=True),
        delete("/nodes/{node_id}/cordon", "Open a node to new agents again", cordoned=False),
    )

    node_id: NodeId
    cordoned: bool


class Drain(Change, tag="drain", frozen=True, kw_only=True):
    """Drain a node or a pool, or end its drain."""

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


class ListNodes(Call, tag="list_nodes", frozen=True, kw_only=True):
    """List all alive nodes."""


class ListExternalUsage(Call, tag="list_external_usage", frozen=True, kw_only=True):
    """List the Ray jobs that hold or wait for something outside of the scheduler."""
