"""What an incoming task may claim of the capacity that is leaving (``placement.leaving``).

Room may be claimed by everybody. Quota may be claimed

1. of the task's own pool;
2. of a pool of its cohort in whose queue nobody waits, as a loan;
3. that an agent holds which is being evicted, where the rules would let the task itself evict it: as a loan,
   like that of a victim;
4. that will be held for the task's pool or client.

What will be held for others may not be. Loans keep to the limits of their pools. Of claims that would be
revoked for the task (``revocations``) it gets its own pool's quota.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.domain.resources import NOTHING, Resources, sum_of
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.admission.requeue import place_if_retried
from schedulemesh.engine.messages.facts import Share, merged
from schedulemesh.engine.placement.leaving import (
    Leaving,
    all_leaving,
    leaving_if_revoked,
    revoked_in,
)
from schedulemesh.engine.placement.scenario import Demand, own_groups
from schedulemesh.engine.state.agents import Agent, Ending
from schedulemesh.engine.state.lending import LoanCaps, promise
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.preemption_rules import judge
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.transaction import Transaction


class InFlight(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is leaving and unclaimed, as one request may use it."""

    pool_name: str
    items: tuple[Leaving, ...] = ()
    #: The quota of each that the request may claim.
    quota: tuple[tuple[Share, ...], ...] = ()

    @property
    def items_by_quota(self) -> tuple[Leaving, ...]:
        """The items, those first that give quota, so that a claim waits for no more of them than needed."""
        order = sorted(zip(self.items, self.quota, strict=True), key=lambda pair: not pair[1])
        return tuple(item for item, _ in order)

    def reduce(self, demand: Demand) -> Demand:
        """What is still to be found for a demand if all of this is claimed for it, apart from its place."""
        if not self.items:
            return demand
        claimed, _ = self.cover(demand.short_quota, demand.caps)
        groups = sum(own_groups(item, demand.pool_name) for item in self.items)
        return msgspec.structs.replace(
            demand,
            short_quota=demand.short_quota - sum_of(share.amount for share in claimed),
            too_many_groups=demand.too_many_groups - groups,
            caps=None if demand.caps is None else demand.caps.after(claimed),
        )

    def cover(
        self, short: Resources, caps: LoanCaps | None, first: Iterable[Leaving] = ()
    ) -> tuple[tuple[Share, ...], tuple[Leaving, ...]]:
        """The quota that a claim gets of this, at most what it is short of, and what gives it: own quota
        before loans, and first of what the claim waits for already (``first``).
        """
        if not short:
            return (), ()
        names = {item.name for item in first}
        order = sorted(
            zip(self.items, self.quota, strict=True), key=lambda pair: pair[0].name not in names
        )
        claimed: tuple[Share, ...] = ()
        paying: dict[str, Leaving] = {}
        for of_own_pool in (True, False):
            for item, quota in order:
                if not short:
                    break
                shares = (s for s in quota if (s.pool_name == self.pool_name) is of_own_pool)
                freed = [(share.pool_name, (share,)) for share in shares]
                part = promise(freed, self.pool_name, short, caps) if freed else ()
                part = tuple(share for share in part if share.amount)
                if part:
                    paying[item.name] = item
                    claimed = merged((*claimed, *part))
                    short = short - sum_of(share.amount for share in part)
                    caps = None if caps is None else caps.after(part)
        return claimed, tuple(paying.values())


def in_flight(tx: Transaction, request: Request, *, loans: bool) -> InFlight:
    """What a request may claim of what is leaving. ``loans``: also of quota of other pools."""
    state = tx.state
    items = leaving_if_revoked(state, request.revokes) if request.revokes else all_leaving(state)
    if not request.counts_leaving:
        items = tuple(item for item in items if revoked_in((item,), request.revokes))
    items = tuple(item for item in items if not _comes_back_first(tx, request, item))
    if not items:
        return InFlight(pool_name=request.pool_name)
    if not request.payment.short:
        return InFlight(pool_name=request.pool_name, items=items, quota=((),) * len(items))
    usable = tuple(_usable(state, request, item, loans=loans) for item in items)
    return InFlight(pool_name=request.pool_name, items=items, quota=usable)


def _comes_back_first(tx: Transaction, request: Request, leaving: Leaving) -> bool:
    """Whether an agent is only between two attempts of a task that has its place kept, and comes before the
    request.
    """
    entry = tx.state.queue.entry_of(request.stimulus, tx.now)
    if entry is None:
        return False
    places = (place_if_retried(tx.state, agent) for agent in leaving.agents)
    return any(place is not None and place < entry for place in places)


def _usable(
    state: MeshState, request: Request, leaving: Leaving, *, loans: bool
) -> tuple[Share, ...]:
    """The unclaimed quota that a request may have."""
    if request.stimulus.for_group:
        return ()
    allowed: dict[str, Resources] = {}
    for agent in leaving.agents:
        for share in agent.shares:
            if _may_have(state, request, agent, share, loans=loans):
                allowed[share.pool_name] = allowed.get(share.pool_name, NOTHING) + share.amount
    parts = (
        Share(pool_name=s.pool_name, amount=allowed.get(s.pool_name, NOTHING).within(s.amount))
        for s in leaving.unclaimed
    )
    return tuple(part for part in parts if part.amount)


def _may_have(
    state: MeshState, request: Request, agent: Agent, share: Share, *, loans: bool
) -> bool:
    """Whether a request may claim this quota of an agent that is being terminated."""
    ending = agent.phase
    of_own_pool = share.pool_name == request.pool_name
    if agent.spec.name in request.revokes:
        return of_own_pool
    if not isinstance(ending, Ending):
        return False
    if not of_own_pool and share.pool_name in state.ledger.closed:
        return False
    if ending.hold_for is not None:
        return ending.hold_for == request.pool_name and (of_own_pool or loans)
    if ending.hold_for_client is not None:
        return ending.hold_for_client == request.stimulus.client and (of_own_pool or loans)
    if of_own_pool or not loans or place_if_retried(state, agent) is not None:
        return of_own_pool
    return _may_borrow(state, request, share.pool_name) or _might_evict(state, request, agent)


def _may_borrow(state: MeshState, request: Request, lender: str) -> bool:
    """Whether a request may borrow of what will be idle of a pool's quota."""
    if state.policy.protects(request.pool_name) or lender in state.queue.pools:
        return False
    return lender in state.ledger.cohorts.neighbours(request.pool_name).names


def _might_evict(state: MeshState, request: Request, agent: Agent) -> bool:
    """Whether the rules would let a request evict an agent that is being evicted for somebody else."""
    running, incoming = state.running, request.incoming(state)
    tasks = [running.by_id[task_id] for task_id in running.on_agent(agent.spec.name)]
    rules = state.preemption
    return bool(tasks) and all(
        isinstance(task.phase, Preempting)
        and judge(
            rules.policy,
            rules.ranks,
            incoming,
            task.spec.pool_name,
            task.spec.priority,
            task.spec.labels,
            agent.payers,
        ).rule
        is not None
        for task in tasks
    )
