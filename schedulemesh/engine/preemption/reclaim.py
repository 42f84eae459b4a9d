"""Reclaim: a pool gets back the quota that it has lent, by the eviction of borrowers.

The owner is a task that the quota of its pool covers if what the pool has lent counts as its own. Whatever
the priorities, it may evict the borrowers: tasks of other pools of its tree of cohorts that run on borrowed
quota. Tasks that still hold what the pool lent them before one of the two left that tree are borrowers, too.
Not evicted are

1. tasks of a protected pool,
2. tasks that dominate it by a label rule and are not dominated in turn,
3. tasks that a strategy keeps (``veto``),
4. tasks that cannot save their state, where the policy says so (``reclaim_unsavable``).

Only quota of its own pool counts as freed for it, and it pays with nothing else: a task that has reclaimed
holds no loan, so that nobody can reclaim from it, and the rules let no other pool of the cohort evict it by
priority (``engine.state.preemption_rules``). So the reclaimed task cannot evict its reclaimer.

Borrowers stand in this order:

1. those of the pool with the highest share first (``shares``);
2. then those whose GPUs are idle;
3. then the lowest price: the seconds of work lost and those that a restart costs, times what the task holds
   in GPUs, times one more than the number of evictions that it has suffered; and for an hour what becomes
   idle because the owner does not need it;
4. then the newest start;
5. then the lower task id.

Tasks that do not run yet have lost nothing: their starts are cancelled (``Borrowers.unstarted``). They count
with the price of a restart.

The search is that of preemption (``search``); of several nodes it takes the one whose victims' pools have the
highest shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from schedulemesh.domain.labels import Labels
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.domain.resources import Resources, sum_of
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.preemption.candidates import Order, idle_cost
from schedulemesh.engine.preemption.ranked import RankedCandidates
from schedulemesh.engine.preemption.savable import can_be_saved
from schedulemesh.engine.preemption.veto import PluginVeto
from schedulemesh.engine.state.agents import Agent, Starting, Waiting
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.preemption_rules import Incoming, Verdict
from schedulemesh.engine.state.shares import Shares
from schedulemesh.engine.state.tasks import RunningTask, TaskClass

#: Seconds that a restart costs where no work is lost.
RESTART_S = 30.0


class Borrowers(RankedCandidates):
    """The tasks that may be evicted so that a pool gets its own quota back."""

    lends = False

    def __init__(
        self,
        state: MeshState,
        incoming: Incoming,
        now: float,
        veto: PluginVeto | None = None,
        of_kinds: Resources | None = None,
    ) -> None:
        super().__init__(state.preemption, state.running, incoming, now, veto)
        self._state = state
        #: Only those are evicted that hold quota of the incoming task's pool of these kinds; None: all are.
        self._of_kinds = of_kinds

    def candidate_of(self, task: RunningTask) -> Candidate | None:
        """See ``Candidates.candidate_of``."""
        if self._of_kinds is not None:
            borrower = self._state.agents.get(task.agent_name)
            if borrower is None or not self.quota_of(borrower).helps(self._of_kinds):
                return None
        if task.spec.pool_name not in self._incoming.neighbours and not self._is_former(task):
            return None
        if not self._policy.reclaim_unsavable:
            agent = self._state.agents.get(task.agent_name)
            if agent is None or not can_be_saved(self._state, agent):
                return None
        return super().candidate_of(task)

    def tier_of(self, tasks: Sequence[Candidate]) -> float:
        """The place of its pool, 0 for the one with the highest share."""
        return max(self._ranks[task.pool_name] for task in tasks)

    @cached_property
    def tiers(self) -> Mapping[TaskClass, float]:
        """The place of each class's pool."""
        return {task_class: self._ranks[task_class.pool_name] for task_class in self.allowed}

    def quota_of(self, agent: Agent) -> Resources:
        """What its eviction gives back to the owner."""
        owner = self._incoming.pool_name
        return sum_of(share.amount for share in agent.shares if share.pool_name == owner)

    def unstarted(self, kinds: Resources) -> tuple[str, ...]:
        """The agents that have borrowed, or are to borrow, of these kinds, and do not run yet, so that their
        claims may be revoked: the lowest price first, then the last one admitted.
        """
        state, running = self._state, self._running
        tasks: dict[str, list[RunningTask]] = {}
        for task in map(running.by_id.__getitem__, running.starting):
            tasks.setdefault(task.agent_name, []).append(task)
        order = []
        for name, of_agent in tasks.items():
            agent = state.agents.get(name)
            if agent is not None and self._may_be_revoked(agent, of_agent, kinds):
                price = sum(price_of(task, self._now) for task in of_agent)
                price += idle_cost(agent.spec.resources, self.need)
                order.append((price, -agent.incarnation, name))
        return tuple(name for *_, name in sorted(order))

    def _may_be_revoked(self, agent: Agent, tasks: Sequence[RunningTask], kinds: Resources) -> bool:
        if not isinstance(agent.phase, (Waiting, Starting)):
            return False
        spec, owner = agent.spec, self._incoming.pool_name
        if spec.payload.adopts:
            return False
        loans = (s for s in (*agent.shares, *agent.promised) if s.pool_name != spec.pool_name)
        if not any(loan.amount.helps(kinds) for loan in loans):
            return False
        if spec.pool_name not in self._incoming.neighbours and owner not in agent.former_lenders:
            return False
        return all(self._gives_way(task) for task in tasks)

    def _gives_way(self, task: RunningTask) -> bool:
        """Whether a task that does not run yet gives way to the incoming one."""
        spec = task.spec
        verdict = self._verdict_on(spec.pool_name, spec.priority, spec.labels)
        if verdict.rule is None or (self.only_extras and not spec.extra_of):
            return False
        return self._veto is None or self._veto.allows(task, verdict)

    def _place(self, task: RunningTask) -> Order:
        price = price_of(task, self._now) + self._idle_cost(task.resources)
        busy = task.agent_name not in self._running.idle
        rank = self._ranks[task.spec.pool_name]
        return (rank, busy, 0.0, price, -task.started_at, task.spec.task_id)

    def _idle_cost(self, freed: Resources) -> float:
        """See ``idle_cost``; worked out once for all that hold the same."""
        cost = self._idle_costs.get(freed)
        if cost is None:
            cost = self._idle_costs[freed] = idle_cost(freed, self.need)
        return cost

    @cached_property
    def _idle_costs(self) -> dict[Resources, float]:
        """What ``_idle_cost`` has found."""
        return {}

    @cached_property
    def _ranks(self) -> dict[str, float]:
        """The place of each borrowing pool, 0 for the one with the highest share."""
        pools = {task_class.pool_name for task_class in self.allowed}
        keys = Shares(self._state, self._now).keys(pools)
        highest_first = sorted(set(keys.values()), reverse=True)
        return {name: float(highest_first.index(key)) for name, key in keys.items()}

    def _judge_all(self) -> list[tuple[TaskClass, Verdict]]:
        return [
            (task_class, self._judge(task_class))
            for task_class in self._running.occupied
            if task_class.payers and self._comes_into_question(task_class)
        ]

    def _comes_into_question(self, task_class: TaskClass) -> bool:
        """Whether a class is of a pool of the tree of cohorts, or holds a loan from the time when it was."""
        if task_class.pool_name in self._incoming.neighbours:
            return True
        if self._incoming.pool_name not in task_class.payers:
            return False
        by_id = self._running.by_id
        return any(self._is_former(by_id[task_id]) for task_id in task_class.task_ids())

    def _is_former(self, task: RunningTask) -> bool:
        """Whether it holds quota that the incoming task's pool lent when they were in one tree of cohorts."""
        agent = self._state.agents.get(task.agent_name)
        return agent is not None and self._incoming.pool_name in agent.former_lenders

    def _judge(self, task_class: TaskClass) -> Verdict:
        return self._verdict_on(task_class.pool_name, task_class.priority, task_class.labels)

    def _verdict_on(self, pool_name: str, priority: float, labels: Labels) -> Verdict:
        policy, ranks, incoming = self._policy, self._rules.ranks, self._incoming
        if policy.protects(pool_name):
            return Verdict(refused=Reason.PROTECTED_POOL)
        if policy.enable_label_preemption:
            low = incoming.labels
            if ranks.rank(labels, low) and not ranks.rank(low, labels):
                return Verdict(refused=Reason.DOMINATES_BY_LABEL)
        return Verdict(rule=PreemptionReason.RECLAIM, delta=incoming.priority - priority)


def price_of(task: RunningTask, now: float) -> float:
    """What it costs to take back what a task has borrowed, in GPU-seconds, more for each eviction before."""
    lost_s = 0.0 if task.phase is TaskPhase.STARTING else task.lost_work(now)
    return (lost_s + RESTART_S) * (1 + task.attempts.preemptions) * task.resources.work_rate
