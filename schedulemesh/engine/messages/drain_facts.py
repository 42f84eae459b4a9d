"""Facts about the drains of nodes and pools; see ``facts``."""

from __future__ import annotations

from schedulemesh.engine.messages.fact import Fact


class DrainStarted(Fact, tag="drain_started", frozen=True, kw_only=True):
    """Nothing new starts on a node or in a pool, and what runs there is evicted.

    An earlier drain of the same is replaced.
    """

    #: One of the two is given.
    node_id: str | None = None
    pool_name: str | None = None
    at: float
    #: By when all agents should have ended, in seconds since 1970; None: there is no time limit.
    deadline: float | None = None
    #: The client that asked for it; empty: Ray drains the node.
    client: str = ""
    #: The maintenance window that closes the node; empty: none.
    window: str = ""
    #: Whether the node is opened again when the drain ends.
    opens: bool = False
    #: Of a pool: whether it is deleted when nothing uses it any more.
    deletes: bool = False


class DrainEnded(Fact, tag="drain_ended", frozen=True, kw_only=True):
    """A node or a pool is not drained any more."""

    node_id: str | None = None
    pool_name: str | None = None
    at: float
