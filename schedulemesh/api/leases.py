"""Leases: watch, renew and release them."""

from __future__ import annotations

from typing import ClassVar

from schedulemesh.api.routes import post
from schedulemesh.api.tasks import OfTask, OwnTaskChange, Wait
from schedulemesh.api.values import RequestId
from schedulemesh.domain.tokens import Role


class WatchLease(OfTask, tag="watch_lease", frozen=True, kw_only=True):
    """Get how a lease stands, once that is not what the caller knows or the time is over."""

    least_role: ClassVar[Role] = Role.SUBMITTER

    #: See ``RenewLease``.
    agent_name: str = ""
    #: The state that the caller knows; empty: it is answered at once.
    known: str = ""
    #: Whether the caller knows that the lease is being evicted.
    notified: bool = False
    wait_s: Wait = 0.0


class RenewLease(OfTask, tag="renew_lease", frozen=True, kw_only=True):
    """Have the time to live of a lease begin again, which is no part of the state."""

    routes: ClassVar = (
        post(
            "/leases/{task_id}/renew", "Have the time to live of a lease begin again", agent_name=""
        ),
    )

    least_role: ClassVar[Role] = Role.SUBMITTER

    #: The agent of the lease that is meant: the id may be that of another lease by now. Empty: whichever has
    #: the id.
    agent_name: str = ""


class SaveLease(OwnTaskChange, tag="save_lease", frozen=True, kw_only=True):
    """Note that the work that is done in a lease can be restored from what its holder has saved by now."""

    routes: ClassVar = (
        post(
            "/leases/{task_id}/saved",
            "Say that the work done in a lease can be restored from what is saved now",
            agent_name="",
        ),
    )

    #: See ``RenewLease``.
    agent_name: str = ""
    request_id: RequestId


class ReleaseLease(OwnTaskChange, tag="release_lease", frozen=True, kw_only=True):
    """End a lease whose holder uses its groups no more, or cancel it while it waits in the queue."""

    routes: ClassVar = (
        post(
            "/leases/{task_id}/release",
            "Give a lease up: what runs in its placement groups is ended",
            agent_name="",
        ),
    )

    #: See ``RenewLease``.
    agent_name: str = ""
    request_id: RequestId
