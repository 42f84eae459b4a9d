"""Decides a submission: its pool, its quota, its node or group, and the victims that are evicted for it.

One transaction: the answer is either a claim on both books, reserved as far as it is free now and promised
from the victims that leave for it, or a refusal that changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.flavors import counted
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import FIRST_ATTEMPT, Attempts, TaskSpec
from schedulemesh.domain.topology import topology_request
from schedulemesh.engine.admission import refusals
from schedulemesh.engine.admission.admit import Request, admit, would_run
from schedulemesh.engine.admission.arrays import array_limit
from schedulemesh.engine.admission.backfill import (
    Backfill,
    count_before,
    heads_before,
    is_behind_in_strict_pool,
)
from schedulemesh.engine.admission.budgets import beyond_budget
from schedulemesh.engine.admission.evictions import (
    Case,
    after_revocations,
    candidates_for,
    contest_for,
    evict,
    paid_as_owner,
    plan_for,
    plan_without_delay,
    unprobed,
)
from schedulemesh.engine.admission.needs import claim_payment, groups_asked, ruled_out
from schedulemesh.engine.admission.owner_limits import beyond_owner_limit, exceeds_owner_limit
from schedulemesh.engine.admission.registration import duplicate_task, refused_for_parent, register
from schedulemesh.engine.admission.revocations import revoke
from schedulemesh.engine.admission.time_limits import beyond_pool, pools_below
from schedulemesh.engine.admission.topology import invalid_topology
from schedulemesh.engine.admission.windows import closed_by_window, outside_windows
from schedulemesh.engine.messages.outcomes import (
    Candidate,
    Pending,
    ProbeNeeded,
    Refused,
    RequestOutcome,
)
from schedulemesh.engine.messages.queue_facts import TaskQueued
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.placement.group_choice import (
    Assignment,
    GroupRequest,
    NoAssignment,
    find_assignment,
    may_have_groups,
)
from schedulemesh.engine.placement.plugin_views import submitted_view
from schedulemesh.engine.placement.reserved_room import could_hold
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.preemption.limits import Limits
from schedulemesh.engine.preemption.search import EvictionPlan
from schedulemesh.engine.preemption.sites import KnownNodes
from schedulemesh.engine.preemption.sufficient_priority import sufficient_priority
from schedulemesh.engine.preemption.veto import PluginVeto, plugin_veto
from schedulemesh.engine.preemption.victims import evicted_tasks
from schedulemesh.engine.state.agents import Ending, Preempted
from schedulemesh.engine.state.gangs import core_runs
from schedulemesh.engine.state.groups import shape_on_node
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queue_joining import as_joined, leads_class
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.quota import Payment
from schedulemesh.engine.state.ways import ways_of
from schedulemesh.engine.transaction import Transaction
from schedulemesh.plugins.scheduling import TaskView


def submit(
    tx: Transaction, stimulus: TaskSubmitted, *, has_priority: bool = False
) -> RequestOutcome:
    """Admit, refuse, or say what is missing. ``has_priority``: strategies have given it one already."""
    if tx.strategies.plugins and not has_priority:
        stimulus = prioritised(tx, stimulus)
    if stimulus.task is not None and tx.state.budgets.spent:
        need = None if stimulus.default_resources else stimulus.agent.resources
        task = tx.state.budgets.priced(stimulus.task, stimulus.agent.pool_name, need)
        stimulus = msgspec.structs.replace(stimulus, task=task)
    if not tx.state.windows.by_name:
        request = understand(tx, stimulus)
        return request if isinstance(request, Refused) else _decide(tx, request)
    with outside_windows(tx.state, stimulus, tx.now) as ahead:
        request = understand(tx, stimulus)
        if isinstance(request, Refused):
            return request
        outcome = _decide(tx, request)
        if ahead and isinstance(outcome, Refused) and not request.payment.short:
            shape, need = request.on_a_node
            return closed_by_window(tx.state, stimulus, shape, need, tx.now) or outcome
    return outcome


def prioritised(tx: Transaction, stimulus: TaskSubmitted) -> TaskSubmitted:
    """With the priority that a strategy gives the task, which is shown the one that was asked for."""
    if stimulus.task is None or not tx.strategies.asks("priority"):
        return stimulus
    submitted = stimulus.task.as_asked()
    view = _view(msgspec.structs.replace(stimulus, task=submitted), stimulus.agent.pool_name)
    priority = tx.strategies.priority(view)
    if priority is None:
        return stimulus
    if priority != submitted.priority:
        submitted = msgspec.structs.replace(
            submitted, priority=priority, asked_priority=submitted.priority
        )
    return msgspec.structs.replace(stimulus, task=submitted)


def _view(stimulus: TaskSubmitted, pool_name: str, need: Resources | None = None) -> TaskView:
    """The submission as strategies see it."""
    if need is None and not stimulus.default_resources:
        need = stimulus.agent.resources
    return submitted_view(stimulus.agent, stimulus.task, need, pool_name)


def pool_for(state: MeshState, strategies: Strategies, stimulus: TaskSubmitted) -> str | None:
    """The pool that takes a submission; None: there is none for it."""
    agent = stimulus.agent
    if agent.pool_name:
        return agent.pool_name
    need = None if stimulus.default_resources else agent.resources
    view = _view(stimulus, "") if strategies.plugins else None
    workload = state.cluster.workload
    task, ending = stimulus.task, state.drains.ending
    too_short = () if task is None else pools_below(state, task.max_run_s)
    avoided = {*state.drains.pools, *too_short}
    return strategies.choose_pool(
        state.ledger, stimulus.selector, need, view, workload, avoided=avoided, ending=ending
    )


def understand(
    tx: Transaction, stimulus: TaskSubmitted, *, limits_owner: bool = True
) -> Request | Refused:
    """Find pool, need, payment and node, or the reason why that cannot be. ``limits_owner``: as things are,
    what its owner holds already counts.

    Of several ways in which the agent may run, the first that fits now, else the first that is possible; with
    the others, of which ``each_way`` gives all.
    """
    if not stimulus.agent.alternatives and not tx.state.ledger.flavored:
        return understand_alone(tx, stimulus, limits_owner=limits_owner)
    submissions = _ways_of(tx, stimulus)
    if len(submissions) == 1:
        return understand_alone(tx, submissions[0], limits_owner=limits_owner)
    requests, refused = list[Request](), list[Refused]()
    for number, submission in enumerate(submissions, start=1):
        answer = understand_alone(tx, submission, limits_owner=limits_owner)
        if isinstance(answer, Refused):
            refused.append(answer)
        elif answer.fits_now:
            return msgspec.structs.replace(
                answer,
                others=tuple(requests),
                untried=submissions[number:],
                ways=len(submissions),
            )
        else:
            requests.append(answer)
    if not requests:
        agents = [each.agent for each in submissions]
        return refusals.no_alternative(agents, refused, len(submissions))
    return msgspec.structs.replace(requests[0], others=tuple(requests[1:]), ways=len(submissions))


def _ways_of(tx: Transaction, stimulus: TaskSubmitted) -> tuple[TaskSubmitted, ...]:
    """A submission in each way in which it may run, the preferred one first. Where pools have flavors, its
    pool is chosen now.
    """
    ledger, alternatives = tx.state.ledger, stimulus.each_alternative
    if not ledger.flavored:
        return alternatives
    if stimulus.agent.pool_name:
        return ways_of(ledger, stimulus)
    pools = [(each, pool_for(tx.state, tx.strategies, each) or "") for each in alternatives]
    return tuple(
        way for each, pool_name in pools for way in ways_of(ledger, _alone_in_pool(each, pool_name))
    )


def _alone_in_pool(stimulus: TaskSubmitted, pool_name: str) -> TaskSubmitted:
    """A submission that chooses its pool, in this one; empty: there is none for it."""
    agent = msgspec.structs.replace(stimulus.agent, pool_name=pool_name)
    return msgspec.structs.replace(stimulus, agent=agent)


def each_way(tx: Transaction, request: Request, *, limits_owner: bool = True) -> Iterator[Request]:
    """A request in each way in which its agent may run, as far as it is possible, the preferred one first."""
    yield from request.each_alternative
    for submission in request.untried:
        further = understand_alone(tx, submission, limits_owner=limits_owner)
        if isinstance(further, Request):
            yield further


def understand_alone(
    tx: Transaction, stimulus: TaskSubmitted, *, limits_owner: bool = True
) -> Request | Refused:
    """The same for the way of running that the agent has, whatever its alternatives are."""
    state, agent = tx.state, stimulus.agent
    pool_name = agent.pool_name or pool_for(state, tx.strategies, stimulus)
    if pool_name is None:
        return refusals.no_matching_pool(state)
    account = state.ledger.accounts.get(pool_name)
    if account is None:
        return refusals.pool_not_found(state, pool_name)
    need = account.spec.default_agent() if stimulus.default_resources else agent.resources
    waiting = waiting_task(state, stimulus)
    refused = _not_allowed(tx, stimulus, account.spec, need, waiting, limits_owner=limits_owner)
    if refused is not None:
        return refused
    quota_need = need if agent.flavor is None else agent.flavor.quota_of(need)
    payment = claim_payment(state, pool_name, quota_need, stimulus.client)
    group_request = groups_asked(state, stimulus, pool_name, need)
    if group_request is not None:
        return _in_a_group(state, stimulus, group_request, need, payment, waiting)
    return _on_a_node(tx, stimulus, pool_name, need, payment, waiting)


def _not_allowed(
    tx: Transaction,
    stimulus: TaskSubmitted,
    pool: PoolSpec,
    need: Resources,
    waiting: QueuedTask | None,
    *,
    limits_owner: bool,
) -> Refused | None:
    """The refusal of what may not start in its pool, whatever room there is; None: it may. ``waiting``: the
    task itself where it waits in the queue.
    """
    state, task = tx.state, stimulus.task
    if (refused := _invalid(state, stimulus, waiting)) is not None:
        return refused
    # One that waits was accepted, and runs for as long as its pool allows now.
    is_new = waiting is None
    if is_new and task is not None and task.max_run_s is not None:
        refused = beyond_pool(state, pool.name, task.max_run_s)
        if refused is not None:
            return refused
    if is_new and task is not None and task.topology:
        topology = topology_request(task.topology)
        refused = invalid_topology(state, stimulus, pool.name, topology, need)
        if refused is not None:
            return refused
    if (reason := ruled_out(state, stimulus, pool.name, need)) is not None:
        return _refused_by_pool(state, stimulus, reason, pool.name, need)
    has_limits = pool.min_priority is not None or pool.max_priority is not None
    # What has run keeps the priority that was permitted then.
    if is_new and task is not None and has_limits and stimulus.attempts == FIRST_ATTEMPT:
        refused = refusals.priority_not_permitted(pool, task.as_asked().priority)
        if refused is not None:
            return refused
    # Last, as all that comes before also holds for tasks that are to wait (``queue.join``).
    if pool.name in state.drains.ending:
        return refusals.pool_ending(pool.name)
    if pool.name in state.drains.pools:
        return refusals.pool_draining(pool.name)
    if limits_owner and (pool.name in state.owners.limited or pool.name in state.budgets.spent):
        return _owner_at_limit(tx, stimulus, pool.name, need)
    return None


def _owner_at_limit(
    tx: Transaction, stimulus: TaskSubmitted, pool_name: str, need: Resources
) -> Refused | None:
    """The refusal of a task whose owner is at a limit now, or whose budget is spent."""
    state, flavor = tx.state, stimulus.agent.flavor
    task = stimulus.task
    if task is not None and pool_name in state.owners.limited:
        amount = need if flavor is None else counted(need, flavor.quota_of(need))
        if state.owners.room(pool_name, task.owner, amount) == 0:
            return beyond_owner_limit(state, stimulus, pool_name, amount)
    if pool_name in state.budgets.spent:
        return beyond_budget(state, stimulus, pool_name, need, tx.now)
    return None


def _refused_by_pool(
    state: MeshState, stimulus: TaskSubmitted, reason: Reason, pool_name: str, need: Resources
) -> Refused:
    """The refusal of what a pool as it is defined could not hold; see ``ruled_out``."""
    if reason is Reason.NO_FLAVOR:
        return refusals.no_flavor(state, pool_name, need, stimulus.agent.node_labels)
    owner = "" if stimulus.task is None else stimulus.task.owner
    flavor = stimulus.agent.flavor
    quota_need = need if flavor is None else flavor.quota_of(need)
    exceeded = exceeds_owner_limit(state, owner, pool_name, counted(need, quota_need))
    if reason is Reason.EXCEEDS_OWNER_LIMIT and exceeded is not None:
        return exceeded
    if reason is Reason.NO_PG_POOL:
        return refusals.no_pg_pool(pool_name)
    if reason is Reason.CONFLICTING_OPTIONS:
        return refusals.conflicting_options(pool_name)
    return refusals.exceeds_pool_capacity(state, pool_name, quota_need)


def _in_a_group(
    state: MeshState,
    stimulus: TaskSubmitted,
    group_request: GroupRequest,
    need: Resources,
    payment: Payment,
    waiting: QueuedTask | None,
) -> Request | Refused:
    """A request for a placement group, with the group that it may have."""
    assignment = find_assignment(state, group_request, waits=bool(payment.short))
    if isinstance(assignment, NoAssignment) and not assignment.could_ever:
        if not may_have_groups(group_request):
            return refusals.group_unplaceable(state, group_request, assignment, {})
        refused = refusals.group_out_of_resources(state, group_request.shape)
        return _of_size(stimulus, refused, group_request.pool_name, need)
    return Request(
        stimulus=stimulus,
        pool_name=group_request.pool_name,
        need=need,
        payment=payment,
        node=None,
        by_node=False,
        group_request=group_request,
        assignment=assignment,
        waiting=waiting,
    )


def _on_a_node(
    tx: Transaction,
    stimulus: TaskSubmitted,
    pool_name: str,
    need: Resources,
    payment: Payment,
    waiting: QueuedTask | None,
) -> Request | Refused:
    """A request for a place on a node, with the node that it may have now."""
    state, node = tx.state, None
    if by_node := stimulus.choose_node and bool(state.cluster.nodes):
        view = _view(stimulus, pool_name, need) if tx.strategies.plugins else None
        waits = payment.short != NOTHING
        shape = shape_on_node(stimulus.agent, need)
        node = tx.strategies.choose_node(state.cluster, shape, view, waits=waits)
        if node is None and not could_hold(state, shape):
            refused = refusals.cluster_out_of_resources(state, shape)
            return _of_size(stimulus, refused, pool_name, need)
    return Request(
        stimulus=stimulus,
        pool_name=pool_name,
        need=need,
        payment=payment,
        node=node,
        by_node=by_node and node is None,
        waiting=waiting,
    )


def _of_size(stimulus: TaskSubmitted, refused: Refused, pool_name: str, need: Resources) -> Refused:
    """A refusal for the size of the request; says where the default comes from if no resources were named."""
    if stimulus.default_resources:
        return refusals.by_default(refused, pool_name, need)
    return refused


def waiting_task(state: MeshState, stimulus: TaskSubmitted) -> QueuedTask | None:
    """The task of a submission that waits in the queue; None: it is submitted now."""
    task = stimulus.task
    waiting = None if task is None else state.queue.by_id.get(task.task_id)
    # Its alternatives have the same task.
    return waiting if waiting is not None and waiting.submission.task is task else None


def _invalid(
    state: MeshState, stimulus: TaskSubmitted, waiting: QueuedTask | None
) -> Refused | None:
    """The refusal of a task id or an agent name that is taken, of a Ray job that is adopted already, or of a
    task whose parent has ended. ``waiting``: the task itself where it waits in the queue.
    """
    task, agent = stimulus.task, stimulus.agent
    if task is not None and waiting is None:
        taken = duplicate_task(state, task.task_id)
        if taken is not None:
            return taken
    names = [agent.name]
    if isinstance(agent.payload, GangPayload):
        names += (*agent.process_names, *agent.extra_names)
    for name in names:
        refused = _refusal_of_taken_name(state, name, served=waiting is not None)
        if refused is not None:
            return refused
    if agent.payload.adopts and (refused := _adopted(state, agent.payload.adopts)) is not None:
        return refused
    return None if task is None or not task.parent else refused_for_parent(state, task)


def _adopted(state: MeshState, ray_job_id: str) -> Refused | None:
    """The refusal of a Ray job that is a task already: two tasks would both claim what it holds."""
    for agent in state.agents.values():
        if agent.spec.payload.adopts == ray_job_id:
            tasks = state.running.on_agent(agent.spec.name)
            by = say("by_task", tasks=tuple(map(repr, tasks))) if tasks else say("by_ending_task")
            error = say("already_adopted", job=ray_job_id, by=by)
            return Refused(reason=Reason.DUPLICATE_TASK, error_text=error)
    return None


def _refusal_of_taken_name(state: MeshState, name: str, *, served: bool) -> Refused | None:
    """The refusal of an agent name that is taken; ``served``: by its own task, which is in the queue."""
    former = state.agents.get(name)
    if served and former is not None and isinstance(former.phase, Ending):
        return Refused(reason=Reason.MEMBERS_ENDING, error_text=say("member_ends", agent=name))
    if name in state.agents or state.gang_with(name) is not None:
        error = say("agent_exists", agent=name)
        return Refused(reason=Reason.DUPLICATE_AGENT, error_text=error)
    owner = state.queue.agent_names.get(name)
    if served or owner is None:
        return None
    error = say("agent_will_exist", agent=name, task=owner)
    return Refused(reason=Reason.DUPLICATE_AGENT, error_text=error)


def _decide(tx: Transaction, request: Request) -> RequestOutcome:
    """Admit with what is free, or with victims, or refuse: each of these in the first way of running for
    which it is possible.
    """
    searches, refused = list[_VictimSearch](), list[Refused]()
    alone = not request.others and not request.untried
    for each in (request,) if alone else each_way(tx, request):
        if not each.fits_now:
            searches.append(_search_for(tx, each))
            continue
        allowed = _not_reserved(tx, each) if tx.state.queue.by_id else each
        if isinstance(allowed, Request):
            dry_run = request.stimulus.dry_run
            return would_run(tx.state, allowed, None) if dry_run else admit(tx, allowed, None)
        refused.append(allowed)
    for search in searches:
        outcome = _with_victims(tx, search)
        if isinstance(outcome, Refused) and outcome.reason is Reason.HELD_FOR_QUEUE:
            refused.append(outcome)
        elif outcome is not None:
            return outcome
    if refused:
        return refused[0]
    agents = [search.request.stimulus.agent for search in searches]
    answers = [_no_victim(tx, search) for search in searches]
    return refusals.no_alternative(agents, answers, request.ways)


class _VictimSearch(NamedTuple):
    """The search of victims for a request. Its refusal names what the search has noted in ``veto`` and
    ``limits``, so that no strategy is asked about a candidate twice.
    """

    request: Request
    veto: PluginVeto | None
    limits: Limits


def _search_for(tx: Transaction, request: Request) -> _VictimSearch:
    return _VictimSearch(request, veto_for(tx, request), request.limits(tx.state, tx.now))


def _with_victims(tx: Transaction, search: _VictimSearch) -> RequestOutcome | None:
    """Admit a request for which others have to leave, or refuse it as others come first; None: nobody's
    leaving would help.
    """
    request = search.request
    plan = plan_for(tx, request, search.veto, search.limits)
    if plan is None:
        return None
    permitted = plan_without_delay(tx, request, plan, search.veto)
    if permitted is None:
        entry = tx.state.queue.entry_of(request.stimulus, tx.now)
        heads = [] if entry is None else heads_before(tx.state, entry)
        may_wait = request.stimulus.queue
        return refusals.evictions_would_delay(plan, heads, may_wait=may_wait)
    plan = permitted
    if request.stimulus.dry_run:
        return _behind_others(tx, request, plan) or would_run(tx.state, request, plan)
    if (class_key := unprobed(tx.state, request, plan)) is not None:
        return ProbeNeeded(class_key=class_key)
    return admit_by(tx, request, plan)


def _behind_others(tx: Transaction, request: Request, plan: EvictionPlan) -> Refused | None:
    """Why nobody would be evicted for a submission as soon as it joins the queue: another task that waits has
    to start before it; None: there is none, or it does not join the queue.
    """
    stimulus, queue = request.stimulus, tx.state.queue
    if not stimulus.queue or stimulus.task is None:
        return None
    agent = stimulus.agent.with_alternative(0)
    waiting = msgspec.structs.replace(stimulus, agent=agent)
    task = as_joined(queue, waiting, stimulus.task, tx.now)
    entry = queue.entry(task)
    strict = is_behind_in_strict_pool(tx.state, task.pool_name, entry)
    if not strict and leads_class(queue, task):
        return None
    before = count_before(tx.state, task.pool_name, entry)
    if strict:
        return refusals.behind_in_strict_pool(task.pool_name, before)
    return refusals.behind_in_pool(task.pool_name, before, len(evicted_tasks(plan.victims)))


class _Decision(NamedTuple):
    """How a request is admitted. Without a plan it starts at once."""

    request: Request
    plan: EvictionPlan | None = None


def admit_by(tx: Transaction, request: Request, plan: EvictionPlan) -> Pending | Refused:
    """Admit a request by a plan. Claims that are to be revoked for it are revoked first."""
    if not plan.revoked:
        return admit(tx, request, plan)
    node_ids = _nodes_of(request, plan)
    revoke(tx, plan.revoked)
    decision = _decide_on(tx, request, plan, node_ids)
    if isinstance(decision, Refused):
        return decision
    if decision.plan is None:
        return admit(tx, decision.request, None)
    return admit_by(tx, decision.request, decision.plan)


def _nodes_of(request: Request, plan: EvictionPlan) -> frozenset[str]:
    """The nodes on which a request would run by a plan; empty: it is not to be placed."""
    if plan.placement is not None:
        return frozenset(plan.placement.node_ids)
    group = plan.preempted_group
    if group is None and isinstance(request.assignment, Assignment):
        if request.assignment.placement is not None:
            return frozenset(request.assignment.placement.node_ids)
        group = request.assignment.group
    if group is not None:
        return frozenset(group.node_ids)
    return frozenset() if request.node is None else frozenset((request.node.node_id,))


def _decide_on(
    tx: Transaction, request: Request, plan: EvictionPlan, node_ids: frozenset[str]
) -> _Decision | Refused:
    """See ``_decide_again``. On these nodes, which dry runs name, unless it has no room there
    or could start at once elsewhere.
    """
    if not node_ids:
        return _decide_again(tx, request, plan)
    cluster = tx.state.cluster
    with cluster.without({*cluster.set_aside, *cluster.nodes} - node_ids):
        there = _decide_again(tx, request, plan)
    if isinstance(there, _Decision) and there.plan is None:
        return there
    anywhere = _decide_again(tx, request, plan)
    at_once = isinstance(anywhere, _Decision) and anywhere.plan is None
    return anywhere if at_once or isinstance(there, Refused) else there


def _decide_again(tx: Transaction, request: Request, plan: EvictionPlan) -> _Decision | Refused:
    """How a request is admitted for which the claims that a plan names have been revoked."""
    again = understand_alone(tx, request.stimulus)
    if isinstance(again, Refused):
        return again
    as_owner = paid_as_owner(tx.state, again)
    short = NOTHING if plan.payment is None else plan.payment.short
    as_owner = msgspec.structs.replace(as_owner, takes_back=request.takes_back + short)
    if as_owner.fits_now:
        return _Decision(as_owner)
    search = _search_for(tx, again)
    case = Case(tx=tx, request=as_owner, veto=search.veto, limits=search.limits, known=KnownNodes())
    after = after_revocations(case)
    if after is not None:
        return _Decision(as_owner, after)
    return _Decision(again) if again.fits_now else _no_victim(tx, search)


def _not_reserved(tx: Transaction, request: Request) -> Request | Refused:
    """The request, if need be on another node, unless tasks that wait come before it and need the same."""
    queue = tx.state.queue
    entry = queue.entry_now(request.stimulus, tx.now)
    if entry is None:
        return request
    pool_name, may_wait = request.pool_name, request.stimulus.queue
    allowed: Request | None = None
    if not is_behind_in_strict_pool(tx.state, pool_name, entry):
        allowed = Backfill(tx).permitted(request, entry)
    elif may_wait:
        before = count_before(tx.state, pool_name, entry)
        return refusals.behind_in_strict_pool(pool_name, before)
    if allowed is not None:
        return allowed
    return Refused(
        reason=Reason.HELD_FOR_QUEUE,
        error_text=say("queue_comes_first", pool=pool_name),
        hint_text="" if may_wait else say("queue_comes_first_hint"),
    )


def veto_for(tx: Transaction, request: Request) -> PluginVeto | None:
    """The say that strategies have in who leaves for this request."""
    if not tx.strategies.plugins:
        return None
    view = _view(request.stimulus, request.pool_name, request.need)
    return plugin_veto(tx.strategies, tx.state.preemption, request.incoming(tx.state), view, tx.now)


def _no_victim(tx: Transaction, search: _VictimSearch) -> Refused:
    """The refusal of a request that does not fit, and for which nobody may be evicted."""
    state, (request, veto, limits) = tx.state, search
    turned_away: dict[Reason, int] = {}
    enough = sufficient_priority_for(tx, request)
    if request.stimulus.may_preempt:
        turned_away = candidates_for(tx, request, veto, limits).turned_away()
    stimulus = request.stimulus
    may_wait = stimulus.task is not None and stimulus.may_preempt and not stimulus.for_group
    refused = refusals.preemption_failed(
        state,
        request.pool_name,
        request.node_shape,
        request.payment.short,
        request.by_node,
        turned_away,
        enough,
        may_wait=may_wait,
    )
    only_group = stimulus.for_group or not stimulus.may_preempt
    if request.payment.short and only_group:
        refused = refusals.insufficient_quota(state, refused, request.pool_name)
    elif (
        not request.payment.short
        and request.group_request
        and isinstance(request.assignment, NoAssignment)
    ):
        refused = refusals.group_unplaceable(
            state,
            request.group_request,
            request.assignment,
            turned_away,
            enough,
            may_wait=may_wait,
        )
    contest = contest_for(tx, request, veto, limits)
    if contest is not None:
        return refusals.external_demand(refused, request.need, contest, may_wait=may_wait)
    return _of_size(request.stimulus, refused, request.pool_name, request.need)


def sufficient_priority_for(tx: Transaction, request: Request) -> float | None:
    """The priority that would have been enough; None: none, or it is not known."""
    task, stimulus = request.stimulus.task, request.stimulus
    if task is None or not stimulus.may_preempt or tx.strategies.plugins:
        return None

    # With a budget of lost work, and beside external work that waits, it depends on the victims, too.
    any_site = not tx.state.policy.lost_work_budget and not tx.state.external_demands
    known_nodes = KnownNodes(any_site=any_site)

    def victims(priority: float) -> tuple[Candidate, ...] | None:
        raised = msgspec.structs.replace(task, priority=priority)
        again = understand_alone(tx, msgspec.structs.replace(stimulus, task=raised))
        if isinstance(again, Refused) or again.fits_now:
            return None if isinstance(again, Refused) else ()
        if (waiting := request.waiting) is not None:
            submission = msgspec.structs.replace(waiting.submission, task=raised)
            waiting = msgspec.structs.replace(waiting, submission=submission, entry=None)
            again = msgspec.structs.replace(again, waiting=waiting)
        limits = again.limits(tx.state, tx.now)
        plan = evict(Case(tx=tx, request=again, veto=None, limits=limits, known=known_nodes))
        if plan is None or _any_rises_with(tx.state, request.waiting, plan):
            return None
        return evicted_tasks(plan.victims)

    def lowest_top() -> float:
        # Groups are taken, and borrowers are reclaimed, whatever the priorities.
        by_nodes = request.group_request is None
        alone = not tx.state.ledger.cohorts.neighbours(request.pool_name).names
        return known_nodes.lowest_top if by_nodes and alone else -math.inf

    passes = request.limits(tx.state, tx.now).priorities_that_pass
    return sufficient_priority(tx.state, request.incoming(tx.state), victims, lowest_top, passes)


def _any_rises_with(state: MeshState, waiting: QueuedTask | None, plan: EvictionPlan) -> bool:
    """Whether a plan evicts members of the array that waits: a change of its priority is one of theirs."""
    if waiting is None or not waiting.spec.array:
        return False
    members = (state.arrays.member_of(victim.task_id) for victim in evicted_tasks(plan.victims))
    return any(m is not None and m[0].array_id == waiting.task_id for m in members)


def submit_again(
    tx: Transaction,
    agent: AgentSpec,
    task: TaskSpec | None,
    state_key: str | None,
    request_id: str | None = None,
    attempts: Attempts = FIRST_ATTEMPT,
) -> RequestOutcome:
    """Admit an agent that ran before, built from a saved state, where it fits without evicting anyone."""
    if task is not None and (refused := array_limit(tx.state, task)) is not None:
        return refused
    submission = TaskSubmitted(
        agent=agent if agent.flavor is None else agent.with_alternative(agent.alternative),
        task=task,
        may_preempt=False,
        state_key=state_key,
        request_id=request_id,
        attempts=attempts,
    )
    return submit(tx, submission)


def readmit(tx: Transaction, past: Preempted, made: set[str]) -> bool:
    """Run a preempted task again with what is free; whether that could be done.

    ``made`` names the agents that were made again already: further tasks of theirs go along.
    """
    fact = past.fact
    if past.ran_again or fact.agent is None or refused_for_parent(tx.state, fact.task) is not None:
        return False
    if fact.task.extra_of and not core_runs(tx.state, fact.task.extra_of):
        return False
    if not fact.agent.class_key or not fact.agent.restartable:
        return False
    if fact.agent.name in made:
        return register(tx, fact.task, fact.agent.name) is None
    outcome = submit_again(tx, fact.agent, fact.task, past.state_key, attempts=fact.attempts)
    if isinstance(outcome, Pending):
        made.add(fact.agent.name)
        return True
    return False


def requeue_victim(tx: Transaction, past: Preempted) -> bool:
    """Have an evicted task join the queue though it was not to return, because it was evicted in vain. It
    waits at its place, with its saved state. False: it cannot be started again, or its id or the name of its
    agent has been given to another since.
    """
    fact = past.fact
    agent = fact.agent
    if past.ran_again or agent is None or not fact.number:
        return False
    if not agent.class_key or not agent.restartable or fact.task.extra_of:
        return False
    if agent.pool_name not in tx.state.ledger.accounts:
        return False
    submission = TaskSubmitted(
        agent=agent.with_alternative(0),
        task=fact.task,
        choose_node=fact.choose_node,
        state_key=past.state_key,
        queue=True,
    )
    if _invalid(tx.state, submission, waiting_task(tx.state, submission)) is not None:
        return False
    tx.emit(
        TaskQueued(submission=submission, at=tx.now, number=fact.number, attempts=fact.attempts)
    )
    return True
