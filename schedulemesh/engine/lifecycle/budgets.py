"""Budgets: when a part of one is used, or its period turns, this becomes a fact, on which decisions rest."""

from __future__ import annotations

from schedulemesh.domain.budgets import Budget
from schedulemesh.engine.messages.pool_facts import BudgetLevelChanged
from schedulemesh.engine.state.budgets import Meter
from schedulemesh.engine.transaction import Transaction


def advance_budgets(tx: Transaction) -> None:
    """Note which budgets have reached another level by now."""
    budgets = tx.state.budgets
    if budgets.due_at > tx.now:
        return
    for pool_name, pool in tuple(budgets.by_pool.items()):
        for owner, budget, meter in tuple(pool.meters()):
            _advance(tx, pool_name, owner, budget, meter)
    budgets.find_due(tx.now)


def _advance(
    tx: Transaction, pool_name: str, owner: str | None, budget: Budget, meter: Meter
) -> None:
    level = meter.level_at(budget, tx.now)
    if level == meter.level and (not level or tx.now < meter.level_until):
        return
    tx.emit(
        BudgetLevelChanged(
            pool_name=pool_name,
            owner=owner,
            at=tx.now,
            level=level,
            until=budget.end(tx.now),
            used=meter.used(budget, tx.now) / 3600,
            gpu_hours=budget.gpu_hours or 0.0,
        )
    )
