"""The answers of the calls that drain nodes and pools."""

from __future__ import annotations

from typing import TypedDict

from schedulemesh.core.client.results import Result


class DrainInfo(TypedDict, total=False):
    """A drain in progress, of a node or of a pool; times are seconds since 1970."""

    node_id: str | None
    pool_name: str | None
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


class DrainStatus(Result, total=False):
    """The answer of ``drain_status``."""

    drains: list[DrainInfo]
