"""Values of the last minutes and of what is in progress, which alert rules compare with their thresholds.

They are read from the state, so they are the same after a restart of the supervisor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from schedulemesh.domain.reasons import LIMITS
from schedulemesh.engine.explanation.budgets import budgets_of
from schedulemesh.engine.state.agents import Starting, Waiting
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics.values import Family, Sample

#: How many agents are read between two places to pause.
_STRIDE = 200


def families(state: MeshState, now: float, recent_s: float) -> Iterator[Family]:
    """The values at a time in seconds since 1970, of every pool. ``recent_s``: what is longer ago than so
    many seconds is not recent.
    """
    since = now - recent_s
    yield c.RECENT_PREEMPTIONS, _of_pools(state, lambda: _preemptions(state, since))
    yield c.PREEMPTION_OLDEST, _of_pools(state, lambda: _oldest_preemptions(state, now))
    yield c.ADMISSION_OLDEST, _oldest_admissions(state, now)
    yield from _budgets(state, now)
    yield c.RECENT_LOST_STATES, _of_pools(state, lambda: _lost_states(state, since))


def _budgets(state: MeshState, now: float) -> Iterator[Family]:
    """What was used of the budgets of pools, and of owners."""
    rows = list(budgets_of(state, now)) if state.budgets.by_pool else []
    pools = [row for row in rows if row.owner is None]
    owners = [row for row in rows if row.owner is not None]
    yield c.POOL_BUDGET, [Sample((r.pool_name,), r.budget.gpu_hours or 0.0) for r in pools]
    yield c.POOL_BUDGET_USED, [Sample((r.pool_name,), r.used) for r in pools]
    yield (
        c.OWNER_BUDGET,
        [Sample((r.pool_name, r.owner or ""), r.budget.gpu_hours or 0.0) for r in owners],
    )
    yield c.OWNER_BUDGET_USED, [Sample((r.pool_name, r.owner or ""), r.used) for r in owners]


def restart_age(epoch: int, seconds: float) -> Family:
    """The age of a supervisor that took over from an earlier one so many seconds ago."""
    return c.RESTART_AGE, [Sample((), max(0.0, seconds))] if epoch > 1 else []


def _of_pools(state: MeshState, values: Callable[[], Mapping[str, float]]) -> Iterator[Sample]:
    """A value of every pool; 0 where there is none."""
    by_pool: dict[str, float] = {**dict.fromkeys(state.ledger.accounts, 0.0), **values()}
    for pool, value in by_pool.items():
        yield Sample((pool,), value)


def _preemptions(state: MeshState, since: float) -> Counter[str]:
    """Of each pool; a task that reached a limit in time was evicted for nobody."""
    return Counter(
        record.task.pool_name
        for record in state.evictions.records.values()
        if record.evicted_at is not None
        and record.evicted_at >= since
        and record.reason not in LIMITS
    )


def _oldest_preemptions(state: MeshState, now: float) -> dict[str, float]:
    ages: dict[str, float] = {}
    for record in state.evictions.records.values():
        if record.evicted_at is None:
            pool = record.task.pool_name
            ages[pool] = max(ages.get(pool, 0.0), now - record.decided_at)
    return ages


def _oldest_admissions(state: MeshState, now: float) -> Iterator[Sample | None]:
    ages = dict.fromkeys(state.ledger.accounts, 0.0)
    for number, agent in enumerate(list(state.agents.values()), 1):
        if isinstance(agent.phase, Waiting | Starting):
            pool = agent.spec.pool_name
            ages[pool] = max(ages.get(pool, 0.0), now - agent.admitted_at)
        if not number % _STRIDE:
            yield None
    for pool, age in ages.items():
        yield Sample((pool,), age)


def _lost_states(state: MeshState, since: float) -> Counter[str]:
    by_pool: Counter[str] = Counter(
        record.task.pool_name
        for record in state.evictions.records.values()
        if record.save_error and record.evicted_at is not None and record.evicted_at >= since
    )
    for lost in state.lost.values():
        if lost.at >= since:
            by_pool.update(task.pool_name for task, key in lost.tasks if key is None)
    return by_pool
