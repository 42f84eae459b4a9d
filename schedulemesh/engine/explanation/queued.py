"""Explains why a task waits in the queue.

Every reason that applies becomes a finding. The first one, in this order, is the dominant one: what the user
has to change before anything else matters comes first.

1. it is held;
2. it can never start as things are: its pool or every node is too small, or the request contradicts the pool;
3. it waits for other tasks to end, or for a time;
4. its owner holds as much of the pool as its limit permits, or in a fair pool others have used less;
5. it is behind the first task of a strict pool; others could be evicted for it if it were the first; or it
   would delay a reserved start;
6. its class has to load before others are evicted for it;
7. external work waits in Ray, and would get the room that evictions could free;
8. quota is short; then what makes it so: loans and holds;
9. nodes are short of room: those in or before a maintenance window, cordoned ones, other Ray work, then the
   agents there;
10. nothing: the next pass starts it.
"""

from __future__ import annotations

from heapq import merge
from itertools import islice

import msgspec

from schedulemesh.domain.flavors import counted
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.domain.resources import sum_of
from schedulemesh.domain.sentences import Sentence, Text, say
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.admission.arrays import array_limit
from schedulemesh.engine.admission.backfill import (
    Backfill,
    count_before,
    first_in_order,
    heads_before,
    is_behind,
)
from schedulemesh.engine.admission.budgets import beyond_budget
from schedulemesh.engine.admission.decide import (
    each_way,
    sufficient_priority_for,
    understand,
    understand_alone,
    veto_for,
)
from schedulemesh.engine.admission.evictions import (
    candidates_for,
    contest_for,
    delays_reserved_start,
    may_take_back,
    plan_for,
    plan_without_delay,
    unprobed,
)
from schedulemesh.engine.admission.needs import is_ruled_out, need_of, quota_need_of
from schedulemesh.engine.admission.owner_limits import beyond_owner_limit
from schedulemesh.engine.admission.refusals import (
    CONTESTED_HINT,
    contested_room,
    described,
    described_plan,
    evictions_would_delay,
)
from schedulemesh.engine.admission.time_limits import run_limit
from schedulemesh.engine.admission.turns import (
    SEARCHES,
    TRIES,
    searches_of_pool,
    ticks_until_searched,
)
from schedulemesh.engine.admission.windows import outside_windows
from schedulemesh.engine.explanation.dependencies import dependency_finding
from schedulemesh.engine.explanation.estimate import Start, duration_of, earliest_start
from schedulemesh.engine.explanation.evictions import last_eviction, last_saved
from schedulemesh.engine.explanation.order import behind_owner, order_of
from schedulemesh.engine.explanation.shortage import Shortage, shortage_of
from schedulemesh.engine.messages.explanation import (
    AlternativeFinding,
    Considered,
    Explanation,
    Finding,
)
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.preemption.search import EvictionPlan
from schedulemesh.engine.preemption.veto import PluginVeto
from schedulemesh.engine.preemption.victims import evicted_tasks
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.shares import raised_weight
from schedulemesh.engine.state.ways import has_ways, ways_of
from schedulemesh.engine.transaction import Transaction

#: What is asked for in one alternative, who could be evicted for that, and how.
_Examined = tuple[Request, Considered | None, EvictionPlan | None]

#: How many of the tasks that come before it are named.
_BEFORE = 5
#: With more agents than this no victims are searched on nodes, which takes time in proportion to them.
_SEARCHED_AGENTS = 3_000


def explain_queued(tx: Transaction, task: QueuedTask) -> Explanation:
    """The explanation of a task that waits. Changes nothing."""
    with outside_windows(tx.state, task.submission, tx.now):
        return _explained(tx, task)


def _explained(tx: Transaction, task: QueuedTask) -> Explanation:
    request = understand(tx, task.submission, limits_owner=False)
    explained = _place_of(tx, task)
    findings = _of_its_own(tx, task)
    if isinstance(request, Refused):
        return _impossible(tx, task, request, explained, findings)
    examined = [
        (each, *_considered(tx, task, each)) for each in each_way(tx, request, limits_owner=False)
    ]
    if has_ways(tx.state.ledger, task.submission):
        alternatives = _of_each(tx, task, examined)
        explained = msgspec.structs.replace(explained, alternatives=alternatives)
    if not request.fits_now:
        request, considered, plan = _best_of(tx, examined)
        considered = _with_lowest_priority(considered, examined)
    else:
        considered, plan = None, None
    shortage = shortage_of(tx.state, request, tx.now)
    limits = _limits(tx, task, examined)
    if limits:
        findings += [*map(_limit, limits), *shortage.findings]
        start = Start(at=None, unknown=say("start_owner_limit"))
        if limits[-1].reason is Reason.BUDGET_SPENT:
            start = earliest_start(tx.state, task, request, tx.now)
        return _concluded(_with(explained, shortage, None, start), findings)
    if not request.fits_now and (behind := behind_owner(tx.state, task)) is not None:
        findings.append(behind)
    findings += _order(tx, task, request, plan)
    if plan is None and not request.fits_now:
        findings += _contested(tx, request)
    findings += shortage.findings
    if not findings:
        findings.append(_next_pass(plan))
    start = earliest_start(tx.state, task, request, tx.now)
    duration = duration_of(tx.state, task.spec, request.need)
    explained = msgspec.structs.replace(explained, expected_duration=duration)
    return _concluded(_with(explained, shortage, considered, start), findings)


def _impossible(
    tx: Transaction,
    task: QueuedTask,
    refused: Refused,
    explained: Explanation,
    findings: list[Finding],
) -> Explanation:
    """The explanation of a task that could not start whatever were free."""
    if refused.reason is Reason.MEMBERS_ENDING:
        hint: Text = ""
        explained = msgspec.structs.replace(explained, no_estimate_text=say("start_members"))
    else:
        hint = say("joined", parts=(_never(tx.state, task, refused), _until_cancelled(tx, task)))
        explained = msgspec.structs.replace(
            explained,
            short_quota=refused.short_quota,
            short_node=refused.short_node,
            no_estimate_text=say("start_impossible"),
        )
    never = Finding(reason=refused.reason, error_text=refused.error_text, hint_text=hint)
    findings.insert(bool(task.held), never)
    if refused.reason is Reason.MEMBERS_ENDING and (limited := _limit_after_members(tx, task)):
        findings.append(_limit(limited))
    return _concluded(explained, findings)


def _limit_after_members(tx: Transaction, task: QueuedTask) -> Refused | None:
    """The limit of its owner that would keep it also when the members of its last attempt have ended; None:
    none would.
    """
    state, pool_name, submission = tx.state, task.pool_name, task.submission
    agent, owner = submission.agent, task.spec.owner
    names = (agent.name, *agent.process_names, *agent.extra_names)
    ending = [state.agents[name] for name in names if name in state.agents]
    freed = sum_of(one.spec.resources for one in ending)
    need = counted(need_of(state, task), quota_need_of(state, task))
    if not state.owners.is_short_after(pool_name, owner, need, freed, len(ending)):
        return None
    return beyond_owner_limit(state, submission, pool_name, need)


def _best_of(tx: Transaction, examined: list[_Examined]) -> _Examined:
    """The alternative in which it would start: the first for which evictions help, and delay no start that is
    reserved for others; else the first for which they help.
    """
    helped = [one for one in examined if one[-1] is not None]
    permitted = (one for one in helped if one[2] and not delays_reserved_start(tx, one[0], one[2]))
    return next(permitted, (helped or examined)[0])


def _with_lowest_priority(
    considered: Considered | None, examined: list[_Examined]
) -> Considered | None:
    """With the lowest priority that would be sufficient in any of the alternatives."""
    if considered is None or considered.victims:
        return considered
    priorities = [one.sufficient_priority for _, one, _ in examined if one is not None]
    lowest = min((p for p in priorities if p is not None), default=None)
    return msgspec.structs.replace(considered, sufficient_priority=lowest)


def _limits(tx: Transaction, task: QueuedTask, examined: list[_Examined]) -> list[Refused]:
    """Why it may start in none of its alternatives whatever is free: a budget that is spent, its owner's
    limit, or both; empty: in one it may.
    """
    requests = [request for request, *_ in examined]
    spent = [_spent_in(tx, task, request) for request in requests]
    beyond = [_beyond_in(tx, task, request) for request in requests]
    first = [budget or limit for budget, limit in zip(spent, beyond, strict=True)]
    if None in first:
        return []
    also = beyond[:1] if spent[0] is not None and None not in beyond else []
    return [limit for limit in (first[0], *also) if limit is not None]


def _spent_in(tx: Transaction, task: QueuedTask, request: Request) -> Refused | None:
    """The budget that is spent, for which it does not start in this alternative."""
    return beyond_budget(tx.state, request.stimulus, task.pool_name, request.need, tx.now)


def _beyond_in(tx: Transaction, task: QueuedTask, request: Request) -> Refused | None:
    """The limit of its owner, for which it does not start in this alternative."""
    amount = counted(request.need, request.quota_need)
    return beyond_owner_limit(tx.state, request.stimulus, task.pool_name, amount)


def _limit(limited: Refused) -> Finding:
    """A budget is spent, or its owner holds as much of the pool as its limit permits."""
    return Finding(
        reason=limited.reason, error_text=limited.error_text, hint_text=limited.hint_text
    )


def _of_each(
    tx: Transaction,
    task: QueuedTask,
    examined: list[_Examined],
) -> tuple[AlternativeFinding, ...]:
    """Why a task does not start in each of the ways in which it may run."""
    possible = {_way(one[0].stimulus): one for one in examined}
    return tuple(
        _possible_alternative(tx, task, *possible[_way(each)])
        if _way(each) in possible
        else _impossible_alternative(tx, each)
        for each in ways_of(tx.state.ledger, task.submission)
    )


def _way(submission: TaskSubmitted) -> tuple[int, str]:
    """The alternative and the flavor in which a submission is to run."""
    return submission.agent.alternative, submission.agent.taken_flavor


def _impossible_alternative(tx: Transaction, submission: TaskSubmitted) -> AlternativeFinding:
    refused = understand_alone(tx, submission)
    if isinstance(refused, Request):
        raise TypeError("what is possible is examined otherwise")
    return AlternativeFinding(
        alternative_text=described(submission.agent),
        number=submission.agent.taken,
        flavor=submission.agent.taken_flavor,
        reason=refused.reason,
        error_text=refused.error_text,
        short_quota=refused.short_quota,
        short_node=refused.short_node,
    )


def _possible_alternative(
    tx: Transaction,
    task: QueuedTask,
    request: Request,
    considered: Considered | None,
    plan: EvictionPlan | None,
) -> AlternativeFinding:
    shortage = shortage_of(tx.state, request, tx.now)
    findings = [*_order(tx, task, request, plan), *shortage.findings] or [_next_pass(plan)]
    limited = _spent_in(tx, task, request) or _beyond_in(tx, task, request)
    if limited is not None:
        findings.insert(0, _limit(limited))
    return AlternativeFinding(
        alternative_text=described(request.stimulus.agent),
        number=request.stimulus.agent.taken,
        flavor=request.stimulus.agent.taken_flavor,
        reason=findings[0].reason,
        error_text=findings[0].error_text,
        short_quota=shortage.quota,
        short_node=shortage.node,
        victims=() if considered is None else considered.victims,
    )


def _with(
    explained: Explanation,
    shortage: Shortage,
    considered: Considered | None,
    start: Start,
) -> Explanation:
    return msgspec.structs.replace(
        explained,
        short_quota=shortage.quota,
        short_node=shortage.node,
        holders=shortage.holders,
        external=shortage.external,
        considered=considered,
        earliest_start=start.at,
        start_rests_on=start.rests_on,
        start_waits_for_overdue=start.overdue,
        start_waits_for_limit=start.by_limit,
        no_estimate_text=start.unknown,
    )


def _concluded(explained: Explanation, findings: list[Finding]) -> Explanation:
    """With the first finding as the dominant reason."""
    first, *others = findings
    return msgspec.structs.replace(
        explained,
        reason=first.reason.value,
        error_text=first.error_text,
        hint_text=first.hint_text,
        others=tuple(others),
    )


def _place_of(tx: Transaction, task: QueuedTask) -> Explanation:
    """Where it waits, since when, and what comes before it."""
    queue = tx.state.queue
    position = queue.position(task)
    array = tx.state.arrays.alive(task.task_id)
    eviction = last_eviction(tx.state, task.task_id)
    return Explanation(
        detail_text=(
            ""
            if array is None
            else say("array_members", array=task.task_id, members=array.described())
        ),
        task=task.spec,
        kind=task.submission.agent.kind,
        run_limit_s=run_limit(tx.state, task.pool_name, task.spec),
        state="queued",
        agent_name=task.submission.agent.name,
        since=task.queued_at,
        position=position,
        queue_length=queue.pools[task.pool_name].size,
        before=_before(tx, task) if position > 1 else (),
        order=order_of(tx.state, task, tx.now),
        weight_raised_by=raised_weight(tx.state, task.pool_name, tx.now),
        preemptions=task.attempts.preemptions,
        failures=task.attempts.failures,
        saved_at=last_saved(None, eviction),
        eviction=eviction,
        alternative=_reserved_alternative(task),
        flavor="" if task.reservation is None else task.reservation.flavor,
    )


def _reserved_alternative(task: QueuedTask) -> int:
    """In which way its start is reserved, from 1; 0: there is one alone, or no start is reserved."""
    if task.reservation is None or not task.submission.agent.alternatives:
        return 0
    return task.reservation.alternative + 1


def _before(tx: Transaction, task: QueuedTask) -> tuple[str, ...]:
    """The first tasks of its pool that come before it."""
    classes = tx.state.queue.pools[task.pool_name].classes.values()
    task_ids = []
    for _, _, task_id in islice(merge(*(c.entries for c in classes)), _BEFORE):
        if task_id == task.task_id:
            break
        task_ids.append(task_id)
    return tuple(task_ids)


def _of_its_own(tx: Transaction, task: QueuedTask) -> list[Finding]:
    """What keeps it whatever is free: it is held, or waits for other tasks or for a time."""
    findings = []
    if task.held:
        findings.append(
            Finding(
                reason=Reason.HELD_BY_USER,
                error_text=say("task_held", task=task.task_id),
                hint_text=say("task_held_hint", task=task.task_id),
            )
        )
    if task.depends:
        findings.append(dependency_finding(tx, task))
    if (full := array_limit(tx.state, task.spec)) is not None:
        findings.append(
            Finding(reason=full.reason, error_text=full.error_text, hint_text=full.hint_text)
        )
    if task.not_before > tx.now:
        has_log = task.submission.agent.kind == "job" and task.attempts.failures > 0
        findings.append(
            Finding(
                reason=Reason.BACK_OFF,
                error_text=_back_off(task, task.not_before - tx.now),
                hint_text=say("job_log_so_far", task=task.task_id) if has_log else "",
            )
        )
    return findings


def _back_off(task: QueuedTask, wait_s: float) -> Sentence:
    """Why a task waits for its next attempt, for so many seconds."""
    failures, lost_starts = task.attempts.failures, task.attempts.lost_starts
    if lost_starts:
        times = "" if lost_starts == 1 else say("times_in_a_row", count=lost_starts)
        return say("start_was_lost", times=times, wait=wait_s)
    why = say("run_failed", count=failures) if failures else say("no_room_in_ray")
    return say("tried_again", wait=wait_s, why=why)


def _considered(
    tx: Transaction, task: QueuedTask, request: Request
) -> tuple[Considered | None, EvictionPlan | None]:
    """Who could be evicted for it, and how; None: nobody has to be, or may be."""
    if request.fits_now:
        return None, None
    veto = veto_for(tx, request)
    if request.unassigned and len(tx.state.agents) > _SEARCHED_AGENTS:
        return _not_searched(tx, request, veto), None
    limits = request.limits(tx.state, tx.now)
    plan = plan_for(tx, request, veto, limits)
    if plan is not None:
        plan = plan_without_delay(tx, request, plan, veto) or plan
    if plan is not None or not task.submission.may_preempt:
        victims = () if plan is None else tuple(c.task_id for c in evicted_tasks(plan.victims))
        return Considered(tasks=len(tx.state.running), victims=victims), plan
    turned_away = candidates_for(tx, request, veto, limits).turned_away()
    return (
        Considered(
            tasks=len(tx.state.running),
            turned_away=turned_away,
            sufficient_priority=_sufficient_priority(tx, task, request),
        ),
        None,
    )


def _sufficient_priority(tx: Transaction, task: QueuedTask, request: Request) -> float | None:
    """The priority with which it would start, also where others of its strict pool come before it; None:
    there is none, or it is not known.
    """
    state, enough = tx.state, sufficient_priority_for(tx, _as_new(request))
    strict = state.ledger.accounts[task.pool_name].spec.queueing == "strict"
    first = first_in_order(state, task.pool_name) if strict and enough is not None else None
    entry = state.queue.entry(task)
    if enough is None or first is None or first >= entry:
        return enough
    comes_first = entry[0] + task.spec.priority - enough < first[0]
    return enough if comes_first and _rises_by_priority(state, task.pool_name) else None


def _not_searched(tx: Transaction, request: Request, veto: PluginVeto | None) -> Considered:
    """How many tasks the rules spare, where there are too many agents to search victims among them."""
    limits = request.limits(tx.state, tx.now)
    turned_away = candidates_for(tx, request, veto, limits).turned_away()
    evictable = turned_away.pop(Reason.WOULD_NOT_MAKE_ROOM, 0)
    return Considered(
        tasks=len(tx.state.running),
        searched=False,
        evictable=evictable,
        turned_away=turned_away,
    )


def _as_new(request: Request) -> Request:
    """The request as if it were submitted now under a free id, as the queued task has its own."""
    submission = request.stimulus
    agent = msgspec.structs.replace(submission.agent, name="")
    task = submission.task and msgspec.structs.replace(submission.task, task_id="")
    submission = msgspec.structs.replace(submission, agent=agent, task=task)
    return msgspec.structs.replace(request, stimulus=submission)


def _order(
    tx: Transaction, task: QueuedTask, request: Request, plan: EvictionPlan | None
) -> list[Finding]:
    """Whether tasks that come before it keep it from starting, and whether its class has to load first."""
    state = tx.state
    strict = state.ledger.accounts[task.pool_name].spec.queueing == "strict"
    entry = state.queue.entry(task)
    waits = task.queue_class is not None and is_behind(state, task.pool_name, entry)
    before = count_before(state, task.pool_name, entry)
    by_priority = _rises_by_priority(state, task.pool_name)
    to_the_front = say(
        "to_the_front_hint" if by_priority else "only_to_the_front_hint", task=task.task_id
    )
    findings = []
    if strict and waits:
        error = say("behind_strict", before=before, pool=task.pool_name)
        findings.append(
            Finding(reason=Reason.BEHIND_QUEUE_HEAD, error_text=error, hint_text=to_the_front)
        )
    elif plan is not None and waits:
        turns = _turns(tx, task, plan)
        error = say(
            "behind_victims",
            eviction=described_plan(plan),
            before=before,
            pool=task.pool_name,
            turn=say("its_turn", seconds=turns) if turns > 1 else "",
        )
        findings.append(
            Finding(reason=Reason.BEHIND_QUEUE_HEAD, error_text=error, hint_text=to_the_front)
        )
    if request.fits_now and Backfill(tx).permitted(request, entry) is None:
        findings.append(_reserved_for_others(tx, task, request))
    if plan is not None and unprobed(state, request, plan) is not None:
        error = say("class_loads_first", eviction=described_plan(plan))
        findings.append(Finding(reason=Reason.CLASS_NOT_LOADED, error_text=error))
    elif plan is not None and not waits and delays_reserved_start(tx, request, plan):
        findings.append(_would_delay(tx, task, plan))
    elif plan is not None and not waits and not task.held and task.queue_class is not None:
        findings.append(_next_pass(plan, _turns(tx, task, plan)))
    return findings


def _rises_by_priority(state: MeshState, pool_name: str) -> bool:
    """Whether a task comes first in its pool by a higher priority: the order goes by priority alone, and
    nobody was moved to the front.
    """
    queue = state.queue
    if not queue.policy.counts_priority or state.owners.is_fair(pool_name):
        return False
    first = first_in_order(state, pool_name)
    return first is None or not queue.by_id[first[-1]].front


def _turns(tx: Transaction, task: QueuedTask, plan: EvictionPlan) -> int:
    """Within how many ticks it is the turn of a task for which others are evicted by these rules."""
    state = tx.state
    queue, pool = state.queue, state.queue.pools[task.pool_name]
    rank = pool.firsts.bisect_left(queue.entry(task))
    if all(victim.reason is PreemptionReason.RECLAIM for victim in evicted_tasks(plan.victims)):
        firsts = islice(queue.firsts_of(task.pool_name), rank)
        before = sum(may_take_back(state, first) for first in firsts)
        return ticks_until_searched(TRIES, len(pool.firsts), before)
    pools = len(queue.pools)
    searches = searches_of_pool(min(pools, SEARCHES))
    return -(-pools // SEARCHES) * ticks_until_searched(searches, len(pool.firsts), rank)


def _contested(tx: Transaction, request: Request) -> list[Finding]:
    """Whether external work would get the room that evictions could free."""
    limits = request.limits(tx.state, tx.now)
    contest = contest_for(tx, request, veto_for(tx, request), limits)
    if contest is None:
        return []
    return [
        Finding(
            reason=Reason.EXTERNAL_DEMAND,
            error_text=contested_room(request.need, contest),
            hint_text=CONTESTED_HINT,
        )
    ]


def _reserved_for_others(tx: Transaction, task: QueuedTask, request: Request) -> Finding:
    """There is room, but it would delay a start that is reserved."""
    heads = heads_before(tx.state, tx.state.queue.entry(task))
    named = [*map(repr, heads)]
    return Finding(
        reason=Reason.HELD_FOR_QUEUE,
        error_text=say("reserved_for_others", need=request.need, tasks=named),
        hint_text=say("reserved_for_others_hint", task=task.task_id),
    )


def _would_delay(tx: Transaction, task: QueuedTask, plan: EvictionPlan) -> Finding:
    """Evictions would make room for it, but delay a start that is reserved."""
    heads = heads_before(tx.state, tx.state.queue.entry(task))
    refused = evictions_would_delay(plan, heads, may_wait=True)
    return Finding(
        reason=refused.reason,
        error_text=refused.error_text,
        hint_text=say("reserved_for_others_hint", task=task.task_id),
    )


def _next_pass(plan: EvictionPlan | None, turns: int = 1) -> Finding:
    """Nothing keeps it from starting, in its turn: within so many ticks of a second each."""
    how = say("room_for_it") if plan is None else say("makes_room", eviction=described_plan(plan))
    time = say("within_seconds") if turns <= 1 else say("within_turns", seconds=turns)
    return Finding(
        reason=Reason.NEXT_SCHEDULING_PASS, error_text=say("next_pass", how=how, time=time)
    )


def _until_cancelled(tx: Transaction, task: QueuedTask) -> Text:
    """When a task that could not start is cancelled, as part of a sentence; empty: it waits for ever."""
    queue = tx.state.queue
    alike = task.queue_class
    first = task if alike is None or not alike.entries else queue.by_id[alike.first[-1]]
    if first.impossible_since is None:
        return ""
    due_s = first.impossible_since + queue.policy.impossible_after_s - tx.now
    return say("cancelled_unless", wait=max(0.0, due_s))


def _never(state: MeshState, task: QueuedTask, refused: Refused) -> Text:
    """The next step where it cannot start as things are, and whether those behind it wait for it."""
    step = refused.hint_text
    if refused.reason is Reason.CLUSTER_OUT_OF_RESOURCES:
        step = step or say("larger_node_hint")
        strict = state.ledger.accounts[task.pool_name].spec.queueing == "strict"
        return say("joined", parts=(step, say("strict_waits_for_it"))) if strict else step
    step = step or say("other_request_hint")
    if not is_ruled_out(state, task):
        return step
    return say("joined", parts=(step, say("others_do_not_wait")))
