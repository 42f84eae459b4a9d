"""The requests that drain nodes and pools; see ``requests``."""

from __future__ import annotations

from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_timeout
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.request_base import Change, Request


class Drain(Change, tag="drain", frozen=True, kw_only=True):
    """Drain a node or a pool, or end its drain."""

    #: One of the two is given.
    node_id: str | None = None
    pool_name: str | None = None
    drained: bool = True
    #: Seconds by which all agents should have ended; None: there is no time limit.
    deadline_s: float | None = None
    client: str

    def __post_init__(self) -> None:
        if (self.node_id is None) == (self.pool_name is None):
            raise InvalidRequestError("a drain names a node or a pool")
        parse_name(self.node_id or self.pool_name, "the name of what is drained")
        if self.deadline_s is not None:
            parse_timeout(self.deadline_s, "deadline")
        parse_name(self.client, "the client's name")


class GetDrainStatus(Request, tag="get_drain_status", frozen=True, kw_only=True):
    """List the drains in progress, and what is left of each."""
