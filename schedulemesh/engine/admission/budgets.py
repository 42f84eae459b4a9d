"""Budgets: which tasks do not start because one is spent, and why."""

from __future__ import annotations

from schedulemesh.domain.budgets import Budget, local_time
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.sentences import Sentence, say
from schedulemesh.engine.admission.owner_limits import named_owner
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.budgets import Meter
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask

#: How sentences name the period of a budget.
_PERIODS = {"day": "this_day", "week": "this_week", "month": "this_month"}


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
        error_text=_spent_text(pool_name, owner, budget, meter, now),
        hint_text=say(
            "budget_hint",
            submit="" if submission.queue else say("with_queue"),
            field="budget" if owner is None else "owner_budgets",
            pool=pool_name,
        ),
    )


def _spent_text(
    pool_name: str, owner: str | None, budget: Budget, meter: Meter, now: float
) -> Sentence:
    whose = say("pool_itself", pool=pool_name)
    if owner is not None:
        whose = say("owner_in_pool", owner=named_owner(owner), pool=pool_name)
    return say(
        "budget_used_up",
        whose=whose,
        used=meter.used(budget, now) / 3600,
        budget=budget.gpu_hours or 0.0,
        period=say(_PERIODS[budget.period]),
        turns=local_time(meter.level_until, budget),
    )


def held_until(state: MeshState, task: QueuedTask) -> float | None:
    """When the period turns of the budget for which a queued task waits, in seconds since 1970; None: it
    waits for none.
    """
    budgets = state.budgets
    owner = task.common_spec.owner
    if not budgets.holds(task.pool_name, owner, task.need_of_class):
        return None
    spent = budgets.by_pool[task.pool_name].spent(owner, "hold")
    return None if spent is None else spent[-1].level_until
