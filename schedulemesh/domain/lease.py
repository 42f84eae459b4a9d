"""A lease: placement groups that are held for a task without a process of ours in them."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_duration
from schedulemesh.domain.placement import PLACEMENT_STRATEGIES
from schedulemesh.errors import InvalidRequestError, shown

#: The least time to live in seconds: a holder renews in time although the supervisor is restarted meanwhile.
LEAST_TTL_S = 5.0


class LeaseSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What an agent without a process holds: one or more placement groups, all of them or none.

    Every bundle of them is for the holder's own actors and tasks. Whatever runs in them ends with the lease.
    """

    #: One of Ray's placement strategies, which applies to each of the groups; empty: that of the pool's
    #: groups, PACK in a pool that keeps none.
    strategy: str = ""
    #: The node label that the nodes of all groups must have with the same value; empty: none.
    same_label: str = ""
    #: The number of placement groups; the agent's bundles are divided evenly among them, in order.
    parts: int = 1
    #: The Ray job of its holder, with which it ends; empty: it does not end with a job.
    holder_job: str = ""
    #: Seconds from the notice of an eviction to its end, unless it is released before; None: as the policy
    #: says, at least 30.
    grace_s: float | None = None
    #: Seconds after which it ends unless it is renewed; None: it need not be.
    ttl_s: float | None = None


def check_lease(lease: LeaseSpec, size: int) -> None:
    """Raise InvalidRequestError if a caller may not request such a lease of so many bundles."""
    if not 1 <= lease.parts <= size or size % lease.parts:
        raise InvalidRequestError(
            f"a lease of {lease.parts} groups has {size} bundles; each group has as many as the others, and "
            "at least one"
        )
    if lease.strategy and lease.strategy not in PLACEMENT_STRATEGIES:
        raise InvalidRequestError(
            f"strategy is {shown(lease.strategy)}; allowed are {', '.join(PLACEMENT_STRATEGIES)}"
        )
    for value, what in ((lease.same_label, "same_label"), (lease.holder_job, "the holder's job")):
        if value:
            parse_name(value, what)
    if lease.grace_s is not None:
        parse_duration(lease.grace_s, "grace_s")
    if lease.ttl_s is not None and parse_duration(lease.ttl_s, "ttl_s") < LEAST_TTL_S:
        raise InvalidRequestError(
            f"ttl_s is {lease.ttl_s:g}; at least {LEAST_TTL_S:g} s are needed"
        )
