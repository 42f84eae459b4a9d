"""What pools, and owners in them, have used of their budgets in the present period.

A claim is charged from the start of its process until that is gone, as the history counts its use: to the
pool of the agent, whoever's quota it holds, and there to the owner of its task. Nothing is summed up between
two changes: a meter has what was used until its last change, and how many GPUs are in use since then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

import msgspec

from schedulemesh.domain.budgets import LEVELS, Budget, budget_of
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.state.agents import Agent

#: Meters of owners of one pool, beyond which those that say nothing any more are forgotten.
_IDLE_OWNERS = 1_000
#: Owners of one pool whose budgets are kept, so that they are not made of their entry and the default anew.
_REMEMBERED = 10_000
#: What is lost by rounding does not keep a budget from being spent.
_ROUNDING = 1e-9


class Meter(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """The GPU-seconds that were used of a budget in a period."""

    #: Since when they are counted, in seconds since 1970: the begin of the period, or when counting began.
    since: float
    #: When the period turns.
    until: float
    #: The GPU-seconds until ``at``.
    gpu_s: float = 0.0
    at: float
    #: The units of GPUs that are in use since then.
    gpu: int = 0
    #: The highest of ``LEVELS`` that was reached, and until when that holds; 0: none.
    level: int = 0
    level_until: float = 0.0

    @classmethod
    def begun(cls, budget: Budget, at: float, gpu: int = 0) -> Meter:
        """One that counts from now on."""
        return cls(since=at, until=budget.end(at), at=at, gpu=gpu)

    def used(self, budget: Budget, now: float) -> float:
        """The GPU-seconds used until now in the period in which now is."""
        if now < self.until:
            return self.gpu_s + self.gpu * max(0.0, now - self.at) / UNIT
        return self.gpu * (now - budget.begin(now)) / UNIT

    def charge(self, budget: Budget, units: int, at: float) -> float:
        """So many more units of GPUs are in use from now on, or fewer; from when on another level may be
        reached because of that, infinite: never.
        """
        if at >= self.until:
            self.gpu_s = self.used(budget, at)
            self.since, self.until, self.at = budget.begin(at), budget.end(at), at
        elif at > self.at:
            self.gpu_s += self.gpu * (at - self.at) / UNIT
            self.at = at
        self.gpu += units
        return self.next_level_at(budget) if units > 0 else inf

    def level_at(self, budget: Budget, now: float) -> int:
        """The highest of ``LEVELS`` that is reached now; 0: none."""
        percent = self.used(budget, now) * 100 * (1 + _ROUNDING) / budget.gpu_s
        return max((level for level in LEVELS if percent >= level), default=0)

    def due_at(self, budget: Budget, now: float) -> float:
        """From when on its level may be another one if nothing starts or ends before; infinite: never."""
        level = self.level if now < self.level_until else 0
        if self.level_at(budget, now) != level or (self.level and not level):
            return now
        times = [self.level_until] if level else []
        if self.gpu:
            used = self.used(budget, now)
            missing = [budget.gpu_s * part / 100 - used for part in LEVELS if part > level]
            times += [min(budget.end(now), now + gpu_s * UNIT / self.gpu) for gpu_s in missing]
        return min(times, default=inf)

    def next_level_at(self, budget: Budget) -> float:
        """When the next of ``LEVELS`` is reached, or else the period turns, if what is in use stays so; it is
        in use since ``at``. What was reached is not looked at here.
        """
        if self.level >= LEVELS[-1]:
            return self.until
        part = LEVELS[0] if self.level < LEVELS[0] else LEVELS[1]
        missing = budget.gpu_s * part / 100 - self.gpu_s
        return min(self.until, self.at + max(0.0, missing) * UNIT / self.gpu)

    def forecast(self, budget: Budget, now: float) -> tuple[float, float | None]:
        """The GPU-seconds that are used until the period turns if use goes on as on average since it began,
        or since they are counted if that is later; and when the budget is spent then, None: not in it.
        """
        used, end = self.used(budget, now), budget.end(now)
        passed = now - max(self.since, budget.begin(now))
        rate = used / passed if passed > 0 else self.gpu / UNIT
        missing = budget.gpu_s - used
        spent_at = now + missing / rate if rate > 0 and missing > 0 else None
        expected = used + rate * (end - now)
        return expected, spent_at if spent_at is not None and spent_at < end else None


class PoolBudgets:
    """The budgets of a pool and of its owners, and what was used of them."""

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        #: Of the pool as a whole; None: it has no budget.
        self.total: Meter | None = None
        #: Of the owners that have used something.
        self.owners: dict[str, Meter] = {}
        #: What each owner's budget is, found out as it is asked for.
        self._of_owners: dict[str, Budget | None] = {}

    def budget(self, owner: str | None) -> Budget | None:
        """The budget of an owner, or of the pool (None); None: it has none."""
        if owner is None or not self.spec.owner_budgets:
            return self.spec.budget if owner is None else None
        if owner not in self._of_owners:
            if len(self._of_owners) >= _REMEMBERED:
                self._of_owners.clear()
            self._of_owners[owner] = budget_of(self.spec.owner_budgets, owner)
        return self._of_owners[owner]

    @property
    def is_spent(self) -> bool:
        """Whether any of its budgets is."""
        meters = self.owners.values() if self.total is None else (self.total, *self.owners.values())
        return any(meter.level >= LEVELS[-1] for meter in meters)

    def meters(self) -> Iterator[tuple[str | None, Budget, Meter]]:
        """Each meter with whose it is, None: the pool's, and its budget."""
        metered: list[tuple[str | None, Meter]] = [*self.owners.items()]
        for owner, meter in metered if self.total is None else [(None, self.total), *metered]:
            budget = self.budget(owner)
            if budget is not None:
                yield owner, budget, meter

    def charge(self, owner: str, units: int, at: float) -> float:
        """So many more units of GPUs are in use from now on by the tasks of an owner, or fewer; gives what
        ``Meter.charge`` does.
        """
        budget, meter = self.spec.budget, self.total
        if budget is None or meter is None:
            return self.charge_owner(owner, units, at)
        due_at = meter.charge(budget, units, at)
        return (
            min(due_at, self.charge_owner(owner, units, at)) if self.spec.owner_budgets else due_at
        )

    def charge_owner(self, owner: str, units: int, at: float) -> float:
        """The same of an owner alone, and not of the pool."""
        budget = self.budget(owner)
        if budget is None:
            return inf
        meter = self.owners.get(owner)
        if meter is None:
            self._forget_idle(at)
            meter = self.owners[owner] = Meter.begun(budget, at)
        return meter.charge(budget, units, at)

    def _forget_idle(self, at: float) -> None:
        """Forget the owners that have used nothing in the present period, where there are many."""
        if len(self.owners) >= _IDLE_OWNERS:
            self.owners = {
                owner: meter
                for owner, meter in self.owners.items()
                if meter.gpu or meter.level or at < meter.until
            }

    def spent(self, owner: str, then: str) -> tuple[str | None, Budget, Meter] | None:
        """The budget that is spent of those that an owner's tasks are charged to, and after which this
        happens: the pool's, or the owner's; None: neither.
        """
        for charged, meter in ((None, self.total), (owner, self.owners.get(owner))):
            budget = None if meter is None or meter.level < LEVELS[-1] else self.budget(charged)
            if meter is not None and budget is not None and budget.then == then:
                return charged, budget, meter
        return None

    def asks_for_gpus(self, need: Resources | None) -> bool:
        """Whether a task that needs this asks for GPUs; None: what is usual in the pool."""
        return (self.spec.default_agent().gpu if need is None else need.gpu) > 0

    def highest_priority(self, owner: str, need: Resources | None) -> float | None:
        """The highest priority that a task of an owner has by budgets that are spent; None: any."""
        if not self.asks_for_gpus(need):
            return None
        limits = [
            budget.priority
            for charged, meter in ((None, self.total), (owner, self.owners.get(owner)))
            if meter is not None
            and meter.level >= LEVELS[-1]
            and (budget := self.budget(charged)) is not None
            and budget.then == "lower_priority"
        ]
        return min((limit for limit in limits if limit is not None), default=None)

    def define(self, before: PoolBudgets | None, agents: Iterable[Agent], at: float) -> None:
        """Go on counting what was counted before in the same periods, and all else from now on."""
        in_use: dict[str, int] = {}
        for agent in agents:
            if agent.committed:
                owner = agent.charged_owner
                in_use[owner] = in_use.get(owner, 0) + agent.spec.resources.gpu
        self.total = self._meter(before, None, sum(in_use.values()), at)
        for owner in {**in_use, **({} if before is None else before.owners)}:
            meter = self._meter(before, owner, in_use.get(owner, 0), at)
            if meter is not None:
                self.owners[owner] = meter

    def _meter(
        self, before: PoolBudgets | None, owner: str | None, gpu: int, at: float
    ) -> Meter | None:
        """The meter that a pool or an owner has from now on; None: it has no budget."""
        budget = self.budget(owner)
        if budget is None:
            return None
        if before is not None:
            meter = before.total if owner is None else before.owners.get(owner)
            earlier = before.budget(owner)
            if meter is not None and earlier is not None and earlier.calendar == budget.calendar:
                return meter
        return Meter.begun(budget, at, gpu)


class Budgets:
    """What is used of budgets, by the names of the pools that have some."""

    def __init__(self) -> None:
        self.by_pool: dict[str, PoolBudgets] = {}
        #: The pools of which one is spent, or one of their owners'.
        self.spent: set[str] = set()
        #: No level changes before this time; only spares work. After a restart the first tick looks.
        self.due_at = 0.0

    def define(self, spec: PoolSpec, agents: Iterable[Agent], at: float) -> bool:
        """Note the definition of a pool; whether its budgets are other ones than before."""
        before = self.by_pool.get(spec.name)
        if before is None and not spec.has_budgets:
            return False
        if before is not None and _budgets(before.spec) == _budgets(spec):
            before.spec = spec
            return False
        self.by_pool.pop(spec.name, None)
        if spec.has_budgets:
            after = self.by_pool[spec.name] = PoolBudgets(spec)
            after.define(before, agents, at)
            self.due_at = min(self.due_at, at)
        self._note_spent(spec.name)
        return True

    def forget(self, pool_name: str) -> None:
        """The pool has no budgets any more."""
        self.by_pool.pop(pool_name, None)
        self.spent.discard(pool_name)

    def rename(self, name: str, new_name: str) -> None:
        """A pool has another name."""
        if name in self.by_pool:
            renamed = self.by_pool[new_name] = self.by_pool.pop(name)
            renamed.spec = msgspec.structs.replace(renamed.spec, name=new_name)
            self.spent.discard(name)
            self._note_spent(new_name)

    def charge(self, agent: Agent, units: int, at: float) -> None:
        """The process of an agent has started, or is gone: it uses so many more units of GPUs, or fewer."""
        pool = self.by_pool.get(agent.spec.pool_name)
        if pool is not None and units:
            due_at = pool.charge(agent.charged_owner, units, at)
            self.due_at = min(self.due_at, due_at)

    def charge_other(self, agent: Agent, owner: str, at: float) -> None:
        """What an agent uses is charged to another owner from now on."""
        pool, units = self.by_pool.get(agent.spec.pool_name), agent.spec.resources.gpu
        if pool is not None and units and agent.committed:
            pool.charge_owner(agent.charged_owner, -units, at)
            self.due_at = min(self.due_at, pool.charge_owner(owner, units, at))

    def restore(self, stored: Iterable[tuple[str, str | None, Meter]]) -> None:
        """Add meters as a snapshot has them, after their pools were defined."""
        for pool_name, owner, meter in stored:
            pool = self.by_pool[pool_name]
            if owner is None:
                pool.total = meter
            else:
                pool.owners[owner] = meter
            self._note_spent(pool_name)

    def find_due(self, now: float) -> None:
        """Find out when a level changes next if nothing starts or ends before."""
        times = [m.due_at(b, now) for pool in self.by_pool.values() for _, b, m in pool.meters()]
        self.due_at = min(times, default=inf)

    def set_level(self, pool_name: str, owner: str | None, level: int, until: float) -> None:
        """A part of a budget is used, or a new period has begun."""
        pool = self.by_pool[pool_name]
        meter = pool.total if owner is None else pool.owners[owner]
        if meter is None:
            raise ValueError(f"pool {pool_name!r} has no budget")
        meter.level, meter.level_until = level, until
        self.due_at = min(self.due_at, until)
        self._note_spent(pool_name)

    def holds(self, pool_name: str, owner: str, need: Resources | None) -> bool:
        """Whether a task of an owner that needs this, of each kind the least in any of its alternatives, does
        not start because a budget is spent; ``need`` None: what is usual in its pool.
        """
        if pool_name not in self.spent:
            return False
        pool = self.by_pool[pool_name]
        return pool.asks_for_gpus(need) and pool.spent(owner, "hold") is not None

    def priced(self, spec: TaskSpec, pool_name: str, need: Resources | None) -> TaskSpec:
        """A task of a pool with the priority that it has as budgets are; ``need`` as for ``holds``."""
        pool, full = self.by_pool.get(pool_name), spec.full_priority
        if full is None and pool_name not in self.spent:
            return spec
        priority = spec.priority if full is None else full
        most = None if pool is None else pool.highest_priority(spec.owner, need)
        if most is None or priority <= most:
            return spec if full is None else spec.with_priority(priority)
        if (priority, most) == (full, spec.priority):
            return spec
        return msgspec.structs.replace(spec, priority=most, full_priority=priority)

    def _note_spent(self, pool_name: str) -> None:
        pool = self.by_pool.get(pool_name)
        (self.spent.add if pool is not None and pool.is_spent else self.spent.discard)(pool_name)


def _budgets(spec: PoolSpec) -> tuple[object, ...]:
    return (spec.budget, spec.owner_budgets, spec.default_agent().gpu > 0)
