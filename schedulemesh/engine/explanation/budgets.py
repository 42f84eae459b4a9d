"""What pools and owners have used of their budgets, and whether these will be enough."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from schedulemesh.domain.budgets import LEVELS, STATES, Budget
from schedulemesh.domain.owner_limits import DEFAULT_OWNER
from schedulemesh.engine.state.budgets import Meter, PoolBudgets
from schedulemesh.engine.state.mesh_state import MeshState


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The budget of a pool, or of an owner in it, in the present period."""

    pool_name: str
    #: None: the pool itself.
    owner: str | None = None
    budget: Budget
    #: GPU-hours so far, and the part of the budget that they are.
    used: float
    part: float
    #: One of ``STATES``.
    state: str
    #: Since when they are counted, and when the period turns, in seconds since 1970.
    since: float
    until: float
    #: GPU-hours until the period turns if use goes on as so far; when the budget is spent then, None: not in
    #: the period, or it is spent already.
    forecast: float
    spent_at: float | None = None


def budgets_of(state: MeshState, now: float) -> Iterator[BudgetRow]:
    """A row for each pool that has a budget, and behind it one for each of its owners that has one and is
    named or has used something: those who have used most of theirs come first.
    """
    for pool_name in state.ledger.accounts:
        pool = state.budgets.by_pool.get(pool_name)
        if pool is not None:
            rows = [
                _row(pool, owner, budget, meter, now) for owner, budget, meter in _all(pool, now)
            ]
            yield from sorted(
                rows, key=lambda row: (row.owner is not None, -row.part, row.owner or "")
            )


def _all(pool: PoolBudgets, now: float) -> Iterator[tuple[str | None, Budget, Meter]]:
    """The meters of a pool, and one for each owner that is named and has used nothing."""
    yield from pool.meters()
    for owner in pool.spec.owner_budgets:
        budget = pool.budget(owner)
        if owner != DEFAULT_OWNER and owner not in pool.owners and budget is not None:
            yield owner, budget, Meter.begun(budget, now)


def _row(
    pool: PoolBudgets, owner: str | None, budget: Budget, meter: Meter, now: float
) -> BudgetRow:
    used = meter.used(budget, now)
    forecast, spent_at = meter.forecast(budget, now)
    level = meter.level_at(budget, now)
    return BudgetRow(
        pool_name=pool.spec.name,
        owner=owner,
        budget=budget,
        used=used / 3600,
        part=used / budget.gpu_s,
        state=STATES[(0, *LEVELS).index(level)],
        since=max(meter.since, budget.begin(now)),
        until=budget.end(now),
        forecast=forecast / 3600,
        spent_at=spent_at,
    )
