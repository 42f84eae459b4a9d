"""The dry run of the preemption decision: whether and whom an incoming task may evict. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.admission.admit import tasks_to_start
from schedulemesh.engine.admission.decide import understand
from schedulemesh.engine.admission.evictions import plan_for, plan_without_delay
from schedulemesh.engine.messages.outcomes import Candidate, Evaluation, Refused
from schedulemesh.engine.messages.query import PreemptionQuery
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.placement.plugin_views import query_view
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.preemption.candidates import Candidates, dominant
from schedulemesh.engine.preemption.combined import BorrowersAndOthers
from schedulemesh.engine.preemption.limits import Limits
from schedulemesh.engine.preemption.reclaim import Borrowers
from schedulemesh.engine.preemption.search import EvictionPlan
from schedulemesh.engine.preemption.veto import PluginVeto, plugin_veto
from schedulemesh.engine.preemption.victims import evicted_tasks
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.preemption_rules import Incoming
from schedulemesh.engine.transaction import Transaction


def evaluate(
    state: MeshState, query: PreemptionQuery, now: float, strategies: Strategies
) -> Evaluation:
    """The dry run of the preemption decision, contract in Engine.evaluate."""
    incoming = Incoming(
        priority=query.priority,
        pool_name=query.pool_name,
        labels=query.labels,
        neighbours=state.ledger.cohorts.neighbours(query.pool_name).names,
    )
    veto = plugin_veto(strategies, state.preemption, incoming, query_view(query), now)
    limits = Limits(state, query.pool_name, now)
    chosen: tuple[Candidate, ...] = ()
    starts: tuple[str, ...] = ()
    candidates = Candidates(state.preemption, state.running, incoming, now, veto, limits)
    if query.resources is not None:
        plan = _plan(Transaction(state, now, strategies), query, veto, limits)
        if isinstance(plan, Evaluation):
            return plan
        if plan is not None:
            chosen, starts = evicted_tasks(plan.victims), tasks_to_start(state, plan.revoked)
        candidates = _asked(candidates, chosen, Borrowers(state, incoming, now, veto))
    first = tuple(candidates.in_order(first=max(1, query.limit))) or chosen
    victims = tuple(victim.task_id for victim in chosen)
    if first and (victims or query.resources is None):
        return Evaluation(
            should_preempt=True,
            candidates=first[: max(0, query.limit)],
            victims=victims,
            cancelled_starts=starts,
        )
    turned_away = candidates.turned_away()
    return Evaluation(
        should_preempt=False,
        reason=dominant(turned_away),
        turned_away=turned_away,
    )


def _asked(
    candidates: Candidates, victims: Sequence[Candidate], borrowers: Borrowers
) -> Candidates:
    """The candidates among which these victims were chosen."""
    by_reclaim = [victim.reason is PreemptionReason.RECLAIM for victim in victims]
    if not any(by_reclaim):
        return candidates
    return borrowers if all(by_reclaim) else BorrowersAndOthers(borrowers, candidates)


def _plan(
    tx: Transaction, query: PreemptionQuery, veto: PluginVeto | None, limits: Limits
) -> EvictionPlan | Evaluation | None:
    """How a submission like this would get room (None: no eviction would make it), or the answer that says
    why nobody need be evicted, or why nothing helps.
    """
    submission = TaskSubmitted(
        agent=AgentSpec(
            name="", pool_name=query.pool_name, resources=query.resources or Resources()
        ),
        task=TaskSpec(
            task_id="", pool_name=query.pool_name, priority=query.priority, labels=query.labels
        ),
        default_resources=False,
    )
    request = understand(tx, submission)
    if isinstance(request, Refused):
        return Evaluation(should_preempt=False, reason=request.reason)
    plan = None if request.fits_now else plan_for(tx, request, veto, limits)
    if plan is not None and (plan := plan_without_delay(tx, request, plan, veto)) is None:
        return Evaluation(should_preempt=False, reason=Reason.HELD_FOR_QUEUE)
    if not request.fits_now and (plan is None or plan.victims):
        return plan
    if plan is None or not plan.revoked:
        return Evaluation(should_preempt=False, reason=Reason.RESOURCES_AVAILABLE)
    return Evaluation(
        should_preempt=False,
        reason=Reason.STARTS_CANCELLED,
        cancelled_starts=tasks_to_start(tx.state, plan.revoked),
    )
