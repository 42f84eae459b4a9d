"""Reclaim and the rules together: victims of both kinds for a task that neither makes room for alone.

A task that its pool's own quota covers may need a borrower to end for its quota, and a task of lower priority
for room on a node, or the reverse. Borrowers come before the tasks that the rules allow to evict, each kind
in its own order (``reclaim``, ``candidates``). Only quota of the incoming task's own pool counts as freed, so
a task that has reclaimed holds no loan. The limits on evictions apply to the victims by the rules. Of several
nodes that one is taken whose victims have the lowest top priority; borrowers count as lower than all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.preemption.candidates import Candidates, Order
from schedulemesh.engine.preemption.reclaim import Borrowers
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.preemption_rules import Verdict
from schedulemesh.engine.state.tasks import RunningTask, TaskClass

#: Taken from the place of a borrower: more than twice the largest priority, duration and rank together.
_BEFORE_ALL = 1e11


class BorrowersAndOthers(Candidates):
    """The tasks that may be evicted by a reclaim, and those that may be by the rules."""

    by_priority = False
    lends = False

    def __init__(self, borrowers: Borrowers, others: Candidates) -> None:
        self._borrowers = borrowers
        self._others = others

    @property
    def need(self) -> Resources | None:
        """See ``Candidates.need``."""
        return self._borrowers.need

    @need.setter
    def need(self, need: Resources | None) -> None:
        self._borrowers.need = self._others.need = need

    def extras(self) -> BorrowersAndOthers:
        """See ``Candidates.extras``."""
        borrowers = self._borrowers.extras()
        if not isinstance(borrowers, Borrowers):
            raise TypeError("the extras of borrowers are borrowers")
        return BorrowersAndOthers(borrowers, self._others.extras())

    @property
    def may_grow(self) -> bool:
        """See ``Candidates.may_grow``."""
        return self._others.may_grow

    @property
    def allowed(self) -> dict[TaskClass, Verdict]:
        """See ``Candidates.allowed``."""
        return {**self._others.allowed, **self._borrowers.allowed}

    def candidate_of(self, task: RunningTask) -> Candidate | None:
        """See ``Candidates.candidate_of``."""
        return self._borrowers.candidate_of(task) or self._others.candidate_of(task)

    def in_order(
        self,
        keep: Callable[[TaskClass], bool] = TaskClass.has_tasks,
        first: int | None = None,
    ) -> Iterator[Candidate]:
        """See ``Candidates.in_order``; ``first``: of each kind no more than this many."""
        reclaimed: set[str] = set()
        for candidate in self._borrowers.in_order(keep, first):
            reclaimed.add(candidate.task_id)
            yield candidate
        for candidate in self._others.in_order(keep, first):
            if candidate.task_id not in reclaimed:
                yield candidate

    def order_of(self, tasks: Sequence[Candidate]) -> Order:
        """See ``Candidates.order_of``."""
        borrowers = [task for task in tasks if task.reason is PreemptionReason.RECLAIM]
        others = [task for task in tasks if task.reason is not PreemptionReason.RECLAIM]
        if others:
            return self._others.order_of(others)
        order = self._borrowers.order_of(borrowers)
        return (order[0] - _BEFORE_ALL, *order[1:])

    @cached_property
    def tiers(self) -> Mapping[TaskClass, float]:
        """See ``Candidates.tiers``."""
        others = ((task_class, task_class.priority) for task_class in self._others.allowed)
        ranks = self._borrowers.tiers.items()
        return dict(chain(others, ((task_class, rank - _BEFORE_ALL) for task_class, rank in ranks)))

    def tier_of(self, tasks: Sequence[Candidate]) -> float:
        """See ``Candidates.tier_of``."""
        others = [task for task in tasks if task.reason is not PreemptionReason.RECLAIM]
        if others:
            return self._others.tier_of(others)
        return self._borrowers.tier_of(tasks) - _BEFORE_ALL

    def quota_of(self, agent: Agent) -> Resources:
        """See ``Candidates.quota_of``."""
        return self._borrowers.quota_of(agent)
