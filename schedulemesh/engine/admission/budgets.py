"""Budgets: which tasks do not start because one is spent, and why."""

from __future__ import annotations

from schedulemesh.domain.budgets import Budget, local_time
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.admission.owner_limits import named_owner
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.budgets import Meter
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queue import QueuedTask


def beyond_budget(
    state: MeshState, submission: TaskSubmitted, pool_name: str, need: Resources, now: float
) -> Refused | None:
    """The refusal of a task that asks for GPUs and is charged to a budget that is spent; None: it is not, or
    it is no task.
    """
    task, pool = submission.task, state.budgets.by_pool.get(pool_name)
    if task is None or pool is None or not need.gpu:
        return None
    spent = pool.spent(task.owner, "hold")
    if spent is None:
        return None
    owner, budget, meter = spent
    return Refused(
        reason=Reason.BUDGET_SPENT,
        error=_spent_text(pool_name, owner, budget, meter, now),
        hint=(
            f"{'' if submission.queue else 'submit it with queue=True: '}it starts when the period turns; "
            f"an operator raises {'budget' if owner is None else 'owner_budgets'} of pool {pool_name!r}"
        ),
    )


def _spent_text(pool_name: str, owner: str | None, budget: Budget, meter: Meter, now: float) -> str:
    whose = f"pool {pool_name!r}"
    if owner is not None:
        whose = f"{named_owner(owner)} in pool {pool_name!r}"
    used = meter.used(budget, now) / 3600
    turns = local_time(meter.level_until, budget)
    return (
        f"budget spent: {whose} has used {used:,.1f} of {budget.gpu_hours:,.6g} GPU-hours of this "
        f"{budget.period}, which ends on {turns}"
    )


def held_until(state: MeshState, task: QueuedTask) -> float | None:
    """When the period turns of the budget for which a queued task waits, in seconds since 1970; None: it
    waits for none.
    """
    budgets = state.budgets
    if not budgets.holds(task.pool_name, task.spec.owner, task.need_of_class):
        return None
    spent = budgets.by_pool[task.pool_name].spent(task.spec.owner, "hold")
    return None if spent is None else spent[-1].level_until
