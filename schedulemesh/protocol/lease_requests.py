"""Requests about leases: watch, renew and release them."""

from __future__ import annotations

from schedulemesh.domain.names import parse_name
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.request_base import Request
from schedulemesh.protocol.task_requests import LONGEST_WAIT_S


class WatchLease(Request, tag="watch_lease", frozen=True, kw_only=True):
    """Get how a lease stands, once that is not what the caller knows or the time is over."""

    task_id: str
    #: See ``RenewLease``.
    agent_name: str = ""
    #: The state that the caller knows; empty: it is answered at once.
    known: str = ""
    #: Whether the caller knows that the lease is being evicted.
    notified: bool = False
    #: Seconds.
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        parse_name(self.task_id, "task_id")
        if not 0.0 <= self.wait_s <= LONGEST_WAIT_S:
            raise InvalidRequestError(
                f"a request waits for 0 to {LONGEST_WAIT_S:g} s, not {self.wait_s}"
            )


class RenewLease(Request, tag="renew_lease", frozen=True, kw_only=True):
    """Have the time to live of a lease begin again, which is no part of the state."""

    task_id: str
    #: The agent of the lease that is meant: the id may be that of another lease by now. Empty: whichever has
    #: the id.
    agent_name: str = ""

    def __post_init__(self) -> None:
        parse_name(self.task_id, "task_id")


class SaveLease(Request, tag="save_lease", frozen=True, kw_only=True):
    """Note that the work that is done in a lease can be restored from what its holder has saved by now."""

    task_id: str
    #: See ``RenewLease``.
    agent_name: str = ""
    request_id: str

    def __post_init__(self) -> None:
        parse_name(self.task_id, "task_id")
        parse_name(self.request_id, "request_id")


class ReleaseLease(Request, tag="release_lease", frozen=True, kw_only=True):
    """End a lease whose holder uses its groups no more, or cancel it while it waits in the queue."""

    task_id: str
    #: See ``RenewLease``.
    agent_name: str = ""
    request_id: str

    def __post_init__(self) -> None:
        parse_name(self.task_id, "task_id")
        parse_name(self.request_id, "request_id")
