"""What is to end so that a request that does not fit now can be admitted: idle groups, borrowers, or victims.

The means are tried in this order: placement groups that nobody uses are removed; what is leaving anyway and
nobody has claimed is claimed (``in_flight``), and counts as gone for all that follows; smaller tasks are
moved to other nodes; quota that the request's pool has lent is reclaimed, from tasks that do not run yet
(``revocations``) and from those that do, if need be with exchanged loans; tasks are evicted by the rules of
preemption; both together; those are evicted that the order of the queue puts behind the request: tasks that
have attained much service for one that has attained little, or tasks that have more left to run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import Resources, sum_of
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.admission.backfill import Backfill
from schedulemesh.engine.admission.cancelled_starts import Starts
from schedulemesh.engine.admission.contest import Contest, contest_of, uncontested
from schedulemesh.engine.admission.in_flight import InFlight, in_flight
from schedulemesh.engine.admission.needs import quota_need_of
from schedulemesh.engine.messages.facts import Share, merged
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.group_choice import (
    NoAssignment,
    excess,
    idle_for_node,
    suits,
)
from schedulemesh.engine.placement.leaving import (
    Leaving,
    groups_that_stay,
    names_of,
    unclaimed_quota,
    waiting_claims,
)
from schedulemesh.engine.placement.scenario import Demand
from schedulemesh.engine.preemption.candidates import Candidates, idle_cost
from schedulemesh.engine.preemption.combined import BorrowersAndOthers
from schedulemesh.engine.preemption.exchange import (
    TasksOfBorrowers,
    exchanged,
    uses_no_more_than_its_quota,
)
from schedulemesh.engine.preemption.limits import Limits
from schedulemesh.engine.preemption.moves import SmallerTasks, fit_elsewhere
from schedulemesh.engine.preemption.reclaim import Borrowers, price_of
from schedulemesh.engine.preemption.savable import SavableTasks
from schedulemesh.engine.preemption.search import EvictionPlan, place_without, search
from schedulemesh.engine.preemption.service import SecondLevel, least_service_evicted
from schedulemesh.engine.preemption.shortest import LongerTasks, left_of_incoming
from schedulemesh.engine.preemption.sites import KnownNodes
from schedulemesh.engine.preemption.veto import PluginVeto
from schedulemesh.engine.preemption.victims import VictimAgents, evicted_tasks
from schedulemesh.engine.state.fair_order import Entry
from schedulemesh.engine.state.groups import Group
from schedulemesh.engine.state.lending import LoanCaps, caps_of, clipped, idle_beside, promise
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.preemption_rules import Incoming
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.quota import Payment, pay
from schedulemesh.engine.state.tasks import TaskClass
from schedulemesh.engine.state.ways import ways_of_task
from schedulemesh.engine.transaction import Transaction

#: So many places are tried for a claim on what is leaving where reserved starts need the room of the first.
_PLACES = 8


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A request that does not fit, and what decides who may be ended for it."""

    tx: Transaction
    request: Request
    veto: PluginVeto | None
    #: Narrowed while victims are sought.
    limits: Limits
    #: What the searches for the request find out.
    known: KnownNodes

    def of(self, request: Request) -> Case:
        """The same for another form of the request."""
        return msgspec.structs.replace(self, request=request)


def plan_for(
    tx: Transaction,
    request: Request,
    veto: PluginVeto | None,
    limits: Limits,
    known_nodes: KnownNodes | None = None,
) -> EvictionPlan | None:
    """What is to end for a request that does not fit now; None: nothing that may end would make room.
    ``known_nodes``: where it is noted until when that holds while the state stays as it is.
    """
    known_nodes = known_nodes or KnownNodes()
    known_nodes.until = limits.until
    plan = room_of_idle(tx, request)
    if plan is not None or not request.stimulus.may_preempt:
        return plan
    claim = claim_leaving(tx, request)
    permitted_claim = None if claim is None else _permitted_claim(tx, request, claim)
    if permitted_claim is not None:
        return permitted_claim if _may_claim(tx, request, veto) else None
    case = Case(tx=tx, request=request, veto=veto, limits=limits, known=known_nodes)
    plan = None if claim is not None else _end_others(case)
    if claim is None and (plan is None or not _overtakes(tx, request, plan)):
        return plan
    known_nodes.until = tx.now  # the starts that are reserved for others may change
    plan = _end_others(case.of(msgspec.structs.replace(request, counts_leaving=False)))
    if claim is not None and plan is not None and plan.only_takes_back:
        sparing = msgspec.structs.replace(claim, spares_borrowers=True)
        return plan if _overtakes(tx, request, sparing) else sparing
    return plan


def plan_without_delay(
    tx: Transaction,
    request: Request,
    plan: EvictionPlan,
    veto: PluginVeto | None,
    *,
    keep: bool = False,
) -> EvictionPlan | None:
    """A plan, or one on other nodes, that delays no reserved start of a task that comes before; None: there
    is none. ``keep``: see ``Backfill``.
    """
    state, backfill = tx.state, Backfill(tx, keep=keep)
    entry = _entry_of(tx, request)
    if entry is None or not state.queue.by_id or backfill.permits(request, plan, entry):
        return plan
    if plan.placement is None:
        return None
    reserved = (state.queue.by_id[task_id].reservation for task_id in state.queue.reserved)
    node_ids = {node_id for start in reserved if start for node_id in start.node_ids}
    with state.cluster.without({*state.cluster.set_aside, *node_ids}):
        elsewhere = plan_for(tx, request, veto, request.limits(state, tx.now))
    if elsewhere is None or not backfill.permits(request, elsewhere, entry):
        return None
    return elsewhere


def delays_reserved_start(tx: Transaction, request: Request, plan: EvictionPlan) -> bool:
    """Whether a plan would delay a reserved start of a task that comes before the request."""
    entry = _entry_of(tx, request)
    if entry is None or not tx.state.queue.by_id:
        return False
    return not Backfill(tx).permits(request, plan, entry)


def _entry_of(tx: Transaction, request: Request) -> Entry | None:
    """The place of a request in the order of the queue, also if it does not wait there; None: it has no
    task.
    """
    if request.waiting is not None:
        return tx.state.queue.entry(request.waiting)
    return tx.state.queue.entry_of(request.stimulus, tx.now)


def _permitted_claim(tx: Transaction, request: Request, claim: EvictionPlan) -> EvictionPlan | None:
    """A claim on what is leaving, or the same on other nodes, that takes nothing which a reserved start of a
    task that comes before needs; None: there is none in the first few places.
    """
    avoided: set[str] = set()
    tried: EvictionPlan | None = claim
    for _ in range(_PLACES):
        if tried is None or not _overtakes(tx, request, tried):
            return tried
        placement = tried.placement
        if placement is None or avoided.intersection(placement.node_ids):
            return None
        if _overtakes(tx, request, msgspec.structs.replace(tried, placement=None)):
            return None  # it takes quota, on whatever node
        avoided.update(placement.node_ids)
        tried = claim_leaving(tx, request, avoided=avoided)
    return None


def _overtakes(tx: Transaction, request: Request, plan: EvictionPlan) -> bool:
    """Whether a plan takes of what is leaving what a reserved start of a task that comes before needs."""
    return bool(plan.leaving or plan.paying) and delays_reserved_start(tx, request, plan)


def _end_others(case: Case) -> EvictionPlan | None:
    """Who is moved, reclaimed from or evicted for a request: extra members of elastic gangs, where they are
    enough by any of these means, before anybody else.
    """
    tx, request = case.tx, case.request
    if tx.state.elastic and not request.only_extras:
        limits = request.limits(tx.state, tx.now)
        few = case.of(msgspec.structs.replace(request, only_extras=True))
        plan = _end_others(msgspec.structs.replace(few, limits=limits))
        if plan is not None:
            return plan
    if request.only_reclaims:
        return _reclaim_in_turn(case)
    return (
        make_room_by_moves(case)
        or _reclaim_in_turn(case)
        or evict(case)
        or evict_by_order(case)
        or _with_revocations(case, reclaim_and_evict)
    )


def _reclaim_in_turn(case: Case) -> EvictionPlan | None:
    """Who is reclaimed from for a request: the borrowers first, then others of their pools; or borrowers that
    do not run yet, where that costs no more.
    """
    plan, revoking = _take_back(case), _with_revocations(case, _take_back)
    if plan is None or revoking is None:
        return plan or revoking
    return revoking if _price_of(case, revoking) <= _price_of(case, plan) else plan


def _take_back(case: Case) -> EvictionPlan | None:
    """How a request gets its pool's own quota back, with the claims revoked that the case says."""
    claim = claim_own(case) if case.request.revokes else None
    return claim or reclaim(case) or reclaim_beside_loans(case) or reclaim_by_exchange(case)


def _with_revocations(
    case: Case, means: Callable[[Case], EvictionPlan | None]
) -> EvictionPlan | None:
    """What these means give for a request if claims of borrowers that do not run yet are revoked, those
    that cost least; None: nothing, or none need be.
    """
    request = case.request
    if request.revokes or not request.may_revoke or not case.tx.state.running.starting:
        return None

    def plan_with(names: tuple[str, ...]) -> EvictionPlan | None:
        return means(case.of(msgspec.structs.replace(request, revokes=names)))

    starts = Starts(
        names=_revocable_agents(case), plan_with=plan_with, price_of=partial(_price_of, case)
    )
    return starts.cheapest_plan()


def _revocable_agents(case: Case) -> tuple[str, ...]:
    """The agents that do not run yet whose claims may be revoked for a request."""
    tx, request, ledger = case.tx, case.request, case.tx.state.ledger
    neighbours = ledger.cohorts.neighbours(request.pool_name).names
    lent = ledger.accounts[request.pool_name].lent
    if request.stimulus.for_group or not (neighbours or lent):
        return ()
    if request.payment.short and not (lent or ledger.promised_by(request.pool_name)):
        return ()  # nobody is to get any of what it lacks
    borrowers = Borrowers(tx.state, request.incoming(tx.state), tx.now, case.veto)
    borrowers.only_extras, borrowers.need = request.only_extras, request.need
    return borrowers.unstarted(_kinds_to_get(tx.state, request))


def _kinds_to_get(state: MeshState, request: Request) -> Resources:
    """The kinds of resources of which borrowers have what a request needs: those of which its quota is short,
    or for room what it needs of the kinds that decide about that.
    """
    short = request.payment.short or _paid_by_itself(state, request).payment.short
    return short or request.scarce_quota


def _price_of(case: Case, plan: EvictionPlan) -> float:
    """What the evictions and cancelled starts of a plan cost; see ``reclaim``."""
    state, now = case.tx.state, case.tx.now
    names = (*plan.revoked, *(victim.name for victim in plan.victims))
    by_id, on_agent = state.running.by_id, state.running.on_agent
    price = sum(price_of(by_id[task_id], now) for name in names for task_id in on_agent(name))
    freed = sum_of(state.agents[name].spec.resources for name in names)
    return price + idle_cost(freed, case.request.need)


def after_revocations(case: Case) -> EvictionPlan | None:
    """What is to end for a request for which claims have been revoked: no further claims, if it can be."""
    enough = case.of(msgspec.structs.replace(case.request, may_revoke=False))
    return claim_own(case) or _end_others(enough) or _end_others(case)


def paid_as_owner(state: MeshState, request: Request) -> Request:
    """A request for which claims have been revoked: it borrows nothing of the kinds of which its pool gets
    enough back, so that nobody can take that back from it.
    """
    own_payment = _paid_by_itself(state, request).payment
    lacking = own_payment.short.beyond(_most_to_reclaim(state, request))
    return _borrowing_only(request, own_payment, lacking)


def _borrowing_only(request: Request, own_payment: Payment, kinds: Resources) -> Request:
    """A request that is paid by its own pool, and by its loans of these kinds alone."""
    loans = tuple(
        Share(pool_name=loan.pool_name, amount=part)
        for loan in request.payment.loans
        if (part := loan.amount.of_kinds(kinds))
    )
    payment = Payment(
        shares=merged((*own_payment.shares, *loans)),
        holds_left=own_payment.holds_left,
        loans=loans,
        short=own_payment.short - sum_of(loan.amount for loan in loans),
    )
    return msgspec.structs.replace(request, payment=payment)


def claim_own(case: Case) -> EvictionPlan | None:
    """How a request gets by with what its own pool gets back of what is leaving, and no loan of that; None:
    it does not.
    """
    tx, request = case.tx, case.request
    claim = claim_leaving(tx, _paid_by_itself(tx.state, request), loans=False)
    if claim is not None:
        return claim
    beside = _paid_beside_loans(tx.state, request)
    return None if beside is None else claim_leaving(tx, beside, loans=False)


def claim_leaving(
    tx: Transaction, request: Request, *, loans: bool = True, avoided: Collection[str] = ()
) -> EvictionPlan | None:
    """How a request gets by with what is leaving anyway, so that nobody is evicted; None: it does not.
    ``loans``: whether it may borrow of that. ``avoided``: the nodes on which what is leaving is for others.
    """
    state, demand = tx.state, _demand(tx.state, request, new_group=True)
    flight = in_flight(tx, request, loans=loans)
    if demand is None or not flight.items:
        return None
    demand = msgspec.structs.replace(
        demand, caps=caps_of(state.ledger, request.pool_name, request.payment)
    )
    if flight.reduce(demand).short_quota:
        return None
    items = tuple(
        item
        for item in flight.items_by_quota
        if not any(node_id in avoided for node_id, _ in item.allocations)
    )
    plan = _place_of_leaving(state, request, demand, items)
    if plan is None or contest_of(state, request, plan):
        return None
    claimed, paying = flight.cover(demand.short_quota, demand.caps, plan.leaving)
    return msgspec.structs.replace(
        plan,
        payment=request.payment,
        promised=claimed,
        claimed=claimed,
        paying=(*plan.paying, *paying),
    )


def _place_of_leaving(
    state: MeshState, request: Request, demand: Demand, items: tuple[Leaving, ...]
) -> EvictionPlan | None:
    """Where a request has room once others are gone that are leaving anyway; None: nowhere."""
    if not demand.needs_place:
        return EvictionPlan(victims=())
    stays = _group_of_leaving(state, request, items)
    if stays is not None:
        group, leaving = stays
        return EvictionPlan(victims=(), preempted_group=group, paying=leaving)
    # Nothing has to end for the room of revoked claims that wait: it is there at once.
    for gone in filter(None, (waiting_claims(state, request.revokes), items)):
        room = Room(state.cluster, waits=True)
        place = place_without(state, demand, room, gone, demand.too_many_groups)
        if place is not None:
            placement, removed, leaving = place
            return EvictionPlan(victims=(), placement=placement, removed=removed, leaving=leaving)
    return None


def _group_of_leaving(
    state: MeshState, request: Request, items: tuple[Leaving, ...]
) -> tuple[Group, tuple[Leaving, ...]] | None:
    """A group that stays when its agent has left and that the request may have, and what leaves it; None:
    there is none.
    """
    group_request = request.group_request
    if group_request is None:
        return None
    for agent_name, group in groups_that_stay(state, items):
        if suits(state, group_request, group):
            return group, tuple(i for i in items if agent_name in names_of((i,)))
    return None


def _may_claim(tx: Transaction, request: Request, veto: PluginVeto | None) -> bool:
    """Whether a request may claim what is leaving: nobody who waits in the queue comes before it, or others
    would be evicted for it otherwise.

    A task of the queue that may evict nobody claims nothing: it gets what is left when that has become free,
    and those that come before it until then are not kept from it. The same holds of a dry run for the queue.
    """
    state, task = tx.state, request.stimulus.task
    may_wait = request.stimulus.queue or (task is not None and task.task_id in state.queue.by_id)
    if task is None or not may_wait:
        entry = state.queue.entry_now(request.stimulus, tx.now)
        if entry is None or not state.queue.any_before(entry):
            return True
    alone = msgspec.structs.replace(request, counts_leaving=False)
    limits = request.limits(state, tx.now)
    case = Case(tx=tx, request=alone, veto=veto, limits=limits, known=KnownNodes())
    return _end_others(case) is not None


def make_room_by_moves(case: Case) -> EvictionPlan | None:
    """Which smaller tasks are moved to other nodes so that a request that has its quota has room; None: none
    may be, or they would have no room elsewhere.
    """
    tx, request, veto = case.tx, case.request, case.veto
    limits, known_nodes = case.limits, case.known
    state, shape = tx.state, _shape_without_room(request)
    if not state.policy.defragment_after_s or request.payment.short or shape is None:
        return None
    gpu = max(bundle.gpu for bundle in shape.bundles)
    others = SmallerTasks(state, request.incoming(state), tx.now, veto, limits, gpu=gpu)
    if _surely_no_room(others, shape, known_nodes):
        return None
    plan = _search_among(tx, request, others, None, known_nodes)
    return plan if plan is not None and fit_elsewhere(state, plan) else None


def _surely_no_room(others: SavableTasks, shape: GroupShape, known_nodes: KnownNodes) -> bool:
    """Whether a search among these is in vain; notes until when."""
    until = others.no_room_until(shape)
    if until is not None:
        known_nodes.until = min(known_nodes.until, until)
    return until is not None


def _shape_without_room(request: Request) -> GroupShape | None:
    """What a request needs on nodes and has no room for; None: only something else is short."""
    if request.by_node:
        return request.node_shape
    group_request = request.group_request
    if group_request is None or not isinstance(request.assignment, NoAssignment):
        return None
    return group_request.shape


def evict_by_order(case: Case) -> EvictionPlan | None:
    """Who is evicted for a request because of the order of the queue; None: the policy does not say so, or no
    eviction of those behind it would make room.
    """
    tx, request, veto, known_nodes = case.tx, case.request, case.veto, case.known
    others = _candidates_behind(case)
    if others is None:
        return None
    if (
        request.by_node
        and veto is None
        and _surely_no_room(others, request.node_shape, known_nodes)
    ):
        return None
    caps = caps_of(tx.state.ledger, request.pool_name, request.payment)
    return _search_among(tx, request, others, caps, known_nodes)


def _candidates_behind(case: Case) -> SavableTasks | None:
    """The running tasks that the order puts behind a request, and that may be evicted for it."""
    tx, request, veto, limits = case.tx, case.request, case.veto, case.limits
    state, task = tx.state, request.stimulus.task
    if task is None:
        return None
    incoming = request.incoming(state)
    begins_s = least_service_evicted(state, task.task_id, tx.now)
    if begins_s is not None:
        return SecondLevel(state, incoming, tx.now, veto, limits, begins_s=begins_s)
    remaining = left_of_incoming(state, task, request.need, tx.now)
    return (
        None
        if remaining is None
        else LongerTasks(state, incoming, tx.now, veto, limits, remaining=remaining)
    )


def evict(case: Case) -> EvictionPlan | None:
    """Who is evicted for a request by the rules, if need be together with borrowers. ``known_nodes``: what
    other searches for the same request have learned.
    """
    plan = find_victims(case)
    return plan or reclaim_and_evict(case)


def contest_for(
    tx: Transaction, request: Request, veto: PluginVeto | None, limits: Limits
) -> Contest | None:
    """Which external work would get the room that evictions could free for a request that gets none; None:
    that is not what keeps it waiting.
    """
    if not tx.state.external_demands:
        return None
    request = msgspec.structs.replace(request, may_lose_room=True)
    plan = plan_for(tx, request, veto, limits)
    return None if plan is None else contest_of(tx.state, request, plan)


def unprobed(state: MeshState, request: Request, plan: EvictionPlan) -> str | None:
    """A class that is to be loaded once before anybody is evicted for the request; None: there is none."""
    if not plan.victims:
        return None
    keys = request.stimulus.agent.class_keys
    return next((key for key in keys if key and key not in state.loaded), None)


def room_of_idle(tx: Transaction, request: Request) -> EvictionPlan | None:
    """The plan that removes placement groups that nobody uses, for a request that lacks nothing but room on a
    node; None: it lacks something else, or has no room even then.
    """
    if not request.by_node or request.payment.short:
        return None
    removal = idle_for_node(tx.state, request.node_shape)
    if removal is None:
        return None
    placement, groups = removal
    return EvictionPlan(victims=(), placement=placement, removed=groups)


def reclaim(case: Case) -> EvictionPlan | None:
    """Which borrowers are evicted for a request that its pool's own quota covers, counting what the pool has
    lent; None: it does not, or no eviction of borrowers would make room.

    The limits on evictions do not apply: an owner does not wait for its own quota.
    """
    tx, request, veto, known_nodes = case.tx, case.request, case.veto, case.known
    own_request = _paid_by_itself(tx.state, request)
    if not own_request.payment.short.fits(_most_to_reclaim(tx.state, request)):
        return None
    borrowers = _borrowers(tx, request, veto)
    return (
        None if borrowers is None else _search_among(tx, own_request, borrowers, None, known_nodes)
    )


def reclaim_beside_loans(case: Case) -> EvictionPlan | None:
    """Which borrowers of its pool's quota are evicted for a request that borrows what is idle of other kinds;
    None: of some kind neither is enough, or no eviction of these borrowers would make room.

    It holds a loan then, so it evicts only those that hold what its pool has lent of the kinds that it gets
    back. Of these it holds no loan, so they cannot evict it in turn.
    """
    tx, veto, known_nodes = case.tx, case.veto, case.known
    beside = _paid_beside_loans(tx.state, case.request)
    if beside is None or not beside.payment.short.fits(_most_to_reclaim(tx.state, case.request)):
        return None
    kinds = beside.payment.short + case.request.takes_back
    borrowers = _borrowers(tx, case.request, veto, of_kinds=kinds)
    return None if borrowers is None else _search_among(tx, beside, borrowers, None, known_nodes)


def may_take_back(state: MeshState, task: QueuedTask) -> bool:
    """Whether a task that waits may get back what its pool has lent: with that its pool's quota covers it, or
    with what the cohort has idle. Costs little.
    """
    ledger = state.ledger
    if not ledger.loans and not ledger.promises:
        return False
    return any(_may_take_back(state, each) for each in ways_of_task(ledger, task))


def _may_take_back(state: MeshState, task: QueuedTask) -> bool:
    """The same for one of its alternatives."""
    ledger, pool_name = state.ledger, task.pool_name
    account, need = ledger.accounts[pool_name], quota_need_of(state, task)
    owed = account.lent + unclaimed_quota(state, pool_name) + ledger.promised_by(pool_name)
    short = need.beyond(clipped(account.free))
    return bool(ledger.holds) or short.fits(owed + idle_beside(ledger, pool_name))


def _most_to_reclaim(state: MeshState, request: Request) -> Resources:
    """What the pool of a request may get back at most: what it has lent, and what of its quota is promised to
    claims that are revoked, or is leaving.
    """
    ledger, pool_name = state.ledger, request.pool_name
    lent = ledger.accounts[pool_name].lent + unclaimed_quota(state, pool_name)
    return lent + ledger.promised_by(pool_name) if request.revokes else lent


def _paid_as_far_as_owned(state: MeshState, request: Request) -> tuple[Request, Resources | None]:
    """The request with loans of idle quota only of kinds that need not be taken back, and the kinds that are;
    None: all are, and it borrows nothing.
    """
    beside = _paid_beside_loans(state, request)
    if beside is None:
        return _paid_by_itself(state, request), None
    return beside, beside.payment.short + request.takes_back


def _paid_beside_loans(state: MeshState, request: Request) -> Request | None:
    """A request that borrows what is idle of some kinds, and is short of its own pool's quota of the others,
    or has got that back; None: it borrows nothing, or lacks nothing beside.
    """
    short = request.payment.short + request.takes_back
    if not request.payment.loans or not short:
        return None
    own_payment = _paid_by_itself(state, request).payment
    idle = sum_of(loan.amount for loan in request.payment.loans)
    covered = own_payment.short.of_kinds(idle) - own_payment.short.of_kinds(short).of_kinds(idle)
    return _borrowing_only(request, own_payment, covered)


def reclaim_by_exchange(case: Case) -> EvictionPlan | None:
    """Which tasks of pools that use more than their quota are evicted for a request of a pool that does not,
    whoever of them holds the loans; None: there are none, or they would not make room.
    """
    tx, request, veto, known_nodes = case.tx, case.request, case.veto, case.known
    state, account = tx.state, tx.state.ledger.accounts[request.pool_name]
    own_request, kinds = _paid_as_far_as_owned(state, request)
    need = request.quota_need if kinds is None else request.quota_need.of_kinds(kinds)
    if request.stimulus.for_group or not uses_no_more_than_its_quota(account, need):
        return None
    incoming = request.incoming(state)
    others = TasksOfBorrowers(state, incoming, tx.now, veto, request.revokes, kinds)
    if not _any_of(others):
        return None
    plan = _search_among(tx, own_request, others, others.caps(), known_nodes)
    if plan is None:
        return None
    short = own_request.payment.short - sum_of(share.amount for share in plan.claimed)
    claims = exchanged(state, request.pool_name, plan.victims, short, request.revokes)
    if claims is None:
        known_nodes.until = tx.now
        return None
    shares = dict(claims)
    freed = ((victim.pool_name, shares.get(victim.name, victim.shares)) for victim in plan.victims)
    promised = merged((*plan.claimed, *promise(freed, request.pool_name, short, None)))
    return msgspec.structs.replace(plan, promised=promised, exchanged=claims)


def reclaim_and_evict(case: Case) -> EvictionPlan | None:
    """Which borrowers are evicted, and who is by the rules, for a request that its pool's own quota covers;
    None: not even all of them together would make room. Only where neither alone is enough.
    """
    tx, request, veto = case.tx, case.request, case.veto
    limits, known_nodes = case.limits, case.known
    state, account = tx.state, tx.state.ledger.accounts[request.pool_name]
    own_request, kinds = _paid_as_far_as_owned(state, request)
    need = request.quota_need if kinds is None else request.quota_need.of_kinds(kinds)
    if not need.fits(account.spec.resources):
        return None
    others = candidates_for(tx, own_request, veto, limits)
    borrowers = _borrowers(tx, request, veto, of_kinds=kinds) if _any_of(others) else None
    if borrowers is None and request.revokes and _any_of(others):
        borrowers = Borrowers(state, request.incoming(state), tx.now, veto, kinds)
    if borrowers is None:
        return None
    while True:
        plan = _search_among(
            tx, own_request, BorrowersAndOthers(borrowers, others), None, known_nodes
        )
        if plan is None:
            return None
        victims = evicted_tasks(plan.victims)
        if not limits.narrow(v for v in victims if v.reason is not PreemptionReason.RECLAIM):
            return plan
        others = candidates_for(tx, own_request, veto, limits)


def _borrowers(
    tx: Transaction,
    request: Request,
    veto: PluginVeto | None,
    of_kinds: Resources | None = None,
) -> Borrowers | None:
    """The borrowers that may be evicted for a request; None: there are none. ``of_kinds``: only those that
    hold quota of its pool of these kinds.
    """
    state = tx.state
    ledger, pool_name = state.ledger, request.pool_name
    if request.stimulus.for_group:
        return None
    if not ledger.cohorts.neighbours(pool_name).names and not ledger.accounts[pool_name].lent:
        return None
    borrowers = Borrowers(state, request.incoming(state), tx.now, veto, of_kinds)
    return borrowers if _any_of(borrowers) else None


def _any_of(candidates: Candidates) -> bool:
    """Whether any task may be evicted; classes may be known that have none at the moment."""
    return any(map(TaskClass.has_tasks, candidates.allowed))


def _paid_by_itself(state: MeshState, request: Request) -> Request:
    """The request without loans of idle quota: what has reclaimed holds none."""
    payment = pay(state.ledger, request.pool_name, request.quota_need, request.stimulus.client)
    return msgspec.structs.replace(request, payment=payment)


def find_victims(case: Case) -> EvictionPlan | None:
    """Who is evicted for a request by the rules, and where it runs then; None: no eviction would make room
    for it.

    Where the victims together lose more work than a pool's budget leaves, others are sought, with narrower
    limits; where it would borrow of its neighbours by some, only victims that a borrower may evict.
    """
    tx, request, veto = case.tx, case.request, case.veto
    limits, known_nodes = case.limits, case.known
    caps = caps_of(tx.state.ledger, request.pool_name, request.payment)
    incoming = request.incoming(tx.state)
    while True:
        candidates = candidates_for(tx, request, veto, limits, incoming)
        plan = _search_among(tx, request, candidates, caps, known_nodes)
        if plan is None:
            return None
        if not incoming.borrows and request.borrows_of(incoming.neighbours, plan.promised):
            incoming = msgspec.structs.replace(incoming, borrows=True)
        elif not limits.narrow(evicted_tasks(plan.victims)):
            return plan


def _search_among(
    tx: Transaction,
    request: Request,
    candidates: Candidates,
    caps: LoanCaps | None,
    known_nodes: KnownNodes | None = None,
) -> EvictionPlan | None:
    """The plan that evicts some of these candidates, with what the request gets of the quota that they free;
    None: there is none.
    """
    demand = _demand(tx.state, request, new_group=not request.stimulus.for_group)
    if request.only_extras:
        candidates = candidates.extras()
    if demand is None or not _any_of(candidates):
        return None
    known_nodes = known_nodes or KnownNodes()
    known_nodes.searched = True
    if candidates.may_grow:
        known_nodes.until = tx.now
    demand = msgspec.structs.replace(demand, caps=caps)
    candidates.need = demand.amount
    flight = InFlight(pool_name=request.pool_name)
    if request.counts_leaving or request.revokes:
        flight = in_flight(tx, request, loans=candidates.lends)
    reduced = flight.reduce(demand)
    stays = None
    if demand.needs_place and reduced.short_quota:
        stays = _group_of_leaving(tx.state, request, flight.items)
    if stays is not None:
        reduced = Demand(
            short_quota=reduced.short_quota,
            needs_place=False,
            caps=reduced.caps,
            flavor=reduced.flavor,
        )
    group_request = request.group_request if reduced.needs_place else None
    agents = VictimAgents(tx.state, candidates, group_request, caps)
    plan = search(tx.state, reduced, agents, tx.now, known_nodes, flight.items)
    if plan is not None and not request.may_lose_room and contest_of(tx.state, request, plan):
        keep = uncontested(tx.state, request)
        agents = VictimAgents(tx.state, candidates, group_request, caps, keep)
        plan = search(tx.state, reduced, agents, tx.now, None, flight.items)
        known_nodes.until = tx.now
        if plan is not None and contest_of(tx.state, request, plan):
            return None
    if plan is not None and stays is not None:
        plan = msgspec.structs.replace(plan, preempted_group=stays[0], paying=stays[1])
    if plan is None:
        return None
    return _paid(request, plan, demand, reduced, flight, lends=candidates.lends)


def _paid(
    request: Request,
    plan: EvictionPlan,
    demand: Demand,
    reduced: Demand,
    flight: InFlight,
    *,
    lends: bool,
) -> EvictionPlan:
    """The plan with the quota that the request gets: of its victims, and what they do not cover of what is
    leaving anyway. ``lends``: whether it may borrow of its victims; False: it gets its pool's own quota.
    """
    pool_name = request.pool_name
    freed = [
        (
            victim.pool_name,
            tuple(share for share in victim.shares if lends or share.pool_name == pool_name),
        )
        for victim in plan.victims
    ]
    promised = promise(freed, pool_name, demand.short_quota, demand.caps)
    rest = demand.short_quota - sum_of(share.amount for share in promised)
    if not rest:
        return msgspec.structs.replace(plan, payment=request.payment, promised=promised)
    caps = None if demand.caps is None else demand.caps.after(promised)
    claimed, paying = flight.cover(rest, caps, plan.leaving)
    if rest != sum_of(share.amount for share in claimed):
        claimed, paying = flight.cover(demand.short_quota, demand.caps, plan.leaving)
        promised = promise(freed, pool_name, reduced.short_quota, reduced.caps)
    return msgspec.structs.replace(
        plan,
        payment=request.payment,
        promised=merged((*promised, *claimed)),
        claimed=claimed,
        paying=(*plan.paying, *paying),
    )


def candidates_for(
    tx: Transaction,
    request: Request,
    veto: PluginVeto | None,
    limits: Limits,
    incoming: Incoming | None = None,
) -> Candidates:
    """The tasks that may be evicted for a request by the rules. ``incoming``: how these see it."""
    state = tx.state
    incoming = incoming or request.incoming(state)
    return Candidates(state.preemption, state.running, incoming, tx.now, veto, limits)


def _demand(state: MeshState, request: Request, *, new_group: bool) -> Demand | None:
    """What the request lacks; None: nobody may be evicted for that. ``new_group``: whether room for a new
    group will do where it needs a group; False: it takes an existing one.
    """
    short, group_request = request.payment.short, request.group_request
    flavor = request.stimulus.agent.flavor
    if request.stimulus.for_group and short:
        return None
    if group_request is None:
        shape = request.node_shape if request.by_node else None
        return Demand(short_quota=short, needs_place=request.by_node, shape=shape, flavor=flavor)
    if not isinstance(request.assignment, NoAssignment):
        return Demand(short_quota=short, needs_place=False, flavor=flavor)
    may_create = (
        new_group
        and request.assignment.could_ever
        and group_request.spec.dynamic
        and group_request.spec.max_dynamic >= 1
    )
    return Demand(
        short_quota=short,
        shape=group_request.shape if may_create else None,
        pool_name=group_request.pool_name,
        too_many_groups=excess(state, group_request),
        flavor=flavor,
    )
